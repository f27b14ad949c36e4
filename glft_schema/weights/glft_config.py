"""The quantization config for `from_pretrained` of transformers and diffusers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any


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
    """

    types: str | Mapping[str, str] = "q4_k"
    quant_method: str = Method.GLFT

    def __post_init__(self) -> None:
        self.quant_method = Method(self.quant_method)

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> GlftConfig:
        """Returns a config from the result of `to_dict`."""
        return cls(**config)

    def to_dict(self) -> dict[str, Any]:
        """Returns the attributes for config.json."""
        return asdict(self) | {"quant_method": Method.GLFT.value}

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        yield from self.to_dict().items()
