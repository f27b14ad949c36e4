"""Files as plain data, read by this package and by readers that Kaitai Struct generates.

Each walk follows the schema's JSON, so every declared field is compared. Floats are the bits of a
float64 and bytes are hex digits. Integers from JavaScript are texts.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glft_schema import Container
from glft_schema.codec.metadata import TypedMetadata
from glft_schema.codec.typed_values import Typed
from glft_schema.describe.as_json import as_data
from glft_schema.describe.kaitai.as_kaitai import as_kaitai
from glft_schema.describe.nodes import Schema
from glft_schema.describe.schema import schema_of
from glft_schema.formats.gguf import GGUF, VALUE_TYPES
from glft_schema.formats.glft import GLFT
from glft_schema.tensor_types.tensor_type import OpaqueType
from glft_schema.tensors.tensor import Tensor
from tests.tools import npm
from tests.tools.npm import node
from tests.tools.real_files import kept

FORMATS = {format.name: format for format in (GLFT, GGUF)}
SCHEMAS = {name: as_data(schema_of(format)) for name, format in FORMATS.items()}
PACKAGES = ("kaitai-struct-compiler@0.11.0", "kaitai-struct@0.11.0")
COMPILE = """
const [ksy, out] = process.argv.slice(1), fs = require("fs")
const compiler = require("kaitai-struct-compiler")
async function main() {
  for (const name of fs.readdirSync(ksy).filter(name => name.endsWith(".ksy"))) {
    const spec = JSON.parse(fs.readFileSync(`${ksy}/${name}`, "utf8"))
    for (const language of ["python", "javascript"])
      for (const [file, text] of Object.entries(await compiler.compile(language, spec, null, false)))
        fs.writeFileSync(`${out}/${file}`, text)
  }
}
main().catch(error => { console.error(String(error)); process.exit(1) })
"""


def installed(request: pytest.FixtureRequest) -> Path:
    """Returns the folder of compiler and runtime; skips the test if they cannot be installed."""
    with kept(request, "kaitai") as cache:
        return npm.installed(cache, *PACKAGES)


def compiled(cache: Path, folder: Path, schemas: dict[str, Schema]) -> Path:
    """Writes the ``.ksy`` file of each schema, and the readers compiled from it, into a folder."""
    for name, schema in schemas.items():
        (folder / f"{name}.ksy").write_text(as_kaitai(schema), "utf-8")
    node(cache, "-e", COMPILE, folder, folder)
    return folder


def python_reader(folder: Path, name: str) -> Any:
    """Returns the class of a reader in Python."""
    pytest.importorskip("kaitaistruct", reason="needs kaitaistruct, the runtime of Kaitai Struct's readers")
    spec = importlib.util.spec_from_file_location(f"kaitai_{name}", folder / f"{name.lower()}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, "".join(part.capitalize() for part in name.lower().split("_")))


def number(value: Any) -> str | int:
    """Returns a number for comparison. All NaNs are equal."""
    if isinstance(value, (float, np.floating)):
        return "nan" if value != value else struct.pack(">d", float(value)).hex()
    return int(value)


class Walk:
    """Walks over a file as one reader gives it.

    Args:
        schema: the format's schema as data.
        root: the file, from the reader.
    """

    def __init__(self, schema: dict[str, Any], root: Any) -> None:
        self.schema = schema
        self.root = root
        nodes = [field["node"] for field in schema["structs"]["file"]["fields"]]
        self.table = next((node["table"] for node in nodes if node["kind"] == "payloads"), "")

    def payload_struct(self, code: int) -> dict[str, Any] | None:
        """Returns the struct of a tensor type's payload, or None if the type is unknown."""
        names = [type_["payload"] for type_ in self.schema["tensor_types"] if type_["code"] == code]
        return self.schema["structs"][names[0]] if names else None

    def struct(self, struct: dict[str, Any], value: Any) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for field in struct["fields"]:
            fields[field["name"]] = self.node(field["node"], self.get(value, field["name"]), fields)
        return fields

    def get(self, value: Any, name: str) -> Any:
        return getattr(value, name)

    def node(self, node: dict[str, Any], value: Any, before: dict[str, Any]) -> Any:
        match node["kind"]:
            case "bytes" | "padding":
                return value.hex()
            case "list" | "counted":
                return [self.node(node["item"], item, before) for item in value]
            case "switch":
                case = next(case for case in node["cases"] if case["code"] == before[node["on"]])
                return self.node(case["node"], value, before)
            case "struct":
                return self.struct(self.schema["structs"][node["struct"]], value)
        return number(value)


class Theirs(Walk):
    """A file from a generated reader in Python."""

    def file(self) -> dict[str, Any]:
        fields = self.struct(self.schema["structs"]["file"], self.root)
        for row, found in zip(getattr(self.root, self.table), fields[self.table], strict=True):
            found["payload"] = self.payload(row, found["dtype"])
        return fields

    def payload(self, row: Any, code: int) -> dict[str, Any] | None:
        struct = self.payload_struct(code)
        if struct is None:
            assert (row.nbytes, row.payload_bytes, row.payload) == (-1, None, None)
            return None
        hashed = {"nbytes": number(row.nbytes), "sha256": hashlib.sha256(row.payload_bytes).hexdigest()}
        return hashed | self.struct(struct, row.payload)

    def node(self, node: dict[str, Any], value: Any, before: dict[str, Any]) -> Any:
        match node["kind"]:
            case "text":
                return {"bytes": value.bytes.hex(), "text": value.text if is_utf8(value.bytes) else None}
            case "numbers":
                return [number(item) for item in (value if isinstance(value, (list, bytes)) else [value])]
            case "blocks":
                return [self.struct(self.schema["structs"][node["struct"]], item) for item in value]
            case "lines":
                return [[line.key, line.value] for line in value.lines]
            case "derived":
                return [number(getattr(item, "value", item)) for item in value] if isinstance(value, list) else number(value)
            case "payloads":
                return {"start": number(value.start), "sha256": hashlib.sha256(value.bytes).hexdigest()}
        return super().node(node, value, before)


class Ours(Walk):
    """A file from this package."""

    def file(self) -> dict[str, Any]:
        fields = self.struct(self.schema["structs"]["file"], self.root.regions)
        for tensor, found in zip(self.root.tensors.values(), fields[self.table], strict=True):
            found["payload"] = self.payload(tensor, found["dtype"])
        return fields

    def get(self, value: Any, name: str) -> Any:
        return value[name]

    def payload(self, tensor: Tensor, code: int) -> dict[str, Any] | None:
        if isinstance(tensor.type, OpaqueType):
            return None
        hashed = {"nbytes": tensor.nbytes, "sha256": hashlib.sha256(tensor.raw).hexdigest()}
        struct = self.payload_struct(code)
        assert struct
        return hashed | self.fields(struct, tensor)

    def fields(self, payload: dict[str, Any], tensor: Tensor) -> dict[str, Any]:
        """Returns the payload's fields; for blocks, the fields of each block."""
        if tensor.type.block is None:
            kinds = {field["name"]: field["node"]["item"]["number"] for field in payload["fields"]}
            return {name: stored(field, kinds[name]) for name, field in tensor.fields.items()}
        (field,) = payload["fields"]
        block = self.schema["structs"][field["node"]["struct"]]
        kinds = {part["name"]: part["node"]["item"]["number"] for part in block["fields"]}
        columns = {name: [stored(row, kinds[name]) for row in column] for name, column in tensor.fields.items()}
        blocks = zip(*columns.values(), strict=True)
        return {field["name"]: [dict(zip(columns, block, strict=True)) for block in blocks]}

    def node(self, node: dict[str, Any], value: Any, before: dict[str, Any]) -> Any:
        if isinstance(value, TypedMetadata):
            value = value.rows()
        if isinstance(value, Typed):
            value = {"type": VALUE_TYPES[value.element_type], "n": len(value.value), "elements": value.value}
        match node["kind"]:
            case "text":
                text = value.encode("utf-8", "surrogateescape")
                return {"bytes": text.hex(), "text": value if is_utf8(text) else None}
            case "code":
                return value.code
            case "lines":
                return [list(line) for line in value.items()]
            case "byte_order":
                return self.schema["byte_orders"].index(value)
            case "derived":
                return value
            case "payloads":
                region = self.root.source.view(value.start, self.root.source.size - value.start)
                return {"start": value.start, "sha256": hashlib.sha256(region).hexdigest()}
        return super().node(node, value, before)


def stored(field: np.ndarray[Any, Any], kind: str) -> list[Any]:
    """Returns the numbers of a field: halves as their bits."""
    flat = np.ascontiguousarray(field).reshape(-1)
    return [number(value) for value in (flat.view(np.uint16) if kind in ("f16", "bf16") else flat).tolist()]


def is_utf8(text: bytes) -> bool:
    return text.decode(errors="ignore").encode() == text


def ours(stored: bytes) -> dict[str, Any]:
    """Returns a file as this package reads it."""
    file = Container.parse(stored)
    return Ours(SCHEMAS[file.format.name], file).file()


def javascript(cache: Path, folder: Path, files: list[Path]) -> list[Any]:
    """Returns files, named ``FORMAT-...``, as the generated readers in JavaScript read them."""
    (folder / "schemas.json").write_text(json.dumps(SCHEMAS), "utf-8")
    (folder / "files.json").write_text(json.dumps([[path.name.partition("-")[0], str(path)] for path in files]), "utf-8")
    walk = Path(__file__).with_name("kaitai_walk.js")
    result = json.loads(node(cache, walk, folder))
    assert isinstance(result, list)
    return result
