"""Public names for manifests: SHA-256 of files and tensors. See `checks.manifests`."""

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

__all__ = ["FileHash", "TensorHash", "Verdict", "compare_hashes", "hash_file", "manifest_of", "model_hash", "read_manifest"]
