"""Reading and writing of weights files by all ranks of torch.distributed.

``python -m glft_schema.distributed`` quantizes and converts files in several processes.
"""

from typing import TYPE_CHECKING

from glft_schema.lazy import on_first_use

if TYPE_CHECKING:
    from glft_schema.distributed.ranks import RanksError
    from glft_schema.distributed.storage_reader import StorageReader
    from glft_schema.distributed.storage_writer import StorageWriter
    from glft_schema.distributed.writing import together

# Imported on first use: `__main__` sets variables that torch reads when it is imported.
LATER = {
    "distributed.ranks": "RanksError",
    "distributed.storage_reader": "StorageReader",
    "distributed.storage_writer": "StorageWriter",
    "distributed.writing": "together",
}

__all__ = ["RanksError", "StorageReader", "StorageWriter", "together"]
__getattr__, __dir__ = on_first_use(globals(), LATER)
