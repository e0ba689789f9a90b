"""Layouts of tiles in shared memory: swizzles, vector widths, bank conflicts, ldmatrix.

A shared layout is a bijective `LinearLayout` from `offset`, counted in elements, to tile coordinates.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.data import dataclass
from tessera.ir.layouts.f2 import log2_exact, rank
from tessera.ir.layouts.linear import LANE, REGISTER, WARP, LayoutError, LinearLayout

OFFSET = "offset"
_BANKS, _BANK_BYTES = 32, 4
_LINE_BYTES = _BANKS * _BANK_BYTES


def row_major(shape: Sequence[int]) -> LinearLayout:
    """Return the plain layout of a tile in shared memory, last axis contiguous."""
    flat = LinearLayout.make({}, shape)
    return LinearLayout.make({OFFSET: [flat.unflatten(1 << bit) for bit in range(flat.out_bits)]}, shape)


def xor_swizzle(
    shape: Sequence[int], elem_bytes: int, *, vec_bytes: int = 16, row_bytes: int | None = None
) -> LinearLayout:
    """Return the layout in which reading a column of vectors meets no bank conflict.

    Vectors of a row are permuted by XOR with the row's phase. Rows of 128 bytes or more change phase at every
    row; shorter ones share a line of 128 bytes (all banks) and change phase from line to line. With rows of
    128, 64 and 32 bytes and 16-byte vectors these are the 128B, 64B and 32B swizzles of TMA and wgmma.

    Args:
        shape: power-of-two sizes of the tile, last axis contiguous; the axes before it count as rows.
        elem_bytes: bytes of an element.
        vec_bytes: bytes that move as one; the permuted unit.
        row_bytes: cut wider rows into panels of this many bytes, stored one after the other, as TMA boxes
            are.

    Raises:
        LayoutError: sizes are no powers of two, or a panel or vector does not divide a row.
    """
    tile = LinearLayout.make({}, shape)
    width = shape[-1]
    panel = width if row_bytes is None else min(width, row_bytes // elem_bytes)
    vector = min(panel, max(1, vec_bytes // elem_bytes))
    if log2_exact(panel) is None or log2_exact(vector) is None or log2_exact(elem_bytes) is None:
        raise LayoutError(f"rows of {row_bytes} bytes, vectors of {vec_bytes}, elements of {elem_bytes}")
    rows_per_phase = max(1, _LINE_BYTES // (panel * elem_bytes))
    phases = min(panel // vector, max(1, _LINE_BYTES // (vector * elem_bytes)))

    def at(row: int, column: int) -> tuple[int, ...]:
        phase = row // rows_per_phase % phases
        return tile.unflatten(row * width + (column ^ phase * vector))

    rows = tile.size // width
    in_panel = [at(0, 1 << bit) for bit in range(panel.bit_length() - 1)]
    by_row = [at(1 << bit, 0) for bit in range(rows.bit_length() - 1)]
    panels = [at(0, panel << bit) for bit in range((width // panel).bit_length() - 1)]
    return LinearLayout.make({OFFSET: [*in_panel, *by_row, *panels]}, shape)


def stacked(layout: LinearLayout, counts: Sequence[int]) -> LinearLayout:
    """Return the layout of so many tiles along new first axes, each as it is, one after the other.

    Args:
        layout: where the elements of a tile are.
        counts: power-of-two sizes of the new axes.
    """
    if not counts:
        return layout
    outer = LinearLayout.make({}, counts)
    inside = [(*[0] * len(counts), *vector) for vector in layout.in_bases(OFFSET)]
    tiles = [(*outer.unflatten(1 << bit), *[0] * len(layout.out_sizes)) for bit in range(outer.out_bits)]
    return LinearLayout.make({OFFSET: [*inside, *tiles]}, (*counts, *layout.out_sizes))


def shared_addresses(registers: LinearLayout, shared: LinearLayout) -> LinearLayout:
    """Return the element offset at which every (register, lane, warp) finds its element.

    Raises:
        LayoutError: the layouts are of different tiles, or `shared` is not a bijection of `offset`.
    """
    if shared.in_dims != (OFFSET,) or shared.out_sizes != registers.out_sizes:
        raise LayoutError(f"{shared} is not a shared layout of a tile {registers.out_sizes}")
    return registers.compose(shared.inverse())


def vector_width(registers: LinearLayout, shared: LinearLayout, elem_bytes: int, max_bytes: int = 16) -> int:
    """Return how many elements one shared access of a thread can move, registers renumbered as needed.

    `shared_addresses(...).order_registers_by((0,))` is the numbering in which each vector is a run of
    registers.
    """
    return min(shared_addresses(registers, shared).contiguous_per_thread(0), max(1, max_bytes // elem_bytes))


def _extra_wavefronts(lanes: Sequence[int], elem_bytes: int, vec: int) -> int:
    """Count the wavefronts above the fewest possible when lanes access `vec` elements at these offsets.

    Up to 4 bytes a thread are served for a whole warp at once, 8 bytes per half-warp, 16 bytes per
    quarter-warp. Lanes that ask for the same word share it. Because offsets are linear, all registers, warps
    and parts of a warp behave alike, each bank gets equally many words, and both counts are powers of two
    given by ranks.
    """
    word_bits = max(0, (vec * elem_bytes // _BANK_BYTES).bit_length() - 1)
    part = min(len(lanes), max(0, 5 - word_bits))
    words = [1 << bit for bit in range(word_bits)]
    words += [column * elem_bytes // _BANK_BYTES for column in lanes[:part]]
    wanted = rank(words)
    wavefronts = 1 << wanted - rank(word % _BANKS for word in words)
    fewest = 1 << max(0, wanted - (_BANKS.bit_length() - 1))
    return (wavefronts - fewest) << len(lanes) - part


def bank_conflicts(registers: LinearLayout, shared: LinearLayout, elem_bytes: int, vec: int | None = None) -> int:
    """Return the wavefronts beyond the fewest possible of one warp-wide shared access.

    Args:
        registers: layout of the tile over threads.
        shared: layout of the tile in shared memory.
        elem_bytes: bytes of an element.
        vec: elements per access; `vector_width` when left out.

    Raises:
        LayoutError: `vec` elements are not contiguous in both layouts.
    """
    addresses = shared_addresses(registers, shared)
    widest = addresses.contiguous_per_thread(0)
    width = min(widest, max(1, 16 // elem_bytes)) if vec is None else vec
    if width > widest or log2_exact(width) is None:
        raise LayoutError(f"a thread does not hold {width} elements in a row of shared memory, but {widest}")
    return _extra_wavefronts(addresses.columns(LANE), elem_bytes, width)


@dataclass(frozen=True)
class LdMatrix:
    """A run of ldmatrix (or stmatrix) instructions that fills a thread's registers from shared memory.

    Attributes:
        matrices: 8×8 matrices of 16-bit units per instruction: 1, 2 or 4, each filling one 32-bit register.
        trans: whether the instruction is the `.trans` form.
        addresses: from (register: number of the instruction, lane, warp) to the element offset of the 16-byte
            row that the lane points at. Instruction i fills the 32-bit registers from `i * matrices` on.
        extra_wavefronts: wavefronts beyond one, over the matrices of one instruction.
    """

    matrices: int
    trans: bool
    addresses: LinearLayout
    extra_wavefronts: int


def ldmatrix(registers: LinearLayout, shared: LinearLayout, elem_bytes: int) -> LdMatrix | None:
    """Return the ldmatrix instructions that load a tile from `shared` into `registers`, or None if none fit.

    The instruction hands lane l the 32-bit unit l % 4 of 16-byte row l // 4; with `.trans`, of 16-bit
    elements, the elements 2 * (l % 4) and the next of column l // 4. The registers must be numbered as the
    matrix instruction packs them. Rows may lie anywhere at 16-byte steps.

    Source: PTX ISA 9.2, "Warp-level matrix load instruction: ldmatrix".
    """
    addresses = shared_addresses(registers, shared)
    if registers.lanes != 32 or log2_exact(elem_bytes) is None or elem_bytes > 4:
        return None
    packed = (4 // elem_bytes).bit_length() - 1
    register, lane = addresses.columns(REGISTER), addresses.columns(LANE)
    if len(register) < packed:
        return None
    row = 16 // elem_bytes
    units = tuple(1 << bit for bit in range(row.bit_length() - 1))
    plain = (*register[:packed], *lane[:2])
    if plain == units:
        trans, row_bits = False, lane[2:]
    elif elem_bytes == 2 and lane[2:] == units:
        trans, row_bits = True, plain
    else:
        return None
    rest = register[packed:]
    others = (*row_bits, *rest, *addresses.columns(WARP))
    if any(column % row for column in others):
        return None
    matrices = min(2, len(rest))
    # Lanes beyond the last matrix repeat the addresses of the first ones, which older GPUs want to be valid.
    pointing = (*row_bits, *rest[:matrices], *[0] * (2 - matrices))
    layout = LinearLayout.make(
        {
            REGISTER: [(column,) for column in rest[matrices:]],
            LANE: [(column,) for column in pointing],
            WARP: [(column,) for column in addresses.columns(WARP)],
        },
        addresses.out_sizes,
        addresses.out_dims,
    )
    extra = _extra_wavefronts(row_bits, elem_bytes, row) << matrices
    return LdMatrix(1 << matrices, trans, layout, extra)
