"""Hostile numbers in GGUF metadata and in config.json are refused, in little memory and time."""

from __future__ import annotations

import json
import shutil
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glft_schema as glft
from glft_schema.families.export import hf_model
from glft_schema.weights.checkpoints import open_with_metadata
from tests.families.tiny_folders import TOKENIZERS
from tests.families.tiny_models import TINY_MODELS
from tests.golden.record_models import PATH
from tests.tools.depth import FULL, in_full
from tests.tools.forked import Forked
from tests.tools.guarded_here import know_tokenizers
from tests.tools.posix import resource

MEMORY = 1 << 28  # bytes of address space, beyond those in use at the start
SECONDS = 2  # of CPU time, for a case
PADDING = "tokenizer.ggml.padding_token_id"
REFUSED = (glft.FormatError, glft.TensorError, glft.LimitError)
IN_KEYS = {"deleted": None, "0": 0, "1": 1, "2**32 - 1": 2**32 - 1}
IN_CONFIGS = (10**9, -1, 0)
COUNTS = ("num_hidden_layers", "num_labels")  # fields that may be the length of a list
LISTS = ("layer_types", "id2label", "label2id")
REFUSED_AS_RECORDED = (  # files of the converter that llama.cpp refuses, too
    "bert_classifier, textattack/bert-base-uncased-SST-2",
    "ernie4_5_moe, baidu/ERNIE-4.5-21B-A3B-PT",
    "falcon, tiiuae/falcon-11B",
    "starcoder, bigcode/gpt_bigcode-santacoder",
    "xlm_roberta_classifier, papluca/xlm-roberta-base-language-detection",
)


class TooSlowError(BaseException):
    """A case took too long. Not an Exception, which the package might catch."""


class Edited:
    """A file with other metadata: no bytes are written."""

    def __init__(self, file: Any, metadata: Any) -> None:
        self._file, self.metadata, self.shards = file, metadata, (self,)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def recorded() -> dict[str, dict[str, Any]]:
    """Returns the recorded contents of GGUF files, by the file and name of the model."""
    files = {path.stem: json.loads(path.read_text()) for path in sorted(PATH.glob("*.json"))}
    models = {f"{file}, {name}": model for file, models in files.items() for name, model in models.items()}
    return {name: model for name, model in models.items() if isinstance(model, dict) and name not in REFUSED_AS_RECORDED}


RECORDED = recorded()
OF_ARCH = {(model["keys"]["general.architecture"][1], "roberta" in name): name for name, model in reversed(RECORDED.items())}
KEY_CASES = [name if name in OF_ARCH.values() else in_full(name) for name in RECORDED]
FIRST = {model.file: model for model in reversed(TINY_MODELS)}


def typed(key: str, kind: str, value: Any, tokens: int, blocks: int) -> glft.Typed:
    """Returns a recorded value. Long arrays are recorded as hashes: one of zeros replaces them."""
    *array, type_ = kind.lower().split("/")
    if array and isinstance(value, str):
        length = tokens if key.startswith("tokenizer.") else blocks
        value = {"string": [f"{i}" for i in range(length)], "bool": [False] * length}.get(type_, [0] * length)
    return glft.Typed(value, f"array[{type_}]" if array else type_)


def write(model: dict[str, Any], path: Path) -> None:
    """Writes a recorded file with zeros as values, without rope factors, which cannot be zeros."""
    keys, tokens = model["keys"], model["tensors"]["token_embd.weight"][1][1]
    blocks = keys[f"{keys['general.architecture'][1]}.block_count"][1]
    metadata = {key: typed(key, kind, value, tokens, blocks) for key, (kind, value) in keys.items()}
    tensors = {name: dims[::-1] for name, (_, dims, _) in model["tensors"].items() if not name.startswith("rope_")}
    glft.save_file({name: np.zeros(shape, np.float32) for name, shape in tensors.items()}, path, metadata, rules=[])


def integer_keys(model: dict[str, Any]) -> list[str]:
    """Returns the integer keys of the architecture, and the key of the padding."""
    prefix = f"{model['keys']['general.architecture'][1]}."
    return [key for key, (kind, _) in model["keys"].items() if key == PADDING or (key.startswith(prefix) and "INT" in kind)]


@contextmanager
def limited() -> Iterator[None]:
    """Limits the CPU time of a block."""

    def stop(*_: object) -> None:
        raise TooSlowError

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def fault_of(job: Callable[[], object], refused: tuple[type[Exception], ...]) -> str:
    """Returns the fault of a job that raises another error, or one of several lines."""
    try:
        with limited():
            job()
    except refused as error:
        return "" if len(str(error).splitlines()) == 1 else f"several lines: {error}"
    except BaseException as error:
        *_, last = traceback.extract_tb(error.__traceback__)
        text = f"{type(error).__name__}: {str(error)[:100]}"
        error.__traceback__ = None
        return f"{text}, {Path(last.filename).name}:{last.lineno}: {last.line}"
    return ""


def limit_memory() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))


def read(tensors: Any, file: Any) -> None:
    for tensor in hf_model(tensors, file)[0].values():
        assert all(type(size) is int and size >= 0 for size in tensor.shape)


def faults_of_keys(path: Path, keys: list[str], first: int) -> list[str]:
    """Returns the faults of a file with other values of keys: by default one for each, in turns."""
    source = open_with_metadata(path)
    assert source.file is not None
    metadata, faults = source.file.metadata, {}
    limit_memory()
    read(source.tensors, Edited(source.file, metadata))
    for number, key in enumerate(keys, first):
        for name in IN_KEYS if FULL else [[*IN_KEYS][number % len(IN_KEYS)]]:
            value, other = IN_KEYS[name], metadata.without(key)
            if value is not None:
                other |= {key: glft.Typed(value, "uint32")}
            faults[f"{key}: {name}"] = fault_of(partial(read, source.tensors, Edited(source.file, other)), REFUSED)
    return [f"{case}: {fault}" for case, fault in faults.items() if fault]


@pytest.mark.linux("limits a process's memory beyond what it has")
@pytest.mark.parametrize("name", KEY_CASES)
def test_integer_keys(name: str, tmp_path: Path) -> None:
    write(RECORDED[name], tmp_path / "a.gguf")
    first = [*RECORDED].index(name)
    assert returned_by(faults_of_keys, tmp_path / "a.gguf", integer_keys(RECORDED[name]), first) == []


def hostile_configs(config: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields configs with other integers, and what is other in each."""
    stated = config.get("text_config")
    texts = [("", config, lambda text: text)]
    if isinstance(stated, dict):
        texts.append(("text_config.", stated, lambda text: {**config, "text_config": text}))
    for prefix, text, config_of in texts:
        listed = {name: value for name, value in text.items() if name not in LISTS}
        integers = [name for name, value in text.items() if type(value) is int and name not in COUNTS]
        for value in IN_CONFIGS if FULL else IN_CONFIGS[:1]:
            for name in (*COUNTS, *(integers if FULL else ())):
                yield f"{prefix}{name}: {value}", config_of({**text, name: value})
                if name in COUNTS:
                    yield f"{prefix}{name}: {value}, without lists", config_of({**listed, name: value})


def faults_of_configs(folder: Path, config: dict[str, Any]) -> list[str]:
    """Returns the faults of a folder with other configs."""
    faults = {}
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        know_tokenizers(patch)
        limit_memory()
        for case, other in hostile_configs(config):
            (folder / "config.json").write_text(json.dumps(other))
            job = partial(glft.convert, folder, folder.with_suffix(".gguf"))
            faults[case] = fault_of(job, (*REFUSED, glft.OptionError, OSError)) or (
                "converted" if folder.with_suffix(".gguf").exists() else ""
            )
    return [f"{case}: {fault}" for case, fault in faults.items() if fault]


@pytest.mark.linux("limits a process's memory beyond what it has")
@pytest.mark.parametrize("file", FIRST)
def test_integers_of_configs(file: str, tmp_path: Path) -> None:
    """Without weights: nothing is compared with the number of tensors."""
    model = FIRST[file]
    shutil.copytree(TOKENIZERS / model.stated["tokenizer"], tmp_path / "folder")
    assert returned_by(faults_of_configs, tmp_path / "folder", model.config) == []


def returned_by(job: Callable[..., list[str]], *arguments: object) -> list[str]:
    """Returns what a function returns in a process of its own, whose memory it may limit."""
    process = Forked(job, *arguments, environment=dict.fromkeys(("COV_CORE_SOURCE", "COVERAGE_PROCESS_START"), ""))
    _, error = process.communicate(timeout=600)
    assert process.returncode == 0, error
    return process.returned  # type: ignore[no-any-return]
