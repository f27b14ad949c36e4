"""A coverage-guided search for bytes that break a promise: libFuzzer drives the package, and keeps what reaches new code.

    pip install 'atheris>=3'                                   # wheels for CPython on x86-64 Linux
    python -m tests.fuzz.target work                                # until a failure, or Ctrl-C
    python -m tests.fuzz.target work -max_total_time=600            # options are libFuzzer's
    python -m tests.fuzz.target crash-da39a3ee5e6b                  # that file again
    python -m tests.fuzz.target -merge=1 tests/fuzz/corpus work     # puts what reaches new code into the first folder

The folder `work` gets the seeds, and then every file that reached new code.

Of each file `tests.fuzz.promises` are checked. A failure is an exception: libFuzzer writes the file as ``crash-SHA1``. Where
one takes more than `SECONDS`, or the process more than `MEGABYTES`, that is a failure, too: ``timeout-SHA1``, ``oom-SHA1``.

libFuzzer's own mutations are mixed with those of `tests.fuzz.mutator`. The package and construct are instrumented, the
strategies that make mutations are not.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from random import Random
from shlex import quote
from types import ModuleType

import atheris

UNSEEN = ("glft_schema.testing", "glft_schema.lab", "glft_schema.__main__")


def import_parts(package: ModuleType) -> None:
    """Imports the modules of a package and of those in it, but for `UNSEEN`."""
    for module in iter_modules(package.__path__, f"{package.__name__}."):
        if not module.name.startswith(UNSEEN):
            part = import_module(module.name)
            if module.ispkg:
                import_parts(part)


with atheris.instrument_imports(include=["glft_schema", "construct"]):
    import glft_schema

    import_parts(glft_schema)

import torch

from tests.fuzz.mutator import mutated
from tests.fuzz.promises import check_promises
from tests.fuzz.seeds import LONGEST, write_seeds

SECONDS = 20
MEGABYTES = 2048
KNOWING = 0.3  # of all mutations, those that know the format, which are slow


def mutate(stored: bytes, longest: int, seed: int) -> bytes:
    """Returns another file made from `stored`: by libFuzzer, or by breaking one thing of it."""
    random = Random(seed)
    if random.random() < KNOWING and (made := mutated(stored, random)) is not None and len(made) <= longest:
        return made
    return bytes(atheris.Mutate(stored, longest))


def main(arguments: list[str]) -> None:
    """Runs libFuzzer; the first folder, where the search keeps its files, is made with the seeds in it if it is not there."""
    torch.set_num_threads(1)
    places = [Path(argument) for argument in arguments if not argument.startswith("-")]
    if places and not places[0].exists() and "-merge=1" not in arguments:
        write_seeds(places[0])
    limits = [f"-max_len={LONGEST}", f"-timeout={SECONDS}", f"-rss_limit_mb={MEGABYTES}"]
    program = f"{quote(sys.executable)} -m tests.fuzz.target"  # which merging starts by itself, in a shell
    atheris.Setup([program, *limits, *arguments], check_promises, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
