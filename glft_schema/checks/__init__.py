"""Checks files against their source and against a manifest, and checks for bad values."""
