"""Speed of the formulas, side by side with plain torch and with the memory's own: ``python -m tests.bench [--json]``.

Every row is measured in this one run, so that ratios can be compared between machines. A rate counts the bytes that are read
and written once each: the float32 numbers and the packed payload.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable

import torch

from glft_schema.tensor_types.chunks import dequantize_chunks, quantize_chunks
from glft_schema.tensor_types.symmetric import Q4_PER_GROUP_64, Q8_PER_CHANNEL
from glft_schema.tensor_types.tensor_type import TensorType

ROWS, COLUMNS = 16384, 4096
THREADS = (1, 2)
REPEATS = 5


def best_seconds(run: Callable[[], object]) -> float:
    """Returns the shortest of several runs, after one that is not counted."""
    run()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def naive_dequantize_q4(scales: torch.Tensor, nibbles: torch.Tensor) -> torch.Tensor:
    """Q4 as one would first write it: both nibbles, their signs, stacked, times the scale; the whole tensor at once."""
    low, high = (nibbles & 15).to(torch.int8), (nibbles >> 4).to(torch.int8)
    codes = torch.stack((low, high), dim=-1).reshape(nibbles.shape[0], -1)
    codes = torch.where(codes >= 8, codes - 16, codes).float()
    return (codes.view(*scales.shape, 64) * scales.float().unsqueeze(-1)).view(codes.shape)


def naive_quantize(weights: torch.Tensor, group: int, largest: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Symmetric quantizing as one would first write it, the whole tensor at once."""
    groups = weights.view(weights.shape[0], -1, group)
    scales = (groups.abs().max(dim=-1).values / largest).half()
    codes = torch.round(groups / scales.float().unsqueeze(-1)).clamp(-largest - 1, largest).to(torch.int8)
    return codes.view(weights.shape), scales


def naive_quantize_q4(weights: torch.Tensor) -> torch.Tensor:
    """The same, packed."""
    codes, _ = naive_quantize(weights, 64, 7)
    return (codes[:, 0::2] & 15).to(torch.uint8) | ((codes[:, 1::2] & 15).to(torch.uint8) << 4)


def measure(threads: int) -> list[dict[str, object]]:
    """Returns the rows of the table for a number of threads."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    weights = torch.randn(ROWS, COLUMNS)
    out = torch.empty_like(weights)
    float_bytes = weights.nbytes
    fill = float_bytes / best_seconds(lambda: out.fill_(1.0)) / 1e9
    rows: list[dict[str, object]] = [{"threads": threads, "what": "torch.fill_", "GB/s": fill, "of fill_": 1.0}]

    def add(what: str, type_: TensorType, seconds: float, naive: float) -> None:
        rate = (float_bytes + type_.nbytes(weights.shape)) / seconds / 1e9
        rows.append({"threads": threads, "what": what, "GB/s": rate, "of fill_": rate / fill, "times naive": naive / seconds})

    naives: dict[TensorType, tuple[Callable[..., object], Callable[..., object]]] = {
        Q8_PER_CHANNEL: (lambda scales, codes: codes.float() * scales.float(), lambda w: naive_quantize(w, COLUMNS, 127)),
        Q4_PER_GROUP_64: (naive_dequantize_q4, naive_quantize_q4),
    }
    for type_, (naive_dequantize, naive_quantize_) in naives.items():
        fields = type_.encode(weights, "w")
        seconds = best_seconds(lambda f=fields, t=type_: dequantize_chunks(t.dequantize, f, out))
        add(f"{type_} dequantize", type_, seconds, best_seconds(lambda f=fields, n=naive_dequantize: n(**f)))
        seconds = best_seconds(lambda f=fields, t=type_: quantize_chunks(t.quantize, weights, f, torch.float32, t.faults, "w"))
        add(f"{type_} quantize", type_, seconds, best_seconds(lambda n=naive_quantize_: n(weights)))
    return rows


def main() -> None:
    """Prints the table, or JSON."""
    rows = [row for threads in THREADS for row in measure(threads)]
    if "--json" in sys.argv:
        print(json.dumps({"machine": platform.processor() or platform.machine(), "torch": torch.__version__, "rows": rows}))
        return
    print(f"{ROWS} x {COLUMNS} float32, torch {torch.__version__}, {platform.machine()}, best of {REPEATS}")
    print(f"{'threads':>7}  {'what':28} {'GB/s':>6} {'of fill_':>9} {'times naive':>12}")
    for row in rows:
        naive = f"{row['times naive']:.1f}" if "times naive" in row else ""
        print(f"{row['threads']:>7}  {row['what']:28} {row['GB/s']:6.1f} {row['of fill_']:9.2f} {naive:>12}")


if __name__ == "__main__":
    main()
