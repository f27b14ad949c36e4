"""The optional libraries that folders of Hugging Face need."""

from __future__ import annotations

import importlib
import logging
from typing import Any

from glft_schema.codec.typed_values import Typed
from glft_schema.errors import OptionError, install


def library(name: str) -> Any:
    """Imports a library of the extras ``hf`` and ``transformers``.

    Raises OptionError if it is not installed.
    """
    try:
        module = importlib.import_module(name)
    except ImportError:
        if name in ("accelerate", "transformers"):
            raise OptionError(f"models and tokenizers need {name}: {install('transformers')}") from None
        raise OptionError(f"Hugging Face folders need {name}: {install('hf')}") from None
    if name == "gguf":
        logging.getLogger(name).setLevel(logging.ERROR)  # its warnings are about keys that GGUF does not have
    return module


def keys_of(writer: Any) -> dict[str, Typed]:
    """Returns the keys of a `gguf.GGUFWriter`, with their types."""
    return {key: _type_of(entry) for key, entry in writer.kv_data[0].items()}


def _type_of(entry: Any) -> Typed:
    gguf = library("gguf")
    value, type_ = entry.value, entry.type.name.lower()
    if entry.type is gguf.GGUFValueType.ARRAY:
        inner = entry.sub_type or gguf.GGUFValueType.get_type(value[0])
        inner = gguf.GGUFValueType.UINT8 if isinstance(value, bytes) else inner
        return Typed(list(value), f"array[{inner.name.lower()}]")
    return Typed(value, type_)
