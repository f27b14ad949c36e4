"""The pickles of `torch.save`, read without importing or calling what they name.

A storage becomes a `Storage`, a tensor a `TensorView`, and any other object an `Opaque`.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Iterable
from io import BytesIO
from typing import Any, NamedTuple

from glft_schema.errors import FormatError, TruncatedError, quote, safe
from glft_schema.limits import current

MOST_ARGS = 8  # read of a call that rebuilds a tensor; many calls can share a longer tuple
TENSOR_CLASSES = ("torch.Tensor", "torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer")
CODES = b"\x80N\x88\x89)KMJG\x8aXU]}\x8f\x85\x86\x87(taesuqrhjcQR\x81b."  # of torch.load(weights_only=True); see pickletools


class Opaque:
    """An object that is not constructed, or a key that is not text. Hashed by identity."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return safe(self.text)

    def append(self, items: Any) -> None:
        """Ignores items, as of a list of another class."""

    extend = append


class Global(Opaque):
    """A class, function or constant, by its name in its module."""


class Storage(NamedTuple):
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


class TensorView(NamedTuple):
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


def read_pickle(stream: BytesIO) -> tuple[Any, dict[str, Storage]]:
    """Returns the object of the next pickle, and the storages in it by key.

    Raises:
        TruncatedError: if the bytes end before the pickle.
        LimitError: if a tensor has too many dims.
        FormatError: if it is not a pickle of `torch.save`.
    """
    unpickler = _Unpickler(stream)
    try:
        return unpickler.load(), unpickler.storages
    except FormatError:
        raise
    except (EOFError, struct.error):
        end = stream.getbuffer().nbytes
        raise TruncatedError(f"expected a whole pickle, found {end} bytes", offset=end) from None
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, pickle.UnpicklingError):
        problem = "expected a pickle as torch.save writes it, with its pickle_protocol 2, found another"
        raise FormatError(problem, offset=stream.tell() - 1) from None


class _Unpickler(pickle._Unpickler):
    """Python's unpickler in Python: its instructions can be restricted, and its memo is a dict."""

    stack: list[Any]
    pop_mark: Callable[[], list[Any]]

    def __init__(self, stream: BytesIO) -> None:
        super().__init__(stream, encoding="utf-8")
        self.storages: dict[str, Storage] = {}

    def find_class(self, module: str, name: str) -> Global:
        return Global(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        """Returns a storage by its persistent id, or the class of a module."""
        match pid[:7]:
            case ("module", class_, _, _):
                return class_
            case ("storage", Global(text=type_), str(key), _, int(numel), *view) if numel >= 0 and view in ([], [None]):
                storage = Storage(type_, key, numel)
                first = self.storages.setdefault(key, storage)
                if first == storage or first.numel == numel == 0:  # empty tensors may share a storage of any type
                    return storage
        raise ValueError

    def load_reduce(self) -> None:
        """Replaces a function and its arguments by their result, or by an `Opaque`."""
        function, args = self.stack[-2:]
        if type(function) is not Global or type(args) is not tuple:
            raise TypeError
        self.stack[-2:] = [self._result(function.text, args[:MOST_ARGS])]

    def _result(self, function: str, args: tuple[Any, ...]) -> Any:
        match function, args:
            case "collections.OrderedDict", ():
                return {}
            case "collections.OrderedDict", (list(pairs),):
                taken, pairs[:] = pairs[:], []  # many calls could share them
                return self._fill({}, taken)
            case "torch._utils._rebuild_parameter" | "torch._utils._rebuild_parameter_with_state", (TensorView() as view, *_):
                return view
            case "torch._tensor._rebuild_from_type_v2", (Global(text=inner), Global(text=type_), tuple(rest), *_):
                if type_ in TENSOR_CLASSES and inner != function:
                    return self._result(inner, rest[:MOST_ARGS])
            case "torch._utils._rebuild_tensor", (Storage(), _, _, _):
                return _view(args, None, [])
            case "torch._utils._rebuild_tensor_v2", (Storage(), _, _, _, _, _, *rest):
                return _view(args, None, rest)
            case "torch._utils._rebuild_tensor_v3", (Storage(), _, _, _, _, _, Global(text=dtype), *rest):
                return _view(args, dtype, rest)
        return Opaque(f"an object of {function}")

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._fill(self.stack[-1], [(key, value)])

    def load_setitems(self) -> None:
        items = self.pop_mark()
        self._fill(self.stack[-1], zip(items[::2], items[1::2], strict=True))

    def load_state(self) -> None:
        """Ignores the state of an object."""
        self.stack.pop()

    def _fill(self, target: Any, pairs: Iterable[Any]) -> Any:
        """Sets items of a dict; ignored for an `Opaque`. Only text is hashed: numbers can be chosen
        to collide, and a small pickle can have a tuple whose hash takes forever."""
        if type(target) is not dict and not isinstance(target, Opaque):
            raise TypeError
        for key, value in pairs:
            if type(target) is dict:
                target[key if type(key) is str else Opaque(quote(key))] = value
        return target


def _view(args: tuple[Any, ...], dtype: str | None, rest: list[Any]) -> TensorView:
    """Returns a tensor. Raises ValueError or TypeError unless its numbers are sizes."""
    storage, offset, shape, stride = args[:4]
    current().check("dims", len(shape), "", " dims")
    if len(shape) != len(stride) or any(type(n) is not int or not 0 <= n < 1 << 63 for n in (offset, *shape, *stride)):
        raise ValueError
    return TensorView(storage, offset, tuple(shape), tuple(stride), dtype, rest[0] if rest and type(rest[0]) is dict else {})


OWN: dict[int, Any] = {
    ord("s"): _Unpickler.load_setitem,
    ord("u"): _Unpickler.load_setitems,
    ord("b"): _Unpickler.load_state,
    ord("R"): _Unpickler.load_reduce,
    0x81: _Unpickler.load_reduce,  # an object of a class
}
_Unpickler.dispatch = {code: pickle._Unpickler.dispatch[code] for code in CODES} | OWN
