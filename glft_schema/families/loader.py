"""Models that llama.cpp's loader would refuse although their container is valid.

The pages of the architectures state the loader's requirements for each, `pages/every_model.py`
those for all. Only loading is checked. A tensor type that llama.cpp cannot compute with fails
later. A set is checked by the keys of its first file and the tensors of all files.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from glft_schema.codec.rules import SPEC
from glft_schema.errors import Finding, quote
from glft_schema.families.config import KEY_TYPES, OLD_NAMES
from glft_schema.families.page import BLOCK_COUNT, MOST_BLOCKS, Loaded
from glft_schema.families.pages import BY_ARCH, every_model
from glft_schema.families.requirements import Requirement, RowPaths, broken_keys, locate
from glft_schema.files.file import File
from glft_schema.formats.gguf_names import ARCHITECTURE, BYTE, LAYER, OUTPUT, TOKENIZER
from glft_schema.tensors.tensor import Tensor
from glft_schema.words import suggestion

LLAMA_CPP = "llama.cpp"
TOKENS, MODEL, PRE = f"{TOKENIZER}tokens", f"{TOKENIZER}model", f"{TOKENIZER}pre"
TYPES, SHORTEST_BYTE = f"{TOKENIZER}token_type", 3  # the loader parses the text from its third byte
PER_TOKEN = (f"{TOKENIZER}scores", TYPES)
MAPPED = 32  # bytes: the loader maps payloads only at multiples of this
COUNT, NAME = "split.count", "general.name"
EXTRA_NAMES, EXTRA_FLAGS = "general.tensor_extra.name", "general.tensor_extra.prec_a4"
BLOCKS = "{i}"  # in the name of a tensor of each block
JINA_PRE = re.compile("jina-v2-(de|es|code)")  # pre-tokenizers whose rule comes before phi3's


class ModelSizes:
    """Sizes of a model, by its metadata. ``numbers["q"]`` is one of `SIZES`.

    Args:
        file: the model.
        arch: its architecture.

    Attributes:
        first: the file with the metadata.
        family: the page of the architecture.
        read: keys that the loader reads. Other keys have no value, since they may have any type.
        unknown: required keys that are missing, and keys of a type that the loader does not read.
        block: the block whose tensors have the sizes that differ between blocks.
    """

    def __init__(self, file: File, arch: str) -> None:
        self.file, self.first, self.family = file, file.shards[0], BY_ARCH[arch]
        self.read, self.unknown = set[str](), set[str]()
        self.block = 0

    def __getitem__(self, size: str) -> int:
        """Returns a size. Raises KeyError if it depends on an unknown key."""
        return every_model.SIZES[size].value(self)

    def value(self, key: str) -> Any:
        """Returns the value of a key that is read, or None. Raises KeyError if it is unknown."""
        if (name := self.full(key)) in self.unknown:
            raise KeyError(key)
        return self.file.metadata.get(name) if name in self.read else None

    def elements(self, key: str) -> Sequence[Any] | None:
        """Returns the elements of a key's array, or None if the key has no array."""
        value = self.value(key)
        return value if value is not None and is_array(self.file, self.full(key)) else None

    def number(self, key: str, default: int = 0, block: int = 0) -> int:
        """Returns the number of a key, of a block if it has an array, or `default`."""
        elements = self.elements(key)
        value = self.value(key) if elements is None else next(iter(elements[block:]), 0)
        return default if value is None else int(value)

    def largest(self, key: str) -> int:
        """Returns the largest number of a key; 0 without the key."""
        elements = self.elements(key)
        return self.number(key) if elements is None else int(max(elements, default=0))

    def count(self, key: str) -> int:
        """Returns the number of elements of a key's array; 0 without an array."""
        return len(self.elements(key) or ())

    def text(self, key: str) -> str:
        """Returns the text of a key, even if it is not read; an empty one if it has none."""
        value = self.file.metadata.get(self.full(key))
        return value if isinstance(value, str) else ""

    def full(self, key: str) -> str:
        """Returns a key with the architecture's name, unless it has another prefix."""
        return key if key.startswith("tokenizer.") else f"{self.family.arch}.{key}"

    @property
    def window(self) -> int:
        """The sliding window that the loader assumes without a key."""
        return self.family.window

    @property
    def slides(self) -> bool:
        """Whether the first block has a sliding window, if the model has one."""
        pattern = self.number(every_model.PATTERN, self.family.pattern)
        return bool(self.family.pattern) and (pattern != 1 if self.elements(every_model.PATTERN) is None else pattern > 0)

    @property
    def tokens(self) -> int:
        """The number of tokens. Raises KeyError if the vocabulary has no rules."""
        has_tokens = every_model.VOCABULARIES[self.value(MODEL)].required
        return self.count(TOKENS) if has_tokens else self.number("vocab_size")

    @property
    def has_nvfp4_output(self) -> bool:
        """Whether the output matrix is in NVFP4."""
        output = self.file.tensors.get(OUTPUT)
        return output is not None and output.type.name == "NVFP4"


def is_array(file: File, key: str) -> bool:
    """Returns whether the value of a metadata key is an array."""
    return key in file.metadata and file.metadata.type_of(key).startswith("array[")


def check_model(file: File) -> list[Finding]:
    """Returns what llama.cpp's loader would refuse in a model, in addition to the rules of `ggml`.

    Args:
        file: a GGUF file, or a set of files.

    Returns:
        A finding for each fault, with the path and offset in its file. An architecture or
        vocabulary without rules has the finding ``not checked``.
    """
    findings = list(broken_model(file))
    for shard in file.shards:
        locate(shard, [finding for finding in findings if finding.file == shard.name])
    if len(file.shards) == 1:
        for finding in findings:
            finding.file = None
    return findings


def _finding(what: str, shard: File, path: str, problem: str, name: str = "") -> Finding:
    return Finding(f"{LLAMA_CPP}-{what}", (LLAMA_CPP,), path, problem, file=shard.name, name=name)


def _of_key(what: str, file: File, key: str, problem: str, name: str = "") -> Finding:
    """Returns a finding about the value of a key, which the file may lack."""
    return _finding(what, file, RowPaths(file).key(key, "value") if key in file.metadata else "metadata", problem, name)


def reason_unchecked(file: File) -> str:
    """Returns why `check_model` cannot judge a GGUF file; an empty string if it can."""
    arch, vocabulary = file.metadata.get(ARCHITECTURE), file.metadata.get(MODEL)
    if _is_part(file):
        return f"the file is one of {file.metadata[COUNT]} of a set"
    if not file.tensors:
        return "the file has no tensors"
    if architecture_of_keys(file.metadata):
        return ""
    if ARCHITECTURE not in file.metadata:
        return f"the file has no {ARCHITECTURE}"
    if isinstance(arch, str) and arch not in BY_ARCH:
        has_keys = any(key.startswith(f"{arch}.") for key in file.metadata)
        return f"no rules for the architecture {quote(arch)}{'' if has_keys else suggestion(arch, BY_ARCH)}"
    return f"no rules for the vocabulary {quote(vocabulary)}" if vocabulary in every_model.OTHER_VOCABULARIES else ""


def architecture_of_keys(metadata: Mapping[str, Any]) -> str | None:
    """Returns the architecture of a model's keys if the stated one has no keys, or None."""
    stated = metadata.get(ARCHITECTURE)
    if any(key.startswith(f"{stated}.") for key in metadata):
        return None
    return next((arch for arch in BY_ARCH if f"{arch}.{BLOCK_COUNT}" in metadata), None)


def _is_part(file: File) -> bool:
    """Returns whether a file is one of a set, without the others."""
    metadata, type_ = file.metadata, every_model.LOADER_TYPES[COUNT]
    return len(file.shards) == 1 and COUNT in metadata and metadata.type_of(COUNT) == type_ and metadata[COUNT] > 1


def broken_model(file: File) -> Iterator[Finding]:
    """Yields the findings of `check_model`, without offsets. No payload is needed."""
    metadata, first = file.metadata, file.shards[0]
    if _is_part(file):
        problem = f"expected the first of {metadata[COUNT]} files, and the others beside it, found one file"
        yield _of_key("set", file, COUNT, problem)
        return
    arch, named = metadata.get(ARCHITECTURE), architecture_of_keys(metadata)
    stated = Requirement(ARCHITECTURE, "string", named, expected=f", because the keys are {named}.*")
    yield from _broken_keys(first, [stated, *_keys(every_model.GENERAL, "", False)])
    if named or not isinstance(arch, str):
        return
    if is_array(first, EXTRA_NAMES):
        yield from _broken_keys(first, _keys(EXTRA_FLAGS, "", True))
        if is_array(first, EXTRA_FLAGS) and len(metadata[EXTRA_FLAGS]) != len(metadata[EXTRA_NAMES]):
            count, found = len(metadata[EXTRA_NAMES]), len(metadata[EXTRA_FLAGS])
            problem = f"expected {count} elements of {EXTRA_FLAGS}, one for each of {EXTRA_NAMES}, found {found}"
            yield _of_key("values", first, EXTRA_FLAGS, problem)
    if arch not in BY_ARCH:
        problem = f"not checked: expected an architecture of {', '.join(BY_ARCH)}, found {quote(arch)}"
        yield _of_key("architecture", first, ARCHITECTURE, problem)
        return
    numbers = ModelSizes(file, arch)
    for shard in file.shards if len(file.shards) > 1 else ():
        yield from _broken_keys(shard, _keys("split.no split.tensors.count" if shard is first else "split.no", "", True))
    yield from read_keys(numbers)
    yield from _misaligned(file)
    yield from broken_limits(numbers)
    yield from _vocabulary(numbers)
    yield from broken_tensors(numbers)


def _misaligned(file: File) -> Iterator[Finding]:
    """Yields a finding for each file with a payload at which llama.cpp may abort."""
    for shard in file.shards:
        if tensor := next((tensor for tensor in shard.tensors.values() if tensor.position % MAPPED), None):
            problem = f"expected payloads at multiples of {MAPPED} bytes, found {quote(tensor.name)} at {tensor.position}"
            yield _finding("alignment", shard, RowPaths(shard).tensor(tensor.name, "offset"), problem, tensor.name)


def wrong_ids(file: File) -> Iterator[Finding]:
    """Yields a finding for each special token that is none of the tokens, without offsets."""
    tokens = file.metadata.get(TOKENS)
    if not isinstance(tokens, Sequence) or isinstance(tokens, str):
        return
    for key in file.metadata:
        id_ = file.metadata[key] if key.startswith(TOKENIZER) and key.endswith("_token_id") else 0
        if isinstance(id_, int) and not 0 <= id_ < len(tokens):
            problem = f"expected one of {len(tokens)} tokens for {key}, found {id_}: llama.cpp takes a default instead"
            yield Finding("gguf-token-ids", (SPEC,), RowPaths(file).key(key, "value"), problem)


def read_keys(numbers: ModelSizes) -> Iterator[Finding]:
    """Reads the keys of `numbers`, and yields the findings of missing keys and of types."""
    for keys in (_model_keys, _dependent_keys, _vocabulary_keys):
        for key in keys(numbers):
            if key.key not in numbers.read:
                numbers.read.add(key.key)
                for finding in _broken_keys(numbers.first, [key]):
                    numbers.unknown.add(key.key)
                    yield finding


def _keys(names: str, prefix: str, required: bool) -> list[Requirement]:
    """Returns keys that the loader reads; `names` without the prefix."""
    of_loader = every_model.LOADER_TYPES
    types = {
        name: of_loader.get(name) or of_loader.get(prefix + name) or KEY_TYPES.type_of(prefix + name, False)
        for name in names.split()
    }
    return [Requirement(prefix + name, type_ or "", required=required) for name, type_ in types.items()]


def _broken_keys(shard: File, keys: list[Requirement]) -> Iterator[Finding]:
    for finding in broken_keys(shard, keys, LLAMA_CPP):
        finding.file = shard.name
        yield finding


def _model_keys(numbers: ModelSizes) -> list[Requirement]:
    """Returns the keys of an architecture that the loader reads in every model."""
    family = numbers.family
    optional = f"{every_model.OF_ALL} {' '.join(family.keys_by_loader('read'))}"
    return [
        *_keys(" ".join(family.keys_by_loader("required")), numbers.full(""), True),
        *_keys(optional, numbers.full(""), False),
    ]


def _dependent_keys(numbers: ModelSizes) -> list[Requirement]:
    """Returns the keys that the loader reads only with some values of others."""
    family = numbers.family
    with suppress(KeyError):
        slides = family.pattern and numbers.number("attention.sliding_window", family.window)
        keys = [every_model.PATTERN, *family.keys_by_loader("sliding")] if slides else []
        has_factor = numbers.value("rope.scaling.factor") is not None
        return _keys(" ".join([*keys, *(() if has_factor else OLD_NAMES.values())]), numbers.full(""), False)
    return []


def _vocabulary_keys(numbers: ModelSizes) -> list[Requirement]:
    """Returns the keys of the vocabulary that the loader reads."""
    model, pre = (numbers.text(key) for key in (MODEL, PRE))
    vocabulary = every_model.VOCABULARIES.get(model)
    keys = [*_keys("model", TOKENIZER, True), *_keys(every_model.ALWAYS, TOKENIZER, False)]
    if vocabulary is None:
        return keys
    if not vocabulary.required:
        return [*keys, *_keys("vocab_size", numbers.full(""), False)]
    required = vocabulary.required.split()
    if pre in every_model.WITHOUT_MERGES and "merges" in required:
        required.remove("merges")
    return [*keys, *_keys(" ".join(required), TOKENIZER, True), *_keys(every_model.OF_TOKENS, TOKENIZER, False)]


def broken_limits(numbers: ModelSizes) -> Iterator[Finding]:
    """Yields the findings of values that the loader does not accept."""
    first, family = numbers.first, numbers.family
    blocks = numbers.number("block_count") if numbers.full(BLOCK_COUNT) not in numbers.unknown else None
    for key in dict.fromkeys([*family.keys_by_loader("required"), *every_model.OF_ALL.split(), *family.keys_by_loader("read")]):
        name = numbers.full(key)
        has_blocks = every_model.LOADER_TYPES.get(key) == every_model.PER_BLOCK and key != every_model.PATTERN
        per_block = has_blocks and is_array(first, name)
        if per_block and blocks is not None and len(first.metadata[name]) != blocks:
            problem = f"expected {blocks} elements of {name}, one for each block, found {len(first.metadata[name])}"
            yield _of_key("values", first, name, problem)
    for limit in (*every_model.LIMITS, *family.limits):
        with suppress(KeyError):
            if limit.holds is None or limit.holds(numbers):
                continue
            name = numbers.full(limit.key)
            found = quote(first.metadata[name]) if name in first.metadata else "none"
            problem = f"expected {limit.expected.format_map(numbers)} for {name}, found {found}"
            yield _of_key("values", first, name, problem, name)


def _vocabulary(numbers: ModelSizes) -> Iterator[Finding]:
    """Yields the findings of the vocabulary."""
    metadata, values = numbers.first.metadata, partial(_of_key, "vocabulary", numbers.first)
    model, pre = numbers.text(MODEL), numbers.text(PRE)
    if MODEL in numbers.unknown:
        return
    if model not in every_model.VOCABULARIES:
        unchecked = "not checked: " if model in every_model.OTHER_VOCABULARIES else ""
        yield values(MODEL, f"{unchecked}expected {', '.join(every_model.VOCABULARIES)} for {MODEL}, found {quote(model)}")
        return
    if every_model.VOCABULARIES[model].pre and pre and pre not in every_model.KNOWN_PRE:
        close = suggestion(pre, sorted(every_model.KNOWN_PRE))
        yield values(PRE, f"expected a pre-tokenizer of llama.cpp for {PRE}, found {quote(pre)}{close}")
    if not every_model.VOCABULARIES[model].required or TOKENS in numbers.unknown:
        return
    tokens = list(metadata[TOKENS])
    for key in PER_TOKEN:
        if key in metadata and key not in numbers.unknown and len(metadata[key]) < len(tokens):
            yield values(key, f"expected {len(tokens)} elements of {key}, one for each token, found {len(metadata[key])}")
    texts = [token or f"[EMPTY_{i}]" for i, token in enumerate(tokens)]
    if TYPES in metadata and TYPES not in numbers.unknown:
        of_bytes = [text for text, type_ in zip(texts, metadata[TYPES], strict=False) if type_ == BYTE]
        short = [text for text in of_bytes if len(text.encode("utf-8", "surrogateescape")) < SHORTEST_BYTE]
        if of_bytes and model == "bert":
            yield values(TYPES, f"expected no token of type byte in a bert vocabulary, found {quote(of_bytes[0])}")
        elif short:
            yield values(TOKENS, f"expected texts such as <0x41> for tokens of type byte, found {quote(short[0])}")
    if twice := next((text for text, count in Counter(texts).items() if count > 1), None):
        yield values(TOKENS, f"expected tokens that differ, found {quote(twice)} twice")
    name = metadata.get(NAME)
    is_phi3 = isinstance(name, str) and any(part in name.lower() for part in every_model.PHI3_NAMES)
    missing = [token for token in every_model.PHI3_TOKENS if token not in texts]
    if is_phi3 and missing and not JINA_PRE.search(pre):
        yield values(TOKENS, f"expected the token {missing[0]} in a model named {quote(name)}, found none")


def broken_tensors(numbers: ModelSizes) -> Iterator[Finding]:
    """Yields the findings of tensors: missing, with other dims, or not read."""
    file, first, tensors = numbers.file, numbers.first, numbers.file.tensors
    owners = {name: shard for shard in file.shards for name in shard.tensors}
    stored = blocks = last = 1 + max((int(match[1]) for name in tensors if (match := LAYER.match(name))), default=-1)
    counted = "blocks" if numbers.family.has_nextn else "layers"
    with suppress(KeyError):
        blocks, last = numbers["layers"], numbers[counted]
    expected_blocks = f"expected tensors of {last} blocks ({every_model.SIZES[counted].text})"
    if blocks > stored:
        yield _of_key("blocks", first, numbers.full(BLOCK_COUNT), f"{expected_blocks}, found {stored}")
    rows = {shard.name: RowPaths(shard) for shard in file.shards}
    read, alike = set[str](), defaultdict[tuple[Any, ...], list[Finding]](list)  # missing and unread tensors by dims
    for row in numbers.family.loader_tensors:
        for block in range(min(last, stored, MOST_BLOCKS) if BLOCKS in row.name else 1):
            name, numbers.block = row.name.replace(BLOCKS, str(block)), block
            applies = is_read(row, block, numbers)
            if applies is False:
                continue
            read.add(name)
            dims = dims_of(row.dims, numbers)
            expected = f"{dims} ({', '.join(_text(part) for part in row.dims.split())})"
            if name in tensors:
                yield from _misfits(row, tensors[name], dims, expected, owners[name], rows[owners[name].name])
            elif row.required and applies and (last == blocks or _has_part(block, blocks, tensors)):
                problem = f"expected a tensor {quote(name)}{f' with dims {expected}' if dims else ''}, found none"
                finding = _finding("tensors", first, first.format.table, problem, name)
                alike[_dims_and_number(name, dims or [0])].append(finding)
                yield finding
    for finding in _unread_tensors(owners, read, rows, last, expected_blocks):
        alike[_dims_and_number(finding.name, tensors[finding.name].dims)].append(finding)
        yield finding
    for pair in alike.values():
        if len(pair) == 2 and pair[0].rule != pair[1].rule:  # a missing tensor, and the only one that may be it
            pair[0].repair = pair[1].repair = "rename", pair[1].name, pair[0].name


def _has_part(block: int, blocks: int, tensors: Collection[str]) -> bool:
    """Returns whether a file has the part of a model with a block.

    The parts are its blocks, and those that predict further tokens. A file may have one of them.
    """
    return (f"blk.{blocks}.nextn.eh_proj.weight" if block >= blocks else "blk.0.attn_norm.weight") in tensors


def _misfits(row: Loaded, tensor: Tensor, dims: Any, expected: str, shard: File, paths: RowPaths) -> Iterator[Finding]:
    """Yields the findings of a tensor with other dims, or another type, than the loader expects."""
    name = tensor.name
    if dims and pad_dims(tensor.dims) != pad_dims(dims):
        problem = f"expected dims {expected} of {quote(name)}, found {list(tensor.dims)}"
        yield _finding("dims", shard, paths.tensor(name, "dims"), problem, name)
    if row.type and tensor.type.name != row.type:
        problem = f"expected {row.type} for {quote(name)}, found {tensor.type.name}"
        yield _finding("types", shard, paths.tensor(name, "dtype"), problem, name)


def _unread_tensors(
    owners: Mapping[str, File], read: Collection[str], rows: Mapping[str, RowPaths], blocks: int, expected_blocks: str
) -> Iterator[Finding]:
    """Yields a finding for each unread tensor; one per block beyond the block count."""
    beyond = set[str]()
    for name, shard in owners.items():
        if name in read:
            continue
        problem = f"expected a tensor that llama.cpp loads, found {quote(name)}"
        if (match := LAYER.match(name)) and int(match[1]) >= blocks:
            if match[0] in beyond:
                continue
            beyond.add(match[0])
            problem = f"{expected_blocks}, found {quote(name)}"
        yield _finding("names", shard, rows[shard.name].tensor(name, "name"), problem, name)


def _dims_and_number(name: str, dims: Iterable[int]) -> tuple[Any, ...]:
    """Returns the dims and the first number in the name, which identify a renamed tensor."""
    return (*pad_dims(dims), *re.findall("[0-9]+", name)[:1])


def is_read(row: Loaded, block: int, numbers: ModelSizes) -> bool | None:
    """Returns whether the loader reads a tensor if the file has it; None if unknown."""
    applies: bool | None = True
    for condition in row.when.split(", ") if row.when else ():
        word = condition.removeprefix("no ")
        try:
            holds = bool(numbers[word]) if word in every_model.SIZES else f"blk.{block}.{word}" in numbers.file.tensors
        except KeyError:
            applies = None
            continue
        if holds is not (word == condition):
            return False
    return applies


def dims_of(text: str, numbers: ModelSizes) -> list[int] | None:
    """Returns the dims of a tensor as stored; None if they depend on a missing key."""
    with suppress(KeyError):
        return [sum(int(part) if part.isdigit() else numbers[part] for part in dim.split("+")) for dim in text.split()]
    return None


def _text(dim: str) -> str:
    """Returns a dim in words."""
    return " + ".join(every_model.SIZES[part].text if part in every_model.SIZES else part for part in dim.split("+"))


def pad_dims(dims: Iterable[int]) -> list[int]:
    """Returns dims, padded with ones to four."""
    padded = list(dims)
    return padded + [1] * (4 - len(padded))
