"""Numbers that follow from sizes: known when the graph runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

from xdsl.ir import SSAValue

from tessera.data import dataclass
from tessera.ir.graph.writer import GraphWriter
from tessera.numerics.dtypes import f64
from tessera.target.dims import Dim
from tessera.torch.compiled.sizes import Unknown, dim_of, dim_of_expression


@dataclass(frozen=True, slots=True, eq=False)
class Computed:
    """A number that is no sum, product or quotient of sizes.

    Args:
        expr: PyTorch's expression of symbols.
    """

    expr: Any

    def value(self, sizes: Mapping[str, int]) -> float | int | bool:
        """Return the number, for sizes of the symbols."""
        found = self.expr.subs({symbol: sizes[str(symbol)] for symbol in self.expr.free_symbols})
        return bool(found) if found.is_Boolean else int(found) if found.is_integer else float(found)


def values_of(named: Mapping[str, Computed], sizes: Mapping[str, int]) -> dict[str, int]:
    """Return those of some numbers whose symbols have sizes."""
    known = {name: one for name, one in named.items() if all(str(symbol) in sizes for symbol in one.expr.free_symbols)}
    return {name: int(one.value(sizes)) for name, one in known.items()}


def number_of(value: Any) -> Dim | Computed:
    """Return a size, or another number of PyTorch's that follows from sizes."""
    if isinstance(value, int):
        return dim_of(value)
    return dim_of(value) if value.node.expr.is_integer else Computed(value.node.expr)


_FUNCTIONS = {"IntTrueDiv": "div", "FloatTrueDiv": "div", "FloatPow": "pow", "Max": "maximum", "Min": "minimum"}


def written(w: GraphWriter, value: Any) -> SSAValue:
    """Return a number of PyTorch's that follows from sizes as an array in f64 without dimensions.

    Raises:
        Unknown: an expression of other functions than sums, products, quotients and powers.
    """
    return _written(w, value.node.expr)


def _written(w: GraphWriter, expr: Any) -> SSAValue:
    if expr.is_Number:
        return w.full(float(expr), f64)
    if expr.is_Symbol:
        return w.size(Dim((str(expr),)), f64)
    parts = [_written(w, part) for part in expr.args]
    name = type(expr).__name__
    if name == "ToFloat":
        return parts[0]
    if name in ("FloorDiv", "CleanDiv"):
        return w.apply("floor", w.apply("div", *parts))
    fn = "add" if expr.is_Add else "mul" if expr.is_Mul else "pow" if expr.is_Pow else _FUNCTIONS.get(name)
    if fn is None and expr.is_integer:
        return w.size(dim_of_expression(expr), f64)
    if fn is None:
        raise Unknown(f"the number {expr}")
    return reduce(_by(w, fn), parts)


def _by(w: GraphWriter, fn: str) -> Callable[[SSAValue, SSAValue], SSAValue]:
    return lambda a, b: w.apply(fn, a, b)
