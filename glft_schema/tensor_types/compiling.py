"""Compiles the formulas and encoders of the tensor types that the package declares.

python -m glft_schema.tensor_types.compiling            for this machine, into this package
python -m glft_schema.tensor_types.compiling x86_64-windows FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from glft_schema.tensor_types import ggml, symmetric
from glft_schema.tensor_types.composite import compiled_types
from glft_schema.tensor_types.halves import HALVES
from glft_schema.tensor_types.library import building, loading
from glft_schema.tensor_types.tensor_type import TensorType

DECLARED = (
    *ggml.DECLARED,
    *(value for value in vars(symmetric).values() if isinstance(value, TensorType)),
    *compiled_types(),
)


def build_library(folder: Path = loading.FOLDER, target: str = "") -> None:
    """Compiles the functions of the types that the package declares, see `building.build`."""
    building.build([*HALVES, *(functions for type_ in DECLARED if (functions := type_.functions))], folder, target)


if __name__ == "__main__":
    target, folder = (*sys.argv[1:], "", "")[:2]
    try:
        build_library(Path(folder) if folder else loading.FOLDER, target)
    except building.BuildError as error:
        sys.exit(str(error))
