"""Declarations as data, and the outputs generated from them: byte maps, HTML pages, references,
code in other languages."""

from __future__ import annotations

from glft_schema.describe import nodes
from glft_schema.describe.as_json import as_data
from glft_schema.describe.byte_map import ByteMap, byte_map_of
from glft_schema.describe.byte_range import ByteRange
from glft_schema.describe.languages import write
from glft_schema.describe.nodes import Field, Schema, StructOf, TypeOf
from glft_schema.describe.page.comparison import comparison_page
from glft_schema.describe.page.content import page
from glft_schema.describe.schema import node_of, schema_of
from glft_schema.files.byte_counts import byte_counts

__all__ = [
    "ByteMap",
    "ByteRange",
    "Field",
    "Schema",
    "StructOf",
    "TypeOf",
    "as_data",
    "byte_counts",
    "byte_map_of",
    "comparison_page",
    "node_of",
    "nodes",
    "page",
    "schema_of",
    "write",
]
