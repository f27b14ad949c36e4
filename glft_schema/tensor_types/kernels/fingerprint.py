"""Fingerprints of functions: hashes of their code and of everything that the code refers to.

A kernel is valid as long as the fingerprint of its function is: an edit of a helper, a table or a
default invalidates it. Bytecode is hashed, so comments do not count, and versions of Python do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dis import get_instructions, opmap
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GenericAlias,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    UnionType,
    WrapperDescriptorType,
)
from typing import Any

import numpy as np

from glft_schema.lazy import torch

IMPORT = opmap["IMPORT_NAME"]
NAMED = (MemberDescriptorType, GetSetDescriptorType, GenericAlias, UnionType, WrapperDescriptorType)
WRAPPERS = (partial, MethodType, staticmethod, classmethod, property, cached_property)
CONSTANTS = (type(None), type(...), bool, int, float, complex, str, bytes, range)
LIBRARIES = (*sys.stdlib_module_names, "numpy", "torch")  # their versions are part of a kernel's key
EXEMPT = "NOT_IN_FINGERPRINTS"  # a module's names of objects that do not count, such as caches
UNIMPORTANT = {"__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__firstlineno__", "_abc_impl"}


def fingerprint(*functions: Callable[..., object]) -> str:
    """Returns a hash of functions: 64 hexadecimal digits.

    It covers the functions' code and defaults, and all functions, classes, constants, tensors and
    arrays that the code names, in turn. The standard library, numpy and torch count by name. A path
    counts by the content of its file.

    Raises:
        ValueError: if the code refers to something whose content is unknown, such as a module of
            another library.
    """
    digest, seen = sha256(), set[int]()
    for function in functions:
        for part in _parts(function, seen):
            digest.update(part.encode())
            digest.update(b"\n")
    return digest.hexdigest()


def _parts(value: Any, seen: set[int]) -> Iterator[str]:
    """Yields texts that identify a value. Functions and classes that were seen count by name."""
    if isinstance(value, CONSTANTS) and type(value) in CONSTANTS:
        yield f"{type(value).__name__} {value!r}"
    elif type(value) in (tuple, list):
        yield f"{type(value).__name__} of {len(value)}"
        for item in value:
            yield from _parts(item, seen)
    elif type(value) in (set, frozenset):
        yield from sorted("\n".join(_parts(item, seen)) for item in value)
    elif type(value) in (dict, MappingProxyType):
        yield from _parts([part for item in value.items() for part in item], seen)
    elif isinstance(value, CodeType):
        yield from _parts_of_code(value, seen)
    elif isinstance(value, Path):
        yield f"file {sha256(value.read_bytes()).hexdigest()}"
    elif isinstance(value, (torch.Tensor, np.ndarray)):
        numbers = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy() if torch.is_tensor(value) else value
        yield f"{value.dtype} {list(value.shape)} {sha256(numbers.tobytes()).hexdigest()}"
    elif isinstance(value, (torch.dtype, torch.device, np.dtype)):
        yield repr(value)
    elif isinstance(value, ModuleType) and _is_of_a_library(value.__name__):
        yield f"module {value.__name__}"
    elif isinstance(value, (FunctionType, BuiltinFunctionType, type)) and _is_of_a_library(value.__module__):
        yield f"{value.__module__}.{value.__qualname__}"
    elif isinstance(value, (FunctionType, type)):
        yield f"{type(value).__name__} {value.__module__}.{value.__qualname__}"
        if id(value) not in seen:
            seen.add(id(value))
            yield from _parts_of_function(value, seen) if isinstance(value, FunctionType) else _parts_of_class(value, seen)
    elif isinstance(value, WRAPPERS) or hasattr(value, "__wrapped__"):
        names = ("func", "args", "keywords", "__self__", "__func__", "__wrapped__", "fget", "fset", "fdel")
        yield type(value).__name__
        yield from _parts([getattr(value, name) for name in names if getattr(value, name, None) is not None], seen)
    elif isinstance(value, NAMED) or type(value).__module__ in ("typing", "_collections"):
        yield repr(value)  # the fields of classes and named tuples, and types
    else:
        raise ValueError(f"a kernel cannot depend on {type(value).__qualname__} objects")


def _is_of_a_library(module: str | None) -> bool:
    return module is None or module.partition(".")[0] in LIBRARIES


def _parts_of_function(function: FunctionType, seen: set[int]) -> Iterator[str]:
    yield from _parts_of_code(function.__code__, seen)
    yield from _parts([function.__defaults__, function.__kwdefaults__, vars(function)], seen)
    yield from _parts([cell.cell_contents for cell in function.__closure__ or ()], seen)
    for name in sorted(_names(function.__code__)):
        if name in function.__globals__ and name not in function.__globals__.get(EXEMPT, ()):
            yield name
            yield from _parts(function.__globals__[name], seen)


def _parts_of_class(value: type, seen: set[int]) -> Iterator[str]:
    yield from _parts(list(value.__bases__), seen)
    for name, member in sorted(vars(value).items()):
        if name not in UNIMPORTANT:
            yield name
            yield from _parts(member, seen)


def _parts_of_code(code: CodeType, seen: set[int]) -> Iterator[str]:
    if IMPORT in code.co_code[::2]:
        imported = [instruction.argval for instruction in get_instructions(code) if instruction.opcode == IMPORT]
        if not all(map(_is_of_a_library, imported)):
            raise ValueError(f"a kernel cannot depend on an import in {code.co_name}")
    arguments = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    yield from _parts([code.co_code, code.co_names, code.co_varnames, code.co_freevars, arguments, code.co_consts], seen)


def _names(code: CodeType) -> set[str]:
    """Returns the names that code and the functions defined in it refer to."""
    nested = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*map(_names, nested))
