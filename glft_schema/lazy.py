"""torch, imported when it is first used.

Looking into a file (`glft inspect`, `Container.parse_file`) needs no tensor, and importing torch takes most of a second.
Type checkers see the real module; at run time the name stands for a module that fetches each attribute from torch, once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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

__all__ = ["torch"]
