"""Fields of config.json in all places, as two versions of transformers read them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glft_schema as glft
from glft_schema.families.config import metadata_of
from glft_schema.families.config_places import read_config
from glft_schema.families.folders import check_fields, declared_family, unknown_fields
from tests.families.config_cases import BASES, EMBEDDINGS, PLACES, Config, cases
from tests.families.tiny_folders import make_folder
from tests.golden import record_configs
from tests.golden.record_configs import Reading
from tests.tools.depth import some_by_default

RECORDED = json.loads(record_configs.PATH.read_text())  # by transformers 4.57.6
EMBEDDINGS_OF = {"Phi3ForCausalLM": {"nothing", "theta", "half", "longrope", "su"}, "Gemma2ForCausalLM": {"nothing"}}
OF_LLAMA, OF_PHI3 = {"llama3", "llama3 without context"}, {"half", "longrope", "su"}
ONLY_BY_5 = ("rope_parameters", "by layer", "all in rope_scaling")  # theta in an object
BY_LAYER = {place for place in PLACES if place.startswith("by layer")}
OTHERS = {place for place in PLACES if place.startswith("another")} | {"both types", "theta beside rope_scaling"}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Turns off the warnings of transformers, of which each config has some."""
    logging = pytest.importorskip("transformers").utils.logging
    level = logging.get_verbosity()
    logging.set_verbosity(50)
    yield
    logging.set_verbosity(level)


def reading_of(config: Config, folder: Path) -> tuple[Reading, list[str]]:
    """Returns what llama.cpp computes from a folder, or the error, and warnings."""
    (folder / "config.json").write_text(json.dumps(config))
    try:
        family = declared_family(folder)
        fields = read_config(folder, family)
        keys = metadata_of(fields, family.keys, family.arch)
        notes = [*unknown_fields(family, fields, folder), *check_fields(family, fields, None, folder)]
        notes += check_fields(family, fields, {}, folder)
        factors = family.generated(fields)
    except glft.FormatError as error:
        return str(error), []
    values = {key.removeprefix(f"{family.arch}."): value for key, value in keys.items()}
    found = {"full": frequencies(values, values.get("rope.freq_base", 1e4), factors)}
    if "rope.freq_base_swa" in values:
        scales = ("rope.dimension_count", "attention.key_length")
        of_sliding = {key: value for key, value in values.items() if key in scales}
        found["sliding"] = frequencies(of_sliding, values["rope.freq_base_swa"], {})
    return found, notes


def frequencies(values: dict[str, Any], base: float, factors: dict[str, Any]) -> list[float]:
    """Returns llama.cpp's frequencies of pairs of columns, then its factor of attention."""
    size = values.get("rope.dimension_count") or values.get("attention.key_length") or 8
    pairs, scale = np.arange(size // 2), 1.0
    found = base ** (-2 * pairs / size)
    for name in ("rope_freqs.weight", "rope_factors_short.weight"):
        found = found / factors.get(name, 1)
    factor = values.get("rope.scaling.factor", 1.0)
    if values.get("rope.scaling.type") == "yarn":
        context = values.get("rope.scaling.original_context_length", values["context_length"])
        low, high = (size * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (32, 1))
        low, high = max(0, math.floor(low)), min(size - 1, math.ceil(high))
        kept = 1 - np.clip((pairs - low) / max(0.001, high - low), 0, 1)
        found, scale = found / factor * (1 - kept) + found * kept, 1 + 0.1 * math.log(factor)
    elif values.get("rope.scaling.type") == "linear":
        found = found / factor
    return [*found.tolist(), values.get("rope.scaling.attn_factor", scale)]


def are_close(first: Reading, second: Reading) -> bool:
    if isinstance(first, str) or isinstance(second, str) or first.keys() != second.keys():
        return False
    return all(len(first[kind]) == len(second[kind]) and np.allclose(first[kind], second[kind], rtol=1e-4) for kind in first)


def may_be_refused(architecture: str, embedding: str, place: str) -> bool:
    """Returns whether llama.cpp lacks the embedding, or a place is unread, or contradicts one."""
    without = OF_PHI3 if architecture in ("LlamaForCausalLM", "MistralForCausalLM") else OF_PHI3 | OF_LLAMA
    if embedding not in EMBEDDINGS_OF.get(architecture, set(EMBEDDINGS) - without) or place in OTHERS:
        return True
    if architecture == "Gemma3ForCausalLM":  # which has parameters by layer
        return place not in BY_LAYER and ("type" in place or "context" in place or "rope_parameters" in place)
    is_of_phi3 = architecture == "Phi3ForCausalLM"  # whose context is at the top
    return place in BY_LAYER or ("context at top" in place) is not (is_of_phi3 and embedding in ("longrope", "su"))


@pytest.mark.parametrize("architecture", some_by_default([*BASES], 3))
def test_places_of_the_rotary_embedding(architecture: str, tmp_path: Path) -> None:
    type_, wrong, compared = BASES[architecture]["model_type"], dict[str, Any](), 0
    for case, config in cases(architecture):
        found, notes = reading_of(config, tmp_path)
        latest = record_configs.read_by_transformers(config)
        recorded = next(reading for types, reading in RECORDED["readings"][case].items() if type_ in types.split())
        if isinstance(latest, str):  # version 4 does not read rope_parameters
            latest = "" if config.get("rope_parameters") else recorded
        if isinstance(latest, str):
            continue
        if isinstance(found, str):
            embedding, _, place = case.partition(": ")
            if not may_be_refused(architecture, embedding, place):
                wrong[case] = found
        elif not notes:
            compared += 1
            if not are_close(found, latest):
                wrong[case] = f"{found} instead of {latest}"
            elif not (isinstance(recorded, str) or any(place in case for place in ONLY_BY_5) or are_close(found, recorded)):
                wrong[case] = f"{found} instead of {recorded} of version {RECORDED['transformers']}"
    assert compared > 5
    assert wrong == {}


@pytest.mark.parametrize("architecture", BASES)
def test_missing_fields_have_the_defaults_of_transformers(architecture: str, tmp_path: Path) -> None:
    base, path = BASES[architecture], tmp_path / "config.json"
    path.write_text(json.dumps(base))
    family, wrong = declared_family(tmp_path), {}
    values = {field.name: field for field in family.fields}
    for field, value in record_configs.missing(architecture).items():
        path.write_text(json.dumps({name: other for name, other in base.items() if name != field}))
        if not family.covers(field):
            continue
        try:
            fields = read_config(tmp_path, family)
            metadata_of(fields, family.keys, family.arch)
        except glft.FormatError as error:
            assert f"expected the field {field}, found none" in str(error)
            continue
        assumed = values.get(field)
        if field not in fields and assumed and assumed.warns:
            continue  # no window
        ours = fields[field] if field in fields else assumed.value_of(fields, ()) if assumed else None
        for expected in (value, RECORDED["defaults"][architecture][field]):
            if expected is not None and expected != (ours or type(expected)()) and (field, ours) != ("head_dim", None):
                wrong[field] = (ours, expected)
    assert wrong == {}


CONTRADICTIONS: dict[str, tuple[str, Config, str]] = {
    "theta": ("tiny-llama", {"rope_theta": 5e5, "rope_parameters": {"rope_theta": 1e4}},
              "rope_parameters -> rope_theta: expected 500000.0, the value of rope_theta, found 10000.0"),
    "scaling": ("tiny-llama", {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "default"}},
                "rope_parameters -> rope_type: expected 'linear', the value of rope_scaling -> type, found 'default'"),
    "types": ("tiny-llama", {"rope_scaling": {"rope_type": "default", "type": "linear", "factor": 2.0}},
              "rope_scaling -> type: expected 'default', the value of rope_scaling -> rope_type, found 'linear'"),
    "context": ("tiny-phi3", {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8,
                                               "original_max_position_embeddings": 64}},
                "rope_scaling -> original_max_position_embeddings: expected 512, the value of original_max_position"),
    "local": ("tiny-gemma3", {"rope_parameters": {"sliding_attention": {"rope_theta": 2e4}}},
              "rope_parameters -> sliding_attention -> rope_theta: expected 10000.0, the value of rope_local_base_freq"),
    "layers": ("tiny-gemma3", {"rope_parameters": {"full_attention": {"rope_theta": 2e4}}},
               "rope_parameters -> full_attention -> rope_theta: expected 1000000.0, the value of rope_theta, found 20000.0"),
    "sliding": ("tiny-gemma3", {"rope_parameters": {"sliding_attention": {"partial_rotary_factor": 0.5}}},
                "sliding_attention.partial_rotary_factor: expected 1.0, as llama.cpp assumes, found 0.5"),
    "unread": ("tiny-llama", {"rope_parameters": {"full_attention": {"partial_rotary_factor": 1.0}}},
               "full_attention -> partial_rotary_factor: expected none, as transformers does not read it here, found 1.0"),
    "experts": ("tiny-mixtral", {"num_experts": 4}, "num_experts: expected 3, the value of num_local_experts, found 4"),
    "context at top": ("tiny-yarn", {"original_max_position_embeddings": 32},
                       "original_max_position_embeddings: expected 64, the value of rope_parameters -> original_max_position"),
    "no context": ("tiny-llama", {"original_max_position_embeddings": 32, "rope_scaling": {"type": "yarn", "factor": 2.0}},
                   "original_max_position_embeddings: expected 256, the value of max_position_embeddings, found 32"),
    "sizes": ("tiny-gpt2", {"hidden_size": 32}, "hidden_size: expected 64, the value of n_embd, found 32"),
    "factor": ("tiny-llama", {"rope_scaling": {"type": "yarn"}}, "expected the field factor for the rope_type yarn, found"),
    "ratio": ("tiny-phi3", {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8,
                                             "factor": 2.0}}, "factor: expected 4.0, as llama.cpp assumes, found 2.0"),
    "weights": ("tiny-qwen3moe", {"norm_topk_prob": ...}, "norm_topk_prob: expected True, as llama.cpp assumes, found False"),
}  # fmt: skip


@pytest.mark.parametrize("fault", CONTRADICTIONS)
def test_contradictions_are_refused_by_both_places(fault: str, tmp_path: Path) -> None:
    name, fields, message = CONTRADICTIONS[fault]
    folder = make_folder(tmp_path, name)
    config = json.loads((folder / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps({field: value for field, value in config.items() if value is not ...}))
    with pytest.raises(glft.FormatError) as raised:
        glft.convert(folder, tmp_path / "out.gguf")
    assert message in str(raised.value)


def test_other_names_of_sizes(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "tiny-gpt2")
    glft.convert(folder, tmp_path / "out.gguf")
    names = {"n_embd": "hidden_size", "n_positions": "max_position_embeddings", "n_head": "num_attention_heads"}
    names["n_layer"] = "num_hidden_layers"
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({names.get(name, name): value for name, value in config.items()}))
    glft.convert(folder, tmp_path / "other.gguf")
    assert (tmp_path / "other.gguf").read_bytes() == (tmp_path / "out.gguf").read_bytes()


PUBLISHED = json.loads(Path(__file__).with_name("published_configs.json").read_text())
WINDOW = "as llama.cpp assumes, found {}; llama.cpp attends to all tokens: the logits of texts longer than the window differ"
NOTES = {  # a config with a value that changes what the model computes
    "openai/gpt-oss-20b": "truncate: expected True, as llama.cpp assumes, found False; llama.cpp rounds the dims between which "
    "yarn interpolates",
    "mistralai/Mistral-7B-Instruct-v0.1": f"sliding_window: expected None, {WINDOW.format(4096)}",
    "microsoft/Phi-3-mini-4k-instruct": f"sliding_window: expected None, {WINDOW.format(2047)}",
    "bigcode/starcoder2-3b": f"sliding_window: expected None, {WINDOW.format(4096)}",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_warn_only_of_what_changes_the_model(name: str, tmp_path: Path) -> None:
    _, notes = reading_of(PUBLISHED[name], tmp_path)
    assert [note.partition("config.json: ")[2] for note in notes] == [NOTES[one] for one in NOTES if one == name]
