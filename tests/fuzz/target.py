"""A coverage-guided search by libFuzzer for files that break a promise.

    python -m tests.fuzz.target work                      # until a failure or Ctrl-C
    python -m tests.fuzz.target crash-da39a3ee5e6b        # that file again
    python -m tests.fuzz.target --kind torch_files work   # another of `KINDS`

It needs atheris; docs/guides/fuzzing.md has more commands. The folder `work` gets the seeds, and
each file that reaches new code. The promises are those of `tests.fuzz.promises`, or of the kind's
module. A failure raises an exception, and libFuzzer writes the file as ``crash-SHA1``. A file that
takes more than `SECONDS`, or more memory than `MEGABYTES`, is written as ``timeout-SHA1`` or
``oom-SHA1``. For containers, libFuzzer's mutations are mixed with those of `tests.fuzz.mutator`.
The package and construct are instrumented; the mutator's strategies are not.
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

UNSEEN = "testing", "lab", "__main__", "tensor_types.build_hook"  # the last needs hatchling


def import_parts(package: ModuleType) -> None:
    """Imports the modules of a package and its subpackages, except `UNSEEN`."""
    for module in iter_modules(package.__path__, f"{package.__name__}."):
        if not module.name.startswith(tuple(f"glft_schema.{name}" for name in UNSEEN)):
            part = import_module(module.name)
            if module.ispkg:
                import_parts(part)


with atheris.instrument_imports(include=["glft_schema", "construct"]):
    import glft_schema

    import_parts(glft_schema)

import torch

from tests.fuzz.kinds import CONTAINERS, kind_of
from tests.fuzz.mutator import mutated
from tests.fuzz.seeds import LONGEST, write_seeds

SECONDS = 20
MEGABYTES = 2048
KNOWING = 0.3  # the share of mutations by the mutator, which knows the format and is slow


def mutate(stored: bytes, longest: int, seed: int) -> bytes:
    """Returns a mutation of a file by libFuzzer or by the mutator."""
    random = Random(seed)
    if random.random() < KNOWING and (made := mutated(stored, random)) is not None and len(made) <= longest:
        return made
    return bytes(atheris.Mutate(stored, longest))


def main(arguments: list[str]) -> None:
    """Runs libFuzzer; the first folder is created with the seeds if it is missing."""
    torch.set_num_threads(1)
    kind, *arguments = arguments[1:] if arguments[:1] == ["--kind"] else [CONTAINERS, *arguments]
    seeds, check_promises = kind_of(kind)
    folders = [Path(argument) for argument in arguments if not argument.startswith("-")]
    if folders and not folders[0].exists() and "-merge=1" not in arguments:
        write_seeds(folders[0], seeds)
    limits = [f"-max_len={LONGEST}", f"-timeout={SECONDS}", f"-rss_limit_mb={MEGABYTES}"]
    program = f"{quote(sys.executable)} -m tests.fuzz.target --kind {kind}"  # merging runs it in a shell
    own = {"custom_mutator": mutate} if kind == CONTAINERS else {}
    atheris.Setup([program, *limits, *arguments], check_promises, **own)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
