"""Byte sources and atomic writes, independent of any file format."""
