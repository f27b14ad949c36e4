"""Regular expressions as ``std::regex`` of C++ reads them: ECMAScript on bytes, in the C locale.

A pattern is translated to one of Python's. Everything that Python reads otherwise is translated or
refused. Refused, too, is what libraries of C++ disagree about: most escaped letters and digits,
references to groups, and some sets. Source: [re.grammar] of the C++ standard, and libstdc++ 12.
"""

from __future__ import annotations

import re

from glft_schema.errors import OptionError, quote

CLASSES = {
    "alnum": "0-9A-Za-z", "alpha": "A-Za-z", "blank": r" \t", "cntrl": r"\x00-\x1f\x7f", "digit": "0-9", "graph": "!-~",
    "lower": "a-z", "print": " -~", "punct": r"!-/:-@\[-`{-~", "space": r"\s", "upper": "A-Z", "xdigit": "0-9A-Fa-f",
}  # fmt: skip
TRANSLATED = {".": r"[^\n\r]", "$": r"\Z"}
ESCAPE = r"\\(?:[tnrfv]|x[0-9A-Fa-f]{2}|[^0-9A-Za-z])"
MEMBER = rf"(?:{ESCAPE}|[ -%'-,./-Z^-{{}}])"  # of a set, without & | ~
ITEM = re.compile(rf"\[:({'|'.join(CLASSES)}):\]|[&|~]|\\[dDwWsS](?!-[^]])|{MEMBER}(?:-{MEMBER})?")
SET = rf"\[(?!\^?\])\^?-?(?:{ITEM.pattern})*-?\]"
ATOM = rf"{SET}|{ESCAPE}|\\[dDwWsS]|[^\0\\[{{(|)*+?^$]|\)"
REPEAT = r"(?:[*+?]|\{[0-9]{1,3}(?:,[0-9]{0,3})?\})\??"
TOKEN = re.compile(rf"(?:{ATOM})(?:{REPEAT}(?![*+?{{]))?|\((?:\?[:=!])?|[|^$]|\\[bB]")


def encode(name: str) -> bytes:
    """Returns a name as a GGUF file stores it."""
    return name.encode("utf-8", "surrogateescape")


def compile_pattern(pattern: str) -> re.Pattern[bytes]:
    """Returns a pattern to search for in encoded names. Raises OptionError for anything else."""
    if not isinstance(pattern, str):
        raise OptionError(f"expected a regular expression, found {quote(pattern)}")
    text, parts, at = encode(pattern).decode("latin-1"), list[str](), 0
    ahead = [False]  # whether each open group is in a lookahead, where libstdc++ does not see what is before
    while at < len(text):
        token = TOKEN.match(text, at)
        if not token or (ahead[-1] and token[0] in ("^", r"\b", r"\B")):
            problem = f"{quote(pattern[at:])} is not ECMAScript, or libraries of C++ read it in different ways"
            raise OptionError(f"expected a regular expression, found {quote(pattern)}: {problem}")
        first, rest, at = token[0][0], token[0][1:], token.end()
        if first == "(":
            ahead.append(ahead[-1] or rest in ("?=", "?!"))
        elif first == ")" and len(ahead) > 1:
            ahead.pop()
        parts += TRANSLATED.get(first, first), ITEM.sub(_member, rest) if first == "[" else rest
    try:
        return re.compile("".join(parts).encode("latin-1"))
    except (re.error, OverflowError) as error:
        raise OptionError(f"expected a regular expression, found {quote(pattern)}: {error}") from None


def _member(item: re.Match[str]) -> str:
    """Returns members of a set in Python's syntax."""
    return CLASSES[item[1]] if item[1] else re.escape(item[0]) if item[0] in "&|~" else item[0]
