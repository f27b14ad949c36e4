"""torch, imported on first use, and `outside_graphs`, which keeps torch.compile out of code that it cannot guard.

Looking into a file (`glft inspect`, `Container.parse_file`) needs no tensor, and importing torch takes most of a second.
Type checkers see the real module; at run time the name stands for a module that fetches each attribute from torch, once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

if TYPE_CHECKING:
    import torch
else:
    from importlib import import_module
    from types import ModuleType

    class _Deferred(ModuleType):
        def __getattr__(self, attribute: str) -> object:
            found = getattr(import_module(self.__name__), attribute)
            setattr(self, attribute, found)  # so that it is asked for once
            return found

    torch = _Deferred("torch")


def outside_graphs(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Makes `torch.compile` call a function instead of tracing it: a graph break, or its error under ``fullgraph=True``.

    For functions that read files or use caches. torch puts no guard on the identity of plain objects, neither in ``a is b``
    nor in ``a in (b, c)`` nor on the keys of a dict, so a graph traced for one file or tensor type could run for another and
    give wrong numbers (seen with torch 2.13).

    `torch.compiler.disable` does this, but importing the compiler takes seconds. Nothing is traced before the compiler is
    imported, so the wrapper is made only then.
    """

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        disabled: Callable[Arguments, Result] | None = getattr(function, "disabled", None)
        if disabled is None:
            disabled = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
            function.disabled = disabled  # type: ignore[attr-defined]
        return disabled(*args, **kwargs)

    return call


__all__ = ["outside_graphs", "torch"]
