"""Attention whose scores are never all in memory."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite, prod
from operator import index
from typing import Any, Literal, cast

import numpy as np

from tessera.driver.compile import compile as compiled
from tessera.driver.compile import target_record
from tessera.numerics.dtypes import DType, bf16
from tessera.ops import arrays, rows
from tessera.ops.attn import flash_kernels as kernels
from tessera.ops.attn.flash_steps import BACKWARD, FAR, FORWARD, Blocks, accumulator
from tessera.ops.refusals import checked, checked_methods, refused
from tessera.ops.steps import needs_gradient
from tessera.target.artifact import Artifact

Layout = Literal["bhsd", "bshd"]
Window = tuple[int | None, int | None]


@checked_methods
class FlashAttention:
    """Attention; `__call__` says what it takes."""

    @checked
    def __call__(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        causal: bool = False,
        scale: float | None = None,
        window: Window | None = None,
        softcap: float | None = None,
        bias: Any = None,
        alibi_slopes: Any = None,
        return_lse: bool = False,
        layout: Layout = "bhsd",
        out: Any = None,
    ) -> Any:
        """Return `softmax(q·kᵀ·scale + bias)·v` of each head.

        Args:
            q: queries `(B, H, S, D)`, or `(B, S, H, D)` by `layout`; f64, f32, bf16 or f16.
            k: keys `(B, G, N, D)` of the dtype of `q`; `G` divides `H`, and neighbouring heads share keys and values.
            v: values `(B, G, N, E)` of the dtype of `q`.
            causal: whether a query sees no key after its place; the last query has the place of the last key.
            scale: of products; by default `D ** -0.5`.
            window: keys `(before, after)` its place that a query sees at most, None for all.
            softcap: scores are `softcap * tanh(score / softcap)`, before the bias.
            bias: floating point numbers that broadcast to `(B, H, S, N)`, added to scores; -inf hides a key. Or bool:
                false hides it.
            alibi_slopes: `(H,)`, f32 (f64 for f64), without a gradient: scores are less by a head's slope times the
                distance of places.
            return_lse: whether the logarithms of the sums of powers are returned too.
            layout: order of the dimensions of queries, keys, values and result.
            out: array for the result.

        Returns:
            `(B, H, S, E)`, or `(B, S, H, E)`, of the dtype of `q`; zeros for a query that sees no key. With
            `return_lse` also `(B, H, S)` in f32 (f64), -inf for those. PyTorch tensors that need gradients have them,
            the bias too.

        Raises:
            CallError: `not-an-array`, `wrong-rank`, `wrong-shape`, `wrong-dtype`, `bad-argument`, `no-gradient` for
                slopes that need one, or `out-needs-no-gradient`.

        Numerics:
            Scores, sums and results are computed in f32 (f64 for f64); weights are rounded to the dtype of `v` before
            they multiply it.

        Source: Dao, FlashAttention-2: faster attention with better parallelism and work partitioning, 2023; Press et
        al., Train short, test long (ALiBi), 2022.
        """
        given = _arguments(q, k, v, causal, scale, window, softcap, bias, alibi_slopes, layout)
        if out is not None:
            shape = tuple(first_two_turned(given[0].shape, layout))
            rows.checked_out(out, (*shape[:3], given[2].shape[3]), arrays.dtype_of(q), q, k, v, bias)
            read = {"k": k, "v": v, "bias": bias, "alibi_slopes": alibi_slopes}
            rows.apart(out, **{name: one for name, one in read.items() if one is not None})
            results = by_layout(out, layout), FORWARD.results(*given)[1]
            FORWARD.into(results, *given)
        else:
            results = FORWARD(*given)
        found = by_layout(results[0], layout) if out is None else out
        return (found, results[1]) if return_lse else found

    def backward(
        self,
        grad: Any,
        q: Any,
        k: Any,
        v: Any,
        *,
        causal: bool = False,
        scale: float | None = None,
        window: Window | None = None,
        softcap: float | None = None,
        bias: Any = None,
        alibi_slopes: Any = None,
        layout: Layout = "bhsd",
    ) -> dict[str, Any]:
        """Return the gradients of a call: `{"q": …, "k": …, "v": …}`, with a bias also `"bias"`.

        Args:
            grad: gradient of the result.
            q: as in the call, like all that follow.
            k: as in the call.
            v: as in the call.
            causal: as in the call.
            scale: as in the call.
            window: as in the call.
            softcap: as in the call.
            bias: as in the call.
            alibi_slopes: as in the call.
            layout: as in the call.

        Raises:
            CallError: as for the call.
        """
        given = _arguments(q, k, v, causal, scale, window, softcap, bias, alibi_slopes, layout)
        results = FORWARD.fresh(*given)
        turned = by_layout(grad, layout)
        rows.same_shape(turned, "grad", results[0].shape)
        rows.same_dtype(grad, "grad", q, "q")
        wanted = [True, True, bias is not None]
        found = BACKWARD.fresh(turned, None, *given[:5], *results, *given[5:], wanted)
        made = {name: by_layout(one, layout) for name, one in zip("qkv", found, strict=False)}
        return made if bias is None else {**made, "bias": _summed(found[3], arrays.shape_of(bias, "bias"))}

    def reference(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        causal: bool = False,
        scale: float | None = None,
        window: Window | None = None,
        softcap: float | None = None,
        bias: Any = None,
        alibi_slopes: Any = None,
        return_lse: bool = False,
        layout: Layout = "bhsd",
    ) -> Any:
        """Return the exact result in NumPy and float64."""
        q, k, v = (by_layout(arrays.host(one), layout) for one in (q, k, v))
        k, v = (np.repeat(one, q.shape[1] // one.shape[1], 1) for one in (k, v))
        scores = q @ k.swapaxes(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
        if bias is not None:
            given = arrays.host(bias)
            scores = scores + (np.where(given, 0.0, -np.inf) if arrays.dtype_of(bias).name == "bool" else given)
        apart = _apart(q.shape[2], k.shape[2])
        if alibi_slopes is not None:
            scores = scores - arrays.host(alibi_slopes)[:, None, None] * np.abs(apart)
        before, after = _reach(window)
        seen = (apart >= -before) & (apart <= (0 if causal else after))
        scores = np.where(seen, scores, -np.inf)
        top = scores.max(3, keepdims=True, initial=-np.inf)
        powers = np.exp(scores - np.where(top == -np.inf, 0.0, top))
        sums = powers.sum(3, keepdims=True)
        found = by_layout(powers @ v / np.where(sums == 0, 1.0, sums), layout)
        with np.errstate(divide="ignore"):
            return (found, (top + np.log(sums))[..., 0]) if return_lse else found

    def explain(self) -> Any:
        """Return what the last forward kernel ran: backend, schedule, emulations.

        Raises:
            CallError: `never-run` before the first call.
        """
        return kernels.forward.explain()

    def compile(
        self,
        head_dim: int,
        dtype: DType = bf16,
        *,
        value_dim: int | None = None,
        causal: bool = False,
        window: bool = False,
        softcap: bool = False,
        bias: DType | None = None,
        target: str | None = None,
        dump: Sequence[str] = (),
    ) -> Artifact:
        """Return the forward kernel for a head size; needs no device.

        Args:
            head_dim: elements of a head of queries and keys.
            dtype: of queries, keys and values.
            value_dim: elements of a head of values; by default `head_dim`.
            causal: as in a call.
            window: whether there is a window.
            softcap: whether there is a cap.
            bias: dtype of a bias, None for none.
            target: as for `ts.compile`.
            dump: as for `ts.compile`.
        """
        wide = head_dim if value_dim is None else value_dim
        acc = rows.accumulator(dtype)
        given: dict[str, Any] = {"slopes": None, "causal": causal, "windowed": window, "caps": softcap, "acc": acc}
        given |= {"bias": None} if bias is None else {"U": bias}
        given |= {"empties": window or bias is not None, "T": dtype, "S": acc}
        given["plain"] = bias is None and not softcap
        sizes = {"B": 4, "H": 16, "G": 16, "M": 4096, "N": 4096, "D": head_dim, "E": wide}
        given |= Blocks(target_record(target), dtype, (head_dim, wide)).forward()
        return compiled(kernels.forward, target, dump, sizes, **given)

    @staticmethod
    def flops(
        q: Sequence[int], k: Sequence[int], v: Sequence[int], causal: bool = False, gradient: bool = False
    ) -> int:
        """Return the operations of the products of a call with arrays of such shapes `(B, H, S, D)`.

        Half as many count under `causal`; with gradients there are two and a half times as many more.
        """
        whole = 2 * prod(q[:3]) * k[2] * (q[3] + v[3])
        whole = whole // 2 if causal else whole
        return whole * 7 // 2 if gradient else whole

    @staticmethod
    def bytes(q: Sequence[int], k: Sequence[int], v: Sequence[int], dtype: DType) -> int:
        """Return the bytes of queries, keys, values and result, each once."""
        return (prod(q) + prod(k) + prod(v) + prod(q[:3]) * v[3]) * dtype.bytes


def by_layout(array: Any, layout: str) -> Any:
    """Return an array with heads before places.

    Raises:
        CallError: `bad-argument` for arrays whose dimensions cannot change places.
    """
    if layout == "bhsd":
        return array
    if not hasattr(array, "swapaxes"):
        raise refused("layout is 'bshd' of an array on a device", "bad-argument", "NumPy and PyTorch have it")
    return array.swapaxes(1, 2)


def _apart(queries: int, keys: int) -> Any:
    """Return how far keys are behind the places of queries."""
    return np.arange(keys) - (np.arange(queries)[:, None] + (keys - queries))


def first_two_turned(shape: Sequence[Any], layout: str) -> Sequence[Any]:
    """Return the shape in a layout of what has heads before places, or the other way round."""
    return shape if layout == "bhsd" else (shape[0], shape[2], shape[1], shape[3])


def _reach(window: Window | None) -> tuple[int, int]:
    """Return how far a window reaches before and after a place.

    Raises:
        CallError: `bad-argument`.
    """
    if window is None:
        return FAR, FAR
    if not isinstance(cast("Any", window), tuple | list) or len(window) != 2:
        raise refused(f"window is {window!r:.60}", "bad-argument", "it is (before, after), each a number or None")
    before, after = (FAR if one is None else min(index(one), FAR) for one in window)
    if before < 0 or after < 0:
        raise refused(f"window is {window!r:.60}", "bad-argument", "its numbers are not negative")
    return before, after


def operands(q: Any, k: Any, v: Any, layout: str) -> tuple[Any, Any, Any]:
    """Return queries, keys and values that go together, heads before places.

    Raises:
        CallError: `not-an-array`, `wrong-rank`, `wrong-shape`, `wrong-dtype` or `bad-argument`.
    """
    if layout not in ("bhsd", "bshd"):
        raise refused(f"layout is {layout!r:.60}", "bad-argument", "'bhsd' or 'bshd'")
    for name, one in (("q", q), ("k", k), ("v", v)):
        if len(arrays.shape_of(one, name)) != 4:
            raise refused(
                f"{name} has the shape {tuple(arrays.shape_of(one, name))}", "wrong-rank", "it has four dimensions"
            )
        if name != "q":
            rows.same_dtype(one, name, q, "q")
    q, k, v = (by_layout(one, layout) for one in (q, k, v))
    batch, heads, _, size = q.shape
    if 0 in (size, v.shape[3]):
        raise refused(f"heads have {size} and {v.shape[3]} elements", "wrong-shape", "each has at least one")
    rows.same_shape(k, "k", (batch, k.shape[1], k.shape[2], size))
    rows.same_shape(v, "v", (batch, k.shape[1], k.shape[2], v.shape[3]))
    if k.shape[1] == 0 or heads % k.shape[1]:
        raise refused(f"q has {heads} heads, k {k.shape[1]}", "wrong-shape", "heads of k divide those of q")
    return q, k, v


def _arguments(
    q: Any,
    k: Any,
    v: Any,
    causal: bool,
    scale: float | None,
    window: Window | None,
    softcap: float | None,
    bias: Any,
    slopes: Any,
    layout: str,
) -> tuple[Any, ...]:
    """Return what the steps are called with.

    Raises:
        CallError: as for the call.
    """
    rows.float_dtype(q, "q")
    q, k, v = operands(q, k, v, layout)
    batch, heads, places, size = q.shape
    if softcap is not None and not (softcap > 0 and isfinite(softcap)):
        raise refused(f"softcap is {softcap}", "bad-argument", "it is positive, or None")
    if bias is not None:
        bias = _whole(bias, (batch, heads, places, k.shape[2]), q)
    if slopes is not None:
        if needs_gradient((slopes,)):
            raise refused("alibi_slopes have no gradients", "no-gradient", "detach them")
        rows.same_shape(slopes, "alibi_slopes", (heads,))
        if arrays.dtype_of(slopes, "alibi_slopes") != accumulator(q):
            raise refused(
                f"alibi_slopes has the dtype {arrays.dtype_of(slopes)}", "wrong-dtype", f"it takes {accumulator(q)}"
            )
    factor = float(size) ** -0.5 if scale is None else float(scale)
    return q, k, v, bias, slopes, factor, float(softcap or 0.0), *_reach(window), bool(causal)


def _whole(bias: Any, shape: tuple[Any, ...], q: Any) -> Any:
    """Return a bias with all dimensions, those that it has not by strides of 0; of bool as numbers of the dtype of `q`.

    Raises:
        CallError: `not-an-array`, `wrong-dtype` or `wrong-shape`.
    """
    is_mask = arrays.dtype_of(bias, "bias").name == "bool"
    if not is_mask:
        rows.float_dtype(bias, "bias")
    found = tuple(arrays.shape_of(bias, "bias"))
    if len(found) > 4 or any(one not in (1, other) for one, other in zip(found[::-1], shape[::-1], strict=False)):
        raise refused(
            f"bias has the shape {found}, scores {tuple(shape)}", "wrong-shape", "it broadcasts to that of scores"
        )
    if found == tuple(shape) and not is_mask:
        return bias
    if not (arrays.is_torch(bias) or isinstance(cast("object", bias), np.ndarray)):
        raise refused("a bias on a device is of bool, or to be repeated", "wrong-shape", "give all of its elements")
    if is_mask and arrays.is_torch(bias):
        bias = bias.new_zeros(bias.shape, dtype=q.dtype).masked_fill(~bias, -inf)
    elif is_mask:
        bias = np.where(bias, 0.0, -inf).astype(arrays.dtype_of(q).numpy())
    return bias.expand(shape) if arrays.is_torch(bias) else np.broadcast_to(bias, shape)


def _summed(found: Any, shape: Sequence[int]) -> Any:
    """Return the gradient of what was repeated."""
    if arrays.is_torch(found):
        return found.sum_to_size(tuple(shape))
    whole = (1,) * (4 - len(shape)) + tuple(shape)
    axes = tuple(axis for axis, size in enumerate(whole) if size == 1)
    return found.sum(axes, dtype=accumulator(found).numpy()).astype(found.dtype).reshape(shape)


flash_attention = FlashAttention()
"""Attention; see `FlashAttention.__call__`."""
