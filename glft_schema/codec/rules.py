"""Validation rules as data, and which readers enforce each.

A rule names its rule sets. Parsing raises an error if a `REQUIRED` rule is broken, because such a
file has no meaning. The other rules are checked by `check_rules`, which returns findings, and by
building a file for their rule sets. What a construct refuses by itself is a `Fault`, in its
`refuses`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import construct

from glft_schema.codec.context import Context
from glft_schema.codec.expressions import (
    COMPARISONS,
    Allowed,
    Constant,
    Expression,
    FunctionCall,
    Operation,
    Reference,
    as_condition,
    as_expression,
    equality,
    field_of,
    fields_in,
    is_condition,
    outermost,
    read,
    subexpressions,
)
from glft_schema.codec.trace import LABELS, without_root
from glft_schema.errors import Finding, FormatError, LimitError, OptionError, quote
from glft_schema.limits import A_LIMIT, DEFAULTS, limit_error
from glft_schema.words import suggestion

__all__ = [
    "GGML",
    "REQUIRED",
    "SPEC",
    "Predicate",
]

SPEC = "spec"  # the format's specification
GGML = "ggml"  # llama.cpp's reader
RUST = "rust"  # the reader of the safetensors library
REQUIRED = "required"  # every reader
RULE_SETS = (SPEC, GGML, RUST, REQUIRED)


def rule_sets(names: str | Iterable[str]) -> tuple[str, ...]:
    """Returns one rule set or several, by name. Raises OptionError for an unknown name."""
    sets = (names,) if isinstance(names, str) else tuple(names)
    for name in sets:
        if name not in RULE_SETS:
            raise OptionError(f"expected one of {', '.join(RULE_SETS)}, found {quote(name)}{suggestion(name, RULE_SETS)}")
    return sets


class Fault(NamedTuple):
    """Values that a construct refuses by itself, without a rule.

    Attributes:
        sentence: the refused values in words, for descriptions.
        stored: how such values are stored, each alone enough to be refused; of a text, after its
            length. In lines and JSON, a NUL marks the first byte of the fault. Empty if other
            fields must change, too.
        error: the error of parsing them.
        part: the part of the field that is reported, ``#`` for the last row; empty for the field.
    """

    sentence: str
    stored: tuple[bytes, ...] = ()
    error: type[FormatError] = FormatError
    part: str = ""


ALL_BITS = (b"all bits",)  # of the number with which the field begins


class Check(construct.Construct):
    """A condition on fields of a `Struct`, checked by parsing, building and sizing. Takes no bytes.

    Attributes:
        id: its stable name.
        field: the field that it guards.
        expected: the end of the sentence "expected ...".
        sets: the rule sets that have it.
        is_required: whether every reader enforces it.
        building: whether building for one of its sets enforces it, too.
        advice: what to do if building refuses, at the end of the error; or an empty string.
        example: a metadata key to which it applies, if it applies to few; or an empty string.
        broken_by: values of its field that break it.
        error: the error of a reader that enforces it.
    """

    expected = ""
    advice = ""
    example = ""
    broken_by: tuple[Any, ...] = ()
    error: type[FormatError] = FormatError

    def __init__(self, id: str, field: str, sets: str | Iterable[str] = RULE_SETS, building: bool = True) -> None:
        super().__init__()
        self.building = building
        self.id = id
        self.field = field
        self.sets = rule_sets(sets)
        self.is_required = REQUIRED in self.sets
        self.flagbuildnone = True

    @property
    def sentence(self) -> str:
        """The end of the sentence "expected ..." in documents."""
        return self.expected

    def check(self, context: Context, path: str) -> None:
        """Calls `report` if the condition does not hold in `context`."""
        raise NotImplementedError

    def needs(self) -> set[str] | None:
        """Returns the fields that it reads, or None to check it at its position in the Struct."""
        return None

    def report(
        self,
        context: Context,
        problem: str,
        path: str,
        offset: int | None = None,
        tensor: str | None = None,
        error: type[FormatError] = FormatError,
    ) -> None:
        """Raises `error` if the rule is enforced here; otherwise adds a `Finding`."""
        if self.is_needed(context):
            found = error(problem + self.advice, path, offset, tensor)
            found.rule = self.id
            raise found
        where = without_root(path)
        trace = context._params.trace
        if trace and (span := trace.find(where)):
            offset = span.start
        context._params.findings.append(Finding(self.id, self.sets, where, problem, offset, self.building))

    def is_needed(self, context: Context) -> bool:
        """Tells whether every reader or a rule set being built for enforces the rule."""
        asked_for = set(self.sets).intersection(context._params.get("rules", ()))
        return self.is_required or (bool(asked_for) and self.building)

    def _parse(self, stream: Any, context: Context, path: str) -> None:
        if self.is_required or "findings" in context["_params"]:
            self.check(context, path)

    def _build(self, obj: Any, stream: Any, context: Context, path: str) -> None:
        params = context["_params"]
        if "findings" in params or (self.is_needed(context) and not params.get("forging", False)):
            self.check(context, path)

    def _sizeof(self, context: Context, path: str) -> int:
        if self.is_required:
            self.check(context, path)
        return 0


@dataclass(frozen=True, eq=False, repr=False)
class Predicate:
    """A condition on a value; see `glft_schema.codec.predicates`.

    Attributes:
        text: the end of the sentence "expected ...".
        on: the expression of a value -> the condition, an expression or a function.
        broken_by: values that break it.
        show: a value that breaks it -> its text in errors.
        number: the context -> the required number, for errors; None if several values are valid.
    """

    text: str
    on: Callable[[Any], Any]
    broken_by: tuple[Any, ...] = ()
    show: Callable[[Any], str] = quote
    number: Callable[[Any], int] | None = None


class Rule(Check):
    """A `Check` in one sentence: ``Rule("gguf-dims", len_(this.dims), at_most(4, "dims"))``.

    Args:
        id: its stable name.
        of: the expression that is checked. The rule guards the first field in it.
        must: the predicate of valid values.
        when: when the rule applies: an expression, or a function of the context.
        sets: the rule sets that have it.
        building: whether building for one of its sets enforces it, too.
        field: the guarded field, if it is not the first one in `of`.
        advice: see `Check`.

    Raises:
        TypeError: if `must` is not a predicate.

    Attributes:
        condition: the condition that must hold if the rule applies.
        computed: the expression that is checked, if it is not the guarded field or a length or
            function of it, or None.
    """

    def __init__(
        self,
        id: str,
        of: Any,
        must: Predicate,
        *,
        when: Any = None,
        sets: str | Iterable[str] = RULE_SETS,
        building: bool = True,
        field: str | None = None,
        advice: str = "",
    ) -> None:
        super().__init__(id, field or field_of(of), sets, building)
        self.advice = advice
        if not isinstance(must, Predicate):
            raise TypeError(f"{id}: expected a predicate such as equals(3), found {quote(must)}")
        self.when = None if when is None else as_expression(when)
        self.condition = as_expression(must.on(of))
        self.must, tree = must, as_expression(of)
        inner = getattr(tree, "of", tree)  # of a length or function
        is_field = isinstance(inner, Reference) and inner.names == (self.field,) and not (inner.up or inner.of_root)
        self.computed = None if is_field else read(tree)
        self.broken_by = () if self.computed else must.broken_by
        self.expected = must.text + (f" for {outermost(tree)}" if self.computed else "") + _in_words(when)

    @property
    def sentence(self) -> str:
        """The end of the sentence "expected ..." in documents, which also say when it applies."""
        if self.when is None or equality(self.when):
            return self.expected
        calls = any(isinstance(part, FunctionCall) for part in subexpressions(self.when))
        return f"{self.expected}, in some files" if calls else f"{self.expected}, if {outermost(self.when)}"

    @property
    def implication(self) -> Expression:
        """The condition of all files: that the rule does not apply, or its condition."""
        return self.condition if self.when is None else Operation("|", _negated(self.when), as_condition(self.condition))

    @property
    def holds(self) -> Expression | None:
        """The condition if the rule always applies, otherwise None."""
        return self.condition if self.when is None else None

    def check(self, context: Context, path: str) -> None:
        if (self.when is None or self.when.compiled(context)) and not self.condition.compiled(context):
            self.refuse(context, path)

    def needs(self) -> set[str] | None:
        parts = fields_in(self.condition), set() if self.when is None else fields_in(self.when)
        return None if None in parts else {self.field}.union(*parts)  # type: ignore[arg-type]

    def refuse(self, context: Context, path: str) -> None:
        """Reports the value of the guarded field."""
        if self.computed:
            found = self.computed(context)
        else:
            found = context[self.field] if self.field in context else context._params[self.field]
            if isinstance(found, list) and any(isinstance(row, Mapping) for row in found[:1]):  # of a table
                found = len(found)
        number = "" if self.must.number is None else f", {self.must.number(context)}"
        problem = f"expected {self.expected}{number}, found {self.must.show(found)}"
        self.report(context, problem, f"{path} -> {self.field}")


class Limit(Rule):
    """A rule that enforces one of `glft_schema.limits`.

    Args:
        id: its stable name.
        of: the expression that is checked.
        limit: the name of the limit.
        unit: a plural noun for what the limit counts.
        when: the condition under which the rule applies.
    """

    error = LimitError

    def __init__(self, id: str, of: Any, limit: str, *, unit: str = "", when: Any = None) -> None:
        self.limit = limit
        self.unit = (f" {unit}" if unit else "") + _in_words(when)
        self._most = Allowed(DEFAULTS[limit], limit)
        self._of = as_expression(of)
        text = f"at most {DEFAULTS[limit]}{self.unit}, {A_LIMIT}"
        super().__init__(id, of, Predicate(text, lambda of: of <= self._most, (DEFAULTS[limit] + 1,)), when=when)
        self.expected = text

    def refuse(self, context: Context, path: str) -> None:
        most, found = f"{self._most(context)}{self.unit}", str(self._of(context))
        error = limit_error(self.limit, most, found, f"{path} -> {self.field}")
        error.rule = self.id
        raise error


spec = partial(Rule, sets=(SPEC,))
ggml = partial(Rule, sets=(GGML,))


OPPOSITES = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">", "&": "|", "|": "&"}


def _negated(condition: Expression) -> Expression:
    """Returns the opposite of a condition, which may be a number."""
    match condition:
        case Operation(sign, left, right) if is_condition(condition):
            return Operation(OPPOSITES[sign], *((left, right) if sign in COMPARISONS else (_negated(left), _negated(right))))
    return Operation("==", condition, Constant(0))


def _in_words(when: Any) -> str:
    """Returns the end of a rule's sentence; empty unless `when` is ``field == constant``."""
    if (equal := equality(when)) is None:
        return ""
    field, value = equal[0].rpartition(".")[2], equal[1]
    return f" for {value}" if field in LABELS else f" if {field} is {value}"
