"""Compiles the decoders of tensor types: of those that the package declares, and of your own.

python -m glft_schema.tensor_types.compiling            for this machine, into this package
python -m glft_schema.tensor_types.compiling x86_64-windows FOLDER
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from glft_schema.errors import OptionError
from glft_schema.tensor_types import ggml, symmetric
from glft_schema.tensor_types.library import building, loading
from glft_schema.tensor_types.scalar_decoders import layout_of
from glft_schema.tensor_types.tensor_type import TensorType

DECLARED = (*ggml.DECLARED, *(value for value in vars(symmetric).values() if isinstance(value, TensorType)))


def build_library(folder: Path = loading.FOLDER, target: str = "") -> None:
    """Compiles the decoders of the types that the package declares, see `building.build`."""
    building.build([(layout_of(type_), type_.formula) for type_ in DECLARED if type_.is_scalar], folder, target)


def compile(type_: TensorType) -> None:
    """Compiles the scalar formula of your own type by this machine's compiler, for this process.

    Raises:
        OptionError: if the type has no scalar formula, or there is no compiler, or it fails.
    """
    if not type_.is_scalar:
        raise OptionError(f"{type_} has no scalar formula to compile: see formula_of")
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # Windows keeps a loaded library
            building.build([(layout_of(type_), type_.formula)], Path(folder))
            loading.add(loading.Library(Path(folder)))
    except (building.BuildError, loading.LibraryError) as error:
        raise OptionError(f"{type_} cannot be compiled: {error}") from None


if __name__ == "__main__":
    target, folder = (*sys.argv[1:], "", "")[:2]
    try:
        build_library(Path(folder) if folder else loading.FOLDER, target)
    except building.BuildError as error:
        sys.exit(str(error))
