"""Writes screens.md, what commands print on terminals of 80 and 120 columns.

python docs/screens.py smollm2.gguf
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PAGE = Path(__file__).with_name("screens.md")
LINES = 24  # of a screen; longer outputs are cut
COMMANDS = (  # columns, command
    (80, "glft inspect smollm2.gguf"),
    (120, "glft inspect smollm2.gguf"),
    (80, "glft verify smollm2.gguf --values"),
    (80, "glft verify wrong.gguf"),
    (120, "glft verify wrong.gguf"),
    (80, "glft convert smollm2.gguf q5_0.gguf --scheme '*.weight=q5_0' --allow-requantize"),
    (120, "glft convert smollm2.gguf q5_0.gguf --scheme '*.weight=q5_0' --allow-requantize"),
    (80, "glft quantize smollm2.gguf q4_0.gguf Q4_0 --allow-requantize"),
    (120, "glft quantize smollm2.gguf q4_0.gguf Q4_0 --allow-requantize"),
    (80, "glft compare smollm2.gguf q4_0.gguf"),
    (120, "glft compare smollm2.gguf q4_0.gguf"),
    (80, "glft plan smollm2.gguf --size 80MB --types q4_0,q5_0,q8_0,iq4_nl --rows 8 --allow-requantize"),
    (120, "glft plan smollm2.gguf --size 80MB --types q4_0,q5_0,q8_0,iq4_nl --rows 8 --allow-requantize"),
)
HEAD = """# Screens

What commands print on a terminal of 80 and of 120 columns, without colours. `python
docs/screens.py` makes this page. The file `wrong.gguf` is SmolLM2 with another
`llama.attention.head_count`.
"""


def screen(command: str, columns: int, folder: str) -> str:
    """Returns what a command prints to a terminal."""
    primary, secondary = os.openpty()
    variables = {
        **os.environ,
        "COLUMNS": str(columns),
        "NO_COLOR": "1",
        "PATH": f"{os.environ['PATH']}:{Path(sys.executable).parent}",
    }
    process = subprocess.Popen(command, shell=True, cwd=folder, stdout=secondary, stderr=subprocess.PIPE, env=variables)
    os.close(secondary)
    output = b""
    while True:
        try:
            output += (part := os.read(primary, 1 << 16))
        except OSError:  # Linux: the terminal has no writer left
            break
        if not part:
            break
    os.close(primary)
    text = output.decode() + process.communicate()[1].decode()
    return re.sub("\x1b\\[[0-9;?]*[a-zA-Z]", "", text).replace("\r\n", "\n")


def main() -> None:
    parts = [HEAD]
    with tempfile.TemporaryDirectory() as folder:
        shutil.copyfile(sys.argv[1], Path(folder, "smollm2.gguf"))
        subprocess.run(
            f"cp smollm2.gguf wrong.gguf; {sys.executable} -m glft_schema edit wrong.gguf --set llama.attention.head_count=10",
            shell=True,
            cwd=folder,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        for columns, command in COMMANDS:
            lines = screen(command, columns, folder).splitlines()
            shown = "\n".join([*lines[:LINES], *(["..."] if len(lines) > LINES else [])])
            parts.append(f"\n## `glft {command.split()[1]}`, {columns} columns\n\n```text\n> {command}\n{shown}\n```\n")
    PAGE.write_text("".join(parts), "utf-8")


if __name__ == "__main__":
    main()
