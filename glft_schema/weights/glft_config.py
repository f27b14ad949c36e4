"""The quantization config for `from_pretrained` of transformers and diffusers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from glft_schema.errors import OptionError, quote
from glft_schema.formats.registry import registered_type


class Method(str, Enum):
    """The name of the quantization method in transformers and diffusers."""

    GLFT = "glft"


@dataclass
class GlftConfig:
    """How `from_pretrained` of transformers and diffusers packs a model.

    Import `glft_schema.transformers` or `glft_schema.diffusers` to register it with that library.

    Attributes:
        types: one type for all linear layers and experts, except the output and tied layers; or
            types by name or fnmatch pattern of weights. A saved model has exact names. ``q8_0
            transposed`` is the type of experts that are indexed as [in, out].
        quant_method: the method's name, as in config.json.

    Raises:
        OptionError: if a type is unknown, or none is quantized.
    """

    types: str | Mapping[str, str] = "q4_k"
    quant_method: str = Method.GLFT

    def __post_init__(self) -> None:
        self.quant_method = Method(self.quant_method)
        entries = {"*": self.types} if isinstance(self.types, str) else self.types
        if not isinstance(entries, Mapping) or not entries:
            raise OptionError(f"expected a type, or types by name or pattern of weights, found {quote(self.types)}")
        types = [registered_type(str(scheme).partition(" ")[0]) for scheme in entries.values()]
        if not any(type_.is_quantized for type_ in types):
            raise OptionError(f"expected a quantized type such as q4_k, found {quote(self.types)}")

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> GlftConfig:
        """Returns a config from the result of `to_dict`."""
        return cls(**config)

    def to_dict(self) -> dict[str, Any]:
        """Returns the attributes for config.json."""
        return asdict(self) | {"quant_method": Method.GLFT.value}

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        yield from self.to_dict().items()
