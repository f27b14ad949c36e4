"""Reports of written tensors: requests that were not met, totals by type, and each tensor."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from glft_schema.checks.rule_sets import report
from glft_schema.cli.options import Input
from glft_schema.cli.terminal import echo, file_errors
from glft_schema.composites.as_ggml import ROUNDED
from glft_schema.display import align, format_count
from glft_schema.errors import safe
from glft_schema.families.block_keys import NEXTN_LAYERS
from glft_schema.families.page import BLOCK_COUNT
from glft_schema.files.container import Container
from glft_schema.files.file import File
from glft_schema.weights.checkpoints import Checkpoint
from glft_schema.weights.payloads import WrittenTensor
from glft_schema.weights.requantizing import counted_types

AS_ASKED = "as asked"
FOUND = re.compile(r", found (\[[\d, ]*\]|\d+)")


def mapping_note(checkpoint: Checkpoint, source: Input) -> list[str]:
    """Returns a line if the source was mapped to GGUF, and one if tensors were left out."""
    family, donor = checkpoint.family, checkpoint.donor
    how = f"mapped to GGUF as declared for the {family} family" if family else "has GGUF names"
    if donor:
        return [f"{source}: {how}, with the metadata of {safe(donor.name)}"]
    if checkpoint.converter:
        how = f"converted by llama.cpp's converter, {safe(checkpoint.converter)}"
    kinds = dict.fromkeys(re.sub(r"\b\d+\b", "N", safe(name)) for name in checkpoint.dropped)
    left_out = [f"left out, since the model's GGUF does not have them: {', '.join(kinds)}"] if kinds else []
    return [f"{source}: a Hugging Face folder, {how}", *left_out] if family or checkpoint.converter else []


def block_notes(checkpoint: Checkpoint) -> list[str]:
    """Returns a line for each count of blocks that has followed the tensors."""
    after, before = checkpoint.metadata, checkpoint.file.metadata if checkpoint.file else checkpoint.metadata
    keys = [key for key in after if key.endswith((BLOCK_COUNT, NEXTN_LAYERS)) and after[key] != before.get(key, 0)]
    return [f"{safe(key)}: {before.get(key, 0)} -> {after[key]}" for key in keys]


def warn_of_refusal(before: File | None, after: File) -> None:
    """Warns if llama.cpp will refuse a new file, unless it refuses the file before the change."""
    verdict = report(after, render=False)
    if verdict.failures and (before is None or not report(before, render=False).failures):
        reason = verdict.failures[0].problem
        echo(f"glft: warning: llama.cpp will refuse the new file (see glft verify): {reason}", error=True)


def warn_of_refused_file(before: File | None, out: Path) -> None:
    """Warns likewise about a file that is written; not about a folder or a set."""
    if out.is_file():
        with file_errors(out), Container.parse_file(out, mmap=False) as result:
            warn_of_refusal(before, result)


def totals(written: Sequence[WrittenTensor]) -> list[str]:
    """Returns a table of types."""
    nbytes: dict[str, list[int]] = {}
    for tensor in written:
        nbytes.setdefault(tensor.type.name, []).append(tensor.nbytes)
    rows = [(name, f"{len(sizes)}", f"{sum(sizes):,}") for name, sizes in nbytes.items()]
    return align([("type", "tensors", "bytes"), *rows], right=2)


def payloads(written: Sequence[WrittenTensor]) -> list[str]:
    """Returns a table of tensors."""
    rows = []
    for tensor in written:
        error = "" if tensor.copied or tensor.error is None else f"{tensor.error:g}"
        rows.append((safe(tensor.name), tensor.type.name, "copied" if tensor.copied else "converted", error))
    return align([("tensor", "type", "payload", "max error against IN"), *rows], right=1)


def unmet_requests(written: Sequence[WrittenTensor]) -> list[str]:
    """Returns a line for each type that some tensors did not get: ``Q4_K: 8 of 9, kept: 1``."""
    counts: dict[str, Counter[str]] = {}
    for tensor in written:
        if tensor.asked is not None:
            counts.setdefault(str(tensor.asked), Counter())[_outcome(tensor)] += 1
    lines = []
    for name, count in counts.items():
        total = format_count(count.total(), "tensor")
        if others := [f"{outcome}: {number}" for outcome, number in sorted(count.items()) if outcome != AS_ASKED]:
            lines.append(f"{name}: {count[AS_ASKED]} of {total}, {', '.join(others)}")
    return lines


def _outcome(tensor: WrittenTensor) -> str:
    """Returns what became of a tensor, as a heading. Most norms and biases are kept."""
    return AS_ASKED if tensor.type == tensor.asked else "kept" if tensor.copied else "fallback types"


def requantizing_note(written: Sequence[WrittenTensor]) -> list[str]:
    """Returns a line about tensors that were quantized already and got another quantized type."""
    types = {tensor.name: before for tensor in written if (before := tensor.quantized_from)}
    return [f"quantized already: {counted_types(types)}; the new type adds its own error"] if types else []


def composites(written: Sequence[WrittenTensor]) -> list[str]:
    """Returns a line for each scheme of weights that were stored as several tensors, with the types
    that hold them."""
    lines = []
    for scheme in dict.fromkeys(tensor.source for tensor in written if "," in tensor.source):
        types = dict.fromkeys(tensor.type for tensor in written if tensor.source == scheme)
        parts = []
        for type_ in types:
            errors = [tensor.error or 0.0 for tensor in written if (tensor.source, tensor.type) == (scheme, type_)]
            kept = "kept" if scheme.endswith(ROUNDED) else "exact"
            how = f"{kept} in {type_}" if not max(errors) else f"at most {max(errors):.2g} off in {type_}"
            parts.append(f"{format_count(errors, 'tensor')} {how}")
        lines.append(f"{scheme}: {', '.join(parts)}")
    return lines


def reasons(written: Sequence[WrittenTensor]) -> list[str]:
    """Returns lines: tensors with another type than the requested or stored one, and why."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for tensor in written:
        if tensor.note:
            name = safe(re.sub(r"\b\d+\b", "N", tensor.name))
            groups.setdefault((_outcome(tensor), tensor.type.scheme, FOUND.sub("", tensor.note)), []).append(name)
    lines: list[str] = []
    for (outcome, scheme, reason), names in sorted(groups.items(), key=lambda group: group[0][0]):
        if f"{outcome}:" not in lines:
            lines.append(f"{outcome}:")
        kinds = [*dict.fromkeys(names)]
        rest = f" and {len(kinds) - 4} more" if len(kinds) > 4 else ""
        lines.append(f"  {len(names)} as {scheme} ({', '.join(kinds[:4])}{rest}): {reason}")
    return lines


def ties(written: Sequence[WrittenTensor]) -> list[str]:
    """Returns lines: tensors that share a payload."""
    lines = [f"  {safe(tensor.name)} = {safe(tensor.alias_of)}" for tensor in written if tensor.alias_of is not None]
    return ["tied tensors, stored once:", *lines] if lines else []
