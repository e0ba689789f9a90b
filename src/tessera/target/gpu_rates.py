"""What products reach of a GPU's rates (`target.machines`), and what else takes time: the numbers plans are chosen by.

Rates of tiles and what is added to them are fitted to 3 280 schedules of 210 products on an H100, beside rates that
were fitted to 2 400 of 141 others (`benchmarks/regret.py`), those of products by threads to 622 of 57; those of tf32
and f64 come from an H200.
"""

from __future__ import annotations

TILE_RATE = {
    (128, 256): 1.17,
    (256, 128): 0.924,
    (128, 128): 0.766,
    (128, 192): 0.964,
    (192, 128): 0.962,
    (64, 192): 0.772,
    (64, 256): 0.761,
    (128, 64): 0.55,
    (64, 128): 0.711,
    (64, 64): 0.507,
    (128, 32): 0.335,
    (64, 32): 0.299,
}
"""Part of the matrix units' rate (`Machine.flops`) that a tile of this size reaches, for warp-specialised products."""

COOL = 1.18
COOL_GROWTH = 0.688
"""Multiprocessors are faster where others are idle, as the power of the GPU is limited: by the number of all by that
of those that work, or the first of these if it is less, to the power of the second."""

ACROSS_LINES = 1.89
"""How much longer operands take from the L2 cache whose rows are no multiples of 128 bytes (3000, 4104 terms)."""
PAIRED_RATE = 0.976
"""Part of the rate that pairs of programs reach which fetch an operand together."""

CLUSTERED = {1: 1.0, 2: 1.0, 4: 0.85, 8: 0.75}
"""Part of the multiprocessors that programs in clusters of this size can take: a cluster stays in one part of a GPU."""

WRITTEN_ACROSS = 1.0
WRITTEN_SINGLE = 3.0
"""Lines that memory moves more for each row of a tile that begins or ends inside one: at multiples of 16 bytes, and
anywhere. Fitted to 767 schedules of 48 products with 16 to 248 terms, whose time is that of their results."""
SHARED_COLUMNS = 1.3
ONE_COLUMN = 0.951
READ_AGAIN = 0.5
"""What memory takes longer where programs fetch both operands, and one of them, together; and the power by which it
does where those of several waves fetch them again."""

ALONE = 1.45
STARTING = 0.481e-6
"""How much faster the L2 cache serves a few programs, and seconds by which the start of as many as run at once is later
than that of one."""

MEETING = 0.326e-6
EXCHANGE = 49.8e9
"""Seconds that one more program of a cluster adds where threads multiply, and bytes of its partial sums that another
one reads in a second."""

SPLIT_RATE = 0.667
SPLIT_GROWTH = 0.245
"""Part of the rate that programs reach which share a tile in a cluster, and the power of all multiprocessors by theirs
with which it grows: few programs have more of the cache and of memory each. These, `EXCHANGE` and what follows of crews
are fitted to 1030 schedules of 80 products of which half have at most 66 tiles of 64 x 64 (benchmarks/regret.py)."""

TURNS_RATE = {(128, 128): 0.92, (64, 256): 0.763, (64, 128): 0.581, (64, 64): 0.424}
"""The same part where two groups of warps take tiles in turn, so that the ends of tiles overlap products."""
SECOND_GROUP = 0.0526e-6
"""Seconds until the second of them has its first tile."""

SHARED_RATE = 0.782
SHARING = 0.13e-6
"""Part of the rate where programs share the last tiles' steps through memory (stream-K), and seconds added."""
CREW_RATE = 0.986
CREW_MEETING = 7.17e-6
CREW_LEFT = 0.749e11
"""Part of the rate where several programs share each of a few tiles, seconds added, and bytes of what others left that
the last of them reads in a second."""

APART = 1.79
CACHE_BYTES = 50e6
"""What they fetch, each at other terms, by the rate of memory, where operands are larger than this."""

LEAST_TILE = 0.792e-6
"""Seconds that a tile takes at least, however few its terms: its copies and its store are waited for."""
BETWEEN = 0.281e-6
SHARE = 128
STORE = 0.662e-6
SINGLE_STORE = 1.46e-6
STORING_WARPS = 4
OPERATION = 0.27e-6
"""Seconds from a tile's last product to the next one's first, and those that so many elements of a thread's share add:
of a store, of one of single elements by so many warps at most, and of each operation."""
STORED_COLUMNS = 128
STORED_GROWTH = 0.6
"""The power by which more warps than that take longer for single elements, the more columns beside these a tile has."""

TURNED_RATE = {16: 0.192, 32: 0.318, 64: 0.422}
"""By rows, the part of the matrix units' rate that tiles of turned products reach."""

BY_REGISTERS = 0.89
"""Part of the matrix units' rate that products reach whose left operand comes by registers (benchmarks/gemm.py)."""
PRODUCTS_PER_ELEMENT = 32
"""Multiply-adds in tf32 in the time in which shared memory moves one element."""

REALIGNED_RATE = {
    (128, 128): 0.146,
    (128, 64): 0.149,
    (64, 128): 0.161,
    (64, 64): 0.183,
    (64, 32): 0.0978,
    (32, 64): 0.12,
}
REALIGNED_TERMS = 64
REALIGNED_STEP = 1.25e-6
REALIGNED_WARPS = 16
REALIGNED_START = 0.04e-6
"""Of products whose rows may begin at any element: parts of the matrix units' rate that tiles reach, terms of a step,
the seconds that one of 64 x 64 takes at least, warps of a multiprocessor, and seconds before the first step."""
PART_TERMS = 256
"""Of a product, terms of a step or of several that are worth a program of their own: less costs more than it saves."""
MOST_PARTS = 64
"""Programs that share a tile of products at most: there are no copies of its sums in other threads."""
RESIDENT_SUMS = 12288
"""Sums of products that the programs of a multiprocessor keep in registers."""
HELD_BYTES = 96 << 10
"""Sums of a program that others share unasked, at most: more leave 8 warps no registers for what a part needs."""
LEFT_BYTES = 1 << 19
"""That one program reads of others, which share its tile, at most: a few microseconds."""
LEAST_SHARERS = 8
"""Programs that may share the steps of a tile where there are few tiles, whatever its sums take."""
SHARING_FEW = 1.33e-6
LEFT = 0.494e11
"""Seconds that a tile takes longer which programs share (twice that by threads), and bytes that its last one reads in a
second of what others left."""
SINGLE = 7.26e9
SINGLE_WARPS = 9.86
SINGLE_GROWTH = 0.371
"""Elements of 4 bytes that a multiprocessor copies one by one in a second, the warps from which on it does, and the
power of their number by which fewer do."""
HIDDEN = 0.809
"""Part of the shorter one of copies and products that a program does not hide behind the longer one."""
UNHIDDEN_TERMS = 27.6
"""Terms whose products take as long as the start and the end of a program, which only other programs hide."""
PROGRAM = 0.331e-6
"""Seconds that a program by threads takes beside its steps and its end."""

WARP_WIDE = 0.59
"""Part of what warpgroup products reach that warp-wide ones do, where both exist."""
MULTIPLY_ADDS = 0.0951
MULTIPLY_ADDS_F64 = 0.041
"""Parts of the matrix units' 16-bit rate at which threads multiply and add, and that for sums of 64 bits."""
ISSUING_WARPS = 7.41
ISSUING_GROWTH = 0.188
"""Warps of a multiprocessor that keep its units busy, and the power of their number by which fewer do not."""
READ = 1.47
"""Multiply-adds in the time in which a thread reads an element of an operand from shared memory."""
BY_THREADS = {
    (16, 16): 0.763,
    (32, 16): 0.88,
    (64, 16): 0.935,
    (64, 64): 1.02,
    (64, 32): 0.962,
    (32, 64): 0.951,
    (64, 128): 0.898,
    (128, 256): 0.838,
    (256, 128): 0.836,
    (32, 32): 0.94,
    (128, 64): 0.911,
    (16, 32): 0.942,
}
"""How much faster than that tiles are which threads compute."""
REGISTERS = 2048
OTHERS = 64
"""Registers of a multiprocessor for each lane of a warp, and those of a thread beside two for each of its sums."""
STEP = 0.254e-6
"""Seconds that a step takes at least: the wait for its copies, its barrier, the first reads."""
F64 = 0.06
"""Part of it that products of the matrix units in f64 reach."""

COPIES = 3.46e-6
"""Seconds that the launch of copies of operands adds, beside their bytes: 2 to 3 on the GPU, more on the host."""

HALVES_RATE = {(128, 128): 1.1, (64, 128): 0.9, (128, 64): 0.8, (64, 64): 0.65}
"""Part of the matrix units' rate in tf32 that tiles reach whose f32 operands are sums of two numbers of tf32."""
AGAIN = 2.5e-6
"""Seconds of the launch that would compute such a product by multiply-adds, and finds that it need not."""


def sharers(bytes_: int) -> int:
    """Return how many programs may share the steps of a tile whose sums take so many bytes, where tiles are few."""
    return min(max(LEFT_BYTES // bytes_, LEAST_SHARERS), MOST_PARTS)


STEP_TERM = 1750
TERM_OF_SUM = 0.252
"""Picoseconds that each term of a tile takes with roles, and each for one of its sums."""
END_OF_SUM = 81
LEAD = 54
"""Picoseconds that a tile takes for each of its sums beside that, and those by which a launch is done earlier."""
WARP_ROUNDS = {(128, 128): (2, 60_000, 4_000_000), (64, 64): (3, 28_000, 2_000_000)}
"""By tile, without roles: those that a multiprocessor computes at once, picoseconds of each term, and beside that."""
