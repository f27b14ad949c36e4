"""Rule sets: those of a format, of a role, and of llama.cpp's loader of models."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glft_schema.checks.findings import finding_lines, findings_data, repair_lines
from glft_schema.checks.roles import ROLES, role_findings, role_of
from glft_schema.codec.rules import GGML, RULE_SETS, SPEC, rule_sets
from glft_schema.display import format_count
from glft_schema.errors import Finding, OptionError, quote, safe
from glft_schema.families.chat_templates import broken_template, unsafe_templates
from glft_schema.families.loader import LLAMA_CPP, check_model, reason_unchecked, wrong_ids
from glft_schema.families.requirements import locate
from glft_schema.files import parsing
from glft_schema.files.container import as_file
from glft_schema.files.file import File
from glft_schema.files.summary import gaps_text
from glft_schema.lazy import outside_graphs
from glft_schema.storage.source import StrPath
from glft_schema.words import suggestion

ALL_SETS = (*RULE_SETS, *ROLES, LLAMA_CPP)
SHOWN = 20  # findings in lines of text


def with_implied(names: Iterable[str]) -> list[str]:
    """Returns rule sets, with `ggml` before `llama.cpp`: the loader of models uses that reader."""
    return list(dict.fromkeys(name for given in names for name in ((GGML, given) if given == LLAMA_CPP else (given,))))


@outside_graphs
def check_rules(file: File | StrPath, rules: str | Iterable[str], *, render: bool = True) -> list[Finding]:
    """Checks a file against rule sets, and returns the findings. Parses the file again.

    Findings of the format's rules come before those of a role and of llama.cpp, each in file order.

    Args:
        file: an open file or a path. It satisfies ``required``, or it could not be opened. In a set
            of files only the first one is checked, except by `llama.cpp`. Its findings name the
            file.
        rules: one or several rule sets, such as `spec` and `ggml`. For GGUF also `llama.cpp`, the
            requirements of its loader for a model, which include `ggml`, and the roles `lora`,
            `controlvector`, `mmproj` and `imatrix`, its requirements for such files.
        render: for `spec`, also render a chat template, in a separate process.

    Raises:
        OptionError: if a rule set is unknown, or does not apply to the file's format.
        FormatError, OSError: if the file cannot be opened.
    """
    file = as_file(file)
    names = with_implied([rules] if isinstance(rules, str) else rules)
    if unknown := [name for name in names if name not in ALL_SETS]:
        raise OptionError(f"expected one of {', '.join(ALL_SETS)}, found {quote(unknown[0])}{suggestion(unknown[0], ALL_SETS)}")
    own = [name for name in names if name not in RULE_SETS]
    if own and GGML not in file.format.rule_sets:
        raise OptionError(f"expected a rule set of {file.format.name}, found {own[0]!r}")
    findings = parsing.check_rules(file, rule_sets(name for name in names if name in RULE_SETS))
    first = file.shards[0]
    broken = [finding for name in own if name in ROLES for finding in role_findings(first, ROLES[name])]
    if SPEC in names and GGML in file.format.rule_sets:
        broken += [*wrong_ids(first), *(broken_template(first) if render else ())]
    added = locate(first, broken)
    added += check_model(file) if LLAMA_CPP in own else []
    order = {shard.name: i for i, shard in enumerate(file.shards)}
    by_offset = sorted([*findings, *added], key=lambda one: one.offset or 0)
    return sorted(by_offset, key=lambda one: (order.get(one.file or "", 0), set(RULE_SETS).isdisjoint(one.sets)))


@dataclass
class Report:
    """Findings of a file, or of all files of a set.

    Attributes:
        file: the file.
        sets: the rule sets that were checked.
        enforced: those whose violations are failures.
        findings: pairs of a file's index in its set and a finding.
        failures: the findings that are failures.
        not_checked: why the rules of llama.cpp's loader were not checked, or an empty string.
        are_asked: whether the rule sets were asked for.
        strict: whether rules that were not checked are a failure, too.
    """

    file: File
    sets: list[str]
    enforced: list[str]
    findings: list[tuple[int, Finding]]
    failures: list[Finding]
    not_checked: str = ""
    are_asked: bool = False
    strict: bool = False

    @property
    def holds(self) -> bool:
        """Whether there are no failures."""
        return not (self.failures or (self.strict and self.not_checked))

    def lines(self) -> list[str]:
        """Returns a summary, the findings, and a command that repairs the file."""
        file, named, repair = self.file, self._named(), self._repair()
        state = format_count(named, "rule violation") if named else "all rules hold"
        size = f"{format_count(file.tensors, 'tensor')}, {file.nbytes:,} bytes"
        summary = f"{safe(file.name)}: {file.format.name}, {size}, {state} ({', '.join(self.sets)})"
        if self.not_checked:
            summary += f"; {LLAMA_CPP}: not checked, {self.not_checked}"
        elif self.failures and not self.are_asked:
            summary += f"; {LLAMA_CPP} refuses the file"
        lines = [summary, *finding_lines(named, len(file.shards) > 1, SHOWN)]
        if repair:
            repaired = sum(finding.repair is not None for _, finding in named)
            lines += [f"to repair {repaired} of {format_count(named, 'violation')}:", *(f"  {part} \\" for part in repair)]
            lines[-1] = lines[-1].removesuffix(" \\")
        return [*lines, *([gaps_text(file)] if file.tensors.gaps else [])]

    def data(self) -> dict[str, Any]:
        """Returns the report for JSON."""
        return {
            "checked": self.sets,
            "enforced": self.enforced,
            "failures": len(self.failures),
            "not_checked": {LLAMA_CPP: self.not_checked} if self.not_checked else {},
            "repair": " ".join(map(str.strip, self._repair())) or None,
            "broken": findings_data(self._named()),
        }

    def _named(self) -> list[tuple[str, Finding]]:
        return [(Path(self.file.shards[i].name).name, finding) for i, finding in self.findings]

    def _repair(self) -> list[str]:
        return repair_lines(self.file, [finding.repair for _, finding in self.findings])


def report(file: File, rules: Sequence[str] = (), render: bool = True, strict: bool = False) -> Report:
    """Checks rule sets. By default all that apply; failures are then what llama.cpp refuses, or, if
    `strict`, all findings, and what cannot be checked. A chat template is rendered if `render`."""
    sets, enforced, not_checked, role = with_implied(rules), with_implied(rules), "", None
    if not rules:
        sets, role = list(file.format.rule_sets), role_of(file)
        if GGML in sets:
            not_checked = "" if role else reason_unchecked(file)
            enforced = [GGML, *([] if not_checked else [role.name if role else LLAMA_CPP])]
            sets = list(dict.fromkeys([*sets, *enforced]))
            kind = file.metadata.get("general.type", "model")
            if strict and not (role or not_checked or kind == "model"):
                not_checked = f"no rules for the role {quote(kind)}"
    names = {shard.name: i for i, shard in enumerate(file.shards)}
    findings = [(names.get(finding.file or "", 0), finding) for finding in check_rules(file, sets, render=render)]
    of_one = [name for name in sets if name != LLAMA_CPP]
    findings += [(i, finding) for i, shard in enumerate(file.shards[1:], 1) for finding in check_rules(shard, of_one)]
    findings += [(0, finding) for finding in locate(file.shards[0], [*unsafe_templates(file.shards[0])])] if strict else []
    every = [finding for _, finding in findings]
    failures = every if rules or strict else [finding for finding in every if not {*finding.sets}.isdisjoint(enforced)]
    if role and not strict:  # loads without some keys
        refused = [finding.problem for finding in role_findings(file, role, to_load=True)]
        failures = [finding for finding in failures if role.name not in finding.sets or finding.problem in refused]
    return Report(file, sets, sets if strict else enforced, findings, failures, not_checked, bool(rules) or strict, strict)
