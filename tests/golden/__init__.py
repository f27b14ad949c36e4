"""Golden files: annotated hex by hand from the specification, never built by the schema."""

from __future__ import annotations

from pathlib import Path


def golden(name: str) -> bytes:
    """Returns the bytes of ``NAME.hex``: pairs of hex digits; ``#`` begins a comment."""
    text = Path(__file__).with_name(f"{name}.hex").read_text("utf-8")
    return bytes.fromhex("".join(line.partition("#")[0] for line in text.splitlines()))
