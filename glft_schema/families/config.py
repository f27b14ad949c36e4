"""Fields of config.json as metadata keys of GGUF, and back."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from glft_schema.display import shortest
from glft_schema.errors import FormatError, OptionError, TensorError, one_line, quote
from glft_schema.formats.registry import WITH_TYPES
from glft_schema.limits import current, limit_error
from glft_schema.storage.opening import read_regular

CONFIG = "config.json"
BLOCKS, NEXTN, TEXT_CONFIG = "num_hidden_layers", "num_nextn_predict_layers", "text_config"
KEY_TYPES = WITH_TYPES.metadata.keys
ROPE = "rope"  # prefix of fields of the rotary embedding: `rope.rope_theta`
SCALED = f"{ROPE}.scaling"  # prefix of the rope fields that GGUF stores
DIMENSIONS = f"{ROPE}.dimension_count"  # field of the number of rotated columns, which config.json states as a fraction
SLIDING = f"{ROPE}.sliding_attention"  # prefix of fields of layers with a sliding window
PATTERN = "attention.sliding_window_pattern"  # the key: whether each block has the window, or a period
BY_LAYER = (PATTERN, "layer_types")  # the key with its field
LAYERS = ("full_attention", "sliding_attention")  # values of layer_types
ALIASES = {  # another name that transformers reads -> name in families that have it
    "num_local_experts": "num_experts",
    "num_mtp_layers": NEXTN,
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
OLD_NAMES = {"rope.scaling.factor": "rope.scale_linear"}  # key -> its name in GGUF files of 2023
LARGEST = float(np.finfo(np.float32).max)
REQUIRED: Any = object()  # as a default: the field is required
Config = dict[str, Any]


class ConfigKey(NamedTuple):
    """A metadata key and its config field.

    Attributes:
        key: without the architecture's name.
        field: of config.json, or of its rope parameters; empty if the key has no field.
        default: the value of a missing field, or a function of the config that returns it; None
            omits the key.
        loader: how llama.cpp's loader treats the key; ``sliding`` if it reads the key only in
            models with a sliding window.
        absent: the field's value if a GGUF model lacks the key, as the loader assumes, or a
            function of the config that returns it; None omits the field. By default, as `default`.
        fields: if `default` computes the value from several fields, returns them from the value and
            the config so far.
    """

    key: str
    field: str
    default: Any = REQUIRED
    loader: Literal["required", "read", "ignored", "sliding"] = "read"
    absent: Any = REQUIRED
    fields: Callable[[Any, Config], Config] | None = None

    @property
    def default_of_loader(self) -> Any:
        """The value if a GGUF model lacks the key: `absent`, or else `default`."""
        return self.default if self.absent is REQUIRED else self.absent


@contextmanager
def refusing(file: object, expected: str) -> Iterator[None]:
    """Turns errors of libraries, and errors from unexpected values, into FormatError."""
    try:
        yield
    except (FormatError, TensorError, OptionError, MemoryError):
        raise
    except BaseException as error:
        is_of_library = isinstance(error, Exception) or _is_panic(error)
        if not is_of_library or (isinstance(error, OSError) and error.errno is not None):  # of the system
            raise
        found = f"{type(error).__name__}: {one_line(str(error))}"
        raise FormatError(f"expected {expected}, found {found}", file=str(file)) from None


def _is_panic(error: BaseException) -> bool:
    """Returns whether an error is a panic of a library in Rust, which is not an Exception."""
    return type(error).__name__ == "PanicException"


def read_json(path: Path, kind: type = dict) -> Any:
    """Returns the object or list in a JSON file.

    Raises:
        FormatError: for other content.
        LimitError, OSError: as `read_regular`.
    """
    stored = read_regular(path)
    try:
        found = json.loads(stored.decode("utf-8"))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, kind):
        raise FormatError(f"expected JSON with {'a list' if kind is list else 'an object'}", file=str(path))
    return found


def read_text_config(folder: Path) -> Config:
    """Returns the fields of a folder's config.json, of the text model if it has other parts.

    Raises FormatError, OSError as `read_json`.
    """
    stored: Config = read_json(folder / CONFIG)
    text = stored.get(TEXT_CONFIG)
    if not isinstance(text, dict):
        return stored
    vision = {"vision_config": stored.get("vision_config", {})}
    return {field: value for field, value in text.items() if value is not None} | vision


def metadata_of(config: Config, keys: Iterable[ConfigKey], arch: str) -> dict[str, Any]:
    """Returns the values of a config by metadata key, rounded to float32. Adds defaults to config.

    Raises:
        FormatError: if a required field is missing, or a value has the wrong type or is not finite.
    """
    entries = {}
    for key, field, default, *_ in keys:
        if field not in config:
            if default is REQUIRED:
                raise FormatError(f"expected the field {field}, found none", CONFIG)
            value = default(config) if callable(default) else default
            if field and value is not None:
                config[field] = value
        else:
            value = config[field]
            _check_type(_full(key, arch), value, f"{CONFIG} -> {field}")
        if (key, field) == BY_LAYER:
            value = [kind == LAYERS[1] for kind in value] if value and config.get("sliding_window") else None
        if value is not None:
            entries[_full(key, arch)] = float(np.float32(value)) if isinstance(value, float) else value
    if further := entries.get(_full("nextn_predict_layers", arch)):
        entries[_full("block_count", arch)] += further
    return entries


def _check_type(key: str, value: object, path: str) -> None:
    """Raises FormatError unless a value has a type that suits a key, and is finite in it."""
    check_finite(value, path)
    type_ = KEY_TYPES.type_of(key, False) if KEY_TYPES else None
    kinds: dict[str, tuple[type, ...]] = {"uint32": (int,), "float32": (int, float), "string": (str,), "bool": (bool,)}
    if not isinstance(value, kinds.get(type_ or "", (object,))) or isinstance(value, bool) is not (type_ == "bool"):
        raise FormatError(f"expected {type_} for {key}, found {quote(value)}", path)


def check_finite(value: object, path: str) -> None:
    """Raises FormatError if a number, or one of a list, is not finite in float32."""
    for number in value if isinstance(value, list) else [value]:
        if isinstance(number, (int, float)) and not abs(number) <= LARGEST:
            raise FormatError(f"expected a finite number in float32, found {quote(number)}", path)


def check_token_count(count: object, folder: Path) -> None:
    """Raises LimitError if a vocabulary's size exceeds the limit ``strings``."""
    if isinstance(count, int) and count > (most := current().strings):
        raise limit_error("strings", f"{most} tokens", quote(count), "vocab_size", str(folder / CONFIG))


def check_sizes(config: Config, tensors: Mapping[str, Any], fields: Iterable[str], file: str | None = None) -> None:
    """Raises FormatError if a config, or a part of it such as text_config, exceeds the weights.

    Args:
        config: as stored.
        tensors: of the model.
        fields: to be checked; `BLOCKS` counts blocks, others are sizes of a tensor.
        file: path of the config, for the error.
    """
    largest = max((size for tensor in tensors.values() for size in tensor.shape), default=0)
    left = [(config, "")]
    while left:
        part, path = left.pop()
        for field in fields:
            most = len(tensors) if field == BLOCKS else largest
            if isinstance(number := part.get(field), (int, float)) and number > most:
                raise FormatError(f"expected at most {most} by the weights, found {quote(number)}", f"{path}{field}", file=file)
        parts = ((name, value) for name, value in part.items() if name.endswith("_config") and isinstance(value, dict))
        left += ((value, f"{path}{name} -> ") for name, value in parts)


def config_of(metadata: Mapping[str, Any], keys: Iterable[ConfigKey], arch: str) -> Config:
    """Returns the config with the values of metadata keys, and the loader's for missing keys.

    Raises:
        FormatError: if a value has the wrong type or is not finite, or differs from that of another
            key with the same field.
    """
    config: Config = {}
    for row in keys:
        key, field, name = row.key, row.field, _full(row.key, arch)
        value = metadata.get(name, metadata.get(_full(OLD_NAMES.get(key, key), arch)))
        if value is None:
            value = row.default_of_loader
            value = value(config) if callable(value) else value
        if row.fields and value is not None:
            config |= row.fields(value, config)
            if (again := row.default(config)) not in (value, [value] * config.get(BLOCKS, 0)):
                raise FormatError(
                    f"expected {quote(again)} for {name}, as {CONFIG} states it, found {quote(value)}", "metadata"
                )
        if not field or value is None or value is REQUIRED:
            continue
        _check_type(name, value, "metadata")
        value = shortest(value) if isinstance(value, float) else value
        if (key, field) == BY_LAYER and isinstance(value, int):
            value = [not value or i % value < value - 1 for i in range(config[BLOCKS])]
        if (key, field) == BY_LAYER:
            value = [kind if isinstance(kind, str) else LAYERS[kind > 0] for kind in value]
        if (other := config.setdefault(field, value)) != value:
            raise FormatError(f"expected {quote(other)} for {name}, as {field} of {CONFIG}, found {quote(value)}", "metadata")
    config |= {BLOCKS: config[BLOCKS] - config[NEXTN]} if NEXTN in config else {}
    for field, name in ((f"{ROPE}.rope_theta", "rope_theta"), (f"{SLIDING}.rope_theta", "rope_local_base_freq")):
        if field in config:
            config[name] = config.pop(field)
    if DIMENSIONS in config:
        config["partial_rotary_factor"] = _fraction(config.pop(DIMENSIONS), config)
    scaling = {field.removeprefix(f"{SCALED}."): config.pop(field) for field in list(config) if field.startswith(SCALED)}
    scaling = {"rope_type": "linear", **scaling, "factor": scaling.get("factor") or 1.0}
    if scaling["rope_type"] == "yarn":
        scaling.setdefault("original_max_position_embeddings", config["max_position_embeddings"])
    elif scaling["rope_type"] == "none" or scaling["factor"] == 1:
        return config
    return config | {"rope_scaling": scaling}


def columns_of_head(config: Config) -> int:
    """Returns the number of columns of a head."""
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def _fraction(columns: int, config: Config) -> float:
    """Returns the fraction f with ``int(f * size of a head) == columns``."""
    size = columns_of_head(config)
    return columns / size if int(columns / size * size) == columns else math.nextafter(columns / size, math.inf)


def _full(key: str, arch: str) -> str:
    """Returns a key with the architecture's name, unless it begins with ``general.``."""
    return key if key.startswith("general.") else f"{arch}.{key}"
