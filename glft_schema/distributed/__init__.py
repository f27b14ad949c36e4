"""torch.distributed: weights files read and written by all ranks together.

``python -m glft_schema.distributed`` quantizes and converts files in several processes.
"""

from typing import TYPE_CHECKING, Any

from glft_schema.lazy import import_module

if TYPE_CHECKING:
    from glft_schema.distributed.ranks import RanksError
    from glft_schema.distributed.reading import StorageReader
    from glft_schema.distributed.saving import StorageWriter
    from glft_schema.distributed.writing import together

# Imported on first use: `__main__` sets variables that torch reads when it is imported.
MODULES = {"RanksError": "ranks", "StorageReader": "reading", "StorageWriter": "saving", "together": "writing"}

__all__ = ["RanksError", "StorageReader", "StorageWriter", "together"]


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(f"{__name__}.{MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *MODULES})
