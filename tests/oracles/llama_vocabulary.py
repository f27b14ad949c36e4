"""llama.cpp's tokenizers as an oracle: a file is loaded without its tensors, in this process."""

from __future__ import annotations

import ctypes
from pathlib import Path

from tests.oracles.llama_cpp import Opaque, library, silent

VOCAB_ONLY = 9 * 64  # bit of `vocab_only` in ``llama_model_params``


class LlamaVocabulary:
    """The vocabulary of a GGUF file as llama.cpp reads it. A context manager."""

    def __init__(self, path: Path) -> None:
        self._c = c = library()
        c.llama_log_set(silent, None)
        c.llama_model_default_params.restype = Opaque
        for name in ("llama_model_load_from_file", "llama_model_get_vocab"):
            getattr(c, name).restype = ctypes.c_void_p
        c.llama_model_load_from_file.argtypes = ctypes.c_char_p, Opaque
        c.llama_model_free.argtypes = c.llama_model_get_vocab.argtypes = (ctypes.c_void_p,)
        options = c.llama_model_default_params()
        options.words[VOCAB_ONLY // 64] |= 1
        self._model = c.llama_model_load_from_file(bytes(path), options)
        assert self._model, f"llama.cpp cannot load {path}"
        self._vocab = ctypes.c_void_p(c.llama_model_get_vocab(self._model))
        self.bos, self.eos = c.llama_vocab_bos(self._vocab), c.llama_vocab_eos(self._vocab)
        self.size = c.llama_vocab_n_tokens(self._vocab)

    def __enter__(self) -> LlamaVocabulary:
        return self

    def __exit__(self, *error: object) -> None:
        self._c.llama_model_free(self._model)

    def tokens(self, text: str, *, ends: bool = False, special: bool = True) -> list[int]:
        """Returns the tokens of a text.

        Args:
            text: the text.
            ends: add the tokens that begin and end it.
            special: read the texts of special tokens as these tokens.
        """
        stored = text.encode()
        room = (ctypes.c_int32 * (len(stored) + 9))()
        flags = ctypes.c_bool(ends), ctypes.c_bool(special)
        count = self._c.llama_tokenize(self._vocab, stored, len(stored), room, len(room), *flags)
        assert count >= 0
        return list(room[:count])
