"""`glft lab`: the quantization lab from end to end."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from click.exceptions import Exit

from glft_schema.cli.options import flag, option
from glft_schema.cli.terminal import FAILED, file_errors, progress_bar
from glft_schema.display import Progress, align
from glft_schema.lazy import import_module


def lab(
    out: Annotated[Path, option("DIR", "Output directory.")] = Path("lab-out"),
    tied: Annotated[bool, flag("Tie the output head to the token embedding.", "--tied/--untied")] = False,
    steps: Annotated[int, option("N", "Number of training batches.", min=1)] = 300,
    seed: Annotated[int, option("N", "Random seed for weights and batches.")] = 0,
) -> None:
    """Trains, quantizes and verifies a small GPT.

    Writes the model in q8 and q4, reads both files back, compares every layer, and writes a report.
    The exit code is 1 if a result is outside its limit.

    Examples:
        glft lab
        glft lab --out lab-tied --tied --steps 100
    """
    with file_errors(out):
        import_module("torch")
        out.mkdir(parents=True, exist_ok=True)
    print(
        f"lab: training a GPT of 4 blocks for {steps} steps, then q8 and q4; the report will be {out / 'README.md'}", flush=True
    )
    from glft_schema.lab.minigpt import MiniGPTConfig
    from glft_schema.lab.run import LabError, run_lab

    try:
        with file_errors(out), progress_bar("lab") as bar:
            manifest = run_lab(out, MiniGPTConfig(tied=tied), steps, seed, bar if sys.stderr.isatty() else _lines())
    except LabError as failure:
        print(f"glft: {failure}", file=sys.stderr)
        raise Exit(FAILED) from None
    training = manifest["training"]
    rows = [("scheme", "bytes", "times smaller", "loss", "weight error", "tensors off fake-quant", "layers off")]
    rows.append(("float32", f"{manifest['torch_save_bytes']:,}", "1.00", f"{training['held_back_loss']:.4f}", "", "", ""))
    for scheme, measured in manifest["files"].items():
        tensor, layer = max(measured["tensor_errors"].values()), max(measured["layer_errors"].values())
        error = max(worst for worst, _ in measured["quantization_errors"].values())  # against the trained weights
        saving, loss = f"{measured['saving']:.2f}", f"{measured['loss']:.4f}"
        rows.append((scheme, f"{measured['nbytes']:,}", saving, loss, f"{error:.3g}", f"{tensor:g}", f"{layer:g}"))
    print("\n".join(align(rows, right=6)))
    print(f"trained in {training['seconds']:.0f} s; see {out / 'README.md'}")


def _lines() -> Progress:
    """Returns a progress that prints a line at each tenth of the work."""
    following = 0

    def show(text: str, done: float) -> None:
        nonlocal following
        if 10 * done >= following:
            following += 1
            print(f"  {done:4.0%}  {text}", flush=True)

    return show
