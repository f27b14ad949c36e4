"""A file as a self-contained HTML page: texts for the template `page.html.jinja`, and data for the
scripts. `page.css` is the style.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import PurePath
from typing import Any

from glft_schema.checks.rule_sets import Report, report
from glft_schema.codec.metadata import TypedMetadata
from glft_schema.codec.rules import REQUIRED
from glft_schema.codec.typed_values import Typed
from glft_schema.describe.byte_map import ByteMap, byte_map, byte_map_of
from glft_schema.describe.byte_range import FIELD
from glft_schema.describe.page.fields import FieldTree, is_payload, path_steps, segments
from glft_schema.describe.page.frame import LONGEST, render, visible
from glft_schema.describe.page.module_tree import modules
from glft_schema.describe.page.quantization_errors import errors
from glft_schema.describe.page.samples import describe, heat_map, sample, sample_size
from glft_schema.describe.page.vocabulary import vocabulary
from glft_schema.display import Progress, parameters_text, size_text
from glft_schema.errors import Finding, FormatError, quote
from glft_schema.files.container import as_file
from glft_schema.files.file import File
from glft_schema.files.summary import headline, largest_first, totals_by_type
from glft_schema.storage.source import StrPath
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
    content = Content(as_file(file), None if against is None else Original(against_name, against), progress, fault)
    return render("page.html.jinja", content.texts, content.data, SCRIPTS)


@dataclass(frozen=True)
class Original:
    """The source that a file is compared with: its name on the page, and its tensors by name."""

    name: str
    tensors: Mapping[str, StoredTensor]


class Content:
    """The content of a file: `texts` for the template, `data` for the scripts."""

    def __init__(
        self, file: File, against: Original | None, progress: Progress | None, fault: FormatError | None = None
    ) -> None:
        self._file = file
        self._metadata = file.regions.get("metadata", {})
        self._tensors = list(file.tensors.values())
        self._maps = [byte_map_of(shard.source)[0] if fault else byte_map(shard) for shard in file.shards]
        self._totals = totals_by_type(self._tensors)
        self._types = {type_: i for i, (type_, _) in enumerate(largest_first(self._totals))}
        count = sample_size(len(self._tensors))
        self._numbers: list[dict[str, Any]] = []
        self._errors: list[dict[str, Any]] | None = None if against is None else []
        for i, tensor in enumerate(self._tensors):
            if progress:
                progress(tensor.name, i / len(self._tensors))
            reason = tensor.type.bytes_only or (f"{tensor.missing:,} bytes are missing" if tensor.missing else "")
            self._numbers.append({"problem": reason} if reason else describe(sample(tensor, count)))
            if not reason and len(self._tensors) <= HISTOGRAMS and (found := heat_map(tensor)):
                self._numbers[-1]["heat"] = found
            if against is not None and self._errors is not None:
                self._errors.append({"problem": reason} if tensor.missing else errors(tensor, against.tensors, count))
                if len(self._tensors) > HISTOGRAMS:
                    self._errors[-1].pop("sample", None)
        self._vocabulary = vocabulary(file)
        self._outside = _outside_payloads(self._maps)
        self.texts = self._texts(against, fault)
        self.data = self._data()

    def _texts(self, against: Original | None, fault: FormatError | None) -> dict[str, Any]:
        file = self._file
        verdict = _error_report(file, fault) if fault else report(file)
        outside = sum(self._outside.values())
        return {
            "name": _name(file),
            "format": file.format.name,
            "headline": visible(headline(file) if file.tensors or not fault else "broken"),
            "fault": fault is not None,
            "vocabulary": self._vocabulary,
            "tiles": self._tiles(),
            "files": [{"name": _name(shard)} for shard in file.shards],
            "tensors": len(self._tensors),
            "rule_sets": verdict.sets,
            "refused": bool(verdict.failures),
            "not_checked": visible(verdict.not_checked),
            "broken": len(verdict.findings),
            "findings": [
                (i, finding, visible(replace(finding, offset=None).text, 3 * LONGEST))
                for i, finding in verdict.findings[:FINDINGS]
            ],
            "unclaimed": _describe_unclaimed(self._maps),
            "types": [
                {"name": visible(type_.name), **_share(self._totals[type_].nbytes, file.nbytes)} for type_ in self._types
            ],
            "outside": _share(outside, file.nbytes),
            "against": against and self._comparison(against),
            "static_rows": [_static_row(tensor) for tensor in self._tensors[:STATIC_ROWS]],
        }

    def _tiles(self) -> list[tuple[str, str, str]]:
        """Returns the figures of the summary: a term, its value, and a note."""
        file = self._file
        totals = self._totals.values()
        weights, payload = sum(total.weights for total in totals), sum(total.nbytes for total in totals)
        tiles = [("Size", size_text(file.nbytes), f"{file.nbytes:,} bytes")]
        if len(file.shards) > 1:
            tiles.append(("Files", f"{len(file.shards):,}", "of one set"))
        tiles += [
            ("Tensors", f"{len(self._tensors):,}", f"of {len(self._types)} type{'s' * (len(self._types) != 1)}"),
            ("Parameters", parameters_text(weights), f"{weights:,}"),
            ("Bits per weight", f"{8 * payload / weights:.4g}" if weights else "0", "on average"),
            ("Metadata", f"{len(self._metadata):,}", f"entr{'y' if len(self._metadata) == 1 else 'ies'}"),
        ]
        magic = self._maps[0].at(0).name if self._maps[0].nbytes else ""
        for name, value in file.regions.get("header", {}).items():
            if name != magic:
                text = f"{value:,}" if isinstance(value, int) else str(value)
                tiles.append((name.replace("_", " "), visible(text), ""))
        return tiles

    def _comparison(self, against: Original) -> dict[str, Any]:
        """Returns how many tensors were compared, and the one with the largest error."""
        assert self._errors is not None
        pairs = zip(self._tensors, self._errors, strict=True)
        compared = [(tensor, found) for tensor, found in pairs if "problem" not in found]
        missing = sum(name not in self._file.tensors for name in against.tensors)
        text = f"{len(compared):,} of {len(self._tensors):,} tensors compared."
        text += f" {missing:,} tensors of the source are not in the file." if missing else ""
        worst = max(compared, key=lambda pair: float(pair[1]["max"]), default=None)
        return {
            "name": visible(against.name),
            "text": text,
            "worst": worst and {"name": visible(worst[0].name), "max": worst[1]["max"]},
        }

    def _data(self) -> dict[str, Any]:
        trees = [FieldTree(map) for map in self._maps]
        files = {id(shard.source): i for i, shard in enumerate(self._file.shards)}
        of = [files[id(tensor.identity[0])] for tensor in self._tensors]
        longest = max(min(LONGEST, NAMES // max(len(self._tensors), 1)), 24)
        first: dict[Any, int] = {}
        owners = {i: first.setdefault(tensor.identity, i) for i, tensor in enumerate(self._tensors) if tensor.nbytes}
        shared = {i: owner for i, owner in owners.items() if owner != i}
        sizes = [(tensor.name, 0 if i in shared else tensor.nbytes) for i, tensor in enumerate(self._tensors)]
        label, _, nodes = modules(sizes)
        nodes += [[name, nbytes, region] for (region, name), nbytes in self._outside.items()]
        return {
            "bytes": self._file.nbytes,
            "types": [{"name": visible(type_.name), "code": self._file.format.types.code_of(type_)} for type_ in self._types],
            "tensors": {
                "names": [visible(tensor.name, longest) for tensor in self._tensors],
                "types": [self._types[tensor.type] for tensor in self._tensors],
                "dims": [list(tensor.dims) for tensor in self._tensors],
                "numbers": [math.prod(tensor.shape) for tensor in self._tensors],
                "bytes": [tensor.nbytes for tensor in self._tensors],
                "at": [tensor.position for tensor in self._tensors],
                "files": of,
                "shared": shared,
                "rows": [trees[i].rows.get(tensor.name, -1) for i, tensor in zip(of, self._tensors, strict=True)],
                "payloads": [trees[i].payloads.get(tensor.name, -1) for i, tensor in zip(of, self._tensors, strict=True)],
            },
            "numbers": self._numbers,
            "errors": self._errors,
            "modules": [label, self._file.nbytes, nodes],
            "vocabulary": self._vocabulary,
            "entries": len(self._metadata),
            "metadata": _entries(self._metadata),
            "files": [
                {"name": _name(shard), "size": map.nbytes, "fields": tree.as_data(), "segments": segments(map)}
                for shard, map, tree in zip(self._file.shards, self._maps, trees, strict=True)
            ],
        }


def _error_report(file: File, fault: FormatError) -> Report:
    """Returns a report with the error that ends the parse of a file."""
    number = next((i for i, shard in enumerate(file.shards) if shard.name == fault.file), 0)
    finding = Finding(fault.rule or type(fault).__name__, (REQUIRED,), fault.path, fault.problem, fault.offset)
    finding.tensor, finding.key = fault.tensor, fault.key
    return Report([REQUIRED], [REQUIRED], [(number, finding)], [finding], "")


def _name(file: File) -> str:
    return visible(PurePath(file.name).name)  # without folders, since pages are shared


def _static_row(tensor: Tensor) -> dict[str, str]:
    return {
        "name": visible(tensor.name),
        "type": visible(tensor.type.name),
        "dims": str(list(tensor.dims)),
        "bytes": f"{tensor.nbytes:,}",
        "at": f"{tensor.position:,}",
    }


def _share(nbytes: int, whole: int) -> dict[str, str]:
    percent = 100 * nbytes / whole if whole else 0
    return {"amount": f"{nbytes:,} bytes, {percent:.2f} %", "percent": f"{percent:.3f}"}


def _outside_payloads(maps: Sequence[ByteMap]) -> dict[tuple[str, str], int]:
    counts: Counter[tuple[str, str]] = Counter()
    for byte_range in chain.from_iterable(maps):
        if not is_payload(byte_range) or byte_range.kind != FIELD:
            region = path_steps(byte_range)[0]
            counts[region, byte_range.kind if is_payload(byte_range) else region] += byte_range.nbytes
    return dict(counts)


def _describe_unclaimed(maps: Sequence[ByteMap]) -> list[dict[str, Any]]:
    """Returns a sentence and the first offsets for each kind of bytes outside of fields."""
    kinds = {
        "unclaimed": ("All bytes are covered by the declaration.", "unclaimed: not covered by any declared field."),
        "gap": ("No gaps between payloads.", "in gaps between payloads, or after the last one."),
        "padding": ("No padding.", "of padding."),
    }
    texts = []
    for kind, (none, some) in kinds.items():
        ranges = [(i, byte_range) for i, map in enumerate(maps) for byte_range in map if byte_range.kind == kind]
        nbytes = sum(byte_range.nbytes for _, byte_range in ranges)
        text = f"{nbytes:,} byte{'s' * (nbytes != 1)} {some}" if ranges else none
        first = [{"file": i, "offset": byte_range.start} for i, byte_range in ranges[:3]] if kind != "padding" else []
        texts.append({"kind": kind, "nbytes": nbytes, "text": text, "first": first})
    return texts


def _entries(metadata: Any) -> list[tuple[str, str, str]]:
    """Returns key, type and value of the first entries, as text."""
    keys = list(metadata)[:ENTRIES]
    longest = min(LONGEST_VALUE, max(VALUES // max(len(keys), 1), LONGEST))
    if isinstance(metadata, TypedMetadata):
        return [(visible(key), visible(metadata.type_of(key)), _value(metadata.stored_value(key), longest)) for key in keys]
    return [(visible(key), "text", visible(str(metadata[key]), longest, "\n\t")) for key in keys]


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
