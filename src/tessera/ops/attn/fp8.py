"""Attention whose products are of 8-bit numbers."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, prod
from numbers import Real
from typing import Any, Literal

from tessera.driver.compile import compile as compiled
from tessera.driver.compile import target_record
from tessera.numerics.dtypes import DType, bf16, fp8_e4m3
from tessera.ops import arrays, axes, rows
from tessera.ops.attn import fp8_kernels as kernels
from tessera.ops.attn.flash import Layout, by_layout, first_two_turned, flash_attention, operands
from tessera.ops.attn.fp8_steps import CODES, FORWARD, blocks_of, factor, forward_constants, is_rounded, padded
from tessera.ops.operation import library_op
from tessera.ops.refusals import checked, refused
from tessera.ops.steps import needs_gradient
from tessera.target.artifact import Artifact

Scale = Literal["amax_dynamic", "block"]
_WIDEST_HEAD = 256
_HEADS = 16
"""What the elements of a head are a multiple of."""


@library_op
class FlashAttentionFp8:
    """Attention in 8 bits; `__call__` says what it takes."""

    @checked
    def __call__(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        scale: Scale = "amax_dynamic",
        softmax_scale: float | None = None,
        causal: bool = False,
        q_scale: Any = None,
        k_scale: Any = None,
        v_scale: Any = None,
        dtype: object = None,
        hadamard: bool = False,
        return_lse: bool = False,
        layout: Layout = "bhsd",
        out: Any = None,
    ) -> Any:
        """Return `softmax(q·kᵀ·softmax_scale)·v` of each head, with both products of 8-bit numbers.

        Args:
            q: queries `(B, H, S, D)`, or `(B, S, H, D)` by `layout`; f32, bf16 or f16, which are rounded to e4m3 here,
                or fp8_e4m3 or fp8_e5m2. `D` is a multiple of 16, 256 at most.
            k: keys `(B, G, N, D)` of the dtype of `q`; `G` divides `H`, and neighbouring heads share keys and values.
            v: values `(B, G, N, E)` of the dtype of `q`; `E` as `D`.
            scale: how numbers are scaled before they are rounded: `"amax_dynamic"`, by the largest magnitude of a head;
                `"block"`, queries and keys by those of 128 rows, values by that of a head.
            softmax_scale: of products, positive; by default `D ** -0.5`.
            causal: whether a query sees no key after its place; the last query has the place of the last key.
            q_scale: of 8-bit queries: what they are multiplied by, a positive number or `(B, H)` in f32; by default 1.
            k_scale: of 8-bit keys: a positive number or `(B, G)` in f32.
            v_scale: of 8-bit values: a number or `(B, G)` in f32.
            dtype: of the result: f32, bf16 or f16; by default that of `q`, bf16 for 8-bit numbers.
            hadamard: whether queries and keys are multiplied by random signs and a Hadamard matrix before they are
                rounded, which leaves their products and spreads outliers over a head; `D` is a power of two then.
            return_lse: whether the logarithms of the sums of powers are returned too.
            layout: order of the dimensions of queries, keys, values and result.
            out: array for the result.

        Returns:
            `(B, H, S, E)`, or `(B, S, H, E)`; zeros for a query that sees no key. With `return_lse` also `(B, H, S)` in
            f32, -inf for those. There is no gradient.

        Raises:
            CallError: `not-an-array`, `wrong-rank`, `wrong-shape`, `wrong-dtype`, `bad-argument`, `no-gradient` for
                tensors that need one, or `out-needs-no-gradient`.

        Numerics:
            Numbers are rounded to three bits of mantissa. Scores and sums are in f32; weights are rounded to e4m3, with
            a factor of 2**8, for the product with values alone. Results of normally distributed numbers are off by
            about 5 % of their root mean square. The GPU's products of 8-bit numbers may keep fewer bits of their sums
            than f32 has. NaN or an infinity makes NaN of all that has its scale.

        Source: Shah et al., FlashAttention-3: fast and accurate attention with asynchrony and low-precision, 2024.
        """
        given = _arguments(q, k, v, scale, softmax_scale, causal, (q_scale, k_scale, v_scale), dtype, hadamard, layout)
        if out is not None:
            shape = tuple(first_two_turned(given[0].shape, layout))
            rows.checked_out(out, (*shape[:3], given[2].shape[3]), _result_dtype(q, dtype), q, k, v)
            rows.apart(out, q=q, k=k, v=v)
            results = by_layout(out, layout), FORWARD.results(*given)[1]
            FORWARD.into(results, *given)
        else:
            results = FORWARD(*given)
        found = by_layout(results[0], layout) if out is None else out
        return (found, results[1]) if return_lse else found

    def reference(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        softmax_scale: float | None = None,
        causal: bool = False,
        q_scale: Any = 1.0,
        k_scale: Any = 1.0,
        v_scale: Any = 1.0,
        return_lse: bool = False,
        layout: Layout = "bhsd",
    ) -> Any:
        """Return the exact result in NumPy and float64, in which nothing is rounded."""
        wide = [by_layout(arrays.host(one), layout) for one in (q, k, v)]
        factors = [arrays.host(one) for one in (q_scale, k_scale, v_scale)]
        ours = [one * (by[..., None, None] if by.ndim else by) for one, by in zip(wide, factors, strict=True)]
        found = flash_attention.reference(*ours, causal=causal, scale=softmax_scale, return_lse=return_lse)
        return (by_layout(found[0], layout), found[1]) if return_lse else by_layout(found, layout)

    def explain(self) -> Any:
        """Return what the last forward kernel ran: backend, schedule, emulations.

        Raises:
            CallError: `never-run` before the first call.
        """
        return kernels.forward.explain()

    def compile(
        self,
        head_dim: int,
        dtype: DType = fp8_e4m3,
        *,
        value_dim: int | None = None,
        causal: bool = False,
        scale: Scale = "amax_dynamic",
        out_dtype: DType = bf16,
        target: str | None = None,
        dump: Sequence[str] = (),
    ) -> Artifact:
        """Return the kernel of the products for a head size; needs no device.

        Args:
            head_dim: elements of a head of queries and keys.
            dtype: of rounded queries, keys and values.
            value_dim: elements of a head of values; by default `head_dim`.
            causal: as in a call.
            scale: as in a call.
            out_dtype: dtype of the result.
            target: as for `ts.compile`.
            dump: as for `ts.compile`.
        """
        wide = head_dim if value_dim is None else value_dim
        sizes = {"B": 4, "H": 16, "G": 16, "M": 4096, "N": 4096, "D": head_dim, "E": wide, "L": padded(4096)}
        given: dict[str, Any] = {"causal": causal, "block": scale == "block", "empties": False}
        sides = (4096, 4096), (64, 64), causal, scale == "block"
        blocks = blocks_of(target_record(target), dtype, (head_dim, wide), *sides)
        given |= {"C": dtype, "O": out_dtype} | forward_constants(blocks)
        return compiled(kernels.forward, target, dump, sizes, **given)

    @staticmethod
    def flops(q: Sequence[int], k: Sequence[int], v: Sequence[int], causal: bool = False) -> int:
        """Return the operations of the products of a call with arrays of such shapes `(B, H, S, D)`.

        Half as many count under `causal`.
        """
        return flash_attention.flops(q, k, v, causal)

    @staticmethod
    def bytes(q: Sequence[int], k: Sequence[int], v: Sequence[int], dtype: DType, out_dtype: DType = bf16) -> int:
        """Return the bytes of queries, keys, values and result, each once."""
        return (prod(q) + prod(k) + prod(v)) * dtype.bytes + prod(q[:3]) * v[3] * out_dtype.bytes


def _result_dtype(q: Any, dtype: object) -> DType:
    """Return the dtype of a result.

    Raises:
        CallError: `wrong-dtype`.
    """
    found = axes.dtype_asked(dtype, bf16 if is_rounded(q) else arrays.dtype_of(q))
    if found.name == "f64":
        raise refused("dtype is f64", "wrong-dtype", "it takes f32, bf16, f16")
    return found


def _arguments(
    q: Any,
    k: Any,
    v: Any,
    scale: str,
    softmax_scale: float | None,
    causal: bool,
    scales: tuple[Any, Any, Any],
    dtype: object,
    hadamard: bool,
    layout: str,
) -> tuple[Any, ...]:
    """Return what the step is called with.

    Raises:
        CallError: as for the call.
    """
    found = arrays.dtype_of(q, "q").name
    if found not in ("f32", "bf16", "f16", *CODES):
        raise refused(f"argument 'q' has the dtype {found}", "wrong-dtype", "it takes f32, bf16, f16, fp8")
    q, k, v = operands(q, k, v, layout)
    if needs_gradient((q, k, v, *scales)):
        raise refused("attention in 8 bits has no gradient", "no-gradient", "call it under torch.no_grad()")
    for size in (q.shape[3], v.shape[3]):
        if size % _HEADS or size > _WIDEST_HEAD:
            raise refused(f"heads have {size} elements", "wrong-shape", "a multiple of 16, 256 at most; pad with zeros")
    if scale not in ("amax_dynamic", "block"):
        raise refused(f"scale is {scale!r:.60}", "bad-argument", "'amax_dynamic' or 'block'")
    factor_of = float(q.shape[3]) ** -0.5 if softmax_scale is None else float(softmax_scale)
    if not (factor_of > 0 and isfinite(factor_of)):
        raise refused(f"softmax_scale is {softmax_scale}", "bad-argument", "it is positive")
    given = _scales(q, k, v, scales) if found in CODES else (None, None, None)
    if found in CODES and (hadamard or scale == "block"):
        raise refused("q is rounded already", "bad-argument", "scale and hadamard are for f32, bf16 and f16")
    if found not in CODES and any(one is not None for one in scales):
        raise refused(f"scales of numbers in {found}", "bad-argument", "they are for 8-bit arguments")
    if hadamard and q.shape[3] & (q.shape[3] - 1):
        raise refused(f"heads have {q.shape[3]} elements", "wrong-shape", "a power of two for hadamard")
    return q, k, v, *given, factor_of, bool(causal), scale == "block", bool(hadamard), _result_dtype(q, dtype).name


def _scales(q: Any, k: Any, v: Any, scales: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    """Return scales of 8-bit arguments as arrays.

    Raises:
        CallError: `not-an-array`, `wrong-shape`, `wrong-dtype` or `bad-argument`.
    """
    found: list[Any] = []
    for name, array, given in zip("qkv", (q, k, v), scales, strict=True):
        shape = tuple(array.shape[:2])
        wanted = shape if name == "v" else (*shape, 1)
        if given is None or isinstance(given, Real):
            number = 1.0 if given is None else float(given)
            if not isfinite(number) or (number <= 0 and name != "v"):
                raise refused(f"{name}_scale is {given}", "bad-argument", "it is positive")
            found.append(factor(number, array, wanted))
            continue
        rows.same_shape(given, f"{name}_scale", shape)
        if arrays.dtype_of(given, f"{name}_scale").name != "f32":
            raise refused(f"{name}_scale has the dtype {arrays.dtype_of(given)}", "wrong-dtype", "it takes f32")
        found.append(given.reshape(wanted))
    return found[0], found[1], found[2]


flash_attention_fp8 = FlashAttentionFp8()
"""Attention in 8 bits; see `FlashAttentionFp8.__call__`."""
