"""Other clients of GGUF and their faults: the tables in docs/background/clients.md.

Each row of `FAULTS` has a file and a check of the client's result, which fails once the fault is
fixed. Versions are from the ``foreign`` extra, or of npm packages.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from glft_schema import Container, Typed
from glft_schema.codec.context import BIG, LITTLE
from glft_schema.tensor_types.ggml import GGML_TYPES
from tests.catalogue.gguf_cases import READ
from tests.foreign.files import block_regions, metadata, regions
from tests.foreign.readings import Reading, same_bits

HUGGINGFACE, NODE_LLAMA_CPP = "@huggingface/gguf", "node-llama-cpp"
TINYGRAD, MLX, DIFFUSERS, TRANSFORMERS, SAFETENSORS = "tinygrad", "mlx", "diffusers", "transformers", "safetensors"


class Client(NamedTuple):
    """A client: its name, registry, package, version, and what is compared."""

    name: str
    registry: str
    package: str
    version: str
    reads: str
    writes: str


# fmt: off
CLIENTS = (
    Client(HUGGINGFACE, "npm", HUGGINGFACE, "0.4.6",
           "headers: keys in order, types, values; names, dims, types, offsets, positions; sets",
           "whole files with headers of its own, byte for byte"),
    Client(NODE_LLAMA_CPP, "npm", NODE_LLAMA_CPP, "3.22.1",
           "headers: keys, values (it reports no types); names, dims, types, offsets, positions; sets", "-"),
    Client(TINYGRAD, "PyPI", "tinygrad", "0.14.0", "metadata (no types), shapes, values; sets", "-"),
    Client(MLX, "PyPI", "mlx[cpu]", "0.32.4",
           "metadata with types, shapes, values; packed folders", "GGUF with metadata; safetensors"),
    Client(DIFFUSERS, "PyPI", "diffusers", "0.42.1", "shapes, values; in float32 and by default", "safetensors, in shards"),
    Client(TRANSFORMERS, "PyPI", "transformers", "5.23.0",
           "metadata (no types), shapes, values; a whole model through gguf-py", "safetensors, in shards"),
    Client("compressed-tensors", "PyPI", "compressed-tensors", "0.20.0",
           "packed folders written from GGUF: logits, through transformers", "-"),
    Client(SAFETENSORS, "PyPI", "safetensors", "0.8.0", "slices: random indices into the same tensors", "-"),
)
# fmt: on

# A client's result for a tensor.
SAME = "same bits"
ZEROS = "same numbers; zeros of another sign"
HALF = "rounded to float16"
PARTS = "codes, scales and biases that make the same numbers"
WRONG = "wrong numbers"
REFUSED = "refused"
DROPPED = "dropped without an error"

K_QUANTS = "Q2_K Q3_K Q4_K Q5_K Q6_K"
I_QUANTS = "IQ2_XXS IQ2_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ2_S IQ4_XS IQ1_M"
TENSORS: dict[str, dict[str, str]] = {
    TINYGRAD: {
        SAME: "F32 F16 BF16 F64 I8 I16 I32 I64 Q4_0 Q4_1 Q5_1 Q8_0 Q4_K Q5_K Q6_K IQ3_XXS IQ3_S IQ2_S IQ4_XS",
        ZEROS: "Q5_0 MXFP4",
        HALF: "Q1_0",
    },
    MLX: {
        SAME: "F32 F16 I8 I16 I32",
        PARTS: "Q4_0 Q4_1 Q8_0",
        HALF: "BF16 Q2_K Q6_K",
        WRONG: "Q4_K",
        DROPPED: "TQ1_0 TQ2_0 MXFP4 NVFP4 Q1_0 Q2_0",
    },
    DIFFUSERS: {SAME: f"F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 {K_QUANTS} IQ4_NL IQ4_XS"},
    TRANSFORMERS: {SAME: f"F32 F16 BF16 Q4_0 Q4_1 Q8_0 {K_QUANTS} {I_QUANTS}"},
}


def expected(client: str, type_name: str) -> str:
    return next((verdict for verdict, names in TENSORS[client].items() if type_name in names.split()), REFUSED)


class Failure(NamedTuple):
    """A client's failure for a version and byte order: the start of its errors, and the cause."""

    errors: tuple[str, ...]
    why: str


CRASHES = ("SIGSEGV", "SIGBUS", "RuntimeError: ")  # depends on the memory after the file
VERSION_1 = ((1, LITTLE), (1, BIG))
BIG_ENDIAN = ((2, BIG), (3, BIG))
OTHERS = (*VERSION_1, *BIG_ENDIAN)
Layouts = dict[tuple[int, str], Failure]


def failing(layouts: tuple[tuple[int, str], ...], error: str | tuple[str, ...], why: str) -> Layouts:
    """Returns the failure of a client on files of these versions and byte orders."""
    return dict.fromkeys(layouts, Failure((error,) if isinstance(error, str) else error, why))


# fmt: off
LAYOUTS: dict[str, Layouts] = {
    HUGGINGFACE: {},
    NODE_LLAMA_CPP:
        failing(VERSION_1[:1], "Error: GGUF version 1", "refused, as by llama.cpp")
        | failing((VERSION_1[1], *BIG_ENDIAN), "RangeError: ", "read as little-endian: a string of exabytes"),
    TINYGRAD: failing(OTHERS, "ValueError: Invalid GGUF", "refused"),
    MLX: failing(OTHERS, CRASHES, "crash: neither version nor byte order is checked"),
    DIFFUSERS:
        failing(VERSION_1, "ValueError: Sorry, file appears to be version 1", "refused by gguf-py")
        | failing(BIG_ENDIAN, "ValueError: given numpy array has byte order",
                  "refused: torch takes no big-endian arrays; see the last table for other types"),
    TRANSFORMERS: failing(OTHERS, "ValueError: ", "refused"),
}
# fmt: on

# Prefixes of keys that a client cannot read; FAULTS has a row for each.
NOT_READ: dict[str, tuple[str, ...]] = {
    HUGGINGFACE: (),
    NODE_LLAMA_CPP: (),
    TINYGRAD: ("s.uint8", "a.uint8", "n.numbers"),
    MLX: ("s.float64", "a.float64", "e.float64", "n."),
    DIFFUSERS: (),
    TRANSFORMERS: ("n.",),
}


class Fault(NamedTuple):
    """A class of files that a client gets wrong.

    Attributes:
        client: the client's name.
        files: the property that the files share.
        they: what the client does.
        why: the cause.
        example: returns the value of such a file.
        shows: tells from the client's reading and ours whether the fault is there.
        by: the client's function: ``read``, ``read by default``, ``read a set``, ``write``.
    """

    client: str
    files: str
    they: str
    why: str
    example: Callable[[], dict[str, Any]]
    shows: Callable[[Reading, Reading], bool]
    by: str = "read"


F32 = (GGML_TYPES["F32"],)


def keys(entries: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """Returns a maker of a file with an architecture, keys, and one tensor."""
    return lambda: regions(F32, {"general.architecture": "toy", **entries})


def of(*types: str, **options: Any) -> Callable[[], dict[str, Any]]:
    return lambda: regions([GGML_TYPES[name] for name in types], {"general.architecture": "toy"}, **options)


def fails(*errors: str) -> Callable[[Reading, Reading], bool]:
    return lambda theirs, ours: theirs.error.startswith(errors)


def has(key: str, value: Any) -> Callable[[Reading, Reading], bool]:
    """Returns a check for this value instead of ours; None for a missing key."""
    return lambda theirs, ours: not theirs.error and theirs.metadata.get(key) == value != ours.metadata[key]


def is_cut(key: str) -> Callable[[Reading, Reading], bool]:
    """Returns a check for a string that ends early."""

    def shows(theirs: Reading, ours: Reading) -> bool:
        found, whole = theirs.metadata[key], ours.metadata[key]
        return len(found) < len(whole) and whole.startswith(found) and theirs.infos == ours.infos

    return shows


def differs(name: str, condition: Callable[[np.ndarray, np.ndarray], Any]) -> Callable[[Reading, Reading], bool]:
    """Returns a check for other numbers than ours, with a condition on both."""

    def shows(theirs: Reading, ours: Reading) -> bool:
        one, other = theirs.tensors[name].values, ours.tensors[name].values
        return not same_bits(one, other) and bool(condition(one, other))

    return shows


def lacks(*names: str) -> Callable[[Reading, Reading], bool]:
    return lambda theirs, ours: not theirs.error and all(name in ours.tensors and name not in theirs.tensors for name in names)


def named(name: str, type_name: str) -> Callable[[], dict[str, Any]]:
    def made() -> dict[str, Any]:
        value = of(type_name)()
        (row,) = value["tensor_infos"]
        return value | {"tensor_infos": [row | {"name": name}], "data": {name: value["data"][row["name"]]}}

    return made


def second_half_has_the_first_ones_scale(theirs: np.ndarray, ours: np.ndarray) -> bool:
    """Tells whether errors beyond float16's are in the second 32 of each 64 numbers only."""
    found, right = (array.astype(np.float64).reshape(-1, 2, 32) for array in (theirs, ours))
    rounding = 2**-10 * np.abs(right).max()
    return bool(np.abs(found[:, 0] - right[:, 0]).max() <= rounding < np.abs(found[:, 1] - right[:, 1]).max())


def is_nearly_equal_half(theirs: np.ndarray, ours: np.ndarray) -> bool:
    """Tells whether numbers are float16, and equal within the error of its sums."""
    return theirs.dtype == np.float16 and bool((np.abs(theirs - ours) <= 2**-9 * np.abs(ours).max()).all())


LONG = "x" * 3_000_000
MANY = Typed(np.zeros(1_000_001, np.uint8), "array[uint8]")
NO_UTF8 = Typed("\udcff", "string")
EMULATES_HALVES = sys.version_info < (3, 12)


def moves_data(theirs: Reading, ours: Reading) -> bool:
    """Tells whether a client has our offsets, but other positions."""
    offsets = [[info.offset for info in reading.infos.values()] for reading in (theirs, ours)]
    return offsets[0] == offsets[1] and theirs.infos != ours.infos


def overflows(theirs: np.ndarray, ours: np.ndarray) -> bool:
    return theirs.dtype == np.float16 and bool(np.isinf(theirs).any() and np.isfinite(ours).all())


def flushes(theirs: Reading, ours: Reading) -> bool:
    """Tells whether a subnormal scale was read as 0, before Python 3.12."""
    one, other = (reading.tensors["Q4_0.weight"].values for reading in (theirs, ours))
    return bool((one == 0).all() and other.any()) if EMULATES_HALVES else same_bits(one, other)


def are_equal(theirs: np.ndarray, ours: np.ndarray) -> bool:
    return bool((theirs == ours).all())


# fmt: off
FAULTS = (
    Fault(HUGGINGFACE, "a string that ends after the 2 MB read so far", "returns the part that was read",
          "`readString` slices the buffer without checking its length",
          keys({"t.long": LONG, "t.next": 7}), is_cut("t.long")),
    Fault(HUGGINGFACE, "a string that begins with U+FEFF", "drops the character",
          "`TextDecoder` removes a byte order mark",
          keys({"t.text": "\ufeffx"}), has("t.text", "s:x")),
    Fault(HUGGINGFACE, "a string that is not UTF-8", "replaces the bytes by U+FFFD", "`TextDecoder` does",
          keys({"t.text": NO_UTF8}), has("t.text", "s:\ufffd")),
    Fault(HUGGINGFACE, "a key `version`, `tensor_count` or `kv_count`", "overwrites its own field",
          "the header's fields and the keys share an object",
          keys({"version": 5}), lambda theirs, ours: theirs.version == 5 != ours.version),
    Fault(HUGGINGFACE, "a key `__proto__`", "loses it", "keys are properties of a plain object",
          keys({"__proto__": 5}), has("__proto__", None)),
    Fault(HUGGINGFACE, "an alignment that is not a power of two", "computes wrong positions of payloads",
          "`GGML_PAD` rounds up with a bit mask",
          keys({"general.alignment": Typed(24, "uint32"), "t.text": "x"}), moves_data),
    Fault(HUGGINGFACE, "arrays nested deeper than 4 levels", "raises `Error`", "its limit",
          keys({"t.deep": [[[[["x"]]]]]}), fails("Error: Nested ARRAY depth 4")),
    Fault(HUGGINGFACE, "an array of more than 1,000,000 elements", "raises `Error`", "its limit",
          keys({"t.long": MANY}), fails("Error: Metadata array length 1000001")),
    Fault(HUGGINGFACE, "writing an array of uint8", "raises `Error`",
          "`!subType` is true for the code of uint8, 0",
          keys({"t.bytes": Typed([1, 2], "array[uint8]")}), fails("Error: Array type requires subType"), "write"),
    Fault(HUGGINGFACE, "writing an array of arrays", "raises `Error`", "the types of inner arrays are not kept",
          keys({"t.nested": [["x"]]}), fails("Error: Array type requires subType"), "write"),
    Fault(NODE_LLAMA_CPP, "a string that is not UTF-8", "replaces the bytes by U+FFFD", "`Buffer.toString` does",
          keys({"t.text": NO_UTF8}), has("t.text", "s:\ufffd")),
    Fault(NODE_LLAMA_CPP, "a bool that is neither 0 nor 1", "returns `false`; ggml returns true", "it compares with 1",
          lambda: {"format": "GGUF", **Container.parse(READ["a bool of 2"].stored).regions},
          lambda theirs, ours: set(theirs.metadata.values()) == {False} != set(ours.metadata.values())),
    Fault(NODE_LLAMA_CPP, "a key with a segment `__proto__`", "loses it",
          "segments of keys are properties of plain objects",
          keys({"__proto__.x": 5}), has("__proto__.x", None)),
    Fault(TINYGRAD, "a value or array of uint8", "returns `bytes` of length 1 for each",
          "its format for `struct` is `c` instead of `B`",
          lambda: regions(F32, metadata(["uint8"])), has("a.uint8", [b"\0", b"\xc8", b"\xff"])),
    Fault(TINYGRAD, "a key, name or string that is not UTF-8", "raises `UnicodeDecodeError`", "it decodes strictly",
          keys({"t.text": NO_UTF8}), fails("UnicodeDecodeError")),
    Fault(TINYGRAD, "Q5_0", "returns +0 for code 16 with a negative scale; ggml returns -0",
          "it computes `q * d - 16 * d`",
          lambda: block_regions("Q5_0", 0xBC00), differs("Q5_0.weight", are_equal)),
    Fault(TINYGRAD, "MXFP4", "returns -0 for code 8; ggml returns +0", "ggml's table of integers has no -0",
          of("MXFP4"), differs("MXFP4.weight", are_equal)),
    Fault(TINYGRAD, "Q1_0", "returns float16 (the numbers are equal)", "the scale is not cast to float32",
          of("Q1_0"), differs("Q1_0.weight", lambda one, other: one.dtype == np.float16 and are_equal(one, other))),
    Fault(TINYGRAD, "a float16 below 2^-14, on device `PYTHON` before Python 3.12", "returns 0",
          "the emulation of float16 flushes subnormal numbers",
          lambda: block_regions("Q4_0", 0x03FF), flushes),
    Fault(MLX, "a value or array of float64", "crashes",
          "it advances by the 4 bytes of the float32 that it keeps, and misreads the rest of the file",
          lambda: regions(F32, metadata(["float64"])), fails(*CRASHES)),
    Fault(MLX, "an array of arrays", "raises `ValueError`", "not supported",
          keys({"t.nested": [["x"]]}), fails("ValueError: [load_gguf] Only supports loading 1-layer")),
    Fault(MLX, "a key, name or string that is not UTF-8", "raises `UnicodeDecodeError`", "it decodes strictly",
          keys({"t.text": NO_UTF8}), fails("UnicodeDecodeError")),
    Fault(MLX, "Q4_K", "returns wrong numbers for the second 32 of each 64",
          "gguflib uses the scale and minimum of the first 32 for both",
          of("Q4_K"), differs("Q4_K.weight", second_half_has_the_first_ones_scale)),
    Fault(MLX, "BF16", "returns float16: infinity from 65,520 on", "gguflib converts it to float16",
          lambda: regions([GGML_TYPES["BF16"]], {}, scale=1e30), differs("BF16.weight", overflows)),
    Fault(MLX, "a tensor of type TQ1_0 (code 34) or later", "drops it and all tensors after it, without an error",
          "gguflib ends the table at a type that it does not know",
          of("F16", "TQ1_0", "F32"), lacks("TQ1_0.weight", "F32.weight")),
    Fault(MLX, "IQ1_S, Q8_1", "raises `RuntimeError`: the file is too short",
          "gguflib's blocks have 110 and 40 bytes instead of 50 and 36",
          of("IQ1_S"), fails("RuntimeError: [load_gguf] Tensor 'IQ1_S.weight' extends past the end")),
    Fault(MLX, "a Q8_0 tensor whose name does not end in `.weight`",
          "names its scales after the name without the last 7 characters", "it cuts off the length of `.weight`",
          named("position_embd", "Q8_0"),
          lambda theirs, ours: {"positi.scales", "positi.biases"} < theirs.tensors.keys()),
    Fault(MLX, "the first file of a set", "reads this file alone", "it ignores `split.count`",
          of("F32", "F16"), lacks("F16.weight"), "read a set"),
    Fault(DIFFUSERS, "quantized types, as its layers use them", "computes in float16",
          "`dequantize_gguf_tensor` passes no dtype",
          of("Q4_K"), differs("Q4_K.weight", is_nearly_equal_half), "read by default"),
    Fault(DIFFUSERS, "BF16 and quantized types in a big-endian file", "returns wrong numbers, without an error",
          "gguf-py does not swap their bytes",
          of("BF16", "Q8_0", order=BIG), differs("BF16.weight", lambda one, other: one.shape == other.shape)),
    Fault(DIFFUSERS, "a key or name that is not UTF-8", "raises `UnicodeDecodeError`", "gguf-py decodes strictly",
          keys({"t.\udcff": 5}), fails("UnicodeDecodeError")),
    Fault(DIFFUSERS, "the first file of a set", "reads this file alone", "gguf-py ignores `split.count`",
          of("F32", "F16"), lacks("F16.weight"), "read a set"),
    Fault(TRANSFORMERS, "an array of arrays", "raises `ValueError`", "not supported",
          keys({"t.nested": [["x"]]}), fails("ValueError: GGUF metadata holds an array of type 9")),
    Fault(TRANSFORMERS, "a key, name or string that is not UTF-8", "raises `UnicodeDecodeError`",
          "it decodes strictly",
          keys({"t.text": NO_UTF8}), fails("UnicodeDecodeError")),
    Fault(TRANSFORMERS, "a file without `general.architecture`, such as the second of a set", "raises `ValueError`",
          "the key selects the model",
          lambda: regions(F32, {}), fails("ValueError: ")),
    Fault(TRANSFORMERS, "the first file of a set", "reads this file alone", "it ignores `split.count`",
          of("F32", "F16"), lacks("F16.weight"), "read a set"),
)
# fmt: on


class Index(NamedTuple):
    """A kind of index that we refuse with an ``IndexError``, and safetensors' result.

    Attributes:
        kind: the index, in words.
        example: one into a tensor of shape (5, 7, 3).
        they: the shape of safetensors' slice, or the name of its error.
    """

    kind: str
    example: Any
    they: tuple[int, ...] | str


INDICES = (
    Index("a step of 0", slice(None, None, 0), "ValueError"),
    Index("a step below 0", slice(None, None, -1), "ValueError"),
    Index("`None`", None, (1, 5, 7, 3)),
    Index("a list of integers", [0, 2], (2, 7, 3)),
    Index("an array of integers", np.array([0, 2]), (2, 7, 3)),
    Index("a bool", True, (1, 5, 7, 3)),
    Index("a list of bools", [True, False, True, False, False], (2, 7, 3)),
    Index("two ellipses", (..., ...), (5, 7, 3)),
)


def is_half(values: np.ndarray, ours: np.ndarray) -> bool:
    """Tells whether numbers are ours, rounded to float16."""
    return values.dtype == np.float16 and same_bits(values, ours.astype(np.float16))
