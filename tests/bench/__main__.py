"""``python -m tests.bench [GROUP ...] [--json | --markdown] [--threads N]``."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
from dataclasses import asdict
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec

import torch

from tests.bench.measure import table

GROUPS = ("opening", "fresh", "dequantizing", "quantizing", "loading", "exporting", "models", "packed", "scale", "gpu")
TITLE = """# Speed: all measurements

Measured on {}.
"""
PACKAGES = ("torch", "numpy", "construct", "gguf", "safetensors", "transformers", "xllamacpp")


def machine() -> str:
    """Returns what this runs on."""
    cpu = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            cpu = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), cpu)
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ", no GPU"
    return f"{os.cpu_count()} cores of {cpu}{gpu}, {platform.system()}, Python {platform.python_version()}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(GROUPS))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    versions_of = {name: version(name) for name in PACKAGES if find_spec(name)}
    about = {"machine": machine(), "threads": options.threads, "versions": versions_of}
    if options.markdown:
        print(TITLE.format(datetime.date.today()))
    if not options.json:
        versions = ";\n".join(f"{name} {found}" for name, found in about["versions"].items())
        print(about["machine"], versions, sep="\n\n", flush=True)
    measured = []
    for group in options.groups or GROUPS:
        rows = list(import_module(f"tests.bench.{group}").rows())
        measured.extend(rows)
        if not options.json and rows:
            heading = f"## {group.capitalize()}" if options.markdown else group
            print(f"\n{heading}\n\n{table(rows, options.markdown)}", flush=True)
    if options.json:
        print(json.dumps({**about, "rows": [{**asdict(row), "ratio": row.ratio, "met": row.met} for row in measured]}))


if __name__ == "__main__":
    main()
