"""Opens Hugging Face folders as GGUF models, with GGUF's tensor names and typed metadata."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from glft_schema.codec.metadata import TypedMetadata
from glft_schema.codec.typed_values import Typed
from glft_schema.composites.as_ggml import ROUNDED, in_one_type, values_of
from glft_schema.errors import FormatError, MetadataWarning, OptionError, TensorError, quote, safe, warn
from glft_schema.families.apart import start_apart
from glft_schema.families.composite import refuse_composite
from glft_schema.families.config import (
    CONFIG,
    TEXT_CONFIG,
    Config,
    check_sizes,
    check_token_count,
    metadata_of,
    read_json,
    refusing,
)
from glft_schema.families.config_places import SCALINGS, read_config
from glft_schema.families.converter import ADVICE
from glft_schema.families.kept_metadata import GENERATION, KEPT, kept_metadata
from glft_schema.families.operations import as_float32
from glft_schema.families.page import Family
from glft_schema.families.registry import families
from glft_schema.families.tensor_names import Names, family_with_names, is_float32, names_on_page
from glft_schema.families.untrusted_folders import check_links
from glft_schema.families.vocabulary import SENTENCEPIECE, TOKENIZER, TOKENIZER_FILES
from glft_schema.files.shards import is_file_name
from glft_schema.formats.file_types import MOSTLY
from glft_schema.formats.gguf_names import ARCHITECTURE, EMBEDDING, POOLINGS, scale_of
from glft_schema.formats.registry import WITH_TYPES
from glft_schema.storage.dtypes import Array, name_of
from glft_schema.storage.opening import check_size
from glft_schema.storage.source import StrPath, path_text
from glft_schema.tensor_types.conversions import float32_of
from glft_schema.tensors.stored_tensor import StoredTensor, of_values

FOLDER_KEYS = "glft_schema.families.folder_keys"  # a module for a process of its own
CARD, MODULES = "README.md", "modules.json"
PARSED = (CARD, GENERATION, *TOKENIZER_FILES)  # by other libraries
HEAD_SIZE = "head_dim"
QUANTIZATION_VERSION, VERSION = "general.quantization_version", 2
MODES = (  # flag or mode of sentence-transformers, llama.cpp's number
    ("pooling_mode_mean_tokens", "mean", POOLINGS.index("mean")),
    ("pooling_mode_cls_token", "cls", POOLINGS.index("cls")),
    ("pooling_mode_lasttoken", "lasttoken", POOLINGS.index("last")),
)


@dataclass(frozen=True)
class FolderModel:
    """A Hugging Face folder as a GGUF model.

    Attributes:
        family: its declaration.
        tensors: by name in GGUF.
        metadata: typed.
        dropped: names of tensors that GGUF does not have.
    """

    family: Family
    tensors: Mapping[str, StoredTensor]
    metadata: TypedMetadata
    dropped: tuple[str, ...]


def is_model_folder(path: StrPath) -> bool:
    """Returns whether a path is a folder with a config.json."""
    return (Path(path_text(path)) / CONFIG).is_file()


def open_folder(
    path: StrPath, open_weights: Callable[[Family], Mapping[str, StoredTensor]], *, exact: bool = False
) -> FolderModel:
    """Opens a Hugging Face folder of a declared family.

    Args:
        path: the folder.
        open_weights: returns its tensors, in the order in which they are written, for its family.
        exact: see `in_ggml`.

    Raises:
        FormatError: if the architecture is unknown, a field of the config is missing, the tokenizer
            is missing or unknown, a link leaves the folder, or the weights are not a valid set.
        TensorError: if the family lacks a tensor of the folder, or a tensor does not fit the
            config.
        OptionError: if a library of the extra ``hf`` is missing.
        OSError: if a file is missing or cannot be read.
    """
    folder = Path(path)
    check_links(folder, (folder / name for name in (CONFIG, MODULES, KEPT, *PARSED)))
    with start_apart(FOLDER_KEYS) as call:
        with refusing(folder, "a valid config.json"):
            family = declared_family(folder)
            if family is None:
                raise undeclared(folder, open_weights)
            config = read_config(folder, family)
            values = metadata_of(config, family.keys, family.arch)
            weights = open_weights(family)
            refuse_composite(weights, folder, family=family)
            notes = [*unknown_fields(family, config, folder), *check_fields(family, config, None, folder)]
            tensors = gguf_tensors(weights, family, config, exact=exact)
            notes += check_fields(family, config, tensors, folder)  # lists blocks, whose number was compared with the tensors
        for note in notes:
            warn(note, MetadataWarning)
        check_vocabulary_size(tensors, config, folder)
        with refusing(folder, "a valid modules.json"):
            values |= pooling_keys(folder, family)
        for name in PARSED:
            if (folder / name).is_file():
                check_size(folder / name, (folder / name).stat().st_size)
        general, vocabulary = dict[str, Any](), dict[str, Any]()
        kept = kept_metadata(folder, family, config, values)
        if kept is None:
            shapes = {name: tensor.shape for name, tensor in tensors.items()}
            general = call("general_keys", folder, family.arch, shapes, file=folder / CARD)
            tokenizer = next((folder / name for name in (TOKENIZER, SENTENCEPIECE) if (folder / name).is_file()), folder)
            vocabulary, notes = call("tokenizer_keys", folder, family.arch, family.vocabularies, config, file=tokenizer)
            for note in notes:
                warn(f"{safe(str(folder), 1000)}: {note}", MetadataWarning)
    entries = {
        **(kept or {}),
        **{key: Typed(*pair) for key, pair in general.items()},
        **values,
        "general.file_type": file_type(tensors),
        QUANTIZATION_VERSION: VERSION,
        **{key: Typed(*pair) for key, pair in vocabulary.items()},
    }
    mapped = names_on_page(weights, family)
    dropped = tuple(name for name in weights if name not in mapped)
    return FolderModel(family, tensors, WITH_TYPES.metadata.metadata(entries), dropped)


def declared_family(folder: Path) -> Family | None:
    """Returns the family of a folder's class, or of its text model, or None. Other fields may be
    invalid."""
    stored = read_json(folder / CONFIG)
    text = stored.get(TEXT_CONFIG)
    for class_ in map(_class_of, (stored, text)):
        headed = f"{str(class_).removesuffix('Model')}ForCausalLM"
        if family := next((family for family in families() if {class_, headed} & {*family.architectures}), None):
            return family
    kind = text.get("model_type") if isinstance(text, dict) else None
    return next((family for family in families() if family.model_type == kind), None)


def _class_of(config: Any) -> Any:
    found = config.get("architectures") if isinstance(config, dict) else None
    return found[0] if isinstance(found, list) and found and isinstance(found[0], str) else None


def undeclared(folder: Path, open_weights: Callable[[Family], Mapping[str, StoredTensor]]) -> FormatError:
    """Returns the error for a folder of no declared family."""
    stored, known = read_json(folder / CONFIG), [*families()]
    if name := stored.get("_class_name"):
        problem = f"expected a model of transformers, found {quote(name)} of diffusers: give its file, to keep its names"
        return FormatError(problem, "architectures", file=str(folder / CONFIG))
    similar = None
    with suppress(FormatError, TensorError, OptionError, OSError):
        similar = family_with_names([*open_weights(known[0])], known)
    named = f", whose tensors have the names of {similar.architectures[0]}" if similar else ""
    problem = f"expected a declared architecture, found {quote(_class_of(stored))}{named}: use {ADVICE}, or declare it"
    return FormatError(f"{problem} (docs/guides/adding-an-architecture.md)", "architectures", file=str(folder / CONFIG))


def check_fields(family: Family, config: Config, tensors: Mapping[str, object] | None, folder: Path) -> list[str]:
    """Checks that fields without a key have the values that llama.cpp computes with.

    Args:
        family: of the model.
        config: of the folder.
        tensors: by name in GGUF, to check fields whose value depends on the model; None to check
            the other fields.
        folder: the folder.

    Returns:
        Warnings about values that matter only for some texts.

    Raises:
        FormatError: if a field has another value.
    """
    notes, file = [], str(folder / CONFIG)
    for field in family.all_fields:
        if field.name not in config or field.is_constant is not (tensors is None):
            continue
        found, value = config[field.name], field.value_of(config, tensors or ())
        is_number = isinstance(found, (int, float)) and isinstance(value, (int, float))
        if found == value or (is_number and math.isclose(found, value, rel_tol=1e-6)):
            continue
        instead = f"; {field.instead}" if field.instead else ""
        problem = f"expected {quote(value)}, as llama.cpp assumes, found {quote(found)}{instead}"
        name = field.name.removeprefix("rope.")
        if not field.warns:
            raise FormatError(problem, name, file=file)
        notes.append(f"{safe(file, 1000)}: {name}: {problem}")
    return notes


def unknown_fields(family: Family, config: Config, folder: Path) -> list[str]:
    """Returns warnings about fields that the page of a family does not cover.

    Raises FormatError if the family does not support the rope type.
    """
    file, type_ = str(folder / CONFIG), config.get("rope.rope_type", "default")
    if type_ not in family.ropes:
        problem = f"expected a rope_type of {', '.join(family.ropes)} for {family.arch}, found {quote(type_)}"
        raise FormatError(problem, "rope_type", file=file)
    of_rope = {f"rope.{name}" for name in SCALINGS[type_].required + SCALINGS[type_].others}
    unknown = (name.removeprefix("rope.") for name in config if name not in of_rope and not family.covers(name))
    return [f"{safe(file, 1000)}: unknown field {quote(name)}: llama.cpp computes without it" for name in unknown]


def check_vocabulary_size(tensors: Mapping[str, StoredTensor], config: Config, folder: Path) -> None:
    """Sets a missing ``vocab_size`` to the number of rows of the token embedding.

    Raises:
        TensorError: if there is no token embedding.
        FormatError: if the config has another size.
        LimitError: if there are more tokens than the limit ``strings``.
    """
    if EMBEDDING not in tensors:
        raise TensorError("expected the token embedding, found none", EMBEDDING)
    rows = tensors[EMBEDDING].shape[0]
    if config.setdefault("vocab_size", rows) != rows:
        problem = f"expected {rows}, the rows of the token embedding, found {quote(config['vocab_size'])}"
        raise FormatError(problem, "vocab_size", file=str(folder / CONFIG))
    check_token_count(rows, folder)


def gguf_tensors(
    tensors: Mapping[str, StoredTensor], family: Family, config: Config, *, exact: bool = False
) -> dict[str, StoredTensor]:
    """Returns the tensors of a folder by their names in GGUF. `exact` is for `in_ggml`.

    Raises:
        TensorError: if the family has no such tensor, two names stand for one, a tensor of a stack
            is missing, or a shape does not fit the config.
        FormatError: if heads are larger than any tensor.
    """
    check_sizes(config, tensors, [HEAD_SIZE])  # before tensors of this size are generated
    mapped = {name: of_values(values) for name, values in family.generated(config).items()}
    names, used = Names(family, config, len(tensors)), set[str]()
    stored_as = dict[str, str]()
    for name, text in names_on_page(tensors, family).items():
        if (other := stored_as.setdefault(text, name)) != name:
            raise TensorError(f"expected one tensor for {quote(text)}, found {quote(other)} as well", name)
    sources = {text: tensors[name] for text, name in stored_as.items()}
    for stored in sources:
        if stored in used:
            continue
        place, parts = names.place_of(stored), []
        for part in place.in_hf(config):
            if part not in sources:
                raise TensorError(f"expected {part} with this tensor, found none", stored)
            parts.append(sources[part])
            used.add(part)
        if stored not in used:
            raise names.no_such_tensor(stored)
        parts = in_one_type(parts, exact=exact)
        for target, result in zip(place.in_gguf, place.row.operation.map_to_gguf(parts, config, stored), strict=True):
            is_scaled = not result.companions or family.multiplies(scale_of(target))
            if is_float32(target, result.shape) or not is_scaled:
                result = as_float32(values_of(result))
            if result.companions:
                inputs = input_scales([stored_as[part] for part in place.in_hf(config)], tensors)
                result = replace(result, companions={**result.companions, **inputs})
            origin = next((part.origin for part in parts if part.origin.endswith(ROUNDED)), parts[0].origin)
            mapped[target] = replace(result, origin=origin)
    return mapped


def input_scales(weights: Sequence[str], tensors: Mapping[str, StoredTensor]) -> dict[str, Array]:
    """Returns the scales of the inputs of weights as companions, see `StoredTensor`, one for each
    weight; none unless all weights have one."""
    found = []
    for module in (name.removesuffix("weight") for name in weights):
        for ending in ("input_scale", "input_global_scale"):  # a factor, and a divisor
            scale = tensors.get(module + ending)
            if scale is not None and scale.numel == 1:
                factor = float32_of(scale.values()).reshape(())
                found.append(1 / factor if ending == "input_global_scale" and factor else factor)
    return {"input_scale": np.array(found, np.float32)} if len(found) == len(weights) else {}


def file_type(tensors: Mapping[str, StoredTensor]) -> int:
    """Returns the ``general.file_type`` of the most frequent quantized type of matrices, or else of
    the first matrix. Matrices that GGUF always holds in float32 are ignored."""
    matrices = [tensor for name, tensor in tensors.items() if not is_float32(name, tensor.shape)]
    if quantized := Counter(tensor.packed.type.scheme for tensor in matrices if tensor.packed):
        return MOSTLY[quantized.most_common(1)[0][0]]
    return {"float16": 1, "bfloat16": 32}.get(name_of(matrices[0].dtype), 0) if matrices else 0


def pooling_keys(folder: Path, family: Family) -> dict[str, int]:
    """Returns the key of the pooling of a sentence-transformers folder; none for other folders.

    Warns:
        MetadataWarning: if the folder has layers after the pooling, which are not converted.

    Raises:
        FormatError: if llama.cpp does not support the pooling, its path is not a plain name, or a
            link leaves the folder.
    """
    path = folder / MODULES
    modules = read_json(path, list) if path.is_file() else []
    if dense := [module["path"] for module in modules if module["type"].endswith("Dense")]:
        note = f"the layers after the pooling are not converted: {', '.join(map(quote, dense))}"
        warn(f"{safe(str(path), 1000)}: {note}", MetadataWarning)
    for module in modules:
        if module["type"].endswith("Pooling"):
            if not is_file_name(module["path"]):
                problem = f"expected the name of a folder in the directory, found {quote(module['path'])}"
                raise FormatError(problem, "path", file=str(path))
            check_links(folder, [path := folder / module["path"] / CONFIG])
            pooling = read_json(path)
            for flag, mode, number in MODES:
                if pooling.get(flag) or pooling.get("pooling_mode") == mode:
                    return {f"{family.arch}.pooling_type": number}
            raise FormatError("expected pooling by the mean, the CLS token or the last token, found another", file=str(path))
    return {}


def write_pooling(metadata: Mapping[str, Any], folder: Path) -> None:
    """Writes the files of sentence-transformers to a folder if a GGUF model states its pooling."""
    arch = metadata[ARCHITECTURE]
    flags = {flag: metadata.get(f"{arch}.pooling_type") == number for flag, _, number in MODES}
    if any(flags.values()):
        parts = {"Transformer": "", "Pooling": "1_Pooling"}
        modules = [
            {"idx": i, "name": f"{i}", "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (kind, path) in enumerate(parts.items())
        ]
        write_json(folder / MODULES, modules)
        (folder / parts["Pooling"]).mkdir()
        pooling = {"word_embedding_dimension": metadata[f"{arch}.embedding_length"], **flags}
        write_json(folder / parts["Pooling"] / CONFIG, pooling)


def write_json(path: Path, data: object) -> None:
    """Writes a file of a folder, with the same bytes on all systems."""
    path.write_text(json.dumps(data, indent=2) + "\n", "utf-8", newline="\n")
