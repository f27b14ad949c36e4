"""The summary of a file: its headline, bytes by type, and tensors by numbered block."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from glft_schema.codec.metadata import metadata_table
from glft_schema.display import (
    ROWS,
    SHORTEST,
    VALUE,
    Listing,
    Part,
    Row,
    bytes_by_type,
    format_count,
    parameters_text,
    shorten,
    size_text,
)
from glft_schema.errors import FormatError, TensorError, quote, safe
from glft_schema.formats.file_types import FILE_TYPE
from glft_schema.tensor_types import TensorType
from glft_schema.tensors.region import Tensors
from glft_schema.tensors.tensor import Tensor

LONGEST = 110  # characters of the values in a row
NUMBERED = re.compile(r"(?P<prefix>(?:.*?\.)??)(?P<number>[0-9]+)\.(?P<rest>.+)", re.DOTALL)  # such as blk.0.attn_q.weight
NUMBER = re.compile(r"\.[0-9]+(?=\.)")
HasFile = Any  # a `File`; its module imports this one


class Totals(NamedTuple):
    """Totals of the tensors of a type. Weights and bytes of a shared payload count once."""

    tensors: int
    weights: int
    nbytes: int


def totals_by_type(tensors: Iterable[Tensor]) -> dict[TensorType, Totals]:
    """Returns the totals of each tensor type, in order of first occurrence."""
    totals, kept = dict[TensorType, Totals](), set[Hashable]()
    for tensor in tensors:
        count, weights, nbytes = totals.get(tensor.type, Totals(0, 0, 0))
        if tensor.identity not in kept:
            kept.add(tensor.identity)
            weights, nbytes = weights + math.prod(tensor.shape), nbytes + tensor.nbytes
        totals[tensor.type] = Totals(count + 1, weights, nbytes)
    return totals


def largest_first(totals: Mapping[TensorType, Totals]) -> list[tuple[TensorType, Totals]]:
    """Returns types and their totals by bytes, the largest first."""
    return sorted(totals.items(), key=lambda item: -item[1].nbytes)


def headline(file: HasFile) -> str:
    """Returns the contents of a file in one line: "llama, 134.5 M parameters, 30 layers, 8,192
    context, 49,152 tokens, Q4_1 (mostly), 5.74 bits per weight, 98.36 MB"."""
    kind, *counts = file.format.summary(file.metadata) or [file.format.name]
    try:
        weights, schemes = weights_and_schemes(file)
    except (TensorError, FormatError):
        weights, schemes = file.tensors, {}
    totals = totals_by_type(weights.values())
    total, nbytes = sum(one.weights for one in totals.values()), sum(one.nbytes for one in totals.values())
    if weights is not file.tensors:
        nbytes = sum(one.nbytes for one in totals_by_type(file.tensors.values()).values())
    named = file.format.meaning(FILE_TYPE, file.metadata.get(FILE_TYPE)) or next(iter(schemes), None)
    most = max(totals, key=lambda type_: totals[type_].weights, default=None)
    types = [f"{named or most}{' (mostly)' * (len(totals) > 1)}"] if totals else []
    if total:
        types += [f"{8 * nbytes / total:.2f} bits per weight"]
    size, here = size_text(file.nbytes), sum(shard.source.size for shard in file.shards)
    size += f", of which {size_text(here)} are there" if here < file.nbytes else ""
    parts = [kind, *[f"{parameters_text(total)} parameters"] * file.format.has_tensors, *counts, *types, size]
    return ", ".join(safe(part) for part in parts)


def weights_and_schemes(file: HasFile) -> tuple[Tensors, dict[str, int]]:
    """Returns the weights of a file, and the number of weights in each scheme of several tensors,
    the most frequent first. Raises TensorError or FormatError if the parts of a weight do not
    fit."""
    weights: Tensors = file.weights
    found = Counter(weight.text for weight in file.weights.composed.composites) if weights is not file.tensors else Counter()
    return weights, dict(found.most_common())


def scheme_lines(file: HasFile) -> list[str]:
    """Returns a line for each scheme of weights that are stored as several tensors, or the error if
    parts of a weight do not fit."""
    try:
        schemes = weights_and_schemes(file)[1]
    except (TensorError, FormatError) as error:
        return [safe(str(error), 1000)]
    return [safe(f"{count:,} weight{'s' * (count != 1)}: {text}") for text, count in schemes.items()]


def file_parts(file: HasFile) -> Iterator[Part]:
    """Yields the parts of a file's display, without a row for each tensor and each metadata key."""
    yield f"{safe(file.name)}: {headline(file)}"
    header = {**file.header, **file.header.counts}
    version = f" version {header['version']}" if "version" in header else ""
    order = f", {header['byte_order']}-endian" if "byte_order" in header else ""
    files = f" in {len(file.shards)} files" if len(file.shards) > 1 else ""
    yield f"{file.format.name}{version}{order}, {file.nbytes:,} bytes{files}"
    yield from scheme_lines(file)
    if not file.format.has_tensors:
        yield Listing.of("regions", ("name", "value"), file.regions.items(), lambda item: (item[0], quote(item[1], VALUE)), 0)
        return
    totals = totals_by_type(file.tensors.values())
    yield bytes_by_type((type_, total.nbytes) for type_, total in totals.items())._replace(labels="")
    yield metadata_table(file.metadata) if len(file.metadata) <= ROWS else _keys_by_prefix(file.metadata)
    yield _types_table(totals, file.nbytes)
    rows, right = without_empty_column(group_rows(file.tensors.values(), "shape"), 2)
    title = f"{format_count(file.tensors, 'tensor')}: file.tensors lists each"
    yield Listing.of(title, ("name", "type", *rows[0][2:]), rows[1:], lambda row: row, right)


def _types_table(totals: Mapping[TensorType, Totals], nbytes: int) -> Listing:
    """Returns a row per tensor type, largest first."""
    head = "type", "tensors", "numbers", "bytes", "of the file"

    def row(item: tuple[TensorType, Totals]) -> Row:
        type_, total = item
        return str(type_), *(f"{number:,}" for number in total), f"{100 * total.nbytes / nbytes:.1f} %"

    return Listing.of("types", head, largest_first(totals), row, 4)


def _keys_by_prefix(metadata: Mapping[str, Any]) -> Listing:
    """Returns a row per group of keys with the same first part."""
    table, prefixes = metadata_table(metadata), dict[str, dict[str, str]]()
    for key, *_, value in table.rows:
        prefixes.setdefault(key.partition(".")[0], {})[key] = value
    rows = list[Row]()
    for prefix, values in prefixes.items():
        text = ", ".join(f"{key.removeprefix(f'{prefix}.')} {shorten(value, SHORTEST)}" for key, value in values.items())
        if len(values) == 1:
            rows.append((*values, "", *values.values()))
        else:
            rows.append((f"{prefix}.*", f"{len(values)}", text if len(text) <= LONGEST else f"{text[:LONGEST]}..."))
    return Listing(f"{table.title}: file.metadata lists each", ("keys", "entries", "values"), rows, table.hidden)


def group_rows(tensors: Iterable[Tensor], sizes: str) -> list[Row]:
    """Returns a header, then a row per tensor, or per kind of tensor in numbered blocks.

    Args:
        tensors: the tensors.
        sizes: the attribute to show: ``dims`` or ``shape``.
    """
    blocks: dict[str, dict[str, list[Tensor]]] = {}  # prefix -> rest of the name -> tensors
    numbers: dict[str, list[int]] = {}
    for tensor in tensors:
        match = NUMBERED.fullmatch(tensor.name)
        prefix, rest = (match["prefix"], NUMBER.sub(".N", match["rest"])) if match else (tensor.name, "")
        blocks.setdefault(prefix, {}).setdefault(rest, []).append(tensor)
        if match:
            numbers.setdefault(prefix, []).append(int(match["number"]))
    rows: list[Row] = [("tensor", "type", sizes, "bytes", "missing")]
    for prefix, kinds in blocks.items():
        of_prefix = Counter(numbers.get(prefix, ()))  # number of tensors in each block
        if len(of_prefix) < 2:
            rows += [(safe(tensor.name), *_common([tensor], sizes)) for tensors in kinds.values() for tensor in tensors]
            continue
        low, high, fewest, most = min(of_prefix), max(of_prefix), min(of_prefix.values()), max(of_prefix.values())
        each = f"{fewest:,} to {most:,}" if most > fewest else f"{most:,}"
        inside = [tensor for tensors in kinds.values() for tensor in tensors]
        nbytes = f"{sum(tensor.nbytes for tensor in inside):,}"
        title = f"{safe(prefix)}{low} ... {safe(prefix)}{high}: {each} tensors each"
        rows.append((title, "", "", nbytes, missing_bytes(inside)))
        if any(tensor.missing for tensor in inside):
            cut = {int(match["number"]) for one in inside if one.missing and (match := NUMBERED.fullmatch(one.name))}
            rows.append((f"  complete: {_ranges([number for number in of_prefix if number not in cut])}", "", "", "", ""))
        rows += [(f"  {safe(rest)}", *_common(tensors, sizes)) for rest, tensors in kinds.items()]
    return rows


def _common(tensors: Sequence[Tensor], sizes: str) -> Row:
    """Returns the types, sizes, bytes and missing bytes of tensors of one kind."""
    types = Counter(tensor.type.name for tensor in tensors)
    names = ", ".join(f"{name} ({count})" if len(types) > 1 else name for name, count in types.most_common())
    texts = list(dict.fromkeys(str(list(getattr(tensor, sizes))) for tensor in tensors))
    nbytes = f"{sum(tensor.nbytes for tensor in tensors):,}"
    return names, texts[0] if len(texts) == 1 else f"{texts[0]} and others", nbytes, missing_bytes(tensors)


def _ranges(numbers: Iterable[int]) -> str:
    """Returns numbers as text with ranges, such as ``0, 1, 10-15``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs) or "none"


def missing_bytes(tensors: Iterable[Tensor]) -> str:
    """Returns the number of bytes that a truncated file lacks of tensors; empty for none."""
    missing = sum(tensor.missing for tensor in tensors)
    return f"{missing:,}" if missing else ""


def without_empty_column(rows: list[Row], right: int) -> tuple[list[Row], int]:
    """Returns rows and the number of numeric columns, without the last column if it is empty."""
    return (rows, right) if any(row[-1] for row in rows[1:]) else ([row[:-1] for row in rows], right - 1)


def gaps_text(file: HasFile) -> str:
    """Returns a line about the bytes of a file's payloads that belong to no tensor."""
    gaps, alignment = file.tensors.gaps, file.regions.counts.get("alignment", 1)
    is_padding = all(gap.nbytes < alignment and sum(gap) % alignment == 0 for gap in gaps)
    padding = f" (padding to multiples of {alignment})" if is_padding else ""
    where = f"in gaps between payloads{padding}, {file.tensors.trailing:,} of them after the last one"
    return f"{sum(gap.nbytes for gap in gaps):,} bytes {where}"
