"""Rotary position embedding: pairs of a head's elements turn by an angle that grows with the position."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod
from operator import index
from typing import Any, Literal, cast

import numpy as np

from tessera.driver.compile import compile as compiled
from tessera.numerics.dtypes import DType, bf16, f32
from tessera.ops import arrays, rows
from tessera.ops.attn.rope_kernels import rotate
from tessera.ops.attn.rope_steps import BACKWARD, FORWARD, block_of
from tessera.ops.operation import library_op
from tessera.ops.refusals import checked, refused
from tessera.ops.steps import Step, without_gradient
from tessera.ops.traced import joined
from tessera.target.artifact import Artifact

Layout = Literal["bhsd", "bshd"]


@library_op
class Rope:
    """Rotary position embedding; `__call__` says what it takes."""

    @checked
    def __call__(
        self,
        q: Any,
        k: Any = None,
        *,
        positions: Any = None,
        base: float = 10000.0,
        cos: Any = None,
        sin: Any = None,
        interleaved: bool = False,
        rotary_dim: int | None = None,
        layout: Layout = "bhsd",
        inplace: bool = False,
        out: Any = None,
    ) -> Any:
        """Return queries, and keys in the same launch, whose pairs `(a, b)` are `(a cos - b sin, b cos + a sin)`.

        Args:
            q: `(B, H, S, D)`, or `(B, S, H, D)` by `layout`; f64, f32, bf16 or f16.
            k: keys of as many or fewer heads, else as `q`; or None.
            positions: `(S,)` or `(B, S)`, i32 or i64; by default 0, 1, …, S - 1.
            base: pair `j` of position `p` turns by `p * base**(-2 j / rotary_dim)` radians.
            cos: `(S, rotary_dim / 2)` or `(B, S, rotary_dim / 2)`, f32 or f64, in place of angles from `base`.
            sin: as `cos`, and given with it.
            interleaved: whether elements `2 j` and `2 j + 1` are a pair, else `j` and `j + rotary_dim / 2`.
            rotary_dim: how many of a head's elements turn, the first ones; by default all.
            layout: order of the dimensions.
            inplace: whether the results replace `q` and `k`.
            out: array for the result; with `k` a tuple of two.

        Returns:
            An array as `q`; with `k` that and one as `k`. PyTorch tensors that need gradients have them; tables do not.

        Raises:
            CallError: `not-an-array`, `wrong-rank`, `wrong-shape`, `wrong-dtype`, `bad-argument`, or
                `out-needs-no-gradient` for results in given arrays of tensors that need gradients.

        Numerics:
            Angles and turns are computed in f32 (f64 for f64), and rounded once. An angle from `base` is off by up to
            `|position| * 2**-22` radians; give tables for more than that.

        Source: Su et al., RoFormer: enhanced transformer with rotary position embedding, 2021.
        """
        given = rope_arguments(q, k, positions, base, cos, sin, interleaved, rotary_dim, layout)
        return _run(FORWARD, given, _goals(q, k, inplace, out))

    def backward(
        self,
        grad_q: Any,
        grad_k: Any = None,
        *,
        positions: Any = None,
        base: float = 10000.0,
        cos: Any = None,
        sin: Any = None,
        interleaved: bool = False,
        rotary_dim: int | None = None,
        layout: Layout = "bhsd",
    ) -> dict[str, Any]:
        """Return the gradients of a call by the names of its arguments: the turn by the negative angle.

        Args:
            grad_q: gradient of the turned queries.
            grad_k: gradient of the turned keys, or None.
            positions: as in the call, like all that follow.
            base: as in the call.
            cos: as in the call.
            sin: as in the call.
            interleaved: as in the call.
            rotary_dim: as in the call.
            layout: as in the call.

        Raises:
            CallError: as for the call.
        """
        given = rope_arguments(grad_q, grad_k, positions, base, cos, sin, interleaved, rotary_dim, layout)
        found = _run(BACKWARD, given, None)
        return {"q": found} if grad_k is None else {"q": found[0], "k": found[1]}

    def reference(
        self,
        q: Any,
        *,
        positions: Any = None,
        base: float = 10000.0,
        interleaved: bool = False,
        rotary_dim: int | None = None,
        layout: Layout = "bhsd",
    ) -> Any:
        """Return the exact result for queries, or keys, in NumPy and float64."""
        x = arrays.host(q)
        x = x if layout == "bhsd" else x.swapaxes(1, 2)
        size = x.shape[3] if rotary_dim is None else rotary_dim
        at = arrays.host(list(range(x.shape[2])) if positions is None else positions)
        angle = at[..., None] * base ** (-2 * np.arange(size // 2) / size)
        found = exactly_turned(x, np.cos(angle), np.sin(angle), interleaved)
        return found if layout == "bhsd" else found.swapaxes(1, 2)

    def explain(self) -> Any:
        """Return what the last kernel ran: backend, schedule, emulations.

        Raises:
            CallError: `never-run` before the first call.
        """
        return rotate.explain()

    def compile(
        self,
        head_dim: int,
        dtype: DType = bf16,
        *,
        rotary_dim: int | None = None,
        interleaved: bool = False,
        tables: bool = False,
        target: str | None = None,
    ) -> Artifact:
        """Return the kernel for queries and keys of a head size; needs no device.

        Args:
            head_dim: elements of a head.
            dtype: dtype of queries and keys.
            rotary_dim: as in a call.
            interleaved: as in a call.
            tables: whether angles come from tables, of f32, else from the base.
            target: as for `ts.compile`.
        """
        pairs = (head_dim if rotary_dim is None else rotary_dim) // 2
        sizes = {"H": 32, "K": 8, "S": 4096, "D": head_dim} | ({"R": pairs} if tables else {})
        given: dict[str, Any] = {"C": f32} if tables else {"cos": None, "sin": None}
        given |= {"positions": None, "T": dtype, "acc": rows.accumulator(dtype), "BS": block_of(pairs, 4096)}
        given |= {"pairs": pairs, "interleaved": interleaved, "copies": 2 * pairs < head_dim}
        return compiled(rotate, target, (), sizes, **given)

    @staticmethod
    def flops(shape: Sequence[int]) -> int:
        """Return the operations of turning an array whose elements all turn: six for each pair."""
        return 3 * prod(shape)

    @staticmethod
    def bytes(shape: Sequence[int], dtype: DType) -> int:
        """Return the bytes of an array and of its result."""
        return 2 * prod(shape) * dtype.bytes


def _run(step: Step, given: tuple[Any, ...], goals: tuple[Any, ...] | None) -> Any:
    """Compute a step, into given arrays if there are some."""
    if goals is None:
        found = step(*given)
    else:
        step.into(goals, *given)
        found = goals
    return found[0] if given[1] is None else tuple(found)


def _goals(q: Any, k: Any, inplace: bool, out: Any) -> tuple[Any, ...] | None:
    """Return where the results go; None for new arrays."""
    if inplace and out is not None:
        raise refused("both inplace and out are given", "bad-argument", "leave one of them away")
    if inplace:
        return q, k
    if out is None:
        return None
    if k is None:
        rows.checked_out(out, arrays.shape_of(q, "q"), arrays.dtype_of(q), q)
        return out, None
    if not isinstance(out, tuple) or len(cast("tuple[Any, ...]", out)) != 2:
        raise refused("out is not two arrays", "bad-argument", "with keys it is a tuple of two arrays")
    both = cast("tuple[Any, ...]", out)
    for one, array in zip(both, (q, k), strict=True):
        rows.checked_out(one, arrays.shape_of(array, "q"), arrays.dtype_of(array), array)
    return both


def rope_arguments(
    q: Any,
    k: Any,
    positions: Any,
    base: float,
    cos: Any,
    sin: Any,
    interleaved: bool,
    rotary_dim: int | None,
    layout: str,
) -> tuple[Any, ...]:
    """Return what the step is called with."""
    axis = {"bhsd": 1, "bshd": 2}[layout]
    shape = arrays.shape_of(q, "q")
    rows.float_dtype(q, "q")
    if len(shape) != 4:
        raise refused(f"argument 'q' has {len(shape)} dimensions", "wrong-rank", "it takes 4: batch, heads, …")
    if k is not None:
        heads = arrays.shape_of(k, "k")[axis : axis + 1]
        rows.same_shape(k, "k", (*shape[:axis], *heads, *shape[axis + 1 :]))
        rows.same_dtype(k, "k", q, "q")
    size = shape[3] if rotary_dim is None else index(rotary_dim)
    if size % 2 or not (0 < size <= shape[3] or size == shape[3]):
        raise refused(f"rotary_dim is {size} of {shape[3]}", "bad-argument", "it is even, and at most a head's size")
    if not 0 < base < inf:
        raise refused(f"base is {base}", "bad-argument", "it is positive and finite")
    at = shape[0], shape[3 - axis]
    if (cos is None) != (sin is None) or (cos is not None and positions is not None):
        raise refused("cos, sin or positions do not go together", "bad-argument", "tables are two, without positions")
    if positions is not None and arrays.dtype_of(positions, "positions").name not in ("i32", "i64"):
        raise refused("positions are no integers", "wrong-dtype", "they take i32 or i64")
    for name, table in (("cos", cos), ("sin", sin)):
        if table is not None and arrays.dtype_of(table, name).name not in ("f32", "f64"):
            raise refused(f"argument {name!r} has the dtype {arrays.dtype_of(table)}", "wrong-dtype", "f32 or f64")
    if cos is not None:
        rows.same_dtype(sin, "sin", cos, "cos")
        rows.same_shape(sin, "sin", arrays.shape_of(cos, "cos"))
    pairs = size // 2
    places = _of_batch(positions, "positions", at)
    tables = (_of_batch(one, name, (*at, pairs)) for name, one in (("cos", cos), ("sin", sin)))
    return q, k, places, *tables, float(base), pairs, bool(interleaved), layout == "bhsd"


def _of_batch(array: Any, name: str, wanted: tuple[Any, ...]) -> Any:
    """Return what each row of a batch, or all of them, has one of, with a first dimension of 1 for all."""
    if array is None:
        return None
    shape = arrays.shape_of(array, name)
    if len(shape) == len(wanted) - 1:
        rows.same_shape(array, name, wanted[1:])
        return array.reshape(1, *shape)
    rows.same_shape(array, name, wanted)
    return array


def turned_by(tables: Any, q: Any, k: Any, layout: str, interleaved: bool, back: bool = False) -> tuple[Any, Any]:
    """Return queries and keys turned by tables of the keys' places; queries have the last ones.

    Args:
        tables: `(cos, sin)`.
        q: queries `(B, H, S, D)`, or as `layout` says.
        k: keys `(B, G, N, D)`, where N is at least S.
        layout: order of the dimensions.
        interleaved: which elements are a pair.
        back: whether they are turned by the negative angles, as gradients are.

    Raises:
        CallError: `bad-argument`, and as for `op.attn.rope`.
    """
    if not isinstance(tables, tuple | list) or len(cast("Sequence[Any]", tables)) != 2:
        raise refused(f"rope is {tables!r:.60}", "bad-argument", "it is a tuple of the tables of cos and of sin")
    for name, one in (("q", q), ("k", k)):
        rows.check_rank(one, name, 4)
    q, k, cos, sin = joined((q, k, *cast("Sequence[Any]", tables)))
    places = tuple(one.shape[2 if layout == "bhsd" else 1] for one in (q, k))
    pairs = 2 * arrays.shape_of(without_gradient(cos, "cos"), "cos")[-1]
    arrays.shape_of(without_gradient(sin, "sin"), "sin")
    step = BACKWARD if back else FORWARD

    def given(x: Any, y: Any, c: Any, s: Any) -> tuple[Any, ...]:
        return rope_arguments(x, y, None, 1e4, c, s, interleaved, pairs, layout)

    if places[0] == places[1]:
        return cast("tuple[Any, Any]", step(*given(q, k, cos, sin)))
    if places[0] > places[1]:
        raise refused(
            f"rope turns {places[0]} queries by places of {places[1]} keys", "bad-argument", "call op.attn.rope before"
        )
    last = [one[..., places[1] - places[0] :, :] for one in (cos, sin)]
    return step(*given(q, None, *last))[0], step(*given(k, None, cos, sin))[0]


def exactly_turned(x: Any, cos: Any, sin: Any, interleaved: bool) -> Any:
    """Return `(B, H, S, D)` turned in NumPy and float64 by tables, of whose places it has the last ones."""
    cos, sin = (arrays.host(one)[..., -x.shape[2] :, :] for one in (cos, sin))
    turn = cos + 1j * sin
    size = 2 * turn.shape[-1]
    head = x[..., :size]
    first, second = (head[..., ::2], head[..., 1::2]) if interleaved else np.split(head, 2, -1)
    made = (first + 1j * second) * (turn if turn.ndim == 2 else turn[:, None])
    both = np.stack([made.real, made.imag], -1 if interleaved else -2).reshape(head.shape)
    return np.concatenate([both, x[..., size:]], -1)


rope = Rope()
"""Rotary position embedding; see `Rope.__call__`."""
