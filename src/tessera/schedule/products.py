"""Which instructions compute a matrix product, and why none that are faster.

Scheduling passes ask about the products of a kernel, plans of `ops.linalg` about one that has no kernel yet. Nothing
here needs the IR, so that a plan is made without the compiler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Literal

from tessera.data import dataclass
from tessera.numerics.dtypes import DType
from tessera.schedule.knobs import HOPPER
from tessera.target.fragments import mma_for, wgmma_instruction
from tessera.target.records import TargetRecord

ALIGN_BYTES = 16
"""The copy engine fetches from addresses and strides that are multiples of this."""
LINE_BYTES = 128
"""Bytes of a line of the L2 cache. A row of a box that does not begin with one takes two requests."""
GROUP_ROWS = 64
"""Rows of a product that a warpgroup computes."""
GROUP_WARPS = 4
"""Warps of a warpgroup, and of each of two groups of consumers that take tiles in turn."""
SUMS_PER_WARP = 4096
"""Sums of a product that a warp keeps in registers, 128 a thread, where a tile needs little else."""
BARRIER_BYTES = 2048
"""Shared memory of the two rows of barriers of a ring, in buffers of their own."""
BUFFER_BYTES = 1024
"""Every shared buffer starts at a multiple of this."""

LEAST_PART = 8
"""Elements of the smallest part of a tile that is computed in parts: columns of matrix instructions come in eights."""
LEAST_TERMS_BYTES = 32
"""Bytes of the fewest terms of a part: what a matrix instruction sums over."""
MOST_PARTS = 3
"""Parts of a dimension: 112 is 64, 32 and 16. Loops of more pieces gain less than the pieces cost."""
PART_COST = 24
"""Columns of a warpgroup product that take as long as one part more: of attention on an H200, heads of 48 in two parts
take as long as one of 90 would, heads of 112 in three as one of 150."""
MOST_PIECES = 16
"""Products that one product of tiles may become."""

Path = Literal["wgmma", "mma", "fma"]


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand of a product, as it lies in memory.

    Args:
        name: what messages call it.
        dtype: its elements.
        contiguous: `k` where elements of one sum lie side by side, `other` for those of the other dimension, `strided`
            for neither.
        aligned: whether address and other strides are known to be positive multiples of `ALIGN_BYTES`.
    """

    name: str
    dtype: DType
    contiguous: Literal["k", "other", "strided"]
    aligned: bool


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """A product of two tensors.

    Args:
        a: the left operand.
        b: the right operand.
        acc: dtype of the sums.
        tf32: whether f32 operands are rounded to 10 bits.
        found: whether the places of its tiles are loaded from memory, as where groups of rows begin.
    """

    a: Operand
    b: Operand
    acc: DType
    tf32: bool = False
    found: bool = False

    @property
    def dtypes(self) -> tuple[str, str, str]:
        """Names of the dtypes of the left operand, the right one and the sum, as instructions have them."""
        a, b = ("tf32", "tf32") if self.tf32 else (self.a.dtype.name, self.b.dtype.name)
        return a, b, self.acc.name

    def is_direct(self, operand: Operand) -> bool:
        """Return whether warpgroup instructions read an operand as it is copied."""
        return not needs_threads(self.tf32, operand.contiguous == "k")

    @property
    def transposed(self) -> MatrixProduct:
        """The product of the transposes."""
        return replace(self, a=self.b, b=self.a)

    @property
    def turned(self) -> bool:
        """Whether warpgroups compute it as the transpose of the product of the transposes."""
        return is_turned(self.is_direct(self.a), self.is_direct(self.b))


@dataclass(frozen=True, slots=True)
class Choice:
    """What computes a product.

    Args:
        path: warpgroup instructions with roles, instructions of one warp, or multiply-adds of threads.
        refused: why not each of the faster ones.
    """

    path: Path
    refused: Mapping[Path, str]


def parts_of(size: int, least: int) -> tuple[int, ...] | None:
    """Return a size as a sum of few powers of two, none of them smaller than `least`; None where there is no such sum.

    Args:
        size: a positive number.
        least: the smallest part; a power of two is its own only part, however small.
    """
    parts = tuple(1 << bit for bit in reversed(range(size.bit_length())) if size >> bit & 1)
    return parts if len(parts) == 1 or (len(parts) <= MOST_PARTS and parts[-1] >= least) else None


def grown_parts(size: int, least: int, part_cost: int = 0) -> tuple[int, ...]:
    """Return the parts of the cheapest size, not below a given one, that is a sum of few powers of two.

    Args:
        size: a positive number.
        least: the smallest part; what is smaller grows to it.
        part_cost: elements whose work takes as long as computing one part more.
    """
    grown = max(size, least)
    sizes = range(grown, (1 << (grown - 1).bit_length()) + 1)
    found = (parts for each in sizes if (parts := parts_of(each, least)) is not None)
    return min(found, key=lambda parts: sum(parts) + part_cost * len(parts))


def path_of(product: MatrixProduct, target: TargetRecord) -> Choice:
    """Return the fastest instructions that compute a product in tiles of the plan's choice, and why no faster ones.

    Args:
        product: the product.
        target: a GPU.
    """
    refused: dict[Path, str] = {}
    reason = why_no_roles(product, target)
    if reason is None:
        return Choice("wgmma", refused)
    refused["wgmma"] = reason
    a, b, acc = product.dtypes
    if mma_for(a, b, acc, target)[0] is not None:
        return Choice("mma", refused)
    refused["mma"] = f"{target.name} has no instruction for {a} x {b} -> {acc}"
    return Choice("fma", refused)


def has_roles(target: TargetRecord) -> bool:
    """Return whether a target has warpgroup products, and bulk copies to feed them."""
    return all(map(target.has, HOPPER))


def why_no_roles(product: MatrixProduct, target: TargetRecord) -> str | None:
    """Return why a producer of bulk copies cannot feed warpgroup instructions with a product, None where it can."""
    if not has_roles(target):
        return f"{target.name} has no bulk copies to warpgroup products"
    reasons = [why_no_instruction(*product.dtypes), why_not_known(product.found)]
    for operand in (product.a, product.b):
        reasons += [
            why_not_fetched(operand.name, operand.contiguous != "strided", operand.aligned),
            why_not_read(operand.name, operand.dtype, operand.contiguous == "k"),
        ]
    return next((reason for reason in reasons if reason is not None), None)


def why_no_instruction(a: str, b: str, acc: str, shape: tuple[int, int, int] | None = None) -> str | None:
    """Return why no warpgroup instruction computes a product of dtypes, None where one does.

    Args:
        a: dtype of the left operand.
        b: dtype of the right one.
        acc: dtype of the sums.
        shape: rows, columns and depth of a tile; None asks whether any tile will do.
    """
    m, n, k = shape or (GROUP_ROWS, GROUP_ROWS, 0)
    instruction = wgmma_instruction(a, b, acc, n)
    if instruction is None:
        return f"no warpgroup instruction for {a} x {b} -> {acc}" + (f" with {n} columns" if shape else "")
    if m % GROUP_ROWS or n & (n - 1) or m & (m - 1) or k % instruction.k or k & (k - 1):
        rule = f"rows in {GROUP_ROWS}s, columns and K in powers of two, K in {instruction.k}s are needed"
        return f"a product of {m}x{n}x{k}: {rule}"
    return None


def why_not_fetched(name: str, contiguous: bool, aligned: bool) -> str | None:
    """Return why the copy engine cannot fetch boxes of a tensor, None where it can.

    Args:
        name: the tensor's.
        contiguous: whether it has a contiguous dimension.
        aligned: whether its address is a multiple of `ALIGN_BYTES`.
    """
    if contiguous and aligned:
        return None
    return f"{name} has no contiguous dimension or is not aligned to {ALIGN_BYTES} bytes"


def why_not_read(name: str, dtype: DType, along_k: bool) -> str | None:
    """Return why warpgroup instructions cannot read an operand as it lies, None where they can.

    Args:
        name: the operand's.
        dtype: its elements.
        along_k: whether elements of one sum lie side by side.
    """
    if dtype.bytes > 1 or along_k:
        return None
    return f"8-bit operands are read along K; {name} is contiguous along the other dimension"


def why_not_known(found: bool) -> str | None:
    """Return why a producer does not know what to fetch, None where it does: it runs no loads of scalars, no branches.

    Args:
        found: whether such ops say where tiles are, or how many.
    """
    if found:
        return "the loop's bounds or the places it loads from are not known before the roles part"
    return None


def needs_threads(tf32: bool, along_k: bool) -> bool:
    """Return whether threads read an operand and hand it on: instructions read 32-bit elements along K only.

    Args:
        tf32: whether it is rounded to tf32.
        along_k: whether elements of one sum lie side by side.
    """
    return tf32 and not along_k


def is_turned(left: bool, right: bool) -> bool:
    """Return whether a product is best computed as `(bᵀ·aᵀ)ᵀ`: only left operands come from registers.

    Args:
        left: whether instructions read the left operand as it was copied to shared memory.
        right: the same of the right one.
    """
    return left and not right


def why_no_shares(cluster: int, ping_pong: bool) -> str | None:
    """Return why programs cannot share out the steps of the last tiles (stream-K), None where they can.

    Args:
        cluster: programs of a cluster, which share a tile's loop over K or fetch operands together.
        ping_pong: whether groups of consumers take tiles in turn.
    """
    if cluster > 1:
        return "the programs of a cluster share tiles or operands"
    return "ping_pong=1 was asked for, whose consumers do not share tiles" if ping_pong else None


def stage_bytes(shape: Sequence[int], dtype: DType) -> int:
    """Return the bytes of one stage of a tile's ring, sizes rounded up to powers of two."""
    return prod(1 << (size - 1).bit_length() for size in shape) * dtype.bytes


def buffer_bytes(shape: Sequence[int], dtype: DType) -> int:
    """Return the bytes that a shared buffer takes."""
    return -(-prod(shape) * dtype.bytes // BUFFER_BYTES) * BUFFER_BYTES


def why_no_turns(num_warps: int | None, shares_tiles: bool) -> str | None:
    """Return why two groups of consumers cannot take tiles in turn, None where they can.

    Args:
        num_warps: the warps that were asked for.
        shares_tiles: whether programs share a tile's loop over K.
    """
    if num_warps not in (None, GROUP_WARPS):
        return f"num_warps={num_warps} was asked for, and a group has {GROUP_WARPS}"
    return "programs share a tile's loop over K" if shares_tiles else None


def why_no_registers(sums: int, warps: int, weight: int) -> str | None:
    """Return why the sums of a tile leave no registers for what else it needs, so that it spills; None where they do.

    Args:
        sums: elements of the tile's accumulators.
        warps: the warps that compute it.
        weight: what is needed beside them: 0 for little, 1 for as much as the sums take, such as a second set of them,
            2 for three times as much.
    """
    if sums <= warps * (SUMS_PER_WARP >> weight):
        return None
    return f"{sums} sums of {warps} warps leave no registers for an epilogue of weight {weight}"
