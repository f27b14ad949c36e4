"""Kernels of the steps of encoders write the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from glft_schema import kernels
from glft_schema.tensor_types.engine import chunks, workers
from glft_schema.tensor_types.engine.steps import STEPS, step
from glft_schema.tensor_types.ggml import GGML_TYPES
from glft_schema.tensor_types.kernels import building, in_use
from glft_schema.tensor_types.kernels.building import build_step
from glft_schema.tensor_types.kernels.folder import Manifest, manifests
from glft_schema.tensor_types.kernels.in_use import MODE, Kernel

pytestmark = pytest.mark.full


@step
def scaled_sum(x: torch.Tensor, scale: torch.Tensor, least: torch.Tensor, *, factor: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns two tensors and replaces the third: sums of [rows, groups]."""
    total = (x * scale * factor).sum(0)
    least.copy_(torch.minimum(least, total))
    return total, (total > 0).to(torch.int8)


def test_a_step(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "_timed", lambda *_: {"numbers_per_second": 1, "times_as_fast": 2.0})  # of few numbers
    tensors = torch.randn(4, 9), torch.rand(9), torch.zeros(9)
    declared = STEPS["scaled_sum"]
    identity = declared.identity("factor 3, float32[4 n0], float32[n0], float32[n0]")
    manifest = build_step(folder, identity, declared.function, declared.last, tensors, {"factor": 3})
    assert manifest.library is not None, manifest.about
    used: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        run = Kernel.run
        patch.setattr(Kernel, "run", lambda self, given: used.append(given[0].shape[1]) or run(self, given))
        for groups in (2, 3, 1000):
            x, scale, least = torch.randn(4, groups), torch.rand(groups), torch.zeros(groups)
            expected = least.clone()
            results = declared.function(x, scale, expected, factor=3)
            found = scaled_sum(x, scale, least, factor=3)
            assert all(torch.equal(one, other) for one, other in zip((*results, expected), (*found, least), strict=True))
    assert used == [2, 3, 1000]
    assert in_use.find(identity._replace(variant="factor 4")) is None  # without a warning: no other kernel is stale
    kernel = in_use.find(identity)
    assert kernel
    x, scale, least = torch.randn(4, 9), torch.rand(9), torch.zeros(9)
    assert kernel.run([x, scale, least]) is not None
    for given in (
        [x[:, :1].contiguous(), scale[:1], least[:1]],
        [x.t().contiguous().t(), scale, least],
        [x, scale, scale],
        [x, scale[:8], least],
        [x.double(), scale, least],
        [x[:3].contiguous(), scale, least],
        [x, scale, least.clone().requires_grad_()],
        [x[0], scale, least],
        [x.to("meta"), scale, least],
    ):
        assert kernel.run(given) is None


def test_the_encoder_of_a_type(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first chunk runs in this thread, the others in two, since kernels ran in the first."""
    ((_, manifest),) = manifests(folder, "by_power")
    assert isinstance(manifest, Manifest)
    assert manifest.key["variant"] == "float32[n0 32]"
    monkeypatch.setattr(chunks, "CHUNK", 1 << 12)
    monkeypatch.setattr(chunks, "LEAST_CHUNK", 1 << 10)
    weights = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    weights[3, :64], weights[4, :32] = 0, 1e-30
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        workers.forget_threads()
        blocks = GGML_TYPES["MXFP4"].encode(weights, "w")["blocks"]
        assert 2 in workers._POOLS
        workers.forget_threads()
        monkeypatch.setenv(MODE, "off")
        for _ in range(2):
            assert torch.equal(GGML_TYPES["MXFP4"].encode(weights, "w")["blocks"], blocks)
            if workers._POOLS:  # once: the chunk before ran by kernels
                workers.forget_threads()
        assert not workers._POOLS
    finally:
        torch.set_num_threads(before)
    assert isinstance(in_use._LOADED[kernels._identity("by_power float32[n0 32]")], Kernel)
