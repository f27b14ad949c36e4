"""Adds the projects that tables and formulas of the package were taken from to a CycloneDX SBOM of
its environment: ``sbom.py SBOM``. Prints the result.

The files of each project are those whose docstring names it after ``Source:``.
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = re.compile(r"\bSources?:\s+(.*?)(?:\n\n|\"\"\")", re.DOTALL)
BINARY = {"glft_schema/tensor_types/grids.py": "glft_schema/tensor_types/ggml_grids.bin"}
# By the words that name a project: its name, license, copyright and package URL. The version is the
# newest that the docstrings name.
PROJECTS = {
    r"llama\.cpp|ggml|gguf-py|xllamacpp|convert-hf-to-gguf": {
        "name": "llama.cpp and ggml: tables of constants, block layouts, quantization formulas, keys and names",
        "version": "b11549",
        "licenses": [{"license": {"id": "MIT"}}],
        "copyright": "The ggml authors",
        "purl": "pkg:github/ggml-org/llama.cpp@b11549",
    },
    r"transformers|modeling_rope_utils": {
        "name": "transformers: names of settings and of tensors",
        "version": "5.24.0",
        "licenses": [{"license": {"id": "Apache-2.0"}}],
        "copyright": "The Hugging Face team",
        "purl": "pkg:pypi/transformers@5.24.0",
    },
    r"\bpeft\b": {
        "name": "peft: names of settings and of tensors",
        "version": "0.21.0",
        "licenses": [{"license": {"id": "Apache-2.0"}}],
        "copyright": "The Hugging Face team",
        "purl": "pkg:pypi/peft@0.21.0",
    },
}

sbom = json.loads(Path(sys.argv[1]).read_text("utf-8"))
sbom["components"] = [part for part in sbom["components"] if part["name"] not in ("pip", "setuptools")]  # of the environment
modules = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in sorted(ROOT.glob("glft_schema/**/*.py"))}
sources = {name: " ".join(SOURCE.findall(text)) for name, text in modules.items()}
for words, project in PROJECTS.items():
    files = [name for name, text in sources.items() if re.search(words, text)]
    files += [BINARY[name] for name in files if name in BINARY]
    places = [{"name": "glft_schema:file", "value": name} for name in files]
    sbom["components"].append({"type": "library", "bom-ref": project["purl"], **project, "properties": places})
print(json.dumps(sbom, indent=2))
