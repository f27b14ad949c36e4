"""Opens torch files in 64 MiB of address space: ``python -m tests.tools.opened_in_little PATH...``.

Prints the error of each.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from glft_schema import FormatError, TensorError
from glft_schema.weights.checkpoints import open_checkpoint
from tests.tools.posix import resource

if __name__ == "__main__":
    torch.ones(1)  # its libraries are not counted
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
    for path in sys.argv[1:]:
        try:
            print(len(open_checkpoint(path)), "tensors")
        except FormatError as error:
            print(error.text)
        except TensorError as error:
            print(error)
