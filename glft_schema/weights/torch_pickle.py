"""The pickles of `torch.save`, interpreted without calling or importing anything.

Known are the instructions of ``torch.load(weights_only=True)``, which are all that `torch.save`
uses for dicts of tensors. A storage becomes a `Storage`, a tensor a `TensorView`, and any other
object that the pickle would make an `Opaque`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from glft_schema.errors import FormatError, TruncatedError, quote, safe
from glft_schema.limits import current, limit_error

PER_OBJECT = 8  # bytes of a pickle per object beyond the limit on objects; torch.save writes more
STOP = ord(".")
NOTHING = object()  # the result of an instruction that pushes none
LONGEST_LINE = 500  # bytes of the name of a module, class or function
MOST_ARGS = 8  # read of a call that rebuilds a tensor; many calls can share a longer tuple
TENSOR_CLASSES = ("torch.Tensor", "torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer")


class Opaque:
    """An object that is not constructed, or a key that is not text. Hashed by identity."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return safe(self.text)


class Global(Opaque):
    """A class, function or constant, by its name in its module."""


@dataclass(slots=True)
class Storage:
    """A storage of elements that tensors view.

    Attributes:
        type: the global of its class.
        key: its name in the file.
        numel: number of its elements; of an untyped storage, of its bytes.
    """

    type: str
    key: str
    numel: int

    def __repr__(self) -> str:
        return "a storage"


@dataclass(slots=True)
class TensorView:
    """A tensor: a view of a storage.

    Attributes:
        storage: the storage of its elements.
        offset: index of its first element in the storage.
        shape: its sizes.
        stride: elements from one index to the next, for each dim.
        dtype: the global of its dtype; None for the dtype of the storage.
        flags: may have `conj` and `neg`: values are conjugated or negated when they are used.
    """

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str | None
    flags: dict[Any, Any]

    def __repr__(self) -> str:
        return "a tensor"


class Pickle(NamedTuple):
    """The object of a pickle, the storages in it by key, and the first byte after the pickle."""

    value: Any
    storages: dict[str, Storage]
    end: int


def read_pickle(stored: bytes, start: int = 0) -> Pickle:
    """Returns the pickle at `start`.

    Raises:
        TruncatedError: if the bytes end before the pickle.
        LimitError: if it has many more objects than tensors need.
        FormatError: if it is not a pickle of `torch.save`.
    """
    reader = _Reader(stored, start)
    code = at = 0
    try:
        while reader.at < len(stored):
            at = reader.at
            code = stored[at]
            reader.at = at + 1
            if code == STOP:
                return Pickle(reader.stack.pop(), reader.storages, reader.at)
            value = INSTRUCTIONS[code](reader)
            if value is not NOTHING:
                reader.stack.append(value)
    except FormatError:
        raise
    except (IndexError, KeyError, TypeError, ValueError, struct.error):
        if reader.at <= len(stored):  # otherwise an argument is cut off
            problem = f"expected a pickle as torch.save writes it, with its pickle_protocol 2, found 0x{code:02X} in it"
            raise FormatError(problem, offset=at) from None
    raise TruncatedError(f"expected a whole pickle, found {len(stored) - start} bytes of it", offset=len(stored))


class _Reader:
    """The state of reading a pickle."""

    def __init__(self, stored: bytes, start: int) -> None:
        self.stored = stored
        self.at = start
        self.stack: list[Any] = []
        self.marked: list[list[Any]] = []  # the stacks below each mark
        self.memo: dict[int, Any] = {}
        self.storages: dict[str, Storage] = {}
        self._objects = 0
        self.limits = current()
        self._most = self.limits.objects + len(stored) // PER_OBJECT

    def count(self, value: Any) -> Any:
        """Counts a new object and returns it. Raises LimitError if there are too many objects."""
        self._objects += 1
        if self._objects > self._most:
            raise limit_error("objects", f"{self._most} objects in {len(self.stored)} bytes", "more", "")
        return value

    def take(self, nbytes: int) -> bytes:
        """Returns the next bytes, or fewer if the pickle is truncated."""
        self.at += nbytes
        return self.stored[self.at - nbytes : self.at]

    def line(self) -> str:
        """Returns the text up to the next newline. Raises ValueError if it is too long."""
        end = self.stored.find(b"\n", self.at, self.at + LONGEST_LINE)
        if end < 0:
            self.at += LONGEST_LINE
            raise ValueError
        return str(self.take(end + 1 - self.at), "utf-8")[:-1]

    def pop(self, count: int) -> tuple[Any, ...]:
        if count > len(self.stack):
            raise IndexError
        objects = tuple(self.stack[-count:])
        del self.stack[-count:]
        return objects

    def mark(self) -> object:
        self.marked.append(self.stack)
        self.stack = self.count([])
        return NOTHING

    def to_mark(self) -> tuple[Any, ...]:
        """Removes the last mark and the objects above it, and returns the objects."""
        objects, self.stack = self.stack, self.marked.pop()
        return tuple(objects)

    def push(self, index: int) -> object:
        self.memo[index] = self.stack[-1]
        return NOTHING

    def append(self, objects: tuple[Any, ...]) -> object:
        """Appends to a list; ignored for an `Opaque`."""
        if type(self.stack[-1]) is list:
            self.stack[-1].extend(objects)
        elif not isinstance(self.stack[-1], Opaque):
            raise TypeError
        return NOTHING

    def set_items(self, objects: tuple[Any, ...]) -> object:
        """Sets items of a dict; ignored for an `Opaque`."""
        if type(self.stack[-1]) is dict:
            self.fill(self.stack[-1], objects[::2], objects[1::2])
        elif not isinstance(self.stack[-1], Opaque):
            raise TypeError
        return NOTHING

    def fill(self, target: dict[Any, Any], keys: Iterable[Any], values: Iterable[Any]) -> dict[Any, Any]:
        """Sets items of a dict. Only text is hashed, because numbers can be chosen to collide."""
        for key, value in zip(keys, values, strict=True):
            target[key if type(key) is str else self.count(Opaque(quote(key)))] = value
        return target

    def persistent(self) -> Any:
        """Returns a storage by its persistent id, or the class of a module."""
        match self.stack.pop()[:7]:
            case ("module", class_, _, _):
                return class_
            case ("storage", Global(text=type_), str(key), _, int(numel), *view) if numel >= 0 and view in ([], [None]):
                storage = Storage(type_, key, numel)
                first = self.storages.setdefault(key, storage)
                if first == storage or first.numel == numel == 0:  # empty tensors may share a storage of any type
                    return storage
        raise ValueError

    def reduce(self) -> Any:
        """Returns the result of a known function, otherwise an `Opaque`."""
        function, args = self.pop(2)
        if type(function) is not Global or type(args) is not tuple:
            raise TypeError
        match function.text, args:
            case "collections.OrderedDict", []:
                return {}
            case "collections.OrderedDict", [list(pairs)]:
                return self.fill({}, [self.count(key) for key, _ in pairs], [value for _, value in pairs])
            case "torch._utils._rebuild_parameter" | "torch._utils._rebuild_parameter_with_state", [TensorView() as view, *_]:
                return view
            case "torch._tensor._rebuild_from_type_v2", [Global() as inner, Global(text=type_), tuple(args), *_]:
                return _rebuilt(self, inner.text, args if type_ in TENSOR_CLASSES else ())
        return _rebuilt(self, function.text, args)

    def new(self) -> Opaque:
        match self.pop(2):
            case [Global(text=class_), _]:
                return Opaque(f"an object of {class_}")
        raise TypeError


def _rebuilt(reader: _Reader, function: str, args: tuple[Any, ...]) -> TensorView | Opaque:
    """Returns the tensor that a function of torch rebuilds; an `Opaque` of other functions."""
    dtype: Any = None
    rest: list[Any] = []
    match function.removeprefix("torch._utils."), args[:MOST_ARGS]:
        case "_rebuild_tensor", [Storage() as storage, offset, shape, stride]:
            pass
        case "_rebuild_tensor_v2", [Storage() as storage, offset, shape, stride, _, _, *rest]:
            pass
        case "_rebuild_tensor_v3", [Storage() as storage, offset, shape, stride, _, _, Global(text=dtype), *rest]:
            pass
        case _:
            return Opaque(f"an object of {function}")
    reader.limits.check("dims", len(shape), "", " dims")
    if len(shape) != len(stride) or any(type(n) is not int or not 0 <= n < 1 << 63 for n in (offset, *shape, *stride)):
        raise ValueError
    return TensorView(storage, offset, tuple(shape), tuple(stride), dtype, rest[0] if rest and type(rest[0]) is dict else {})


def _number(format: str) -> Callable[[_Reader], Any]:
    """Returns the function that reads a number."""
    unpack, nbytes = struct.Struct(format).unpack, struct.calcsize(format)
    return lambda reader: unpack(reader.take(nbytes))[0]


def _u8(reader: _Reader) -> int:
    reader.at += 1
    return reader.stored[reader.at - 1]


def _new(make: Callable[[_Reader], Any]) -> Callable[[_Reader], Any]:
    return lambda reader: reader.count(make(reader))


U16, I32, U32, F64 = map(_number, ("<H", "<i", "<I", ">d"))

# fmt: off
INSTRUCTIONS: dict[int, Callable[[_Reader], Any]] = {  # by code; their results are pushed
    0x80:     lambda reader: NOTHING if reader.take(1) else None,  # the protocol
    ord("N"): lambda _: None,
    0x88:     lambda _: True,
    0x89:     lambda _: False,
    ord(")"): lambda _: (),
    ord("K"): _u8,
    ord("M"): U16,
    ord("J"): I32,
    ord("G"): F64,
    0x8A:     lambda reader: int.from_bytes(reader.take(_u8(reader)), "little", signed=True),
    ord("X"): lambda reader: str(reader.take(U32(reader)), "utf-8", "surrogatepass"),
    ord("U"): lambda reader: str(reader.take(_u8(reader)), "utf-8"),
    ord("]"): _new(lambda _: []),
    ord("}"): _new(lambda _: {}),
    0x8F:     _new(lambda _: Opaque("a set")),
    0x85:     _new(lambda reader: reader.pop(1)),
    0x86:     _new(lambda reader: reader.pop(2)),
    0x87:     _new(lambda reader: reader.pop(3)),
    ord("("): _Reader.mark,
    ord("t"): _new(_Reader.to_mark),
    ord("a"): lambda reader: reader.append(reader.pop(1)),
    ord("e"): lambda reader: reader.append(reader.to_mark()),
    ord("s"): lambda reader: reader.set_items(reader.pop(2)),
    ord("u"): lambda reader: reader.set_items(reader.to_mark()),
    ord("q"): lambda reader: reader.push(_u8(reader)),
    ord("r"): lambda reader: reader.push(U32(reader)),
    ord("h"): lambda reader: reader.memo[_u8(reader)],
    ord("j"): lambda reader: reader.memo[U32(reader)],
    ord("c"): _new(lambda reader: Global(f"{reader.line()}.{reader.line()}")),
    ord("Q"): _Reader.persistent,
    ord("R"): _new(_Reader.reduce),
    0x81:     _new(_Reader.new),
    ord("b"): lambda reader: NOTHING if reader.pop(1) else None,  # the state of an object
}
# fmt: on
