"""The subcommands: each is imported when it is used."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

COMMANDS = {  # by name: the module that has it
    "compare": "compare",
    "convert": "convert",
    "edit": "edit",
    "explain": "explain",
    "fuzz": "fuzz",
    "get-tensor": "get_tensor",
    "hash": "hash",
    "imatrix": "imatrix",
    "inspect": "inspect",
    "kernels": "kernels",
    "lab": "lab",
    "merge": "split",
    "merge-lora": "merge_lora",
    "plan": "plan",
    "quantize": "quantize",
    "schema": "schema",
    "split": "split",
    "verify": "verify",
    "view": "view",
}
PLAIN = dict[str, Any](add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


class Commands(Mapping[str, Any]):
    """The commands by name."""

    def __getitem__(self, name: str) -> Any:
        module = import_module(f"glft_schema.cli.{COMMANDS[name]}")
        command = getattr(module, name.replace("-", "_"))
        if not isinstance(command, typer.Typer):  # a group of commands is one
            function, command = command, typer.Typer(**PLAIN)
            command.command(name, cls=Command)(function)
        made = typer.main.get_command(command)
        made.name = name
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class PlainValue:
    """Converts the text of one parameter without typer, which from 0.29 on imports pydantic: 80 ms.

    Only texts, paths and absent values. Other types, and paths that exist but cannot be read, are
    left to typer.
    """

    def __init__(self, parameter: Any) -> None:
        self._usual = parameter.get_runtime_param
        self._type = parameter.type_descriptor.annotation

    def itself(self) -> PlainValue:
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Returns the value of a parameter."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if self._type in (str, list[str]):
            return value
        if self._type is Path and (os.access(value, os.R_OK) or not os.path.exists(value)):
            return Path(value)
        return self._usual().coerce(value, param=param, ctx=ctx)


class _PlainValues:
    """A command of typer with `PlainValue`s."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if hasattr(parameter, "get_runtime_param") and "get_runtime_param" not in vars(parameter):
                parameter.get_runtime_param = PlainValue(parameter).itself
        return parameters


class Command(_PlainValues, TyperCommand):
    """A subcommand."""


class Group(_PlainValues, TyperGroup):
    """The `glft` command, with its subcommands."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**{**attributes, "commands": Commands()})
