"""Regular expressions of an adapter's settings, matched in time linear in the text.

Python's ``re`` tries alternatives one after another, which takes exponential time for some
patterns. Here all alternatives are followed at once (Thompson's construction): a pattern is
compiled to a list of instructions, and each character advances a set of positions in it. Patterns
without groups and repetitions cannot backtrack exponentially, and are left to ``re``.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

from glft_schema.errors import FormatError, quote

MOST = 10_000  # instructions of all patterns
ONE = r"\\[dDsSwW]|\\[^A-Za-z0-9]|\[\^?\]?(?:\\.|[^\]\\])*\]|[^\\\[\](){}|*+?^$]"  # matches one letter
REPEAT = re.compile(r"([*+?]|\{(\d{1,4})(?:(,)(\d{0,4}))?\})\??")
TOKEN = re.compile(rf"{ONE}|\((?:\?:)?|{REPEAT.pattern}|[)|^$]")
BOUNDS = {"*": (0, None), "+": (1, None), "?": (0, 1)}
BRANCHING = re.compile(r"[*+?{(]")

Instruction = re.Pattern[str] | tuple[int, ...] | str  # a letter, relative jumps, or an end of the text: ^ or $
Code = list[Instruction]


class _UnsupportedError(Exception):
    """Raised for a pattern outside the supported syntax."""


class Patterns(NamedTuple):
    """Values by pattern, as peft has them in adapter_config.json."""

    compiled: list[tuple[re.Pattern[str] | Code, Any]]

    @classmethod
    def of(cls, settings: Mapping[str, Any], field: str, file: str) -> Patterns:
        """Returns the patterns in a field of the settings in `file`.

        Raises:
            FormatError: if the field is not an object, a pattern has anything but letters, classes,
                groups, alternatives, repetitions, ``^`` and ``$``, or all patterns together are too
                long.
        """
        compiled, length = list[tuple[re.Pattern[str] | Code, Any]](), 0
        if not isinstance(given := settings.get(field) or {}, Mapping):
            raise FormatError(f"expected an object with values by pattern, found {quote(given)}", field, file=file)
        for pattern, value in given.items():
            whole = rf"(.*\.)?({pattern})"  # as in peft
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of re, about sets that a later version may read differently
                    matcher = compile_pattern(whole) if BRANCHING.search(pattern) else re.compile(whole)
            except (_UnsupportedError, re.error, RecursionError):
                parts = "letters, classes, groups, |, repetitions, ^ and $"
                raise FormatError(f"expected a pattern of {parts}, found {quote(pattern)}", field, file=file) from None
            length += len(matcher) if isinstance(matcher, list) else 1
            if length > MOST:
                raise FormatError(f"expected patterns of at most {MOST:,} instructions, found more", field, file=file)
            compiled.append((matcher, value))
        return cls(compiled)

    def find(self, name: str, default: Any) -> Any:
        """Returns the value of the first pattern that matches a whole name, or the default."""
        for matcher, value in self.compiled:
            if matches(matcher, name) if isinstance(matcher, list) else matcher.fullmatch(name):
                return value
        return default


def compile_pattern(pattern: str) -> Code:
    """Returns the instructions of a pattern. Raises _UnsupportedError for other syntax."""
    tokens, at = list[str](), 0
    while at < len(pattern):
        if not (token := TOKEN.match(pattern, at)):
            raise _UnsupportedError
        tokens.append(token[0])
        at = token.end()
    tokens.reverse()
    code = _alternatives(tokens)
    if tokens:
        raise _UnsupportedError
    return code


def _alternatives(tokens: list[str]) -> Code:
    code = _sequence(tokens)
    while tokens and tokens[-1] == "|":
        tokens.pop()
        other = _sequence(tokens)
        code = [(1, len(code) + 2), *code, (len(other) + 1,), *other]
    return code


def _sequence(tokens: list[str]) -> Code:
    code = Code()
    while tokens and tokens[-1] not in ("|", ")"):
        token = tokens.pop()
        if REPEAT.fullmatch(token):
            raise _UnsupportedError
        part: Code = [token if token in ("^", "$") else re.compile(token)] if token[0] != "(" else _alternatives(tokens)
        if token[0] == "(" and (not tokens or tokens.pop() != ")"):
            raise _UnsupportedError
        if tokens and (repeat := REPEAT.fullmatch(tokens[-1])):
            tokens.pop()
            part = _repeat(part, *_bounds(repeat))
        code += part
        if len(code) > MOST:
            raise _UnsupportedError
    return code


def _bounds(repeat: re.Match[str]) -> tuple[int, int | None]:
    if repeat[1] in BOUNDS:
        return BOUNDS[repeat[1]]
    least = int(repeat[2])
    return least, least if not repeat[3] else int(repeat[4]) if repeat[4] else None


def _repeat(part: Code, least: int, most: int | None) -> Code:
    if len(part) * max(least, most or 0) > MOST or (most is not None and most < least):
        raise _UnsupportedError
    if most is None:
        return part * least + [(1, len(part) + 2), *part, (-len(part) - 1,)]
    return part * least + [(1, len(part) + 1), *part] * (most - least)


def matches(code: Code, text: str) -> bool:
    """Returns whether a compiled pattern matches a whole text."""
    positions = _reach(code, [0], 0, text)
    for at, letter in enumerate(text, 1):
        read = (i for i in positions if i < len(code) and isinstance(one := code[i], re.Pattern) and one.fullmatch(letter))
        positions = _reach(code, [i + 1 for i in read], at, text)
    return len(code) in positions


def _reach(code: Code, positions: list[int], at: int, text: str) -> set[int]:
    """Returns the positions reached without reading a letter, at index `at` of the text."""
    reached = set[int]()
    while positions:
        i = positions.pop()
        if i in reached:
            continue
        reached.add(i)
        instruction = code[i] if i < len(code) else ""
        if isinstance(instruction, tuple):
            positions += (i + jump for jump in instruction)
        elif (instruction == "^" and at == 0) or (instruction == "$" and at == len(text)):
            positions.append(i + 1)
    return reached
