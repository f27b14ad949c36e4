"""Imports torch on first use, and defines `outside_graphs`, which excludes functions from
torch.compile. Most functions do not need torch, whose import takes a second or two. Type checkers
see the real module. At run time the name is a proxy that caches torch's attributes.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from glft_schema.errors import OptionError
from glft_schema.words import missing_attribute

while_waiting: Callable[[str], AbstractContextManager[object]] = nullcontext  # entered with what is being done
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def waiting_for(doing: str) -> AbstractContextManager[object]:
    """Returns a context for a block that may take long, which the `glft` command shows."""
    return while_waiting(doing)


def import_module(name: str) -> ModuleType:
    """Imports a module that may import torch. Raises OptionError if torch is not installed."""
    try:
        with nullcontext() if "torch" in sys.modules else waiting_for("loading torch"):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == "torch":
            raise OptionError("this needs torch, which is not installed: pip install 'glft_schema[torch]'") from None
        raise


def on_first_use(module: dict[str, Any], names: Mapping[str, str], parts: Iterable[str] = ()) -> tuple[Any, Any]:
    """Returns ``__getattr__`` and ``__dir__`` of a package that imports modules on first use.

    Args:
        module: the package's ``globals()``.
        names: module, relative to glft_schema -> the names it provides, separated by spaces.
        parts: submodules that are imported on first use.
    """
    package = module["__name__"]
    modules = {name: source for source, listed in names.items() for name in listed.split()}

    def getter(name: str) -> Any:
        if name in parts:
            return import_module(f"{package}.{name}")
        if name not in modules:
            raise missing_attribute(f"module {package!r} has no attribute {name!r}", name, directory())
        module[name] = value = getattr(import_module(f"glft_schema.{modules[name]}"), name)
        return value

    def directory() -> list[str]:
        return sorted({*module, *modules, *parts})

    return getter, directory


if TYPE_CHECKING:
    import torch as torch
else:

    class _Deferred(ModuleType):
        def __getattr__(self, attribute: str) -> object:
            value = getattr(import_module(self.__name__), attribute)
            setattr(self, attribute, value)  # later accesses skip this method
            return value

    torch = _Deferred("torch")


def outside_graphs(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Makes `torch.compile` call a function instead of tracing it.

    This is a graph break, or torch's error under ``fullgraph=True``. Functions that read files or
    use caches need it: torch does not guard the identity of plain objects, neither in ``a is b``
    nor in ``a in (b, c)`` nor in keys of a dict. A graph traced for one file or tensor type could
    run for another and return wrong values (seen with torch 2.13).

    `torch.compiler.disable` does the same, but importing the compiler takes seconds. The wrapper is
    therefore created only once the compiler is loaded.
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
