"""llama.cpp as an oracle of whole models: tokens, logits and embeddings, in this process."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np

from tests.oracles.llama_cpp import Loaded

F32, I32 = 0, 26  # ggml_type
NO_FLASH = 0  # llama_flash_attn_type
RANK = 4  # llama_pooling_type


class TensorHeader(ctypes.Structure):
    """``ggml_tensor`` of ggml.h."""


TensorHeader._fields_ = (
    ("type", ctypes.c_int),
    ("buffer", ctypes.c_void_p),
    ("ne", ctypes.c_int64 * 4),
    ("nb", ctypes.c_size_t * 4),
    ("op", ctypes.c_int),
    ("op_params", ctypes.c_int32 * 16),
    ("flags", ctypes.c_int32),
    ("src", ctypes.POINTER(TensorHeader) * 10),
    ("view_src", ctypes.c_void_p),
    ("view_offs", ctypes.c_size_t),
    ("data", ctypes.c_void_p),
    ("name", ctypes.c_char * 64),
)
EVALUATED = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.POINTER(TensorHeader), ctypes.c_bool, ctypes.c_void_p)


class ContextOptions(ctypes.Structure):
    """``llama_context_params`` of llama.h, up to the types of the cache."""

    _fields_ = (
        ("sizes", ctypes.c_uint32 * 7),
        ("threads", ctypes.c_int32 * 2),
        ("kinds", ctypes.c_int * 4),
        ("flash", ctypes.c_int),
        ("rope", ctypes.c_float * 6),
        ("context", ctypes.c_uint32),
        ("defrag", ctypes.c_float),
        ("evaluated", EVALUATED),
        ("user_data", ctypes.c_void_p),
        ("type_k", ctypes.c_int),
        ("type_v", ctypes.c_int),
        ("rest", ctypes.c_uint64 * 50),
    )


class Batch(ctypes.Structure):
    """``llama_batch`` of llama.h."""

    _fields_ = (("n_tokens", ctypes.c_int32), *((name, ctypes.c_void_p) for name in ("token", "embd", "pos", "n", "id", "out")))


class LlamaModel(Loaded):
    """A model that computes. A context manager.

    Args:
        path: of the GGUF file.
        exact: keep keys and values in float32, and record the products of matrices in `products`.
    """

    def __init__(self, path: Path, exact: bool = False) -> None:
        super().__init__(path)
        c = self._c
        c.llama_context_default_params.restype, c.llama_batch_get_one.restype = ContextOptions, Batch
        c.llama_init_from_model.restype = c.llama_get_memory.restype = c.llama_get_logits.restype = ctypes.c_void_p
        c.llama_init_from_model.argtypes = ctypes.c_void_p, ContextOptions
        c.llama_free.argtypes = c.llama_model_n_embd.argtypes = (ctypes.c_void_p,)
        c.llama_decode.argtypes = c.llama_encode.argtypes = ctypes.c_void_p, Batch
        c.llama_get_logits_ith.argtypes = c.llama_get_embeddings_seq.argtypes = ctypes.c_void_p, ctypes.c_int32
        c.llama_set_embeddings.argtypes = ctypes.c_void_p, ctypes.c_bool
        c.llama_get_logits_ith.restype = c.llama_get_embeddings_seq.restype = ctypes.POINTER(ctypes.c_float)
        options = c.llama_context_default_params()
        assert (options.type_k, options.type_v, options.defrag) == (1, 1, -1.0)
        if exact:
            self.products: list[tuple[str, np.ndarray, np.ndarray | None]] = []
            self._kept_callback = options.evaluated = EVALUATED(self._record)
            options.flash, options.type_k, options.type_v = NO_FLASH, F32, F32
        self._context = c.llama_init_from_model(self._model, options)

    def __exit__(self, *error: object) -> None:
        self._c.llama_free(self._context)
        super().__exit__(*error)

    def tokens(self, text: str, special: bool = True) -> list[int]:  # type: ignore[override]
        """Returns the tokens of a text; if `special`, with those that begin and end it."""
        return super().tokens(text, ends=special)

    def logits(self, tokens: list[int]) -> np.ndarray:
        """Returns f32[tokens of the vocabulary], the logits after the last token."""
        assert self._c.llama_decode(self._context, self._batch(tokens)) == 0
        found = self._c.llama_get_logits_ith(self._context, -1)
        return np.ctypeslib.as_array(found, (self._c.llama_vocab_n_tokens(self._vocab),)).copy()

    def all_logits(self, tokens: list[int]) -> np.ndarray:
        """Returns f32[tokens, vocabulary], the logits after each token of a new context."""
        c = self._c
        if memory := c.llama_get_memory(ctypes.c_void_p(self._context)):
            c.llama_memory_clear(ctypes.c_void_p(memory), ctypes.c_bool(True))
        batch, flags = self._batch(tokens), (ctypes.c_int8 * len(tokens))(*[1] * len(tokens))
        batch.out = ctypes.addressof(flags)
        assert c.llama_decode(self._context, batch) == 0
        found = ctypes.cast(c.llama_get_logits(ctypes.c_void_p(self._context)), ctypes.POINTER(ctypes.c_float))
        if not found:  # of a model without an output
            return np.zeros((0, 0), np.float32)
        return np.ctypeslib.as_array(found, (len(tokens), c.llama_vocab_n_tokens(self._vocab))).copy()

    def _record(self, pointer: object, ask: bool, user: object) -> bool:
        """Records the second operand of a product, and the experts of its rows."""
        tensor = pointer.contents  # type: ignore[attr-defined]
        name = tensor.src[0].contents.name.decode() if tensor.src[0] else ""
        wanted = name.endswith(".weight") and bool(tensor.src[1]) and tensor.src[1].contents.type == F32
        if not wanted or ask:
            return wanted
        chosen = tensor.src[2].contents if tensor.src[2] else None
        experts = _values(chosen) if chosen is not None and chosen.type == I32 else None
        self.products.append((name, _values(tensor.src[1].contents), experts))
        return True

    def apply(self, adapter: Path) -> None:
        """Applies a LoRA adapter to what follows, with a scale of 1."""
        c = self._c
        loaded = c.llama_adapter_lora_init(self._model, bytes(adapter))
        assert loaded, f"llama.cpp cannot load {adapter}"
        adapters, scales = (ctypes.c_void_p * 1)(loaded), (ctypes.c_float * 1)(1.0)
        assert c.llama_set_adapters_lora(ctypes.c_void_p(self._context), adapters, ctypes.c_size_t(1), scales) == 0

    def embedding(self, tokens: list[int]) -> np.ndarray:
        """Returns f32[columns], the pooled embedding of a text, or f32[labels], its scores."""
        self._encode(tokens)
        found = self._c.llama_get_embeddings_seq(self._context, 0)
        is_scored = self._c.llama_pooling_type(ctypes.c_void_p(self._context)) == RANK
        size = self._c.llama_model_n_cls_out if is_scored else self._c.llama_model_n_embd
        return np.ctypeslib.as_array(found, (size(ctypes.c_void_p(self._model)),)).copy()

    def embeddings(self, tokens: list[int]) -> np.ndarray:
        """Returns f32[tokens, columns], the embedding of each token of a model without pooling."""
        self._encode(tokens)
        self._c.llama_get_embeddings.restype = ctypes.POINTER(ctypes.c_float)
        found = self._c.llama_get_embeddings(ctypes.c_void_p(self._context))
        return np.ctypeslib.as_array(found, (len(tokens), self._c.llama_model_n_embd(self._model))).copy()

    def _encode(self, tokens: list[int]) -> None:
        self._c.llama_set_embeddings(self._context, True)
        assert self._c.llama_encode(self._context, self._batch(tokens)) == 0

    def _batch(self, tokens: list[int]) -> Batch:
        self._kept = (ctypes.c_int32 * len(tokens))(*tokens)
        return self._c.llama_batch_get_one(self._kept, ctypes.c_int32(len(tokens)))


def _values(tensor: TensorHeader) -> np.ndarray:
    """Returns the values of a tensor of four bytes each, in torch's order of dims."""
    shape, strides = tuple(tensor.ne)[::-1], tuple(tensor.nb)[::-1]
    span = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 4
    stored = np.frombuffer(ctypes.string_at(tensor.data, span), np.float32 if tensor.type == F32 else np.int32)
    return np.lib.stride_tricks.as_strided(stored, shape, strides).copy()
