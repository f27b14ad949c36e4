"""`glft plan`: the error of each type, and the mix of types with the least error under a size."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

from glft_schema.cli.options import ConverterPath, Input, Like, TrustRemoteCode, argument, bytes_of, flag, option
from glft_schema.cli.terminal import echo, echo_written, file_errors, progress_bar, refuse_overwriting
from glft_schema.cli.write_report import mapping_note
from glft_schema.codec.typed_text import as_json_value
from glft_schema.describe.page.plan import plan_page
from glft_schema.display import align, percent, size_text
from glft_schema.errors import OptionError
from glft_schema.formats.registry import WITH_TYPES
from glft_schema.quantizer.plan import BY_IMPORTANCE, ROWS, TYPES, Candidate, Mix, Plan
from glft_schema.quantizer.plan import plan as plan_model
from glft_schema.quantizer.prepared_model import IN_FLOAT32
from glft_schema.quantizer.recipe_files import recipe_text
from glft_schema.storage.atomic import atomic_write
from glft_schema.weights.checkpoints import open_with_metadata

TYPES_TO_CHOOSE = f"Types to choose from. Default: {', '.join(TYPES)}; with --imatrix, also {', '.join(BY_IMPORTANCE)}."


def plan(
    source: Annotated[Input, argument("MODEL", "Model, as for glft quantize.")],
    imatrix: Annotated[Input | None, option("FILE", "llama.cpp importance matrix for MODEL; weights the errors.")] = None,
    size: Annotated[str | None, option("SIZE", "Find the best mix for a file of SIZE, such as 90MB.")] = None,
    bpw: Annotated[float | None, option("BITS", "Find the best mix for BITS per weight, such as 4.5.")] = None,
    out: Annotated[Path | None, option("RECIPE", "Write the mix as a recipe file for glft quantize.", "-o")] = None,
    types: Annotated[str | None, option("TYPE,...", TYPES_TO_CHOOSE)] = None,
    rows: Annotated[int, option("N", "Rows of each tensor to measure.", min=1)] = ROWS,
    allow_requantize: Annotated[bool, flag("Also plan tensors that are quantized already.")] = False,
    page: Annotated[Path | None, option("FILE", "Write an HTML page with a chart of the errors.", "--html")] = None,
    like: Like = None,
    converter: ConverterPath = None,
    trust_remote_code: TrustRemoteCode = False,
    as_json: Annotated[bool, flag("Print JSON, with the error of each type for each tensor.", "--json")] = False,
) -> None:
    """Plans a quantization: the best types for a size.

    Some rows of each tensor that glft quantize quantizes are encoded and decoded with each type.
    The table lists the bits per weight of each type, and its error over all tensors that can have
    it, as signal-to-noise ratio and relative to the weights.

    With --size or --bpw, each tensor gets a type so that the mean noise-to-signal ratio of all
    weights is minimal. --size applies to the file, --bpw to all tensors. SIZE is a number of bytes,
    or of kB, MB, GB, KiB, MiB or GiB. Give glft quantize the same --imatrix.

    Examples:
        glft plan f16.gguf
        glft plan f16.gguf --size 90MB -o recipe.txt
    """
    with file_errors(out or source, tensors=source):
        limit = None if size is None else bytes_of(size, "--size")
        _check_options(limit, bpw, out, page, (source, imatrix, like))
        with file_errors(source):
            mapping = IN_FLOAT32._replace(path=converter, trust_remote_code=trust_remote_code)
            checkpoint = open_with_metadata(source, (), WITH_TYPES, like, mapping)
        with progress_bar("measuring") as bar:
            planned = plan_model(
                checkpoint,
                importance=imatrix,
                types=None if types is None else types.split(","),
                rows=rows,
                allow_requantize=allow_requantize,
                progress=bar,
            )
        mix = None if limit is None and bpw is None else planned.mix(size=limit, bpw=bpw)
        if out is not None and mix is not None:
            with atomic_write(out) as stream:
                stream.write(f"# {_summary(mix)}\n{recipe_text(mix.recipe)}".encode("utf-8", "surrogateescape"))
        if page is not None:
            with atomic_write(page) as stream:
                stream.write(plan_page(planned, mix, source.name).encode("utf-8", "backslashreplace"))
    if as_json:
        print(json.dumps(plan_data(planned, mix), indent=2, allow_nan=False))
    else:
        echo(*mapping_note(checkpoint, source), *report(planned, mix))
        if out is not None:
            given = {"--imatrix": imatrix, "--like": like, "--converter": converter}
            options = [part for name, value in given.items() if value is not None for part in (name, value)]
            options += ["--allow-requantize"] * allow_requantize + ["--trust-remote-code"] * trust_remote_code
            echo_written([out], "quantize", source, f"{Path(source.name).stem}-{out.stem}.gguf", out, *options)


def _check_options(
    size: int | None, bpw: float | None, out: Path | None, page: Path | None, inputs: Iterable[Input | None]
) -> None:
    """Raises OptionError for options that do not go together, or an output that is an input."""
    if size is not None and bpw is not None:
        raise OptionError("expected --size or --bpw, found both")
    if out is not None and size is None and bpw is None:
        raise OptionError("expected --size or --bpw for the recipe (--out), found neither")
    for written in filter(None, (out, page)):
        refuse_overwriting(written, *inputs)


def report(planned: Plan, mix: Mix | None) -> list[str]:
    """Returns the mix, if any, and the table of types."""
    lines = [planned.warning] if planned.warning else []
    if mix is not None:
        lines += [f"mix: {_summary(mix)}", *_beside(planned, mix), *_table(_parts(planned, mix)), ""]
    counted = f"{sum(tensor.rows for tensor in planned.tensors):,} rows of {len(planned.tensors)} tensors measured"
    return [*lines, counted, *_table(planned.compare(mix), len(planned.tensors))]


def _beside(planned: Plan, mix: Mix) -> list[str]:
    """Returns a line: the best file type that is not larger than the mix, and the next larger."""
    fitting = [(name, one) for name, one in planned.recipes.items() if one.size <= mix.size]
    larger = [(name, one) for name, one in planned.recipes.items() if one.size > mix.size]
    beside = [max(fitting, key=lambda item: item[1].snr)] if fitting else []
    beside += [min(larger, key=lambda item: (item[1].size, item[1].error))] if larger else []
    texts = [f"{name} would be {size_text(one.size)} at {one.snr:.2f} dB" for name, one in beside]
    return [f"llama-quantize's file types: {', '.join(texts)}"] if texts else []


def _summary(mix: Mix) -> str:
    size = f"{mix.nbytes:,} bytes of tensors, {mix.bits_per_weight:.2f} bits per weight"
    return f"{size}, a file of {mix.size:,} bytes, signal-to-noise ratio {mix.snr:.2f} dB"


def _parts(planned: Plan, mix: Mix) -> list[tuple[str, Mix]]:
    """Returns the tensors of each type of a mix."""
    of_types = ((type_, {name: one for name, one in mix.chosen.items() if one.type == type_}) for type_ in planned.by_type)
    return [(type_.name, planned.only(chosen)) for type_, chosen in of_types if chosen]


def _table(mixes: Sequence[tuple[str, Mix]], most: int = 0) -> list[str]:
    """Returns a table of mixes. Tensor counts below `most` are shown as ``N of MOST``."""
    rows = [
        (
            name,
            f"{len(m.chosen)}{f' of {most}' * (len(m.chosen) < most)}",
            f"{m.nbytes:,}",
            f"{m.bits_per_weight:.2f}",
            f"{m.snr:.2f} dB",
            percent(m.error**0.5),
        )
        for name, m in mixes
    ]
    return align([("type", "tensors", "bytes", "bits per weight", "SNR", "relative"), *rows], right=5)


def plan_data(planned: Plan, mix: Mix | None) -> dict[str, Any]:
    """Returns a plan as JSON data. An error is a noise-to-signal ratio."""
    return {
        **({"warning": planned.warning} if planned.warning else {}),
        "types": {type_.scheme: {"tensors": len(one.chosen), **_measures(one)} for type_, one in planned.by_type.items()},
        "tensors": [
            {
                "name": tensor.name,
                "weights": tensor.weights,
                "rows": tensor.rows,
                "types": {candidate.type.scheme: _measures(candidate) for candidate in tensor.candidates},
            }
            for tensor in planned.tensors
        ],
        **({"mix": {**_measures(mix), "size": mix.size, "tensors": mix.recipe.tensors}} if mix else {}),
    }


def _measures(one: Mix | Candidate) -> dict[str, Any]:
    bits = {"bits_per_weight": one.bits_per_weight} if isinstance(one, Mix) else {}
    return {"bytes": one.nbytes, **bits, "error": one.error, "snr": as_json_value(one.snr)}
