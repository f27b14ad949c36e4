"""A file as a self-contained HTML page: texts for the template `page.html.jinja`, and data for the
scripts. `page.css` is the style.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import PurePath
from typing import Any

from glft_schema.checks.rule_sets import Report, report
from glft_schema.codec.metadata import TypedMetadata
from glft_schema.codec.rules import REQUIRED
from glft_schema.codec.typed_values import Typed
from glft_schema.describe.byte_map import ByteMap, byte_map, byte_map_of
from glft_schema.describe.byte_range import FIELD, GAP, PADDING, UNCLAIMED, ByteRange
from glft_schema.describe.page.fields import FieldTree, is_payload, path_steps, segments
from glft_schema.describe.page.frame import LONGEST, render, visible
from glft_schema.describe.page.module_tree import modules
from glft_schema.describe.page.quantization_errors import errors as errors_of
from glft_schema.describe.page.samples import describe, heat_map, sample, sample_size
from glft_schema.describe.page.vocabulary import vocabulary
from glft_schema.display import Progress
from glft_schema.errors import Finding, FormatError, quote
from glft_schema.files.container import as_file
from glft_schema.files.file import File
from glft_schema.files.summary import headline, largest_first, totals_by_type
from glft_schema.storage.source import StrPath
from glft_schema.tensor_types import TensorType
from glft_schema.tensors.stored_tensor import StoredTensor
from glft_schema.tensors.tensor import Tensor

FINDINGS = 50  # listed at most
STATIC_ROWS = 1000  # of the table of tensors without scripts
NAMES = 1 << 20  # characters of all names, about: long names are shortened if there are many
VALUES = 1 << 18  # characters of all values of the metadata, likewise
ENTRIES = 2000  # of the metadata
LONGEST_VALUE = 1 << 13  # characters
FIRST = 16  # elements of a long array
HISTOGRAMS = 4000  # tensors: with more, errors have no histograms, and values no heat maps
COLUMNS = ("names", "types", "dims", "numbers", "bytes", "at", "files", "rows", "payloads")  # of the table of tensors
SCRIPTS = (
    "treemap.js", "tensors.js", "details.js", "metadata.js", "tokenizer.js", "fields.js", "bytes.js", "start.js",
)  # fmt: skip


def page(
    file: File | StrPath,
    against: Mapping[str, StoredTensor] | None = None,
    *,
    against_name: str = "the source",
    progress: Progress | None = None,
    fault: FormatError | None = None,
) -> str:
    """Returns a page of HTML that shows a file's summary, tensors, metadata and bytes.

    Args:
        file: an open file, a set of files opened as one, or a path.
        against: the source checkpoint, from `open_checkpoint`, for quantization errors.
        against_name: the name of the checkpoint on the page.
        progress: called with a tensor's name and the fraction done, from 0 to 1.
        fault: the error of a broken file, which is shown instead of broken rules.

    Raises:
        ClosedError: if the file is closed.
        FormatError, OSError: if the file at a path cannot be opened.
    """
    file = as_file(file)
    tensors, metadata = list(file.tensors.values()), file.regions.get("metadata", {})
    maps = [byte_map_of(shard.source)[0] if fault else byte_map(shard) for shard in file.shards]
    numbers: list[dict[str, Any]] = []
    errors: list[dict[str, Any]] = []
    for i, tensor in enumerate(tensors):
        if progress:
            progress(tensor.name, i / len(tensors))
        numbers.append(_numbers(tensor, len(tensors)))
        if against is not None:
            errors.append(_errors(tensor, against, len(tensors)))
    shown = vocabulary(file)
    outside = _outside_payloads(maps)
    types = largest_first(totals_by_type(tensors))
    verdict = _error_report(file, fault) if fault else report(file)
    texts = {
        "name": _name(file.name),
        "file": file,
        "names": [_name(shard.name) for shard in file.shards],
        "headline": headline(file) if tensors or not fault else "broken",
        "fault": fault,
        "report": verdict,
        "findings": [(i, finding, replace(finding, offset=None).text) for i, finding in verdict.findings[:FINDINGS]],
        "tensors": tensors,
        "static_rows": STATIC_ROWS,
        "types": types,
        "metadata": metadata,
        "magic": maps[0].at(0).name if maps[0].nbytes else "",
        "vocabulary": shown,
        "outside": sum(outside.values()),
        "ranges": _ranges_by_kind(maps),
        "against": None if against is None else _comparison(file, against, errors),
        "against_name": against_name,
    }
    data = {
        "bytes": file.nbytes,
        "types": [{"name": visible(type_.name), "code": file.format.types.code_of(type_)} for type_, _ in types],
        **_tensors(file, maps, [type_ for type_, _ in types], outside),
        "numbers": numbers,
        "errors": None if against is None else errors,
        "vocabulary": shown,
        **_metadata(metadata),
    }
    return render("page.html.jinja", texts, data, SCRIPTS)


def _numbers(tensor: Tensor, tensors: int) -> dict[str, Any]:
    """Returns statistics of a tensor, one of `tensors`, or why it has none."""
    if reason := tensor.type.bytes_only or _missing(tensor):
        return {"problem": reason}
    heat = heat_map(tensor) if tensors <= HISTOGRAMS else None
    return describe(sample(tensor, sample_size(tensors))) | ({"heat": heat} if heat else {})


def _errors(tensor: Tensor, against: Mapping[str, StoredTensor], tensors: int) -> dict[str, Any]:
    """Returns the errors of a tensor, without a histogram if there are many tensors."""
    if reason := _missing(tensor):
        return {"problem": tensor.type.bytes_only or reason}
    found = errors_of(tensor, against, sample_size(tensors))
    return found if tensors <= HISTOGRAMS else {key: value for key, value in found.items() if key != "sample"}


def _missing(tensor: Tensor) -> str:
    return f"{tensor.missing:,} bytes are missing" if tensor.missing else ""


def _comparison(file: File, against: Mapping[str, StoredTensor], errors: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the number of compared tensors, that of missing ones, and the largest error."""
    compared = {name: found["max"] for name, found in zip(file.tensors, errors, strict=True) if "problem" not in found}
    missing = sum(name not in file.tensors for name in against)
    worst = max(compared, key=lambda name: float(compared[name]), default=None)
    return {"compared": len(compared), "missing": missing, "worst": worst, "max": compared.get(worst or "")}


def _tensors(
    file: File, maps: Sequence[ByteMap], types: list[TensorType], outside: Mapping[tuple[str, str], int]
) -> dict[str, Any]:
    """Returns the columns of the table of tensors, their modules, and the fields of each file."""
    tensors, trees = list(file.tensors.values()), [FieldTree(map) for map in maps]
    files = {id(shard.source): i for i, shard in enumerate(file.shards)}
    longest = max(min(LONGEST, NAMES // max(len(tensors), 1)), 24)
    rows, first, shared, sizes = [], dict[Any, int](), dict[int, int](), []
    for i, tensor in enumerate(tensors):
        at, name = files[id(tensor.identity[0])], tensor.name
        about = visible(name, longest), types.index(tensor.type), list(tensor.dims), math.prod(tensor.shape)
        location = tensor.nbytes, tensor.position, at, trees[at].rows.get(name, -1), trees[at].payloads.get(name, -1)
        rows.append((*about, *location))
        if tensor.nbytes and (owner := first.setdefault(tensor.identity, i)) != i:
            shared[i] = owner
        sizes.append((name, 0 if i in shared else tensor.nbytes))
    label, _, nodes = modules(sizes)
    nodes += [[name, nbytes, region] for (region, name), nbytes in outside.items()]
    return {
        "tensors": {key: [row[i] for row in rows] for i, key in enumerate(COLUMNS)} | {"shared": shared},
        "modules": [label, file.nbytes, nodes],
        "files": [
            {"name": _name(shard.name), "size": map.nbytes, "fields": tree.as_data(), "segments": segments(map)}
            for shard, map, tree in zip(file.shards, maps, trees, strict=True)
        ],
    }


def _error_report(file: File, fault: FormatError) -> Report:
    """Returns a report with the error that ends the parse of a file."""
    number = next((i for i, shard in enumerate(file.shards) if shard.name == fault.file), 0)
    finding = Finding(fault.rule or type(fault).__name__, (REQUIRED,), fault.path, fault.problem, fault.offset)
    finding.tensor, finding.key = fault.tensor, fault.key
    return Report(file, [REQUIRED], [REQUIRED], [(number, finding)], [finding])


def _name(path: str) -> str:
    return visible(PurePath(path).name)  # without folders, since pages are shared


def _outside_payloads(maps: Sequence[ByteMap]) -> dict[tuple[str, str], int]:
    counts: Counter[tuple[str, str]] = Counter()
    for byte_range in chain.from_iterable(maps):
        if not is_payload(byte_range) or byte_range.kind != FIELD:
            region = path_steps(byte_range)[0]
            counts[region, byte_range.kind if is_payload(byte_range) else region] += byte_range.nbytes
    return dict(counts)


def _ranges_by_kind(maps: Sequence[ByteMap]) -> dict[str, list[tuple[int, ByteRange]]]:
    """Returns the bytes outside of fields by kind, each range with the index of its file."""
    ranges: dict[str, list[tuple[int, ByteRange]]] = {UNCLAIMED: [], GAP: [], PADDING: []}
    for i, map in enumerate(maps):
        for byte_range in map:
            if byte_range.kind != FIELD:
                ranges[byte_range.kind].append((i, byte_range))
    return ranges


def _metadata(metadata: Any) -> dict[str, Any]:
    """Returns the number of entries, and key, type and value of the first ones, as text."""
    keys = list(metadata)[:ENTRIES]
    longest = min(LONGEST_VALUE, max(VALUES // max(len(keys), 1), LONGEST))
    if isinstance(metadata, TypedMetadata):
        rows = [(visible(key), visible(metadata.type_of(key)), _value(metadata.stored_value(key), longest)) for key in keys]
    else:
        rows = [(visible(key), "text", visible(str(metadata[key]), longest, "\n\t")) for key in keys]
    return {"entries": len(metadata), "metadata": rows}


def _value(typed: Typed, longest: int) -> str:
    """Returns a value as text; a long array as its length and first elements."""
    value = typed.value
    if isinstance(value, str):
        return visible(value, longest, "\n\t")
    if not typed.is_array:
        return visible(str(typed.plain() if typed.type == "bool" else value), longest)
    elements = typed._replace(value=value[:FIRST]).elements()
    first = ", ".join(quote(one.value, 60) if isinstance(one.value, str) else _value(one, LONGEST) for one in elements)
    many = f"{len(value):,} elements: " if len(value) > FIRST else ""
    return visible(f"{many}[{first}{', …' if many else ''}]", longest)
