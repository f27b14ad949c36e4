"""Patterns beside std::regex: the verdicts in the table are of a program compiled by g++ 12."""

from __future__ import annotations

import pytest

from glft_schema import OptionError
from glft_schema.quantizer.ecmascript import compile_pattern, encode

NAMES = ["blk.1.attn_q.weight", "blk.12.ffn_down.weight", "output_norm.weight", "v.é b&\tX~x\nweight", "a]-x}y\n"]
SEARCHED = {  # pattern -> whether regex_search finds it in each name
    r"blk\.[[:digit:]]\.": "10000", r"blk.1[[:digit:]]*\.ffn": "01000", "[[:alpha:]_]+_norm": "00100",
    "[^[:alnum:]_.]": "00011", "[[:punct:][:upper:]]x": "00011", "[[:space:]]": "00011", "[[:xdigit:]]{2}k": "00000",
    "[[:blank:][:cntrl:]]": "00011", "[[:lower:]]$": "11110", "^[[:print:]]+$": "11100", "[[:graph:]]{12}": "11100",
    ".{20}": "01000", r"weight$": "11110", "^blk": "11000", r"ffn_(up|down)\b": "01000", r"a\B.": "10000", "(?=b)b": "11010",
    r"(?:blk|v)\.(?!1)": "00010", r"\x62lk\.\d": "11000", "attn_[qk]": "10000", "a|b&": "10011", "[a|b]l": "11000",
    "[&~]": "00010", r"[\d-]$": "00000", "t{2,}": "10000", "f{1,2}n": "01000", "q??": "11111", "]": "00001", "}": "00001",
    "é": "00010", "^v.é": "00010", "^v..é": "00000", "^v.{4}b": "00010", "[.]1[.]": "10000", "|": "11111",
    r"\.w.*?t$": "11100", r"[\w.]+\n": "00011", "[-x]y": "00000", "[^-a-z0-9._]": "00011", r"\-": "00001", "": "11111",
}  # fmt: skip


@pytest.mark.parametrize("pattern", SEARCHED)
def test_searches_as_cpp(pattern: str) -> None:
    compiled = compile_pattern(pattern)
    assert "".join(str(int(bool(compiled.search(encode(name))))) for name in NAMES) == SEARCHED[pattern]


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"weight\Z", r"\Ablk", r"(a)\1", r"\0", r"\cA", r"\u0062", "a*+", "a{2}{3}", "[]", "[]a]", "[^]", "[[a]", "[[=a=]]"),
        *("[é]", "[a-b-c]", "(?=^b)", r"(?!(\b))", "a\0"),  # read by C++, in other ways or by some libraries
        *("(?<=k)q", "(?i)BLK", "(?P<n>b)", "(?#c)", "a{,3}", "{", "a{x}", "[[.-.]]", "[[:word:]]", r"[\w-z]", "*a", r"\b*"),
        *("\\", "[", "^*", "(", ")", "[b-a]", "a{2,1}"),
    ],
)
def test_refused(pattern: str) -> None:
    with pytest.raises(OptionError, match=r"^expected a regular expression, found "):
        compile_pattern(pattern)


def test_the_message() -> None:
    with pytest.raises(OptionError) as refused:
        compile_pattern(r"blk\.1\Z")
    problem = r"'\\Z' is not ECMAScript, or libraries of C++ read it in different ways"
    assert str(refused.value) == rf"expected a regular expression, found 'blk\\.1\\Z': {problem}"
