"""On a GPU: decoders, products and packed layers."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from glft_schema.nn import Embedding, Experts, Linear
from glft_schema.storage.torch_tensors import as_tensor
from glft_schema.tensor_types import TensorType, on_torch, on_triton
from glft_schema.tensor_types.ggml import GGML_TYPES
from glft_schema.tensor_types.symmetric import Q4_PER_GROUP_64
from tests.scalar.sources import same_bits
from tests.tensor_types.packed_rows import TYPES, decoded, product

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
by_type = pytest.mark.parametrize("type_", TYPES, ids=str)


def packed_of(type_: TensorType, rows: int, columns: int) -> torch.Tensor:
    """Returns random weights, packed; random bytes with finite scales for types that need an
    importance to encode."""
    if not type_.needs_importance:
        weights = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)) / 32
        return as_tensor(np.ascontiguousarray(type_.pack(type_.encode(weights, "w"))))
    packed = torch.randint(0, 256, (rows, type_.nbytes([1, columns])), dtype=torch.uint8)
    packed.view(-1, type_.scalar_layout.offsets[-1])[:, :2] = torch.tensor([0.01], dtype=torch.float16).view(torch.uint8)
    return packed


@by_type
def test_decodes_to_the_bits_of_the_cpu(type_: TensorType) -> None:
    """In each dtype, and from random bytes that begin at any address; by kernels of Triton."""
    rows, columns = 501, 3 * type_.least_row if type_.least_row > 1 else 1023
    size = type_.nbytes([1, columns])
    for start, dtype in ((0, torch.float32), (0, torch.float16), (0, torch.bfloat16), (1, torch.float32), (2, torch.float64)):
        packed = torch.randint(0, 256, (rows, size), dtype=torch.uint8)
        memory = torch.zeros(rows * size + 16, dtype=torch.uint8, device="cuda")
        there = memory[start : start + rows * size].view(rows, size).copy_(packed)
        found = on_torch.decode_packed(type_, there, columns, torch.empty(rows, columns, dtype=dtype, device="cuda"))
        assert same_bits(found.cpu().double().numpy(), decoded(type_, packed, columns).to(dtype).double().numpy())
    assert all(kernel for key, kernel in on_triton._KERNELS.items() if key[0] == type_ and len(key) == 5)


@by_type
def test_products_are_those_of_decoded_weights(type_: TensorType) -> None:
    """By each method; none is refused, as a warning would say, which is an error here."""
    rows, columns = 100, 3 * type_.least_row if type_.least_row > 1 else 768
    packed = packed_of(type_, rows, columns)
    weights = decoded(type_, packed, columns).cuda()
    layer = Linear(columns, rows, type_, device="cuda")
    layer.weight.data.copy_(packed)
    for count, dtype in ((1, torch.bfloat16), (3, torch.float32), (16, torch.bfloat16), (17, torch.float16)):
        x = torch.randn(count, columns, dtype=dtype, device="cuda")
        expected = x.double() @ weights.double().T
        bound = on_triton.TOLERANCES[str(dtype).removeprefix("torch.")] * expected.norm()
        assert (layer(x).double() - expected).norm() < bound, count
        for method in [*(on_triton.SUMS if count <= 4 else ()), *(on_triton.DOTS if 1 < count <= 16 else ())]:
            found = product(type_, x, layer.weight.data, rows, method)
            assert (found.double() - expected).norm() < bound, (count, method)


@pytest.mark.parametrize("type_", [GGML_TYPES["Q4_K"], Q4_PER_GROUP_64], ids=str)
def test_layers_and_gradients_are_those_of_the_cpu(type_: TensorType) -> None:
    here = Linear(512, 256, type_, bias=True)
    here.set_weights(torch.randn(256, 512) / 16)
    there = copy.deepcopy(here).cuda()
    for rows in (1, 5, 100):
        x = torch.randn(rows, 512)
        inputs = x.clone().requires_grad_(), x.cuda().requires_grad_()
        results = [layer(one) for layer, one in zip((here, there), inputs, strict=True)]
        torch.testing.assert_close(results[1].cpu(), results[0], rtol=1e-4, atol=1e-4)
        for result in results:
            result.square().sum().backward()
        torch.testing.assert_close(inputs[1].grad.cpu(), inputs[0].grad, rtol=1e-4, atol=1e-3)
    compiled = torch.compile(there, fullgraph=True)
    torch.testing.assert_close(compiled(x.cuda()), there(x.cuda()))


def test_experts_and_embeddings() -> None:
    experts, rows = Experts((4, 64, 256), "Q4_K"), Embedding(1000, 256, "Q6_K")
    experts.set_weights(torch.randn(4, 64, 256))
    rows.set_weights(torch.randn(1000, 256))
    x, indices = torch.randn(2, 256), torch.tensor([[3, 999], [0, 3]])
    torch.testing.assert_close(copy.deepcopy(rows).cuda()(indices.cuda()).cpu(), rows(indices))
    torch.testing.assert_close(copy.deepcopy(experts).cuda()(x.cuda(), 2).cpu(), experts(x, 2), rtol=1e-4, atol=1e-3)


def test_a_graph_of_cuda_replays_a_layer() -> None:
    """After a first call of the shape, or of another, which is then decoded."""
    layer = Linear(512, 256, "Q4_K", device="cuda")
    layer.set_weights(torch.randn(256, 512) / 16)
    for count in (1, 2):
        x = torch.randn(count, 512, device="cuda")
        if count == 1:
            layer(x)
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            found = layer(x)
        graph.replay()
        torch.testing.assert_close(found, x @ layer.dequantize().T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("type_", [GGML_TYPES["Q4_K"], Q4_PER_GROUP_64], ids=str)
def test_encodes_tensors_of_a_gpu(type_: TensorType) -> None:
    weights = torch.randn(501, 1024, generator=torch.Generator().manual_seed(0))
    expected, found = type_.encode(weights, "w"), type_.encode(weights.cuda(), "w")
    assert all(np.array_equal(field, expected[name]) for name, field in found.items())
