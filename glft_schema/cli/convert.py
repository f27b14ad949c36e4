"""`glft convert`: writes a checkpoint or weights file in another format or with other types."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

from glft_schema.cli.options import (
    AllowRequantize,
    ConverterPath,
    Imatrix,
    Input,
    Like,
    Rules,
    Search,
    Texts,
    TrustRemoteCode,
    Verbose,
    argument,
    flag,
    option,
)
from glft_schema.cli.terminal import (
    common_ranks,
    echo,
    echo_written,
    file_errors,
    progress_bar,
    refuse_overwriting,
    unique,
)
from glft_schema.cli.write_report import (
    block_notes,
    composites,
    mapping_note,
    payloads,
    reasons,
    requantizing_note,
    ties,
    totals,
    unmet_requests,
    warn_of_refused_file,
)
from glft_schema.codec.typed_text import STRING, how_to_write
from glft_schema.codec.typed_values import ARRAY, Typed
from glft_schema.display import MAX_LINE, format_count
from glft_schema.errors import OptionError, quote, safe
from glft_schema.families.converter import Converter
from glft_schema.formats.registry import WITH_TYPES, target_format
from glft_schema.storage.locations import check_local
from glft_schema.storage.opening import read_text
from glft_schema.weights.checkpoints import open_with_metadata
from glft_schema.weights.convert import convert as convert_file
from glft_schema.weights.convert import has_types
from glft_schema.weights.folder_export import WEIGHTS, is_folder
from glft_schema.weights.grafts import grafted
from glft_schema.weights.importance import read_importance, with_importance
from glft_schema.weights.payloads import WrittenTensor

TYPES = "|".join(type_.name for type_ in WITH_TYPES.metadata.types if type_.name != ARRAY)
LIKE_A_TYPE = re.compile(r"(u?int|float|double|bool(ean)?|str(ing)?|text|array|list|[iuf](?=\d))\d*(\[.*\])?", re.DOTALL)
TYPED_KEY = re.compile(rf"(?P<key>.*):(?P<type>{TYPES}|array\[.*\])", re.DOTALL)


def convert(
    source: Annotated[Input, argument("IN", "Weights file, torch .pt file, directory of shards, or Hugging Face folder.")],
    output: Annotated[
        str, argument("OUT", "Output file, replaced only on success. DIR/ with a slash: a new Hugging Face folder.")
    ],
    scheme: Annotated[
        Texts, option("PATTERN=TYPE", "Type for matching tensors; TYPE without a pattern applies to all. Repeatable.")
    ] = (),
    strict: Annotated[bool, flag("Fail if a tensor cannot have the requested type.")] = False,
    metadata: Annotated[
        Texts,
        option(
            "KEY=VALUE",
            "Metadata entry to set; KEY:TYPE=JSON for a typed value in GGUF. @PATH is the text of a file. Repeatable.",
        ),
    ] = (),
    like: Like = None,
    add: Annotated[
        tuple[Input, ...],
        option("FILE", "Checkpoint with tensors to add to IN's, or to replace those of its names. Repeatable."),
    ] = (),
    only: Annotated[
        Texts, option("PATTERN", "Take only tensors that match from --add, or without it from IN. Repeatable.")
    ] = (),
    exclude: Annotated[
        Texts,
        option(
            "PATTERN", "Leave out tensors of IN that match this name or wildcard pattern. Repeatable.", "--exclude", "--drop"
        ),
    ] = (),
    alignment: Annotated[
        int | None, option("BYTES", "Payload alignment. Default: 1 in GLFT; general.alignment or 32 in GGUF.", min=1)
    ] = None,
    format: Annotated[str | None, option("FORMAT", "glft, gguf or safetensors. Default: from the extension of OUT.")] = None,
    gguf_version: Annotated[int | None, option("N", "GGUF version to write. Default: 3.", min=1, max=3)] = None,
    big_endian: Annotated[bool, flag("Write big-endian GGUF.")] = False,
    rules: Rules = (),
    imatrix: Imatrix = None,
    converter: ConverterPath = None,
    trust_remote_code: TrustRemoteCode = False,
    as_stored: Annotated[bool, flag("Copy codes and scales of GPTQ, AWQ, FP8 and others as separate tensors.")] = False,
    exact: Annotated[bool, flag("Fail if a value would be rounded.")] = False,
    pack: Annotated[
        str | None,
        option(
            "LIBRARY",
            "compressed-tensors or mlx: keep a GGUF model's quantized weights packed in DIR/ if exact.",
        ),
    ] = None,
    allow_requantize: AllowRequantize = False,
    search: Search = False,
    verbose: Verbose = False,
) -> None:
    """Converts weights to another format or type.

    A payload is copied if its type does not change. Otherwise its tensor is dequantized and, if a
    scheme selects a quantized type, quantized. A tensor that is quantized already is quantized
    again only with --allow-requantize. The report lists what happened to each tensor.

    TYPE is f32, f16, q8_per_channel or q4_per_group_64 for GLFT, and a ggml type such as f16, q8_0
    or q4_k for GGUF; glft schema gguf lists them all. PATTERN is a tensor name or a wildcard
    pattern. A name overrides patterns. Of several patterns, the last whose type can hold the tensor
    applies. If none can hold it, because its rows are not a multiple of the type's blocks, a type
    with smaller blocks is used, such as q5_0 for q4_k. The report begins with the requests that
    were not met; with --strict, these are errors.

    With --add, tensors of other checkpoints follow IN's, or replace those with the same names. The
    metadata is IN's. If blocks are added or left out, the metadata keys that count them are
    updated: block_count, nextn_predict_layers, and arrays with a value per block.

    In GGUF, the value of a well-known metadata key such as general.quantization_version is stored
    with the type that other tools expect.

    Examples:
        glft convert folder model.gguf --scheme '*.ffn_*=q4_k'
        glft convert model.gguf out.gguf --add f16.gguf --only output.weight
    """
    check_local(output)
    out = Path(output)  # without a slash at its end
    header: dict[str, Any] = {} if gguf_version is None else {"version": gguf_version}
    if big_endian:
        header["byte_order"] = "big"
    with file_errors(out, tensors=source):
        refuse_overwriting(out, source, like, imatrix, *add)
        target = None if format is None and is_folder(output) else target_format(out, format)
        with file_errors(source):
            mapping = Converter(converter, trust_remote_code)
            checkpoint = open_with_metadata(source, exclude, target, like, mapping, as_stored, exact=exact)
        others = []
        for path in add:
            with file_errors(path):
                others.append(open_with_metadata(path, (), target, as_stored=as_stored, exact=exact))
        typed = target is not None and (target.has_typed_metadata or has_types(checkpoint.metadata))
        importance = None
        if imatrix is not None:
            with file_errors(imatrix):
                importance = read_importance(imatrix)
                with_importance(checkpoint.tensors, importance)  # a matrix for other tensors is an error of this file
        with progress_bar(f"writing {out.name}") as bar, grafted(checkpoint, others, only) as merged:
            written = convert_file(
                merged,
                output,
                schemes=parse_schemes(scheme),
                strict=strict,
                metadata=parse_metadata(metadata, typed, value_of=text_of),
                format=format,
                header=header,
                alignment=alignment,
                rules=rules or None,
                progress=bar,
                ranks=common_ranks(),
                importance=importance,
                allow_requantize=allow_requantize,
                exact=exact,
                pack=pack,
                search=search,
            )
    echo(*mapping_note(checkpoint, source), *block_notes(merged), *report(written, out, verbose))
    if exclude or add or only or metadata:
        warn_of_refused_file(checkpoint.file, out)
    echo_written([out], "verify", out)


def parse_schemes(texts: Iterable[str]) -> list[tuple[str, str]]:
    """Parses ``PATTERN=TYPE``, or ``TYPE`` for all tensors."""
    parts = [text.rpartition("=") for text in texts]
    return [(pattern if equals else "*", type_) for pattern, equals, type_ in parts]


def parse_metadata(
    texts: Iterable[str], typed: bool, *, option: str = "--metadata", value_of: Callable[[str], str] = str
) -> dict[str, Any]:
    """Parses ``KEY=VALUE`` and, if `typed`, ``KEY:TYPE=JSON``.

    Args:
        texts: the uses of an option.
        typed: whether a key may have a type.
        option: the option's name, for errors.
        value_of: function from the text after ``=`` to the value.

    Raises:
        OptionError: for any other form, and for a repeated key.
    """
    entries: list[tuple[str, str, Any]] = []
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise OptionError(f"expected KEY=VALUE, found {text!r}")
        value = value_of(value)
        match = TYPED_KEY.fullmatch(key) if typed else None
        try:
            entries.append((match["key"], value, Typed(json.loads(value), match["type"])) if match else (key, value, value))
        except (ValueError, RecursionError):
            hint = how_to_write(value, match["type"]) if match else ""
            if hint and match and match["type"] == STRING:
                plain = shlex.quote(f"{match['key']}={value}")
                hint += f", or {option} {safe(plain)}"
            raise OptionError(f"expected a value in JSON for {key!r}, found {quote(value)}{hint}") from None
        if typed and not match and LIKE_A_TYPE.fullmatch(type_ := key.rpartition(":")[2]) and ":" in key:
            types = f"{TYPES.replace('|', ', ')} or array[TYPE]"
            raise OptionError(f"expected a type after the colon, {types}, found {quote(type_)}")
    return unique(option, "key", entries)


def text_of(value: str) -> str:
    """Returns the text of the file for ``@PATH``, else `value`; a leading ``@@`` becomes ``@``.

    Raises:
        OptionError: if the path is missing or the file is not UTF-8.
        OSError: if it cannot be read.
    """
    if value == "@":
        raise OptionError("expected a path after @, or @@ for a literal @")
    if os.path.isfile(value):
        echo(
            f"glft: warning: the value is {quote(value, MAX_LINE)} itself; @{safe(value, MAX_LINE)} is the text of the file",
            error=True,
        )
    if not value.startswith("@") or value.startswith("@@"):
        return value.removeprefix("@")
    return read_text(value[1:])


def report(written: list[WrittenTensor], out: Path, verbose: bool) -> list[str]:
    """Returns the lines of the report, which begins with requests that were not met."""
    parts = [totals(written), payloads(written) if verbose else [], reasons(written), ties(written)]
    size = (out / WEIGHTS if out.is_dir() else out).stat().st_size
    lines = [
        *requantizing_note(written),
        *composites(written),
        *unmet_requests(written),
        f"{out}: {format_count(written, 'tensor')}, {size:,} bytes",
    ]
    return lines + [line for number, part in enumerate(parts) if part for line in ([""] * (number > 0) + part)]
