"""Declarations of tensor types: name, code, payload, formula and encoders."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from inspect import signature
from typing import Any, NamedTuple, TypeVar

from glft_schema.codec.structs import Struct
from glft_schema.codec.type_codes import by_table
from glft_schema.errors import alternatives
from glft_schema.scalar.kinds import READ
from glft_schema.storage.dtypes import INTEGERS, NAMES, Array, Dtype, dtype_of, is_float, is_integer, name_of
from glft_schema.tensor_types.chunks import Fault
from glft_schema.tensor_types.payload_layout import Fields, PayloadLayout
from glft_schema.tensor_types.scalar_layout import Encoder, Formula, Functions, ScalarField, ScalarLayout

ROW = 1 << 20  # an example length of rows, to compute the weights per number of each field
PACKAGE = f"{__name__.partition('.')[0]}."
_NAMES: set[str] = set()  # used in schemes; unique, because types with equal names are equal


def no_faults(weights: Array, fields: Fields) -> Iterable[Fault]:
    """Returns no faults, for an encoder that keeps every number."""
    return ()


class Reserved(NamedTuple):
    """Reserved bit patterns of a field, which no encoder writes.

    Attributes:
        field: the name of the field.
        numbers: the patterns in words, for errors and documentation.
        found: the field [rows, numbers], an array of numpy -> a mask of the same shape.
    """

    field: str
    numbers: str
    found: Callable[[Array], Array]


# Converts a field of integers to the floats that it encodes: [blocks, numbers] -> [blocks, k],
# arrays of numpy.
Floats = Callable[[Array], Array]


@dataclass(frozen=True, eq=False, repr=False)
class Declaration(PayloadLayout):
    """The declared facts of a tensor type.

    Attributes:
        name: as in the format's specification.
        code: the type number on disk, or the type's name in formats that store names. The type
            table of a format may give another code.
        payload: a Struct of `TensorField`s on OUT and IN, and of rules on DIMS.
        formula: a scalar function of one block or row, see `formula_of`; None for an exact type.
        quantize: the encoder, a scalar function of one block or row, or two, the second of which
            reads the importance; for an exact type, a function from numbers to the stored numbers,
            both arrays. None if the type has no encoder.
        faults: (numbers, the fields that encode them) -> each loss, see `Fault`.
        exact: the name of the dtype that the payload stores unchanged; None for quantized types.
        block: the fields of a block, if the payload is a sequence of blocks.
        scales: for each field of integers that encodes floats, the conversion to them.
        reserved: bit patterns that no encoder writes.
        searches: whether the second encoder is used only on request, with or without an importance.
        largest: the largest weight that the scales of blocks can reach; if it is finite, a tensor
            may have a scale of its own.
        takes_importance: whether the encoder uses an importance, without a request.
        needs_importance: whether the encoder requires an importance.
    """

    name: str
    code: int | str
    payload: Struct
    formula: Formula | None = None
    quantize: Encoder | tuple[Encoder, ...] | None = None
    faults: Callable[[Array, Fields], Iterable[Fault]] = no_faults
    _: KW_ONLY
    exact: str | None = None
    block: Struct | None = None
    scales: Mapping[str, Floats] | None = None
    reserved: tuple[Reserved, ...] = ()
    searches: bool = False
    largest: float = math.inf
    takes_importance: bool = field(init=False, default=False)
    needs_importance: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        if self.scheme in _NAMES:
            raise ValueError(f"expected an unused type name, found {self.name!r}")
        if self.encoders:
            by_importance = ["importance" in signature(encoder).parameters for encoder in self.encoders]
            object.__setattr__(self, "takes_importance", any(by_importance) and not self.searches)
            object.__setattr__(self, "needs_importance", all(by_importance))
            _check_encoders(self, by_importance)
        _check_formula(self)
        _NAMES.add(self.scheme)

    def __repr__(self) -> str:
        return self.name

    def __str__(self) -> str:  # torch.compile would fold an inherited one into a constant
        return self.name

    def __eq__(self, other: object) -> bool:  # by name, which torch.compile guards: names are unique
        return isinstance(other, Declaration) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        return by_table(self)

    def __copy__(self) -> Declaration:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Declaration:
        return self

    @property
    def scheme(self) -> str:
        """The type's name in schemes and on the command line."""
        return self.name.lower()

    @property
    def dtype(self) -> Dtype:
        """The default dtype of `decode`, see `storage.dtypes`; uint8 if there are no values."""
        return dtype_of(self.exact or "float32") if self.exact in (None, *NAMES) else dtype_of("uint8")

    @property
    def is_known(self) -> bool:
        """Whether the type is declared; otherwise, only its code is known."""
        return True

    @property
    def is_quantized(self) -> bool:
        """Whether values are computed by a formula, from codes and scales."""
        return self.exact is None and self.is_known

    @property
    def bytes_only(self) -> str | None:
        """The reason why tensors of the type have bytes but no values; None if they have values."""
        if self.exact in (None, *NAMES):
            return None
        return f"neither numpy nor torch has {self.exact}: {self} can be copied and hashed only"

    @property
    def is_integer(self) -> bool:
        """Whether the type stores integers."""
        return self.exact in INTEGERS

    @property
    def encoders(self) -> tuple[Encoder, ...]:
        """The encoders; if one takes an importance, it is the last."""
        return self.quantize if isinstance(self.quantize, tuple) else (self.quantize,) if self.quantize else ()

    @property
    def has_encoder(self) -> bool:
        """Whether the type has an encoder, which may require an importance."""
        return bool(self.encoders)

    def takes(self, dtype: Dtype) -> bool:
        """Tells whether `encode` accepts numbers of `dtype`."""
        return is_integer(dtype) if self.is_integer else is_float(dtype)

    def dtype_refusal(self, dtype: Dtype) -> str:
        """Returns why `encode` does not accept numbers of `dtype`."""
        kind = "a signed integer dtype, uint8 or bool" if self.is_integer else "a float dtype"
        return f"expected {kind}, found {name_of(dtype)}: exclude or convert the tensor"

    @property
    def functions(self) -> Functions | None:
        """The scalar functions of the type, None if it has none."""
        has_functions = not self.exact and (self.formula or self.encoders)
        return Functions(self.scalar_layout, self.formula, self.encoders) if has_functions else None

    @cached_property
    def scalar_layout(self) -> ScalarLayout:
        """The fields of a block or of a row that the formula reads and the encoders write."""
        if self.block is not None:
            parts = [(field, field.subcon.number) for field in self.block.subcons]
            fields = [
                ScalarField(field.name, str(number), field.sizeof() // number.itemsize, field.docs) for field, number in parts
            ]
        else:
            fields, spans = [], self.field_spans([1, ROW])
            for name, part in self.fields():
                count = spans[name][1] // part.number.itemsize
                fields.append(ScalarField(name, str(part.number), 1 if count == 1 else None, weights=ROW // count))
        return ScalarLayout(self.scheme, tuple(fields), self.unit([1, ROW]) if self.block else None)


Declared = TypeVar("Declared", bound=Formula)


def formula_of(type_: Declaration) -> Callable[[Declared], Declared]:
    """Adds the decorated formula to a type declared without one. A page can then show the formula
    below the block.

    A formula is a scalar function of one block or row: it writes `w`, and reads fields by their
    names; see docs/concepts/scalar-functions.md.

    Raises:
        ValueError: if the type has a formula, or if the function does not follow the language; the
            text names the function and the line.
    """

    def add(formula: Declared) -> Declared:
        if type_.formula is not None:
            raise ValueError(f"expected a type without a formula, found {type_}")
        object.__setattr__(type_, "formula", formula)
        _check_formula(type_)
        return formula

    return add


def _check_formula(type_: Declaration) -> None:
    """Raises ValueError if the formula does not follow the language. Those of this package are
    checked when the library is built."""
    formula = type_.formula
    if formula and not formula.__module__.startswith(PACKAGE):
        layout, declared = type_.scalar_layout, signature(formula)
        if "w" not in declared.parameters:
            raise ValueError(f"expected a formula of (w, {layout.names}), which writes w, found {declared}")
        _check(type_, formula, layout.arrays)


def _check_encoders(type_: Declaration, by_importance: Sequence[bool]) -> None:
    """Raises ValueError unless there is one encoder, or two, the second of them with importance.
    Checks the functions like `_check_formula`.

    Args:
        type_: with encoders.
        by_importance: whether each encoder has a parameter importance.
    """
    if isinstance(type_.quantize, tuple) and by_importance != [False, True]:
        expected = "one encoder, or two, of which the second has a parameter importance"
        raise ValueError(f"expected {expected}, found {' and '.join(str(signature(one)) for one in type_.encoders)}")
    for encoder in () if type_.exact else type_.encoders:
        if not encoder.__module__.startswith(PACKAGE):
            layout, declared = type_.scalar_layout, signature(encoder)
            if (given := declared.parameters.get("importance")) and given.default is not given.empty:
                raise ValueError(f"expected two encoders, or importance without a default, found {declared}")
            if not {"w", *(field.name for field in layout.fields)} <= {*declared.parameters}:
                raise ValueError(f"expected an encoder of (w, {layout.names}), which writes all fields, found {declared}")
            _check(type_, encoder, layout.encoder_arrays)


def _check(type_: Declaration, function: Any, arrays: Callable[..., Mapping[str, Any]]) -> None:
    """Raises ValueError unless a scalar function follows the language and writes every number.

    Functions of rows are checked for rows of any length, then for rows of 1, 2 and 3 units.
    """
    layout = type_.scalar_layout
    if other := next((field for field in layout.fields if field.number not in READ), None):
        raise ValueError(f"{other.name}: expected numbers {alternatives(READ)} for scalar functions, found {other.number}")
    from glft_schema.scalar.checking import check  # slow to import, as below
    from glft_schema.scalar.writes import check_writes

    checked, unit = [check(function, arrays())], type_.unit([1, ROW])
    if not layout.weights:
        checked = [check(function, arrays(columns=units * unit)) for units in (1, 2, 3)]
    for one in checked:
        check_writes(one)
