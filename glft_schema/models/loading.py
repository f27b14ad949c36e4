"""Loads models and tokenizers by transformers: of Hugging Face folders, and of GGUF files of the
declared families.
"""

from __future__ import annotations

import fnmatch
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from glft_schema.errors import FormatError, OptionError, TensorError
from glft_schema.families.config import refusing
from glft_schema.families.declarations import FAMILIES, Family
from glft_schema.families.export import hf_model
from glft_schema.families.folders import is_model_folder
from glft_schema.files.container import open as open_container
from glft_schema.formats.registry import WITH_TYPES
from glft_schema.lazy import torch
from glft_schema.storage.source import StrPath
from glft_schema.weights.checkpoints import open_entries
from glft_schema.weights.stored_tensors import as_lazy, in_memory

ADD_BOS, VOCABULARY = "tokenizer.ggml.add_bos_token", "tokenizer.ggml.model"
WITH_BOS = ("llama", "bert")  # kinds of vocabulary that begin texts with a token, unless a key says otherwise

LOCAL = {"local_files_only": True, "trust_remote_code": False}  # without the latter, transformers asks on the terminal


class Vocabulary(NamedTuple):
    """A tokenizer, used as llama.cpp's tools use theirs.

    Attributes:
        tokenizer: of transformers.
        start: the token that begins each text, or None.
    """

    tokenizer: Any
    start: int | None

    def tokens(self, text: str) -> list[int]:
        """Returns the tokens of a text. The text of a special token is plain text."""
        found: list[int] = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False).input_ids
        return found if self.start is None else [self.start, *found]


def load_model(path: StrPath) -> Any:
    """Loads a model of transformers in float32, for inference.

    A GGUF model is mapped by its family, and dequantized in memory.

    Raises:
        OptionError: if transformers is missing, or the path is neither GGUF nor a folder.
        FormatError: if the model cannot be loaded, or lacks a tensor; see `hf_model`.
        OSError: if a file cannot be read.
    """
    with _transformers(path, "a model that transformers loads") as transformers:
        if is_model_folder(path):
            config = transformers.AutoConfig.from_pretrained(path, **LOCAL)
            kind = getattr(transformers, (config.architectures or ["AutoModel"])[0])
            return _loaded(kind, path, **LOCAL)
        checkpoint = open_entries(path)
        if checkpoint.file is None or checkpoint.file.format is not WITH_TYPES:
            raise OptionError(f"expected a {WITH_TYPES.name} file or a Hugging Face folder to run, found another source")
        tensors, fields = hf_model(as_lazy(in_memory(checkpoint.tensors)), checkpoint.metadata)
        config = transformers.CONFIG_MAPPING[fields["model_type"]].from_dict(fields)
        kind = getattr(transformers, fields["architectures"][0])
        state = {name: tensor.load().float() for name, tensor in tensors.items()}
        return _loaded(kind, None, config=config, state_dict=state)


def family_of(module: Any) -> Family | None:
    """Returns the family that declares a model's class, or None."""
    kind = type(module).__name__
    return next((family for family in FAMILIES if kind in family.architectures), None)


def is_dropped(name: str, family: Family | None) -> bool:
    """Returns whether a model of the family needs no values for a tensor: GGUF does not have it."""
    return family is not None and any(
        fnmatch.fnmatchcase(name.removeprefix(family.prefix), pattern) for pattern in family.dropped
    )


def _loaded(kind: Any, source: StrPath | None, **options: Any) -> Any:
    """Loads a model. Raises TensorError if a tensor is missing, which transformers fills with
    random numbers.
    """
    module, info = kind.from_pretrained(source, dtype=torch.float32, output_loading_info=True, **options)
    family = family_of(module)
    for name in sorted(info["missing_keys"]):
        if not is_dropped(name, family):
            raise TensorError("expected values for this tensor, found none", name)
    return module.eval()


def load_vocabulary(path: StrPath) -> Vocabulary:
    """Loads the tokenizer of a Hugging Face folder or a GGUF file.

    Raises:
        OptionError: if transformers is missing.
        FormatError: if transformers cannot load the tokenizer.
        OSError: if a file cannot be read.
    """
    with _transformers(path, "a tokenizer that transformers loads (tokenizer= or --tokenizer takes another)") as transformers:
        if os.path.isdir(path):
            return vocabulary_of(transformers.AutoTokenizer.from_pretrained(path, **LOCAL))
        with open_container(path) as file:
            first, metadata = Path(str(file.shards[0].name)), file.metadata
        with tempfile.TemporaryDirectory() as folder:  # transformers would also read the files beside the GGUF file
            link = Path(folder, "model.gguf")
            link.symlink_to(first.absolute())
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=link.name, **LOCAL)
        adds = metadata.get(ADD_BOS, metadata.get(VOCABULARY) in WITH_BOS)
        return Vocabulary(tokenizer, tokenizer.bos_token_id if adds else None)


def vocabulary_of(tokenizer: Any) -> Vocabulary:
    """Returns the vocabulary of a tokenizer of transformers."""
    bos, first = tokenizer.bos_token_id, tokenizer("a").input_ids[:1]
    start = tokenizer.cls_token_id if bos is None else bos
    return Vocabulary(tokenizer, start if first == [start] else None)


@contextmanager
def _transformers(path: StrPath, expected: str) -> Iterator[Any]:
    """Imports transformers and silences it. Raises FormatError instead of its errors,
    and of TensorError, to name the file.
    """
    try:
        import transformers
    except ImportError:
        raise OptionError("running a model needs transformers: pip install 'glft_schema[transformers]'") from None
    logging: Any = transformers.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        with refusing(path, expected):
            yield transformers
    except TensorError as error:
        raise FormatError(error.problem, tensor=error.tensor, file=str(path)) from None
    except FormatError as error:
        error.file = error.file or str(path)
        raise
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
