"""GGUF v1 to v3, in the order of its specification (ggml's docs/gguf.md), in the byte order that its version is written in.

    HEADER | METADATA | TENSOR_INFOS | PADDING | DATA

One after another without alignment, but for PADDING: DATA begins at a multiple of the alignment, counted from the start of the
file, and offsets count from there. In v1 counts, lengths and dims are u32; in v2 and v3 they are u64.

Rules that only some readers hold name their rule sets: `SPEC`, the specification; `GGML`, llama.cpp's gguf.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import construct
from construct import Bytes, Default, Switch, len_, this

from glft_schema.codec.arrays import Numbers, StoredNumbers, Strings
from glft_schema.codec.context import BIG, Context
from glft_schema.codec.expressions import Lookup, matches, nbytes, nbytes_, reverse_
from glft_schema.codec.metadata import KeyTypes, KeyValues, Metadata, TypedArray
from glft_schema.codec.numbers import ByteOrderOf, Number, Picked, Sizes, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from glft_schema.codec.rules import GGML, SPEC, Check, Limit, Rule
from glft_schema.codec.structs import Count, Derived, Padding, Struct
from glft_schema.codec.tables import NamesOnce, Nested, Table
from glft_schema.codec.text import Text, is_utf8
from glft_schema.codec.type_codes import TypeCode, TypeTable
from glft_schema.codec.typed_values import ARRAY, Array, StoredValue, ValueType, values_within
from glft_schema.errors import shown
from glft_schema.formats.format import Format, ShardKeys
from glft_schema.formats.gguf_keys import expected_of, suits, type_of_key
from glft_schema.tensor_types import ggml
from glft_schema.tensors.region import TensorData, TensorFits, TensorMap

MAGIC = b"GGUF"
VERSIONS = (1, 2, 3)
ALIGNMENT = "general.alignment"
DEFAULT_ALIGNMENT = 32
SHARDS = ShardKeys("split.no", "split.count", "split.tensors.count")
KEY_TYPES = KeyTypes(type_of_key, suits)
GGML_MAX_LENGTH = 1 << 30  # bytes of a string, elements of an array
BUILT_IN_TYPES = frozenset(ggml.GGML_TYPES)  # without those that a user registers
KEY = r"[a-z0-9_]+(\.[a-z0-9_]+)*"


def number_of_keys(header: Any) -> int:
    """Returns how many key-values the metadata beside `header` are."""
    metadata = header._.get("metadata")
    return len(metadata) if isinstance(metadata, Mapping) else 0


size_in_header = Picked(this.version == 1, u32, u64)
size = Picked(this._root.header.version == 1, u32, u64)
string = Text(size)

# Header


# fmt: off
Header = Struct(
    "magic"      / Default(Bytes(4), MAGIC)                       * "47 47 55 46 in either byte order: 'GGUF'",
    Rule("gguf-magic", "magic", this.magic == MAGIC, f"{MAGIC!r}"),
    "byte_order" / ByteOrderOf(u32)                               * "little, or big where the low half of version reads as 0",
    Rule("gguf-little-endian", "byte_order", this.byte_order != BIG, "little, the byte order of most hosts",
         sets=(GGML,), building=False),
    "version"    / Default(u32, VERSIONS[-1])                     * "1, 2 or 3",
    Rule("gguf-version", "version", (this.version >= VERSIONS[0]) & (this.version <= VERSIONS[-1]), "1, 2 or 3"),
    Rule("gguf-version-2", "version", this.version != 1, "2 or 3", sets=(GGML,), building=False),
    Rule("gguf-big-endian", "version", lambda at: at.byte_order != BIG or at.version == 3, "3 where big-endian",
         sets=(SPEC,), building=False, broken_by={"byte_order": BIG, "version": 2}),
    "n_tensors"  / Count(size_in_header, len_(this._.tensor_infos)) * "number of tensor infos",
    "n_kv"       / Count(size_in_header, number_of_keys)            * "number of key-values",
    title="header",
)
# fmt: on

# Key-values


def array(arrays: Nested) -> construct.Construct:
    """Returns the declaration of an array, which may hold `arrays`."""
    elements = {type_: Numbers(type_.field, this.n) for type_ in NUMBERS}
    elements |= {STRING: Strings(size, this.n), ARRAY_TYPE: Table(this.n, arrays)}
    return TypedArray(
        Struct(
            "type" / TypeCode(u32, VALUE_TYPES) * "of every element",
            "n" / Count(size, len_(this.elements)) * "number of elements",
            "elements" / Switch(this.type, elements) * "one after another",
            title="array",
        )
    )


# fmt: off
NUMBERS = (
    ValueType("uint8",    0, u8),
    ValueType("int8",     1, i8),
    ValueType("uint16",   2, u16),
    ValueType("int16",    3, i16),
    ValueType("uint32",   4, u32),
    ValueType("int32",    5, i32),
    ValueType("float32",  6, f32),
    ValueType("bool",     7, u8),  # 0 or 1
    ValueType("uint64",  10, u64),
    ValueType("int64",   11, i64),
    ValueType("float64", 12, f64),
)
STRING     = ValueType("string", 8, string)
ARRAY_TYPE = ValueType(ARRAY, 9, Nested(array))
# fmt: on
VALUE_TYPES = TypeTable[ValueType]("GGUF value", *NUMBERS, STRING, ARRAY_TYPE)


def bools_are_0_or_1(entry: Any) -> bool:
    """Tells whether every bool in an entry's value is 0 or 1."""
    for type_, value in values_within(entry.value, entry.type):
        if type_.name == "bool" and value not in (0, 1):
            return False
        if isinstance(value, Array) and value.type.name == "bool":
            flags = value.values
            if isinstance(flags, StoredNumbers) and any((piece > 1).any() for piece in flags.pieces()):
                return False
            if not isinstance(flags, StoredNumbers) and any(flag not in (0, 1) for flag in flags):
                return False
    return True


def length(value: Any) -> int:
    """Returns the elements of an array, the bytes of a string, and 0 for others."""
    if isinstance(value, str):
        return nbytes(value)
    return len(value.values) if isinstance(value, Array) else 0


def is_alignment(entry: Any) -> bool:
    """Tells whether an entry is the alignment."""
    return bool(entry.key == ALIGNMENT)


def is_integer(type_: ValueType) -> bool:
    """Tells whether values of a type are integers."""
    return isinstance(type_.field, Number) and not type_.field.is_float and type_.name != "bool"


def type_text(entry: Any) -> str:
    """Returns the type of an entry's value, with those of elements."""
    return StoredValue(entry.type, entry.value).type_text


def show_entry(value: Any) -> str:
    """Returns a stored value as errors show it."""
    return shown(value.values if isinstance(value, Array) else value)


class KeyType(Rule):
    """The rule that a well-known key has a value of its kind: see `glft_schema.formats.gguf_keys`."""

    def check(self, context: Context, path: str) -> None:
        if not self.holds(context):
            problem = f"expected {expected_of(context.key)} for {context.key}, found {type_text(context)}"
            self.broken(context, problem, f"{path} -> {self.field}")


# fmt: off
KeyValue = Struct(
    "key"   / string                           * "lower_snake_case segments joined by dots",
    Rule("gguf-key", "key", matches(KEY)(this.key), "lower_snake_case segments joined by dots", sets=(SPEC,)),
    Rule("gguf-key-length", "key", nbytes_(this.key) < 1 << 16, "at most 65535 bytes", sets=(SPEC,)),
    Rule("gguf-key-empty", "key", len_(this.key) >= 1, "at least one byte", sets=(SPEC, GGML)),
    "type"  / TypeCode(u32, VALUE_TYPES)       * "of the value",
    "value" / Switch(this.type, {type_: type_.field for type_ in VALUE_TYPES}) * "as its type is stored",
    Rule("gguf-bool", "value", bools_are_0_or_1, "bools of 0 or 1", show=show_entry, sets=(SPEC,),
         broken_by={"type": "bool", "value": 2}),
    Rule("gguf-utf8", "value", lambda at: all(is_utf8(v) for _, v in values_within(at.value, at.type) if isinstance(v, str)),
         "UTF-8", show=show_entry, sets=(SPEC,), broken_by={"type": STRING, "value": "\udcff"}),
    Rule("gguf-nested-array", "value", lambda at: not (isinstance(at.value, Array) and at.value.type is ARRAY_TYPE),
         "no array in an array", show=show_entry, sets=(GGML,),
         broken_by={"type": ARRAY_TYPE, "value": Array(ARRAY_TYPE, ())}),
    Rule("gguf-length", "value", lambda at: all(length(v) <= GGML_MAX_LENGTH for _, v in values_within(at.value, at.type)),
         f"at most {GGML_MAX_LENGTH} bytes or elements", show=show_entry, sets=(GGML,)),
    KeyType("gguf-key-type", "type", lambda at: not type_of_key(at.key) or suits(at.key, type_text(at)),
         "the kind of type that the key requires", sets=(SPEC,),
         broken_by={"key": "general.name", "type": "uint32", "value": 1}),
    Rule("gguf-alignment", "value", lambda at: not is_alignment(at) or (is_integer(at.type) and at.value > 0),
         f"an integer above 0 for {ALIGNMENT}", show=show_entry,
         broken_by={"key": ALIGNMENT, "type": "uint32", "value": 0}),
    Limit("gguf-limit-alignment", "value", this.value, "alignment", only=is_alignment, what=f" for {ALIGNMENT}",
         broken_by={"key": ALIGNMENT, "type": "uint32", "value": 1 << 31}),
    Rule("gguf-alignment-u32", "type", lambda at: not is_alignment(at) or at.type.field is u32, f"uint32 for {ALIGNMENT}",
         sets=(SPEC, GGML), broken_by={"key": ALIGNMENT, "type": "uint64", "value": DEFAULT_ALIGNMENT}),
    Rule("gguf-alignment-8", "value", lambda at: not is_alignment(at) or at.value % 8 == 0, f"a multiple of 8 for {ALIGNMENT}",
         sets=(SPEC,), broken_by={"key": ALIGNMENT, "type": "uint32", "value": 4}),
    Rule("gguf-alignment-power", "value", lambda at: not is_alignment(at) or at.value & (at.value - 1) == 0,
         f"a power of two for {ALIGNMENT}", sets=(GGML,), broken_by={"key": ALIGNMENT, "type": "uint32", "value": 24}),
    title="key_value",
)

# Tensor infos


TensorInfo = Struct(
    "name"   / string                                     * "of the tensor; unique",
    Rule("gguf-name-64", "name", nbytes_(this.name) <= 64, "at most 64 bytes", sets=(SPEC,)),
    Rule("gguf-name-63", "name", nbytes_(this.name) <= 63, "at most 63 bytes", sets=(GGML,)),
    Rule("gguf-name-utf8", "name", lambda at: is_utf8(at.name), "UTF-8", sets=(SPEC,)),
    "dims"   / Sizes(u32, size, "dims")                   * "sizes, the contiguous one first: a Linear's weight is [in, out]",
    Rule("gguf-dims-4", "dims", len_(this.dims) <= 4, "at most 4", sets=(SPEC, GGML)),
    "shape"  / Derived(reverse_(this.dims))               * "the sizes in torch's order: [out, in]",
    "dtype"  / TypeCode(u32, ggml.GGML_TYPES)             * "how the payload is stored; `type` in the specification",
    Rule("gguf-type", "dtype", lambda at: at.dtype in BUILT_IN_TYPES, "a type of ggml", sets=(SPEC, GGML)),
    TensorFits("gguf-dims-fit-type", "dims"),
    "offset" / u64                                        * "where the payload begins, in bytes into DATA",
    Rule("gguf-offset", "offset", this.offset % this._root.alignment == 0, "a multiple of the alignment", sets=(SPEC,)),
    title="tensor_info",
)
# fmt: on


class Contiguous(Check):
    """The rule that each payload begins where the one before it, padded, ends: no gap, no other order, none shared."""

    expected = "where the payload before it, padded, ends: no gap, no other order, none shared"

    def check(self, context: Context, path: str) -> None:
        end = 0
        for i, row in enumerate(context[self.field]):
            if row.offset != end:
                self.broken(context, f"expected {end}, found {row.offset}", f"{path} -> {self.field} -> {i} -> offset")
            if not row.dtype.is_known:
                return
            end = row.offset + row.dtype.nbytes(row.shape)
            end += -end % context.alignment


def data_is_padded(file: Any) -> bool:
    """Tells whether the last payload is padded, too, as it is where files are built from payloads alone."""
    if not isinstance(file.data, TensorMap):
        return True
    ends = [sum(place[:2]) for place in file.data.places().values()]
    return not ends or max(ends) + -max(ends) % file.alignment <= file.data.size


def is_zero(stored: bytes | memoryview) -> bool:
    """Tells whether all bytes are zero."""
    return not bytes(stored).strip(b"\0")


def show_data(data: Any) -> str:
    """Returns the region of payloads as errors show it."""
    return f"{data.size} bytes with gaps at {shown([gap.offset for gap in data.gaps])}"


def show_keys(metadata: Metadata) -> str:
    """Returns the metadata as errors show what they lack."""
    return f"{len(metadata)} other keys"


def is_later(file: Any) -> bool:
    """Tells whether a file is one of a set, but not the first, which has the model's metadata."""
    return bool(file.metadata.get(SHARDS.number, 0) != 0)


def states_quantization(file: Any) -> bool:
    """Tells whether a file with quantized tensors says so in its metadata."""
    stated = "general.quantization_version" in file.metadata or is_later(file)
    return stated or all(row.dtype.exact for row in file.tensor_infos)


def gaps_are_zero(file: Any) -> bool:
    """Tells whether the padding between payloads is zeros, as it is where files are built from payloads alone."""
    data = file.data
    return not isinstance(data, TensorMap) or all(is_zero(piece) for gap in data.gaps for piece in data.gap_pieces(gap))


# fmt: off
GGUF = Format("GGUF", (MAGIC,), ggml.GGML_TYPES, Struct(
    "header"       / Header                                       * "what the file is, and how much of it",
    "metadata"     / KeyValues(Table(this.header.n_kv, KeyValue), VALUE_TYPES, once="gguf-keys-once", keys=KEY_TYPES)
                                                                  * "typed values by key",
    Rule("gguf-architecture", "metadata", lambda file: "general.architecture" in file.metadata or is_later(file),
         "the key general.architecture", show=show_keys, sets=(SPEC,), building=False,
         kept_by={"general.architecture": "llama"}),
    "alignment"    / Derived(Lookup(this.metadata, ALIGNMENT, DEFAULT_ALIGNMENT)) * "of DATA and offsets: that key, or 32",
    "tensor_infos" / Table(this.header.n_tensors, TensorInfo) * "one row a tensor",
    NamesOnce("gguf-names-once", "tensor_infos"),
    Rule("gguf-quantization-version", "metadata", states_quantization, "the key general.quantization_version",
         show=show_keys, sets=(SPEC,), building=False, kept_by={"general.quantization_version": 2}),
    Contiguous("gguf-contiguous", "tensor_infos", (GGML,)),
    "padding"      / Padding(this.alignment, may_lack=this.header.n_tensors == 0) * "zeros up to the alignment",
    Rule("gguf-padding", "padding", lambda file: is_zero(file.padding), "zeros", sets=(SPEC,)),
    "data"         / TensorData("tensor_infos", padded_to=this.alignment)  * "the payloads, each at its offset",
    Rule("gguf-gaps", "data", gaps_are_zero, "zeros between payloads", show=show_data, sets=(SPEC,)),
    Rule("gguf-data-padded", "data", data_is_padded, "the last payload padded to the alignment", show=show_data, sets=(GGML,)),
),
    endings=(".gguf",),
    keeps_to=(SPEC, GGML),
    keep_vectors=True,  # norms and biases: ggml's kernels take them in F32 only
    shards=SHARDS,
    unshared_by=(GGML,),
)
# fmt: on
