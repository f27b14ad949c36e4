"""What commands refuse: one line on stderr, exit code 2, and every file as it was.

Texts that the library raises are asserted in its own tests, and here only one for each way in
which a command refuses.
"""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest
import safetensors.torch
import torch

import glft_schema
from tests.catalogue.gguf_cases import placed, w
from tests.golden import golden
from tests.tools.command_line import assert_refused
from tests.tools.command_line import in_this_process as glft
from tests.tools.posix import MISSING

LLAMA = {"general.architecture": "llama", "general.name": "a", "llama.block_count": 1, "a.words": ["a"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, sets, links to a set as in caches, an adapter, and files that are no weights."""
    folder = tmp_path_factory.mktemp("refused")
    tensors = {f"blk.0.attn_{letter}.weight": torch.ones(2, 256) for letter in "qvo"}
    for name in ("model.gguf", "other.gguf", "alone/model.gguf"):
        (folder / name).parent.mkdir(exist_ok=True)
        glft_schema.save_file(tensors, folder / name, LLAMA)
    glft_schema.split(folder / "model.gguf", folder / "v", max_tensors=2)
    (folder / "links").mkdir()
    for path in folder.glob("v-*"):
        (folder / "links" / path.name.replace("v", "w")).symlink_to(path)
    for name in ("shards", "adapter", "hub", "pipeline/unet"):
        (folder / name).mkdir(parents=True)
    safetensors.torch.save_file({"w": torch.ones(1)}, folder / "shards/1.safetensors")
    safetensors.torch.save_file({"w": torch.ones(1)}, folder / "adapter/adapter_model.safetensors")
    safetensors.torch.save_file({"w": torch.full((1, 64), torch.nan)}, folder / "nan.safetensors")
    safetensors.torch.save_file({"w": torch.ones(2, 32, dtype=torch.uint16)}, folder / "u16.safetensors")
    (folder / "shards/model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": "1.safetensors"}}))
    for name in ("adapter/adapter_config.json", "hub/config.json", "pipeline/model_index.json"):
        (folder / name).write_text("{}")
    (folder / "pipeline/unet/config.json").write_text('{"_class_name": "UNet2DModel"}')
    safetensors.torch.save_file({"w": torch.ones(1)}, folder / "pipeline/unet/diffusion_pytorch_model.safetensors")
    (folder / "four.glft").write_bytes(golden("four_types"))
    (folder / "cut.glft").write_bytes(golden("four_types")[:60])
    (folder / "late.gguf").write_bytes(placed(32, w(dims=(8,), offset=4)))
    glft_schema.save_file({"w": torch.ones(999, 8)}, folder / "short.gguf", LLAMA)
    os.truncate(folder / "short.gguf", (folder / "short.gguf").stat().st_size - 1)
    (folder / "text").write_text("hello")
    (folder / "binary").write_bytes(b"ab\xff")
    return folder


def refuse(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs a command in the folder, and returns its error."""
    monkeypatch.chdir(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    done = glft(*shlex.split(command))
    assert_refused(done)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    return done.stderr.replace(os.sep, "/")


OPEN = (
    *("inspect FILE", "explain FILE", "view FILE -o out", "view model.gguf --against FILE -o out", "get-tensor FILE w w.npy"),
    *("verify FILE", "verify model.gguf --fits FILE", "verify model.gguf --derives-from FILE", "hash FILE"),
    *("compare FILE model.gguf", "compare model.gguf FILE", "edit FILE --set a=b", "split FILE part --max-tensors 1"),
    *("merge FILE out", "convert FILE out.glft", "convert model.gguf out.gguf --like FILE", "quantize FILE out.gguf Q8_0"),
    *("quantize model.gguf out.gguf Q8_0 --like FILE", "plan FILE --bpw 5", "merge-lora FILE model.gguf out.gguf"),
    "merge-lora model.gguf FILE out.gguf",
)
READ = (
    *("verify model.gguf --manifest FILE", "verify model.gguf --derives-from model.gguf --imatrix FILE"),
    *("convert model.gguf out.glft --imatrix FILE", "quantize model.gguf out.gguf Q8_0 --imatrix FILE"),
    *("quantize model.gguf out.gguf Q8_0 --tensor-type-file FILE", "plan model.gguf --bpw 5 --imatrix FILE"),
    *("imatrix FILE out.gguf", "imatrix model.gguf FILE -o out.gguf", "edit model.gguf --set a=@FILE"),
)


@pytest.mark.parametrize("command", OPEN + READ)
def test_a_file_that_is_not_there(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "none\nglft: forged" if os.name == "posix" else "zzzzzzzz"  # Windows has no such names
    command = command.replace("FILE", shlex.quote(name)).replace(f"@{shlex.quote(name)}", shlex.quote(f"@{name}"))
    assert refuse(command, folder, monkeypatch) == f"glft: {repr(name)[1:-1]}: {MISSING}\n"


@pytest.mark.parametrize(("at", "by"), [(8, 1), (8, 2), (16, 1), (16, 2), (16, -1), (16, -2)])
def test_a_wrong_count_of_tensors_or_keys(at: int, by: int, folder: Path, tmp_path: Path) -> None:
    stored = bytearray((folder / "model.gguf").read_bytes())
    count = int.from_bytes(stored[at : at + 8], "little")
    stored[at : at + 8] = (count + by).to_bytes(8, "little")
    (tmp_path / "wrong.gguf").write_bytes(stored)
    done = glft("inspect", tmp_path / "wrong.gguf")
    assert_refused(done, "; the file may be truncated, or a count, length or offset before it is wrong")


@pytest.mark.parametrize("command", OPEN)
def test_a_file_of_no_format(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "glft: text: header -> magic: expected b'TFLG' (GLFT), b'GGUF' (GGUF) or a safetensors file, found b'hell'; "
    assert refuse(command.replace("FILE", "text"), folder, monkeypatch).startswith(text)


@pytest.mark.parametrize(
    "command",
    [
        "convert model.gguf model.gguf",
        "convert . other.gguf",  # a folder of shards
        "quantize model.gguf model.gguf Q8_0",
        "compare model.gguf other.gguf --html other.gguf",
        "merge v-00001-of-00002.gguf v-00001-of-00002.gguf",
        "get-tensor v-00001-of-00002.gguf * v-00002-of-00002.gguf",
        "convert v-00001-of-00002.gguf v-00002-of-00002.gguf",
        "convert links/w-00001-of-00002.gguf links/w-00002-of-00002.gguf",
        "convert links/w-00001-of-00002.gguf v-00002-of-00002.gguf",
        "convert shards/model.safetensors.index.json shards/1.safetensors --format gguf",
    ],
)
def test_the_input_is_not_overwritten(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refuse(command, folder, monkeypatch) == "glft: the output would overwrite the input\n"


SET, CONVERT, QUANTIZE = "edit model.gguf --set", "convert model.gguf out.gguf", "quantize model.gguf out.gguf Q8_0"
OVERRIDE = "expected KEY=TYPE:VALUE for --override-kv, TYPE one of int, float, bool (true or false) or str; found "
TO_MERGE = "; to merge it, give its folder, 'adapter'; to check it, convert it to GGUF\n"
REFUSED = {
    # options that commands parse
    f"{CONVERT} --metadata novalue": "glft: expected KEY=VALUE, found 'novalue'\n",
    f"{CONVERT} --metadata a=1 --metadata a:uint8=2": "--metadata: expected each key once, found 'a' twice: '1' and '2'\n",
    f"{SET} a=@": "glft: expected a path after @, or @@ for a literal @\n",
    f"{SET} a=1 --set a=2": "glft: --set: expected each key once, found 'a' twice: '1' and '2'\n",
    f"{SET} a:uint8=x": "glft: expected a value in JSON for 'a:uint8', found 'x'\n",
    f"{SET} a:uint9=1": "glft: expected a type after the colon, uint8, int8, uint16, ",
    f"{SET} 'a:string=b c'": """found 'b c': write '"b c"', or --set 'a=b c'\n""",
    f"{SET} 'a:array[string]=[b, c]'": """for 'a:array[string]', found '[b, c]': write '["b","c"]'\n""",
    f"{SET} a:bool=True": "found 'True': write true\n",
    f"{SET} 'a.words=a, b'": """expected an array[string], found 'a, b': write '["a","b"]'\n""",
    f"{SET} general.tags=a": """general.tags: expected an array[string], found 'a': write '["a"]'\n""",
    f'{SET} "a:string=it\'s"': """found "it's"\n""",
    "edit model.gguf --rename a": "glft: expected OLD=NEW, found 'a'\n",
    "edit model.gguf --rename =a": "glft: expected OLD=NEW, found '=a'\n",
    "edit model.gguf --rename a=x --rename a=y": "--rename: expected each tensor once, found 'a' twice: 'x' and 'y'\n",
    f"{QUANTIZE} --tensor-type q8_0": "glft: expected REGEX=TYPE for --tensor-type, found 'q8_0'\n",
    f"{QUANTIZE} --tensor-type =q8_0": "glft: expected REGEX=TYPE for --tensor-type, found '=q8_0'\n",
    f"{QUANTIZE} --tensor-type-file binary": "glft: expected UTF-8 in 'binary', found an invalid byte at 2\n",
    f"{QUANTIZE} --override-kv a=3": f"glft: {OVERRIDE}'a=3'\n",
    f"{QUANTIZE} --override-kv a=int:x": f"glft: {OVERRIDE}'a=int:x'\n",
    f"{QUANTIZE} --override-kv a=bool:yes": f"glft: {OVERRIDE}'a=bool:yes'\n",
    f"{QUANTIZE} --override-kv a=int:1 --override-kv a=int:2": "glft: --override-kv: expected each key once",
    f"{QUANTIZE} --prune-layers 1,x": "glft: expected numbers of layers for --prune-layers, such as 20,21, found '1,x'\n",
    "split model.gguf none/part --max-tensors 1": "expected PREFIX in an existing folder, found 'none': create it first\n",
    "get-tensor model.gguf blk.0.attn_q.weight w.safetensors": "glft: expected OUT to end in .npy, found 'w.safetensors'\n",
    "inspect model.gguf --key x.*": "glft: expected a metadata key of the file, found 'x.*'\n",
    "schema recipes --as json": "glft: recipes are a document: expected --as markdown, found json\n",
    "verify model.gguf --sha256 12": "glft: expected 64 hexadecimal digits for --sha256, found '12'\n",
    "verify model.gguf --manifest model.gguf": "the output of glft hash or sha256sum for --manifest, found a GGUF file\n",
    "verify model.gguf --manifest text": "glft: text: line 1: expected a line of the form 'HASH  FILE', found 'hello'\n",
    "verify model.gguf --exclude w": "glft: --exclude requires --derives-from or --values\n",
    "verify model.gguf --imatrix none": "glft: --imatrix requires --derives-from\n",
    "verify model.gguf --tolerance 1": "glft: --tolerance requires --derives-from\n",
    "verify four.glft --rules ggml": "glft: expected a rule set of GLFT, found 'ggml'\n",
    "view model.gguf -o page.html --exclude w": "glft: --exclude requires --against\n",
    # what the library refuses
    "edit model.gguf": "glft: expected at least one change, found none to set, remove or rename\n",
    "edit model.gguf --remove general.architecture -o out.gguf": "glft: model.gguf: metadata: expected the key general.arch",
    "edit model.gguf --set a=b -o none/out": "glft: none/out: No such file or directory\n",
    f"{CONVERT} --metadata No=x": "' [gguf-key]\n",
    "convert model.gguf out": "an output file that ends in .glft, .gguf-lite",
    "convert model.gguf out.safetensors --gguf-version 3": "header: expected no fields, found 'version'",
    "convert model.gguf back": "found 'back'; convert writes a Hugging Face folder to back/\n",
    "convert model.gguf back.bin": ".safetensors, found 'back.bin'\n",
    "convert nan.safetensors out.gguf --scheme q8_0": "glft: nan.safetensors: tensor 'w' at [0, 0]: NaN",
    "convert u16.safetensors out.gguf": "glft: u16.safetensors: tensor 'w': ggml has no type for uint16: exclude the tensor, "
    "or convert it to one of float32, float16, int8, int16, int32, int64, float64, bfloat16\n",
    "convert u16.safetensors out.gguf --scheme w=i32": "glft: u16.safetensors: tensor 'w': cannot be stored as i32: "
    "expected a signed integer dtype, uint8 or bool, found uint16: exclude or convert the tensor\n",
    "convert hub/config.json out.gguf": "; give its folder, 'hub' (at byte 0)\n",
    "convert pipeline out.gguf": "a pipeline of diffusers has a model in each of its folders: give their files, one by one\n",
    "convert pipeline/unet out.gguf": "glft: pipeline/unet/config.json: architectures: expected a model of transformers, found "
    "'UNet2DModel' of diffusers: give its file, to keep its names\n",
    "quantize model.gguf out.glft Q8_0": "writes GGUF, found the output 'out.glft': write GGUF, then use glft convert\n",
    "quantize model.gguf o.safetensors Q8_0 --dry-run": "glft: quantize writes GGUF, found the output 'o.safetensors': ",
    "merge model.gguf out": "expected the first file or the index of a split model, found",
    "merge-lora model.gguf adapter/adapter_model.safetensors out.gguf": TO_MERGE,
    "verify adapter/adapter_model.safetensors --fits model.gguf": TO_MERGE,
    "inspect alone": "glft: alone: expected an index (*.safetensors.index.json) or one safetensors file, found 0 files; "
    "give one of its GGUF files: model.gguf\n",
    "inspect cut.glft": "cut.glft: header -> n_tensors: expected at most 1 (bytes left: 22",
    "verify cut.glft": "; the file may be truncated, or a count, length or offset before it is wrong\n",
    "verify late.gguf": "glft: late.gguf: tensor_infos -> 0 -> offset: expected a multiple of the alignment, 32, found 4; "
    "from there, 32 bytes extend past the end of the file (tensor 'w', at byte 49)\n",
    "verify short.gguf": " bytes (99.9 %), 0 of 1 tensor complete; download the rest (tensor 'w', at byte ",  # not rounded up
    "split model.gguf part": "expected max_tensors or max_bytes (--max-tensors or --max-bytes), found neither\n",
    "split model.gguf v --split-max-tensors 2": "expected no file at the output paths, found 'v-00001-of-00002.gguf': ",
    "get-tensor model.gguf blk.* w.npy": "found 3: 'blk.0.attn_q.weight', 'blk.0.attn_v.weight', 'blk.0.attn_o.weight'\n",
    "lab --out model.gguf/x --steps 1": "glft: model.gguf",
    # misspelled words
    "--limit nestin=3 inspect model.gguf": "; did you mean 'nesting'?\n",
    f"{CONVERT} --scheme q4k": "; did you mean 'q4_k'?\n",
    f"{CONVERT} --format ggfu": "; did you mean 'GGUF'?\n",
    f"{CONVERT} --rules gmml": "; did you mean 'ggml'?\n",
    "verify model.gguf --rules llamacpp": "; did you mean 'llama.cpp'?\n",
    "verify model.gguf --values --exclude blk.0.attn_w.weight": "; did you mean 'blk.0.attn_",
    "quantize model.gguf out.gguf Q4KM": "; did you mean 'Q4_K_M'?\n",
    "edit model.gguf --remove general.nam": "; did you mean 'general.name'?\n",
    "inspect model.gguf --key general.nam": "; did you mean 'general.name'?\n",
    "inspect model.gguf --tensors blk.0.attn_q.weigh": "; did you mean 'blk.0.attn_q.weight'?\n",
    "explain model.gguf --tensor blk.0.attn_q.wieght": "; did you mean 'blk.0.attn_q.weight'?\n",
    "get-tensor model.gguf blk.0.attn_q.weight w.npy --dtype flot16": "; did you mean 'float16'?\n",
    "schema Q4K": "; did you mean 'q4_k'?\n",
    "schema q8": "; did you mean 'q8_per_channel', 'q8_0' or 'q8_1'?\n",
}


@pytest.mark.parametrize("command", REFUSED)
def test_what_is_refused(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert REFUSED[command] in refuse(command, folder, monkeypatch)
