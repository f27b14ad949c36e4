"""Tokenizers of Hugging Face folders and GGUF files, used as llama.cpp's tools use theirs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from glft_schema.families.tokenizers import begins_with_bos, tokenizer_of
from glft_schema.families.untrusted_folders import check_loadable
from glft_schema.files.container import open as open_container
from glft_schema.models.transformers_library import LOCAL, transformers_for
from glft_schema.storage.source import StrPath, path_text


class Vocabulary(NamedTuple):
    """A tokenizer, used as llama.cpp's tools use theirs.

    Attributes:
        tokenizer: of transformers.
        start: the token that begins each text, or None.
    """

    tokenizer: Any
    start: int | None

    def tokens(self, text: str) -> list[int]:
        """Returns the tokens of a text. Special tokens in the text are treated as plain text."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False).input_ids
        return ids if self.start is None else [self.start, *ids]


def load_vocabulary(path: StrPath) -> Vocabulary:
    """Loads the tokenizer of a Hugging Face folder or a GGUF file.

    Raises:
        OptionError: if transformers is missing.
        FormatError: if transformers cannot load the tokenizer; see `check_loadable`.
        OSError: if a file cannot be read.
    """
    path = path_text(path)
    with transformers_for(
        path, "a tokenizer that transformers loads (tokenizer= or --tokenizer takes another)"
    ) as transformers:
        if os.path.isdir(path):
            check_loadable(Path(path))
            return vocabulary_of(transformers.AutoTokenizer.from_pretrained(path, **LOCAL))
        with open_container(path) as file:
            tokenizer = tokenizer_of(file.metadata)
            return Vocabulary(tokenizer, tokenizer.bos_token_id if begins_with_bos(file.metadata) else None)


def vocabulary_of(tokenizer: Any) -> Vocabulary:
    """Returns the vocabulary of a tokenizer of transformers."""
    bos, first = tokenizer.bos_token_id, tokenizer("a").input_ids[:1]
    start = tokenizer.cls_token_id if bos is None else bos
    return Vocabulary(tokenizer, start if first == [start] else None)
