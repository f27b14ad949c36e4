"""`glft verify`: its output; what it checks is tested in the folder checks."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch

import glft_schema
from glft_schema import Container, read_importance, save_file
from glft_schema.weights import ColumnSums, ImportanceMatrix
from tests.catalogue.gguf_cases import READ, REFUSED
from tests.tools.command_line import in_this_process as glft

STATE = {"a.weight": torch.randn(4, 256), "b.weight": torch.randn(4, 256), "norm": torch.ones(5)}
METADATA = {"general.architecture": "toy"}


def test_all_rules_hold(gguf: Path) -> None:
    text = f"{gguf}: GGUF, 3 tensors, {gguf.stat().st_size:,} bytes, all rules hold"
    not_checked = "llama.cpp: not checked, no rules for the architecture 'toy'"
    assert glft("verify", gguf).stdout.startswith(f"{text} (spec, ggml); {not_checked}\n")
    assert glft("verify", gguf, "--rules", "required").stdout.startswith(f"{text} (required)\n")


@pytest.mark.parametrize(
    ("sets", "rules"),
    [
        ((), ["gguf-architecture", "gguf-offset", "gguf-contiguous"]),
        (("spec", "ggml"), ["gguf-architecture", "gguf-offset", "gguf-contiguous"]),
        (("spec",), ["gguf-architecture", "gguf-offset"]),
        (("ggml",), ["gguf-contiguous"]),
    ],
)
def test_findings(sets: tuple[str, ...], rules: list[str], tmp_path: Path) -> None:
    path = tmp_path / "file.gguf"
    path.write_bytes(READ["an offset that is not aligned"].stored)
    done = glft("verify", path, *(part for name in sets for part in ("--rules", name)))
    assert (done.returncode, done.stderr) == (1, "")
    head, *lines = done.stdout.splitlines()
    count = f"{len(rules)} rule violation{'s' * (len(rules) > 1)} ({', '.join(sets or ('spec', 'ggml'))})"
    assert head.startswith(f"{path}: GGUF, 1 tensor, 100 bytes, {count}")
    assert [line.rpartition("[")[2].removesuffix("]") for line in lines if line.endswith("]")] == rules
    text = "  tensor_infos -> 0 -> offset: expected 0, found 4 (tensor 'w', at byte 49) [gguf-contiguous]"
    assert text in lines or sets == ("spec",)


def test_a_rule_of_every_reader(tmp_path: Path) -> None:
    (tmp_path / "file.gguf").write_bytes(REFUSED["a name twice"].stored)
    done = glft("verify", tmp_path / "file.gguf", "--rules", "ggml")
    assert (done.returncode, done.stdout) == (2, "")
    assert "tensor_infos -> 1 -> name: expected each name once" in done.stderr
    assert done.stderr.endswith(" [gguf-names-once]\n")


def test_a_set(gguf: Path, tmp_path: Path) -> None:
    """A finding names its file."""
    first, second = glft_schema.split(gguf, tmp_path / "part", max_tensors=2)
    stored = Container.parse(Path(second).read_bytes())
    Container.build_file({"format": "GGUF", **stored.regions, "metadata": stored.metadata | {"Not lower": 1}}, second)
    done = glft("verify", first, "--rules", "spec")
    line = done.stdout.splitlines()[1].split()
    assert (done.returncode, line[0], line[-1]) == (1, f"{Path(second).name}:", "[gguf-key]")


def test_a_published_hash(four_types: Path) -> None:
    digest = sha256(four_types.read_bytes()).hexdigest()
    for given in (digest, f"sha256:{digest.upper()}"):
        done = glft("verify", four_types, "--sha256", given)
        assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "1 file matches --sha256")
    done = glft("verify", four_types, "--sha256", "0" * 64)
    assert (done.returncode, f"expected SHA-256 {'0' * 64}, found {digest}" in done.stdout) == (1, True)


def test_tolerance(four_types: Path, tmp_path: Path) -> None:
    state = {name: tensor + 1e-3 for name, tensor in glft_schema.load_file(four_types).items()}
    save_file(state, base := tmp_path / "base.safetensors")
    command = ("verify", four_types, "--derives-from", base, "--tolerance")
    some, every = glft(*command, 0.01), glft(*command, 0.5)
    assert (some.returncode, every.returncode) == (1, 0)
    assert f"{four_types} is not confirmed to derive from {base}: 4 differs (3 within 0.01)\n" in some.stdout
    assert every.stdout.endswith(f"{four_types} derives from {base}: 4 differs (4 within 0.5)\n")
    assert json.loads(glft(*command, 0.5, "--json").stdout)["derives_from"]["tolerance"] == 0.5


def quantized(out: Path, **options: Any) -> Path:
    save_file(STATE, out, METADATA, schemes={"*": "q4_k", "b.*": "q8_0"}, rules=(), **options)
    return out


def test_derivation(tmp_path: Path) -> None:
    base, path, matrix = tmp_path / "base.gguf", quantized(tmp_path / "q.gguf"), tmp_path / "i.gguf"
    save_file(STATE, base, METADATA)
    done = glft("verify", path, "--derives-from", base)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == f"{path} derives from {base}: 1 copied, 2 exact"

    ImportanceMatrix({"a.weight": ColumnSums(torch.rand(1, 256), torch.tensor([7]))}, ("text",), 1).save(matrix)
    weighted = quantized(tmp_path / "w.gguf", importance=read_importance(matrix))
    done = glft("verify", weighted, "--derives-from", base)
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert lines[-4] == f"{weighted} is not confirmed to derive from {base}: 1 copied, 1 exact, 1 unknown"
    assert lines[-2].split()[:4] == ["a.weight", "Q4_K", "unknown", "the"]
    assert lines[-1] == "give the importance matrix with --imatrix to check tensors that may have used one"
    for options in (("--imatrix", matrix), ("--exclude", "a.*")):
        assert glft("verify", weighted, "--derives-from", base, *options).returncode == 0

    done = glft("verify", path, "--derives-from", base, "--imatrix", matrix, "--json")
    found = json.loads(done.stdout)["derives_from"]
    differing = found.pop("tensors")[0]
    counts = {"differs": 1, "exact": 1, "copied": 1}
    assert (done.returncode, found) == (1, {"base": str(base), "imatrix": str(matrix), "tolerance": None, "counts": counts})
    assert (differing["verdict"], differing["problem"]) == ("differs", "other bytes")
    encoding, from_base, from_encoding = (differing[name]["relative"] for name in ("encoding", "from_base", "from_encoding"))
    assert 0 < from_encoding < from_base + encoding < 0.2
    assert 0 < differing["differing"] < 1


def test_json(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    save_file({"w": torch.ones(4, 64)}, path, METADATA, schemes={"w": "q8_0"}, rules=[])
    done = glft("verify", path, "--derives-from", path, "--json")
    assert (done.returncode, json.loads(done.stdout)) == (
        0,
        {
            "file": str(path),
            "format": "GGUF",
            "tensors": 1,
            "bytes": path.stat().st_size,
            "holds": True,
            "rules": {
                "checked": ["spec", "ggml"],
                "enforced": ["ggml"],
                "failures": 0,
                "not_checked": {"llama.cpp": "no rules for the architecture 'toy'"},
                "repair": None,
                "broken": [
                    {
                        "file": path.name,
                        "rule": "gguf-quantization-version",
                        "field": "metadata",
                        "name": None,
                        "problem": "expected the key general.quantization_version, found 1 other key",
                        "byte": 24,
                    }
                ],
            },
            "derives_from": {
                "base": str(path),
                "imatrix": None,
                "tolerance": None,
                "counts": {"copied": 1},
                "tensors": [{"name": "w", "type": "Q8_0", "verdict": "copied", "problem": ""}],
            },
        },
    )
