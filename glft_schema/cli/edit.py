"""`glft edit`: changes metadata and names of tensors."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from glft_schema.cli.convert import parse_metadata, text_of
from glft_schema.cli.options import Input, Texts, argument, flag, option
from glft_schema.cli.terminal import GREEN, RED, echo, echo_written, file_errors, unique
from glft_schema.cli.write_report import warn_of_refusal
from glft_schema.errors import OptionError, quote
from glft_schema.weights.edit import edit as edit_file


def edit(
    file: Annotated[Input, argument("FILE", "Weights file, not part of a set.")],
    set: Annotated[
        Texts,
        option(
            "KEY=VALUE",
            "Metadata entry to change or add; KEY:TYPE=JSON for another type. @PATH is the text of a file. Repeatable.",
        ),
    ] = (),
    remove: Annotated[Texts, option("KEY", "Metadata entry to remove. Repeatable.")] = (),
    rename: Annotated[Texts, option("OLD=NEW", "Tensor to rename. Repeatable.")] = (),
    out: Annotated[Path | None, option("OUT", "Output file; replaced only on success. Default: FILE.", "-o")] = None,
    dry_run: Annotated[bool, flag("Show the changes, but write nothing.")] = False,
) -> None:
    """Changes metadata and tensor names.

    Everything else is copied unchanged: payloads, order, alignment, byte order and version.

    A value is parsed as the type of the value that it replaces, or of a well-known new key. Values
    of other new keys are text. Arrays are JSON. @PATH stands for the text of a file, @@ for a
    literal @.

    The output has one line for each change. After an error, nothing is written. general.alignment
    and the keys of split files cannot be changed. A new key that resembles a well-known key is
    written with a warning, and so is a file that llama.cpp will refuse because of the change.

    Examples:
        glft edit model.gguf --set general.name=Toy
        glft edit model.gguf --set tokenizer.chat_template=@chat.jinja
    """
    with file_errors(file):
        edited = edit_file(
            file,
            out,
            set=parse_metadata(set, typed=True, option="--set", value_of=text_of),
            remove=remove,
            rename=parse_renames(rename),
            dry_run=dry_run,
            check=warn_of_refusal,
        )
    for change in edited.changes:
        echo(str(change), colour=RED if change.action == "remove" else GREEN)
    if dry_run:
        echo(f"dry run: {edited.nbytes:,} bytes would be written, {edited.copied:,} of them copied unchanged")
        return
    echo_written([str(out or file)], "inspect", out or file)


def parse_renames(texts: Iterable[str]) -> dict[str, str]:
    """Parses ``OLD=NEW``. Raises OptionError for any other form, and for a repeated OLD."""
    parts = [text.partition("=") for text in texts]
    if wrong := [text for text, (old, _, new) in zip(texts, parts, strict=True) if not (old and new)]:
        raise OptionError(f"expected OLD=NEW, found {quote(wrong[0])}")
    return unique("--rename", "tensor", [(old, new, new) for old, _, new in parts])
