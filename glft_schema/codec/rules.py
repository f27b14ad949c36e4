"""Validation rules as data, and which readers enforce each.

A rule names its rule sets. Reading refuses what breaks a rule of `REQUIRED`: without it the file means nothing. Rules of the
other sets alone are checked when findings are asked for, see `glft_schema.check_rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import construct

from glft_schema.codec.context import Context
from glft_schema.codec.expressions import Allowed, compiled
from glft_schema.codec.trace import without_root
from glft_schema.errors import Finding, FormatError, LimitError, OptionError, shown
from glft_schema.limits import A_LIMIT, DEFAULTS, exceeded

SPEC = "spec"  # the format's specification
GGML = "ggml"  # llama.cpp's reader
REQUIRED = "required"  # what every reader enforces: without it a file means nothing
RULE_SETS = (SPEC, GGML, REQUIRED)


def rule_sets(names: str | Iterable[str]) -> tuple[str, ...]:
    """Returns the rule sets of these names, or of this one. Raises OptionError for another name."""
    found = (names,) if isinstance(names, str) else tuple(names)
    for name in found:
        if name not in RULE_SETS:
            raise OptionError(f"expected one of {', '.join(RULE_SETS)}, found {shown(name)}")
    return found


class Check(construct.Construct):
    """Something that must hold where it stands in a `Struct`: parsing, building and computing sizes. Takes no bytes.

    Attributes:
        id: its stable name.
        field: the field that it guards.
        expected: a sentence's end: what the field is expected to be.
        sets: the rule sets that hold it.
        is_required: whether every reader enforces it.
        building: whether building keeps to it, too, where one of its sets is asked for.
    """

    expected = ""

    def __init__(self, id: str, field: str, sets: tuple[str, ...] = RULE_SETS, building: bool = True) -> None:
        super().__init__()
        self.building = building
        self.id = id
        self.field = field
        self.sets = sets
        self.is_required = REQUIRED in sets
        self.flagbuildnone = True

    def check(self, context: Context, path: str) -> None:
        """Calls `broken` where it does not hold in `context`."""
        raise NotImplementedError

    def broken(
        self,
        context: Context,
        problem: str,
        path: str,
        offset: int | None = None,
        tensor: str | None = None,
        error: type[FormatError] = FormatError,
    ) -> None:
        """Raises `error` where reading or the rule sets asked for need the rule; else notes a `Finding` if they are wanted."""
        if self.is_needed(context):
            found = error(problem, path, offset, tensor)
            found.rule = self.id
            raise found
        where = without_root(path)
        trace = context._params.trace
        if trace and (span := trace.find(where)):
            offset = span.start
        context._params.findings.append(Finding(self.id, self.sets, where, problem, offset, self.building))

    def is_needed(self, context: Context) -> bool:
        """Tells whether what breaks the rule is refused: always, or by the rule sets that building was asked to keep to."""
        asked_for = set(self.sets).intersection(context._params.get("rules", ()))
        return self.is_required or (bool(asked_for) and self.building)

    def _parse(self, stream: Any, context: Context, path: str) -> None:
        if self.is_required or "findings" in context["_params"]:
            self.check(context, path)

    def _build(self, obj: Any, stream: Any, context: Context, path: str) -> None:
        if self.is_needed(context):
            self.check(context, path)

    def _sizeof(self, context: Context, path: str) -> int:
        if self.is_required:
            self.check(context, path)
        return 0


class Rule(Check):
    """A `Check` that is one sentence.

    Attributes:
        holds: tells whether it does, from the fields parsed so far: an expression, or a function of the context.
        error: what is raised where it is not.
        show: how what was found is shown.
        broken_by: fields beside the guarded one, and itself, with values that break it; for a function, which cannot be read.
        kept_by: entries of the guarded field, a mapping, with which it holds and without which it does not.
    """

    def __init__(
        self,
        id: str,
        field: str,
        holds: Callable[[Any], object],
        expected: str,
        *,
        error: type[FormatError] = FormatError,
        show: Callable[[Any], str] = shown,
        sets: tuple[str, ...] = RULE_SETS,
        building: bool = True,
        broken_by: Mapping[str, Any] | None = None,
        kept_by: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(id, field, sets, building)
        self.broken_by = broken_by
        self.kept_by = kept_by
        self.show = show
        self.holds = holds
        self._holds = compiled(holds)
        self.expected = expected
        self.error = error

    def check(self, context: Context, path: str) -> None:
        if not self._holds(context):
            found = context[self.field] if self.field in context else context._params[self.field]
            problem = f"expected {self.expected}, found {self.show(found)}"
            self.broken(context, problem, f"{path} -> {self.field}", error=self.error)


class Limit(Rule):
    """A rule that is a limit of this reader: `of`, an expression, is at most what the limit allows.

    Attributes:
        limit: the name of the limit.
        only: tells for which fields it holds; for all unless given.
        what: the end of the sentence.
    """

    def __init__(
        self,
        id: str,
        field: str,
        of: Any,
        limit: str,
        *,
        only: Callable[[Any], object] | None = None,
        what: str = "",
        broken_by: Mapping[str, Any] | None = None,
    ) -> None:
        most = Allowed(limit)
        holds = of <= most if only is None else lambda at: not only(at) or of(at) <= most(at)
        expected = f"at most {DEFAULTS[limit]}{what}, {A_LIMIT}"
        super().__init__(id, field, holds, expected, error=LimitError, broken_by=broken_by)
        self.limit = limit
        self.what = what
        self._amount = compiled(of)
        self._most = most

    def check(self, context: Context, path: str) -> None:
        if not self._holds(context):
            most, found = f"{self._most(context)}{self.what}", str(self._amount(context))
            error = exceeded(self.limit, most, found, f"{path} -> {self.field}")
            error.rule = self.id
            raise error
