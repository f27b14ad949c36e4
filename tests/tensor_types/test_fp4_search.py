"""The encoders of NVFP4 and MXFP4 that search, against all scales in float64."""

from __future__ import annotations

import numpy as np
import pytest

from glft_schema.errors import TensorError
from glft_schema.tensor_types.ggml import GGML_TYPES
from tests.oracles import llama_cpp

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
E4M3 = np.array([(m / 8 if e == 0 else 1 + m / 8) * 2.0 ** (max(e, 1) - 7) for e in range(16) for m in range(8)][:127])
E8M0 = 2.0 ** np.arange(-127, 128)
GROUPS = {"NVFP4": (16, E4M3), "MXFP4": (32, E8M0)}  # weights that share a scale, and all scales
by_name = pytest.mark.parametrize("name", GROUPS)


def weights_of(kind: str, name: str) -> np.ndarray:
    """Returns f32[40, 640] of a distribution, in the range of the type's scales."""
    random = np.random.default_rng(3)
    drawn = {
        "normal": random.normal(size=(40, 640)),
        "heavy": random.standard_t(2, (40, 640)),
        "uniform": random.uniform(-1, 1, (40, 640)),
        "sparse": random.normal(size=(40, 640)) * (random.random((40, 640)) < 0.1),
        "of many sizes": random.normal(size=(40, 640)) * 2.0 ** random.integers(-7, 5, (40, 1)),
    }[kind]
    return np.clip(drawn, -2000, 2000).astype(np.float32)


def least_errors(name: str, weights: np.ndarray, importance: np.ndarray) -> np.ndarray:
    """Returns the least sum of importance * error^2 in each group, of all scales, f64[groups]."""
    size, scales = GROUPS[name]
    x, counts = weights.astype(np.float64).reshape(-1, size), np.tile(importance, len(weights)).reshape(-1, size)
    best = (counts * x**2).sum(1)  # of zeros
    near = np.abs(np.log2(scales[scales > 0, None]) - np.log2(np.maximum(abs(x).max(1), 1e-30))) < 14
    for scale, groups in zip(scales[scales > 0], near, strict=True):
        given = abs(x[groups]) / scale
        nearest = E2M1[abs(given[..., None] - E2M1).argmin(-1)]
        best[groups] = np.minimum(best[groups], (counts[groups] * (scale * (nearest - given)) ** 2).sum(1))
    return best


def errors(name: str, weights: np.ndarray, importance: np.ndarray | None, search: bool) -> np.ndarray:
    """Returns the sum of importance * error^2 in each group, as llama.cpp decodes."""
    type_ = GGML_TYPES[name]
    blocks = type_.encode(weights, "w", importance=importance if search else None, search=search)
    decoded = llama_cpp.dequantize(name, blocks["blocks"].reshape(-1, type_.block.sizeof()), type_.least_row)
    wrong = (decoded.reshape(weights.shape).astype(np.float64) - weights) ** 2
    return (wrong * (1 if importance is None else importance)).reshape(-1, GROUPS[name][0]).sum(1)


@pytest.mark.filterwarnings("ignore::glft_schema.errors.QuantizationWarning")
@by_name
@pytest.mark.parametrize("kind", ["normal", "heavy", "uniform", "sparse", "of many sizes"])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_error_is_the_least_of_all_scales(name: str, kind: str, weighted: bool) -> None:
    """If weights far from zero have little importance, a scale far below those tried may be better:
    of a heavy distribution, the sum of errors is then 4 % above the least one."""
    weights = weights_of(kind, name)
    importance = np.random.default_rng(4).random(640, np.float32) ** 4 * 9 if weighted else None
    found, plain = errors(name, weights, importance, True), errors(name, weights, importance, False)
    least = least_errors(name, weights, np.ones(640) if importance is None else importance)
    assert (least <= found * (1 + 1e-5) + 1e-30).all()
    assert (found <= plain * (1 + 1e-5)).all()
    assert found.sum() <= least.sum() * (1.0005 if not weighted else 1.05 if kind == "heavy" else 1.005)


@by_name
def test_without_a_request_an_importance_changes_no_byte(name: str) -> None:
    type_, weights = GGML_TYPES[name], weights_of("normal", name)
    importance = np.random.default_rng(4).random(640, np.float32)
    plain, given = type_.encode(weights, "w"), type_.encode(weights, "w", importance=importance)
    assert np.array_equal(plain["blocks"], given["blocks"])
    assert not type_.takes_importance
    assert not np.array_equal(plain["blocks"], type_.encode(weights, "w", search=True)["blocks"])


@by_name
def test_an_importance_of_equal_columns_is_none(name: str) -> None:
    type_, weights = GGML_TYPES[name], weights_of("normal", name)
    plain = type_.encode(weights, "w", search=True)
    for size in (1e-3, 1.0, 1024.0):
        given = type_.encode(weights, "w", importance=np.full(640, size, np.float32), search=True)
        assert np.array_equal(plain["blocks"], given["blocks"])


@by_name
def test_each_matrix_of_a_stack_has_its_importance(name: str) -> None:
    type_, stack = GGML_TYPES[name], weights_of("normal", name).reshape(4, 10, 640)
    importance = np.random.default_rng(4).random((4, 640), np.float32)
    found = type_.encode(stack, "w", importance=importance, search=True)["blocks"].reshape(40, -1)
    alone = [type_.encode(one, "w", importance=row, search=True)["blocks"] for one, row in zip(stack, importance, strict=True)]
    assert np.array_equal(found, np.concatenate(alone).reshape(40, -1))


@by_name
def test_columns_without_importance_or_with_too_much_get_ggmls_scale(name: str) -> None:
    """The sums of all scales are equal then: 0, or infinite."""
    type_, weights = GGML_TYPES[name], weights_of("normal", name) * 64
    for count in (0, 3e38):
        found = type_.encode(weights, "w", importance=np.full(640, count, np.float32), search=True)
        assert np.array_equal(found["blocks"], type_.encode(weights, "w")["blocks"])


@by_name
@pytest.mark.parametrize("size", [0, 1e-45, 1e-40, 1e-38, 1e-30, 1e30, 3e38])
@pytest.mark.filterwarnings("ignore::glft_schema.errors.QuantizationWarning")
def test_weights_of_all_sizes(name: str, size: float) -> None:
    """No search is worse than ggml's scale, whatever overflows or becomes zero. NVFP4 refuses
    weights above 2688."""
    type_ = GGML_TYPES[name]
    weights = (np.random.default_rng(0).uniform(-1, 1, (4, 640)) * size).astype(np.float32)
    if name == "NVFP4" and size > 2688:
        with pytest.raises(TensorError, match="weights are too large for the scale of their block"):
            type_.encode(weights, "w", search=True)
        return
    found, plain = (
        np.square(type_.decode(type_.encode(weights, "w", search=search), 640).astype(np.float64) - weights).sum(1)
        for search in (True, False)
    )
    assert (found <= plain * (1 + 1e-5)).all()
    assert np.isfinite(found).all()


@by_name
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_and_infinities_are_refused(name: str, bad: float) -> None:
    weights = weights_of("normal", name)
    weights[3, 5] = bad
    with pytest.raises(TensorError, match=r"tensor 'w' at \[3, 5\]: NaN and infinities cannot be quantized"):
        GGML_TYPES[name].encode(weights, "w", search=True)


@by_name
def test_without_the_library_the_bytes_are_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    type_, weights = GGML_TYPES[name], weights_of("heavy", name)
    importance = np.random.default_rng(4).random(640, np.float32)
    compiled = type_.encode(weights, "w", importance=importance, search=True)["blocks"]
    monkeypatch.setenv("GLFT_LIBRARY", "off")
    assert np.array_equal(type_.encode(weights, "w", importance=importance, search=True)["blocks"], compiled)
