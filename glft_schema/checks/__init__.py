"""Checks of files: against their source, against a manifest, and for bad values."""
