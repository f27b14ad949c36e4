"""Grafts: tensors of other checkpoints, added to a checkpoint or in the place of its own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from glft_schema.errors import MetadataWarning, OptionError, quote, warn
from glft_schema.formats.format import Format
from glft_schema.formats.gguf_names import SCALES, scale_of
from glft_schema.storage.source import StrPath
from glft_schema.tensor_types.ggml.fp4 import NVFP4
from glft_schema.weights.checkpoints import Checkpoint, open_with_metadata
from glft_schema.weights.patterns import keep

Added = StrPath | Checkpoint


@contextmanager
def grafted(
    checkpoint: Checkpoint,
    add: Added | Iterable[Added] = (),
    only: Iterable[str] = (),
    target: Format | None = None,
    as_stored: bool | None = None,
    exact: bool = False,
) -> Iterator[Checkpoint]:
    """Yields an open checkpoint with tensors of others, which are closed at the end.

    A tensor replaces the one of the same name; others follow. The metadata stays, except the keys
    that count blocks; see `with_block_counts`.

    Args:
        checkpoint: the first checkpoint.
        add: paths of the others, or open checkpoints, which stay open. Of equal names, the last one
            is used.
        only: names or fnmatch patterns of their tensors, by default all; without `add`, of the
            first checkpoint's tensors.
        target: the format to be written; see `open_with_metadata`.
        as_stored, exact: as for `open_with_metadata`.

    Raises:
        OptionError: if the checkpoint has the types of a donor.
        SchemeError: if a pattern matches nothing.
        Others as `open_with_metadata`.

    Warns:
        MetadataWarning: if a tensor has another shape than the one that it replaces.
    """
    paths = [add] if isinstance(add, (str, os.PathLike, Checkpoint)) else list(add)
    if checkpoint.donor and (paths or only):
        raise OptionError("expected add and only (--add, --only) without like (--like): convert with like first")
    with ExitStack() as opened:
        others = [
            opened.enter_context(open_with_metadata(path, (), target, as_stored=as_stored, exact=exact)) for path in paths
        ]
        if not others:
            yield checkpoint.with_tensors(keep(checkpoint.tensors, only))
            return
        theirs = {name: tensor for other in others for name, tensor in other.tensors.items()}
        own, added = dict(checkpoint.tensors), keep(theirs, only)
        for name in [*added]:  # a scale belongs to the codes of its tensor
            types = [one.packed.type for one in (own.get(name), added[name]) if one is not None and one.packed]
            for beside in (scale_of(name, ending) for ending in SCALES if NVFP4 in types):
                own.pop(beside, None)
                added |= {beside: theirs[beside]} if beside in theirs else {}
        for name, tensor in added.items():
            if name in own and tensor.shape != own[name].shape:
                shapes = f"{list(own[name].shape)} is replaced by one of {list(tensor.shape)}"
                warn(f"tensor {quote(name)} of shape {shapes}", MetadataWarning)
        yield checkpoint.with_tensors({**own, **added}, *(other.metadata for other in reversed(others)))
