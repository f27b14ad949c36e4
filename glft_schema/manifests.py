"""SHA-256 manifests of files and tensors; see `checks.manifests`."""

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
