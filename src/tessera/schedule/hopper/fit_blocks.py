"""Gives grids of products blocks that matrix instructions take, whatever blocks they were written with.

Before::

    grid(%M, %N) by [104, 200] { ^(%m, %n): ... load A[%m, %k] [104, 80]; load B[%k, %n] [80, 200]; mma; store }

After, a launch for each size of tiles that is best for some sizes of the tensors::

    %large, %small = <1 and 0, or 0 and 1: which takes less time, by %M, %N and %K>
    grid(%M, %N) by [128, 256] when %large { ^(%m, %n): ... load A[%m, %k] [128, 80]; load B[%k, %n] [80, 256] ... }
    grid(%M, %N) by [64, 64] when %small { ... }

Each element of a result is computed as before: of the same terms, in the same order, but where programs share the steps
of few tiles (`stream-k`), whose sums of parts are added. That is known only where the number of a program says nothing
but where its boxes start (`ir/regridding.py`). Blocks of loops that do more than load and multiply stay if their sizes
are powers of two, or roles compute them in parts of 64 or more. What a launch takes is estimated from its rounds of
tiles over the multiprocessors (`schedule/hopper/blocks.py`); where all sizes are known, the fastest launch alone is
left. Steps have 128 bytes of each row, or as they are written where a power of two has fewer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import ClassVar, Literal

from xdsl.dialects import scf
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.inserter import Inserter, ceildiv
from tessera.ir.notes import Unfit, note
from tessera.ir.regridding import Regrid
from tessera.ir.tile.elementwise import CastOp, RoundTf32Op, constant_value
from tessera.ir.tile.memory import LoadOp, StoreOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.reduce import ReduceOp
from tessera.ir.tile.shape import TransposeOp
from tessera.ir.tile.structure import DimOp, GridOp, KernelOp
from tessera.ir.tile.types import TileType, element_of, shape_of
from tessera.ir.types import dtype_of
from tessera.ir.walking import ops_in
from tessera.schedule.hopper.blocks import Blocks, TileWork, blocks_for, is_served
from tessera.schedule.hopper.deepen_steps import change_steps
from tessera.schedule.hopper.stream_k import may_share
from tessera.schedule.knobs import KNOBS
from tessera.schedule.loops import only_loop
from tessera.schedule.products import ALIGN_BYTES, MatrixProduct, Operand
from tessera.schedule.scheduled_pass import GridPass
from tessera.target.fragments import PANEL_BYTES

_APART = ("split_k", "cluster", "ping_pong")
"""Knobs that say who computes a tile, beside `stream_k`."""
USUAL_TERMS = 1024
"""Terms of a sum where a launch does not know them."""


@dataclass(frozen=True)
class FitBlocksPass(GridPass):
    """Changes the blocks of grids of products.

    Args:
        target: the GPU.
        knobs: `fit_blocks` = 0 leaves blocks as they are, and so do knobs that belong to blocks as they are written:
            `num_warps`, and of blocks whose sizes are powers of two all others.
    """

    name: ClassVar[str] = "fit-blocks"

    def rewrite(self, kernel: KernelOp, grid: GridOp) -> None:
        """Change the blocks of a launch, or note why odd ones stay."""
        products = [op for op in ops_in(grid) if isinstance(op, MmaOp)]
        if self.knobs.fit_blocks == 0 or not products:
            return
        try:
            self._check_knobs(any(map(_is_odd, products)))
            work = _work(kernel, grid, products)
            if is_served(work, self.target):
                return
            regrid = Regrid(kernel, grid)
            places = _places(regrid, products)
            shares = self._leaves_shares() and may_share(grid)
            choices = blocks_for(work, self.target, (places[0] is not None, places[1] is not None), shares)
            if not choices:
                raise Unfit(next(iter(regrid.fixed.values()), "no other blocks are known to be faster"))
        except Unfit as reason:
            if any(map(_is_odd, products)):
                note(grid, "blocks", [f"blocks stay as they are: {reason}"])
            return
        _replace(regrid, places, work, choices)

    def _leaves_shares(self) -> bool:
        """Return whether nothing was asked for about who computes a tile."""
        others = (getattr(self.knobs, name) in (None, KNOBS[name].default) for name in _APART)
        return self.knobs.stream_k is None and all(others)

    def _check_knobs(self, odd: bool) -> None:
        """Check that nothing was asked for that belongs to the blocks as they are written.

        Args:
            odd: whether they have sizes that are no powers of two: they keep `num_warps` alone, others all knobs.

        Raises:
            Unfit: something was.
        """
        given = self.knobs.given()
        asked = [name for name, value in given.items() if name != "fit_blocks" and value != KNOBS[name].default]
        for name in asked:
            if not odd or name == "num_warps":
                raise Unfit(f"{name}={given[name]} was asked for")


def _is_odd(op: MmaOp) -> bool:
    """Return whether a product of matrices has rows or columns that are no power of two."""
    type_ = op.acc.type
    return isinstance(type_, TileType) and type_.rank == 2 and any(size & (size - 1) for size in type_.shape)


def _work(kernel: KernelOp, grid: GridOp, products: Sequence[MmaOp]) -> TileWork:
    """Return what a program computes in its tile.

    Raises:
        Unfit: that is more than sums of products of one size, of what it loads.
    """
    shapes = {shape_of(op.acc.type) for op in products}
    if len(shapes) != 1 or len(next(iter(shapes))) != 2:
        raise Unfit("its products are of several sizes")
    loop, first = only_loop(grid), products[0]
    if any(op.sums_in_order for op in products):
        raise Unfit("strict gives the order of sums, which warpgroup instructions do not take")
    if any(op.parent is not loop.body.block for op in products):
        raise Unfit("products are computed outside of the loop, or in a branch")
    rest = [op for op in grid.body.block.ops if op is not loop]
    stores = [op for op in rest if isinstance(op, StoreOp)]
    if not stores:
        raise Unfit("nothing is stored after the loop")
    heavy = sum(isinstance(op, LoadOp) for op in rest) > 1 or any(isinstance(op, ReduceOp) for op in rest)
    compute = first.compute.data
    product = MatrixProduct(
        _operand(kernel, first.a, "left", 1),
        _operand(kernel, first.b, "right", 0),
        dtype_of(element_of(first.acc.type)),
        compute == "tf32",
    )
    sums = len({op.acc for op in products if not isinstance(op.acc.owner, MmaOp)})
    (rows, columns), out = next(iter(shapes)), dtype_of(element_of(stores[0].value.type))
    computed = any(isinstance(op, CastOp) for op in loop.body.block.ops)
    plain = all(map(_feeds_products, loop.body.block.ops)) and not any(_takes_room(loop, op) for op in rest)
    return TileWork(product, rows, columns, out, sums, int(heavy), computed, plain)


def _takes_room(loop: scf.ForOp, op: Operation) -> bool:
    """Return whether an op outside of a program's loop loads a tile that takes as much room as its sums do."""
    if not isinstance(op, LoadOp) or len(shape_of(op.result.type)) < 2:
        return False
    return op.is_before_in_block(loop) or dtype_of(element_of(op.result.type)).bytes > 2


def _feeds_products(op: Operation) -> bool:
    """Return whether an op of a loop is a product, loads for one or computes no tile."""
    return isinstance(op, MmaOp | LoadOp | TransposeOp | scf.YieldOp) or not any(
        isinstance(result.type, TileType) for result in op.results
    )


def _operand(kernel: KernelOp, value: SSAValue, name: str, axis: int) -> Operand:
    """Return how an operand lies in memory, given which of its axes the product sums over.

    Raises:
        Unfit: it is computed from more than one tile that is loaded.
    """
    dtype = dtype_of(element_of(value.type))
    while isinstance(value.owner, TransposeOp | CastOp | RoundTf32Op):
        axis = value.owner.permutation[axis] if isinstance(value.owner, TransposeOp) else axis
        value = value.owner.source
    load = value.owner
    if not isinstance(load, LoadOp):
        raise Unfit("an operand of a product is computed")
    info, (along, other) = kernel.info_of(load.tensor), (load.kept[axis], load.kept[1 - axis])
    where: dict[bool, Literal["k", "other", "strided"]] = {
        info.strides[along] == 1: "k",
        info.strides[other] == 1: "other",
    }
    contiguous = where.get(True, "strided")
    loaded = dtype_of(element_of(load.result.type))
    steps = [
        info.stride_divisor(place) * loaded.bytes
        for place in range(len(info.strides))
        if place != {"k": along, "other": other}.get(contiguous)
    ]
    aligned = not any(step % ALIGN_BYTES or step == 0 for step in (info.align, *steps))
    return Operand(name, dtype, contiguous, aligned)


def _places(regrid: Regrid, products: Sequence[MmaOp]) -> tuple[int | None, int | None]:
    """Return which dimensions of the grid rows and columns of products are, None for those that keep their blocks.

    Raises:
        Unfit: both do, or products do not agree.
    """
    found = {(regrid.owner(op.acc, 0), regrid.owner(op.acc, 1)) for op in products}
    places = next(iter(found))
    if len(found) != 1 or places == (None, None) or places[0] == places[1]:
        raise Unfit(next(iter(regrid.fixed.values()), "the tiles of products are not the blocks of the grid"))
    return places


def _replace(regrid: Regrid, places: Sequence[int | None], work: TileWork, choices: Sequence[Blocks]) -> None:
    """Put launches with other blocks in the place of one; those that never are the fastest are left out."""
    kernel, grid = regrid.kernel, regrid.grid
    insert = Inserter(InsertPoint.before(grid), grid)
    sizes = _sizes(grid)
    if sizes is not None:
        *extents, terms = sizes
        choices = [min(choices, key=lambda one: one.time(_count(regrid, places, one, extents), terms))]
    guards = _guards(insert, kernel, regrid, places, choices) if len(choices) > 1 else [None]
    launches = [regrid.with_blocks(_blocks(places, one), guard) for one, guard in zip(choices, guards, strict=True)]
    for new, one in zip(launches, choices, strict=True):
        Rewriter.insert_op(new, InsertPoint.before(grid))
        if one.shared:
            decisions.SHARES.write(new)
    launches = [_with_steps(kernel, new, PANEL_BYTES // work.product.a.dtype.bytes) for new in launches]
    names = " or ".join(f"{one.rows}x{one.columns}{' by steps' if one.shared else ''}" for one in choices)
    by_sizes = ", as the sizes of a launch say" if len(choices) > 1 else ""
    note(launches[0], "blocks", [f"tiles of {work.rows}x{work.columns} are computed as {names}{by_sizes}"])
    Rewriter.erase_op(grid)


def _with_steps(kernel: KernelOp, grid: GridOp, terms: int) -> GridOp:
    """Return a launch with steps that new tiles have room for: of at most so many terms, and a power of two."""

    def chosen(_loop: scf.ForOp, _loads: Mapping[LoadOp, int], before: int) -> int:
        return terms if before & (before - 1) or before > terms else before

    try:
        return change_steps(kernel, grid, chosen)
    except Unfit:
        return grid


def _blocks(places: Sequence[int | None], one: Blocks) -> dict[int, int]:
    return {place: size for place, size in zip(places, (one.rows, one.columns), strict=True) if place is not None}


def _terms(loop: scf.ForOp) -> int | DimOp | None:
    """Return the terms that a loop sums over, or the size that they are; None where the launch does not know them."""
    first, last = constant_value(loop.lb), constant_value(loop.ub)
    if first is None:
        return None
    if last is not None:
        return int(last) - int(first)
    return loop.ub.owner if isinstance(loop.ub.owner, DimOp) and not first else None


def _sizes(grid: GridOp) -> list[int] | None:
    """Return the extents of a grid and the terms of its sums, None where one is not known."""
    terms = _terms(only_loop(grid))
    known = [constant_value(extent) for extent in grid.extents]
    if not isinstance(terms, int) or None in known:
        return None
    return [*(int(size) for size in known if size is not None), terms]


def _count(regrid: Regrid, places: Sequence[int | None], one: Blocks, extents: Sequence[int]) -> int:
    """Return how many tiles a launch has."""
    blocks = {**dict(enumerate(regrid.grid.block_sizes)), **_blocks(places, one)}
    return prod(-(-extent // blocks[place]) for place, extent in enumerate(extents))


def _guards(
    insert: Inserter, kernel: KernelOp, regrid: Regrid, places: Sequence[int | None], choices: Sequence[Blocks]
) -> list[SSAValue]:
    """Add what computes which launch is the fastest: 1 for that one, the first of several, 0 for the others."""
    loop, one = only_loop(regrid.grid), insert.constant(1)
    found = _terms(loop)
    if isinstance(found, DimOp):
        terms = insert.value(DimOp(found.tensor, found.axis.data))
    else:
        terms = insert.constant(USUAL_TERMS if found is None else found)
    times = [_time(insert, regrid, places, choice, terms, one) for choice in choices]
    scale = insert.constant(len(choices))
    times = [
        insert.binary("add", insert.binary("mul", time, scale), insert.constant(place))
        for place, time in enumerate(times)
    ]
    least = times[0]
    for time in times[1:]:
        least = insert.binary("minimum", least, time)
    return [
        insert.binary("sub", one, insert.binary("minimum", insert.binary("sub", time, least), one)) for time in times
    ]


def _time(
    insert: Inserter, regrid: Regrid, places: Sequence[int | None], choice: Blocks, terms: SSAValue, one: SSAValue
) -> SSAValue:
    """Add what computes `Blocks.time` of a launch."""
    blocks = {**dict(enumerate(regrid.grid.block_sizes)), **_blocks(places, choice)}
    tiles: SSAValue | None = None
    for place, extent in enumerate(regrid.grid.extents):
        count = extent if blocks[place] == 1 else ceildiv(insert, extent, insert.constant(blocks[place]), one)
        tiles = count if tiles is None else insert.binary("mul", tiles, count)
    assert tiles is not None
    if choice.shared:
        all_terms = insert.binary("mul", insert.binary("mul", tiles, terms), insert.constant(choice.term))
        part = insert.binary("floordiv", all_terms, insert.constant(choice.round))
        ends = insert.binary(
            "mul", ceildiv(insert, tiles, insert.constant(choice.round), one), insert.constant(choice.end)
        )
        return insert.binary("add", insert.binary("add", part, ends), insert.constant(choice.start))
    rounds = ceildiv(insert, tiles, insert.constant(choice.round), one)
    each = insert.binary("add", insert.binary("mul", terms, insert.constant(choice.term)), insert.constant(choice.end))
    return insert.binary("add", insert.binary("mul", rounds, each), insert.constant(choice.start))
