"""Fields of a folder's config.json, from each place where a version of transformers reads them.

The fields of the rotary embedding may be at the top, in ``rope_scaling``, and in
``rope_parameters``, which only transformers 5 reads, and only without ``rope_scaling``. For
families whose layers with a sliding window have another rotary embedding, ``rope_parameters`` has
an object for each kind of layer, and ``rope_scaling`` completes that of full attention. Versions
differ in whether they read ``original_max_position_embeddings`` at the top, so it must agree.

Source: modeling_rope_utils.py and the configuration classes of transformers 4.57.6 and 5.24.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from glft_schema.errors import FormatError, quote
from glft_schema.families.config import CONFIG, LAYERS, ROPE, SCALED, SLIDING, Config, check_finite, read_text_config
from glft_schema.families.page import Family

FACTOR, CONTEXT, LENGTH = "factor", "original_max_position_embeddings", "max_position_embeddings"
LOCAL_THETA = "rope_local_base_freq"
NAMES = {"type": "rope_type", LOCAL_THETA: "rope_theta", LENGTH: CONTEXT}  # name in some places -> name here
DEFAULT = ("rope_type", "default")
OF_PAGES = (f"{ROPE}.", "own.")  # prefixes of fields that pages have, and no config.json
RENAMED = {"su": "longrope", "mrope": "default"}  # types of scaling


OF_YARN = (
    *("extrapolation_factor", "attention_factor", "beta_fast", "beta_slow"),
    *("mscale", "mscale_all_dim", "llama_4_scaling_beta"),
)


class Scaling(NamedTuple):
    """A type of rope scaling.

    Attributes:
        name: of the type in GGUF, or None if GGUF has a tensor, or nothing, instead.
        required: fields without which transformers refuses the type.
        others: fields that it may have.
    """

    name: str | None
    required: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


SCALINGS = {  # by rope_type
    "linear": Scaling("linear", (FACTOR,)),
    "yarn": Scaling("yarn", (FACTOR,), (CONTEXT, *OF_YARN)),
    "longrope": Scaling("longrope", ("short_factor", "long_factor"), (CONTEXT, FACTOR)),  # the lists are tensors in GGUF
    "default": Scaling(None),
    "dynamic": Scaling(None, (FACTOR,)),  # of texts longer than the context length
    "llama3": Scaling(None, (FACTOR, "low_freq_factor", "high_freq_factor"), (CONTEXT,)),
}


class Places:
    """Values of fields, each with the path of the first place that states it.

    Args:
        file: path of the config.json.
        names: other names of fields, and the name here.
    """

    def __init__(self, file: Path, names: Mapping[str, str]) -> None:
        self._file, self._names = str(file), names
        self._found: dict[str, tuple[Any, str]] = {}

    def add(self, path: str, fields: Config, is_read: bool = True) -> None:
        """Adds the fields of a place, or compares them if transformers does not read them there.

        Null fields count as missing.

        Raises:
            FormatError: if another place has another value, or no place that transformers reads has
                the field.
        """
        for name, value in fields.items():
            field = self._names.get(name, name)
            if field == "rope_type":
                value = RENAMED.get(str(value), value)
            if value is None or (not is_read and (field, value) == DEFAULT and field not in self._found):
                continue
            if is_read:
                self._found.setdefault(field, (value, path + name))
            other, place = self._found.get(field, (None, ""))
            if value is not other and value != other:  # NaN is not equal to itself
                expected = f"{quote(other)}, the value of {place}" if place else "none, as transformers does not read it here"
                raise FormatError(f"expected {expected}, found {quote(value)}", path + name, file=self._file)

    def fields(self) -> Config:
        """Returns the values by field."""
        return {field: value for field, (value, _) in self._found.items()}


def read_config(folder: Path, family: Family) -> Config:
    """Returns the fields of a folder's config.json, with those of the rotary embedding as `rope.*`.

    Raises:
        FormatError: if the file is not a JSON object, two places have different values of a field,
            the rope type is not one of `SCALINGS` or lacks a field, or a number of the rotary
            embedding is not finite.
        OSError: if it cannot be read.
    """
    file = folder / CONFIG
    stored = {field: value for field, value in read_text_config(folder).items() if not field.startswith(OF_PAGES)}
    places = Places(file, family.aliases)
    places.add("", stored)
    places.add("", {field: value for field, value in family.defaults.items() if field not in stored})
    config = places.fields()
    rope, sliding = _rope_places(config, family, file)
    type_ = rope.fields().get(*DEFAULT)
    if type_ not in SCALINGS:
        raise FormatError(f"expected a rope_type of {', '.join(SCALINGS)}, found {quote(type_)}", file=str(file))
    scaling = SCALINGS[type_]
    if CONTEXT in scaling.others:
        if CONTEXT not in rope.fields():
            rope.add("", {LENGTH: config.get(LENGTH)})
        rope.add("", {CONTEXT: config.get(CONTEXT)}, is_read=False)
    fields = {"rope_type": type_, **rope.fields()}
    for field in scaling.required:
        if field not in fields:
            raise FormatError(f"expected the field {field} for the rope_type {type_}, found none", file=str(file))
    config.update({f"{ROPE}.{field}": value for field, value in fields.items()})
    config.update({f"{SLIDING}.{field}": value for field, value in sliding.fields().items()})
    for field, value in config.items():
        if field.startswith(ROPE):
            check_finite(value, f"{CONFIG} -> {field.removeprefix(f'{ROPE}.')}")
    if scaling.name:
        config.update({f"{SCALED}.{field}": fields[field] for field in scaling.required + scaling.others if field in fields})
        config[f"{SCALED}.rope_type"] = scaling.name
    return config


def _rope_places(config: Config, family: Family, file: Path) -> tuple[Places, Places]:
    """Returns the places of the rotary embedding, and those of layers with a sliding window."""
    scaling = config.get("rope_scaling") or {}
    parameters = config.get("rope_parameters") or ({} if scaling else family.rope)
    flat = ("rope_parameters -> ", {name: value for name, value in parameters.items() if name not in LAYERS})
    full, by_window = ((f"rope_parameters -> {layers} -> ", parameters.get(layers) or {}) for layers in LAYERS)
    rope, sliding = Places(file, NAMES), Places(file, NAMES)
    at_top = ("rope_theta", "partial_rotary_factor", *([CONTEXT] if CONTEXT in family.defaults else []))
    rope.add("", {field: config.get(field) for field in at_top})
    if family.covers(f"{SLIDING}.rope_theta"):
        rope.add("rope_scaling -> ", {**scaling, "type": None})
        rope.add(*full)
        rope.add("rope_scaling -> ", scaling, is_read=False)
        rope.add(*flat, is_read=False)
        sliding.add("", {LOCAL_THETA: config.get(LOCAL_THETA)})
        sliding.add(*by_window)
    else:
        rope.add("rope_scaling -> ", scaling)
        rope.add(*flat, is_read=not scaling)
        rope.add(*full, is_read=False)
        rope.add(*by_window, is_read=False)
    return rope, sliding
