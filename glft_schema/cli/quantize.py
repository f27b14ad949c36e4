"""`glft quantize`: quantizes a model to a GGUF file as llama-quantize does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from glft_schema.cli.options import (
    AllowRequantize,
    ConverterPath,
    Imatrix,
    Input,
    Like,
    Rules,
    Search,
    Texts,
    TrustRemoteCode,
    argument,
    flag,
    option,
)
from glft_schema.cli.terminal import (
    RefusedError,
    common_ranks,
    echo,
    echo_written,
    file_errors,
    progress_bar,
    refuse_overwriting,
    unique,
)
from glft_schema.cli.write_report import (
    mapping_note,
    reasons,
    requantizing_note,
    totals,
    unmet_requests,
    warn_of_refused_file,
)
from glft_schema.display import align, format_count
from glft_schema.errors import OptionError, quote, safe
from glft_schema.families.page import BLOCK_COUNT
from glft_schema.formats.gguf_names import ARCHITECTURE
from glft_schema.formats.registry import WITH_TYPES
from glft_schema.quantizer.ecmascript import encode
from glft_schema.quantizer.prepared_model import IN_FLOAT32
from glft_schema.quantizer.quantize import Quantized
from glft_schema.quantizer.quantize import quantize as quantize_model
from glft_schema.storage.opening import read_text
from glft_schema.weights.checkpoints import open_with_metadata

VALUES: dict[str, Callable[[str], Any]] = {
    "int": lambda text: abs(int(text)),
    "float": float,
    "str": str,
    "bool": {"true": True, "false": False}.__getitem__,
}


def quantize(
    source: Annotated[Input, argument("IN", "Model: a GGUF file, a file of a set, or a Hugging Face folder.")],
    out: Annotated[Path, argument("OUT", "GGUF file; replaced only on success.")],
    recipe: Annotated[
        str, argument("TYPE", "File type such as Q4_K_M, its code, COPY, or a recipe file. See glft schema recipes.")
    ],
    imatrix: Imatrix = None,
    imatrix_keys: Annotated[
        bool, flag("Add the keys quantize.imatrix.*, which name the matrix.", "--imatrix-keys/--no-imatrix-keys")
    ] = True,
    include_weights: Annotated[
        Texts, option("TEXT", "Use importance only for tensors with TEXT in the name. Repeatable.")
    ] = (),
    exclude_weights: Annotated[Texts, option("TEXT", "Use no importance for tensors with TEXT in the name. Repeatable.")] = (),
    tensor_type: Annotated[
        Texts, option("REGEX=TYPE", "Type of tensors whose name matches REGEX; the first match wins. Repeatable.")
    ] = (),
    tensor_type_file: Annotated[Input | None, option("FILE", "File of --tensor-type values, separated by whitespace.")] = None,
    output_tensor_type: Annotated[str | None, option("TYPE", "Type of output.weight, or of a tied token embedding.")] = None,
    token_embedding_type: Annotated[str | None, option("TYPE", "Type of the token embedding.")] = None,
    leave_output_tensor: Annotated[bool, flag("Keep the type of output.weight.")] = False,
    pure: Annotated[bool, flag("Give all tensors the file type's main type.")] = False,
    prune_layers: Annotated[str | None, option("N,...", "Layers to omit, such as 20,21; the others are renumbered.")] = None,
    allow_requantize: AllowRequantize = False,
    search: Search = False,
    keep_split: Annotated[bool, flag("Split OUT as IN is split: OUT-00001-of-00003.gguf.")] = False,
    like: Like = None,
    override_kv: Annotated[
        Texts, option("KEY=TYPE:VALUE", "Metadata entry to set; TYPE is int, float, bool or str. Repeatable.")
    ] = (),
    rules: Rules = (),
    dry_run: Annotated[bool, flag("Show types and sizes, but write nothing.")] = False,
    converter: ConverterPath = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Quantizes a model to a GGUF file, as llama-quantize does.

    OUT equals the output of llama-quantize byte for byte. A file type selects the type of each
    tensor by its role: Q4_K_M selects q6_k for some of attn_v, and q4_k for most others. Norms,
    biases and small tensors keep their types. If the rows of a tensor are not a multiple of the
    type's blocks, a type with smaller blocks is used. The report names these tensors.

    With the type COPY, all tensors keep their types.

    Examples:
        glft quantize f16.gguf q4_k_m.gguf Q4_K_M
        glft quantize folder iq2_xs.gguf IQ2_XS --imatrix imatrix.gguf
    """
    with file_errors(out, tensors=source):
        refuse_overwriting(out, source, like, imatrix)
        with file_errors(source):
            mapping = IN_FLOAT32._replace(path=converter, trust_remote_code=trust_remote_code)
            checkpoint = open_with_metadata(source, (), WITH_TYPES, like, mapping)
        texts = [*(tensor_type), *(read_text(tensor_type_file).split() if tensor_type_file else [])]
        with progress_bar(f"writing {out.name}") as bar:
            quantized = quantize_model(
                checkpoint,
                out,
                recipe,
                importance=imatrix,
                imatrix_keys=imatrix_keys,
                include_weights=include_weights,
                exclude_weights=exclude_weights,
                tensor_types=[tensor_type_of(text) for text in texts],
                output_tensor_type=output_tensor_type,
                token_embedding_type=token_embedding_type,
                leave_output_tensor=leave_output_tensor,
                pure=pure,
                prune_layers=layers_of(prune_layers),
                allow_requantize=allow_requantize,
                search=search,
                keep_split=keep_split,
                override=unique("--override-kv", "key", [override_of(text) for text in override_kv]),
                rules=rules or None,
                dry_run=dry_run,
                progress=bar,
                ranks=common_ranks(),
            )
    echo(*mapping_note(checkpoint, source), *report(quantized, out, dry_run=dry_run))
    if quantized.refused:
        raise RefusedError(quantized.refused[0])
    has_blocks = checkpoint.metadata.get(f"{checkpoint.metadata.get(ARCHITECTURE)}.{BLOCK_COUNT}", 1)
    if (override_kv or prune_layers or not has_blocks) and not dry_run:
        warn_of_refused_file(checkpoint.file if has_blocks else None, out)
    if not dry_run and out.is_file():
        echo_written([out], "compare", source, out)


def layers_of(text: str | None) -> list[int]:
    """Parses numbers of layers. Raises OptionError for anything else."""
    numbers = text.split(",") if text is not None else []
    if not all(number.isdecimal() and len(number) < 10 for number in numbers):
        raise OptionError(f"expected numbers of layers for --prune-layers, such as 20,21, found {quote(text)}")
    return [int(number) for number in numbers]


def tensor_type_of(text: str) -> tuple[str, str]:
    """Parses ``REGEX=TYPE``. Raises OptionError for any other form.

    Both become lower case, as in llama-quantize.
    """
    pattern, equals, type_ = text.partition("=")
    if not (pattern and equals and type_):
        raise OptionError(f"expected REGEX=TYPE for --tensor-type, found {quote(text)}")
    return encode(pattern).lower().decode("utf-8", "surrogateescape"), type_.lower()


def override_of(text: str) -> tuple[str, str, Any]:
    """Parses ``KEY=TYPE:VALUE`` to key, text and value.

    An int loses its sign, as in llama-quantize. Raises OptionError for any other form.
    """
    key, equals, typed = text.partition("=")
    type_, colon, value = typed.partition(":")
    try:
        return key, value, VALUES[type_ if key and equals and colon else ""](value)
    except (KeyError, ValueError):
        types = "int, float, bool (true or false) or str"
        raise OptionError(f"expected KEY=TYPE:VALUE for --override-kv, TYPE one of {types}; found {quote(text)}") from None


def report(quantized: Quantized, out: Path, *, dry_run: bool) -> list[str]:
    """Returns the lines of the report, which begins with requests that were not met."""
    recipe, tensors = quantized.recipe, quantized.tensors
    size = f"{quantized.nbytes:,} bytes of tensors, {quantized.bits_per_weight:.2f} bits per weight"
    lines = [*quantized.notes, *requantizing_note(tensors), *unmet_requests(tensors), *reasons(tensors)]
    lines += [
        f"{'dry run: ' if dry_run else ''}{out}: {recipe.name}, {format_count(tensors, 'tensor')}, {size}",
        *totals(tensors),
    ]
    if dry_run:
        rows = [(safe(tensor.name), tensor.type.name, f"{tensor.nbytes:,}") for tensor in tensors]
        lines += ["", *align([("tensor", "type", "bytes"), *rows], right=1)]
    return lines
