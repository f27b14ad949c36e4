"""The page of screens: what commands print on terminals of 80 and 120 columns."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.families.tiny_folders import make_folder

LINES = 24  # of a screen; longer outputs are cut
COMMANDS = (
    "glft inspect model.gguf",
    "glft verify model.gguf --values",
    "glft verify wrong.gguf",
    "glft convert model.gguf q5_0.gguf --scheme '*.weight=q5_0'",
    "glft quantize model.gguf q4_0.gguf Q4_0",
    "glft compare model.gguf q4_0.gguf",
    "glft plan model.gguf --size 70kB --types q4_0,q5_0,q8_0,iq4_nl --rows 8",
)
HEAD = """# Screens

What commands print on a terminal of 80 and of 120 columns, without colours, for a tiny llama. The
file `wrong.gguf` has another `llama.attention.head_count`.
"""


def screen(command: str, columns: int, folder: str) -> str:
    """Returns what a command prints to a terminal."""
    primary, secondary = os.openpty()
    path = f"{os.environ['PATH']}:{Path(sys.executable).parent}"
    variables = {**os.environ, "COLUMNS": str(columns), "NO_COLOR": "1", "PATH": path}
    process = subprocess.Popen(command, shell=True, cwd=folder, stdout=secondary, stderr=subprocess.PIPE, env=variables)
    os.close(secondary)
    output = b"".join(written(primary))
    os.close(primary)
    text = output.decode() + process.communicate()[1].decode()
    return re.sub("\x1b\\[[0-9;?]*[a-zA-Z]", "", text).replace("\r\n", "\n")


def written(terminal: int) -> Iterator[bytes]:
    """Yields what is written to a terminal, until it has no writer left."""
    try:
        while part := os.read(terminal, 1 << 16):
            yield part
    except OSError:  # Linux: no writer is left
        return


def screens() -> str:
    """Returns the page."""
    parts = [HEAD]
    with tempfile.TemporaryDirectory() as folder:
        make_folder(Path(folder), "tiny-llama")
        screen("glft convert tiny-llama/ model.gguf", 80, folder)
        screen("glft edit model.gguf --set llama.attention.head_count=1 -o wrong.gguf", 80, folder)
        for command in COMMANDS:
            for columns in (80, 120):
                lines = screen(command, columns, folder).splitlines()
                shown = "\n".join([*lines[:LINES], *(["..."] if len(lines) > LINES else [])])
                parts.append(f"\n## `glft {command.split()[1]}`, {columns} columns\n\n```text\n> {command}\n{shown}\n```\n")
    return "".join(parts)
