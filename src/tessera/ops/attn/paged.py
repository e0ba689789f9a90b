"""Attention to keys and values in pages, as servers of models keep them."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, prod
from numbers import Real
from typing import Any

import numpy as np

from tessera.driver.compile import compile as compiled
from tessera.driver.compile import target_record
from tessera.numerics.dtypes import DType, bf16
from tessera.ops import arrays, rows
from tessera.ops.attn import paged_kernels as kernels
from tessera.ops.attn.flash import Layout, by_layout, flash_attention
from tessera.ops.attn.flash_steps import FAR, accumulator
from tessera.ops.attn.packed import lengths_between
from tessera.ops.attn.paged_steps import MERGE, PAGED, PagedCall, append, blocks_of
from tessera.ops.operation import library_op
from tessera.ops.refusals import checked, refused
from tessera.ops.steps import check_no_gradient, check_not_traced, needs_gradient, written
from tessera.runtime.arrays import asarray
from tessera.target.artifact import Artifact

PAGE_DTYPES = ("f32", "bf16", "f16", "fp8_e4m3", "fp8_e5m2")
_LEAST_PAGE = 8


@library_op
class PagedAttention:
    """Attention to pages; `__call__` says what it takes."""

    @checked
    def __call__(
        self,
        q: Any,
        k_pages: Any,
        v_pages: Any,
        page_table: Any,
        lengths: Any,
        *,
        causal: bool = True,
        scale: float | None = None,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Any = None,
        k_scale: Any = None,
        v_scale: Any = None,
        max_length: int | None = None,
        prefix_lengths: Any = None,
        prefix_groups: Any = None,
        return_lse: bool = False,
        layout: Layout = "bhsd",
    ) -> Any:
        """Return the attention of the last queries of sequences to all of their keys, which lie in pages.

        Position `i` of sequence `b` is in the page `page_table[b, i // slots]`, at `i % slots`. Keys are taken in parts
        by several programs, whose results are joined in one order: the number of parts follows from shapes, so that
        results are the same bits whenever shapes are the same.

        Args:
            q: queries `(B, H, S, D)`, or `(B, S, H, D)` by `layout`, the last S of each sequence; f32, bf16 or f16.
            k_pages: keys `(pages, slots, G, D)`; slots are a power of two from 8 on, G divides H. f32, bf16, f16 or
                float8 (e4m3, e5m2). Any strides: values may be a part of keys, as in latent attention
                (`v_pages = k_pages[..., :512]`).
            v_pages: values `(pages, slots, G, E)` of the dtype of `k_pages`.
            page_table: i32 `(B, most)`. A page that is not there reads as zeros.
            lengths: i32 `(B,)`: keys of each sequence. Read on the device.
            causal: whether a query sees no key after its place; the last query has the place of the last key.
            scale: of products; by default `D ** -0.5`.
            window: how many keys before its place a query sees at most, None for all.
            softcap: scores are `softcap * tanh(score / softcap)`.
            sinks: `(H,)`, f32: a score of each head that takes part in the softmax and has no value.
            k_scale: what keys are multiplied by: a number, or f32 `(G,)`.
            v_scale: the same of values.
            max_length: at least the longest of `lengths`, known without asking the device; by default what the page
                table has room for. Less is wrong; much more leaves parts idle.
            prefix_lengths: i32 `(B,)`, at most `lengths`: keys of each sequence that all of its group share. The pages
                that they fill are read once for the whole group, from the page table of its first sequence. Read on
                the device.
            prefix_groups: i32 `(C + 1,)`, increasing from 0 to B: group `c` has the sequences from `prefix_groups[c]`
                to `prefix_groups[c + 1]`. Given with `prefix_lengths`, and read on the device.
            return_lse: whether the logarithms of the sums of powers are returned too.
            layout: order of the dimensions of queries and result.

        Returns:
            `(B, H, S, E)`, or `(B, S, H, E)`, of the dtype of `q`; zeros for a query that sees no key. With
            `return_lse` also `(B, H, S)` in f32, -inf for those.

        Raises:
            CallError: `not-an-array`, `wrong-rank`, `wrong-shape`, `wrong-dtype`, `bad-argument`, or `no-gradient`
                where one is asked for.

        Numerics:
            As `op.flash_attention`; numbers of 8 bits are widened to the dtype of `q` before they are multiplied.

        Source: Kwon et al., Efficient memory management for large language model serving with PagedAttention, 2023;
        Dao et al., Flash-Decoding for long-context inference, 2023; Ye et al., Cascade inference, 2024.
        """
        queries = by_layout(q, layout)
        groups = _check_pages(queries, k_pages, v_pages, page_table, lengths)
        if needs_gradient((q, k_pages, v_pages, sinks, k_scale, v_scale)):
            raise refused("attention to pages has no gradients", "no-gradient", "call it under torch.no_grad()")
        if softcap is not None and not (softcap > 0 and isfinite(softcap)):
            raise refused(f"softcap is {softcap}", "bad-argument", "it is positive, or None")
        if window is not None and window < 0:
            raise refused(f"window is {window}", "bad-argument", "it is not negative, or None")
        if sinks is not None:
            rows.same_shape(sinks, "sinks", (queries.shape[1],))
            _check_f32(sinks, "sinks")
        _check_prefix(prefix_lengths, prefix_groups, queries)
        if max_length is not None and max_length < 0:
            raise refused(f"max_length is {max_length}", "bad-argument", "it is not negative, or None")
        room = int(page_table.shape[1]) * int(k_pages.shape[1])
        factor = float(queries.shape[3]) ** -0.5 if scale is None else float(scale)
        in_k, in_v = (_factors(one, name, groups, q) for one, name in ((k_scale, "k_scale"), (v_scale, "v_scale")))
        numbers = factor, float(softcap or 0.0), FAR if window is None else min(window, FAR), bool(causal)
        longest = room if max_length is None else min(max_length, room)
        pages = k_pages, v_pages, page_table, lengths, in_k, in_v
        call = PagedCall(queries, *pages, sinks, *numbers, max(longest, 0), prefix_lengths, prefix_groups)
        out, lse = PAGED(*call)
        return (by_layout(out, layout), lse) if return_lse else by_layout(out, layout)

    def reference(
        self,
        q: Any,
        k_pages: Any,
        v_pages: Any,
        page_table: Any,
        lengths: Any,
        *,
        causal: bool = True,
        scale: float | None = None,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Any = None,
        k_scale: Any = None,
        v_scale: Any = None,
    ) -> Any:
        """Return the exact result in NumPy and float64, for queries `(B, H, S, D)`."""
        q, table, counts = arrays.host(q), arrays.host(page_table).astype(int), arrays.host(lengths).astype(int)
        pages = [
            arrays.host(one)
            * np.reshape(1.0 if factor is None else arrays.host(factor) if arrays.is_torch(factor) else factor, (-1, 1))
            for one, factor in ((k_pages, k_scale), (v_pages, v_scale))
        ]
        made = np.zeros((*q.shape[:3], v_pages.shape[3]))
        for b, count in enumerate(counts):
            k, v = (_laid_out(one, table[b], count)[None] for one in pages)
            options: dict[str, Any] = {"causal": causal, "scale": scale, "softcap": softcap, "sinks": sinks}
            reach = None if window is None else (window, None)
            made[b : b + 1] = flash_attention.reference(q[b : b + 1], k, v, window=reach, **options)
        return made

    def explain(self) -> Any:
        """Return what the last call's kernel ran: backend, schedule, emulations.

        Raises:
            CallError: `never-run` before the first call.
        """
        return kernels.paged_parts.explain()

    def compile(
        self,
        head_dim: int,
        dtype: DType = bf16,
        *,
        value_dim: int | None = None,
        pages: DType | None = None,
        page: int = 64,
        target: str | None = None,
        dump: Sequence[str] = (),
    ) -> Artifact:
        """Return the kernel for a head size; needs no device.

        Args:
            head_dim: elements of a head of keys.
            dtype: of queries.
            value_dim: elements of a head of values; by default `head_dim`.
            pages: dtype of pages; by default that of queries.
            page: slots of a page.
            target: as for `ts.compile`.
            dump: as for `ts.compile`.
        """
        wide, acc = head_dim if value_dim is None else value_dim, rows.accumulator(dtype)
        given: dict[str, Any] = {"k_scale": None, "v_scale": None, "causal": False, "windowed": False, "caps": False}
        given |= {"plain": True, "acc": acc, "page": page, "T": dtype, "C": pages or dtype, "S": acc}
        given |= {"shared": None, "starts": None, "BB": 1}
        given |= blocks_of(target_record(target), (dtype, pages or dtype), 8, page, (head_dim, wide))
        sizes = {"D": head_dim, "E": wide, "SLOTS": page}
        return compiled(kernels.paged_parts, target, dump, sizes, **given)

    @staticmethod
    def flops(queries: Sequence[int], lengths: Sequence[int], value_dim: int) -> int:
        """Return the operations of the products of queries `(B, H, S, D)` with keys of such lengths."""
        return 2 * prod(queries[1:3]) * (queries[3] + value_dim) * sum(lengths)

    @staticmethod
    def bytes(lengths: Sequence[int], groups: int, head_dim: int, value_dim: int, dtype: DType) -> int:
        """Return the bytes of keys and values of such lengths, each once."""
        return sum(lengths) * groups * (head_dim + value_dim) * dtype.bytes


@checked
def append_kv(
    k: Any,
    v: Any,
    k_pages: Any,
    v_pages: Any,
    page_table: Any,
    lengths: Any,
    *,
    k_scale: Any = None,
    v_scale: Any = None,
) -> None:
    """Store the newest keys and values of sequences in their pages, in place.

    Args:
        k: keys `(B, S, G, D)`, for the positions from `lengths[b] - S` to `lengths[b] - 1`; f32, bf16 or f16.
        v: values `(B, S, G, E)` of the dtype of `k`.
        k_pages: as for `op.paged_attention`, like all that follow. Pages of 8 bits take the nearest number that they
            have, none infinite.
        v_pages: pages of values; where they begin where those of keys do, they are a part of these, and `v` is not
            stored.
        page_table: what a negative page stands for, and what is past its end, is not stored.
        lengths: keys of each sequence, with the new ones.
        k_scale: keys are divided by it.
        v_scale: values are divided by it.

    Raises:
        CallError: as for `op.paged_attention`.
    """
    for name, one in (("k", k), ("v", v)):
        rows.check_rank(one, name, 4)
    turned = by_layout(k, "bshd")
    groups = _check_pages(turned, k_pages, v_pages, page_table, lengths)
    rows.same_shape(k, "k", (k.shape[0], k.shape[1], groups, k.shape[3]))
    rows.same_shape(v, "v", (*k.shape[:3], v_pages.shape[3]))
    rows.same_dtype(v, "v", k, "k")
    check_no_gradient((k, v, k_pages, v_pages, k_scale, v_scale))
    check_not_traced(k, v, k_pages, v_pages)
    scales = [_factors(one, name, groups, k) for one, name in ((k_scale, "k_scale"), (v_scale, "v_scale"))]
    if 0 in k.shape:
        return
    same = arrays.start(k_pages, "k_pages") == arrays.start(v_pages, "v_pages")
    append(k, v, k_pages, v_pages, page_table, lengths, scales, same)
    written(k_pages, v_pages)


@checked
def merge(outs: Any, lses: Any) -> tuple[Any, Any]:
    """Return attention to all keys by that to several parts of them.

    A prefix that sequences share is attended once for all of their queries, and the rest by each sequence.

    Args:
        outs: results `(P, B, H, S, E)` of the parts.
        lses: the logarithms of their sums of powers, `(P, B, H, S)`, f32 (f64); -inf for a query that saw no key of it.

    Returns:
        Results `(B, H, S, E)` and logarithms `(B, H, S)`.

    Raises:
        CallError: `not-an-array`, `wrong-rank`, `wrong-shape`, `wrong-dtype`, or `no-gradient` where one is asked for.

    Source: Ye et al., FlashInfer, 2025 (composable formats).
    """
    shape = tuple(arrays.shape_of(outs, "outs"))
    if len(shape) != 5 or shape[0] < 1:
        raise refused(f"outs has the shape {shape}", "wrong-rank", "it is (parts, B, H, S, E), with a part at least")
    rows.same_shape(lses, "lses", shape[:4])
    rows.float_dtype(outs, "outs")
    if arrays.dtype_of(lses).name != accumulator(outs).name:
        raise refused(f"lses has the dtype {arrays.dtype_of(lses)}", "wrong-dtype", f"it takes {accumulator(outs)}")
    if needs_gradient((outs, lses)):
        raise refused("merged attention has no gradients", "no-gradient", "call it under torch.no_grad()")
    out, lse = MERGE(outs, lses)
    return out, lse


def _laid_out(pages: Any, table: Any, count: int) -> Any:
    """Return the keys or values of a sequence, heads first."""
    at = arrays.host(np.arange(count)).astype(int)
    return pages[table[at // pages.shape[1]], at % pages.shape[1]].swapaxes(0, 1)


def _check_pages(q: Any, k_pages: Any, v_pages: Any, table: Any, lengths: Any) -> int:
    """Check arrays that all calls take, and return how many groups of heads share keys.

    Raises:
        CallError: for what does not fit.
    """
    for name, one, rank in (("q", q, 4), ("k_pages", k_pages, 4), ("v_pages", v_pages, 4), ("page_table", table, 2)):
        rows.check_rank(one, name, rank)
    if rows.float_dtype(q, "q").name == "f64":
        raise refused("q has the dtype f64", "wrong-dtype", "it takes f32, bf16 or f16")
    found = arrays.dtype_of(k_pages, "k_pages")
    if found.name not in PAGE_DTYPES:
        raise refused(f"k_pages has the dtype {found}", "wrong-dtype", f"it takes {', '.join(PAGE_DTYPES)}")
    rows.same_dtype(v_pages, "v_pages", k_pages, "k_pages")
    batch, heads, _, size = q.shape
    pages, slots, groups, wide = k_pages.shape[0], k_pages.shape[1], k_pages.shape[2], v_pages.shape[3]
    if slots < _LEAST_PAGE or slots & (slots - 1):
        raise refused(f"pages have {slots} slots", "wrong-shape", f"a power of two, {_LEAST_PAGE} or more")
    rows.same_shape(k_pages, "k_pages", (pages, slots, groups, size))
    rows.same_shape(v_pages, "v_pages", (pages, slots, groups, wide))
    if groups == 0 or heads % groups or 0 in (size, wide):
        raise refused(f"q has {heads} heads, pages {groups}", "wrong-shape", "heads of pages divide those of q")
    rows.same_shape(table, "page_table", (batch, table.shape[1]))
    rows.same_shape(lengths, "lengths", (batch,))
    for name, one in (("page_table", table), ("lengths", lengths)):
        if arrays.dtype_of(one, name).name != "i32":
            raise refused(f"{name} has the dtype {arrays.dtype_of(one, name)}", "wrong-dtype", "it takes i32")
    return int(groups)


def _check_prefix(lengths: Any, groups: Any, q: Any) -> None:
    """Check what says which keys sequences share; where they are, only of arrays on the host.

    Raises:
        CallError: `bad-argument`, `not-an-array`, `wrong-rank`, `wrong-shape` or `wrong-dtype`.
    """
    if (lengths is None) != (groups is None):
        raise refused("one of prefix_lengths and prefix_groups is missing", "bad-argument", "give both or none")
    if lengths is None:
        return
    rows.same_shape(lengths, "prefix_lengths", (q.shape[0],))
    rows.check_rank(groups, "prefix_groups", 1)
    for name, one in (("prefix_lengths", lengths), ("prefix_groups", groups)):
        if arrays.dtype_of(one, name).name != "i32":
            raise refused(f"{name} has the dtype {arrays.dtype_of(one, name)}", "wrong-dtype", "it takes i32")
    if groups.shape[0] < 1:
        raise refused("prefix_groups has no element", "wrong-shape", "it has one more than groups")
    if isinstance(groups, np.ndarray):
        lengths_between(groups, "prefix_groups", int(q.shape[0]))


def _check_f32(array: Any, name: str) -> None:
    if arrays.dtype_of(array, name).name != "f32":
        raise refused(f"{name} has the dtype {arrays.dtype_of(array, name)}", "wrong-dtype", "it takes f32")


def _factors(scale: Any, name: str, groups: int, beside: Any) -> Any:
    """Return a factor of each group of heads, or None.

    Raises:
        CallError: `not-an-array`, `wrong-shape` or `wrong-dtype`.
    """
    if scale is None:
        return None
    if isinstance(scale, Real):
        whole = np.full(groups, float(scale), np.float32)
        if not arrays.is_torch(beside):
            return whole if isinstance(beside, np.ndarray) else asarray(whole, device=arrays.view(beside, name).device)
        return beside.new_full((groups,), float(scale), dtype=arrays.torch_dtypes()["f32"])
    _check_f32(scale, name)
    rows.same_shape(scale, name, (groups,))
    return scale


paged_attention = PagedAttention()
