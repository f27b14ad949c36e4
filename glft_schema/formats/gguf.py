"""GGUF v1 to v3 (ggml's docs/gguf.md).

    HEADER | METADATA | TENSOR_INFOS | PADDING | DATA

Regions follow one another without padding, except that DATA begins at a multiple of the alignment,
counted from the start of the file. The offsets of tensors count from the start of DATA. All numbers
have the byte order of the field `version`. Counts (except the number of dims), lengths and dims are
u32 in v1, u64 in v2 and v3.

`spec` rules come from the specification, `ggml` rules from llama.cpp's gguf.cpp. A `Rule` without
`sets` is enforced by every reader.
"""

from __future__ import annotations

import construct
from construct import Bytes, Default, Switch, len_, this

from glft_schema.codec.arrays import Numbers, Strings
from glft_schema.codec.context import BIG
from glft_schema.codec.expressions import Lookup, nbytes_, reverse_
from glft_schema.codec.metadata import KeyTypes, KeyValues, TypedArray
from glft_schema.codec.metadata_rules import KeyType, an_integer, each, has_key, lengths, not_nested
from glft_schema.codec.numbers import ByteOrderOf, Picked, Sizes, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from glft_schema.codec.predicates import (
    above,
    at_least,
    at_most,
    differs_from,
    equals,
    member_of,
    multiple_of,
    one_of,
    pattern,
    power_of_two,
    utf8,
    zeros,
)
from glft_schema.codec.rules import GGML, SPEC, Limit, Rule, ggml, spec
from glft_schema.codec.structs import Count, Derived, Padding, Struct
from glft_schema.codec.tables import NamesOnce, Nested, Table
from glft_schema.codec.text import Text
from glft_schema.codec.type_codes import TypeCode, TypeTable
from glft_schema.codec.typed_values import ARRAY, ValueType
from glft_schema.formats.chat_templates import ChatTemplate
from glft_schema.formats.format import Format, ShardKeys
from glft_schema.formats.gguf_keys import kinds_of_key, meaning, suits, summary, type_of_key
from glft_schema.formats.gguf_names import ARCHITECTURE
from glft_schema.tensor_types.ggml import GGML_TYPES
from glft_schema.tensor_types.tensor_type import OpaqueType
from glft_schema.tensors.layout_rules import Contiguous, has_quantized, is_padded_to, zero_gaps
from glft_schema.tensors.region import TensorData, TensorFits

MAGIC = b"GGUF"
ALIGNMENT = "general.alignment"
BUILT_IN_TYPES = frozenset(GGML_TYPES)  # without those that users register
OF_GGML = member_of(BUILT_IN_TYPES, "a type of ggml", OpaqueType.of(255))
OWN_TYPES = ": rules=[] (--rules required) allows types that ggml does not have"
SNAKE_CASE = r"[a-z0-9_-]+(\.[a-z0-9_]+)*"  # hyphens in names of architectures, such as gpt-oss
KEY_TYPES = KeyTypes(type_of_key, suits, kinds_of_key, example="general.name")
SHARDS = ShardKeys("split.no", "split.count", "split.tensors.count")

# fmt: off
size_in_header = Picked(this.version == 1, u32, u64)
size           = Picked(this._root.header.version == 1, u32, u64)
string         = Text(size)

Header = Struct(
    "magic"      / Default(Bytes(4), MAGIC)                   * "47 47 55 46 in either byte order: 'GGUF'",
    "byte_order" / ByteOrderOf(u32)                           * "little, or big if the first two bytes of version are 0",
    "version"    / Default(u32, 3)                            * "1, 2 or 3",
    "n_tensors"  / Count(size_in_header, this._.tensor_infos) * "number of tensor infos",
    "n_kv"       / Count(size_in_header, this._.metadata)     * "number of key-values",
    Rule("gguf-magic",         this.magic,      equals(MAGIC)),
    Rule("gguf-version",       this.version,    one_of(1, 2, 3)),
    ggml("gguf-little-endian", this.byte_order, differs_from(BIG, "little, the byte order of most hosts"), building=False),
    ggml("gguf-version-2",     this.version,    one_of(2, 3),                                              building=False),
    spec("gguf-big-endian",    this.version,    equals(3), when=this.byte_order == BIG,                    building=False),
    title="header",
)


def array(elements: Nested) -> construct.Construct:
    """Returns the declaration of an array; `elements` is the declaration of nested arrays."""
    cases = {type_: Numbers(type_.field, this.n) for type_ in NUMBERS}
    cases |= {STRING: Strings(size, this.n), ARRAYS: Table(this.n, elements)}
    return TypedArray(Struct(
        "type"     / TypeCode(u32, VALUE_TYPES) * "type of every element",
        "n"        / Count(size, this.elements) * "number of elements",
        "elements" / Switch(this.type, cases)   * "one after another",
        title="array",
    ))


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
STRING      = ValueType("string", 8, string)
ARRAYS      = ValueType(ARRAY, 9, Nested(array))
VALUE_TYPES = TypeTable[ValueType]("GGUF value", *NUMBERS, STRING, ARRAYS)
UINT32      = VALUE_TYPES["uint32"]
OF_ALIGNMENT = this.key == ALIGNMENT

KeyValue = Struct(
    "key"   / string                     * "lower_snake_case segments joined by dots; an architecture may have hyphens",
    "type"  / TypeCode(u32, VALUE_TYPES) * "type of the value",
    "value" / Switch(this.type, {type_: type_.field for type_ in VALUE_TYPES}) * "stored as its type requires",
    spec("gguf-key",             this.key,   pattern(SNAKE_CASE, "lower_snake_case segments joined by dots")),
    spec("gguf-key-length",      nbytes_(this.key), at_most(65535, "bytes")),
    Rule("gguf-key-empty",       len_(this.key),    at_least(1, "byte"), sets=(SPEC, GGML)),
    spec("gguf-bool",            this.value, each("bool", one_of(0, 1))),
    spec("gguf-utf8",            this.value, each("string", utf8)),
    ggml("gguf-nested-array",    this.value, not_nested),
    ggml("gguf-length",          this.value, lengths(at_most(1 << 30, "bytes or elements"))),
    KeyType("gguf-key-type",     KEY_TYPES, (SPEC,)),
    ChatTemplate("gguf-chat-template", "value", (SPEC,)),
    Rule("gguf-alignment",       this.value, an_integer(above(0)), when=OF_ALIGNMENT),
    Limit("gguf-limit-alignment", this.value, "alignment",         when=OF_ALIGNMENT),
    Rule("gguf-alignment-u32",   this.type,  equals(UINT32),       when=OF_ALIGNMENT, sets=(SPEC, GGML)),
    spec("gguf-alignment-8",     this.value, multiple_of(8),       when=OF_ALIGNMENT),
    ggml("gguf-alignment-power", this.value, power_of_two,         when=OF_ALIGNMENT),
    title="key_value",
)

TensorInfo = Struct(
    "name"   / string                     * "name of the tensor; unique",
    "dims"   / Sizes(u32, size, "dims")   * "sizes, the contiguous one first: a Linear's weight is [in, out]",
    "shape"  / Derived(reverse_(this.dims)) * "the sizes in torch's order: [out, in]",
    "dtype"  / TypeCode(u32, GGML_TYPES)  * "how the payload is stored; `type` in the specification",
    "offset" / u64                        * "first byte of the payload, counted from the start of DATA",
    spec("gguf-name-64",   nbytes_(this.name), at_most(64, "bytes")),
    ggml("gguf-name-63",   nbytes_(this.name), at_most(63, "bytes")),
    spec("gguf-name-utf8", this.name,          utf8),
    Rule("gguf-dims-4",    len_(this.dims),    at_most(4, "dims"), sets=(SPEC, GGML)),
    Rule("gguf-type",      this.dtype,         OF_GGML, sets=(SPEC, GGML), advice=OWN_TYPES),
    TensorFits("gguf-dims-fit-type", "dims"),
    spec("gguf-offset",    this.offset,        multiple_of(this._root.alignment, "the alignment")),
    title="tensor_info",
)

FIRST_SHARD = Lookup(this.metadata, SHARDS.number, 0) == 0
IS_MODEL = Lookup(this.metadata, "general.type", "model") != "imatrix"  # llama-imatrix states no architecture

GGUF = Format("GGUF", (MAGIC,), GGML_TYPES, Struct(
    "header"       / Header                                                    * "version, byte order and counts",
    "metadata"     / KeyValues(Table(this.header.n_kv, KeyValue), VALUE_TYPES, once="gguf-keys-once", keys=KEY_TYPES)
                                                                               * "typed values by key",
    "alignment"    / Derived(Lookup(this.metadata, ALIGNMENT, 32))             * "general.alignment, or 32 if that is absent",
    "tensor_infos" / Table(this.header.n_tensors, TensorInfo)                  * "one row per tensor",
    "padding"      / Padding(this.alignment, may_lack=this.header.n_tensors == 0) * "zeros up to the alignment",
    "data"         / TensorData("tensor_infos", padded_to=this.alignment)      * "the payloads, each at its offset",
    NamesOnce("gguf-names-once",  "tensor_infos"),
    Contiguous("gguf-contiguous", "tensor_infos", (GGML,)),
    spec("gguf-architecture",         this.metadata, has_key(ARCHITECTURE), when=FIRST_SHARD & IS_MODEL, building=False),
    spec("gguf-quantization-version", this.metadata, has_key("general.quantization_version"),
         when=FIRST_SHARD & has_quantized(this.tensor_infos), building=False),
    spec("gguf-padding",              this.padding,  zeros),
    spec("gguf-gaps",                 this.data,     zero_gaps),
    ggml("gguf-data-padded",          this.data,     is_padded_to(this.alignment)),
),
    endings=(".gguf",),
    keeps_to=(SPEC, GGML),
    keep_vectors=True,  # norms and biases: ggml's kernels take them in F32 only
    shards=SHARDS,
    unshared_by=(GGML,),
    meaning=meaning,
    summary=summary,
)
# fmt: on
