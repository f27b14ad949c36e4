"""llama.cpp's tokenizers as an oracle: a file is loaded without its tensors, in this process."""

from __future__ import annotations

from pathlib import Path

from tests.oracles.llama_cpp import Loaded


class LlamaVocabulary(Loaded):
    """The vocabulary of a GGUF file as llama.cpp reads it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, vocab_only=True)
        self.bos, self.eos = self._c.llama_vocab_bos(self._vocab), self._c.llama_vocab_eos(self._vocab)
        self.size = self._c.llama_vocab_n_tokens(self._vocab)
