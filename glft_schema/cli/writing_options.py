"""Options of writing a file, and the report of what became of each tensor."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from glft_schema.cli.terminal import blame, once, table
from glft_schema.codec.typed_values import ARRAY, Typed
from glft_schema.errors import OptionError, safe
from glft_schema.formats.registry import WITH_TYPES
from glft_schema.lazy import torch
from glft_schema.weights.importance import read_importance, with_importance
from glft_schema.weights.payloads import WrittenTensor
from glft_schema.weights.stored_tensors import StoredTensor

Out = Annotated[Path, typer.Argument(metavar="OUT", help="The file to write; replaced only when all went well.")]
Schemes = Annotated[
    list[str] | None,
    typer.Option(
        "--scheme",
        metavar="PATTERN=TYPE",
        help="Store what matches as TYPE; TYPE alone is for all. Repeatable, each pattern once.",
    ),
]
Entries = Annotated[
    list[str] | None,
    typer.Option(
        "--metadata", metavar="K=V", help="Add to the metadata; K:TYPE=JSON gives the type in GGUF. Repeatable, each key once."
    ),
]
Alignment = Annotated[int | None, typer.Option(min=1, help="Begin payloads at multiples of this many bytes.")]
GgufVersion = Annotated[int | None, typer.Option("--gguf-version", min=1, max=3, help="Of a GGUF file: 1, 2 or 3.")]
BigEndian = Annotated[bool, typer.Option("--big-endian", help="Write a GGUF file in this byte order.")]
Rules = Annotated[
    list[str] | None, typer.Option("--rules", metavar="SET", help="Rule sets that the file has to keep to. Repeatable.")
]
Imatrix = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="An importance matrix of llama.cpp: how much errors in each column of IN's tensors count. Some types need one.",
    ),
]

TYPES = "|".join(type_.name for type_ in WITH_TYPES.metadata.types if type_.name != ARRAY)
TYPED_KEY = re.compile(rf"(?P<key>.*):(?P<type>{TYPES}|array\[.*\])", re.DOTALL)


def header_of(version: int | None, big_endian: bool) -> dict[str, Any] | None:
    """Returns the header's fields that are asked for, or None."""
    header: dict[str, Any] = {} if version is None else {"version": version}
    if big_endian:
        header["byte_order"] = "big"
    return header or None


def importance_in(path: Path | None, tensors: Mapping[str, StoredTensor]) -> dict[str, torch.Tensor] | None:
    """Returns the importance matrix of a file, which is for `tensors`, or None where none is asked for."""
    if path is None:
        return None
    with blame(path):
        importance = read_importance(path)
        with_importance(tensors, importance)  # so that one for others is the file's fault
    return importance


def schemes_in(texts: list[str] | None) -> dict[str, str]:
    """Returns ``PATTERN=TYPE`` texts as types by pattern; a text without ``=`` is the type of the pattern ``*``.

    Raises:
        OptionError: for a repeated pattern.
    """
    parts = [text.rpartition("=") for text in texts or []]
    given = [(pattern if equals else "*", type_) for pattern, equals, type_ in parts]
    return once("--scheme", "pattern", [(pattern, type_, type_) for pattern, type_ in given])


def entries(texts: list[str] | None, typed: bool) -> dict[str, Any]:
    """Returns ``K=V`` texts as metadata; where it can have types, ``K:TYPE=JSON`` is a typed value.

    Raises:
        OptionError: for a text of another form, and for a repeated key.
    """
    given: list[tuple[str, str, Any]] = []
    for text in texts or []:
        key, equals, value = text.partition("=")
        if not equals:
            raise OptionError(f"expected K=V, found {text!r}")
        named = TYPED_KEY.fullmatch(key) if typed else None
        try:
            given.append((named["key"], value, Typed(json.loads(value), named["type"])) if named else (key, value, value))
        except (ValueError, RecursionError):
            raise OptionError(f"expected a value in JSON for {key!r}, found {value!r}") from None
    return once("--metadata", "key", given)


def report(written: list[WrittenTensor], out: Path) -> list[str]:
    """Returns what became of the tensors, in lines."""
    by_type: dict[str, tuple[int, int]] = {}
    for tensor in written:
        count, nbytes = by_type.get(tensor.type.name, (0, 0))
        by_type[tensor.type.name] = (count + 1, nbytes + tensor.nbytes)
    lines = [f"{out}: {len(written)} tensors, {out.stat().st_size:,} bytes"]
    lines += table(("dtype", "tensors", "bytes"), [(name, f"{n}", f"{b:,}") for name, (n, b) in by_type.items()], right=2)
    rows = [
        (safe(t.name), t.type.name, "copied" if t.copied else "converted", "" if t.error is None else f"{t.error:g}")
        for t in written
    ]
    lines += ["", *table(("tensor", "dtype", "payload", "max error"), rows, right=1)]
    kept: dict[tuple[str, str], list[str]] = {}
    for tensor in written:
        if tensor.note:
            reason = re.sub(r", found \[[\d, ]*\]", "", tensor.note)
            kept.setdefault((tensor.type.scheme, reason), []).append(re.sub(r"\b\d+\b", "N", tensor.name))
    if kept:
        lines += ["", "not as asked or stored:"]
        for (scheme, reason), names in kept.items():
            some = [safe(name) for name in dict.fromkeys(names)]
            more = f" and {len(some) - 4} more" if len(some) > 4 else ""
            lines.append(f"  {len(names)} as {scheme} ({', '.join(some[:4])}{more}): {reason}")
    ties = [f"  {safe(tensor.name)} is {safe(tensor.alias_of)}" for tensor in written if tensor.alias_of is not None]
    return [*lines, *(["", "stored once:", *ties] if ties else [])]
