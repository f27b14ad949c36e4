"""Damaged and contradictory composite weights: one line names the weight, the part and what was
expected of it. Nothing is read silently as something else."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import glft_schema as glft
from glft_schema.errors import FormatError, OptionError, TensorError
from tests.composites import packers
from tests.composites.packers import Tensors, text, write
from tests.tools.command_line import in_this_process

ROWS, COLUMNS, GROUPS = 32, 64, 2
E4M3, E8M0 = torch.float8_e4m3fn, torch.float8_e8m0fnu
CODES = np.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS) * 7 % 16
ZEROS = np.arange(ROWS * GROUPS).reshape(ROWS, GROUPS) % 5 + 6
SCALES = torch.linspace(0.01, 0.02, ROWS * GROUPS).reshape(ROWS, GROUPS).half()
BYTES = torch.from_numpy((CODES * 5 + 40).astype(np.uint8))
SMALL = torch.from_numpy((CODES[:, ::16] + 60).astype(np.uint8)).view(E4M3)  # scales of 16 columns
PAIRS = packers.nibbles(CODES)
ONE = torch.tensor([0.5])

CT: dict[str, Any] = {"num_bits": 4, "group_size": 32, "strategy": "group", "symmetric": True, "type": "int"}


def of_compressed_tensors(**weights: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": {**CT, **weights}}}
    return {"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups}}


def nested() -> Tensors:
    tensors = packers.nf4(CODES, torch.ones(32), nested_blocksize=8, nested_offset=0.25)
    tensors["X.weight.absmax"] = torch.arange(32, dtype=torch.uint8)
    return tensors | {
        "X.weight.nested_absmax": torch.linspace(0.1, 0.5, 4),
        "X.weight.nested_quant_map": torch.linspace(-1, 1, 256),
    }


SCHEMES: dict[str, tuple[Tensors, dict[str, Any]]] = {
    "gptq": (
        packers.gptq(CODES, ZEROS, SCALES),
        {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "gptq"}},
    ),
    "awq": (
        packers.awq(CODES, ZEROS, SCALES),
        {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}},
    ),
    "w4a16": (packers.packed(CODES, None, SCALES.bfloat16()), of_compressed_tensors()),
    "w4a16 asym": (packers.packed(CODES, ZEROS, SCALES.bfloat16()), of_compressed_tensors(symmetric=False)),
    "w8a8": (
        {"X.weight": BYTES.view(torch.int8), "X.weight_scale": SCALES, "X.weight_zero_point": torch.ones(ROWS, GROUPS).char()},
        of_compressed_tensors(num_bits=8),
    ),
    "mlx": (
        packers.mlx(CODES, SCALES, -SCALES * 8),
        {"quantization": {"group_size": 32, "bits": 4, "mode": "affine"}},
    ),
    "mlx nvfp4": (
        {"X.weight": PAIRS.view(torch.uint32), "X.scales": SMALL.view(torch.uint8), "X.global_scale": ONE[0]},
        {"quantization": {"group_size": 16, "bits": 4, "mode": "nvfp4"}},
    ),
    "fp8": (
        {"X.weight": BYTES.view(E4M3), "X.weight_scale_inv": torch.ones(2, 2)},
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [16, 32]}},
    ),
    "fp8 rows": ({"X.weight": BYTES.view(E4M3), "X.weight_scale": torch.ones(ROWS, 1)}, {}),
    "mxfp8": ({"X.weight": BYTES.view(E4M3), "X.weight_scale": BYTES[:, :GROUPS].contiguous()}, {}),
    "nvfp4": ({"X.weight": PAIRS, "X.weight_scale": SMALL, "X.weight_scale_2": ONE[0]}, {}),
    "nvfp4 packed": ({"X.weight_packed": PAIRS, "X.weight_scale": SMALL, "X.weight_global_scale": ONE}, {}),
    "mxfp4": ({"X.weight_packed": PAIRS, "X.weight_scale": BYTES[:, :GROUPS].contiguous()}, {}),
    "gpt-oss": ({"X_blocks": PAIRS.reshape(2, 16, 2, 16), "X_scales": BYTES[:, :GROUPS].reshape(2, 16, 2)}, {}),
    "nf4": (packers.nf4(CODES, torch.ones(32)), {"quantization_config": {"quant_method": "bitsandbytes"}}),
    "nested": (nested(), {"quantization_config": {"quant_method": "bitsandbytes"}}),
    "int8": (
        {"X.weight": BYTES.view(torch.int8), "X.SCB": torch.ones(ROWS), "X.weight_format": torch.tensor(0, dtype=torch.uint8)},
        {},
    ),
    "torchao": (
        {
            "X._weight_qdata": BYTES.view(torch.int8),
            "X._weight_scale": SCALES,
            "X._weight_zero_point": torch.ones(ROWS, GROUPS).char(),
        },
        {},
    ),
    "torchao nvfp4": (
        {"X._weight_qdata": PAIRS, "X._weight_scale": SMALL, "X._weight_per_tensor_scale": ONE[0]},
        {},
    ),
}  # fmt: skip


class Case(NamedTuple):
    """A fault.

    Attributes:
        scheme: what is damaged.
        change: damages tensors and the config's part in place.
        problem: a pattern of the end of the line.
    """

    scheme: str
    change: Callable[[Tensors, dict[str, Any]], object]
    problem: str


def without(part: str) -> Callable[[Tensors, dict[str, Any]], object]:
    return lambda tensors, config: tensors.pop(f"X{part}")


def with_(part: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors, dict[str, Any]], object]:
    """Returns a change of one part."""
    return lambda tensors, config: tensors.update({f"X{part}": change(tensors[f"X{part}"]).contiguous()})


def adding(part: str, tensor: torch.Tensor) -> Callable[[Tensors, dict[str, Any]], object]:
    return lambda tensors, config: tensors.update({f"X{part}": tensor})


def both(*changes: Callable[[Tensors, dict[str, Any]], object]) -> Callable[[Tensors, dict[str, Any]], object]:
    return lambda tensors, config: [change(tensors, config) for change in changes]


def saying(**facts: Any) -> Callable[[Tensors, dict[str, Any]], object]:
    """Returns a change of the config."""
    return lambda tensors, config: next(iter(config.values())).update(facts)


def grouped(**facts: Any) -> Callable[[Tensors, dict[str, Any]], object]:
    """Returns a change of the config's weights in compressed-tensors."""
    return lambda tensors, config: config["quantization_config"]["config_groups"]["group_0"]["weights"].update(facts)


def with_state(**facts: Any) -> Callable[[Tensors, dict[str, Any]], object]:
    """Returns a change of bitsandbytes' JSON."""
    name = ".weight.quant_state.bitsandbytes__nf4"
    return with_(name, lambda state: text(json.dumps({**json.loads(bytes(state)), **facts})))


def longer(tensor: torch.Tensor) -> torch.Tensor:
    return torch.cat((tensor, tensor[:1]))


def shorter(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:-1]


def transposed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.T


def number(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1)[0]


def empty(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:0]


def stacked(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[None]


def at(index: int, value: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: tensor.index_fill(0, torch.tensor([index]), value)


QUANT_STATE = ".weight.quant_state.bitsandbytes__nf4"
# fmt: off
CASES = {
    "gptq: no zero points": Case("gptq", without(".qzeros"), "GPTQ: expected qzeros beside qweight, found none"),
    "gptq: no scales": Case("gptq", without(".scales"), "GPTQ: expected scales beside qweight, found none"),
    "gptq: no codes": Case("gptq", without(".qweight"), "expected codes beside this part"),
    "gptq: scales transposed": Case("gptq", with_(".scales", transposed), "scales"),
    "gptq: zero points transposed": Case("gptq", with_(".qzeros", transposed), "qzeros"),
    "gptq: zero points packed down the groups": Case("gptq",
        with_(".qzeros", lambda _: packers.stream(ZEROS, 4).T), "expected codes beside this part"),
    "gptq: another group": Case("gptq", saying(group_size=16), "scales"),
    "gptq: one group": Case("gptq", saying(group_size=-1), "scales"),
    "gptq: other bits": Case("gptq", saying(bits=8), "expected codes of 8 bits"),
    "gptq: a huge group": Case("gptq", saying(group_size=1 << 70), "scales"),
    "gptq: unknown format": Case("gptq", saying(checkpoint_format="gptq_p"), "checkpoint_format"),
    "gptq: a checkpoint_format that is not text": Case("gptq", saying(checkpoint_format=["\x1b\n"]), "checkpoint_format"),
    "gptq: g_idx out of range": Case("gptq", with_(".g_idx", at(3, 2)), "g_idx"),
    "gptq: g_idx is negative": Case("gptq", with_(".g_idx", at(3, -1)), "g_idx"),
    "gptq: g_idx is short": Case("gptq", with_(".g_idx", shorter), "g_idx"),
    "gptq: g_idx of long integers": Case("gptq", with_(".g_idx", torch.Tensor.long), "g_idx"),
    "gptq: g_idx is a number": Case("gptq", with_(".g_idx", number), "g_idx"),
    "gptq: codes are short": Case("gptq", with_(".qweight", shorter), "g_idx as"),
    "gptq: codes of another dtype": Case("gptq", with_(".qweight", torch.Tensor.short), "expected codes beside this part"),
    "gptq: codes are a number": Case("gptq", with_(".qweight", number), "qweight"),
    "gptq: codes are stacked": Case("gptq", with_(".qweight", stacked), "qweight"),
    "gptq: scales are a number": Case("gptq", with_(".scales", number), "scales"),
    "gptq: scales are integers": Case("gptq", with_(".scales", torch.Tensor.int), "scales"),
    "gptq: no rows": Case("gptq",
        both(*(with_(part, lambda words: words[:, :0]) for part in (".qweight", ".qzeros", ".scales"))),
        "expected codes beside this part"),
    "gptq: zero points are empty": Case("gptq", with_(".qzeros", empty), "qzeros"),
    "gptq: rotated": Case("gptq", saying(transform_config={"config_groups": {"R1": {}}}), "transform_config"),
    "gptq: two names": Case("gptq",
        adding(".weight", torch.ones(ROWS, COLUMNS)), "the weight is stored twice"),
    "awq: another version": Case("awq", saying(version="GEMV"), "version"),
    "awq: no zero points": Case("awq", without(".qzeros"), "qzeros"),
    "awq: scales transposed": Case("awq", with_(".scales", transposed), "scales"),
    "awq: zero points transposed": Case("awq", with_(".qzeros", transposed), "qzeros"),
    "awq: another group": Case("awq", saying(group_size=64), "scales"),
    "awq: other bits": Case("awq", saying(bits=8), "bits"),
    "awq: a group for each column": Case("awq", adding(".g_idx", torch.zeros(COLUMNS).int()), "g_idx"),
    "w4a16: no scales": Case("w4a16", without(".weight_scale"), "weight_scale"),
    "w4a16: no shape": Case("w4a16", without(".weight_shape"), "weight_shape"),
    "w4a16: a negative shape": Case("w4a16", with_(".weight_shape", lambda shape: -shape), "weight_shape"),
    "w4a16: a huge shape": Case("w4a16", with_(".weight_shape", lambda shape: shape << 40), "weight_packed"),
    "w4a16: a shape of fewer columns": Case("w4a16",
        with_(".weight_shape", lambda shape: shape - torch.tensor([0, 32])), "weight_packed"),
    "w4a16: a shape of fewer rows": Case("w4a16",
        with_(".weight_shape", lambda shape: shape - torch.tensor([8, 0])), "weight_packed"),
    "w4a16: a shape of three": Case("w4a16", with_(".weight_shape", longer), "weight_shape"),
    "w4a16: scales transposed": Case("w4a16", with_(".weight_scale", transposed), "weight_scale"),
    "w4a16: another group": Case("w4a16", grouped(group_size=16), "weight_scale"),
    "w4a16: other bits": Case("w4a16", grouped(num_bits=8), "weight_packed"),
    "w4a16: codes stacked": Case("w4a16", with_(".weight_packed", stacked), "weight_packed"),
    "w4a16: codes are empty": Case("w4a16", with_(".weight_packed", empty), "weight_packed"),
    "w4a16: no codes": Case("w4a16", without(".weight_packed"), "expected codes beside this part"),
    "w4a16: scales without dims": Case("w4a16",
        both(with_(".weight_scale", number), adding(".weight_g_idx", torch.zeros(COLUMNS).int())), "weight_scale"),
    "w4a16: two names": Case("w4a16",
        adding(".weight", torch.ones(ROWS, COLUMNS)), "the weight is stored twice"),
    "w4a16: sparse": Case("w4a16", grouped(num_bits=12), "weight_packed"),
    "w4a16 asym: zero points packed along the rows": Case("w4a16 asym",
        with_(".weight_zero_point", lambda _: packers.stream(ZEROS, 4)), "weight_zero_point"),
    "w4a16 asym: zero points of bytes": Case("w4a16 asym",
        with_(".weight_zero_point", lambda _: torch.from_numpy(ZEROS).char()), "weight_zero_point"),
    "w8a8: zero points are short": Case("w8a8", with_(".weight_zero_point", shorter), "weight_zero_point"),
    "w8a8: one zero point": Case("w8a8", with_(".weight_zero_point", number), "weight_zero_point"),
    "w8a8: scales are stacked": Case("w8a8", with_(".weight_scale", stacked), "weight_scale"),
    "w8a8: no scales": Case("w8a8", without(".weight_scale"), "weight"),
    "mlx: no config": Case("mlx", lambda tensors, config: config.clear(), "group_size"),
    "mlx: a config without bits": Case("mlx", saying(bits=None), "bits"),
    "mlx: other bits": Case("mlx", saying(bits=8), "scales|weight"),
    "mlx: no such bits": Case("mlx", saying(bits=16), "bits"),
    "mlx: another group": Case("mlx", saying(group_size=64), "scales"),
    "mlx: no biases": Case("mlx", without(".biases"), "biases"),
    "mlx: no scales": Case("mlx", without(".scales"), "scales"),
    "mlx: biases are short": Case("mlx", with_(".biases", shorter), "biases"),
    "mlx: a row without dims": Case("mlx", with_(".weight", lambda codes: codes[0]), "weight"),
    "mlx: codes are a number": Case("mlx", with_(".weight", lambda codes: codes.reshape(-1)[0]), "weight"),
    "mlx: codes are empty": Case("mlx", with_(".weight", empty), "weight"),
    "mlx nvfp4: unknown mode": Case("mlx nvfp4", saying(mode="nvfp9"), "mode"),
    "mlx nvfp4: two global scales": Case("mlx nvfp4", with_(".global_scale", lambda scale: torch.ones(2)), "global_scale"),
    "mlx nvfp4: scales of 32 columns": Case("mlx nvfp4", with_(".scales", lambda scales: scales[:, ::2]), "scales"),
    "fp8: another block": Case("fp8", saying(weight_block_size=[32, 32]), "weight_scale_inv"),
    "fp8: a block without size": Case("fp8", saying(weight_block_size=[0, 32]), "weight_scale_inv"),
    "fp8: scales transposed": Case("fp8",
        both(saying(weight_block_size=[16, 16]), adding(".weight_scale_inv", torch.ones(4, 2))), "weight_scale_inv"),
    "fp8: a block that contradicts": Case("fp8",
        with_(".weight_scale_inv", lambda scales: torch.ones(ROWS, 1)), "weight_scale_inv"),
    "fp8: both kinds of scales": Case("fp8", adding(".weight_scale", torch.ones(ROWS, 1)), "weight_scale"),
    "fp8: no scales": Case("fp8", without(".weight_scale_inv"), "weight"),
    "fp8 rows: no codes": Case("fp8 rows", without(".weight"), "expected codes beside this part"),
    "fp8 rows: floats beside scales": Case("fp8 rows",
        adding(".weight", torch.ones(ROWS, COLUMNS)), "expected codes beside this part"),
    "fp8 rows: zero points": Case("fp8 rows", adding(".weight_zero_point", torch.ones(ROWS, 1).char()), "weight_zero_point"),
    "fp8 rows: scales for columns": Case("fp8 rows", with_(".weight_scale", lambda _: torch.ones(COLUMNS)), "weight_scale"),
    "fp8 rows: scales of bytes": Case("fp8 rows", with_(".weight_scale", lambda scales: scales.char()), "weight_scale"),
    "fp8 rows: codes without dims": Case("fp8 rows",
        both(with_(".weight", number), adding(".weight_scale", ONE)), "weight"),
    "fp8 rows: codes of a vector": Case("fp8 rows", with_(".weight", lambda codes: codes[0]), "weight"),
    "fp8 rows: codes are stacked": Case("fp8 rows", with_(".weight", stacked), "weight"),
    "fp8 rows: scales of 99 columns": Case("fp8 rows", with_(".weight_scale", lambda _: torch.ones(1, 99)), "weight_scale"),
    "fp8 rows: a stack of codes": Case("fp8 rows",
        both(adding(".up", torch.zeros(2, 4, 8, dtype=E4M3)), adding(".up_scale_inv", torch.ones(2, 1, 1))),
        "expected a known scheme, found a stack of codes with up_scale_inv"),
    "fp8 rows: ComfyUI's NVFP4": Case("fp8 rows", adding(".comfy_quant", text('{"format": "nvfp4"}')), "comfy_quant"),
    "int8: ComfyUI's rotation": Case("int8",
        adding(".comfy_quant", text('{"format": "int8_tensorwise", "convrot": true}')), "comfy_quant"),
    "fp8 rows: ComfyUI's settings are not JSON": Case("fp8 rows", adding(".comfy_quant", text("{")), "comfy_quant"),
    "nvfp4 packed: a divisor of 0": Case("nvfp4 packed",
        with_(".weight_global_scale", torch.zeros_like), "weight_global_scale"),
    "fp8 rows: no columns": Case("fp8 rows", with_(".weight", lambda codes: codes[:, :0]), "weight"),
    "fp8 rows: no rows": Case("fp8 rows",
        both(with_(".weight", empty), with_(".weight_scale", empty)), "weight"),
    "fp8 rows: scales are empty": Case("fp8 rows", with_(".weight_scale", empty), "weight_scale"),
    "fp8 rows: smoothed": Case("fp8 rows", adding(".pre_quant_scale", torch.ones(COLUMNS)), "pre_quant_scale"),
    "fp8 rows: low ranks beside": Case("fp8 rows", adding(".svdquant_lora_a", torch.ones(4, COLUMNS)), "svdquant_lora_a"),
    "mxfp8: scales of another group": Case("mxfp8", with_(".weight_scale", lambda scales: scales[:, :1]), "weight_scale"),
    "nvfp4: codes without dims": Case("nvfp4", with_(".weight", number), "weight"),
    "nvfp4: two tensor scales": Case("nvfp4", with_(".weight_scale_2", lambda _: torch.ones(2)), "weight_scale_2"),
    "nvfp4: scales of 32 columns": Case("nvfp4", with_(".weight_scale", lambda scales: scales[:, :2]), "weight_scale"),
    "nvfp4: scales of floats": Case("nvfp4", with_(".weight_scale", torch.Tensor.float), "weight_scale"),
    "nvfp4: no scales": Case("nvfp4", without(".weight_scale"), "weight_scale"),
    "nvfp4: no codes": Case("nvfp4", without(".weight"), "expected codes beside this part"),
    "nvfp4 packed: no tensor scale": Case("nvfp4 packed", without(".weight_global_scale"), "weight_scale"),
    "nvfp4 packed: two names": Case("nvfp4 packed",
        adding(".weight", torch.ones(ROWS, COLUMNS)), "the weight is stored twice"),
    "mxfp4: swizzled": Case("mxfp4", with_(".weight_scale", lambda _: torch.zeros(32, 16).byte()), "weight_scale"),
    "mxfp4: no scales": Case("mxfp4", without(".weight_scale"), "weight_scale"),
    "gpt-oss: blocks of 8 bytes": Case("gpt-oss", with_("_blocks", lambda blocks: blocks[..., :8]), "blocks"),
    "gpt-oss: blocks in one dim": Case("gpt-oss", with_("_blocks", torch.Tensor.flatten), "blocks"),
    "gpt-oss: scales of another shape": Case("gpt-oss", with_("_scales", shorter), "scales"),
    "nf4: no state": Case("nf4", without(QUANT_STATE), "expected codes beside this part"),
    "nf4: no map": Case("nf4", without(".weight.quant_map"), "quant_map"),
    "nf4: no scales": Case("nf4", without(".weight.absmax"), "absmax"),
    "nf4: no codes": Case("nf4", without(".weight"), "expected codes beside this part"),
    "nf4: state ends early": Case("nf4", with_(QUANT_STATE, lambda state: state[:-8]), "quant_state"),
    "nf4: state is not text": Case("nf4", with_(QUANT_STATE, lambda state: state | 128), "quant_state"),
    "nf4: state is a list": Case("nf4", with_(QUANT_STATE, lambda state: text("[]")), "quant_state"),
    "nf4: state is nested deeply": Case("nf4", with_(QUANT_STATE, lambda state: text("[" * 100_000)), "quant_state"),
    "nf4: an infinite shape": Case("nf4",
        with_(QUANT_STATE, lambda state: text('{"shape": [1e999, 2], "blocksize": 64}')), "quant_state"),
    "nf4: a huge shape": Case("nf4", with_state(shape=[1 << 60, 1 << 60]), "weight"),
    "nf4: a shape of too many": Case("nf4", with_state(shape=[ROWS, 2 * COLUMNS]), "weight"),
    "nf4: a shape of columns": Case("nf4", with_state(shape=[ROWS * COLUMNS]), "quant_state"),
    "nf4: no shape": Case("nf4", with_state(shape=[]), "quant_state"),
    "nf4: a negative shape": Case("nf4", with_state(shape=[-32, -64]), "quant_state"),
    "nf4: blocks without size": Case("nf4", with_state(blocksize=0), "quant_state"),
    "nf4: another block size": Case("nf4", with_state(blocksize=128), "absmax"),
    "nf4: a huge block size": Case("nf4", with_state(blocksize=1 << 80), "absmax"),
    "nf4: another map": Case("nf4", with_(".weight.quant_map", lambda values: values * 2), "quant_map"),
    "nf4: map is short": Case("nf4", with_(".weight.quant_map", shorter), "quant_map"),
    "nf4: absmax is short": Case("nf4", with_(".weight.absmax", shorter), "absmax"),
    "nf4: absmax of bytes": Case("nf4", with_(".weight.absmax", torch.Tensor.byte), "absmax"),
    "nested: no map": Case("nested", without(".weight.nested_quant_map"), "nested_quant_map"),
    "nested: no scales": Case("nested", without(".weight.nested_absmax"), "expected codes beside this part"),
    "nested: scales are short": Case("nested", with_(".weight.nested_absmax", shorter), "nested_absmax"),
    "nested: no block size": Case("nested", with_state(nested_blocksize=0), "quant_state"),
    "int8: no scales": Case("int8", without(".SCB"), "weight_format|weight"),
    "int8: scales are short": Case("int8", with_(".SCB", shorter), "SCB"),
    "int8: another layout": Case("int8",
        with_(".weight_format", lambda _: torch.tensor(2, dtype=torch.uint8)), "weight_format"),
    "int8: no layout in it": Case("int8", with_(".weight_format", lambda _: torch.zeros(0).byte()), "weight_format"),
    "int8: codes without dims": Case("int8",
        both(with_(".weight", number), adding(".SCB", ONE)), "weight"),
    "torchao: no scales": Case("torchao", without("._weight_scale"), "scale"),
    "torchao: no codes": Case("torchao", without("._weight_qdata"), "expected codes beside this part"),
    "torchao: zero points are short": Case("torchao", with_("._weight_zero_point", shorter), "zero_point"),
    "torchao nvfp4: swizzled": Case("torchao nvfp4", with_("._weight_scale", lambda _: torch.zeros(32, 16).to(E4M3)), "scale"),
    "torchao nvfp4: no tensor scale": Case("torchao nvfp4", without("._weight_per_tensor_scale"), "scale"),
}
# fmt: on


def broken(folder: Path, case: Case) -> Path:
    tensors, config = copy.deepcopy(SCHEMES[case.scheme])
    tensors |= {"norm.weight": torch.ones(8), "steps": torch.ones(2).char()}  # integers: a file that may have codes
    case.change(tensors, config)
    return write(folder, tensors, config)


def message(work: Callable[[], object]) -> str:
    """Returns the error of a call."""
    with pytest.raises((TensorError, FormatError, OptionError)) as raised:
        work()
    return str(raised.value)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_the_cases_damage_is_read(scheme: str, tmp_path: Path) -> None:
    tensors, config = SCHEMES[scheme]
    path = write(tmp_path, tensors, config)
    (values,) = glft.load_file(path).values()
    assert values.numel() == ROWS * COLUMNS
    assert values.isfinite().all()
    assert in_this_process("verify", "--values", path).returncode == 0


@pytest.mark.parametrize("name", CASES)
def test_a_fault_is_one_line(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    path, out = broken(tmp_path, case), tmp_path / "out.gguf"
    line = rf"tensor 'X\b[^\n]*\b({case.problem})[^\n]*"
    for work in (partial(glft.load_file, path), partial(glft.convert, path, out)):
        assert re.fullmatch(line, message(work))
    assert not out.exists()
    done = in_this_process("verify", "--values", path)
    assert done.returncode == 2
    assert re.fullmatch(rf"glft: {re.escape(str(path))}: {line}", done.stderr.strip())


def test_all_fields_of_all_parts_are_copied_as_stored(tmp_path: Path) -> None:
    """Also those of weights that cannot be read."""
    path = broken(tmp_path, CASES["gptq: no zero points"])
    glft.convert(path, out := tmp_path / "out.safetensors", as_stored=True)
    with glft.open(path) as file, glft.open(out) as copied:
        assert {*file.tensors} == {*copied.tensors} == {"X.qweight", "X.scales", "X.g_idx", "norm.weight", "steps"}


def test_a_single_fault_leaves_the_other_weights(tmp_path: Path) -> None:
    path = broken(tmp_path, CASES["fp8 rows: smoothed"])
    with glft.open(path) as file:
        assert torch.equal(file.get_tensor("norm.weight"), torch.ones(8))
        assert "X.weight" in file.weights
        with pytest.raises(TensorError, match="pre_quant_scale"):
            file.get_tensor("X.weight")
        with pytest.raises(KeyError):
            file.get_tensor("Y.weight")
    done = in_this_process("inspect", path)
    assert done.returncode == 0
    assert "tensor 'X.weight': FP8: weights with pre_quant_scale are not supported" in done.stdout


NOT_FINITE = {  # changes after which values are not finite: where verify finds them
    "gptq": (with_(".scales", lambda scales: scales.index_fill(0, torch.tensor([1]), torch.nan)), "scales"),
    "w4a16": (with_(".weight_scale", lambda scales: scales.index_fill(0, torch.tensor([1]), torch.inf)), "scales"),
    "mlx": (with_(".biases", lambda biases: biases.index_fill(0, torch.tensor([1]), torch.nan)), "biases"),
    "fp8": (with_(".weight_scale_inv", lambda scales: scales * torch.nan), "scales"),
    "fp8 rows": (with_(".weight_scale", lambda scales: scales * torch.inf), "scales"),
    "nvfp4": (with_(".weight_scale_2", lambda scale: scale * torch.nan), "factors"),
    "nvfp4 packed": (
        with_(".weight_scale", lambda scales: torch.full_like(scales.view(torch.uint8), 127).view(E4M3)),
        "scales",
    ),
    "nf4": (with_(".weight.absmax", lambda absmax: absmax * torch.nan), "scales"),
    "nested": (with_(".weight.nested_absmax", lambda absmax: absmax * torch.inf), "scales"),
    "int8": (with_(".SCB", lambda scales: scales * torch.inf), "scales"),
    "torchao": (with_("._weight_scale", lambda scales: scales * torch.nan), "scales"),
}


@pytest.mark.parametrize("scheme", NOT_FINITE)
def test_scales_that_are_not_finite_are_found(scheme: str, tmp_path: Path) -> None:
    change, field = NOT_FINITE[scheme]
    path = broken(tmp_path, Case(scheme, change, ""))
    assert not glft.load_file(path)["X.weight"].isfinite().all()
    done = in_this_process("verify", "--values", path)
    assert done.returncode == 1
    assert re.search(rf"X\.weight +{field} +(NaN|infinit)", done.stdout)


def test_codes_that_are_nan_are_found(tmp_path: Path) -> None:
    """E4M3 has two such codes."""
    codes = with_(".weight", lambda codes: codes.view(torch.uint8).index_fill(0, torch.tensor([3]), 255).view(E4M3))
    path = broken(tmp_path, Case("fp8 rows", codes, ""))
    assert glft.load_file(path)["X.weight"][3].isnan().all()
    assert in_this_process("verify", "--values", path).returncode == 1
