"""torch.distributed: weights files read and written by all ranks together.

``python -m glft_schema.distributed`` quantizes and converts files in several processes.
"""

from glft_schema.distributed.ranks import RanksError
from glft_schema.distributed.reading import StorageReader
from glft_schema.distributed.saving import StorageWriter
from glft_schema.distributed.writing import together

__all__ = ["RanksError", "StorageReader", "StorageWriter", "together"]
