"""Test data from declarations: hypothesis strategies.

    from_construct(declared)     values that a construct can build
    containers("gguf")           whole files, valid by construction
    corruptions(file)            files that break one rule or field, each with the expected error

``glft fuzz`` uses them. Use them to test other readers and your own formats.
"""

from __future__ import annotations

from glft_schema.errors import install

try:
    import hypothesis
except ImportError as error:
    raise ImportError(f"glft_schema.testing.strategies needs hypothesis: {install('fuzz')}") from error

from glft_schema.testing.strategies.constructs import from_construct, values_of
from glft_schema.testing.strategies.containers import containers
from glft_schema.testing.strategies.corruption import Corruption
from glft_schema.testing.strategies.corruptions import corruptions, rule_ids

__all__ = ["Corruption", "containers", "corruptions", "from_construct", "rule_ids", "values_of"]

del hypothesis
