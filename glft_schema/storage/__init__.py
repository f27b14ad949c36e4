"""Bytes: where they come from and how they are written. Nothing here knows what they mean."""
