"""Printed functions as WebAssembly, compiled by zig and run by node."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from glft_schema.scalar.as_c import FLAGS
from glft_schema.tensor_types.ggml import GGML_TYPES
from glft_schema.tensor_types.library import building
from glft_schema.tensor_types.library.printing import TypesInC

ROWS, COLUMNS = 9, 512  # not a multiple of the blocks that are encoded at once
SCRIPT = """
import { readFileSync, writeFileSync } from "node:fs";
const [module, weights, blocks, decoded, size, rows, columns, count] = process.argv.slice(2);
const { instance } = await WebAssembly.instantiate(readFileSync(module));
const { memory, __heap_base: base, encode, decode } = instance.exports;
const given = readFileSync(weights);
const first = base.value + 64, second = first + given.length, third = second + Number(size);
memory.grow(1 + (third + given.length >> 16));
new Uint8Array(memory.buffer, first).set(given);
encode(first, second, BigInt(rows), BigInt(columns));
writeFileSync(blocks, new Uint8Array(memory.buffer, second, Number(size)));
decode(second, third, BigInt(count));
writeFileSync(decoded, new Uint8Array(memory.buffer, third, given.length));
"""


@pytest.mark.skipif(not shutil.which("node"), reason="node is not installed")
@pytest.mark.skipif(building.compiler(portable=True) is None, reason="ziglang is not installed: pip install ziglang")
@pytest.mark.parametrize("name", ["Q4_K", "Q8_0"])
@pytest.mark.parametrize("in_lanes", [True, False])
def test_the_same_bytes(name: str, in_lanes: bool, tmp_path: Path) -> None:
    type_, unit = GGML_TYPES[name], TypesInC()
    layout, decoder, encoders = type_.functions
    assert decoder
    assert layout.weights
    decode, encode = unit.decoder(layout, decoder), unit.encoder(layout, encoders[0], lanes=in_lanes)
    machine = Path(building.__file__).with_name("machine.c").read_text()
    renamed = f"#define {decode} decode\n#define {encode} encode\n"
    (tmp_path / "type.c").write_text(f"{renamed}{unit}\n{machine}")
    exported = (f"-Wl,--export={symbol}" for symbol in ("encode", "decode", "__heap_base"))
    linked = "-nostdlib", "-Wl,--no-entry", "-Wl,--export-memory", "-Wl,-z,stack-size=1048576", *exported
    target = "-target", "wasm32-freestanding", "-msimd128"
    command = [*(building.compiler(portable=True) or ()), *target, *FLAGS, *linked, "-o", "type.wasm", "type.c"]
    subprocess.run(command, cwd=tmp_path, check=True, env={**os.environ, "ZIG_GLOBAL_CACHE_DIR": str(tmp_path)})
    weights = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0))
    weights[3, :256] = 0
    (tmp_path / "w").write_bytes(weights.numpy().tobytes())
    (tmp_path / "run.mjs").write_text(SCRIPT)
    size = type_.nbytes([ROWS, COLUMNS])
    arguments = ["type.wasm", "w", "blocks", "decoded", *map(str, (size, ROWS, COLUMNS, ROWS * COLUMNS // layout.weights))]
    subprocess.run(["node", "run.mjs", *arguments], cwd=tmp_path, check=True)
    fields = type_.encode(weights, "w")
    assert (tmp_path / "blocks").read_bytes() == type_.pack(fields).tobytes()
    found = np.frombuffer((tmp_path / "decoded").read_bytes(), np.float32)
    assert np.array_equal(found, type_.decode(fields, COLUMNS).ravel())
