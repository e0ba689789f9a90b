"""Random kernels as Python source: elementwise arithmetic, broadcasting, reductions, slices, loops, branches.

What a kernel computes is the same in every bit on every backend under the `strict` profile, except for values that are
marked approximate (float sums and transcendental functions): those only flow into operations that are continuous, and
are compared within a tolerance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tessera.numerics.dtypes import BY_NAME, DType

Draw = Callable[[Any], Any]

FLOATS, INTS = ("f32", "f16", "bf16"), ("i32", "i8", "u16")
TILE, ROW, COLUMN, SCALAR = "tile", "row", "column", "scalar"

_FLOAT_UNARY = (
    "-{0}",
    "ts.tile.abs({0})",
    "ts.tile.floor({0})",
    "ts.tile.round({0})",
    "ts.tile.relu({0})",
    "ts.tile.sqrt(ts.tile.abs({0}))",
    "{0} * 0.5",
    "1.5 - {0}",
    "ts.tile.clamp({0}, -1.0, 2.0)",
)
_INT_UNARY = (
    "-{0}",
    "~{0}",
    "{0} // 3",
    "{0} % 5",
    "{0} << 1",
    "{0} >> 2",
    "{0} & 13",
    "{0} * 3",
    "ts.tile.abs({0})",
)
_APPROXIMATE = (
    "ts.tile.exp(-ts.tile.abs({0}))",
    "ts.tile.tanh({0})",
    "ts.tile.sigmoid({0})",
    "ts.tile.erf({0})",
)
_FLOAT_BINARY = (
    "{0} + {1}",
    "{0} - {1}",
    "{0} * {1}",
    "ts.tile.maximum({0}, {1})",
    "ts.tile.minimum({0}, {1})",
    "{0} / {1}",
)
_INT_BINARY = (
    "{0} + {1}",
    "{0} - {1}",
    "{0} * {1}",
    "ts.tile.maximum({0}, {1})",
    "{0} & {1}",
    "{0} | {1}",
    "{0} ^ {1}",
)
_CONTINUOUS = ("{0} + {1}", "{0} - {1}", "ts.tile.maximum({0}, {1})", "ts.tile.minimum({0}, {1})")
_MOVED = (
    "ts.tile.transpose({0}.T + 1, (1, 0))",
    "ts.tile.reshape(ts.tile.reshape({0}, (BM * BN,)) - 1, (BM, BN))",
    "ts.tile.scan({0}, 0, 'max')",
    "ts.tile.scan({0}, 1, 'min', reverse=True)",
)


@dataclass(frozen=True)
class Variable:
    """A name in the kernel.

    Args:
        name: how the source calls it.
        kind: its shape: the whole tile, `(BN,)`, `(BM, 1)` or a scalar.
        dtype: its dtype.
        approximate: whether backends may differ in its last bits.
    """

    name: str
    kind: str
    dtype: str
    approximate: bool = False


@dataclass
class Writer:
    """A body under construction."""

    draw: Draw
    lines: list[str] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
    count: int = 0
    depth: int = 2

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def bind(self, text: str, kind: str, dtype: str, approximate: bool = False) -> Variable:
        """Give a name to an expression, converted to `dtype` so that its type is known."""
        variable = Variable(f"v{self.count}", kind, dtype, approximate)
        self.count += 1
        self.line(f"{variable.name} = ts.tile.cast({text}, ts.{dtype})")
        self.variables.append(variable)
        return variable

    def pick(self, **wanted: Any) -> Variable | None:
        found = [
            v
            for v in self.variables
            if all(
                getattr(v, key) in (value if isinstance(value, tuple) else (value,)) for key, value in wanted.items()
            )
        ]
        return self.draw(st.sampled_from(found)) if found else None


def joined(a: str, b: str) -> str:
    """Return the kind that two kinds broadcast to."""
    if a == b:
        return a
    if SCALAR in (a, b):
        return b if a == SCALAR else a
    return TILE


def _unary(w: Writer) -> None:
    x = w.pick()
    assert x is not None
    if x.approximate:
        w.bind(f"-{x.name}", x.kind, x.dtype, approximate=True)
        return
    forms = _FLOAT_UNARY if x.dtype in FLOATS else _INT_UNARY
    w.bind(w.draw(st.sampled_from(forms)).format(x.name), x.kind, x.dtype)


def _approximation(w: Writer) -> None:
    x = w.pick(dtype=FLOATS, approximate=False)
    if x is not None:
        w.bind(w.draw(st.sampled_from(_APPROXIMATE)).format(x.name), x.kind, x.dtype, approximate=True)


def _binary(w: Writer) -> None:
    x = w.pick()
    assert x is not None
    y = w.pick(dtype=x.dtype)
    assert y is not None
    approximate = x.approximate or y.approximate
    forms = _CONTINUOUS if approximate else _FLOAT_BINARY if x.dtype in FLOATS else _INT_BINARY
    w.bind(w.draw(st.sampled_from(forms)).format(x.name, y.name), joined(x.kind, y.kind), x.dtype, approximate)


def _mixed(w: Writer) -> None:
    """Operands of two dtypes: the promoted type is whatever it is, the result a chosen one."""
    x, y = w.pick(approximate=False), w.pick(approximate=False)
    if x is not None and y is not None:
        w.bind(f"{x.name} + {y.name}", joined(x.kind, y.kind), w.draw(st.sampled_from((*FLOATS, *INTS))))


def _condition(w: Writer) -> tuple[str, str] | None:
    x = w.pick(approximate=False)
    if x is None:
        return None
    y = w.pick(dtype=x.dtype, approximate=False)
    assert y is not None
    op = w.draw(st.sampled_from(("<", "<=", "==", "!=", ">")))
    return f"{x.name} {op} {y.name}", joined(x.kind, y.kind)


def _where(w: Writer) -> None:
    condition, x = _condition(w), w.pick()
    if condition is None or x is None:
        return
    y = w.pick(dtype=x.dtype)
    assert y is not None
    kind = joined(joined(x.kind, y.kind), condition[1])
    w.bind(f"ts.tile.where({condition[0]}, {x.name}, {y.name})", kind, x.dtype, x.approximate or y.approximate)


def _moved(w: Writer) -> None:
    x = w.pick(kind=TILE, approximate=False)
    if x is not None:
        w.bind(w.draw(st.sampled_from(_MOVED)).format(x.name), TILE, x.dtype)


def _reduction(w: Writer) -> None:
    x = w.pick(kind=TILE)
    if x is None:
        return
    axis = w.draw(st.sampled_from((0, 1, None)))
    op = w.draw(st.sampled_from(("sum", "max", "min")))
    approximate = x.approximate or (op == "sum" and x.dtype in FLOATS)
    scale = " * 0.05" if approximate and op == "sum" else ""
    text = f"ts.tile.reduce({x.name}, {axis}, '{op}'){scale}"
    dtype = "f32" if x.dtype in FLOATS else "i32"
    if axis == 1:
        w.bind(f"ts.tile.expand_dims({text}, 1)", COLUMN, dtype, approximate)
    else:
        w.bind(text, ROW if axis == 0 else SCALAR, dtype, approximate)


def _predicated(w: Writer) -> None:
    x, condition = w.pick(kind=TILE, approximate=False), _condition(w)
    if x is None or condition is None or condition[1] == SCALAR:
        return
    y = w.pick(dtype=x.dtype, kind=TILE, approximate=False)
    assert y is not None
    changed = w.bind(x.name, TILE, x.dtype)
    w.line(f"if {condition[0]}:")
    w.line(f"    {changed.name} = {y.name}")
    if w.draw(st.booleans()):
        w.line("else:")
        w.line(f"    {changed.name} = {changed.name} * 2")


def _branch(w: Writer) -> None:
    x = w.pick(approximate=False)
    assert x is None or x
    if x is None:
        return
    y = w.pick(dtype=x.dtype, kind=x.kind, approximate=False)
    assert y is not None
    changed = w.bind(x.name, x.kind, x.dtype)
    w.line(w.draw(st.sampled_from(("if k > 2:", "if i == 0:", "if (j > 0) and (k < 5):"))))
    w.line(f"    {changed.name} = ts.tile.cast({changed.name} + {y.name}, ts.{x.dtype})")
    w.line("else:")
    w.line(f"    {changed.name} = {y.name}")


def _loop(w: Writer) -> None:
    x = w.pick(kind=TILE, approximate=False)
    if x is None:
        return
    y = w.pick(dtype=x.dtype, approximate=False)
    assert y is not None
    carried = w.bind(x.name, TILE, x.dtype)
    w.line(f"for t in ts.tile.range({w.draw(st.sampled_from(('k', '3', '0')))}):")
    w.line(f"    {carried.name} = ts.tile.cast(ts.tile.minimum({carried.name}, {y.name}) - {y.name}, ts.{x.dtype})")


def _shifted(w: Writer) -> None:
    down, right = w.draw(st.integers(-3, 3)), w.draw(st.integers(-3, 3))
    name, dtype = w.draw(st.sampled_from((("a", "f32"), ("b", "i32"))))
    where = f"{name}[i + {down}:i + {down} + BM, j + {right}:j + {right} + BN]"
    w.bind(f"ts.tile.load({where}, fill={w.draw(st.sampled_from((0, 1, 7)))})", TILE, dtype)


STATEMENTS = (
    _unary,
    _unary,
    _binary,
    _binary,
    _binary,
    _mixed,
    _where,
    _approximation,
    _moved,
    _reduction,
    _reduction,
    _predicated,
    _branch,
    _loop,
    _shifted,
)


@dataclass(frozen=True)
class RandomKernel:
    """A kernel's source and what it is run on.

    Args:
        source: the text of a module that defines `kernel`.
        arguments: its arguments, results last.
        results: the variables that the results hold.
    """

    source: str
    arguments: tuple[Any, ...]
    results: tuple[Variable, ...]

    def __repr__(self) -> str:
        return f"{self.source}\n# arguments: {[getattr(a, 'shape', a) for a in self.arguments]}"


def dtype_of(variable: Variable) -> DType:
    """Return a variable's dtype."""
    return BY_NAME[variable.dtype]


@st.composite
def kernels(draw: Draw) -> RandomKernel:
    """Return a random kernel with its arguments."""
    m, n = draw(st.sampled_from(((5, 9), (16, 16), (7, 40), (33, 20), (1, 64))))
    block = draw(st.sampled_from(((4, 16), (8, 8), (5, 12), (3, 40), (16, 16))))
    w = Writer(draw)
    w.bind("a[i:i+BM, j:j+BN]", TILE, "f32")
    w.bind("b[i:i+BM, j:j+BN]", TILE, draw(st.sampled_from(INTS)))
    w.bind("h[i:i+BM, j:j+BN]", TILE, draw(st.sampled_from(FLOATS)))
    w.bind("row[j:j+BN]", ROW, "f32")
    w.bind("column[i:i+BM][:, None]", COLUMN, "i32")
    w.bind("s", SCALAR, "f32")
    _shifted(w)
    _shifted(w)
    for _ in range(draw(st.integers(3, 14))):
        draw(st.sampled_from(STATEMENTS))(w)
    kept = [v for v in w.variables if v.kind == TILE][-3:] + [v for v in w.variables if v.kind == COLUMN][-1:]
    blocks = -(-n // block[1])
    results = [_store(w, number, v) for number, v in enumerate(kept)]
    outputs = [(m, n) if v.kind == TILE else (m, blocks) for v in kept]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    arguments = _arguments(draw, rng, m, n)
    arrays = [np.full(shape, 77).astype(dtype_of(v).numpy()) for v, shape in zip(kept, outputs, strict=True)]
    return RandomKernel(_module(w, results, block), (*arguments, *arrays), tuple(kept))


def _store(w: Writer, number: int, v: Variable) -> str:
    if v.kind == TILE:
        w.line(f"o{number}[i:i+BM, j:j+BN] = {v.name}")
        return f'o{number}: ts.Tensor["m", "n", ts.{v.dtype}]'
    w.line(f"o{number}[i:i+BM, j // BN] = ts.tile.reshape({v.name}, (BM,))")
    return f'o{number}: ts.Tensor["m", "q", ts.{v.dtype}]'


def _arguments(draw: Draw, rng: np.random.Generator, m: int, n: int) -> list[Any]:
    f16 = BY_NAME["f16"].numpy()
    a = (rng.integers(-40, 40, (m, n)) / 8).astype(np.float32)
    b = rng.integers(-100, 100, (m, n)).astype(np.int32)
    h = rng.standard_normal((m, n)).astype(f16)
    if draw(st.booleans()):
        a = np.ascontiguousarray(a.T).T
    if draw(st.booleans()):
        a.reshape(-1)[:: max(1, a.size // 3)] = np.nan
    row = rng.standard_normal(n).astype(np.float32)
    column = rng.integers(-5, 5, m).astype(np.int32)
    return [a, b, h, row, column, draw(st.sampled_from((0.0, 1.5, -2.25))), draw(st.sampled_from((0, 1, 4)))]


def _module(w: Writer, results: list[str], block: tuple[int, int]) -> str:
    parameters = [
        'a: ts.Tensor["m", "n", ts.f32]',
        'b: ts.Tensor["m", "n", ts.i32]',
        'h: ts.Tensor["m", "n", ts.f16]',
        'row: ts.Tensor["n", ts.f32]',
        'column: ts.Tensor["m", ts.i32]',
        "s: ts.f32",
        "k: int",
        *results,
        f"BM: ts.constexpr = {block[0]}",
        f"BN: ts.constexpr = {block[1]}",
    ]
    head = ["import tessera as ts", "", "", "def kernel(", *(f"    {p}," for p in parameters), "):"]
    return "\n".join([*head, "    for i, j in ts.tile.grid((m, BM), (n, BN)):", *w.lines, ""])
