"""Scalar functions as C with loops over vectors: the innermost loops compute several of their
iterations at once, one in each lane.

A loop fits if it only assigns variables of its own and stores numbers one after the other, in the
order of its variable. Other statements are printed as in plain C. The compiler needs the vectors of
gcc or clang. The bits are those of `as_c`.
"""

from __future__ import annotations

from typing import Any

from glft_schema.scalar import tree
from glft_schema.scalar.as_c import Printer, TranslationUnit, name_in_c
from glft_schema.scalar.as_lanes import VECTORS, WIDTHS, LanePrinter, with_lanes
from glft_schema.scalar.kinds import OUTPUTS
from glft_schema.scalar.language import ScalarError
from glft_schema.scalar.tree import ArrayReference, Expression, Function, Literal, Statement, Variable, walk


class VectorPrinter(LanePrinter):
    """Prints a function. In loops over vectors, numbers that depend on the loop's variable are
    vectors."""

    def __init__(self, unit: TranslationUnit, function: Function, restrict: str) -> None:
        super().__init__(unit, function, function.parameters, (), ())
        self._restrict, self._vectors, self._masks = restrict, set(), ["all_i(-1)"]
        self._variable = ""  # the variable of a loop over vectors

    def text(self, sentence: str) -> str:
        return Printer.text(self, sentence)

    def _declare(self, node: Statement, new: set[str], later: set[str]) -> str:
        return super()._declare(node, new, later) if self._variable else Printer._declare(self, node, new, later)

    def _statement(self, node: Statement, prefix: str) -> None:
        if self._variable:
            super()._statement(node, prefix)
        elif not (isinstance(node, tree.For) and self._fits(node) and self._over_vectors(node)):
            if isinstance(node, tree.For) and node.high.span[1] <= 16:
                self._lines.append("#pragma GCC unroll 16")
            Printer._statement(self, node, prefix)

    def _fits(self, node: tree.For) -> bool:
        """Tells whether iterations do not depend on each other."""
        return (
            isinstance(node.low, Literal)
            and node.low.value == 0
            and node.high.span[1] >= WIDTHS[-1]
            and all(isinstance(part, (tree.Assign, tree.Store)) for part in node.body)
            and not tree.assigned(node.body) & self._declared.keys()
            and all(part.array.type.use == "in" for part in walk(node.body) if isinstance(part, tree.Load))
        )

    def _over_vectors(self, node: tree.For) -> bool:
        """Prints a loop over vectors and one over the rest. Returns False if an expression has no
        form in vectors."""
        before, declared = self._lines, dict(self._declared)
        i, high, most = name_in_c(node.name), self._value(node.high), node.high.span[1]
        whole = [width for width in WIDTHS if isinstance(node.high, Literal) and most % width == 0]
        self._most = next(width for width in (*whole, *WIDTHS) if width <= most)
        self._variable, self._vectors, self._lines = node.name, {node.name}, []
        for _ in node.body:
            self._mark(node.body, False)
        try:
            self._inner(node.body)
        except ScalarError:
            self._lines, self._declared = before, declared
            return False
        finally:
            self._variable, self._vectors = "", set()
        loop = [f"for (; {i} + LANES <= {high}; {i} += LANES) {{", *self._lines, "}"]
        self._lines = [f"int32_t {i} = 0;", *with_lanes(self._most, loop)]
        if not whole:
            self._lines.append(f"for (; {i} < {high}; {i}++) {{")
            self._inner(node.body)
            self._lines.append("}")
        self._lines = [*before, "{", *(f"    {line}" for line in self._lines), "}"]
        return True

    def _store(self, node: tree.Store) -> None:
        if self._step(node) != 1 or node.array.type.number not in OUTPUTS:
            raise self._refusal("expected stores one after the other")
        self._lines.append(f"STORE_{node.array.type.number}({self._element(node.array, node.at)}, {self._vector(node.value)})")

    def _varies(self, node: Expression | ArrayReference | None) -> bool:
        return super()._varies(node.offset if isinstance(node, ArrayReference) else node)

    def _vector(self, node: Expression) -> str:
        is_loop = isinstance(node, Variable) and node.name == self._variable
        return f"({name_in_c(self._variable)} + LANE_NUMBERS)" if is_loop else super()._vector(node)

    def _is_gather(self, node: tree.Load) -> bool:
        return super()._is_gather(node) and not self._step(node)

    def _load_lanes(self, node: tree.Load) -> str:
        if step := self._step(node):
            return f"LOADED({node.array.type.number}, {self._element(node.array, node.at)}, {step})"
        if run := self._run(self._whole(node.array, node.at)):
            i, element = name_in_c(self._variable), self._element(node.array, node.at)
            return f"RUNS({node.array.type.number}, {run}, {i}, {element})"
        if node.array.type.number == "f16":
            raise self._refusal("expected float16 numbers one after the other")
        at = self._vector(self._whole(node.array, node.at))
        return f"LOOKED_UP({VECTORS[node.kind]}, {self._base(node.array)}, {self._masks[-1]} & ({at}))"

    def _step(self, node: tree.Load | tree.Store) -> int:
        """Returns how many neighbouring lanes have the same index, if the index then grows by 1;
        otherwise 0."""

        def step(at: Expression) -> int:
            match at:
                case Variable() if at.name == self._variable:
                    return 1
                case tree.Binary(sign="+") if self._varies(at.left) != self._varies(at.right):
                    return step(at.left) + step(at.right)
            return self._divisor(at)

        return step(self._whole(node.array, node.at))

    def _run(self, at: Expression) -> int:
        """Returns the length of runs of lanes whose indices grow by 1, if an index is a number that
        is the same in a run, plus ``i % length``; otherwise 0."""
        match at:
            case tree.Binary(sign="+", right=tree.Binary(sign="%", left=Variable() as left, right=Literal() as length)) if (
                left.name == self._variable
            ):
                run, parts = int(length.value), list(walk(at.left))
                vectors = [part for part in parts if isinstance(part, Variable) and part.name in self._vectors]
                same = [part for part in parts if self._divisor(part) and self._divisor(part) % run == 0]
                return run if len(same) == len(vectors) else 0
        return 0

    def _divisor(self, node: Any) -> int:
        """Returns the divisor of ``i // divisor``, if it is a power of 2; otherwise 0."""
        match node:
            case tree.Binary(sign="//", left=Variable() as left, right=Literal() as right) if left.name == self._variable:
                divisor = int(right.value)
                return divisor if divisor & divisor - 1 == 0 else 0
        return 0
