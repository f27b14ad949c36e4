"""Facts about llama.cpp that the package's tables lack, read from llama.cpp's sources.

``python -m tests.tools.llama_cpp_facts SOURCES [LIBRARY] [--write]`` prints each difference with
the table to edit. SOURCES is a checkout of llama.cpp. LIBRARY is a shared object of llama.cpp that
may be newer: the names of keys in it are compared, too. ``--write`` adds fingerprints and file
types to their tables. Facts that the sources lack stay, as they may be of a newer llama.cpp.
"""

from __future__ import annotations

import argparse
import enum
import inspect
import re
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from glft_schema.families import pre_tokenizers
from glft_schema.families.pages import FAMILIES, every_model
from glft_schema.formats import file_types
from glft_schema.formats.gguf_keys import type_of_key
from glft_schema.quantizer.recipes import KEPT_NAMES, KEPT_PARTS, KEPT_PARTS_OF
from glft_schema.tensor_types.ggml import GGML_TYPES

ARCH = "toy"  # the architecture of keys
UNTYPED = {  # keys without a type in the package -> why
    f"{ARCH}.attention.sliding_window_pattern": "a number or bools",
    f"{ARCH}.attention.shared_kv_layers": "an integer or a float",
    f"{ARCH}.attention.recurrent_layers": "bools, or numbers from llama.cpp's saver",
    f"{ARCH}.attention.rope_pattern": "bools, or numbers from llama.cpp's saver",
    f"{ARCH}.attention.indexer.types": "bools, or numbers from llama.cpp's saver",
    f"{ARCH}.decision.temperature.x": "a name follows",
    f"{ARCH}.x_feat_in": "dense_2 or dense_3 for x",
    f"{ARCH}.x_feat_out": "dense_2 or dense_3 for x",
}
GIVEN_FLAT = {"clip.vision.image_grid_pinpoints": "array[int32]"}  # the converter passes numbers, not the pairs of the hint
SAMPLES: dict[Any, Any] = {int: 1, str: "x", float: 0.5, bool: True, bytes: b"x"}
NAME_IN_LIBRARY = re.compile(  # a C string that names a key
    rb"(?<![ -~])((?:%s|general|tokenizer(?:\.ggml)?|split|adapter|clip(?:\.%s|\.vision|\.audio)?|imatrix|xielu|diffusion)"
    rb"\.[a-z][a-z0-9_.]*[a-z0-9])\0"
)


def sample(hint: Any) -> Any:
    """Returns a value of a type, or of the first type of a union."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return sample(typing.get_args(hint)[0])
    if typing.get_origin(hint) is Sequence:
        return [sample(typing.get_args(hint)[0])]
    return next(iter(hint)) if issubclass(hint, enum.Enum) else SAMPLES[hint]


def written_by(gguf: Any) -> dict[str, str]:
    """Returns the types by key that gguf-py's writer gives, from a call of each ``add_`` method."""
    found: dict[str, str] = {}
    for name, method in inspect.getmembers(gguf.GGUFWriter, inspect.isfunction):
        given = [hint for hint in typing.get_type_hints(method).items() if hint[0] != "return"]
        if not name.startswith("add_") or "key" in dict(given) or name in ("add_tensor", "add_tensor_info"):
            continue
        writer = gguf.GGUFWriter(None, ARCH)
        writer.kv_data[0].clear()
        method(writer, *(sample(hint) for _, hint in given))
        for key, value in writer.kv_data[0].items():
            found[key] = value.type.name.lower()
            if value.type is gguf.GGUFValueType.ARRAY:  # elements have the type of the first, bytes are uint8
                element = value.sub_type or gguf.GGUFValueType.get_type(value.value[0])
                found[key] += "[uint8]" if isinstance(value.value, bytes) else f"[{element.name.lower()}]"
    return found | {key: type_ for key, type_ in GIVEN_FLAT.items() if key in found}


def wrong_types(written: dict[str, str]) -> Iterator[tuple[str, str, str | None]]:
    """Yields the keys with another type in the package than gguf-py's, with both types."""
    for key, type_ in written.items():
        ours = type_of_key(key, of_array=type_.startswith("array["))
        if ours != (None if key in UNTYPED else type_):
            yield key, type_, ours


def constants(gguf: Any) -> Iterator[str]:
    """Yields the keys that gguf-py names."""
    groups = [gguf.constants.Keys]
    while groups:
        for name, value in vars(groups.pop()).items():
            if inspect.isclass(value):
                groups.append(value)
            elif isinstance(value, str) and not name.startswith("_"):
                yield re.sub(r"\{\w+\}", "x", value.replace("{arch}", ARCH).replace("{id}", "0"))


def in_library(path: Path) -> Iterator[str]:
    """Yields the keys that a shared object of llama.cpp names."""
    for name in dict.fromkeys(NAME_IN_LIBRARY.findall(path.read_bytes())):
        key = name.decode().replace("clip.%s", "clip.vision").replace("%s", ARCH)
        if not key.endswith((".weight", ".bias", ".scale", ".input_scale")):  # not a tensor
            yield key


def fingerprints(sources: Path) -> dict[str, str]:
    """Returns the names of pre-tokenizers by fingerprint; a later name replaces an earlier one."""
    text = (sources / "conversion" / "base.py").read_text("utf-8")
    return dict(re.findall(r'chkhsh == "([0-9a-f]{64})":\s*(?:#[^\n]*\s*)*res = "([^"]+)"', text))


def codes_of_file_types(sources: Path) -> dict[str, int]:
    """Returns the codes of file types by name."""
    text = (sources / "include" / "llama.h").read_text("utf-8")
    found = re.findall(r"^\s*LLAMA_FTYPE_(?:ALL|MOSTLY)_(\w+)\s*=\s*(\d+)", text, re.MULTILINE)
    return {name: int(code) for name, code in found}


def kept_tensors(sources: Path) -> set[str]:
    """Returns the parts of names of tensors that llama-quantize leaves alone."""
    text = (sources / "src" / "llama-quant.cpp").read_text("utf-8")
    function = text.partition("bool tensor_allows_quantization")[2].partition("\n}")[0]
    return set(re.findall(r'name\.find\("([^"]+)"\)', function))


def of_vocabularies(sources: Path) -> dict[str, set[str]]:
    """Returns the names of pre-tokenizers, of kinds of vocabularies, and of keys that are read."""
    text, arch = ((sources / "src" / name).read_text("utf-8") for name in ("llama-vocab.cpp", "llama-arch.cpp"))
    keys = dict(re.findall(r'\{\s*(LLM_KV_TOKENIZER_\w+),\s*"tokenizer\.ggml\.([^"]+)"', arch))
    read = {keys[name] for name in re.findall(r"LLM_KV_TOKENIZER_\w+", text) if name in keys}
    return {
        "pre": set(re.findall(r'tokenizer_pre == "([^"]+)"', text)),
        "merges": set(re.findall(r'bool is_\w+ = \(?tokenizer_pre == "([^"]+)"', text)),
        "models": set(re.findall(r'tokenizer_model == "([^"]+)"', text)),
        "keys": read - {"precompiled_charsmap"},  # of t5
    }


def differences(sources: Path, gguf: Any, library: Path | None) -> Iterator[str]:
    """Yields a line for each difference."""
    written, pages = written_by(gguf), "families/pages/every_model.py"
    for key, type_, ours in wrong_types(written):
        yield f"formats/gguf_keys.py ROWS: {key} is {type_}, here {ours}"
    named = dict.fromkeys([*constants(gguf), *(in_library(library) if library else ())])
    for key in named:
        if key not in written and key not in UNTYPED and type_of_key(key) is None:
            yield f"formats/gguf_keys.py ROWS: {key} has no type; gguf-py has no method for it"
    for fingerprint, name in fingerprints(sources).items():
        if pre_tokenizers.PRE_TOKENIZERS.get(fingerprint) != name:
            yield f"families/pre_tokenizers.py PRE_TOKENIZERS: {fingerprint} is {name}"
    for name, code in codes_of_file_types(sources).items():
        if file_types.FILE_TYPES.get(name) != code:
            yield f"formats/file_types.py FILE_TYPES: {name} is {code}"
    found, here = of_vocabularies(sources), every_model
    kinds = {kind: spec.required for kind, spec in here.VOCABULARIES.items()}
    known_keys = {"model", *" ".join([here.ALWAYS, here.OF_TOKENS, *kinds.values()]).split()}
    yield from _missing(f"{pages} KNOWN_PRE, and RULES in families/pre_tokenizers.py", found["pre"], here.KNOWN_PRE)
    yield from _missing(f"{pages} WITHOUT_MERGES", found["merges"], here.WITHOUT_MERGES)
    yield from _missing(f"{pages} OTHER_VOCABULARIES", found["models"], [*kinds, *here.OTHER_VOCABULARIES])
    yield from _missing(f"{pages} OF_TOKENS", found["keys"], known_keys)
    kept = [*KEPT_NAMES, *KEPT_PARTS, *(part for parts in KEPT_PARTS_OF.values() for part in parts)]
    yield from _missing("quantizer/recipes.py KEPT_PARTS", kept_tensors(sources), kept)
    codes = {type_.code: type_.name for type_ in GGML_TYPES}
    for type_ in gguf.GGMLQuantizationType:
        if codes.get(type_.value) != type_.name:
            yield f"tensor_types/ggml/: {type_.name} is {type_.value}"
    others = sorted(set(gguf.MODEL_ARCH_NAMES.values()) - {family.arch for family in FAMILIES})
    yield f"families/pages/: no page for {len(others)} architectures: {' '.join(others)}"


def _missing(table: str, theirs: Iterable[str], ours: Iterable[str]) -> Iterator[str]:
    for name in sorted({*theirs} - {*ours}):
        yield f"{table}: {name} is missing"


def add_rows(module: types.ModuleType, table: str, rows: dict[str, Any], form: str) -> None:
    """Adds rows to a dictionary in a module's source; rows with another value are replaced."""
    path, ours = Path(str(module.__file__)), getattr(module, table)
    text = path.read_text("utf-8")
    new = {key: value for key, value in rows.items() if ours.get(key) != value}
    for key in ours.keys() & new.keys():
        text = re.sub(rf'"{re.escape(key)}": [^,]+,\s+', "", text, count=1)
    end = text.index("\n}", text.index(f"{table} = {{")) + 1
    path.write_text(text[:end] + "".join(form.format(key, value) for key, value in new.items()) + text[end:], "utf-8")


def main() -> None:
    """Prints the differences, and adds what can be added."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", type=Path)
    parser.add_argument("library", type=Path, nargs="?")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    sys.path.insert(0, str(given.sources / "gguf-py"))
    import gguf

    print(*differences(given.sources, gguf, given.library), sep="\n")
    if given.write:
        add_rows(pre_tokenizers, "PRE_TOKENIZERS", fingerprints(given.sources), '    "{}": "{}",\n')
        add_rows(file_types, "FILE_TYPES", codes_of_file_types(given.sources), '    "{}": {},\n')


if __name__ == "__main__":
    main()
