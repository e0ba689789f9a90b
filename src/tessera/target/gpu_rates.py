"""What products reach of a GPU's rates (`target.machines`), and what else takes time: the numbers plans are chosen by.

Rates of tiles and what is added to them are fitted to 1 100 schedules of 87 products on an H200 that fetch nothing from
outside of tensors (`trim-boxes`); those of products by threads to 1 800 of 144; those of tf32 and f64 come from an
H200, too. What copies of operands take, rows that begin anywhere and long sums by threads is fitted to 1 500 schedules
of 190 products on an H200.
"""

from __future__ import annotations

TILE_RATE = {
    (128, 256): 1.22,
    (256, 128): 1.19,
    (128, 224): 1.09,
    (224, 128): 1.06,
    (128, 192): 1.2,
    (192, 128): 1.16,
    (128, 160): 1.09,
    (160, 128): 1.04,
    (128, 128): 1.15,
    (64, 256): 1.11,
    (64, 224): 0.988,
    (64, 192): 1.15,
    (64, 160): 0.854,
    (64, 128): 0.904,
    (128, 96): 0.841,
    (96, 128): 1,
    (128, 64): 0.917,
    (64, 96): 0.732,
    (64, 64): 0.644,
    (128, 32): 0.506,
    (64, 32): 0.501,
}
"""Part of the matrix units' rate (`Machine.flops`) that a tile of this size reaches, for warp-specialised products."""

COOL = 1.08
COOL_GROWTH = 0.623
"""Multiprocessors are faster where others are idle, as the power of the GPU is limited: by the number of all by that
of those that work, or the first of these if it is less, to the power of the second."""

ACROSS_LINES = 2.87
"""How much longer operands take from the L2 cache whose rows are no multiples of 128 bytes (3000, 4104 terms)."""
PAST_END = 2.2e-9
"""Seconds that a row of a box takes which begins in a tensor and ends past its end: the rest of it is zeros."""
PAIRED_RATE = 0.914
"""Part of the rate that pairs of programs reach which fetch an operand together."""

CLUSTERED = {1: 1.0, 2: 1.0, 4: 0.85, 8: 0.75}
"""Part of the multiprocessors that programs in clusters of this size can take: a cluster stays in one part of a GPU."""

WRITTEN_ACROSS = 1.0
WRITTEN_SINGLE = 3.0
"""Lines that memory moves more for each row of a tile that begins or ends inside one: at multiples of 16 bytes, and
anywhere. Fitted to 767 schedules of 48 products with 16 to 248 terms, whose time is that of their results."""
SHARED_COLUMNS = 1.63
ONE_COLUMN = 0.951
READ_AGAIN = 0.497
"""What memory takes longer where programs fetch both operands, and one of them, together; and the power by which it
does where those of several waves fetch them again."""

ALONE = 1.35
STARTING = 0.523e-6
"""How much faster the L2 cache serves a few programs, and seconds by which the start of as many as run at once is later
than that of one."""

MEETING = 0.326e-6
EXCHANGE = 44e9
"""Seconds that one more program of a cluster adds where threads multiply, and bytes of its partial sums that another
one reads in a second."""

SPLIT_RATE = 0.584
SPLIT_GROWTH = 0.471
"""Part of the rate that programs reach which share a tile in a cluster, and the power of all multiprocessors by theirs
with which it grows: few programs have more of the cache and of memory each. These, `EXCHANGE` and what follows of crews
are fitted to 1030 schedules of 80 products of which half have at most 66 tiles of 64 x 64 (benchmarks/regret.py)."""

SPLIT_START = 0.397e-6
SECOND_CREW = 0.52e-6
"""Seconds that a launch takes longer whose programs share tiles in clusters, or have two warpgroups for a tile."""

TURNS_RATE = {(128, 128): 1.09, (64, 256): 1.08, (64, 128): 0.92, (64, 64): 0.7}
"""The same part where two groups of warps take tiles in turn, so that the ends of tiles overlap products."""
SECOND_GROUP = 0.137e-6
"""Seconds until the second of them has its first tile."""

SHARED_RATE = 0.967
SHARING = 2.22e-6
"""Part of the rate where programs share the last tiles' steps through memory (stream-K), and seconds added."""
CREW_RATE = 1.03
CREW_MEETING = 2.91e-6
CREW_LEFT = 0.974e11
"""Part of the rate where several programs share each of a few tiles, seconds added, and bytes of what others left that
the last of them reads in a second."""

PARTS_RATE = 1.02
JOINING = 2.1e-6
JOINED = 1.84e12
"""Seconds that a second launch adds which adds up what programs leave in scratch memory, and bytes of that which are
stored and read again in a second."""

APART = 1.79
CACHE_BYTES = 50e6
"""What they fetch, each at other terms, by the rate of memory, where operands are larger than this."""

LEAST_TILE = 0.73e-6
"""Seconds that a tile takes at least, however few its terms: its copies and its store are waited for."""
BETWEEN = 0.328e-6
SHARE = 128
STORE = 0.783e-6
SINGLE_STORE = 1.46e-6
STORING_WARPS = 4
OPERATION = 0.27e-6
"""Seconds from a tile's last product to the next one's first, and those that so many elements of a thread's share add:
of a store, of one of single elements by so many warps at most, and of each operation."""
STORED_COLUMNS = 128
STORED_GROWTH = 0.6
"""The power by which more warps than that take longer for single elements, the more columns beside these a tile has."""

TURNED_RATE = {16: 0.345, 32: 0.66, 64: 0.74}
"""By rows, the part of the matrix units' rate that tiles of turned products reach."""

BY_REGISTERS = 0.89
"""Part of the matrix units' rate that products reach whose left operand comes by registers (benchmarks/gemm.py)."""
PRODUCTS_PER_ELEMENT = 32
"""Multiply-adds in tf32 in the time in which shared memory moves one element."""

REALIGNED_RATE = {
    (128, 128): 0.0878,
    (128, 64): 0.086,
    (64, 128): 0.0843,
    (64, 64): 0.15,
    (64, 32): 0.0865,
    (32, 64): 0.138,
}
REALIGNED_TERMS = 64
REALIGNED_STEP = 1.6e-6
REALIGNED_ACROSS = 1.7
REALIGNED_WARPS = 16
REALIGNED_START = 0.08e-6
REALIGNED_SOONER = 2.3e-6
"""Of products whose rows may begin at any element: parts of the matrix units' rate that tiles reach, terms of a step,
the seconds that one of 64 x 64 takes at least, by how much it takes longer where the left operand is stored by columns
(1.6 and 1.8 times as long as predicted without on an H200: 9375x57x1792, 77x10496x1066), warps of a multiprocessor,
seconds before the first step, and those by which such a launch starts sooner than a warp-specialised one."""
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
SHARING_FEW = 2.5e-6
LEFT = 0.46e11
"""Seconds that a tile takes longer which programs share (twice that by threads), and bytes that its last one reads in a
second of what others left."""
WARP_WIDE = 0.59
"""Part of what warpgroup products reach that warp-wide ones do, where both exist."""
MULTIPLY_ADDS = 0.0824
SLOT_FLOPS = 64
SCHEDULERS = 4
"""Part of the matrix units' 16-bit rate at which threads multiply and add, operations of an issue slot of a warp, and
schedulers of a multiprocessor that issue. These and what follows, all of products by threads, are fitted to products
in f32, of which two thirds have at most 128 terms."""
ISSUING_TURNS = 4
USUAL_SUMS = 32
SUMS_GROWTH = 0.497
ISSUING_GROWTH = 0.232
UNEVEN = 0.417
"""Warps of a scheduler that keep it busy, of so many sums a thread; the powers of those sums by which fewer warps do,
and of the number of warps by which too few do not; the part of the slots that schedulers lose with a warp less than
others."""
ALONE_BY_THREADS = 0.153
TAIL = 0.2
"""Part of a program's time that no other hides, and part of the programs of a multiprocessor in whose time the last
ones run beside ever fewer others."""
STEP_SLOTS = 43
STORE_SLOTS = 8.3
SINGLE_STORE_SLOTS = 8.1
OPERATION_SLOTS = 3.7
"""Issue slots of a step, and of each sum at the end of a program: of its store, more where rows of results begin
anywhere, and of each operation of an epilogue."""
COPY_SLOTS = 9
SHORT_ROWS = 65
SINGLE_SLOTS = 14.2
SIDE_BY_SIDE_SLOTS = 7.5
FEW_COPY = 0.66
"""Issue slots of copies to shared memory: of 16 bytes, by how much more where terms lie side by side, by the terms of a
step, and of 4 bytes: where terms do, and where not; the power by which the latter are more with fewer than 4 warps."""
ONE_STAGE = 0.18e-6
"""Seconds that a program waits for its copies which are not under way while it computes."""
UNHIDDEN = 0.3
"""Part of the shorter one of products and memory that the longer one does not hide."""
MOVED_BY_THREADS = 0.705
ENDS_BY_THREADS = 0.079
SOONER = 1.24e-6
"""Parts of the bytes and of the lines in part (`WRITTEN_ACROSS`) that memory moves while such a launch runs, and
seconds by which it starts sooner than warp-specialised ones."""
OTHERS = 80
OF_A_SUM = 1.25
MOST_REGISTERS = 255
REGISTERS = 2048
MOST_WARPS = 64
OF_A_PROGRAM_BYTES = 1024
"""Registers of a thread beside those for each of its sums, and at most; registers of a multiprocessor for each lane of
a warp, its warps, and what a program takes of its shared memory."""
SHARING_BY_THREADS = 1.35e-6
LEFT_BY_THREADS = 7.3e10
EXCHANGE_BY_THREADS = 7.3e10
"""Seconds that a tile takes longer which programs share, bytes that its last one reads in a second of what others left,
and those that it reads from others of a cluster."""
F64 = 0.06
"""Part of it that products of the matrix units in f64 reach."""

COPIES = 1.5e-6
"""Seconds that the launch of copies of operands adds, beside their bytes: 2 to 3 on the GPU, more on the host."""

HALVES_RATE = {(128, 128): 1.1, (64, 128): 0.9, (128, 64): 0.8, (64, 64): 0.65}
"""Part of the matrix units' rate in tf32 that tiles reach whose f32 operands are sums of two numbers of tf32."""
HALVES_STORED_SINGLY = 0.55e-9
"""Seconds that each sum of such a tile takes to be stored where rows of results begin anywhere."""
AGAIN = 2.5e-6
"""Seconds of the launch that would compute such a product by multiply-adds, and finds that it need not."""


def sharers(bytes_: int) -> int:
    """Return how many programs may share the steps of a tile whose sums take so many bytes, where tiles are few."""
    return min(max(LEFT_BYTES // bytes_, LEAST_SHARERS), MOST_PARTS)


def resident(sums: float, warps: int) -> float:
    """Return how many programs of so many warps a multiprocessor has registers for, whose threads multiply and add.

    Args:
        sums: registers of each thread that hold sums.
        warps: warps of a program.
    """
    registers = min(OTHERS + OF_A_SUM * sums, MOST_REGISTERS)
    return min(REGISTERS / registers, MOST_WARPS) / warps


STEP_TERM = 1750
TERM_OF_SUM = 0.252
"""Picoseconds that each term of a tile takes with roles, and each for one of its sums."""
END_OF_SUM = 81
LEAD = 54
"""Picoseconds that a tile takes for each of its sums beside that, and those by which a launch is done earlier."""
WARP_ROUNDS = {(128, 128): (2, 60_000, 4_000_000), (64, 64): (3, 28_000, 2_000_000)}
"""By tile, without roles: those that a multiprocessor computes at once, picoseconds of each term, and beside that."""
MEETING_OF_SHARED = 3_000_000
"""Picoseconds that a launch takes longer whose programs share the steps of tiles of 64 x 64."""
