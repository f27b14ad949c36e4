"""transformers, imported when it is used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from glft_schema.errors import FormatError, TensorError
from glft_schema.families.config import refusing
from glft_schema.families.libraries import library
from glft_schema.storage.locations import shown
from glft_schema.storage.source import StrPath

LOCAL = {"local_files_only": True, "trust_remote_code": False}  # without the latter, transformers asks on the terminal


@contextmanager
def transformers_for(path: StrPath, expected: str) -> Iterator[Any]:
    """Imports transformers and silences it.

    Errors of transformers, and TensorError, are raised as FormatError with the file's name. Raises
    OptionError if transformers is missing.
    """
    transformers = library("transformers")
    logging = transformers.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        with refusing(path, expected):
            yield transformers
    except TensorError as error:
        raise FormatError(error.problem, tensor=error.tensor, file=shown(path)) from None
    except FormatError as error:
        error.file = error.file or shown(path)
        raise
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
