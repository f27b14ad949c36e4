"""Functions as operations of torch: their text, and what is refused."""

from __future__ import annotations

import pytest

from glft_schema.scalar.as_torch import print_function
from glft_schema.scalar.checking import check
from glft_schema.scalar.language import ScalarError
from glft_schema.tensor_types.scalar_layout import ScalarField, ScalarLayout
from tests.scalar.sources import declared
from tests.scalar.test_forms import LAYOUT, decoder_of

# fmt: off
REFUSED = [
    ("for i in range(4):\n    if i > 2: break",       "expected no while, break, early return or local array, found Break"),
    ("i = 0\nwhile i < qs[0]: i += 1",                "expected no while, break, early return or local array, found While"),
    ("for i in range(4):\n    if i > 2: w[i] = d[0]", "expected weights to be written once each, without conditions"),
    ("w[qs[0] & 15] = d[0]",                          "expected weights to be written once each, without conditions"),
    ("x = floats(4)",                                 "expected no while, break, early return or local array, found Declare"),
    ("for i in range(qs[0]): x = i",                  "expected loops with constant bounds"),
    ("for i in range(8): w[i * i % 8] = d[0]",        "expected each statement to write contiguous weights"),
    ("for i in range(8): w[2 * i] = d[0]",            "expected each statement to write contiguous weights"),
    ("x = c[qs[0] & 15]",                             "expected an index of c that does not depend on data"),
    ("x = CODES[2:4][qs[0] & 1]",                     "expected no slices of CODES"),
    ("a = qs[1] & 7\nx = c[a:a + 2]",                 "expected views that do not depend on data"),
]
# fmt: on


@pytest.mark.parametrize(("body", "text"), REFUSED)
def test_refusals(body: str, text: str) -> None:
    function = decoder_of("\n" + "\n".join(f"        {line}" for line in body.splitlines()))
    with pytest.raises(ScalarError, match=f"^decode: as arrays, {text}$"):
        print_function(check(function, LAYOUT.arrays()))


def test_lengths_must_be_known() -> None:
    function = declared("def decode(w, row):\n    for i in range(len(w)):\n        w[i] = float32(row[i])\n")
    rows = ScalarLayout("rows", (ScalarField("row", "u8", None),), None)
    with pytest.raises(ScalarError, match=r"^decode: as arrays, expected known lengths, found ArrayLength$"):
        print_function(check(function, rows.arrays()))
    assert "range" not in print_function(check(function, rows.arrays(columns=6)))[0]
