"""Tables of the compiled entry: byte offsets of their 8-byte words, shared by who writes and who reads them.

A kernel object points at its table; a table lists records; a record says for which arguments it holds (one
`ARG` each, one `AXIS` for each dimension) and what is launched then (one `LAUNCH` for each grid).

A call works in one block of memory on the stack, whose offsets the tables hold: sizes, strides and integer
scalars first (what the cost of a launch depends on), then addresses and other scalars, the error word, the
programs of each launch, the pointers to each launch's parameters, and last the tensor maps.
"""

from __future__ import annotations

from typing import Final

WORD: Final = 8

ENTRY: Final = "tessera_entry"
"""The symbol of the entry. Its type is CPython's `vectorcallfunc`."""


def words(*names: str) -> dict[str, int]:
    """Return the byte offset of each word of a table."""
    return {name: WORD * place for place, name in enumerate(names)}


# A kernel object: after CPython's header, where the entry is called, the table, and the record that ran last.
KERNEL: Final = {"call": 16, "table": 24, "last": 32}
KERNEL_BYTES: Final = 40

API: Final = words(
    "context_get",
    "call",
    "clear",
    "occurred",
    "incref",
    "decref",
    "save",
    "restore",
    "long_value",
    "long_double",
    "pack_half",
    "compare",
    "from_long",
    "tuple_new",
    "tuple_set",
    "clock",
    "clock_kind",
    "array_type",
    "float_type",
    "float64_type",
    "long_type",
    "bool_type",
    "true",
    "false",
    "none",
    "profile",
    "generation",
)
"""Functions and objects of CPython and of this process. `profile` is the context variable, `generation` a counter
that a record made before its last change does not outlive."""

TABLE: Final = words("owner", "api", "slow", "count", "hint", "records")
"""`owner` is the Python object that keeps all of it alive; `records` is the first of `count` pointers."""

RECORD: Final = words(
    "id",
    "arguments",
    "positional",
    "names",
    "arg_count",
    "args",
    "fill_count",
    "fills",
    "equal_count",
    "equals",
    "apart_count",
    "aparts",
    "profile",
    "generation",
    "block_bytes",
    "cost_bytes",
    "error",
    "counts",
    "launch_count",
    "launches",
    "costs",
    "threads",
    "scratch",
    "scratch_busy",
    "pool",
    "make_pool",
    "failed",
    "return_count",
    "returns",
    "start",
    "own",
    "map_count",
    "maps",
    "slots_bytes",
    "workspace",
)
"""`names` points at `arguments - positional` keyword names; `equals` at pairs of block offsets that must hold the
same, `aparts` at pairs that must not; `fills` at block offsets and what is put there; `returns` at positions of
arguments. `start` is 0 where the entry runs the programs on the CPU, else the address of a function of the platform's,
`i64 (record, block, api)`, which starts them and gives one of the numbers below; `own` points at words of its own.
Where `slots_bytes` is not 0, it puts the address of a workspace into the block's word `workspace`."""
MISS, DONE, FAILED = 0, 1, 2
"""What starting gives: nothing happened, it ran, or a Python exception is set."""
STARTER: Final = "tessera_start"
"""The symbol of a platform's function."""
WALKER: Final = "tessera_walk"
"""The symbol of what starts a table of launches: a platform's function, `i64 (table, addresses, stream)`, or for the
CPU `i64 (lines, count, addresses)`, which gives the number of the line whose error word was set, from 1 on, or 0."""

PATCH: Final = words("goal", "number", "after")
"""The address of a parameter, the byte offset of an address among a run's, and how many bytes after it the parameter
points."""
PATCH_BYTES: Final = WORD * len(PATCH)
WALK_LINE: Final = words("patch_count", "patches", "function", "params", "programs", "error")
"""One grid of a table on the CPU; addresses are put where patches say before it runs."""
WALK_LINE_BYTES: Final = WORD * len(WALK_LINE)

ARG: Final = words(
    "kind",
    "place",
    "type",
    "other_type",
    "dtype",
    "device",
    "flags",
    "rank",
    "shift",
    "align_mask",
    "align",
    "written",
    "pointer",
    "sizes",
    "axes",
    "low",
    "high",
    "read",
    "inner",
    "mark",
    "mark_mask",
)
ARG_BYTES: Final = WORD * len(ARG)
NUMPY, DLPACK, DEVICE, FLOAT64, FLOAT32, FLOAT16, BFLOAT16, INTEGER, BOOLEAN, SAME, EQUAL = range(11)
"""Kinds of arguments. `SAME` is one object, `EQUAL` a number or string of one value."""

AXIS: Final = words("size", "zero", "some", "stride", "stride_zero", "stride_some")
"""Guards of one dimension: its size (-1: any), bits that must be 0 and bits of which one must not be 0 in it, and
the same for its stride, which is 0, 1, or (`ANY_STRIDE`) neither."""
AXIS_BYTES: Final = WORD * len(AXIS)
ANY_STRIDE: Final = -1
LEAST_ADDRESS: Final = 1 << 16
"""Below it there is no memory (Linux, `vm.mmap_min_addr`): an address there is an offset into none."""

LAUNCH: Final = words(
    "function",
    "param_count",
    "params",
    "pointers",
    "grid",
    "grid_end",
    "threads",
    "shared",
    "scratch",
    "most",
    "overlaps",
    "shares",
    "parts",
)
"""`params` points at block offsets (`SCRATCH` for the worker's own memory), `pointers` is the block offset of what
the launch gets; `grid` to `grid_end` is the program that computes how many programs it has."""
LAUNCH_BYTES: Final = WORD * len(LAUNCH)
SCRATCH: Final = -1

STEP: Final = words("code", "operand")
STEP_BYTES: Final = WORD * len(STEP)
GRID_CODES: Final = (
    "const",
    "load",
    "add",
    "sub",
    "mul",
    "floordiv",
    "ceildiv",
    "mod",
    "minimum",
    "maximum",
    "signed",
    "unsigned",
    "eq",
    "lt",
    "le",
    "blocks",
    "require",
)
"""Steps of a grid program, on a stack. `blocks` replaces an extent by the blocks of `operand` it takes; `require` drops
a number, and refuses the call where it is 0."""
GRID_DEPTH: Final = 16

COST: Final = words("signature", "uses", "nanoseconds")
COST_BYTES: Final = WORD * len(COST)
COST_SLOTS: Final = 16
COST_PROBES: Final = 3
COST_PERIOD: Final = 256
"""The first `COST_PROBES` of every `COST_PERIOD` launches of one set of sizes are timed."""
INLINE_NS: Final = 15_000
"""A launch that takes less than this alone is not worth waking workers for."""
HOLD_NS: Final = 3_000
"""A launch that takes less than this keeps the GIL: giving it up and taking it back costs 0.05 µs and more."""

MAP: Final = words("rank", "pointer", "bytes", "box", "ones", "at", "cache", "constants", "axes")
"""A tensor map; `constants` points at what no call changes, in the driver's numbers, and `axes` is the first of
`MAP_AXES` pairs of block offsets of a size and a stride."""
MAP_AXES: Final = 5
MAP_WORDS: Final = len(MAP) - 1 + 2 * MAP_AXES
MAP_KEY_WORDS: Final = 1 + 2 * MAP_AXES
MAP_DATA: Final = 128
MAP_ENTRY: Final = 256
"""One remembered map: its key in the first 128 bytes, then the map."""
MAP_SLOTS: Final = 8

# Objects of CPython and NumPy (`PyArrayObject_fields`); `host.py` checks each of them on a probe.
OBJECT_TYPE: Final = 8
FLOAT_VALUE: Final = 16
BYTES_DATA: Final = 32
TUPLE_SIZE: Final = 16
TUPLE_ITEMS: Final = 24
ARRAY: Final = {"data": 16, "rank": 24, "sizes": 32, "strides": 40, "dtype": 56, "flags": 64}
WRITEABLE: Final = 0x400

# `DLTensor` of DLPack 1.3, and functions of its `DLPackExchangeAPI`.
TENSOR: Final = {"data": 0, "device": 8, "rank": 16, "dtype": 20, "sizes": 24, "strides": 32, "offset": 40}
TENSOR_BYTES: Final = 48
EXCHANGE: Final = {"tensor": 40, "stream": 48}

# The worker pool: one block of memory, its hot words on cache lines of their own.
POOL: Final = {
    "posted": 0,
    "state": 64,
    "next": 128,
    "function": 192,
    "params": 200,
    "count": 208,
    "scratch": 216,
    "last": 224,
    "chunk": 232,
    "limit": 240,
    "busy": 256,
    "broken": 264,
    "started": 272,
    "stop": 280,
    "sleepers": 288,
    "ended": 296,
    "home": 304,
    "mutex": 320,
    "wake": 448,
    "done": 576,
    "threads": 704,
    "create": 2752,
    "join": 2760,
    "lock": 2768,
    "unlock": 2776,
    "wait": 2784,
    "broadcast": 2792,
    "sigmask": 2800,
    "setmask": 2808,
    "clock": 2816,
    "clock_kind": 2824,
    "memalign": 2832,
    "free": 2840,
    "save": 2848,
    "restore": 2856,
    "check": 2864,
    "cpu": 2872,
    "affinity": 2880,
    "set_affinity": 2888,
    "unwritten": 2896,
}
"""`posted` counts jobs, `state` holds `POOL_OPEN`, `POOL_WAITING` and the workers inside, `next` is the first program
that nobody has taken, `home` the CPU of the last caller that woke workers. A job stands from `function` on. From
`create` on: functions of the C library and of CPython. `unwritten` is what workers fill their scratch memory with
before they take part in a job, nothing where it is 0."""
POOL_BYTES: Final = 2944
POOL_RESET: Final = 2752
"""Bytes that a forked child clears: threads do not survive a fork."""
POOL_OPEN: Final = 1 << 30
POOL_WAITING: Final = 1 << 29
POOL_THREADS: Final = 256
POOL_CPUS: Final = 8192
"""CPUs that an affinity mask tells apart."""
POOL_PARAMS: Final = 2048
"""Parameters of a launch that a worker can hold a copy of."""
POOL_SPIN_NS: Final = 20_000
"""How long a worker looks out for the next job before it sleeps: as long as waking a sleeper takes, so that at worst
twice the least is spent."""
POOL_LINGER_NS: Final = 2_000_000
"""How long a worker that finds nothing left waits for the others to end the job, before it begins to look out: one that
came late must not sleep again and so be late for the next job, and the one after that."""
POOL_CLOSE_NS: Final = 100_000
"""How long a caller waits for late workers before it sleeps: a virtual machine takes so long to wake it."""
POOL_WAKE_NS: Final = 80_000
"""A job that takes less than this alone wakes nobody, unless it follows another so closely that it wakes them for all
that come: waking a thread costs its caller up to 30 µs on a virtual machine."""
POOL_POLL_NS: Final = 50_000_000
"""How often a caller asks CPython for signals."""
POOL_PIECES: Final = 8
"""Pieces of a job for each thread: enough to even out, few enough that taking one costs nothing."""
POOL_PIECE_NS: Final = 8_000_000
"""A piece that takes longer is followed by one of a single program. Each thread begins with one program, whatever
launches before took, and comes to longer pieces as they turn out short: so a signal never waits for long."""
POOL_GROWTH: Final = 32
"""How many times longer a piece may be than the one before."""
POOL_RUN: Final = "tessera_pool_run"
POOL_STOP: Final = "tessera_pool_stop"
POOL_WORDS: Final = {"run": 0, "pool": WORD}
"""Where the entry finds the pool: `run` is 0 until there is one."""
