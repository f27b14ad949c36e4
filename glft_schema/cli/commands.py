"""The subcommands by job: each is imported when it is used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from glft_schema.cli.options import HELP, command
from glft_schema.cli.terminal import BROKEN_PIPE, INTERRUPTED, RefusedError
from glft_schema.errors import OptionError, UnsupportedError
from glft_schema.words import closest

# fmt: off
JOBS = {  # the commands of each job, with the first line of their help
    "Look at files": {
        "inspect":    "Shows the model in a file: sizes, metadata and tensors.",
        "explain":    "Shows every byte of a file and what it means.",
        "view":       "Writes an HTML report about a file.",
        "get-tensor": "Writes one tensor to a .npy file.",
        "schema":     "Prints the schema of a format or tensor type.",
    },
    "Check files": {
        "verify":     "Verifies a file's rules, hashes and values.",
        "compare":    "Compares metadata and weights of files; ranks quantizations.",
        "hash":       "Prints SHA-256 hashes of files and tensors.",
    },
    "Change files": {
        "edit":       "Changes metadata and tensor names.",
        "convert":    "Converts weights to another format or type.",
        "split":      "Splits a GGUF or safetensors file into several files.",
        "merge":      "Merges a split model into one file.",
    },
    "Quantize models": {
        "quantize":   "Quantizes a model to a GGUF file, as llama-quantize does.",
        "plan":       "Plans a quantization: the best types for a size.",
        "imatrix":    "Measures, converts or merges llama.cpp's importance matrices.",
        "merge-lora": "Merges a LoRA adapter into a GGUF model.",
    },
    "Test": {
        "fuzz":       "Fuzzes the parser with generated and corrupted files.",
        "lab":        "Trains, quantizes and verifies a small GPT.",
    },
}
# fmt: on
COMMANDS = {name: about for commands in JOBS.values() for name, about in commands.items()}
MODULES = {"merge": "split"}  # of commands whose module has another name


class Commands(click.Group):
    """A group of commands that suggests the closest name for an unknown one."""

    def __init__(self, name: str | None = None, **attributes: Any) -> None:
        super().__init__(name, **{"context_settings": HELP, "no_args_is_help": True, **attributes})

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Returns a command. Exits for an unknown one. ``help X`` is ``X --help``."""
        if args[0] == "help":
            if not args[1:]:
                click.echo(ctx.get_help())
                ctx.exit()
            args = [*args[1:], "--help"]
        name = args[0]
        if not name.startswith("-") and not ctx.resilient_parsing and name not in (names := self.list_commands(ctx)):
            close = closest(name, names)
            ctx.fail(f"No such command {name!r}.{f' Did you mean {close!r}?' if close else ''}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs a command. A wrong option ends it with one line; Ctrl-C, or a closed output, with a
        shell's exit code."""
        try:
            return super().invoke(ctx)
        except (OptionError, UnsupportedError) as error:
            raise RefusedError(str(error)) from None
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None
        except BrokenPipeError:  # for which click would exit with 1
            raise click.exceptions.Exit(BROKEN_PIPE) from None


class Glft(Commands):
    """The `glft` command."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names of the commands."""
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports a command."""
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        found = getattr(import_module(f"glft_schema.cli.{MODULES.get(name, name)}"), name)
        return found if isinstance(found, click.Command) else command(found)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the commands by job, without importing them."""
        width = max(map(len, COMMANDS))
        for job, commands in JOBS.items():
            with formatter.section(job):
                formatter.write_dl([(f"{name:{width}}", about) for name, about in commands.items()])
