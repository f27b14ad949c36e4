"""`glft lab --out DIR`: the lab from end to end."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from glft_schema.cli.terminal import FAILED, blame, progress_bar, table


def lab(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the files and the report go.")],
    tied: Annotated[bool, typer.Option("--tied/--untied", help="Share the head's weights with the embedding.")] = False,
    steps: Annotated[int, typer.Option(min=1, help="Batches to train on.")] = 300,
    seed: Annotated[int, typer.Option(help="For weights and batches.")] = 0,
) -> None:
    """Train a small GPT, write it in q8 and q4, read it back, verify it layer by layer, and report.

    Exit code 1 where a number of the report is outside its limit.
    """
    from glft_schema.lab.minigpt import MiniGPTConfig
    from glft_schema.lab.run import LabError, run_lab

    try:
        with blame(out), progress_bar("lab") as bar:
            manifest = run_lab(out, MiniGPTConfig(tied=tied), steps, seed, bar)
    except LabError as failure:
        print(f"glft: {failure}", file=sys.stderr)
        raise typer.Exit(FAILED) from None
    training = manifest["training"]
    rows = [("float32", f"{manifest['torch_save_bytes']:,}", "1.00", f"{training['held_back_loss']:.4f}", "", "")]
    for scheme, measured in manifest["files"].items():
        tensor, layer = max(measured["tensor_errors"].values()), max(measured["layer_errors"].values())
        saving, loss = f"{measured['saving']:.2f}", f"{measured['loss']:.4f}"
        rows.append((scheme, f"{measured['nbytes']:,}", saving, loss, f"{tensor:g}", f"{layer:g}"))
    print("\n".join(table(("scheme", "bytes", "times smaller", "loss", "tensor error", "layer error"), rows, right=5)))
    print(f"trained in {training['seconds']:.0f} s; see {out / 'README.md'}")
