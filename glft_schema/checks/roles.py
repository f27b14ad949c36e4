"""Roles of GGUF files besides models: LoRA adapters, control vectors, mmproj and imatrix files.

`ROLES` states what llama.cpp's loaders require of each, as data. The name of a role is also the
name of its rule set. `check_fit` tells whether an adapter belongs to a model.

llama.cpp stops with an assertion if a key has another type than its loader reads. Names of tensors
in mmproj files depend on the projector, so they are not checked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from glft_schema.checks.findings import finding_lines, findings_data
from glft_schema.codec.rules import GGML
from glft_schema.display import format_count
from glft_schema.errors import Finding, OptionError, quote, safe
from glft_schema.families.requirements import Requirement, RowPaths, broken_keys, finding_of, locate
from glft_schema.files.container import as_file
from glft_schema.files.file import File
from glft_schema.formats.gguf_names import ARCHITECTURE, EMBEDDING
from glft_schema.storage.source import StrPath
from glft_schema.tensors.tensor import Tensor

FITS = "fits"  # the rule set of the findings of `check_fit`
VISION, AUDIO = "clip.has_vision_encoder", "clip.has_audio_encoder"


class Pairs(NamedTuple):
    """Tensors that belong together: for each name with one suffix, one with the other.

    Attributes:
        suffixes: of the two names.
        problem: (name without suffix, first, second) -> how they do not fit, or an empty string.
    """

    suffixes: tuple[str, str]
    problem: Callable[[str, Tensor, Tensor], str]


@dataclass(frozen=True)
class Role:
    """What a loader of llama.cpp requires of a file.

    Attributes:
        name: of the role and its rule set.
        title: what the files are, for documentation.
        mark: the metadata key and value that identify files of the role.
        keys: requirements of metadata keys.
        any_of: keys of bools, of which at least one must be true.
        tensors: a regular expression that each tensor's name must match, or empty.
        tensors_text: the pattern in words.
        problem: (tensor, first tensor) -> which requirement a tensor breaks, or an empty string.
        pairs: tensors in pairs.
        source: files of llama.cpp that the requirements are from.
    """

    name: str
    title: str
    mark: tuple[str, str]
    keys: tuple[Requirement, ...]
    source: str
    any_of: tuple[str, ...] = ()
    tensors: str = ""
    tensors_text: str = ""
    problem: Callable[[Tensor, Tensor], str] | None = None
    pairs: Pairs | None = None


def _sizes(tensor: Tensor) -> tuple[int, int]:
    """Returns the first two dims as stored: the columns and the rows of a matrix."""
    columns, rows, *_ = (*tensor.dims, 1, 1)
    return columns, rows


def _ranks(name: str, a: Tensor, b: Tensor) -> str:
    rank = _sizes(a)[0 if name.endswith(EMBEDDING) else 1]  # stored transposed
    return "" if rank == _sizes(b)[0] else f"expected the rank of lora_a, {rank}, found dims {list(b.dims)}"


def _direction(tensor: Tensor, first: Tensor) -> str:
    if tensor.type.name != "F32" or any(size > 1 for size in tensor.dims[1:]):
        return f"expected F32 with one dim, found {tensor.type.name} {list(tensor.dims)}"
    if tensor.nbytes != first.nbytes:
        return f"expected dims {list(first.dims)} as {first.name}, found {list(tensor.dims)}"
    return ""


def _sums(name: str, sums: Tensor, counts: Tensor) -> str:
    if {sums.type.name, counts.type.name} != {"F32"}:
        return f"expected sums and counts in F32, found {sums.type.name} and {counts.type.name}"
    fits = counts.nbytes and not sums.nbytes % counts.nbytes
    return "" if fits else f"expected counts that divide the sums {list(sums.dims)}, found {list(counts.dims)}"


# fmt: off
ROLES = {role.name: role for role in (
    Role("lora", "LoRA adapters", ("general.type", "adapter"), (
        Requirement("general.type",                    "string", "adapter"),
        Requirement(ARCHITECTURE,                      "string"),
        Requirement("adapter.type",                    "string", "lora"),
        Requirement("adapter.lora.alpha",              "float32", loads_without=True),  # as 0, which is no scaling
        Requirement("adapter.alora.invocation_tokens", "array[uint32]", required=False)),
        "src/llama-adapter.cpp, convert_lora_to_gguf.py",
        tensors=r".*(\.lora_a|\.lora_b|_norm\.weight)", tensors_text="a name that ends in .lora_a, .lora_b or _norm.weight",
        pairs=Pairs((".lora_a", ".lora_b"), _ranks)),
    Role("controlvector", "control vectors", (ARCHITECTURE, "controlvector"), (
        Requirement(ARCHITECTURE,                "string", "controlvector"),
        Requirement("controlvector.model_hint",  "string", loads_without=True),
        Requirement("controlvector.layer_count", "int32 uint32", required=False)),
        "common/common.cpp, tools/cvector-generator",
        tensors=r"direction\.0*[1-9][0-9]{0,8}", tensors_text="direction.N with a layer N of at least 1", problem=_direction),
    Role("mmproj", "multimodal projectors", ("general.type", "mmproj"), (
        Requirement("general.type",                                 "string", "mmproj"),
        Requirement(VISION,                                         "bool", required=False),
        Requirement(AUDIO,                                          "bool", required=False),
        Requirement("clip.projector_type",                          "string", required=False),
        Requirement("clip.use_gelu",                                "bool", required=False),
        Requirement("clip.use_silu",                                "bool", required=False),
        *(Requirement(f"clip.{kind}.{name}", type_, when=has) for kind, has in (("vision", VISION), ("audio", AUDIO))
          for name, type_ in (
            ("embedding_length",             "uint32"),
            ("feed_forward_length",          "uint32"),
            ("block_count",                  "uint32"),
            ("projection_dim",               "uint32"),
            ("attention.head_count",         "uint32"),
            ("attention.layer_norm_epsilon", "float32"))),
        Requirement("clip.vision.projector_type",                   "string", required=False),
        Requirement("clip.vision.image_size",                       "uint32", when=VISION),
        Requirement("clip.vision.patch_size",                       "uint32", when=VISION),
        Requirement("clip.vision.image_mean",                       "array[float32]", when=VISION),
        Requirement("clip.vision.image_std",                        "array[float32]", when=VISION),
        Requirement("clip.audio.projector_type",                    "string", required=False),
        Requirement("clip.audio.num_mel_bins",                      "uint32", when=AUDIO)),
        "tools/mtmd/clip.cpp", any_of=(VISION, AUDIO)),
    Role("imatrix", "importance matrices", ("general.type", "imatrix"), (
        Requirement("general.type",        "string", "imatrix"),
        Requirement("imatrix.datasets",    "array[string]"),
        Requirement("imatrix.chunk_count", "uint32"),
        Requirement("imatrix.chunk_size",  "uint32")),
        "tools/imatrix, tools/quantize", pairs=Pairs((".in_sum2", ".counts"), _sums)),
)}
# fmt: on


def role_of(file: File) -> Role | None:
    """Returns the role that a file's metadata states; None for models, and for sets of files."""
    stated = file.metadata if len(file.shards) == 1 and GGML in file.format.rule_sets else {}
    return next((role for role in ROLES.values() if stated.get(role.mark[0]) == role.mark[1]), None)


def role_findings(file: File, role: Role, to_load: bool = False) -> Iterator[Finding]:
    """Yields the findings of a role, without offsets; if `to_load`, what llama.cpp refuses."""
    metadata, rows, finding = file.metadata, RowPaths(file), partial(finding_of, role.name)
    yield from broken_keys(file, role.keys, role.name, to_load)
    if role.any_of and not any(metadata.get(key) is True for key in role.any_of):
        yield finding("any-of", "metadata", f"expected true for {' or '.join(role.any_of)}, found none")
    tensors = list(file.tensors.values())
    for tensor in tensors:
        if role.tensors and not re.fullmatch(role.tensors, tensor.name, re.DOTALL):
            problem = f"expected {role.tensors_text}, found {quote(tensor.name)}"
            yield finding("names", rows.tensor(tensor.name, "name"), problem)
        elif role.problem and (problem := role.problem(tensor, tensors[0])):
            yield finding("tensors", rows.tensor(tensor.name, "dims"), problem)
    if role.pairs:
        for name, first, second in _pairs(file, role.pairs):
            if first and second:
                if problem := role.pairs.problem(name, first, second):
                    yield finding("pairs", rows.tensor(second.name, "dims"), problem)
            elif one := first or second:
                other = name + role.pairs.suffixes[one is first]
                problem = f"expected a tensor {quote(other)} beside {quote(one.name)}, found none"
                yield finding("pairs", rows.tensor(one.name, "name"), problem)


def _pairs(file: File, pairs: Pairs) -> Iterator[tuple[str, Tensor | None, Tensor | None]]:
    """Yields each name without suffix, and its two tensors or None."""
    tensors, suffixes = file.tensors, pairs.suffixes
    names = dict.fromkeys(name.removesuffix(suffix) for name in tensors for suffix in suffixes if name.endswith(suffix))
    for name in names:
        yield name, tensors.get(name + suffixes[0]), tensors.get(name + suffixes[1])


class FitReport(NamedTuple):
    """The result of `check_fit`.

    Attributes:
        adapter: the name of the file.
        base: the name of the model.
        misfits: the findings.
    """

    adapter: str
    base: str
    misfits: list[Finding]

    @property
    def holds(self) -> bool:
        """Whether the adapter fits the model."""
        return not self.misfits

    def lines(self) -> list[str]:
        """Returns a summary and the findings."""
        if self.holds:
            return [f"{safe(self.adapter)} fits {safe(self.base)}"]
        summary = f"{safe(self.adapter)} does not fit {safe(self.base)}: {format_count(self.misfits, 'misfit')}"
        return [summary, *finding_lines(self._named(), False, len(self.misfits))]

    def data(self) -> dict[str, Any]:
        """Returns the report for JSON."""
        return {"base": self.base, "misfits": findings_data(self._named())}

    def _named(self) -> list[tuple[str, Finding]]:
        return [(Path(self.adapter).name, finding) for finding in self.misfits]


def check_fit(adapter: File | StrPath, base: File | StrPath) -> list[Finding]:
    """Checks whether an adapter fits a model, as far as llama.cpp does.

    The adapter has to satisfy the rules of its role, except for keys that llama.cpp does not need.
    A LoRA adapter fits a model of its architecture that has a tensor for each pair, with the inputs
    of ``lora_a`` and the outputs of ``lora_b``. A control vector fits if its directions have the
    model's embedding length, and their layers are below its number of layers. llama.cpp ignores
    directions of other layers, which are reported here.

    Args:
        adapter: a LoRA adapter or a control vector, open or a path.
        base: the model, open or a path.

    Returns:
        A finding for each misfit, with the path and offset in the adapter; none if it fits.

    Raises:
        OptionError: if `adapter` is neither, or `base` is not a GGUF model.
        FormatError, OSError: if a file cannot be opened.
    """
    adapter, base = as_file(adapter), as_file(base)
    role = role_of(adapter)
    if role is None or role.name not in FITTING:
        folder, hint = Path(adapter.name).parent, ""
        if (folder / "adapter_config.json").is_file():
            hint = f"; to merge it, give its folder, {quote(str(folder), 1000)}; to check it, convert it to GGUF"
        raise OptionError(f"expected a LoRA adapter or a control vector in GGUF, found {quote(adapter.name)}{hint}")
    if GGML not in base.format.rule_sets or ARCHITECTURE not in base.metadata:
        raise OptionError(f"expected a GGUF model with {ARCHITECTURE}, found {quote(base.name)} ({base.format.name})")
    misfits = FITTING[role.name](adapter, base)
    findings = [Finding(f"{role.name}-{FITS}", (FITS,), path, problem) for path, problem in misfits]
    return locate(adapter, [*role_findings(adapter, role, to_load=True), *findings])


def _lora_misfits(adapter: File, base: File) -> Iterator[tuple[str, str]]:
    rows = RowPaths(adapter)
    mine, its = adapter.metadata.get(ARCHITECTURE), base.metadata.get(ARCHITECTURE)
    if mine is not None and mine != its:
        yield rows.key(ARCHITECTURE, "value"), f"expected the base's architecture, {quote(its)}, found {quote(mine)}"
    pairs = ROLES["lora"].pairs
    assert pairs is not None
    for name, a, b in _pairs(adapter, pairs):
        if a is None or b is None:
            continue
        if name not in base.tensors:
            yield rows.tensor(a.name, "name"), f"expected a tensor of the base, found {quote(name)}, which it lacks"
            continue
        dims, is_flipped = _sizes(base.tensors[name]), name.endswith(EMBEDDING)
        inputs, outputs = dims[::-1] if is_flipped else dims
        for tensor, axis, size in ((a, int(is_flipped), inputs), (b, 1, outputs)):
            if _sizes(tensor)[axis] != size:
                problem = f"expected {size} for {quote(name)} of the base, dims {list(dims)}, found dims {list(tensor.dims)}"
                yield rows.tensor(tensor.name, "dims"), problem
            elif math.prod(tensor.dims[2:]) != (count := math.prod(base.tensors[name].dims[2:])):
                matrices = format_count(range(count), "matrix", "matrices")
                problem = f"expected {matrices} for {quote(name)} of the base, found dims {list(tensor.dims)}"
                yield rows.tensor(tensor.name, "dims"), problem


def _vector_misfits(adapter: File, base: File) -> Iterator[tuple[str, str]]:
    rows, architecture = RowPaths(adapter), base.metadata.get(ARCHITECTURE)
    size, layers = (base.metadata.get(f"{architecture}.{key}") for key in ("embedding_length", "block_count"))
    for tensor in adapter.tensors.values():
        if not re.fullmatch(ROLES["controlvector"].tensors, tensor.name):
            continue
        if math.prod(tensor.dims) != size:
            yield (
                rows.tensor(tensor.name, "dims"),
                f"expected the base's embedding length, {quote(size)}, found {list(tensor.dims)}",
            )
        layer = int(tensor.name.partition(".")[2].lstrip("0"))
        if not isinstance(layers, int) or layer >= layers:
            problem = f"expected a layer below the base's number of layers, {quote(layers)}, found {layer}"
            yield rows.tensor(tensor.name, "name"), problem


FITTING = {"lora": _lora_misfits, "controlvector": _vector_misfits}
