"""Tests of composite weights, many against what the libraries that write them have recorded."""
