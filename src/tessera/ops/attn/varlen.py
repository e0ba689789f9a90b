"""Attention over sequences of several lengths that are packed one behind the other."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any, Unpack

import numpy as np

from tessera.ops import arrays, rows
from tessera.ops.attn import flash_kernels as kernels
from tessera.ops.attn.drops import SQUARE
from tessera.ops.attn.flash import arguments, exact, flash_attention
from tessera.ops.attn.flash_steps import FORWARD, Call, gradients_of
from tessera.ops.attn.scores import Options, Scores, Window
from tessera.ops.operation import library_op
from tessera.ops.refusals import checked, refused


@library_op
class FlashAttentionVarlen:
    """Attention over packed sequences; `__call__` says what it takes."""

    @checked
    def __call__(
        self,
        q: Any,
        k: Any,
        v: Any,
        cu_seqlens_q: Any,
        cu_seqlens_k: Any = None,
        *,
        max_seqlen_q: int | None = None,
        max_seqlen_k: int | None = None,
        causal: bool = False,
        scale: float | None = None,
        window: Window | None = None,
        softcap: float | None = None,
        alibi_slopes: Any = None,
        sinks: Any = None,
        score_mod: Any = None,
        mask_mod: Any = None,
        dropout_p: float = 0.0,
        seed: Any = None,
        return_lse: bool = False,
    ) -> Any:
        """Return the attention of each sequence to itself, or to the keys that belong to it.

            cu_seqlens = torch.tensor([0, 700, 708, 2048], dtype=torch.int32, device="cuda")
            op.flash_attention_varlen(q, k, v, cu_seqlens, max_seqlen_q=1340, causal=True)

        Sequence `i` has the queries from `cu_seqlens_q[i]` to `cu_seqlens_q[i + 1]`, and keys alike; one may be empty.

        Args:
            q: queries `(T, H, D)`; f64, f32, bf16 or f16.
            k: keys `(U, G, D)` of the dtype of `q`; `G` divides `H`.
            v: values `(U, G, E)` of the dtype of `q`.
            cu_seqlens_q: i32 `(Z + 1,)` on the device of `q`, not decreasing, from 0 to T. Read on the device.
            cu_seqlens_k: the same of keys, from 0 to U; by default that of queries.
            max_seqlen_q: at least the queries of the longest sequence, known without asking the device; by default T.
                Less is wrong, more costs a little.
            max_seqlen_k: the same of keys; by default that of queries where these are one, else U.
            causal: whether a query sees no key after its place; the last query of a sequence has the place of its last
                key.
            scale: as for `op.flash_attention`, like all that follow.
            window: keys `(before, after)` its place that a query sees at most.
            softcap: scores are `softcap * tanh(score / softcap)`.
            alibi_slopes: `(H,)`.
            sinks: `(H,)`.
            score_mod: the function's `b` is the number of the sequence, its `q` and `k` count from its begin.
            mask_mod: likewise; not a list of blocks.
            dropout_p: probability with which weights are left out.
            seed: of dropout. A weight's fate depends also on where its sequence begins.
            return_lse: whether the logarithms of the sums of powers are returned too.

        Returns:
            `(T, H, E)` of the dtype of `q`, with `return_lse` also `(H, T)` in f32 (f64). PyTorch tensors that need
            gradients have them.

        Raises:
            CallError: as for `op.flash_attention`.

        Numerics:
            As `op.flash_attention`. A block of a sequence's last keys holds the next one's first, with weights of 0:
            what is infinite or NaN in one may reach the sequence before it as NaN.

        Source: Dao, FlashAttention-2, 2023 (variable lengths).
        """
        scores = Scores(
            *(causal, scale, window, softcap, None, alibi_slopes, sinks, score_mod, mask_mod, dropout_p, seed)
        )
        call = _packed(q, k, v, (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k), scores)
        out, lse = FORWARD(*call)
        found = out[0].swapaxes(0, 1)
        return (found, lse[0]) if return_lse else found

    def backward(
        self,
        grad: Any,
        q: Any,
        k: Any,
        v: Any,
        cu_seqlens_q: Any,
        cu_seqlens_k: Any = None,
        *,
        max_seqlen_q: int | None = None,
        max_seqlen_k: int | None = None,
        **options: Unpack[Options],
    ) -> dict[str, Any]:
        """Return the gradients of a call: `{"q": …, "k": …, "v": …}`, and `"sinks"` where there are any.

        Args:
            grad: gradient of the result.
            q: as in the call, like all that follow.
            k: as in the call.
            v: as in the call.
            cu_seqlens_q: as in the call.
            cu_seqlens_k: as in the call.
            max_seqlen_q: as in the call.
            max_seqlen_k: as in the call.
            **options: `causal`, `scale`, `window`, `softcap`, `alibi_slopes`, `sinks`, `score_mod`, `mask_mod`,
                `dropout_p` and `seed`.

        Raises:
            CallError: as for the call.
        """
        call = _packed(q, k, v, (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k), Scores(**options))
        results = FORWARD.fresh(*call)
        turned = _one_row(grad, "grad")
        rows.same_shape(turned, "grad", results[0].shape)
        rows.same_dtype(grad, "grad", q, "q")
        found = gradients_of(call, turned, results)
        made = {name: found[name][0].swapaxes(0, 1) for name in "qkv"}
        return made if call.sinks is None else {**made, "sinks": found["sinks"]}

    def reference(
        self, q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any = None, **options: Unpack[Options]
    ) -> Any:
        """Return the exact result in NumPy and float64; functions are of NumPy arrays, their `b` is 0."""
        starts = arrays.host(cu_seqlens_q).astype(int)
        others = starts if cu_seqlens_k is None else arrays.host(cu_seqlens_k).astype(int)
        q, k, v = map(arrays.host, (q, k, v))
        made = np.zeros((*q.shape[:2], v.shape[2]))
        count = len(starts) - 1
        squares = -(-q.shape[0] // SQUARE) + count
        for z, a, b, c, d in zip(range(count), starts, starts[1:], others, others[1:], strict=False):
            one = [x[None].swapaxes(1, 2) for x in (q[a:b], k[c:d], v[c:d])]
            packed = int(a) // SQUARE + z, squares
            made[a:b] = exact(one[0], one[1], one[2], Scores(**options), packed)[0][0].swapaxes(0, 1)
        return made

    def explain(self) -> Any:
        """Return what the last forward kernel ran, `op.flash_attention`'s too: backend, schedule, emulations.

        Raises:
            CallError: `never-run` before the first call.
        """
        return kernels.forward.explain()

    @staticmethod
    def flops(lengths: Sequence[int], heads: int, head_dim: int, causal: bool = False, gradient: bool = False) -> int:
        """Return the operations of the products of sequences of some lengths, as `op.flash_attention.flops` counts."""
        shapes = [(1, heads, length, head_dim) for length in lengths]
        return sum(flash_attention.flops(one, one, one, causal, gradient) for one in shapes)


def _one_row(array: Any, name: str) -> Any:
    """Return packed rows `(T, H, D)` as one row of a batch, `(1, H, T, D)`.

    Raises:
        CallError: `not-an-array`, `wrong-rank`, or `bad-argument` for arrays whose dimensions cannot change places.
    """
    shape = tuple(arrays.shape_of(array, name))
    if len(shape) != 3:
        raise refused(f"{name} has the shape {shape}", "wrong-rank", "packed sequences are (rows, heads, elements)")
    if not hasattr(array, "swapaxes"):
        raise refused(f"{name} is an array on a device", "bad-argument", "NumPy and PyTorch have packed sequences")
    return array.swapaxes(0, 1)[None]


def _packed(
    q: Any, k: Any, v: Any, starts: tuple[Any, Any], most: tuple[int | None, int | None], scores: Scores
) -> Call:
    """Return what the steps are called with.

    Raises:
        CallError: as for the call.
    """
    ours, theirs = starts[0], starts[0] if starts[1] is None else starts[1]
    for name, one in (("cu_seqlens_q", ours), ("cu_seqlens_k", theirs)):
        if len(arrays.shape_of(one, name)) != 1 or one.shape[0] < 1 or one.shape[0] != ours.shape[0]:
            raise refused(
                f"{name} has the shape {tuple(one.shape)}", "wrong-shape", "both have one element more than sequences"
            )
        if arrays.dtype_of(one, name).name != "i32":
            raise refused(f"{name} has the dtype {arrays.dtype_of(one, name)}", "wrong-dtype", "it takes i32")
    of_q, of_k, of_v = (_one_row(one, name) for name, one in (("q", q), ("k", k), ("v", v)))
    if hasattr(scores.mask_mod, "kinds"):
        raise refused("mask_mod is a list of blocks", "bad-argument", "packed sequences take its function")
    longest = q.shape[0] if most[0] is None else index(most[0])
    others = most[1] if most[1] is not None else longest if theirs is ours else k.shape[0]
    if longest < 0 or index(others) < 0:
        raise refused(f"max_seqlen_q is {longest}, max_seqlen_k {others}", "bad-argument", "lengths are not negative")
    return arguments(of_q, of_k, of_v, "bhsd", scores, (ours, theirs), (longest, index(others)))


flash_attention_varlen = FlashAttentionVarlen()
