"""Recorded weights beside the values of the libraries that wrote them, for a table of the docs."""

from __future__ import annotations

from collections import Counter

import numpy as np

from glft_schema.composites.as_ggml import in_ggml
from glft_schema.errors import TensorError
from glft_schema.files.file import File
from glft_schema.storage.dtypes import name_of
from glft_schema.tensor_types.conversions import convert, widen
from glft_schema.tensors.stored_tensor import of_file


def compare(file: File, values: File) -> tuple[str, str, str]:
    """Returns the number of weights, the largest difference to the values of the library, relative
    to the largest value, and the types of ggml that hold the weights."""
    differences, types = [0.0], Counter[str]()
    for name in values.tensors:
        expected = values.tensors[name]
        try:
            weight = file.weights[name if name in file.weights else name.removesuffix(".weight")]
        except TensorError:
            types["refused"] += 1
            continue
        own, theirs = widen(convert(weight.array(), expected.type.dtype)), widen(expected.array())
        finite = np.isfinite(theirs)
        size = np.abs(theirs[finite]).max(initial=0) or 1
        differences.append(float(np.abs(own[finite] - theirs[finite]).max(initial=0) / size))
        stored = in_ggml(of_file(weight))
        types[stored.packed.type.name if stored.packed else name_of(stored.dtype)] += 1
    most = max(differences)
    held = ", ".join(f"{count} {name.replace('bfloat16', 'BF16').replace('float32', 'F32')}" for name, count in types.items())
    return f"{len(values.tensors)}", f"{most:.1g}" if most else "0", held
