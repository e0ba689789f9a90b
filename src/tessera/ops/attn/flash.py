"""Attention whose scores are never all in memory."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod
from typing import Any, Literal, Unpack, cast

import numpy as np

from tessera.driver.compile import compile as compiled
from tessera.driver.compile import target_record
from tessera.numerics.dtypes import DType, bf16
from tessera.ops import arrays, rows
from tessera.ops import epilogue as epi
from tessera.ops.attn import flash_kernels as kernels
from tessera.ops.attn.drops import BY_NUMBER, factors
from tessera.ops.attn.flash_steps import FORWARD, Blocks, Call, compute, gradients_of
from tessera.ops.attn.mods import NAMES
from tessera.ops.attn.rope import exactly_turned, turned_by
from tessera.ops.attn.scores import Options, Scores, exact_scores
from tessera.ops.epilogue.chain import is_number
from tessera.ops.operation import library_op
from tessera.ops.refusals import checked, refused
from tessera.ops.steps import check_not_traced, needs_gradient, written
from tessera.ops.traced import Traced
from tessera.target.artifact import Artifact

Layout = Literal["bhsd", "bshd"]


@library_op
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
        window: tuple[int | None, int | None] | None = None,
        softcap: float | None = None,
        bias: Any = None,
        alibi_slopes: Any = None,
        sinks: Any = None,
        score_mod: Any = None,
        mask_mod: Any = None,
        dropout_p: float = 0.0,
        seed: Any = None,
        rope: Any = None,
        rope_interleaved: bool = False,
        epilogue: epi.Epilogue | None = None,
        return_lse: bool = False,
        layout: Layout = "bhsd",
        out: Any = None,
    ) -> Any:
        """Return `softmax(q·kᵀ·scale + bias)·v` of each head.

            @ts.function
            def prefix(b, h, q, k, lengths):
                return (k <= q) | (k < lengths[b])

            op.flash_attention(q, k, v, mask_mod=op.attn.mod(prefix, lengths))
            op.flash_attention(q, k, v, epilogue=op.epilogue.chain([op.epilogue.bias(b), op.epilogue.silu()]))

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
            sinks: `(H,)`, f32 (f64 for f64): a score of each head that takes part in the softmax and has no value.
            score_mod: a `@ts.function` of `(score, b, h, q, k)` that returns the score, or an `op.attn.mod` with the
                tensors that it reads. It comes after all else that changes scores, and is differentiated
                (`ts.tile.jvp`).
            mask_mod: a `@ts.function` of `(b, h, q, k)` that returns whether query `q` sees key `k`, an `op.attn.mod`,
                or an `op.attn.block_mask`, by which blocks that no query sees are left out. `q` and `k` count from 0,
                whatever their numbers are: without `causal` nothing is aligned.
            dropout_p: probability, from 0 to 1, with which a weight of the softmax is left out; the others are divided
                by that of being kept.
            seed: of dropout, given where there is any: an integer, or an i64 array of one element that is read on the
                device. A weight's fate depends on it, on its batch, head, query and key, and on how many heads and
                queries there are.
            rope: tables `(cos, sin)`, each `(N, rotary_dim / 2)` or `(B, N, rotary_dim / 2)`, f32 or f64, without a
                gradient: keys, and queries by the last S places, are turned by them as `op.attn.rope` turns them.
            rope_interleaved: whether elements `2 j` and `2 j + 1` are a pair, else `j` and `j + rotary_dim / 2`.
            epilogue: `op.epilogue.chain([...])`, applied to results in registers, without a gradient. The result of a
                head is a matrix `(S, E)`, and heads are a batch of `B * H`: `bias(b)` takes `(E,)` or `(B * H, E)`. It
                sees zeros for a query that sees no key.
            return_lse: whether the logarithms of the sums of powers are returned too.
            layout: order of the dimensions of queries, keys, values and result.
            out: array for the result.

        Returns:
            `(B, H, S, E)`, or `(B, S, H, E)`, of the dtype of `q`; zeros for a query that sees no key. With
            `return_lse` also `(B, H, S)` in f32 (f64), -inf for those. PyTorch tensors that need gradients have them,
            the bias too.

        Raises:
            CallError: `not-an-array`, `wrong-rank`, `wrong-shape`, `wrong-dtype`, `bad-argument`, `no-gradient` for
                slopes that need one and for any gradient through an epilogue, `not-in-graphs` for an epilogue in a
                traced function, `mixed-libraries`, or `out-needs-no-gradient`.
            LanguageError: what is wrong in a function, with its line; `no-derivative` in a gradient.

        Numerics:
            Scores, sums and results are computed in f32 (f64 for f64); weights are rounded to the dtype of `v` before
            they multiply it. `dropout_p` and `1 / (1 - dropout_p)` are rounded to f32, for f64 too; the same weights
            are left out on every machine.

        Source: Dao, FlashAttention-2: faster attention with better parallelism and work partitioning, 2023; Press et
        al., Train short, test long (ALiBi), 2022; Dong et al., Flex Attention, 2024; Salmon et al., Parallel random
        numbers: as easy as 1, 2, 3, 2011.
        """
        scores = Scores(
            *(causal, scale, window, softcap, bias, alibi_slopes, sinks, score_mod, mask_mod, dropout_p, seed)
        )
        if epilogue is not None:
            _check_epilogue(epilogue, (q, k, v, bias, sinks))
        turned = (q, k) if rope is None else turned_by(rope, q, k, layout, rope_interleaved)
        call = arguments(*turned, v, layout, scores)
        if out is not None:
            rows.checked_out(out, (*q.shape[:3], call.v.shape[3]), arrays.dtype_of(q), q, k, v, bias, sinks)
            read = {"k": k, "v": v, "bias": bias, "alibi_slopes": alibi_slopes, "sinks": sinks}
            if epilogue is not None:
                read |= {f"epilogue[{at}]": one for at, one in enumerate(epilogue.values) if not is_number(one)}
            rows.apart(out, **{name: one for name, one in read.items() if one is not None})
        found, lse = _computed(call, None if out is None else by_layout(out, layout), epilogue)
        result = by_layout(found, layout) if out is None else out
        return (result, lse) if return_lse else result

    def backward(
        self,
        grad: Any,
        q: Any,
        k: Any,
        v: Any,
        *,
        rope: Any = None,
        rope_interleaved: bool = False,
        layout: Layout = "bhsd",
        **options: Unpack[Options],
    ) -> dict[str, Any]:
        """Return the gradients of a call: `{"q": …, "k": …, "v": …}`, and `"bias"` and `"sinks"` where there are any.

        Args:
            grad: gradient of the result.
            q: as in the call, like all that follow.
            k: as in the call.
            v: as in the call.
            rope: as in the call; gradients are those of queries and keys before they are turned.
            rope_interleaved: as in the call.
            layout: as in the call.
            **options: `causal`, `scale`, `window`, `softcap`, `bias`, `alibi_slopes`, `sinks`, `score_mod`, `mask_mod`,
                `dropout_p` and `seed`, as in the call: the same weights are left out, no mask is kept.

        Raises:
            CallError: as for the call.
        """
        if rope is not None:
            q, k = turned_by(rope, q, k, layout, rope_interleaved)
        call = arguments(q, k, v, layout, Scores(**options))
        above = by_layout(grad, layout)
        results = FORWARD.fresh(*call)
        rows.same_shape(above, "grad", results[0].shape)
        rows.same_dtype(grad, "grad", q, "q")
        found = gradients_of(call, above, results)
        made = {name: by_layout(found[name], layout) for name in "qkv"}
        if rope is not None:
            made["q"], made["k"] = turned_by(rope, made["q"], made["k"], layout, rope_interleaved, back=True)
        bias = options.get("bias")
        if bias is not None:
            made["bias"] = _summed(found["bias"], arrays.shape_of(bias, "bias"))
        return made if call.sinks is None else {**made, "sinks": found["sinks"]}

    def reference(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        rope: Any = None,
        rope_interleaved: bool = False,
        epilogue: epi.Epilogue | None = None,
        return_lse: bool = False,
        layout: Layout = "bhsd",
        **options: Unpack[Options],
    ) -> Any:
        """Return the exact result in NumPy and float64.

        Args:
            q: as in the call, like all that follow.
            k: as in the call.
            v: as in the call.
            rope: as in the call.
            rope_interleaved: as in the call.
            epilogue: as in the call.
            return_lse: as in the call.
            layout: as in the call.
            **options: as for `backward`, but `score_mod` and `mask_mod` are Python functions of NumPy arrays.
        """
        q, k, v = (by_layout(arrays.host(one), layout) for one in (q, k, v))
        if rope is not None:
            cos, sin = cast("Sequence[Any]", rope)
            q, k = (exactly_turned(one, cos, sin, rope_interleaved) for one in (q, k))
        out, lse = exact(q, k, v, Scores(**options))
        if epilogue is not None:
            out = epilogue.reference(out.reshape(-1, *out.shape[2:])).reshape(out.shape)
        return (by_layout(out, layout), lse) if return_lse else by_layout(out, layout)

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
        dropout: bool = False,
        epilogue: epi.Epilogue | None = None,
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
            dropout: whether weights are left out, by a seed that is a number.
            epilogue: as in a call.
            target: as for `ts.compile`.
            dump: as for `ts.compile`.
        """
        wide = head_dim if value_dim is None else value_dim
        acc = rows.accumulator(dtype)
        given: dict[str, Any] = dict.fromkeys(("slopes", "sinks", "tiles", "partials", "counts", "blocks"), None)
        given |= {
            "mods": NAMES.mods_of("", (), BY_NUMBER if dropout else None, epilogue.layout if epilogue else None),
            "causal": causal,
            "windowed": window,
            "caps": softcap,
            "acc": acc,
        }
        given |= {"bias": None} if bias is None else {"U": bias}
        given |= {"empties": window or bias is not None, "T": dtype, "S": acc}
        given["plain"] = bias is None and not softcap
        sizes = {"B": 4, "H": 16, "G": 16, "M": 4096, "N": 4096, "D": head_dim, "E": wide}
        lengths, heads = (sizes["M"], sizes["N"]), (sizes["B"] * sizes["H"], sizes["B"] * sizes["G"])
        options = not (window or dropout), bias is not None, causal, softcap, dropout
        given |= Blocks(target_record(target), dtype, (head_dim, wide), lengths, heads, *options).forward()
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


def _computed(call: Call, out: Any, epilogue: epi.Epilogue | None) -> tuple[Any, ...]:
    """Return the result, in a given array where there is one, and the logarithms of the sums of powers."""
    if out is epilogue is None:
        return FORWARD(*call)
    made, lse = FORWARD.results(*call) if out is None else (out, FORWARD.results(*call)[1])
    if epilogue is None:
        FORWARD.into((made, lse), *call)
    else:
        compute((made, lse), call, epilogue)
        written(made, lse)
    return made, lse


def _check_epilogue(epilogue: epi.Epilogue, given: Sequence[Any]) -> None:
    """Check that an epilogue can be applied to results of attention.

    Raises:
        CallError: `bad-argument`, `no-gradient` or `not-in-graphs`.
    """
    if epilogue.needs_sizes or epilogue.reduces_columns:
        raise refused("the epilogue combines results", "bad-argument", "compute row_sum and its like from the result")
    if epilogue.out_dtype not in (None, arrays.dtype_of(given[0], "q")):
        raise refused(f"the epilogue casts to {epilogue.out_dtype}", "bad-argument", "results have the dtype of q")
    check_not_traced(*given, *epilogue.values)
    if needs_gradient((*given, *epilogue.values)):
        help = "apply the steps to the result of attention, or call it under torch.no_grad()"
        raise refused("an epilogue has no gradient", "no-gradient", help)


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


def exact(q: Any, k: Any, v: Any, given: Scores, packed: tuple[int, int] | None = None) -> tuple[Any, Any]:
    """Return the result and the logarithms of the sums of powers in NumPy and float64.

    Args:
        q: queries `(B, H, S, D)`.
        k: keys.
        v: values.
        given: what is done to scores.
        packed: where dropout's squares of a packed sequence are; see `factors`.
    """
    k, v = (np.repeat(one, q.shape[1] // one.shape[1], 1) for one in (k, v))
    products = q @ k.swapaxes(2, 3) * (q.shape[3] ** -0.5 if given.scale is None else given.scale)
    scores = exact_scores(products, given)
    top = scores.max(3, keepdims=True, initial=-np.inf)
    sinks = None if given.sinks is None else arrays.host(given.sinks)[:, None, None]
    if sinks is not None:
        top = np.maximum(top, sinks)
    base = np.where(top == -np.inf, 0.0, top)
    powers = np.exp(scores - base)
    sums = powers.sum(3, keepdims=True)
    if sinks is not None:
        sums = sums + np.exp(sinks - base)
    if given.dropout_p:
        powers = powers * factors(given.dropout_p, given.exact_seed, powers.shape, packed)
    with np.errstate(divide="ignore"):
        return powers @ v / np.where(sums == 0, 1.0, sums), (base + np.log(sums))[..., 0]


def first_two_turned(shape: Sequence[Any], layout: str) -> Sequence[Any]:
    """Return the shape in a layout of what has heads before places, or the other way round."""
    return shape if layout == "bhsd" else (shape[0], shape[2], shape[1], shape[3])


def operands(q: Any, k: Any, v: Any, layout: str) -> tuple[Any, Any, Any]:
    """Return queries, keys and values that go together, heads before places.

    Raises:
        CallError: `not-an-array`, `wrong-rank`, `wrong-shape`, `wrong-dtype` or `bad-argument`.
    """
    if layout not in ("bhsd", "bshd"):
        raise refused(f"layout is {layout!r:.60}", "bad-argument", "'bhsd' or 'bshd'")
    for name, one in (("q", q), ("k", k), ("v", v)):
        rows.check_rank(one, name, 4)
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


def arguments(
    q: Any,
    k: Any,
    v: Any,
    layout: str,
    scores: Scores,
    starts: tuple[Any, Any] = (None, None),
    most: tuple[int, int] = (0, 0),
) -> Call:
    """Return what the steps are called with.

    Args:
        q: queries.
        k: keys.
        v: values.
        layout: order of their dimensions.
        scores: what is done to scores.
        starts: where packed sequences begin in queries and keys, or None twice.
        most: queries and keys of the longest ones.

    Raises:
        CallError: as for the call.
    """
    rows.float_dtype(q, "q")
    q, k, v = operands(q, k, v, layout)
    batch, heads, places, _ = q.shape
    bias = scores.bias
    if bias is not None:
        bias = _whole(bias, (batch, heads, places, k.shape[2]), q)
    return scores.of(q, k, v, bias, starts, most)


def _whole(bias: Any, shape: tuple[Any, ...], q: Any) -> Any:
    """Return a bias with all dimensions, those that it has not by strides of 0; of bool as numbers of the dtype of `q`.

    Raises:
        CallError: `not-an-array`, `wrong-dtype` or `wrong-shape`.
    """
    is_mask = arrays.dtype_of(bias, "bias").name == "bool"
    if not is_mask:
        rows.float_dtype(bias, "bias")
    found = tuple(arrays.shape_of(bias, "bias"))
    if len(found) > 4 or any(one not in (other, 1) for one, other in zip(found[::-1], shape[::-1], strict=False)):
        raise refused(
            f"bias has the shape {found}, scores {tuple(shape)}", "wrong-shape", "it broadcasts to that of scores"
        )
    if len(found) == len(shape) and found == shape and not is_mask:  # unlike dimensions may not be compared
        return bias
    if not (arrays.is_torch(bias) or isinstance(cast("object", bias), np.ndarray | Traced)):
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
    return found.sum(axes, dtype=rows.accumulator(arrays.dtype_of(found)).numpy()).astype(found.dtype).reshape(shape)


flash_attention = FlashAttention()
"""Attention; see `FlashAttention.__call__`."""
