"""Decoders and encoders of tensor types as shared libraries, compiled when the package is built and
loaded by ctypes.

    compiled/manifest.json        what the libraries are compiled from and for, and their self-tests
    compiled/LEVEL-DIGEST.so      a library per level of the processor, with all functions

`building` compiles the libraries, and `loading` finds a function in them. Neither needs torch. The
libraries call no other library, not even libc.
"""
