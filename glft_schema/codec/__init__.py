"""The constructs that formats and tensor types are declared in: construct's own, extended.

==========================================  ========================================================
`Struct`, `Count`, `Derived`, `Padding`     consecutive fields, and fields computed from others
`u8` ... `f64`, `Number`, `TensorField`     numbers, and arrays of them: ``f16[OUT, IN // 64]``
`Picked`, `Sizes`, `ByteOrderOf`            a number of variable width, counted sizes, byte order
`Text`, `Numbers`, `Strings`                strings, and long arrays that are decoded on access
`Table`, `Nested`, `NamesOnce`              rows, arrays in arrays, unique names
`TypeTable`, `TypeCode`                     types by code and name
`KeyValues`, `KeyValueLines`                metadata, with types or as lines of text
`Rule`, `Limit`, `Check`                    validation rules as data
`spec`, `ggml`, `both`                      rules of a rule set
`equals`, `at_most`, `multiple_of` ...      predicates, see `glft_schema.codec.predicates`
`Lookup`, `matches`, `nbytes_`, `reverse_`  expressions beside construct's ``this`` and ``len_``
`nbytes_of_lines`                           the size of `KeyValueLines`, for its `Count`
==========================================  ========================================================
"""

from glft_schema.codec.arrays import Numbers, Strings
from glft_schema.codec.context import BIG, LITTLE, Context, Parameters, byte_order
from glft_schema.codec.expressions import Lookup, matches, nbytes_, reverse_
from glft_schema.codec.metadata import KeyTypes, KeyValues, TypedArray, TypedMetadata
from glft_schema.codec.metadata_lines import KeyValueLines, TextMetadata, nbytes_of_lines
from glft_schema.codec.metadata_rules import KeyType, an_integer, each, has_key, lengths, not_nested
from glft_schema.codec.numbers import (
    ByteOrderOf,
    Number,
    Picked,
    Sizes,
    TensorField,
    bf16,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
)
from glft_schema.codec.predicates import (
    above,
    at_least,
    at_most,
    contained_in,
    differs_from,
    equals,
    meets,
    multiple_of,
    one_of,
    pattern,
    power_of_two,
    utf8,
    zeros,
)
from glft_schema.codec.records import Record
from glft_schema.codec.rules import GGML, REQUIRED, SPEC, Check, Limit, Predicate, Rule, both, ggml, spec
from glft_schema.codec.structs import Count, Derived, Padding, Struct
from glft_schema.codec.tables import NamesOnce, Nested, Table
from glft_schema.codec.text import Text
from glft_schema.codec.type_codes import TypeCode, TypeTable
from glft_schema.codec.typed_values import ARRAY, ValueType

__all__ = [
    "ARRAY",
    "BIG",
    "GGML",
    "LITTLE",
    "REQUIRED",
    "SPEC",
    "ByteOrderOf",
    "Check",
    "Context",
    "Count",
    "Derived",
    "KeyType",
    "KeyTypes",
    "KeyValueLines",
    "KeyValues",
    "Limit",
    "Lookup",
    "NamesOnce",
    "Nested",
    "Number",
    "Numbers",
    "Padding",
    "Parameters",
    "Picked",
    "Predicate",
    "Record",
    "Rule",
    "Sizes",
    "Strings",
    "Struct",
    "Table",
    "TensorField",
    "Text",
    "TextMetadata",
    "TypeCode",
    "TypeTable",
    "TypedArray",
    "TypedMetadata",
    "ValueType",
    "above",
    "an_integer",
    "at_least",
    "at_most",
    "bf16",
    "both",
    "byte_order",
    "contained_in",
    "differs_from",
    "each",
    "equals",
    "f16",
    "f32",
    "f64",
    "ggml",
    "has_key",
    "i8",
    "i16",
    "i32",
    "i64",
    "lengths",
    "matches",
    "meets",
    "multiple_of",
    "nbytes_",
    "nbytes_of_lines",
    "not_nested",
    "one_of",
    "pattern",
    "power_of_two",
    "reverse_",
    "spec",
    "u8",
    "u16",
    "u32",
    "u64",
    "utf8",
    "zeros",
]
