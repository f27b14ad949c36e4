"""Rule sets: those of a format, of a role, and of llama.cpp's loader of models."""

from __future__ import annotations

from collections.abc import Iterable

from glft_schema.checks.models import LLAMA_CPP, check_model
from glft_schema.checks.roles import ROLES, broken_role, located
from glft_schema.codec.rules import GGML, RULE_SETS, rule_sets
from glft_schema.errors import Finding, OptionError, shown
from glft_schema.files import parsing
from glft_schema.files.container import as_file
from glft_schema.files.file import File
from glft_schema.storage.source import StrPath
from glft_schema.words import suggestion

ALL_SETS = (*RULE_SETS, *ROLES, LLAMA_CPP)


def with_implied(names: Iterable[str]) -> list[str]:
    """Returns rule sets, with `ggml` before `llama.cpp`: the loader of models uses that reader."""
    return list(dict.fromkeys(name for given in names for name in ((GGML, given) if given == LLAMA_CPP else (given,))))


def check_rules(file: File | StrPath, rules: str | Iterable[str]) -> list[Finding]:
    """Returns the rules of some sets that a file breaks, in file order. Parses the file again.

    Args:
        file: an open file or a path. It satisfies ``required``, or it could not be opened. In a set
            of files only the first one is checked, except by `llama.cpp`. Its findings name the
            file.
        rules: rule sets, such as `spec` and `ggml`, and for GGUF roles: `lora`, `controlvector`,
            `mmproj` or `imatrix`, what llama.cpp requires of such a file, or `llama.cpp`, what its
            loader requires of a model, `ggml` included. One or several.

    Raises:
        OptionError: if a rule set is unknown, or the file's format has no such role.
        FormatError, OSError: if the file cannot be opened.
    """
    file = as_file(file)
    names = with_implied([rules] if isinstance(rules, str) else rules)
    if unknown := [name for name in names if name not in ALL_SETS]:
        raise OptionError(f"expected one of {', '.join(ALL_SETS)}, found {shown(unknown[0])}{suggestion(unknown[0], ALL_SETS)}")
    own = [name for name in names if name not in RULE_SETS]
    if own and GGML not in file.format.rule_sets:
        raise OptionError(f"expected a rule set of {file.format.name}, found {own[0]!r}")
    findings = parsing.check_rules(file, rule_sets(name for name in names if name in RULE_SETS))
    first = file.shards[0]
    added = located(first, [finding for name in own if name in ROLES for finding in broken_role(first, ROLES[name])])
    added += check_model(file) if LLAMA_CPP in own else []
    order = {shard.name: i for i, shard in enumerate(file.shards)}
    return sorted([*findings, *added], key=lambda finding: (order.get(finding.file or "", 0), finding.offset or 0))
