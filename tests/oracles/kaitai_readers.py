"""What readers see of a file, as one plain structure: ours, and those that Kaitai Struct's compiler makes of our ``.ksy``.

Each walks over the schema's JSON, so that every field that is declared is compared. Floats are the bits of a float64 and bytes
are hex digits; integers are texts where JavaScript wrote them.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glft_schema import Container, File
from glft_schema.codec.metadata import TypedMetadata
from glft_schema.codec.typed_values import Array
from glft_schema.describe.as_json import as_data
from glft_schema.describe.kaitai.as_kaitai import as_kaitai
from glft_schema.describe.nodes import Schema
from glft_schema.describe.schema import schema_of
from glft_schema.formats.gguf import GGUF
from glft_schema.formats.glft import GLFT
from glft_schema.tensor_types.tensor_type import OpaqueType
from glft_schema.tensors.tensor import Tensor
from tests.tools.real_files import kept

FORMATS = {format.name: format for format in (GLFT, GGUF)}
SCHEMAS = {name: as_data(schema_of(format)) for name, format in FORMATS.items()}
PACKAGES = ("kaitai-struct-compiler@0.11.0", "kaitai-struct@0.11.0", "js-yaml@4")
COMPILE = """
const [ksy, out] = process.argv.slice(1), fs = require("fs"), yaml = require("js-yaml")
const compiler = require("kaitai-struct-compiler")
async function main() {
  for (const name of fs.readdirSync(ksy).filter(name => name.endsWith(".ksy"))) {
    const spec = yaml.load(fs.readFileSync(`${ksy}/${name}`, "utf8"))
    for (const language of ["python", "javascript"])
      for (const [file, text] of Object.entries(await compiler.compile(language, spec, null, false)))
        fs.writeFileSync(`${out}/${file}`, text)
  }
}
main().catch(error => { console.error(String(error)); process.exit(1) })
"""


def installed(request: pytest.FixtureRequest) -> Path:
    """Returns the folder that compiler and runtime are in, within pytest's cache; skips the test where they cannot be had."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}")
    with kept(request, "kaitai") as cache:
        if not (cache / "node_modules" / "js-yaml").exists():
            patience = ["--fetch-retries=1", "--fetch-timeout=20000"]  # without a way to the registry npm waits for minutes
            command = ["npm", "install", "--silent", "--no-audit", "--no-fund", *patience, "--prefix", cache, *PACKAGES]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
                pytest.skip(f"npm's registry cannot be reached: {why}")
        return cache


def node(cache: Path, *arguments: str | Path) -> str:
    """Runs node with the packages; returns what it prints."""
    done = subprocess.run(
        ["node", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"NODE_PATH": str(cache / "node_modules")},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def compiled(cache: Path, folder: Path, schemas: dict[str, Schema]) -> Path:
    """Writes the ``.ksy`` of each schema into a folder, and the readers that the compiler makes of it beside them."""
    for name, schema in schemas.items():
        (folder / f"{name}.ksy").write_text(as_kaitai(schema), "utf-8")
    node(cache, "-e", COMPILE, folder, folder)
    return folder


def python_reader(folder: Path, name: str) -> Any:
    """Returns a class of a reader in Python."""
    pytest.importorskip("kaitaistruct", reason="needs kaitaistruct, the runtime of Kaitai Struct's readers")
    spec = importlib.util.spec_from_file_location(f"kaitai_{name}", folder / f"{name.lower()}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, "".join(part.capitalize() for part in name.lower().split("_")))


def number(value: Any) -> str | int:
    """Returns a number as it is compared: any NaN is one."""
    if isinstance(value, (float, np.floating)):
        return "nan" if value != value else struct.pack(">d", float(value)).hex()
    return int(value)


def code_of(node: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the node of a switch that fields before it decide."""
    return next(case for case in node["cases"] if case["code"] == fields[node["on"]])["node"]


def payload_struct(schema: dict[str, Any], code: int) -> dict[str, Any] | None:
    """Returns the struct of a tensor type's payload, or None of an unknown type."""
    found = [type_["payload"] for type_ in schema["tensor_types"] if type_["code"] == code]
    return schema["structs"][found[0]] if found else None


class Theirs:
    """Walks over what a reader in Python gives."""

    def __init__(self, schema: dict[str, Any], root: Any, deep: bool = True) -> None:
        self.schema = schema
        self.deep = deep
        self.rows = next(
            (f["node"]["table"] for f in schema["structs"]["file"]["fields"] if f["node"]["kind"] == "payloads"), ""
        )
        self.root = root

    def file(self) -> dict[str, Any]:
        made = self.struct(self.schema["structs"]["file"], self.root)
        for row, fields in zip(getattr(self.root, self.rows), made[self.rows], strict=True):
            fields["payload"] = self.payload(row, fields["dtype"])
        return made

    def payload(self, row: Any, code: int) -> dict[str, Any] | None:
        found = payload_struct(self.schema, code)
        if found is None:
            assert (row.nbytes, row.payload_bytes, row.payload) == (-1, None, None)
            return None
        made = {"nbytes": number(row.nbytes), "sha256": hashlib.sha256(row.payload_bytes).hexdigest()}
        return made | (self.struct(found, row.payload) if self.deep else {})

    def struct(self, struct: dict[str, Any], value: Any) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for field in struct["fields"]:
            made[field["name"]] = self.node(field["node"], getattr(value, field["name"]), made)
        return made

    def node(self, node: dict[str, Any], value: Any, before: dict[str, Any]) -> Any:
        kind = node["kind"]
        if kind == "bytes" or kind == "padding":
            return value.hex()
        if kind == "text":
            valid = is_utf8(value.bytes)
            return {"bytes": value.bytes.hex(), "text": value.text if valid else None}
        if kind in ("list", "counted"):
            return [self.node(node["item"], item, before) for item in value]
        if kind == "numbers":
            return [number(item) for item in (value if isinstance(value, (list, bytes)) else [value])]
        if kind == "blocks":
            return [self.struct(self.schema["structs"][node["struct"]], item) for item in value]
        if kind == "switch":
            return self.node(code_of(node, before), value, before)
        if kind == "struct":
            return self.struct(self.schema["structs"][node["struct"]], value)
        if kind == "lines":
            return [[line.key, line.value] for line in value.lines]
        if kind == "derived":
            return [number(getattr(item, "value", item)) for item in value] if isinstance(value, list) else number(value)
        if kind == "payloads":
            return {"start": number(value.start), "sha256": hashlib.sha256(value.bytes).hexdigest()}
        return number(value)


class Ours:
    """Walks over what we give."""

    def __init__(self, schema: dict[str, Any], file: File, deep: bool = True) -> None:
        self.schema = schema
        self.deep = deep
        self.rows = file.format.table
        self.opened = file

    def file(self) -> dict[str, Any]:
        made = self.struct(self.schema["structs"]["file"], self.opened.regions)
        for tensor, fields in zip(self.opened.tensors.values(), made[self.rows], strict=True):
            fields["payload"] = self.payload(tensor, fields["dtype"])
        return made

    def payload(self, tensor: Tensor, code: int) -> dict[str, Any] | None:
        if isinstance(tensor.dtype, OpaqueType):
            return None
        made = {"nbytes": tensor.nbytes, "sha256": hashlib.sha256(tensor.raw).hexdigest()}
        found = payload_struct(self.schema, code)
        assert found
        return made | (self.fields(found, tensor) if self.deep else {})

    def fields(self, payload: dict[str, Any], tensor: Tensor) -> dict[str, Any]:
        """Returns the payload's fields; of a payload of blocks those of each block."""
        if tensor.dtype.block is None:
            kinds = {field["name"]: field["node"]["item"]["number"] for field in payload["fields"]}
            return {name: stored(field, kinds[name]) for name, field in tensor.fields.items()}
        (field,) = payload["fields"]
        block = self.schema["structs"][field["node"]["struct"]]
        kinds = {part["name"]: part["node"]["item"]["number"] for part in block["fields"]}
        columns = {name: [stored(row, kinds[name]) for row in column] for name, column in tensor.fields.items()}
        blocks = zip(*columns.values(), strict=True)
        return {field["name"]: [dict(zip(columns, block, strict=True)) for block in blocks]}

    def struct(self, struct: dict[str, Any], value: Any) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for field in struct["fields"]:
            made[field["name"]] = self.node(field["node"], value[field["name"]], made)
        return made

    def node(self, node: dict[str, Any], value: Any, before: dict[str, Any]) -> Any:
        kind = node["kind"]
        if isinstance(value, TypedMetadata):
            stored = [(key, value.stored(key)) for key in value]
            value = [{"key": key, "type": entry.type, "value": entry.value} for key, entry in stored]
        if isinstance(value, Array):
            value = {"type": value.type, "n": len(value.values), "elements": value.values}
        if kind == "bytes" or kind == "padding":
            return value.hex()
        if kind == "text":
            text = value.encode("utf-8", "surrogateescape")
            return {"bytes": text.hex(), "text": value if is_utf8(text) else None}
        if kind in ("list", "counted"):
            return [self.node(node["item"], item, before) for item in value]
        if kind == "switch":
            return self.node(code_of(node, before), value, before)
        if kind == "struct":
            return self.struct(self.schema["structs"][node["struct"]], value)
        if kind == "code":
            return value.code
        if kind == "lines":
            return [list(line) for line in value.items()]
        if kind == "byte_order":
            return self.schema["byte_orders"].index(value)
        if kind == "derived":
            return value
        if kind == "payloads":
            start = value.start
            region = self.opened.source.view(start, self.opened.source.size - start)
            return {"start": start, "sha256": hashlib.sha256(region).hexdigest()}
        return number(value)


def stored(field: torch.Tensor, kind: str) -> list[Any]:
    """Returns the numbers of a field; halves by their bits, and unsigned words, which come as their bytes, whole."""
    flat = field.contiguous().reshape(-1)
    if kind in ("f16", "bf16"):
        flat = flat.view(torch.int16) if flat.numel() else flat
        return [bits & 0xFFFF for bits in flat.tolist()]
    width = int(kind.lstrip("ubfi")) // 8
    if kind[0] == "u" and width > 1:
        return np.frombuffer(bytes(flat.tolist()), f"<u{width}").tolist()
    return [number(value) for value in flat.tolist()]


def is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def ours(stored: bytes, deep: bool = True) -> dict[str, Any]:
    """Returns what we see of a file."""
    file = Container.parse(stored)
    return Ours(SCHEMAS[file.format.name], file, deep).file()


def javascript(cache: Path, folder: Path, files: list[Path], deep: bool = True) -> list[Any]:
    """Returns what the readers in JavaScript see of files, named ``FORMAT-...``."""
    (folder / "schemas.json").write_text(json.dumps(SCHEMAS), "utf-8")
    (folder / "files.json").write_text(json.dumps([[path.name.partition("-")[0], str(path)] for path in files]), "utf-8")
    walk = Path(__file__).with_name("kaitai_walk.js")
    result = json.loads(node(cache, walk, folder, "deep" if deep else "flat"))
    assert isinstance(result, list)
    return result
