"""Tensor types: those of ggml, and tools to declare your own; see `tensor_types`."""

import tempfile
from pathlib import Path

from glft_schema.errors import OptionError, quote
from glft_schema.tensor_types.blocks import block_type
from glft_schema.tensor_types.declaration import Reserved, formula_of
from glft_schema.tensor_types.ggml import GGML_TYPES, register_type
from glft_schema.tensor_types.payload_layout import DIMS, IN, OUT
from glft_schema.tensor_types.tensor_type import TensorType

__all__ = [
    "DIMS",
    "GGML_TYPES",
    "IN",
    "OUT",
    "Reserved",
    "TensorType",
    "block_type",
    "compile",
    "formula_of",
    "register_type",
]


def compile(type_: TensorType) -> None:
    """Compiles the formula and encoders of your own type with this machine's compiler, for this
    process.

    Raises:
        OptionError: if the type has no scalar function, its name is not a C identifier, or there is
            no compiler or it fails.
        ScalarError: if a function does not follow the language, or C or a helper function has the
            name.
    """
    from glft_schema.tensor_types.library import building, loading  # slow to import

    if (functions := type_.functions) is None:
        raise OptionError(f"{type_} has no scalar function to compile: see formula_of")
    if not type_.scheme.isidentifier():
        raise OptionError(f"{quote(type_.name)} cannot be compiled: expected a name of letters, digits and '_'")
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # Windows keeps a loaded library
            building.build([functions], Path(folder))
            loading.add(loading.Library(Path(folder)))
    except (building.BuildError, loading.LibraryError) as error:
        raise OptionError(f"{type_} cannot be compiled: {error}") from None
