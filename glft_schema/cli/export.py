"""`glft export IN OUT`: a checkpoint into a weights file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from glft_schema.checkpoints import open_checkpoint
from glft_schema.cli.terminal import Exclude, blame, progress_bar, safe, table
from glft_schema.errors import SchemeError
from glft_schema.export import WrittenTensor, save_file


def export(
    source: Annotated[
        Path, typer.Argument(metavar="IN", help="A .safetensors file, a folder of them with its index, or a torch .pt file.")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write; replaced only when all went well.")],
    scheme: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN=TYPE", help="Store tensors that match as TYPE; TYPE alone is for all. Repeatable."),
    ] = None,
    metadata: Annotated[list[str] | None, typer.Option(metavar="K=V", help="Add to the metadata. Repeatable.")] = None,
    exclude: Exclude = None,
    alignment: Annotated[int, typer.Option(min=1, help="Begin payloads at multiples of this many bytes.")] = 1,
) -> None:
    """Write a checkpoint to a GLFT file.

    TYPE is f32, f16, q8_per_channel or q4_per_group_64. PATTERN is a name or has wildcards; a name wins over patterns, and
    later patterns over earlier ones.
    """
    with blame(source):
        if out.exists() and (out.samefile(source) or (source.is_dir() and out.parent.samefile(source))):
            raise SchemeError("expected another file to write to, found the one to be read")
        stored = open_checkpoint(source, exclude or [])
    with blame(out, tensors=source):
        schemes = _pairs(scheme or [], "*")
        entries = _pairs(metadata or [], None)
        total = sum(tensor.numel for tensor in stored.values()) or 1
        done = 0
        with progress_bar(f"writing {out.name}") as bar:

            def step(name: str, nbytes: int) -> None:
                nonlocal done
                done += stored[name].numel
                bar(name, done / total)

            written = save_file(stored, out, entries, schemes, alignment, progress=step)
    print("\n".join(report(written, out)))


def report(written: list[WrittenTensor], out: Path) -> list[str]:
    """Returns what became of the tensors, in lines."""
    by_type: dict[str, tuple[int, int]] = {}
    for tensor in written:
        count, nbytes = by_type.get(tensor.type.name, (0, 0))
        by_type[tensor.type.name] = (count + 1, nbytes + tensor.nbytes)
    lines = [f"{out}: {len(written)} tensors, {out.stat().st_size:,} bytes"]
    lines += table(("dtype", "tensors", "bytes"), [(name, f"{n}", f"{b:,}") for name, (n, b) in by_type.items()], right=2)
    kept: dict[tuple[str, str], list[str]] = {}
    for tensor in written:
        if tensor.note:
            reason = re.sub(r", found \[[\d, ]*\]", "", tensor.note)
            kept.setdefault((tensor.type.scheme, reason), []).append(re.sub(r"\b\d+\b", "N", tensor.name))
    if kept:
        lines += ["", "not as asked:"]
        for (scheme, reason), names in kept.items():
            some = [safe(name) for name in dict.fromkeys(names)]
            more = f" and {len(some) - 4} more" if len(some) > 4 else ""
            lines.append(f"  {len(names)} as {scheme} ({', '.join(some[:4])}{more}): {reason}")
    ties = [f"  {safe(tensor.name)} is {safe(tensor.alias_of)}" for tensor in written if tensor.alias_of is not None]
    return [*lines, *(["", "stored once:", *ties] if ties else [])]


def _pairs(texts: list[str], default: str | None) -> dict[str, str]:
    """Returns ``K=V`` texts as a dict; a text without ``=`` is the value of `default`."""
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.rpartition("=") if default is not None else text.partition("=")
        if not equals:
            if default is None:
                raise SchemeError(f"expected K=V, found {text!r}")
            key, value = default, text
        pairs.pop(key, None)  # so that the last one comes last
        pairs[key] = value
    return pairs
