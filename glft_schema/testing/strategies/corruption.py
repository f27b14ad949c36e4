"""A broken file, and the errors or findings that must be reported for it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from glft_schema.errors import FormatError, TruncatedError
from glft_schema.files.container import Container
from glft_schema.files.parsing import check_rules


@dataclass(frozen=True, repr=False)
class Corruption:
    """A file with exactly one rule or one field broken.

    Attributes:
        stored: its bytes.
        sentence: what is wrong with it.
        path: the field that must be reported.
        offset: the first byte of that field, from the start of the file; None if it is not known.
            A TruncatedError may be at a later byte of the field.
        rule: the id of the broken rule; None for a field without one.
        error: the error that reading must raise; None if the file can be read and has findings.
        reported: the error's rule id, or None; for a rule of a tensor type, the id of the row's
            rule.
        within: whether the error may also be about a field within `path`.
        sets: the rule sets that are checked for findings.
        findings: rule ids and paths of all findings of these sets, in any order.
    """

    stored: bytes
    sentence: str
    path: str
    offset: int | None = None
    rule: str | None = None
    error: type[FormatError] | None = None
    reported: str | None = None
    within: bool = False
    sets: tuple[str, ...] = ()
    findings: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        return f"<{len(self.stored)} bytes, {self.sentence}; expected {self.expected}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Prints the corruption in hypothesis's reports without its bytes."""
        printer.text(repr(self))

    @property
    def expected(self) -> str:
        """What must be reported, in words."""
        if self.error is None:
            findings = " and ".join(f"{rule} at {path}" for rule, path in self.findings)
            return f"the findings of {' and '.join(self.sets)}: {findings}"
        return f"{self.error.__name__}{f' of {self.reported}' if self.reported else ''} at {self.path}"

    def problem(self) -> str | None:
        """Reads the file. Returns how its error or findings differ from the expected, or None."""
        try:
            file = Container.parse(self.stored)
        except FormatError as error:
            return self._other_error(error)
        if self.error is not None:
            return f"expected {self.expected}, found no error"
        findings = check_rules(file, self.sets)
        found = [(finding.rule, finding.path) for finding in findings]
        if Counter(found) != Counter(self.findings):
            return f"expected {self.expected}, found {found}"
        offsets = [finding.offset for finding in findings if finding.path == self.path]
        if self.offset is not None and self.offset not in offsets:
            return f"expected {self.expected} at byte {self.offset}, found it at {offsets}"
        return None

    def _other_error(self, error: FormatError) -> str | None:
        """Returns how an error differs from the expected one, or None."""
        found = f"found {type(error).__name__}{f' of {error.rule}' if error.rule else ''}: {error.text}"
        is_inside = self.within and error.path.startswith(f"{self.path} -> ")
        is_reported = error.path == self.path or is_inside
        if not isinstance(error, self.error or ()) or not is_reported or (error.rule != self.reported and not self.within):
            return f"expected {self.expected}, {found}"
        is_later = isinstance(error, TruncatedError) and (error.offset or 0) > (self.offset or 0)
        if not self.within and self.offset is not None and error.offset != self.offset and not is_later:
            return f"expected {self.expected} at byte {self.offset}, {found}"
        return None
