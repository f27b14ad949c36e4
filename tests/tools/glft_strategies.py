"""Random valid GLFT files by the reference writer."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.oracles import glft_reference as reference
from tests.oracles.glft_reference import Row
from tests.tools.gguf_strategies import scattered

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
keys = names.filter(lambda text: "=" not in text and "\n" not in text)
values = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=12)
metadata = st.dictionaries(keys, values, max_size=3)


@st.composite
def typed_dims(draw: st.DrawFn) -> tuple[int, list[int]]:
    """A type and dims for it, with a few hundred numbers at most."""
    dtype = draw(st.integers(0, 3))
    if dtype == reference.Q4:
        return dtype, draw(st.sampled_from([[1, 64], [3, 128], [2, 2, 32], [2, 1, 4, 16], [1, 192]]))
    if dtype == reference.Q8:
        return dtype, draw(st.lists(st.integers(1, 5), min_size=2, max_size=4))
    return dtype, draw(st.lists(st.integers(0, 5), max_size=4))


@st.composite
def rows(draw: st.DrawFn) -> list[Row]:
    """Descriptors with payloads of random bytes, NaN and infinite scales among them."""
    made = []
    for name in draw(st.lists(names, unique=True, max_size=4)):
        dtype, dims = draw(typed_dims())
        size = reference.nbytes(dtype, dims)
        made.append(Row(name, dims, dtype, draw(st.binary(min_size=size, max_size=size))))
    return made


@st.composite
def files(draw: st.DrawFn) -> tuple[bytes, dict[str, str], list[Row]]:
    """A file, its metadata and its rows; payloads in any order, gaps, aliases, trailing bytes."""
    entries, made = draw(metadata), draw(rows())
    data = scattered(draw, made)
    text = "\n".join(f"{key}={value}" for key, value in entries.items())
    text += draw(st.sampled_from(["", "\n"])) if text else ""
    return reference.write(text.encode(), made, data), entries, made


@st.composite
def indices(draw: st.DrawFn, dims: list[int]) -> tuple[object, ...]:
    """A legal index into a tensor of `dims`: integers, slices with any bounds, an ellipsis."""
    parts: list[object] = []
    for size in dims[: draw(st.integers(0, len(dims)))]:
        bounds = st.one_of(st.none(), st.integers(-size - 1, size + 1))
        choices = [st.builds(slice, bounds, bounds, st.one_of(st.none(), st.integers(1, 3)))]
        if size:
            choices.append(st.integers(-size, size - 1))
        parts.append(draw(st.one_of(choices)))
    if draw(st.booleans()):
        parts.insert(draw(st.integers(0, len(parts))) if len(parts) == len(dims) else len(parts), ...)
    return tuple(parts)
