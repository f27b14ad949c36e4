"""Rules: what must hold in a file, as data, and in whose eyes.

A rule names the rule sets that hold it. Reading refuses what breaks a rule of `LENIENT`: nobody could say what such a file
means. Rules that are only in the others are looked at when findings are asked for, see `glft_schema.container.findings`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import construct

from glft_schema.errors import FormatError, LimitError, SchemeError, shown
from glft_schema.expressions import compiled
from glft_schema.limits import A_LIMIT, DEFAULTS, Allowed, exceeded
from glft_schema.trace import plain_path

SPEC = "spec"  # the format's specification
GGML = "ggml"  # llama.cpp's reader
LENIENT = "lenient"  # what no reader can do without
RULE_SETS = (SPEC, GGML, LENIENT)


def rule_sets(names: str | Iterable[str]) -> tuple[str, ...]:
    """Returns the rule sets of these names, or of this one. Raises SchemeError for another name."""
    found = (names,) if isinstance(names, str) else tuple(names)
    for name in found:
        if name not in RULE_SETS:
            raise SchemeError(f"expected one of {', '.join(RULE_SETS)}, found {shown(name)}")
    return found


@dataclass
class Finding:
    """A rule that a file breaks.

    Attributes:
        rule: its id.
        sets: the rule sets that hold it.
        path: the field.
        problem: what was expected and what was found.
        offset: where the field begins, in bytes from the start of the container.
        building: whether building keeps to the rule, where one of its sets is asked for.
    """

    rule: str
    sets: tuple[str, ...]
    path: str
    problem: str
    offset: int | None = None
    building: bool = True


class Check(construct.Construct):
    """Something that must hold where it stands in a `Struct`: parsing, building and computing sizes. Takes no bytes.

    Attributes:
        id: its stable name.
        field: the field that it guards.
        expected: a sentence's end: what the field is expected to be.
        sets: the rule sets that hold it.
        is_always_needed: whether no reader can do without it.
        building: whether building keeps to it, too, where one of its sets is asked for.
    """

    expected = ""

    def __init__(self, id: str, field: str, sets: tuple[str, ...] = RULE_SETS, building: bool = True) -> None:
        super().__init__()
        self.building = building
        self.id = id
        self.field = field
        self.sets = sets
        self.is_always_needed = LENIENT in sets
        self.flagbuildnone = True

    def check(self, context: Any, path: str) -> None:
        """Calls `broken` where it does not hold in `context`."""
        raise NotImplementedError

    def broken(
        self,
        context: Any,
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
        where = plain_path(path)
        if span := context._params.trace.find(where):
            offset = span.start
        context._params.findings.append(Finding(self.id, self.sets, where, problem, offset, self.building))

    def is_needed(self, context: Any) -> bool:
        """Tells whether what breaks the rule is refused: always, or by the rule sets that building was asked to keep to."""
        asked_for = set(self.sets).intersection(context._params.get("rules", ()))
        return self.is_always_needed or (bool(asked_for) and self.building)

    def _parse(self, stream: Any, context: Any, path: str) -> None:
        if self.is_always_needed or "findings" in context["_params"]:
            self.check(context, path)

    def _build(self, obj: Any, stream: Any, context: Any, path: str) -> None:
        if self.is_needed(context):
            self.check(context, path)

    def _sizeof(self, context: Any, path: str) -> int:
        if self.is_always_needed:
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

    def check(self, context: Any, path: str) -> None:
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
        only: Callable[[Any], object] | None = None,
        what: str = "",
        broken_by: Mapping[str, Any] | None = None,
    ) -> None:
        most = Allowed(limit)
        holds = of <= most if only is None else lambda at: not only(at) or of(at) <= most(at)
        expected = f"at most {DEFAULTS[limit]}{what}, {A_LIMIT}"
        super().__init__(id, field, holds, expected, LimitError, broken_by=broken_by)
        self.limit = limit
        self.what = what
        self._amount = compiled(of)
        self._most = most

    def check(self, context: Any, path: str) -> None:
        if not self._holds(context):
            most, found = f"{self._most(context)}{self.what}", str(self._amount(context))
            error = exceeded(self.limit, most, found, f"{path} -> {self.field}")
            error.rule = self.id
            raise error
