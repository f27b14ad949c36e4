"""The files of a release agree with each other and with the package."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from glft_schema.tensor_types.library.building import TARGETS

ROOT = Path(__file__).parents[2]


def found(pattern: str, name: str) -> list[str]:
    return re.findall(pattern, (ROOT / name).read_text("utf-8"), re.MULTILINE)


def test_one_version() -> None:
    version = found(r'^version = "(.*)"', "pyproject.toml")
    assert version == found("^version: (.*)", ".github/CITATION.cff")
    assert version == found("^## ([0-9.]+),", "docs/background/changelog.md")[:1]


def test_all_targets_are_built() -> None:
    (targets,) = found("for target in (.*); do", ".ci/release")
    assert targets.split() == list(TARGETS)


def test_the_commands_of_the_readme_are_run() -> None:
    """The script finds them by their form."""
    setup = r"^python3 -m venv \.venv && \.venv/bin/pip install -q -e '\.\[dev\]' && "
    assert len(found(f"{setup}.venv/bin/glft lab$", "README.md")) == 1
    assert len(found(f"{setup}.venv/bin/python -m pytest$", "README.md")) == 1


def test_the_sbom_names_what_was_taken_from_others(tmp_path: Path) -> None:
    environment = {"bomFormat": "CycloneDX", "components": [{"name": "numpy"}]}
    (tmp_path / "environment.json").write_text(json.dumps(environment))
    command = [sys.executable, ROOT / ".ci/sbom.py", tmp_path / "environment.json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    sbom = json.loads(done.stdout)
    assert sbom["bomFormat"] == "CycloneDX"
    files = {
        part["name"].partition(":")[0]: {row["value"] for row in part.get("properties", ())} for part in sbom["components"]
    }
    assert list(files) == ["numpy", "llama.cpp and ggml", "transformers", "peft"]
    for name in (
        "tensor_types/ggml_grids.bin",
        "tensor_types/ggml/k_quants.py",
        "quantizer/recipes.py",
        "formats/gguf_keys.py",
    ):
        assert f"glft_schema/{name}" in files["llama.cpp and ggml"]
    assert all((ROOT / path).exists() for paths in files.values() for path in paths)
