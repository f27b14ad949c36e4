"""Arguments and options, declared in the signatures of commands and made into click's."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import click

from glft_schema.cli.completing import ARGUMENTS, OPTIONS, completer, words
from glft_schema.codec.rules import RULE_SETS
from glft_schema.errors import OptionError, quote
from glft_schema.storage.locations import RemotePath, check_local, is_remote, without_secrets
from glft_schema.words import suggestion

Function = Callable[..., None]
Texts = tuple[str, ...]
HELP = {"help_option_names": ["--help", "-h"]}
RANGES: dict[type, Any] = {int: click.IntRange, float: click.FloatRange}
DECIMAL = {f"{letter}{unit}": 1000**i for i, letter in enumerate("KMG", 1) for unit in ("", "B")}  # K, KB, ...
UNITS = {"": 1, "B": 1, **DECIMAL, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
Input = RemotePath | Path  # of a file that is read
BEFORE = ("--download", "--limit")  # options of glft itself
TYPE_OPTIONS = ("--type", "--dtype", "--outtype")  # of similar tools, not of glft convert
TYPE_HINT = "types are chosen by --scheme TYPE, or by glft quantize IN OUT TYPE"


class _PathType(click.Path):
    """A path, or a URL or ``-`` of a file that is read."""

    def __init__(self, is_read: bool) -> None:
        super().__init__(path_type=Path)
        self._is_read = is_read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns a Path or a RemotePath. Raises OptionError for a URL to write."""
        if self._is_read and is_remote(value):
            return RemotePath(value)
        check_local(value)
        return super().convert(os.path.abspath(value) if os.path.normpath(value) == "-" else value, param, ctx)


TYPES: dict[Any, Any] = {Path: _PathType(False), RemotePath: _PathType(True), Input: _PathType(True)}

Declared = Callable[[inspect.Parameter], click.Parameter]


def argument(metavar: str, about: str) -> Declared:
    """Declares an argument.

    The annotation of its parameter is ``Annotated[Path, argument("FILE", "Weights file.")]``.
    """

    def make(parameter: inspect.Parameter) -> click.Parameter:
        nargs = -1 if _is_many(parameter) else 1
        return click.Argument([parameter.name], help=about, nargs=nargs, **_attributes(parameter, metavar, ARGUMENTS, {}))

    return make


def option(metavar: str | None, about: str, *names: str, **attributes: Any) -> Declared:
    """Declares an option.

    Args:
        metavar: the name of its value.
        about: its help.
        names: names to add to ``--PARAMETER``, or to use instead of it if one begins with ``--``.
        attributes: attributes of click's option; ``min`` and ``max`` limit a number.
    """

    def make(parameter: inspect.Parameter) -> click.Parameter:
        default = () if any(name.startswith("--") for name in names) else (f"--{option_name(parameter.name)}",)
        found = _attributes(parameter, metavar, OPTIONS, {"help": about, "multiple": _is_many(parameter), **attributes})
        return click.Option([*default, *names, parameter.name], show_default=True, **found)

    return make


flag = partial(option, None)


def _is_many(parameter: inspect.Parameter) -> bool:
    return get_origin(get_args(parameter.annotation)[0]) is tuple


def _attributes(
    parameter: inspect.Parameter, metavar: str | None, words: Mapping[str, str], attributes: dict[str, Any]
) -> dict[str, Any]:
    """Adds click's attributes for the annotation, default and metavar of a parameter."""
    hint = get_args(parameter.annotation)[0]
    type_ = (get_args(hint) or (hint,))[0]  # of Path | None, and of tuple[Path, ...]
    bounds = {name: attributes.pop(name) for name in ("min", "max") if name in attributes}
    usual = {"is_flag": True} if type_ is bool else {"type": RANGES[type_](**bounds) if bounds else TYPES.get(type_, type_)}
    usual |= {} if parameter.default in (parameter.empty, ()) else {"default": parameter.default}
    usual |= {"metavar": metavar, "shell_complete": completer(words.get(metavar or ""))}
    return {**usual, "required": parameter.default is parameter.empty, **attributes}


def option_name(name: str) -> str:
    """Returns the name of a command or option for a Python identifier."""
    return name.strip("_").replace("_", "-")


def bytes_of(text: str, option: str = "a size") -> int:
    """Parses a size such as ``90MB`` or ``2GiB``. Raises OptionError for any other form."""
    found = re.fullmatch(r"([0-9]{1,20}(?:\.[0-9]{1,9})?) ?([A-Za-z]*)", text)
    if not found or found[2].upper() not in UNITS:
        raise OptionError(f"expected {option} in bytes, kB, MB, GB, KiB, MiB or GiB, such as 90MB, found {quote(text)}")
    return int((float if "." in found[1] else int)(found[1]) * UNITS[found[2].upper()])


class Choice(click.Choice[str]):
    """One of several words. Suggests the closest for an unknown one."""

    def get_invalid_choice_message(self, value: object, ctx: click.Context | None) -> str:
        """Returns the error."""
        return super().get_invalid_choice_message(value, ctx).rstrip(".") + (suggestion(value, self.choices) or ".")


class Command(click.Command):
    """A command that lists its arguments with their help."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses arguments. Errors about missing or extra arguments may name OUT or give a hint."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            if (name := getattr(error, "option_name", None)) in BEFORE:
                problem = f"{error.message.rstrip('.')}; it goes before the command: glft {name} {self.name}"
                raise click.UsageError(problem, ctx) from None
            out = next((part for part in self.params if part.name in ("out", "output")), None)
            if isinstance(error, click.MissingParameter):
                kind = ARGUMENTS.get(str(error.param and error.param.metavar))
                if kind == "file types" and str(ctx.params["out"]).upper() in words(kind):
                    error.param = out
            elif isinstance(out, click.Argument) and getattr(error, "option_name", None) in ("-o", "--out"):
                problem = f"{error.message.rstrip('.')}; the output is an argument: {out.metavar}"
                raise click.UsageError(problem, ctx) from None
            is_extra = "unexpected extra argument" in error.message
            if self.name == "convert" and (is_extra or getattr(error, "option_name", None) in TYPE_OPTIONS):
                raise click.UsageError(f"{without_secrets(error.message).rstrip('.')}; {TYPE_HINT}", ctx) from None
            if is_extra:
                hint = f"; the output is an option: {out.opts[-1]} {out.metavar}" if isinstance(out, click.Option) else ""
                hint = "; give only the first file of the set" if self.params[0].metavar == "FIRST" else hint
                raise click.UsageError(f"{without_secrets(error.message)}{hint}", ctx) from None
            raise


def command(function: Function) -> Command:
    """Makes a function a command. Its docstring is the help, and may end in ``Examples:``."""
    text, _, examples = inspect.cleandoc(function.__doc__ or "").partition("\n\nExamples:\n")
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    params = [get_args(parameter.annotation)[1](parameter) for parameter in parameters]
    epilog = f"\b\nExamples:\n{examples}".replace("\n    ", "\n  ") if examples else None
    return Command(option_name(function.__name__), HELP, callback=function, params=params, help=text, epilog=epilog)


# fmt: off
Out = Annotated[Path, argument("OUT", "Output file; replaced only on success.")]
Exclude = Annotated[Texts, option("PATTERN", "Skip tensors that match this name or wildcard pattern. Repeatable.")]
Like = Annotated[Input | None, option(
    "DONOR", "GGUF model to copy names and metadata from; with convert, also types, or the base model of a LoRA adapter."
)]
Rules = Annotated[Texts, option(
    "SET",
    f"Rule set that OUT must satisfy: {', '.join(RULE_SETS)}. Default: those of OUT's format, "
    "or none if IN already breaks them. Repeatable.",
)]
Imatrix = Annotated[Input | None, option("FILE", "llama.cpp importance matrix for IN; required by some types.")]
Verbose = Annotated[bool, flag("Add a row for each tensor to the report.", "--verbose", "-v")]
Json = Annotated[bool, flag("Print JSON.", "--json")]
Search = Annotated[bool, flag("Search for the best scales of NVFP4 and MXFP4; others are not affected.")]
AllowRequantize = Annotated[bool, flag("Also quantize tensors that are quantized already; their error grows.")]
Tokenizer = Annotated[Path | None, option("DIR", "Hugging Face folder with the tokenizer to use. Default: the model's.")]
Chunks = Annotated[int | None, option("N", "Use only the first N chunks of the text. Default: all.", min=1)]
Context = Annotated[int, option("N", "Tokens per chunk of the text.", min=1)]
ConverterPath = Annotated[str | None, option(
    "PATH",
    "llama.cpp's convert_hf_to_gguf.py, its folder, or the word installed: maps a Hugging Face folder in a separate "
    "process. Default: installed, for undeclared architectures only.",
)]
TrustRemoteCode = Annotated[bool, flag(
    "Let the converter read a folder with code (auto_map, Python files) or links that leave it."
)]
# fmt: on
