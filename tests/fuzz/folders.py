"""Files of a Hugging Face folder: opened in any state, they raise documented errors only.

The first byte of an input is the number of a file in `FILES`, the rest its content. All other files
of the folder are valid. Other libraries parse in this process, which is faster, unless the content
may make them take all memory: then they run as in the product, in a process with limits.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

import pytest

from glft_schema import FormatError, Limits, OptionError, TensorError
from glft_schema.errors import MetadataWarning
from glft_schema.families.apart import start_apart
from glft_schema.families.folders import open_folder
from glft_schema.families.untrusted_folders import check_loadable, check_no_code
from glft_schema.testing.fuzzing import PropertyError
from glft_schema.weights.checkpoints import open_checkpoint
from tests.families.tiny_folders import make_folder
from tests.fuzz.promises import reported
from tests.tools.guarded_here import know_tokenizers

FILES = (  # folder, file
    *((family, "config.json") for family in ("tiny-llama-3", "tiny-phi3", "tiny-gemma3", "tiny-bert")),
    *(
        ("tiny-bert", name)
        for name in ("tokenizer.json", "tokenizer_config.json", "modules.json", "README.md", "1/config.json")
    ),
    *(("tiny-mistral", name) for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json")),
    *(("tiny-llama", name) for name in ("tokenizer.model", "added_tokens.json", "tokenizer_config.json", "chat_template.json")),
)
OTHERS = {  # files that the tiny folders do not have
    "modules.json": [{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "1"}],
    "1/config.json": {"pooling_mode_mean_tokens": True},
    "added_tokens.json": {"<a>": 263},
    "generation_config.json": {"temperature": 0.5},
    "tokenizer_config.json": {"added_tokens_decoder": {"3": {"content": "<|a|>", "special": True}}, "bos_token": "<s>"},
    "chat_template.json": {"chat_template": "{{ messages }}"},
}
CARD = "---\nlicense: mit\nbase_model: a/B-7B\ntags: [x]\ndatasets:\n- c/d\n---\n# A model\n"
GROWING = {"README.md": (b"*",), "tokenizer.json": (b"Replace", b"Prepend", b"Regex")}  # aliases, and normalizers
TOKENS = 100  # of a tokenizer
LIMITS = {"parser_memory": 1 << 28, "parser_seconds": 5, "strings": 1 << 16}


@cache
def folders() -> Path:
    """Returns the folder of the tiny folders, with all of `FILES`."""
    parent = Path(tempfile.mkdtemp())
    for family, file in FILES:
        folder = parent / family if (parent / family).exists() else make_folder(parent, family)
        if not (folder / file).exists():
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_text(CARD if file == "README.md" else json.dumps(OTHERS[file]))
    return parent


def seeds() -> Iterator[bytes]:
    """Yields each file as it is valid, JSON in its shortest form and with few tokens."""
    for number, (family, file) in enumerate(FILES):
        stored = (folders() / family / file).read_bytes()
        if file.endswith(".json"):
            whole = json.loads(stored)
            if file == "tokenizer.json":
                whole["model"]["vocab"] = dict(list(whole["model"]["vocab"].items())[:TOKENS])
            stored = json.dumps(whole, separators=(",", ":"), ensure_ascii=False).encode()
        yield bytes([number]) + stored


def check_promises(stored: bytes) -> None:
    """Opens a folder with one file replaced, and loads its tensors.

    Raises:
        PropertyError: for an error that is not documented, or a message that is not one short line.
    """
    if not stored:
        return
    family, file = FILES[stored[0] % len(FILES)]
    folder = folders() / family
    valid = (folder / file).read_bytes()
    (folder / file).write_bytes(stored[1:])
    try:
        with pytest.MonkeyPatch.context() as patch, Limits(**LIMITS), warnings.catch_warnings():
            warnings.simplefilter("ignore", MetadataWarning)  # of fields that no library knows
            know_tokenizers(patch)
            if any(sign in stored for sign in GROWING.get(file, ())):
                patch.setattr("glft_schema.families.folders.start_apart", start_apart)
            for check in (_open, check_no_code, check_loadable):
                with reported(FormatError, TensorError, OptionError, OSError):
                    check(folder)
    finally:
        (folder / file).write_bytes(valid)


def _open(folder: Path) -> None:
    model = open_folder(folder, partial(open_checkpoint, folder, as_stored=True))
    for name, tensor in model.tensors.items():
        with suppress(TensorError):
            values = tensor.load()
            if tuple(values.shape) != tensor.shape:
                raise PropertyError("opened", f"expected {tensor.shape} of {name}, found {tuple(values.shape)}")
    if len(dict(model.metadata)) < 10:
        raise PropertyError("opened", f"expected the metadata of a model, found {model.metadata}")
