"""Steps that change each result on its own."""

from __future__ import annotations

from collections.abc import Callable
from operator import index
from typing import Any, Literal
from typing import cast as typed

import numpy as np

import tessera as ts
from tessera.frontend.function import DeviceFunction
from tessera.frontend.structure import ConstantField, Field, Layout, ScalarField, TensorField
from tessera.numerics.dtypes import DType
from tessera.ops import arrays
from tessera.ops.epilogue import reference
from tessera.ops.epilogue.chain import FORMALS, Axis, Reference, Step, bad_argument, is_number, wrong_rank
from tessera.ops.refusals import checked


@ts.function
def _operand(self: Any, x: Any, rows: Any, cols: Any, batch: Any) -> Any:
    """Load what of a step's tensor belongs to a tile."""
    if self.axis == "tensor":
        return self.values[0]
    if self.axis == "full":
        if self.batched:
            return self.values[batch, rows : rows + x.shape[0], cols : cols + x.shape[1]]
        return self.values[rows : rows + x.shape[0], cols : cols + x.shape[1]]
    start, size = (rows, x.shape[0]) if self.axis == "row" else (cols, x.shape[1])
    line = self.values[batch, start : start + size] if self.batched else self.values[start : start + size]
    return line[:, None] if self.axis == "row" else line[None, :]


@ts.function
def _add(self: Any, x: Any, rows: Any, cols: Any, batch: Any) -> Any:
    return x + _operand(self, x, rows, cols, batch)


@ts.function
def _add_scaled(self: Any, x: Any, rows: Any, cols: Any, batch: Any) -> Any:
    return x + self.factor.to(x.dtype) * _operand(self, x, rows, cols, batch)


@ts.function
def _multiply(self: Any, x: Any, rows: Any, cols: Any, batch: Any) -> Any:
    return x * _operand(self, x, rows, cols, batch)


@ts.function
def _multiply_number(self: Any, x: Any, rows: Any, cols: Any, batch: Any) -> Any:
    return x * self.factor.to(x.dtype)


@ts.function
def _gelu(self: Any, x: Any, rows: Any, cols: Any, batch: Any) -> Any:
    return ts.tile.gelu(x, approximate=self.approximate)


@ts.function
def _silu(self: Any, x: Any, rows: Any, cols: Any, batch: Any) -> Any:
    return ts.tile.silu(x)


@ts.function
def _relu(self: Any, x: Any, rows: Any, cols: Any, batch: Any) -> Any:
    return ts.tile.relu(x)


@ts.function
def _cast(self: Any, x: Any, rows: Any, cols: Any, batch: Any) -> Any:
    return ts.tile.cast(x, self.policy).to(x.dtype)  # later steps compute in f32 again


@ts.function
def _dropout(self: Any, x: Any, rows: Any, cols: Any, batch: Any) -> Any:
    # The counter is the element's number in the whole result: no tile shape changes the mask.
    row = rows + ts.tile.arange(x.shape[0], dtype=ts.i64)
    if batch is not None:
        row = row + batch * self.rows
    ids = row[:, None] * self.cols + (cols + ts.tile.arange(x.shape[1], dtype=ts.i64))[None, :]
    return ts.tile.dropout(x, self.p, self.seed, ids)


@checked
def bias(values: Any, axis: Literal["row", "col"] = "col") -> Step:
    """Add a vector: one number for each column, or for each row.

    Args:
        values: `(N,)` for columns or `(M,)` for rows, any float dtype; `(B, N)` or `(B, M)` in a batch.
        axis: what its elements belong to.

    Raises:
        CallError: `wrong-rank`.
    """
    return _vector("bias", _add, values, axis, np.add)


@checked
def residual(values: Any, factor: float | None = None) -> Step:
    """Add a tensor of the result's shape, times a number if one is given.

    Args:
        values: `(M, N)`, or `(B, M, N)` in a batch; a stride of 0 repeats it.
        factor: number it is multiplied with.

    Raises:
        CallError: `wrong-rank`.
    """
    found = arrays.view(values, "residual")
    if len(found.shape) not in (2, 3):
        raise wrong_rank("residual", found.shape, "(M, N) or (B, M, N)")
    fields = _tensor_fields("full", FORMALS[-len(found.shape) :], found.dtype)
    if factor is None:
        return Step(Layout.of("residual", _add, FORMALS, fields), (values,), lambda x: x + arrays.host(values))
    number = ("factor", ScalarField(_number_dtype(found.dtype)))
    return Step(
        Layout.of("residual", _add_scaled, FORMALS, (*fields, number)),
        (values, factor),
        lambda x: x + factor * arrays.host(values),
        2,
    )


@checked
def scale(factor: Any, axis: Axis | None = None, dtype: DType = ts.f32) -> Step:
    """Multiply by a number or a tensor.

    Args:
        factor: a number, a tensor of one element, or a vector: one factor for each row or column.
        axis: what a vector's elements belong to; columns unless it has a single one.
        dtype: type a number is passed in.

    Raises:
        CallError: `wrong-rank`.
    """
    return _scale("scale", factor, axis, dtype)


@checked
def dequant(factor: Any, axis: Axis | None = None) -> Step:
    """Multiply integer or fp8 results by their scale; as `scale`, under the name that reports show.

    Args:
        factor: a number, a tensor of one element, or a vector: one factor for each row or column.
        axis: what a vector's elements belong to; columns unless it has a single one.

    Raises:
        CallError: `wrong-rank`.
    """
    return _scale("dequant", factor, axis, ts.f32)


@checked
def gelu(approximate: Literal["none", "tanh"] = "none") -> Step:
    """Apply `x·Φ(x)`.

    Args:
        approximate: `tanh` for the formula by tanh, `none` for the one by erf.

    Raises:
        CallError: `bad-argument`.
    """
    if approximate not in ("none", "tanh"):
        raise bad_argument(f"gelu: no approximation is called {approximate!r}", "none or tanh")
    is_tanh = approximate == "tanh"
    layout = Layout.of("gelu", _gelu, FORMALS, (("approximate", ConstantField(is_tanh)),))
    return Step(layout, (), reference.gelu_tanh if is_tanh else reference.gelu_erf, 8)


@checked
def silu() -> Step:
    """Apply `x·sigmoid(x)`."""
    return Step(Layout.of("silu", _silu, FORMALS), (), reference.silu, 4)


@checked
def relu() -> Step:
    """Apply `max(x, 0)`."""
    return Step(Layout.of("relu", _relu, FORMALS), (), lambda x: np.maximum(x, 0))


@checked
def dropout(p: float, seed: int) -> Step:
    """Zero each element with probability `p` and multiply the others by `1 / (1 - p)`.

    Args:
        p: probability, in [0, 1).
        seed: 64-bit key of Philox; the counter is the element's number in the result, so that the mask depends on
            neither tile shape nor device.

    Raises:
        CallError: `bad-argument`.
    """
    if not 0 <= p < 1:
        raise bad_argument(f"dropout: the probability {p} is not in [0, 1)", "0 keeps everything")
    layout = Layout.of("dropout", _dropout, FORMALS, (("p", ScalarField(ts.f32)), ("seed", ScalarField(ts.i64))))
    key = (index(seed) + 2**63) % 2**64 - 2**63
    return Step(layout, (float(p), key), lambda x: reference.dropout(x, p, key), 12, weight=1)


@checked
def cast(dtype: DType, saturate: bool = False) -> Step:
    """Round to a dtype; as the last step it also decides the dtype of a result that the op makes.

    Args:
        dtype: what to round to.
        saturate: clamp to its largest finite value instead of overflowing.
    """
    policy = dtype @ ts.saturate if saturate else dtype
    layout = Layout.of("cast", _cast, FORMALS, (("policy", ConstantField(policy)),))
    return Step(layout, (), lambda x: reference.rounded(x, dtype, saturate), 1, dtype)


@checked
def step(function: Any, *, reference: Reference | None = None, flops: int = 1, weight: int = 0, **fields: Any) -> Step:
    """Make a step of a function of one's own.

        @ts.function
        def clamp(self, x, rows, cols, batch):
            return ts.tile.minimum(ts.tile.maximum(x, self.low), self.high)

        op.epilogue.step(clamp, low=-1.0, high=1.0)

    Args:
        function: a `@ts.function` of `(self, x, rows, cols, batch)`: the step's fields, the tile, the place of its
            first element in the result and the number of the matrix in a batch (None without one). It returns the
            tile that the next step gets. `self.rows` and `self.cols` are the sizes of the result.
        reference: what it does to a float64 array, in NumPy.
        flops: operations per element.
        weight: 1 when it needs about as many registers as the tile itself, 2 for several times that; a plan then
            takes smaller tiles.
        **fields: its fields. A float or int is an argument of the kernel; `(array, dims)` is a tensor over dimensions
            named `batch`, `rows` or `cols`, such as `(scales, "rows")` or `(rest, "rows cols")`; anything else is
            compiled in.

    Raises:
        CallError: `bad-argument` or `wrong-rank`.
    """
    if not isinstance(function, DeviceFunction):
        raise bad_argument(f"step: {function!r:.60} is not a @ts.function", "decorate it with @ts.function")
    entry = typed("DeviceFunction[Any, Any]", function)
    parts: list[tuple[str, Field]] = []
    values: list[Any] = []
    for name, value in fields.items():
        part, argument = _field(name, value)
        parts.append((name, part))
        values += argument
    if weight:  # which decides about the tile, so that calls of another weight are another kernel's
        parts.append(("weight", ConstantField(weight)))
    layout = Layout.of(entry.function.__name__, entry, FORMALS, tuple(parts))
    return Step(layout, tuple(values), reference or _no_reference, flops, weight=weight)


def _field(name: str, value: Any) -> tuple[Field, list[Any]]:
    """Return a field of a step, and what is passed for it at a call."""
    pair: tuple[Any, ...] = typed("tuple[Any, ...]", value) if isinstance(value, tuple) else ()
    if len(pair) == 2 and hasattr(pair[0], "shape"):
        array, text = pair
        dims = tuple(str(text).split())
        found = arrays.view(array, name)
        if not set(dims) <= set(FORMALS):
            raise bad_argument(f"step: {name} is over {text!r}", f"name dimensions among {', '.join(FORMALS)}")
        if len(dims) != len(found.shape):
            raise wrong_rank(f"step: {name}", found.shape, f"as many dimensions as {text!r} names")
        return TensorField(dims, found.dtype), [array]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ConstantField(value), []
    return ScalarField(ts.i64 if isinstance(value, int) else ts.f32), [value]


def _no_reference(_x: Any) -> Any:
    raise bad_argument("this step has no reference", "give one: op.epilogue.step(function, reference=...)")


def _vector(label: str, entry: Any, values: Any, axis: str, function: Callable[[Any, Any], Any]) -> Step:
    found = arrays.view(values, label)
    if len(found.shape) not in (1, 2):
        raise wrong_rank(label, found.shape, "a vector, or (B, n) in a batch")
    formal = {"row": "rows", "col": "cols"}.get(axis)
    if formal is None:
        raise bad_argument(f"{label}: no axis is called {axis!r}", "row or col")
    dims = ("batch", formal) if len(found.shape) == 2 else (formal,)
    fields = _tensor_fields(axis, dims, found.dtype)

    def exact(x: Any) -> Any:
        line = arrays.host(values)
        return function(x, line[..., :, None] if axis == "row" else line[..., None, :])

    return Step(Layout.of(label, entry, FORMALS, fields), (values,), exact)


def _scale(label: str, factor: Any, axis: Axis | None, dtype: DType) -> Step:
    if is_number(factor):
        layout = Layout.of(label, _multiply_number, FORMALS, (("factor", ScalarField(dtype)),))
        return Step(layout, (float(factor),), lambda x: x * factor)
    found = arrays.view(factor, label)
    single = found.shape in ((), (1,))
    if axis == "tensor" or (axis is None and single):
        if not single:
            raise wrong_rank(label, found.shape, "one element")
        fields = _tensor_fields("tensor", (1,), found.dtype)
        layout = Layout.of(label, _multiply, FORMALS, fields)
        return Step(layout, (factor.reshape(1),), lambda x: x * arrays.host(factor).reshape(()))
    return _vector(label, _multiply, factor, axis or "col", np.multiply)


def _tensor_fields(axis: str, dims: tuple[str | int, ...], dtype: DType) -> tuple[tuple[str, Field], ...]:
    return (
        ("values", TensorField(dims, dtype)),
        ("axis", ConstantField(axis)),
        ("batched", ConstantField("batch" in dims)),
    )


def _number_dtype(dtype: DType) -> DType:
    return ts.f64 if dtype == ts.f64 else ts.f32
