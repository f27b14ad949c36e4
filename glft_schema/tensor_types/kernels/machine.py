"""The processor, system, torch and compiler flags that a kernel is built for."""

from __future__ import annotations

import platform
import sys
from functools import lru_cache
from hashlib import sha256

from glft_schema.lazy import torch

# Settings of inductor. One thread: `workers` runs a kernel on parts of the rows in several threads,
# without a loop of OpenMP in which threads wait for each other. No line tables: four fifths of a
# library. No contraction, as in inductor's default: a fused multiply-add would round differently.
# No precompiled headers: torch keeps them in a folder in /tmp that another user could have made.
# The wrapper, which only calls the loop and takes most of the compiler's time, is not optimized.
OPTIONS = {
    "cpp.threads": 1,
    "cpp.enable_floating_point_contract_flag": "off",
    "cpp.enable_unsafe_math_opt_flag": False,
    "aot_inductor.enable_line_tables": False,
    "aot_inductor.precompile_headers": False,
    "aot_inductor.compile_wrapper_opt_level": "O0",
}
LINES = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags", "CPU implementer", "CPU part", "Features")


@lru_cache
def machine() -> dict[str, str]:
    """Returns the part of a kernel's key that is the same for all kernels of a process."""
    return {
        "torch": f"{torch.__version__} {torch.version.git_version}",
        "system": f"{platform.system()} {platform.machine()}, {sys.implementation.cache_tag}",
        "processor": f"{processor()}, {torch.backends.cpu.get_cpu_capability()}",
    }


def processor() -> str:
    """Returns the name of the processor and a hash of its features."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            lines = file.read(1 << 14).partition("\n\n")[0].splitlines()
    except OSError:
        return platform.processor()
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    features = "\n".join(f"{name}: {fields[name]}" for name in LINES if name in fields)
    return f"{fields.get('model name', platform.machine())} {sha256(features.encode()).hexdigest()[:8]}"
