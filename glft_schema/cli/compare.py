"""`glft compare`: differences of metadata and weights between files of any formats."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from click.exceptions import Exit

from glft_schema.checks.compare import STATES, Comparison, size_of
from glft_schema.checks.compare import compare as compare_checkpoints
from glft_schema.checks.ranking import Ranking
from glft_schema.cli.options import Chunks, Context, Exclude, Input, Json, Tokenizer, argument, flag, option
from glft_schema.cli.terminal import FAILED, GREEN, RED, YELLOW, colour, echo, file_errors, progress_bar, refuse_overwriting
from glft_schema.codec.typed_text import as_json_value
from glft_schema.describe.page.comparison import comparison_page
from glft_schema.display import align, first_rows, format_count, percent, size_text
from glft_schema.errors import FormatError, OptionError, TensorError, safe
from glft_schema.files.summary import headline
from glft_schema.models.predictions import Predictions, compare_each
from glft_schema.models.token_chunks import CONTEXT
from glft_schema.storage.atomic import atomic_write
from glft_schema.storage.locations import without_secrets
from glft_schema.storage.opening import read_text
from glft_schema.weights.checkpoints import Checkpoint, open_beside, open_entries
from glft_schema.weights.requantizing import note_on_errors

TENSORS = 20  # listed
COLOURS = dict.fromkeys(STATES, YELLOW) | {"added": GREEN, "removed": RED}
STATE = re.compile(rf"(?<=  )({'|'.join(STATES)})(?=  )")  # in a row of a table


def compare(
    one: Annotated[Input, argument("A", "Weights file, torch .pt file, or folder.")],
    others: Annotated[tuple[Input, ...], argument("B...", "Files or folders to compare with A, in any format.")],
    exclude: Exclude = (),
    run: Annotated[bool, flag("Also run both models, and compare their predictions.")] = False,
    text: Annotated[Input | None, option("FILE", "Run both models on FILE; --run alone uses a built-in text.")] = None,
    chunks: Chunks = None,
    context: Context = CONTEXT,
    tokenizer: Tokenizer = None,
    everything: Annotated[bool, flag(f"List all tensors that differ, not only the {TENSORS} worst.", "--all")] = False,
    page: Annotated[Path | None, option("PAGE", "Also write an HTML page, with changed texts line by line.", "--html")] = None,
    as_json: Json = False,
) -> None:
    """Compares metadata and weights of files; ranks quantizations.

    Formats and types may differ. A Hugging Face folder is mapped to GGUF if the other side is GGUF.
    The first lines summarize missing tensors, whether the weights are the same, tensors by state,
    and metadata. Tables list each entry that differs, and the tensors with the largest errors.

    To rank quantizations of a model, give the model and then all of them: one table shows their
    size, bits per weight and signal-to-noise ratio, and with --run their perplexity and divergence,
    the best first.

    Tensors of the same name are compared by value. The table shows the root mean square error of B,
    absolute (RMSE) and relative to A, the signal-to-noise ratio, the cosine similarity, and the row
    with the largest relative error. A tensor under another name counts as renamed if it has equal
    type, shape and bytes, or equal shape and values.

    --run or --text also runs both models on a text, in torch and in float32: GGUF files of the
    architectures that glft convert knows, or Hugging Face folders. As in llama-perplexity, the
    second half of each chunk is predicted. The line shows the perplexity of A and of B, the
    Kullback-Leibler divergence of B from A in nats per token, and the share of tokens for which
    both models predict the same token. A's tokenizer is used for all, and A runs once. Of several
    files, one without any tensor of A's does not run.

    Order, alignment and padding are ignored. The exit code is 0 if nothing differs, 1 if metadata
    or tensors differ, and 2 if a file cannot be read or a model cannot be run. If a model cannot be
    run, the comparison is still printed.

    Examples:
        glft compare f16.gguf q4_k_m.gguf --run --html page.html
        glft compare f16.gguf q8_0.gguf q6_k.gguf q4_k_m.gguf --run
    """
    with file_errors(one):
        if (chunks or tokenizer) and not (run or text):
            raise OptionError("--chunks and --tokenizer run the models: add --run or --text FILE")
        if (page or everything) and len(others) > 1:
            raise OptionError(f"--html and --all show one comparison: give one file to compare with {one}")
    pairs = _open(one, [*dict.fromkeys(others)], page, text)
    with file_errors(text or one):
        words = read_text(text) if text else None
    compared = [_compare(pair, exclude) for pair in pairs]
    failure = None
    if run or text:
        options = {"text": words, "tokenizer": tokenizer, "context": context, "chunks": chunks}
        failure = _run(one, [found for found in compared if not found.comparison.is_apart] or compared, options)
    if page:
        _write_page(page, compared[0])
    if len(others) > 1:
        _show_ranking(compared, failure, as_json)
    elif as_json:
        print(_as_json(_as_data(compared[0], failure)))
    else:
        _print(compared[0], None if everything else TENSORS)
        if page:
            echo("", f"{page}: {page.stat().st_size:,} bytes")
    if failure:
        with file_errors(one):
            raise failure
    if not all(found.comparison.is_same for found in compared):
        raise Exit(FAILED)


class _Side(NamedTuple):
    """One of two files.

    Attributes:
        letter: A or B.
        path: as given.
        checkpoint: its metadata and tensors.
    """

    letter: str
    path: Input
    checkpoint: Checkpoint


@dataclass
class _Compared:
    """Two files that were compared, and their predictions if both ran."""

    sides: tuple[_Side, _Side]
    comparison: Comparison
    predictions: Predictions | None = None


def _open(one: Input, others: Sequence[Input], page: Path | None, text: Input | None) -> list[tuple[_Side, _Side]]:
    """Opens one file beside each of the others, a folder as GGUF if the other one is GGUF."""
    pairs: list[tuple[_Side, _Side]] = []
    originals: dict[str, Checkpoint] = {}  # by the format of the other file: mapping a folder takes long
    with file_errors(one):
        first = open_entries(one)
    for other in others:
        with file_errors(other):
            opened = open_entries(other)
            after = open_beside(opened, other, first.file)
        format = opened.file.format.name if opened.file else ""
        with file_errors(one):
            if page:
                refuse_overwriting(page, one, other, text)
            if format not in originals:
                originals[format] = open_beside(first, one, opened.file)
        pairs.append((_Side("A", one, originals[format]), _Side("B", other, after)))
    return pairs


def _compare(sides: tuple[_Side, _Side], exclude: Sequence[str]) -> _Compared:
    (_, _, before), (_, path, after) = sides
    with file_errors(path), progress_bar("comparing") as bar:
        return _Compared(sides, compare_checkpoints(before, after, exclude=exclude, progress=bar))


def _run(one: Input, compared: list[_Compared], options: dict[str, Any]) -> Exception | None:
    """Adds the predictions of the models. Returns the error that ended the run."""
    try:
        with progress_bar("running") as bar:
            others = (found.sides[1].path for found in compared)
            for found, predictions in zip(compared, compare_each(one, others, **options, progress=bar), strict=True):
                found.predictions = predictions
    except (FormatError, OptionError, OSError, TensorError) as error:  # reported after the comparison
        return error
    except NotImplementedError as error:  # of a model's library
        return OptionError(str(error))
    return None


def _write_page(page: Path, found: _Compared) -> None:
    files = [(path.name, headline(side.file) if side.file else _about_text(side)) for _, path, side in found.sides]
    with file_errors(page), atomic_write(page) as stream:
        text = comparison_page(found.comparison, files, more=_predictions_text(found))
        stream.write(text.encode("utf-8", "backslashreplace"))


def _as_json(data: Any) -> str:
    return json.dumps(data, indent=2, allow_nan=False)


def _as_data(found: _Compared, failure: Exception | None = None) -> dict[str, Any]:
    """Returns the comparison for JSON."""
    ran = found.predictions._asdict() if found.predictions else {"problem": without_secrets(str(failure))} if failure else {}
    entry = {"predictions": {key: as_json_value(value) for key, value in ran.items()}} if ran else {}
    a, b = (_about(side.path, side.checkpoint) for side in found.sides)
    return {"a": a, "b": b, **found.comparison.data(), **entry}


def _show_ranking(compared: list[_Compared], failure: Exception | None, as_json: bool) -> None:
    """Prints a row for each file, the best first."""
    by_name = {str(found.sides[1].path): found for found in compared}
    ran = {name: found.predictions for name, found in by_name.items() if found.predictions}
    ranking = Ranking({name: found.comparison for name, found in by_name.items()}, ran)
    if as_json:
        print(_as_json({"ranking": [{**_as_data(by_name[name], failure), **ranking.measures(name)} for name in ranking]}))
        return
    (_, path, original), _ = compared[0].sides
    nbytes, bits = size_of(compared[0].comparison.versions[0])
    perplexity = [f"perplexity {one.perplexity_a:.4f} over {one.tokens:,} tokens" for one in [*ran.values()][:1]]
    about = [f"{safe(str(path))}: {_about_text(original)}", size_text(nbytes), f"{bits:.2f} bits per weight", *perplexity]
    covered = f"signal-to-noise ratios over the {format_count(ranking.differing, 'tensor')} that differ in some file"
    quantized = note_on_errors({name: tensor.quantized for name, tensor in original.tensors.items() if tensor.quantized})
    rows = ranking.rows()
    echo(", ".join(about), *filter(None, [quantized, covered if ranking.differing else ""]), "", *align(rows, len(rows[0]) - 1))


def _print(found: _Compared, most: int | None) -> None:
    """Prints the comparison, with at most `most` tensors."""
    comparison = found.comparison
    lines = (f"{letter} {safe(str(path))}: {_about_text(checkpoint)}" for letter, path, checkpoint in found.sides)
    echo(*lines, *comparison.summary, *_predictions_text(found))
    changes, tensors = comparison.metadata_rows(), comparison.tensor_rows()
    tables = (align(changes, 0), first_rows(tensors, 6, most or len(tensors), "--all"))
    for line in chain.from_iterable(("", *lines) for lines in tables if lines):
        echo(STATE.sub(lambda state: colour(state[0], COLOURS[state[0]]), line, count=1), coloured=True)


def _about(path: Input, checkpoint: Checkpoint) -> dict[str, Any]:
    format = checkpoint.file.format.name if checkpoint.file else "Hugging Face" if checkpoint.family else "torch"
    return {"file": str(path), "format": format, "tensors": len(checkpoint.tensors), "metadata": len(checkpoint.metadata)}


def _about_text(checkpoint: Checkpoint) -> str:
    about = _about(Path(), checkpoint)
    entries = format_count(about["metadata"], "metadata entry", "metadata entries")
    return f"{about['format']}, {format_count(about['tensors'], 'tensor')}, {entries}"


def _predictions_text(compared: _Compared) -> list[str]:
    if (found := compared.predictions) is None:
        return []
    both = f"perplexity {found.perplexity_a:.4f} and {found.perplexity_b:.4f}"
    divergence = f"divergence {found.mean_divergence:.5f}, at most {found.max_divergence:.3f}"
    return [f"predictions: {both}, {divergence}, same top token {percent(found.same_top)}, {found.tokens:,} tokens"]
