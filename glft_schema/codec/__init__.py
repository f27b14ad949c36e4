"""Constructs for declaring formats and tensor types. They extend those of construct.

==========================================  ========================================================
`Struct`, `Count`, `Derived`, `Padding`     consecutive fields, and fields computed from others
`u8` ... `f64`, `Number`, `TensorField`     numbers, and arrays of them: ``f16[OUT, IN // 64]``
`Flags`, `Picked`                           named bits of a number; one of two numbers
`Sizes`, `ByteOrderOf`                      counted sizes, byte order
`Text`, `Numbers`, `Strings`                strings, and long arrays that are decoded on access
`Table`, `Nested`, `NamesOnce`, `Record`    rows, nested arrays, unique names, a parsed Struct
`TypeTable`, `TypeCode`                     types by code and name
`KeyValues`, `KeyValueLines`                metadata, with types or as lines of text
`ValueType`, `KeyTypes`                     types of metadata values, and of well-known keys
`Rule`, `Limit`, `Check`                    validation rules as data
`spec`, `ggml`                              rules of a rule set
==========================================  ========================================================

Beside them, in modules of their own:

==========================================  ========================================================
`glft_schema.codec.predicates`              predicates of rules: ``equals``, ``at_most`` ...
`glft_schema.codec.rules`                   the names of the rule sets
`glft_schema.codec.metadata_rules`          rules about metadata: ``has_key``, ``lengths`` ...
`glft_schema.codec.metadata`                the result of parsing `KeyValues`
`glft_schema.codec.metadata_lines`          the result of parsing `KeyValueLines`, and its size
`glft_schema.codec.expressions`             ``Lookup``, ``matches``, ``nbytes_`` and ``reverse_``,
                                            beside construct's ``this`` and ``len_``
`glft_schema.codec.context`                 byte orders, and the context of your own constructs
==========================================  ========================================================
"""

from glft_schema.codec.arrays import Numbers, Strings
from glft_schema.codec.metadata import KeyTypes, KeyValues
from glft_schema.codec.metadata_lines import KeyValueLines
from glft_schema.codec.numbers import (
    ByteOrderOf,
    Flags,
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
from glft_schema.codec.records import Record
from glft_schema.codec.rules import Check, Limit, Rule, ggml, spec
from glft_schema.codec.structs import Count, Derived, Padding, Struct
from glft_schema.codec.tables import NamesOnce, Nested, Table
from glft_schema.codec.text import Text
from glft_schema.codec.type_codes import TypeCode, TypeTable
from glft_schema.codec.typed_values import ValueType

__all__ = [
    "ByteOrderOf",
    "Check",
    "Count",
    "Derived",
    "Flags",
    "KeyTypes",
    "KeyValueLines",
    "KeyValues",
    "Limit",
    "NamesOnce",
    "Nested",
    "Number",
    "Numbers",
    "Padding",
    "Picked",
    "Record",
    "Rule",
    "Sizes",
    "Strings",
    "Struct",
    "Table",
    "TensorField",
    "Text",
    "TypeCode",
    "TypeTable",
    "ValueType",
    "bf16",
    "f16",
    "f32",
    "f64",
    "ggml",
    "i8",
    "i16",
    "i32",
    "i64",
    "spec",
    "u8",
    "u16",
    "u32",
    "u64",
]
