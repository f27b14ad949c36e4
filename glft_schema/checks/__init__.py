"""Checks files against their source and against a manifest, and checks for bad values."""

from typing import TYPE_CHECKING

from glft_schema.lazy import on_first_use

if TYPE_CHECKING:
    from glft_schema.checks.compare import Comparison, MetadataChange, TensorComparison, TensorVersion
    from glft_schema.checks.derivation import Derivation, check_derivation
    from glft_schema.checks.manifests import (
        FileHash,
        TensorHash,
        Verdict,
        compare_hashes,
        hash_file,
        manifest_of,
        model_hash,
        read_manifest,
    )
    from glft_schema.checks.ranking import Ranking
    from glft_schema.checks.roles import check_fit
    from glft_schema.checks.values import ValueFinding
    from glft_schema.errors import Finding
    from glft_schema.tensor_types.differences import NumberErrors

__all__ = [
    "Comparison",
    "Derivation",
    "FileHash",
    "Finding",
    "MetadataChange",
    "NumberErrors",
    "Ranking",
    "TensorComparison",
    "TensorHash",
    "TensorVersion",
    "ValueFinding",
    "Verdict",
    "check_derivation",
    "check_fit",
    "compare_hashes",
    "hash_file",
    "manifest_of",
    "model_hash",
    "read_manifest",
]

LATER = {
    "checks.compare": "Comparison MetadataChange TensorComparison TensorVersion",
    "checks.derivation": "Derivation check_derivation",
    "checks.manifests": "FileHash TensorHash Verdict compare_hashes hash_file manifest_of model_hash read_manifest",
    "checks.ranking": "Ranking",
    "checks.roles": "check_fit",
    "checks.values": "ValueFinding",
    "errors": "Finding",
    "tensor_types.differences": "NumberErrors",
}
__getattr__, __dir__ = on_first_use(globals(), LATER)
