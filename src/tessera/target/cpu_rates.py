"""What one core of a CPU does in a cycle, as products see it: the numbers that blocks are chosen by."""

from __future__ import annotations

VECTOR_RATE = 2.0
TILE_RATE = 16.0
"""Vectors of groups that are multiplied and added in a cycle; a tile takes 16 cycles for 256 of them (Intel 64 and
IA-32 Architectures Optimization Reference Manual, chapter on AMX)."""

PACK = {1: 16.0, 2: 32.0, 4: 32.0}
COPY = 14.0
READ = 4.0
CROWDED = 12.0
PASS = 1.5
END = 6.0
BLOCK = 3000.0
SHARED = 150.0
NARROW = 0.7
"""Cycles to pack a vector of groups of so many terms, to pack one of a left operand that is stored by columns, to read
one of a left operand for the first time, to copy it where rows crowd a few sets of the second cache, to load and store
a vector of sums around a step, to store it at the end, to begin a block, to store a short piece of a row whose
neighbours another core stores; and what one vector beside whole panels takes longer than its share, in parts of it.
Fitted to measurements on Zen 5."""

TILE_PACK = 16.0
TILE_COPY = 12.0
TILE_PASS = 4.0
TILE_FAR = 12.0
TILE_END = 8.0
TILE_BLOCK = 800.0
"""The same for matrix units: to pack a vector of groups of the right operand, to copy one of the left operand to tiles,
to load and store a vector of sums around a step, the same beyond the second cache, to store it at the end, and to begin
a block. Measured on Sapphire Rapids, where what packs goes at the pace of its caches."""

LATE = 0.12
"""Part of a block by which the last core ends later than planned: other work takes a core's time, a thread wakes late,
some cores are slower."""

LONG_PIECE = 320
FAR_PIECE = 4096
"""Bytes from which on the lines that prefetchers take from the neighbour do not matter; where the CPU has matrix units,
too: its prefetchers follow a stream to the end of a page (measured on Sapphire Rapids)."""

CLOCK = 3e9
CORE_MEMORY = 10e9
LAUNCH = 10e-6
"""Assumed of all CPUs where whole graphs are explained, which takes no more than their order of magnitude: cycles a
second, bytes that one core moves in a second, and seconds from a kernel's call to its first element."""
