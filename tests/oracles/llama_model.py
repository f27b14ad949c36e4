"""llama.cpp as an oracle of whole models: tokens, logits and embeddings, in this process."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np

from tests.oracles.llama_cpp import Opaque, library, silent


class Batch(ctypes.Structure):
    """``llama_batch`` of llama.h."""

    _fields_ = (("n_tokens", ctypes.c_int32), *((name, ctypes.c_void_p) for name in ("token", "embd", "pos", "n", "id", "out")))


class LlamaModel:
    """A model that llama.cpp has loaded. A context manager.

    Args:
        path: of the GGUF file.
    """

    def __init__(self, path: Path) -> None:
        self._c = c = library()
        c.llama_log_set(silent, None)
        for name in ("llama_model_default_params", "llama_context_default_params"):
            getattr(c, name).restype = Opaque
        c.llama_batch_get_one.restype = Batch
        for name in ("llama_model_load_from_file", "llama_init_from_model", "llama_model_get_vocab"):
            getattr(c, name).restype = ctypes.c_void_p
        c.llama_model_load_from_file.argtypes = ctypes.c_char_p, Opaque
        c.llama_init_from_model.argtypes = ctypes.c_void_p, Opaque
        c.llama_model_free.argtypes = c.llama_free.argtypes = c.llama_model_get_vocab.argtypes = (ctypes.c_void_p,)
        c.llama_vocab_n_tokens.argtypes = c.llama_model_n_embd.argtypes = (ctypes.c_void_p,)
        c.llama_decode.argtypes = c.llama_encode.argtypes = ctypes.c_void_p, Batch
        c.llama_get_logits_ith.argtypes = ctypes.c_void_p, ctypes.c_int32
        c.llama_get_embeddings_seq.argtypes = ctypes.c_void_p, ctypes.c_int32
        c.llama_set_embeddings.argtypes = ctypes.c_void_p, ctypes.c_bool
        c.llama_get_logits_ith.restype = c.llama_get_embeddings_seq.restype = ctypes.POINTER(ctypes.c_float)
        self._model = c.llama_model_load_from_file(bytes(path), c.llama_model_default_params())
        assert self._model, f"llama.cpp cannot load {path}"
        self._context = c.llama_init_from_model(self._model, c.llama_context_default_params())
        self._vocab = c.llama_model_get_vocab(self._model)

    def __enter__(self) -> LlamaModel:
        return self

    def __exit__(self, *error: object) -> None:
        self._c.llama_free(self._context)
        self._c.llama_model_free(self._model)

    def tokens(self, text: str, special: bool = True) -> list[int]:
        """Returns the tokens of a text; if `special`, with those that begin and end it."""
        stored, room = text.encode(), (ctypes.c_int32 * 1000)()
        flags = ctypes.c_bool(special), ctypes.c_bool(True)
        count = self._c.llama_tokenize(ctypes.c_void_p(self._vocab), stored, len(stored), room, len(room), *flags)
        assert count >= 0
        return list(room[:count])

    def logits(self, tokens: list[int]) -> np.ndarray:
        """Returns f32[tokens of the vocabulary], the logits after the last token."""
        assert self._c.llama_decode(self._context, self._batch(tokens)) == 0
        return np.ctypeslib.as_array(
            self._c.llama_get_logits_ith(self._context, -1), (self._size("llama_vocab_n_tokens", self._vocab),)
        ).copy()

    def embedding(self, tokens: list[int]) -> np.ndarray:
        """Returns f32[columns], the pooled embedding of a text."""
        self._c.llama_set_embeddings(self._context, True)
        assert self._c.llama_encode(self._context, self._batch(tokens)) == 0
        return np.ctypeslib.as_array(
            self._c.llama_get_embeddings_seq(self._context, 0), (self._size("llama_model_n_embd", self._model),)
        ).copy()

    def _batch(self, tokens: list[int]) -> Batch:
        self._kept = (ctypes.c_int32 * len(tokens))(*tokens)
        return self._c.llama_batch_get_one(self._kept, ctypes.c_int32(len(tokens)))

    def _size(self, function: str, of: int) -> int:
        return int(getattr(self._c, function)(of))

    def _array(self, numbers: object, count: int) -> np.ndarray:
        return np.ctypeslib.as_array(numbers, (count,)).copy()
