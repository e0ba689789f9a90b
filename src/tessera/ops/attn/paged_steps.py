"""The steps behind attention to pages: blocks and kernels."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from tessera.numerics.dtypes import DType
from tessera.ops import arrays, rows
from tessera.ops.attn import paged_kernels as kernels
from tessera.ops.attn.flash_steps import FAR, accumulator
from tessera.ops.attn.join import join
from tessera.ops.steps import Arguments, Step, like
from tessera.target.records import TargetRecord

_APART = 8192
"""Bytes of shared memory that operands leave to what threads exchange."""
_MOST_ROWS, _LEAST_KEYS = 64, 8
_MOST_KEYS, _MOST_VALUES = 64, 256
"""Keys of a step at most, and elements of values that a program computes at most."""
_WIDE_KEYS = 32
"""Keys of a step where heads are wider than `_WIDE_HEAD`, and of 32 bits."""
_WIDE_HEAD = 256
_LEAST_ROWS = 16
_LEAST_STEPS = 4
"""Steps that a part has at least: fewer, and its result costs more than what it reads."""
_PROGRAMS = 2
"""Programs of a multiprocessor."""
_CPU_PROGRAMS = 64
"""Programs that a launch has on a CPU, however many cores, if there are keys enough."""
_READ = 100
"""On a CPU, a part may read so many times the bytes of its result: programs for all heads then follow one another
before memory goes on, where their keys lie side by side."""
MOST_CHUNK = 1024
"""Elements of a row that are appended at a time, at most."""


class PagedCall(NamedTuple):
    """What attention to pages is called with, as steps and PyTorch's operators take it.

    Args:
        q: queries `(B, H, S, D)`.
        k_pages: keys `(pages, slots, G, D)`.
        v_pages: values `(pages, slots, G, E)`.
        page_table: pages of each sequence, `(B, most)`.
        lengths: keys of each sequence.
        k_scale: factors of keys `(G,)`, or None.
        v_scale: factors of values, or None.
        sinks: scores without a key for each head, or None.
        scale: of products.
        softcap: limit of scores, 0 for none.
        before: keys before its place that a query sees.
        causal: whether a query sees no key after its place.
        longest: keys of the longest sequence, at least.
        shared: keys of each sequence that those of its group share, or None.
        starts: the first sequence of each group, and the number of sequences; or None.
    """

    q: Any
    k_pages: Any
    v_pages: Any
    page_table: Any
    lengths: Any
    k_scale: Any
    v_scale: Any
    sinks: Any
    scale: float
    softcap: float
    before: int
    causal: bool
    longest: int
    shared: Any = None
    starts: Any = None

    @property
    def rows_of(self) -> int:
        """Rows that share keys: queries of all their heads."""
        return int(self.q.shape[1]) // int(self.k_pages.shape[2]) * int(self.q.shape[2])

    def parts(self, rows_in: int, blocks: int) -> tuple[int, int, dict[str, int]]:
        """Return in how many parts keys are taken, the keys of one, and the blocks of a program.

        Args:
            rows_in: rows that share keys.
            blocks: how many sequences there are, or groups of them.
        """
        head = int(self.k_pages.shape[3]), int(self.v_pages.shape[3])
        target, kinds = rows.record_of(self.q), (arrays.dtype_of(self.q), arrays.dtype_of(self.k_pages))
        block = blocks_of(target, kinds, rows_in, int(self.v_pages.shape[1]), head)
        worth = worth_of(rows_in, head, (accumulator(self.q), kinds[1]))
        parts = parts_of(target, blocks * int(self.k_pages.shape[2]), self.longest, block["BN"], worth)
        each = -(-self.longest // (parts * block["BN"])) * block["BN"]
        return max(1, -(-self.longest // max(each, 1))), max(each, block["BN"]), {"BB": 1, **block}

    def parts_of_groups(self) -> tuple[int, int, dict[str, int]]:
        """Return the same of what groups of sequences share: blocks have the rows of several sequences."""
        batch, groups = int(self.q.shape[0]), int(self.starts.shape[0]) - 1
        own = min(1 << (self.rows_of - 1).bit_length(), _MOST_ROWS)
        parts, each, block = self.parts(-(-batch // max(groups, 1)) * own, groups)
        rows_in = max(block["BM"], own)
        return parts, each, {**block, "BM": own, "BB": rows_in // own}


def blocks_of(
    target: TargetRecord, kinds: tuple[DType, DType], rows_of: int, page: int, head: tuple[int, int]
) -> dict[str, int]:
    """Return rows, keys and elements of values of the blocks of a program.

    Args:
        target: the machine.
        kinds: dtypes of queries and of pages.
        rows_of: rows that share keys.
        page: keys of a page, a power of two.
        head: elements of a head of keys, and of one of values.
    """
    values = min(head[1], _MOST_VALUES)
    least = _LEAST_ROWS if target.simt else 1
    rows_in = min(1 << (max(rows_of, least) - 1).bit_length(), _MOST_ROWS)
    if not target.simt:
        return {"BM": rows_in, "BN": min(page, _MOST_KEYS), "BE": values}
    rows_in = rows_in if kinds[0].bits > 16 else _MOST_ROWS  # warpgroups take so many
    keys = min(page, _WIDE_KEYS if max(head) > _WIDE_HEAD or kinds[0].bits > 16 else _MOST_KEYS)
    room = target.shared_bytes - _APART
    while rows_in * head[0] * kinds[0].bytes + 2 * keys * (head[0] + values) * kinds[1].bytes > room:
        if keys > _LEAST_KEYS:
            keys //= 2
        elif rows_in > _LEAST_ROWS:
            rows_in //= 2
        else:
            break
    return {"BM": rows_in, "BN": keys, "BE": values}


def parts_of(target: TargetRecord, groups: int, longest: int, step: int, worth: int = FAR) -> int:
    """Return in how many parts keys are taken: by shapes alone, so that results are the same bits for all lengths.

    Args:
        target: the machine.
        groups: sequences times groups of heads.
        longest: keys of the longest sequence.
        step: keys of a step.
        worth: keys of a part of which the result takes little time on a CPU.
    """
    units = _PROGRAMS * target.machine.units if target.simt else _CPU_PROGRAMS
    parts = min(units // max(groups, 1), longest // (_LEAST_STEPS * step))
    return max(1, parts if target.simt else max(parts, longest // max(worth, step)))


def worth_of(rows_of: int, head: tuple[int, int], kinds: tuple[DType, DType]) -> int:
    """Return of how many keys a part's result takes little time beside them on a CPU.

    Args:
        rows_of: rows that share keys.
        head: elements of a head of keys, and of one of values.
        kinds: dtypes of results and of pages.
    """
    return _READ * rows_of * head[1] * kinds[0].bytes // (sum(head) * kinds[1].bytes)


def _results(*arguments: Any) -> Arguments:
    call = PagedCall(*arguments)
    shape = tuple(call.q.shape)
    return like(call.q, (*shape[:3], call.v_pages.shape[3])), like(call.q, shape[:3], accumulator(call.q))


def _launch(results: Arguments, *arguments: Any) -> None:
    call = PagedCall(*arguments)
    out, lse = results
    if 0 in out.shape:
        return
    batch, groups, wide = int(call.q.shape[0]), *(int(call.v_pages.shape[axis]) for axis in (2, 3))
    acc, shape = accumulator(call.q), (batch, groups, call.rows_of)
    parts, each, blocks = call.parts(call.rows_of, batch)
    behind, each_behind, blocks_behind = (0, 0, {}) if call.starts is None else call.parts_of_groups()
    some, sums = (like(call.q, (parts + behind, *shape, *rest), acc) for rest in ((wide,), ()))
    _run_parts(call, some, sums, None, parts, each, blocks)
    if call.starts is not None:
        _run_parts(call, some, sums, call.starts, parts, each_behind, blocks_behind)
    whole = parts + behind, prod(shape)
    join(some.reshape(*whole, wide), sums.reshape(*whole), call.sinks, out, lse)


def _run_parts(
    call: PagedCall, some: Any, sums: Any, starts: Any, parts: int, each: int, blocks: dict[str, int]
) -> None:
    """Compute the first `parts` parts, each of `each` keys, or with `starts` those behind them."""
    queries, size = int(call.q.shape[2]), int(call.q.shape[3])
    pages = call.k_pages, call.v_pages, call.page_table, call.lengths, call.shared, starts, call.k_scale, call.v_scale
    kernels.paged_parts(
        *(call.q.reshape(*some.shape[1:4], size), *pages, some, sums),
        *(queries, parts, each, call.scale, call.softcap or 1.0, call.before),
        causal=call.causal and queries > 1,
        windowed=call.before < FAR,
        caps=call.softcap > 0,
        plain=not call.softcap and call.scale > 0 and call.k_scale is None,
        acc=accumulator(call.q),
        page=int(call.v_pages.shape[1]),
        **blocks,
    )


PAGED = Step(
    "paged_attention",
    "(Tensor q, Tensor k_pages, Tensor v_pages, Tensor page_table, Tensor lengths, Tensor? k_scale, Tensor? v_scale, "
    "Tensor? sinks, float scale, float softcap, int before, bool causal, int longest, Tensor? shared, "
    "Tensor? starts) -> (Tensor, Tensor)",
    _results,
    _launch,
)


def _merged_results(outs: Any, lses: Any) -> Arguments:
    return like(outs, outs.shape[1:]), like(lses, lses.shape[1:])


def _launch_merge(results: Arguments, outs: Any, lses: Any) -> None:
    out, lse = results
    if 0 not in out.shape:
        count, parts = prod(map(int, lse.shape)), int(lses.shape[0])
        join(outs.reshape(parts, count, out.shape[-1]), lses.reshape(parts, count), None, out, lse)


MERGE = Step("merge_attention", "(Tensor outs, Tensor lses) -> (Tensor, Tensor)", _merged_results, _launch_merge)


def append(
    k: Any, v: Any, k_pages: Any, v_pages: Any, table: Any, lengths: Any, scales: Sequence[Any], same: bool
) -> None:
    """Store new keys and values; where `same`, pages of values are a part of those of keys."""
    size, wide = int(k.shape[3]), int(v.shape[3])
    chunks = {"BD": min(1 << (size - 1).bit_length(), MOST_CHUNK), "BE": min(1 << (wide - 1).bit_length(), MOST_CHUNK)}
    kernels.append(k, v, k_pages, None if same else v_pages, table, lengths, *scales, **chunks)
