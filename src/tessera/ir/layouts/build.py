"""Layouts of distributed tiles: blocked ones, and those of matrix instructions."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.ir.layouts.f2 import log2_exact
from tessera.ir.layouts.linear import LANE, REGISTER, WARP, LayoutError, LinearLayout
from tessera.target.fragments import Fragment


def identity1d(size: int, in_dim: str, out_dim: str = "dim0") -> LinearLayout:
    """Return the identity of `in_dim` onto `out_dim`, both of this power-of-two size.

    Raises:
        LayoutError: the size is not a power of two.
    """
    return LinearLayout.make({in_dim: [(1 << bit,) for bit in range(size.bit_length() - 1)]}, (size,), (out_dim,))


def zeros1d(size: int, in_dim: str) -> LinearLayout:
    """Return the layout in which all of `in_dim`, of this power-of-two size, holds the same element.

    Raises:
        LayoutError: the size is not a power of two.
    """
    bits = log2_exact(size)
    if bits is None:
        raise LayoutError(f"{size} {in_dim}s: no power of two")
    return LinearLayout.make({in_dim: [()] * bits}, ())


def _empty(rank: int) -> LinearLayout:
    """Return the layout of a tile of one element, held by one register of one thread."""
    return LinearLayout.make({REGISTER: (), LANE: (), WARP: ()}, (1,) * rank)


def _clip(layout: LinearLayout, shape: Sequence[int]) -> LinearLayout:
    """Shrink a layout of unit vectors to `shape`: what sticks out wraps around and replicates."""
    sizes = tuple(min(have, want) for have, want in zip(layout.out_sizes, shape, strict=True))
    bases = {
        dim: [[x if x < size else 0 for x, size in zip(vector, sizes, strict=True)] for vector in vectors]
        for dim, vectors in layout.bases
    }
    return LinearLayout.make(bases, sizes)


def _repeat(layout: LinearLayout, shape: Sequence[int], order: Sequence[int]) -> LinearLayout:
    """Repeat a layout in registers until it fills `shape`, the axes of `order` from fastest to slowest."""
    for axis in order:
        times, rest = divmod(shape[axis], layout.out_sizes[axis])
        if rest:
            raise LayoutError(f"tile {tuple(shape)} is not a multiple of {layout.out_sizes}")
        layout *= identity1d(times, REGISTER, f"dim{axis}")
    return layout


def blocked(
    shape: Sequence[int],
    size_per_thread: Sequence[int],
    threads_per_warp: Sequence[int],
    warps_per_cta: Sequence[int],
    order: Sequence[int],
) -> LinearLayout:
    """Return the layout in which a thread holds a box, a warp a box of threads and the block a box of warps.

    A tile larger than the block of threads is covered by repeating it in registers; on a smaller one threads
    wrap around and hold copies, and registers that would be copies within a thread are left out.

    Args:
        shape: power-of-two sizes of the tile.
        size_per_thread: box of elements that a thread holds at a stretch.
        threads_per_warp: box of lanes; the product is the warp size.
        warps_per_cta: box of warps; the product is the number of warps.
        order: axes from fastest to slowest; `(1, 0)` is row-major.

    Raises:
        LayoutError: a size is not a power of two, or the arguments differ in rank.
    """
    rank = len(shape)
    if sorted(order) != list(range(rank)):
        raise LayoutError(f"{tuple(order)} does not order {rank} axes")
    layout = _empty(rank)
    for dim, box in ((REGISTER, size_per_thread), (LANE, threads_per_warp), (WARP, warps_per_cta)):
        if len(box) != rank:
            raise LayoutError(f"{dim} box {tuple(box)} does not fit a tile of rank {rank}")
        for axis in order:
            layout *= identity1d(box[axis], dim, f"dim{axis}")
    return _repeat(_clip(layout, shape).unique_registers(), shape, order)


def fragment_layout(fragment: Fragment) -> LinearLayout:
    """Return the layout of one operand of one matrix instruction, axes as in `fragment.axes`."""
    return LinearLayout.make({REGISTER: fragment.register, LANE: fragment.lane, WARP: fragment.warp}, fragment.shape)


def fragment_repeats(fragment: Fragment, shape: Sequence[int], warps: tuple[int, int] = (1, 1)) -> tuple[int, int]:
    """Return how many instruction operands each warp holds along the axes of a `from_fragment` tile.

    Operand (i, j) of a warp is the registers from `(i * repeats[1] + j) * fragment.elements` on, in the order
    in which the instruction lists them.
    """
    warps_along = {"m": warps[0], "n": warps[1], "k": 1}
    rows, columns = (
        max(1, size // (part * warps_along[axis]))
        for axis, size, part in zip(fragment.axes, shape, fragment.shape, strict=True)
    )
    return rows, columns


def from_fragment(fragment: Fragment, shape: Sequence[int], warps: tuple[int, int] = (1, 1)) -> LinearLayout:
    """Return the layout of a tile that repeats an instruction's operand over warps and registers.

    Neighbouring instruction operands go to neighbouring warps (warp number = m part + n part * warps[0], on
    top of the warps that the instruction itself takes); warps along an axis that the operand lacks hold
    copies. What is left is repeated in registers, row-major, see `fragment_repeats`. When the tile is too
    small for all warps, they wrap around.

    Args:
        fragment: table of the operand.
        shape: rows and columns of the tile, powers of two; axes as in `fragment.axes`.
        warps: number of warps (or of groups of warps that issue together) along m and along n.

    Raises:
        LayoutError: the tile is smaller than the instruction's operand, or a size is not a power of two.
    """
    if any(size < part for size, part in zip(shape, fragment.shape, strict=True)):
        raise LayoutError(f"tile {tuple(shape)} is smaller than the operand {fragment.shape}: pad it first")
    layout = fragment_layout(fragment)
    for name, count in zip(("m", "n"), warps, strict=True):
        if name in fragment.axes:
            layout *= identity1d(count, WARP, f"dim{fragment.axes.index(name)}")
        else:
            layout *= zeros1d(count, WARP)
    return _repeat(_clip(layout, shape), shape, (1, 0))
