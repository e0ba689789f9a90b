"""What bounds a product that roles compute: panels of its operands, registers of its consumers, depth of its rings.

Passes ask about the products of a kernel, plans of `ops.linalg` about one that has no kernel yet: both call these
functions, so that a plan is told what the passes will do. Nothing here needs the IR.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from math import prod

from tessera.data import dataclass
from tessera.numerics import dtypes
from tessera.numerics.dtypes import DType
from tessera.schedule.products import (
    BARRIER_BYTES,
    BUFFER_BYTES,
    GROUP_ROWS,
    GROUP_WARPS,
    LEAST_PART,
    LEAST_TERMS_BYTES,
    MOST_PIECES,
    MatrixProduct,
    Operand,
    buffer_bytes,
    parts_of,
    stage_bytes,
    why_no_instruction,
)
from tessera.target.fragments import PANEL_BYTES
from tessera.target.records import TargetRecord

MOST_STAGES = 8
REGISTERS = {4: (56, 240), 8: (24, 240), 12: (32, 160)}
"""Registers of a producer and a consumer thread, by consumer warps (64 Ki in all, multiples of 8)."""
SHARING_REGISTERS = {4: (56, 240), 8: (40, 232)}
"""The same where programs share out steps, whose arithmetic the producer does too."""
STORING_REGISTERS = (56, 224)
"""The same of eight consumer warps that store tiles from registers: with `REGISTERS` the producer's threads spill."""
ONE_STAGE = "one stage was asked for, and roles need two"
_SUMS_SHARE, _NARROW_SHARE = 0.75, 0.81
"""Part of a consumer's registers that accumulators may take, and those of narrow products: a gradient of keys and
values that takes 64 queries at a time spills a little, and is 1.4 times as fast on an H200 as with 32, whose products
wait for shared memory."""
NARROW = 64
"""Columns of a narrow product."""

BOX_LIMIT = 256
"""Most elements of a box in one dimension."""
NARROW_ROWS = (32, 64)
"""Bytes of rows shorter than a panel, which the copy engine and matrix instructions swizzle in their own way."""
LEAST_ROW = 16
"""Bytes of the shortest row that the copy engine moves: it is not swizzled, and matrix instructions do not read it."""

LEAST_BUFFERS = {1: 2, 2: 1, 3: 1}
"""By number of consumer groups: of several, one may wait for its stores while another one's products run."""
_WHOLE_BYTES = 64 * 1024
_PART_BYTES = 16 * 1024
"""Bytes up to which a tile across the warps is stored as a whole, and size of the parts of a larger one."""


def why_no_registers(producer: int, consumer: int, warps: int) -> str | None:
    """Return why threads of roles cannot have so many registers, None where they can.

    Args:
        producer: registers of a thread of the warpgroup that fetches.
        consumer: registers of a thread that computes.
        warps: all warps that compute.

    Source: PTX ISA, "setmaxnreg"; 64 Ki registers of a multiprocessor.
    """
    if any(count % 8 or not 24 <= count <= 256 for count in (producer, consumer)):
        return f"{producer} and {consumer} registers are not multiples of 8 from 24 to 256"
    total = 32 * (GROUP_WARPS * producer + warps * consumer)
    return f"{producer} and {consumer} registers a thread are {total} in all" if total > 64 * 1024 else None


def usual_warps(rows: int, groups: int = 1) -> int:
    """Return the consumer warps of a tile where nobody asks for a number: two warpgroups where each has 64 rows."""
    return 2 * GROUP_WARPS if rows >= 2 * GROUP_ROWS and groups == 1 else GROUP_WARPS


def why_no_warps(warps: int, rows: Collection[int], sums: int, groups: int = 1, is_narrow: bool = False) -> str | None:
    """Return why so many warps cannot consume a tile, None where they can: each warpgroup takes 64 rows of a product.

    Args:
        warps: the warps of a group of consumers.
        rows: the rows of each product, as instructions see them.
        sums: elements of all accumulators of a tile.
        groups: groups of consumers.
        is_narrow: whether products that only a step needs have `NARROW` columns or fewer.
    """
    if warps * groups not in REGISTERS or any(size % (warps * GROUP_ROWS // GROUP_WARPS) for size in rows):
        return f"{warps} warps do not split {sorted(set(rows))} rows in {GROUP_ROWS}s"
    if sums / (32 * warps) > REGISTERS[warps * groups][1] * (_NARROW_SHARE if is_narrow else _SUMS_SHARE):
        return f"the accumulators of {warps} warps leave no registers"
    return None


def why_no_box(name: str, sizes: Collection[int], row: int, dtype: DType, plain: bool = False) -> str | None:
    """Return why the copy engine cannot fetch or store a box of a tensor, None where it can.

    Args:
        name: the tensor's.
        sizes: the box, a size per tensor dimension.
        row: the one along the contiguous dimension.
        dtype: its elements.
        plain: whether rows of `LEAST_ROW` bytes are accepted.
    """
    if (reason := why_no_rows(name, row * dtype.bytes, plain)) is not None:
        return reason
    others = list(sizes)
    others.remove(row)
    if any(size > BOX_LIMIT for size in others):
        return f"the tile of {name} is larger than a box of the copy engine"
    if any(size & (size - 1) for size in sizes):
        return f"the tile of {name} has a size that is not a power of two"
    return None


def why_no_rows(name: str, row_bytes: int, plain: bool = False) -> str | None:
    """Return why neither the copy engine nor matrix instructions take rows of so many bytes, None where they do.

    Args:
        name: the tensor's.
        row_bytes: bytes of a tile's row, along the contiguous dimension.
        plain: whether rows of `LEAST_ROW` bytes are accepted, which instructions do not read.
    """
    if row_bytes % PANEL_BYTES and row_bytes not in NARROW_ROWS and not (plain and row_bytes == LEAST_ROW):
        return f"the tile of {name} has rows of {row_bytes} bytes along its contiguous dimension"
    return None


def right_panels(dtype: DType, columns: int, depth: int) -> tuple[bool, bool]:
    """Return whether threads can store a right operand in panels with K contiguous, and with the columns contiguous.

    Only 16-bit operands are read along the columns.
    """
    along_columns = dtype.bytes == 2 and columns * dtype.bytes % PANEL_BYTES == 0
    return depth * dtype.bytes % PANEL_BYTES == 0, along_columns


def why_not_staged(dtype: DType, columns: int, depth: int) -> str | None:
    """Return why threads cannot hand a right operand to an instruction through shared memory, None where they can."""
    if any(right_panels(dtype, columns, depth)):
        return None
    return f"a computed operand of {depth}x{columns} has no rows or columns of a multiple of {PANEL_BYTES} bytes"


def parts_across(total: int) -> int:
    """Return in how many parts to store a tile whose rows in memory run across the warps: one unless it is large."""
    return 1 if total <= _WHOLE_BYTES else total // _PART_BYTES


def least_store_bytes(total: int, parts: int, groups: int) -> int:
    """Return the least shared memory that a group of consumers needs to store a tile in parts by bulk copies."""
    return total // parts * min(LEAST_BUFFERS[groups], parts)


_SUMS = dtypes.f32
"""Warpgroups keep sums of 32 bits, of floats or of integers."""


@dataclass(frozen=True, slots=True)
class Room:
    """Shared memory of a launch that rings can take, in bytes.

    Args:
        free: what is left beside barriers and other buffers.
        stage: what one stage of all rings takes.
        stores: what bulk stores need of what is left.
    """

    free: int
    stage: int
    stores: int = 0

    @classmethod
    def beside(cls, left: int, stage: int, *, kept: int, stores: int, groups: int, rings: int = 1) -> Room:
        """Return the room for rings.

        Args:
            left: bytes of shared memory beside the buffers and the first barriers of a launch.
            stage: bytes of one stage of all rings.
            kept: bytes that each group of consumers needs for operands that go through no ring.
            stores: bytes that each group needs for its stores.
            groups: groups of consumers.
            rings: rings with barriers of their own.
        """
        turns = BUFFER_BYTES if groups > 1 else 0  # barriers for their turns
        return cls(left - groups * kept - (rings - 1) * BARRIER_BYTES - turns, stage, groups * stores)

    @property
    def most(self) -> int:
        """Stages that fit where stores have no buffers."""
        return self.free // self.stage

    @property
    def roomy(self) -> int:
        """Stages that fit beside the buffers of stores."""
        return (self.free - self.stores) // self.stage

    def stages(self, asked: int | None) -> int | None:
        """Return the depth of the rings, None where two stages, or those asked for, do not fit."""
        stages = asked or min(MOST_STAGES, self.roomy if self.roomy > 1 else self.most)
        return stages if 2 <= stages <= self.most else None

    def shortage(self, asked: int | None) -> str:
        """Say why there are no stages."""
        return (
            ONE_STAGE
            if asked == 1
            else f"{max(asked or 2, 2)} stages of {self.stage} bytes do not fit in shared memory"
        )


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a product is cut into tiles, as a plan tells the passes.

    Args:
        rows: rows of a program's tile.
        columns: columns of it.
        depth: terms of a step.
        out: dtype of the results that it stores.
        warps: consumer warps that were asked for.
        stages: depth of the rings that was asked for.
        split: programs that share a tile.
        groups: groups of consumers that take tiles in turn.
        across: whether rows of the results in memory run across the warps.
    """

    rows: int
    columns: int
    depth: int
    out: DType
    warps: int | None = None
    stages: int | None = None
    split: int = 1
    groups: int = 1
    across: bool = False

    def parts(self, product: MatrixProduct) -> tuple[tuple[int, ...], ...]:
        """Return the parts of rows, columns and depth that a tile is computed in (`split-tiles`)."""
        terms = LEAST_TERMS_BYTES // product.a.dtype.bytes
        sizes = ((self.rows, LEAST_PART), (self.columns, LEAST_PART), (self.depth, terms))
        parts = tuple(parts_of(size, least) or (size,) for size, least in sizes)
        return parts if prod(map(len, parts)) <= MOST_PIECES else ((self.rows,), (self.columns,), (self.depth,))

    def pieces(self, product: MatrixProduct) -> list[tuple[int, int, int]]:
        """Return rows, columns and depth of the products that a tile is computed by."""
        rows, columns, depth = self.parts(product)
        return list(itertools.product(rows, columns, depth))

    def stores(self, product: MatrixProduct, turned: bool) -> int:
        """Return the least bytes of shared memory that bulk stores of results need for a group of consumers.

        Args:
            product: the product.
            turned: whether warpgroups will compute the transposes.
        """
        rows, columns, _ = self.parts(product)
        across, along = list[int](), list[int]()
        for m, n in itertools.product(rows, columns):
            total = m * n * self.out.bytes
            across.append(least_store_bytes(total, parts_across(total), self.groups))
            along.append(least_store_bytes(total, max(n * self.out.bytes // PANEL_BYTES, 1), self.groups))
        return sum(across) if self.across else max(sum(along), *across) if turned else sum(along)


def room_of(product: MatrixProduct, tiling: Tiling, target: TargetRecord) -> Room:
    """Return the shared memory that the rings of a product's operands can take."""
    rows, columns, depth = tiling.parts(product)
    pieces = _as_computed(product, tiling)
    stage = sum(stage_bytes((m, k), product.a.dtype) for m in rows for k in depth)
    stage += sum(stage_bytes((k, n), product.b.dtype) for k in depth for n in columns)
    kept = sum(0 if product.is_direct(p.right) else p.columns * p.depth * p.right.dtype.bytes for p in pieces)
    partial = sum(buffer_bytes((m, n), _SUMS) for m in rows for n in columns) if tiling.split > 1 else 0
    left = target.shared_bytes - BARRIER_BYTES - partial
    stores = tiling.stores(product, any(piece.turned for piece in pieces))
    return Room.beside(left, stage, kept=kept, stores=stores, groups=tiling.groups)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A product of a tile as warpgroups see it: of the transposes where turned."""

    product: MatrixProduct
    rows: int
    columns: int
    depth: int
    turned: bool

    @classmethod
    def of(cls, product: MatrixProduct, shape: tuple[int, int, int], turned: bool) -> _Piece:
        """Return a piece of so many rows, columns and terms."""
        m, n, k = shape
        return cls(product, n, m, k, True) if turned else cls(product, m, n, k, False)

    @property
    def right(self) -> Operand:
        """The operand that instructions read from shared memory."""
        return self.product.a if self.turned else self.product.b

    @property
    def why_not(self) -> str | None:
        """Why no instruction computes it."""
        a, b, acc = self.product.dtypes
        shape = (self.rows, self.columns, self.depth)
        reason = why_no_instruction(*((b, a) if self.turned else (a, b)), acc, shape)
        if reason is None and not self.product.is_direct(self.right):
            return why_not_staged(self.right.dtype, self.columns, self.depth)
        return reason


def _as_computed(product: MatrixProduct, tiling: Tiling) -> list[_Piece]:
    """Return the products of a tile as warpgroups compute them.

    They compute the transposes where only the right operand has to come from registers. All are turned where warpgroups
    can compute only the transposes: rows come in 64s, columns do not.
    """
    shapes = tiling.pieces(product)
    plain, turned = ([_Piece.of(product, shape, t) for shape in shapes] for t in (False, True))
    if product.is_direct(product.a) and product.is_direct(product.b):
        return turned if _are_rows_wrong(plain, tiling) and not _are_rows_wrong(turned, tiling) else plain
    both = zip(plain, turned, strict=True)
    return [there if product.turned and there.why_not is None else here for here, there in both]


def _are_rows_wrong(pieces: Sequence[_Piece], tiling: Tiling) -> bool:
    return any(piece.why_not is not None for piece in pieces) or _why_no_warps(pieces, tiling) is not None


def _why_no_warps(pieces: Sequence[_Piece], tiling: Tiling, asked: int | None = None, groups: int = 1) -> str | None:
    rows = [piece.rows for piece in pieces]
    return why_no_warps(asked or usual_warps(min(rows), groups), rows, tiling.rows * tiling.columns, groups)


def why_no_tile(product: MatrixProduct, tiling: Tiling, target: TargetRecord) -> str | None:
    """Return why roles do not compute a product in tiles, None where they do.

    Args:
        product: a product that roles compute in some tiles (`schedule.products.why_no_roles`).
        tiling: the tiles.
        target: the GPU.
    """
    pieces = _as_computed(product, tiling)
    reasons = [*(piece.why_not for piece in pieces), _why_not_fetched(product, tiling)]
    reasons.append(_why_no_warps(pieces, tiling, tiling.warps, tiling.groups))
    reason = next((reason for reason in reasons if reason is not None), None)
    if reason is not None:
        return reason
    room = room_of(product, tiling, target)
    return None if room.stages(tiling.stages) else room.shortage(tiling.stages)


def _why_not_fetched(product: MatrixProduct, tiling: Tiling) -> str | None:
    """Return why the copy engine cannot fetch what instructions read as it lies."""
    rows, columns, depth = tiling.parts(product)
    for operand, others in ((product.a, rows), (product.b, columns)):
        if not product.is_direct(operand):
            continue
        for other, terms in itertools.product(others, depth):
            row = terms if operand.contiguous == "k" else other
            reason = why_no_box(operand.name, (other, terms), row, operand.dtype)
            if reason is not None:
                return reason
    return None


def seen_tile(product: MatrixProduct, rows: int, columns: int) -> tuple[int, int]:
    """Return rows and columns of a tile as warpgroup instructions see it, or the tile of what they see."""
    return (columns, rows) if product.turned else (rows, columns)
