"""Which blocks of keys queries see, by a function of their numbers: attention leaves out the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import tessera as ts
from tessera.data import dataclass
from tessera.ops import arrays
from tessera.ops.annotations import I64, Constant
from tessera.ops.attn.mods import LISTED, MB, NAMES, NB, Mod, Mods, as_mod
from tessera.ops.refusals import checked, refused
from tessera.ops.steps import like

B, H, G, M, N = ts.dims("B H G M N")
_CHUNK = 128
"""Blocks whose kinds are read at a time."""
HIDDEN, PARTIAL, WHOLE = 0, 1, 2
"""Kinds of blocks: no key is seen by a query, some are, all are by all."""


@dataclass(frozen=True, eq=False)
class BlockMask:
    """A mask by a function, with the blocks that it leaves; made by `block_mask`.

    Args:
        mod: the function.
        sizes: batch and heads it was made for (1 where it is for all), queries, keys.
        kinds: `(B, H, blocks of queries, blocks of keys)`, i32: 0 where no key is seen, 1 where some are, 2 where all.
        partials: `(B, H, blocks of queries)`, i32: how many blocks of keys are seen in part.
        counts: how many are seen at all.
        blocks: `(B, H, blocks of queries, blocks of keys)`, i32: their numbers, first those that are seen in part.
    """

    mod: Mod
    sizes: tuple[int, int, int, int]
    kinds: Any
    partials: Any
    counts: Any
    blocks: Any

    def __repr__(self) -> str:
        return f"block_mask({self.mod!r}, {', '.join(map(str, self.sizes))})"

    def density(self) -> float:
        """Return what part of all blocks is computed; waits for the device."""
        kinds = arrays.host(self.kinds)
        return float(np.count_nonzero(kinds) / kinds.size) if kinds.size else 0.0


@checked
def block_mask(mask_mod: Any, batch: int, heads: int, queries: int, keys: int, *, like: Any) -> BlockMask:
    """Evaluate a mask for all queries and keys, and list the blocks of 128 keys that each 128 queries see.

        mask = op.attn.block_mask(same_document, 1, 1, 4096, 4096, like=q)
        op.flash_attention(q, k, v, mask_mod=mask)

    It is to be made once for several layers or steps; what the function's tensors hold is read now.

    Args:
        mask_mod: a `@ts.function` of `(b, h, q, k)`, or an `op.attn.mod`, as for `op.flash_attention`.
        batch: rows of the batch it depends on; 1 where it is the same for all.
        heads: heads it depends on; 1 where it is the same for all.
        queries: queries.
        keys: keys.
        like: an array of the library and device that attention is called with.

    Raises:
        CallError: `bad-argument` for what is no function, or a size below 1.

    Source: Dong et al., Flex Attention: a programming model for generating optimized attention kernels, 2024.
    """
    mod = as_mod(mask_mod, "mask_mod")
    if mod is None:
        raise refused("mask_mod is None", "bad-argument", Mod.HELP)
    for name, size in (("batch", batch), ("heads", heads), ("queries", queries), ("keys", keys)):
        if size < 1:
            raise refused(f"{name} is {size}", "bad-argument", "sizes are at least 1")
    kinds = _made(like, (batch, heads, _blocks(queries), _blocks(keys)))
    find_kinds(kinds, NAMES.mods_of(f"|{mod.name}", mod.values), queries, keys)
    return BlockMask(mod, (batch, heads, queries, keys), kinds, *lists_of(kinds, heads, across=False))


def _blocks(count: int) -> int:
    return -(-count // LISTED)


def _made(array: Any, shape: Sequence[int]) -> Any:
    return like(array, tuple(shape), ts.i32)


def lists_of(kinds: Any, groups: int, across: bool) -> tuple[Any, Any, Any]:
    """Return numbers of blocks: those seen in part, all, and which.

    Args:
        kinds: the kinds of blocks.
        groups: heads that share keys count as one; all heads where it is their number.
        across: whether blocks of queries are listed for those of keys.
    """
    batch, heads, rows, columns = map(int, kinds.shape)
    if across:
        rows, columns = columns, rows
    partials, counts = (_made(kinds, (batch, min(groups, heads), rows)) for _ in range(2))
    blocks = _made(kinds, (batch, min(groups, heads), rows, columns))
    list_blocks(kinds, partials, counts, blocks, across=across)
    return partials, counts, blocks


@ts.function
def sees(mods: Any, b: Any, h: Any, rows: Any, columns: Any) -> Any:
    """Return which queries of a block see which keys."""
    return ts.tile.broadcast_to(mods.mask(None, b, h, rows, columns), (LISTED, LISTED))


@ts.kernel
def find_kinds(kinds: ts.Tensor[B, H, MB, NB, ts.i32], mods: Mods[MB, NB], queries: I64, keys: I64):
    """The kinds of blocks; keys past the last are not seen, queries past the last do not count."""
    for b, h, i, j in ts.tile.grid((B, 1), (H, 1), (MB, 1), (NB, 1)):
        rows = (i * LISTED).to(ts.i32) + ts.tile.arange(LISTED)
        columns = (j * LISTED).to(ts.i32) + ts.tile.arange(LISTED)
        seen = sees(mods, b, h, rows[:, None], columns[None, :]) & (columns < keys)[None, :]
        counted = ts.tile.broadcast_to((rows < queries)[:, None], (LISTED, LISTED))
        some = ts.tile.max((seen & counted).to(ts.i32))
        whole = ts.tile.min((seen | ~counted).to(ts.i32))
        kinds[b, h, i, j] = some + some * whole


@ts.function
def kinds_of(kinds: Any, b: Any, first: Any, heads: Any, i: Any, j: Any, across: Any) -> Any:
    """Return the kinds of blocks for all of several heads: whole where it is for each, seen where it is for one."""
    some = ts.tile.zeros((_CHUNK,), ts.i32)
    whole = ts.tile.full((_CHUNK,), 1, ts.i32)
    for h in ts.tile.range(first, first + heads):
        kind = kinds[b, h, j : j + _CHUNK, i] if across else kinds[b, h, i, j : j + _CHUNK]
        some = ts.tile.maximum(some, ts.tile.minimum(kind, 1))
        whole = ts.tile.minimum(whole, kind // WHOLE)
    return some + whole


@ts.kernel
def list_blocks(
    kinds: ts.Tensor[B, H, MB, NB, ts.i32],
    partials: ts.Tensor[B, G, M, ts.i32],
    counts: ts.Tensor[B, G, M, ts.i32],
    blocks: ts.Tensor[B, G, M, N, ts.i32],
    across: Constant,
):
    """The numbers of the blocks that are seen, first those seen in part, each in order."""
    for b, g, i in ts.tile.grid((B, 1), (G, 1), (M, 1)):
        found = ts.tile.zeros((1,), ts.i32)
        for wanted in (PARTIAL, WHOLE):
            for j in ts.tile.range(0, N, _CHUNK):
                kind = kinds_of(kinds, b, g * (H // G), H // G, i, j, across)
                fits = (kind == wanted).to(ts.i32)
                place = ts.tile.where(fits == 1, found + ts.tile.cumsum(fits) - 1, -1)
                blocks[b, g, i, place] = j.to(ts.i32) + ts.tile.arange(_CHUNK)
                found = found + ts.tile.sum(fits)
            if wanted == PARTIAL:
                partials[b, g, i] = ts.tile.sum(found)
        counts[b, g, i] = ts.tile.sum(found)
