"""Decoders of tensor types as shared libraries: compiled when the package is built, and loaded by
ctypes.

    compiled/manifest.json        what the libraries are compiled from and for, and their self-tests
    compiled/LEVEL-DIGEST.so      a library per level of the processor, with all decoders

`building` compiles libraries, `loading` finds a function in them. Neither needs torch, and the
libraries call no other library, not even libc.
"""
