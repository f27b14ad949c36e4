"""`glft imatrix`: measures importance matrices, and converts and merges those of llama.cpp."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from glft_schema.cli.options import Chunks, Context, Input, Tokenizer, argument, flag, option
from glft_schema.cli.terminal import echo, echo_written, file_errors, progress_bar, refuse_overwriting
from glft_schema.display import format_count
from glft_schema.errors import OptionError, safe
from glft_schema.models.activations import measure_importance
from glft_schema.models.token_chunks import CONTEXT
from glft_schema.storage.locations import check_local
from glft_schema.storage.opening import read_text
from glft_schema.weights.importance import TOKENS, ImportanceMatrix, check_ending


def imatrix(
    files: Annotated[tuple[Input, ...], argument("IN... OUT", "MODEL and TEXT with -o; otherwise matrices and OUT.")],
    out: Annotated[Path | None, option("OUT", "Measure MODEL on TEXT, and write OUT.", "-o")] = None,
    chunks: Chunks = None,
    context: Context = CONTEXT,
    tokenizer: Tokenizer = None,
    process_output: Annotated[bool, flag("Also measure output.weight, unless it is the embedding.")] = False,
    chunk_size: Annotated[int, option("N", "Tokens in a chunk of an imatrix.dat, which does not state it.", min=1)] = TOKENS,
) -> None:
    """Measures, converts or merges llama.cpp's importance matrices.

    With -o OUT, the arguments are MODEL and TEXT. As in llama-imatrix, the model runs on the text,
    and the squared inputs of each matrix are summed. MODEL is a GGUF file of any types, or a
    Hugging Face folder. It runs in torch, in float32, and requires transformers.

    Without -o, importance matrices are converted, and several are merged as llama-imatrix does:
    sums, counts and chunks are added. A .dat holds one count for all experts, no chunk size, only
    the last dataset, and no matrices without data.

    OUT's extension, .gguf or .dat, selects its format. OUT is replaced only on success.

    Examples:
        glft imatrix f16.gguf text.txt -o imatrix.gguf
        glft imatrix imatrix.dat imatrix.gguf
    """
    with file_errors(files[0]):
        inputs, target = _inputs_and_target(files, out, bool(chunks or tokenizer or process_output))
    if out is not None:
        model, text = inputs
        with file_errors(text):
            words = read_text(text)
        with file_errors(model), progress_bar("measuring") as bar:
            matrix = measure_importance(
                model,
                words,
                tokenizer=tokenizer,
                context=context,
                chunks=chunks,
                process_output=process_output,
                dataset=str(text),
                progress=bar,
            )
    else:
        matrix = _merge(inputs, target, chunk_size)
    with file_errors(target):
        unused = matrix.save(target)
    matrices_text = format_count(matrix.columns.keys() - unused, "matrix", "matrices")
    echo(f"{target}: {matrices_text}, {format_count(matrix.chunk_count, 'chunk')}, {target.stat().st_size:,} bytes")
    echo(*(f"left out: {safe(name)} has no data" for name in unused))
    echo_written([target], "quantize", inputs[0] if out else "MODEL", "OUT", "IQ4_XS", "--imatrix", target)


def _inputs_and_target(files: tuple[Input, ...], out: Path | None, of_model: bool) -> tuple[list[Input], Path]:
    """Returns the files to read, and the file to write.

    Raises OptionError for a wrong number of files, or for options of a model without a model.
    """
    if len(files) < 2:
        raise OptionError("expected IN and OUT, or MODEL, TEXT and -o OUT, found one argument")
    if out is not None and len(files) > 2:
        raise OptionError(f"expected MODEL and TEXT before -o, found {len(files)} arguments")
    if out is None and of_model:
        raise OptionError("--chunks, --tokenizer and --process-output measure a model: give MODEL, TEXT and -o OUT")
    *inputs, last = files if out is None else (*files, out)
    check_local(last)
    check_ending(last)
    target = Path(last)
    for file in inputs:
        refuse_overwriting(target, file)
    return inputs, target


def _merge(inputs: list[Input], target: Path, chunk_size: int) -> ImportanceMatrix:
    """Returns the sum of importance matrices."""
    matrices = []
    for file in inputs:
        with file_errors(file):
            matrices.append(ImportanceMatrix.open(file, chunk_size=chunk_size))
    with file_errors(target):
        return matrices[0] if len(matrices) == 1 else ImportanceMatrix.merge(matrices)
