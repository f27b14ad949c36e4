"""A small language for formulas of single blocks: a subset of Python that is checked, run as it is,
and printed as C or as operations on arrays.

The package needs numpy only, and knows nothing of tensor types. docs/scalar-functions.md describes
the language.
"""
