"""Shell completion: fixed sets of words, and the names in a file on the command line."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class

from glft_schema.limits import DEFAULTS

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


@add_completion_class
class Bash(BashComplete):
    """Completion by bash, without a space after ``KEY=``."""

    source_template = BashComplete.source_template.replace(
        "COMPREPLY+=($value)", "COMPREPLY+=($value)\n            [[ $value == *= ]] && compopt -o nospace"
    )


def words(kind: str, path: str = "") -> Iterable[str]:
    """Returns the words of a kind: a fixed set, or names in a file."""
    from glft_schema.checks.rule_sets import ALL_SETS
    from glft_schema.files.container import Container
    from glft_schema.formats.registry import FORMATS
    from glft_schema.quantizer.recipes import COPY, RECIPES

    types = dict.fromkeys(type_.scheme for format in FORMATS for type_ in format.types if type_.has_encoder)
    formats = [format.name.lower() for format in FORMATS]
    closed: dict[str, Iterable[str]] = {"types": types, "formats": formats, "rules": ALL_SETS, "limits": DEFAULTS}
    closed |= {"file types": [recipe.name for recipe in (*RECIPES, COPY)]}
    closed |= {} if path else {"names": [*formats, *types], "schemes": types}
    if kind in closed:
        return closed[kind]
    file = Container.parse_file(path)
    names: dict[str, Iterable[str]] = {"keys": file.metadata, "schemes": [*types, *(f"{name}=" for name in file.tensors)]}
    return names.get(kind) or file.tensors.keys()


def complete(kind: str, ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Completes a word, with names from the first file on the command line."""
    at = max(incomplete.rfind("="), incomplete.rfind(",")) + 1  # of PATTERN=TYPE or TYPE,...
    given = [*map(str, ctx.params.values()), *ctx.args]  # args, if the option's value is missing
    try:
        candidates = [*words(kind, next(filter(os.path.isfile, given), ""))]
    except Exception:  # a shell shows no errors
        return []
    ending = "=" if parameter.metavar in ("KEY=VALUE", "OLD=NEW", "NAME=NUMBER") else ""
    fitting = [word for word in candidates if word.lower().startswith(incomplete[at:].lower())]
    if kind == "formats" and not fitting:
        return [CompletionItem(incomplete, type="file")]
    return [CompletionItem(f"{incomplete[:at]}{word}{ending}") for word in fitting]


# fmt: off
ARGUMENTS = {"TYPE": "file types", "[TYPE]...": "types", "NAME": "names", "FILE-OR-FORMAT": "formats"}  # kinds by metavar
OPTIONS = {
    "TYPE": "types", "TYPE,...": "types", "PATTERN=TYPE": "schemes", "REGEX=TYPE": "types", "SET": "rules",
    "NAME": "tensors", "PATTERN": "tensors", "OLD=NEW": "tensors", "KEY": "keys", "KEY=VALUE": "keys",
}
# fmt: on


def completer(kind: str | None) -> Completer | None:
    """Returns click's ``shell_complete`` for a kind of words."""
    return None if kind is None else partial(complete, kind)
