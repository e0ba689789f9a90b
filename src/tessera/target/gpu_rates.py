"""What products reach of a GPU's rates (`target.machines`), and what else takes time: the numbers plans are chosen by.

Relative tile rates are fitted to measurements on an H200 (docs/linalg.md).
"""

from __future__ import annotations

TILE_RATE = {
    (128, 256): 1.0,
    (256, 128): 0.97,
    (128, 128): 0.95,
    (128, 192): 0.95,
    (192, 128): 0.94,
    (64, 192): 0.88,
    (64, 256): 0.91,
    (128, 64): 0.78,
    (64, 128): 0.78,
    (64, 64): 0.55,
    (128, 32): 0.40,
    (64, 32): 0.32,
}
"""Part of the matrix units' rate that a tile of this size reaches, for warp-specialised products."""

ACROSS_LINES = 1.7
"""How much longer operands take from the L2 cache whose rows are no multiples of 128 bytes (3000, 4104 terms)."""
PAIRED_RATE = 0.93
"""Part of the rate that pairs of programs reach which fetch an operand together."""

CLUSTERED = {1: 1.0, 2: 1.0, 4: 0.85, 8: 0.75}
"""Part of the multiprocessors that programs in clusters of this size can take: a cluster stays in one part of a GPU."""

SHARED_COLUMNS = 1.07
"""What memory takes longer where several rows of tiles fetch the right operand."""

MEETING = 0.5e-6
EXCHANGE = 25e9
"""Seconds that one more program of a cluster adds, and bytes of its partial sums that are read in a second."""

TURNS_RATE = {(128, 128): 0.97, (64, 256): 0.93, (64, 128): 0.82, (64, 64): 0.5}
"""The same part where two groups of warps take tiles in turn, so that the ends of tiles overlap products."""
SECOND_GROUP = 0.3e-6
"""Seconds until the second of them has its first tile."""

SHARED_RATE = 0.95
SHARING = 5e-6
"""Part of the rate, and seconds added, where programs share the last tiles' steps through memory (stream-K)."""

SHARE = 128
STORE = 0.6e-6
OPERATION = 0.2e-6
"""Elements of a thread's share of a tile, and seconds from its last product on: a store, and each operation."""

TURNED_RATE = {16: 0.22, 32: 0.35, 64: 0.55}
"""By rows, the part of the matrix units' rate that tiles of turned products reach."""

BY_REGISTERS = 0.89
"""Part of the matrix units' rate that products reach whose left operand comes by registers (benchmarks/gemm.py)."""
PRODUCTS_PER_ELEMENT = 32
"""Multiply-adds in tf32 in the time in which shared memory moves one element."""

REALIGNED_RATE = {
    (128, 128): 0.245,
    (128, 64): 0.19,
    (64, 128): 0.19,
    (64, 64): 0.16,
    (64, 32): 0.11,
    (32, 64): 0.11,
}
REALIGNED_TERMS = 64
REALIGNED_STEP = 1.25e-6
REALIGNED_WARPS = 16
REALIGNED_START = 2e-6
"""Of products whose rows may begin at any element: parts of the matrix units' rate that tiles reach, terms of a step,
the seconds that one of 64 x 64 takes at least, warps of a multiprocessor, and seconds before the first step."""
PART_TERMS = 256
"""Of a product, terms of a step or of several that are worth a program of their own: less costs more than it saves."""
MOST_PARTS = 64
"""Programs that share a tile of products at most: there are no copies of its sums in other threads."""
RESIDENT_SUMS = 12288
"""Sums of products that the programs of a multiprocessor keep in registers."""
LEFT_BYTES = 1 << 19
"""That one program reads of others, which share its tile, at most: a few microseconds."""
SHARING_FEW = 2.5e-6
LEFT = 1e11
"""Seconds that a tile takes longer which programs share (twice that by threads), and bytes that its last one reads in a
second of what others left."""
SINGLE = 4.7e9
SINGLE_WARPS = 12
"""Elements of 4 bytes that a multiprocessor copies one by one in a second (1777 x 145 x 5407 in f32 on an H200), and
warps from which on it does."""

WARP_WIDE = 0.59
"""Part of what warpgroup products reach that warp-wide ones do, where both exist."""
MULTIPLY_ADDS = 0.082
MULTIPLY_ADDS_F64 = 0.041
"""Parts of the matrix units' 16-bit rate at which threads multiply and add, and that for sums of 64 bits."""
READ = 1.2
"""Multiply-adds in the time in which a thread reads an element of an operand from shared memory."""
REGISTERS = 2048
OTHERS = 64
"""Registers of a multiprocessor for each lane of a warp, and those of a thread beside two for each of its sums."""
STEP = 0.4e-6
"""Seconds that a step takes at least: the wait for its copies, its barrier, the first reads."""
F64 = 0.06
"""Part of it that products of the matrix units in f64 reach."""

COPIES = 4e-6
"""Seconds that the launch of copies of operands adds, beside their bytes: 2 to 3 on the GPU, more on the host."""

STEP_TERM = 1750
TERM_OF_SUM = 0.252
"""Picoseconds that each term of a tile takes with roles, and each for one of its sums."""
END_OF_SUM = 81
LEAD = 54
"""Picoseconds that a tile takes for each of its sums beside that, and those by which a launch is done earlier."""
WARP_ROUNDS = {(128, 128): (2, 60_000, 4_000_000), (64, 64): (3, 28_000, 2_000_000)}
"""By tile, without roles: those that a multiprocessor computes at once, picoseconds of each term, and beside that."""
