"""The config with which `from_pretrained` of transformers and diffusers packs a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any


class Method(str, Enum):
    """The name under which transformers and diffusers know the types of this package."""

    GLFT = "glft"


@dataclass
class GlftConfig:
    """How `from_pretrained` of transformers and diffusers packs a model.

    Import `glft_schema.transformers` or `glft_schema.diffusers`, with which the library knows it.

    Attributes:
        types: one type for all linear layers and experts, except the output and tied layers; or
            types by name or fnmatch pattern of weights. Those of a saved model have exact names;
            ``q8_0 transposed`` is that of experts that are indexed as [in, out].
        quant_method: the method's name, as in config.json.
    """

    types: str | Mapping[str, str] = "q4_k"
    quant_method: str = Method.GLFT

    def __post_init__(self) -> None:
        self.quant_method = Method(self.quant_method)

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> GlftConfig:
        """Returns the config that `to_dict` gave."""
        return cls(**config)

    def to_dict(self) -> dict[str, Any]:
        """Returns the attributes for config.json."""
        return asdict(self) | {"quant_method": Method.GLFT.value}

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        yield from self.to_dict().items()
