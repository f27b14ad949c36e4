"""`glft compare`: differences of metadata and weights between two files of any formats."""

from __future__ import annotations

import json
import re
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from click.exceptions import Exit

from glft_schema.checks.compare import STATES, Comparison
from glft_schema.checks.compare import compare as compare_checkpoints
from glft_schema.cli.options import Chunks, Context, Exclude, Json, Tokenizer, argument, flag, option
from glft_schema.cli.terminal import FAILED, GREEN, RED, YELLOW, colour, echo, file_errors, progress_bar, refuse_overwriting
from glft_schema.codec.typed_text import as_json_value
from glft_schema.describe.page.comparison import comparison_page
from glft_schema.display import align, first_rows, format_count, percent
from glft_schema.errors import FormatError, OptionError, TensorError, safe
from glft_schema.files.summary import headline
from glft_schema.models.predictions import Predictions, compare_predictions
from glft_schema.models.token_chunks import CONTEXT
from glft_schema.storage.atomic import atomic_write
from glft_schema.storage.file_source import read_text
from glft_schema.weights.checkpoints import Checkpoint, open_beside, open_entries

TENSORS = 20  # listed
COLOURS = dict.fromkeys(STATES, YELLOW) | {"added": GREEN, "removed": RED}
STATE = re.compile(rf"(?<=  )({'|'.join(STATES)})(?=  )")  # in a row of a table


def compare(
    one: Annotated[Path, argument("A", "Weights file, torch .pt file, or folder.")],
    other: Annotated[Path, argument("B", "File or folder to compare with A, in any format.")],
    exclude: Exclude = (),
    run: Annotated[bool, flag("Also run both models, and compare their predictions.")] = False,
    text: Annotated[Path | None, option("FILE", "Run both models on FILE; --run alone uses a built-in text.")] = None,
    chunks: Chunks = None,
    context: Context = CONTEXT,
    tokenizer: Tokenizer = None,
    everything: Annotated[bool, flag(f"List all tensors that differ, not only the {TENSORS} worst.", "--all")] = False,
    page: Annotated[Path | None, option("PAGE", "Also write an HTML page, with changed texts line by line.", "--html")] = None,
    as_json: Json = False,
) -> None:
    """Compares metadata and weights of two files.

    Formats and types may differ. A Hugging Face folder is mapped to GGUF if the other side is GGUF.
    The first lines summarize missing tensors, whether the weights are the same, tensors by state,
    and metadata. Tables list each entry that differs, and the tensors with the largest errors. To
    compare two quantizations of a model, compare each with the model.

    Tensors of the same name are compared by value. The table shows the root mean square error of B,
    absolute (RMSE) and relative to A, the signal-to-noise ratio, the cosine similarity, and the row
    with the largest relative error. A tensor under another name counts as renamed if it has equal
    type, shape and bytes, or equal shape and values.

    --run or --text also runs both models on a text, in torch and in float32: GGUF files of the
    architectures that glft convert knows, or Hugging Face folders. As in llama-perplexity, the
    second half of each chunk is predicted. The line shows the perplexity of A and of B, the
    Kullback-Leibler divergence of B from A in nats per token, and the share of tokens for which
    both models predict the same token. A's tokenizer is used for both.

    Order, alignment and padding are ignored. The exit code is 0 if nothing differs, 1 if metadata
    or tensors differ, and 2 if a file cannot be read or a model cannot be run. If a model cannot be
    run, the comparison is still printed.

    Examples:
        glft compare f16.gguf q4_k_m.gguf
        glft compare f16.gguf q4_k_m.gguf --run --html page.html
    """
    with file_errors(one):
        if (chunks or tokenizer) and not (run or text):
            raise OptionError("--chunks and --tokenizer run the models: add --run or --text FILE")
    sides = _open(one, other, page, text)
    before, after = (side.checkpoint for side in sides)
    with file_errors(text or one):
        words = read_text(text) if text else None
    with file_errors(other), progress_bar("comparing") as bar:
        comparison = compare_checkpoints(before, after, exclude=exclude, progress=bar)
    predictions = failure = None
    if run or text:
        options = {"text": words, "tokenizer": tokenizer, "context": context, "chunks": chunks}
        predictions, failure = _run(one, other, options)
    ran = [_predictions_text(predictions)] if predictions else []
    if page:
        files = [(path.name, headline(side.file) if side.file else _about_text(side)) for _, path, side in sides]
        with file_errors(page), atomic_write(page) as stream:
            stream.write(comparison_page(comparison, files, more=ran).encode("utf-8", "backslashreplace"))
    if as_json:
        print(json.dumps(_as_data(sides, comparison, predictions, failure), indent=2, allow_nan=False))
    else:
        _print(sides, comparison, ran, None if everything else TENSORS)
        if page:
            echo("", f"{page}: {page.stat().st_size:,} bytes")
    if failure:
        with file_errors(one):
            raise failure
    if not comparison.is_same:
        raise Exit(FAILED)


class _Side(NamedTuple):
    """One of the two files.

    Attributes:
        letter: A or B.
        path: as given.
        checkpoint: its metadata and tensors.
    """

    letter: str
    path: Path
    checkpoint: Checkpoint


def _open(one: Path, other: Path, page: Path | None, text: Path | None) -> tuple[_Side, _Side]:
    """Opens both files, a folder as GGUF if the other one is GGUF."""
    with file_errors(one):
        before = open_entries(one)
    with file_errors(other):
        opened = open_entries(other)
        after = open_beside(opened, other, before.file)
    with file_errors(one):
        if page:
            refuse_overwriting(page, one, other, text)
        before = open_beside(before, one, opened.file)
    return _Side("A", one, before), _Side("B", other, after)


def _run(one: Path, other: Path, options: dict[str, Any]) -> tuple[Predictions | None, Exception | None]:
    """Returns the predictions of both models, or the error that ended the run."""
    try:
        with progress_bar("running") as bar:
            return compare_predictions(one, other, **options, progress=bar), None
    except (FormatError, OptionError, OSError, TensorError) as error:  # reported after the comparison
        return None, error
    except NotImplementedError as error:  # of a model's library
        return None, OptionError(str(error))


def _as_data(
    sides: tuple[_Side, _Side], comparison: Comparison, predictions: Predictions | None, failure: Exception | None
) -> dict[str, Any]:
    """Returns the comparison for JSON."""
    ran = predictions._asdict() if predictions else {"problem": str(failure)} if failure else {}
    entry = {"predictions": {key: as_json_value(value) for key, value in ran.items()}} if ran else {}
    a, b = (_about(side.path, side.checkpoint) for side in sides)
    return {"a": a, "b": b, **comparison.data(), **entry}


def _print(sides: tuple[_Side, _Side], comparison: Comparison, ran: list[str], most: int | None) -> None:
    """Prints the comparison, with at most `most` tensors."""
    lines = (f"{letter} {safe(str(path))}: {_about_text(checkpoint)}" for letter, path, checkpoint in sides)
    echo(*lines, *comparison.summary, *ran)
    changes, tensors = comparison.metadata_rows(), comparison.tensor_rows()
    tables = (align(changes, 0), first_rows(tensors, 6, most or len(tensors), "--all"))
    for line in chain.from_iterable(("", *lines) for lines in tables if lines):
        echo(STATE.sub(lambda state: colour(state[0], COLOURS[state[0]]), line, count=1), coloured=True)


def _about(path: Path, checkpoint: Checkpoint) -> dict[str, Any]:
    format = checkpoint.file.format.name if checkpoint.file else "Hugging Face" if checkpoint.family else "torch"
    return {"file": str(path), "format": format, "tensors": len(checkpoint.tensors), "metadata": len(checkpoint.metadata)}


def _about_text(checkpoint: Checkpoint) -> str:
    about = _about(Path(), checkpoint)
    entries = format_count(about["metadata"], "metadata entry", "metadata entries")
    return f"{about['format']}, {format_count(about['tensors'], 'tensor')}, {entries}"


def _predictions_text(found: Predictions) -> str:
    both = f"perplexity {found.perplexity_a:.4f} and {found.perplexity_b:.4f}"
    divergence = f"divergence {found.mean_divergence:.5f}, at most {found.max_divergence:.3f}"
    return f"predictions: {both}, {divergence}, same top token {percent(found.same_top)}, {found.tokens:,} tokens"
