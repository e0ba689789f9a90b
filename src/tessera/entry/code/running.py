"""Starts what a record says, on the CPU or on a GPU, from a filled block."""

from __future__ import annotations

from tessera.entry import layout
from tessera.entry.code.writer import Function
from tessera.entry.layout import API, ATTRIBUTE, CONFIG, COST, LAUNCH, MAP, RECORD, WORKSPACE
from tessera.target.artifact import MOST_MAPPED

MISS, DONE, FAILED = 0, 1, 2
"""What running gives: nothing happened, it ran, or a Python exception is set."""

_RUN = (("ptr", "record"), ("ptr", "block"), ("ptr", "api"))


def functions() -> list[Function]:
    """Return the functions that run records."""
    return [_prepare(), _clock(), _describe(), _cpu_launch(), _cpu(), _gpu_launch(), _workspace(), _gpu()]


def _prepare() -> Function:
    """Write the parameters' addresses and the programs of every launch into the block."""
    f = Function("prepare", "i1", _RUN)
    scratch = f.load("%record", RECORD["scratch"], "ptr")
    counts = f.at("%block", f.load("%record", RECORD["counts"]))
    launches = f.load("%record", RECORD["launches"], "ptr")
    f.store(0, f.at("%block", f.load("%record", RECORD["error"])))
    with f.count_up(f.load("%record", RECORD["launch_count"])) as number:
        launch = f.at(launches, f.op("mul", number, layout.LAUNCH_BYTES))
        found = f.call("i64", "@programs", ("ptr", launch), ("ptr", "%block"))
        f.unless_give(f.op("icmp ule", found, _limit(f)), "false")
        f.store(found, counts, f.op("shl", number, 3))
        offsets = f.load(launch, LAUNCH["params"], "ptr")
        pointers = f.at("%block", f.load(launch, LAUNCH["pointers"]))
        with f.count_up(f.load(launch, LAUNCH["param_count"])) as place:
            word = f.op("shl", place, 3)
            offset = f.load(offsets, word)
            inside = f.at("%block", offset)
            own = f.op("icmp eq", offset, layout.SCRATCH)
            f.store(f.value(f"select i1 {own}, ptr {scratch}, ptr {inside}"), pointers, word, "ptr")
    f.give("true")
    return f


def _limit(f: Function) -> str:
    """Return how many programs a launch may have: unsigned, so that a refusal is beyond it."""
    gpu = f.op("icmp ne", f.load("%record", RECORD["gpu"]), 0)
    return f.value(f"select i1 {gpu}, i64 {layout.LAUNCH_LIMIT}, i64 {2**62}")


def _clock() -> Function:
    f = Function("now", "i64", [("ptr", "api")])
    time = f.array("i64", 2)
    kind = f.value(f"trunc i64 {f.load('%api', API['clock_kind'])} to i32")
    f.call("i32", f.load("%api", API["clock"], "ptr"), ("i32", kind), ("ptr", time))
    f.give(f.op("add", f.op("mul", f.load(time), 1_000_000_000), f.load(time, 8)))
    return f


# CPU


def _cpu() -> Function:
    f = Function("run_cpu", "i64", _RUN)
    busy = f.load("%record", RECORD["scratch_busy"])
    f.unless_give(f.op("icmp eq", busy, 0), MISS)
    f.unless_give(f.call("i1", "@prepare", *_passed()), MISS)
    signature = _signature(f)
    own = f.op("icmp ne", f.load("%record", RECORD["scratch"]), 0)
    f.store(f.value(f"zext i1 {own} to i64"), "%record", RECORD["scratch_busy"])
    with f.count_up(f.load("%record", RECORD["launch_count"])) as number:
        status = f.call("i64", "@launch_cpu", *_passed(), ("i64", number), ("i64", signature))
        with f.when(f.op("icmp ne", status, DONE)):
            f.store(0, "%record", RECORD["scratch_busy"])
            f.give(status)
    f.store(0, "%record", RECORD["scratch_busy"])
    f.give(DONE)
    return f


def _passed() -> list[tuple[str, str | int]]:
    return [(kind, f"%{name}") for kind, name in _RUN]


def _signature(f: Function) -> str:
    """Return a hash of the sizes, strides and integers of a call, never 0."""
    total = f.variable("i64", "1")
    count = f.op("lshr", f.load("%record", RECORD["cost_bytes"]), 3)
    with f.count_up(count) as place:
        word = f.load("%block", f.op("shl", place, 3))
        factor = f.op("add", f.op("mul", place, 0x5851F42D4C957F2E), 0x14057B7EF767814F)
        f.store(f.op("add", f.load(total), f.op("mul", word, factor)), total)
    mixed = f.load(total)
    mixed = f.op("mul", f.op("xor", mixed, f.op("lshr", mixed, 29)), 0x3C79AC492BA7B653)
    return f.op("or", mixed, 1)


def _cpu_launch() -> Function:
    f = Function("launch_cpu", "i64", [*_RUN, ("i64", "number"), ("i64", "signature")])
    word = f.op("shl", "%number", 3)
    programs = f.load(f.at("%block", f.load("%record", RECORD["counts"])), word)
    f.unless_give(f.op("icmp ne", programs, 0), DONE)
    launch = f.at(f.load("%record", RECORD["launches"], "ptr"), f.op("mul", "%number", layout.LAUNCH_BYTES))
    function = f.load(launch, LAUNCH["function"], "ptr")
    params = f.at("%block", f.load(launch, LAUNCH["pointers"]))
    slot = _cost_slot(f)
    uses = f.load(slot, COST["uses"])
    f.store(f.op("and", f.op("add", uses, 1), layout.COST_PERIOD - 1), slot, COST["uses"])
    first = f.variable("i64", "0")
    with f.when(f.op("icmp ult", uses, layout.COST_PROBES)):
        _probe(f, function, params, programs, slot, uses, first)
    start = f.load(first)
    with f.when(f.op("icmp slt", start, programs)):
        _run_rest(f, function, params, start, programs, slot, launch)
    error = f.load("%block", f.load("%record", RECORD["error"]))
    with f.when(f.op("icmp ne", error, 0)):
        _tell(f, "failed", [error])
        f.give(FAILED)
    f.give(DONE)
    return f


def _cost_slot(f: Function) -> str:
    """Return where the cost of this launch for these sizes is kept; forgotten for sizes that share the place."""
    own = f.op("add", "%signature", f.op("shl", "%number", 1))
    place = f.op("lshr", own, 64 - (layout.COST_SLOTS.bit_length() - 1))
    costs = f.load("%record", RECORD["costs"], "ptr")
    slot = f.at(costs, f.op("mul", place, layout.COST_BYTES))
    with f.when(f.op("icmp ne", f.load(slot, COST["signature"]), own)):
        f.store(own, slot, COST["signature"])
        f.store(0, slot, COST["uses"])
    return slot


def _enter(f: Function, function: str, params: str, first: str, last: str) -> None:
    f.do(function, ("ptr", params), ("i64", first), ("i64", last))


def _release(f: Function) -> str:
    """Give up the GIL; returns what takes it back."""
    return f.call("ptr", f.load("%api", API["save"], "ptr"))


def _regain(f: Function, state: str) -> None:
    f.do(f.load("%api", API["restore"], "ptr"), ("ptr", state))


def _probe(f: Function, function: str, params: str, programs: str, slot: str, uses: str, first: str) -> None:
    """Run the first programs against the clock."""
    threads = f.load("%record", RECORD["threads"])
    part = f.op("udiv", programs, f.op("shl", threads, 4))
    part = f.value(f"call i64 @llvm.umax.i64(i64 {part}, i64 1)")
    state = _release(f)
    before = f.call("i64", "@now", ("ptr", "%api"))
    _enter(f, function, params, "0", part)
    after = f.call("i64", "@now", ("ptr", "%api"))
    _regain(f, state)
    spent, all_, some = (
        f.value(f"uitofp i64 {value} to double") for value in (f.op("sub", after, before), programs, part)
    )
    each = f.op("fdiv", spent, some, "double")
    cost = f.value(f"call i64 @llvm.fptosi.sat.i64.f64(double {f.op('fmul', each, all_, 'double')})")
    least = f.value(f"call i64 @llvm.smin.i64(i64 {cost}, i64 {f.load(slot, COST['nanoseconds'])})")
    fresh = f.op("icmp eq", uses, 0)
    f.store(f.value(f"select i1 {fresh}, i64 {cost}, i64 {least}"), slot, COST["nanoseconds"])
    f.store(part, first)


def _run_rest(f: Function, function: str, params: str, start: str, programs: str, slot: str, launch: str) -> None:
    cost = f.load(slot, COST["nanoseconds"])
    single = f.op("icmp eq", f.op("sub", programs, start), 1)
    here = f.op("or", single, f.op("icmp slt", cost, layout.INLINE_NS), "i1")
    with f.when(f.op("xor", here, "true", "i1")):
        _run_on_pool(f, function, params, start, programs, launch, cost)
    short = f.op("icmp slt", cost, layout.HOLD_NS)
    with f.when(f.op("and", here, short, "i1")):
        _enter(f, function, params, start, programs)
    with f.when(f.op("and", here, f.op("xor", short, "true", "i1"), "i1")):
        state = _release(f)
        _enter(f, function, params, start, programs)
        _regain(f, state)


def _run_on_pool(f: Function, function: str, params: str, start: str, programs: str, launch: str, cost: str) -> None:
    """Run programs on the pool (also where there is one thread: long launches let signals through there)."""
    words = f.load("%record", RECORD["pool"], "ptr")
    missing = f.op("icmp eq", f.load(words, layout.POOL_WORDS["run"], "ptr"), "null", "ptr")
    with f.when(missing):
        made = _tell(f, "make_pool", [])
        with f.when(f.op("icmp eq", made, "null", "ptr")):
            f.give(FAILED)
        f.do(f.load("%api", API["decref"], "ptr"), ("ptr", made))
    status = f.call(
        "i64",
        f.load(words, layout.POOL_WORDS["run"], "ptr"),
        ("ptr", f.load(words, layout.POOL_WORDS["pool"], "ptr")),
        ("i64", f.load("%record", RECORD["threads"])),
        ("ptr", function),
        ("ptr", params),
        ("i64", f.load(launch, LAUNCH["param_count"])),
        ("i64", f.load(launch, LAUNCH["scratch"])),
        ("i64", start),
        ("i64", programs),
        ("i64", cost),
    )
    with f.when(f.op("icmp ne", status, 0)):
        f.give(FAILED)


def _tell(f: Function, callback: str, numbers: list[str]) -> str:
    """Call a Python function of the record with integers; gives its result, null when it raised."""
    make, release = f.load("%api", API["from_long"], "ptr"), f.load("%api", API["decref"], "ptr")
    stack = f.array("ptr", max(len(numbers), 1))
    made = [f.call("ptr", make, ("i64", number)) for number in numbers]
    result = f.variable("ptr", "null")
    complete = "true"
    for one in made:
        complete = f.op("and", complete, f.op("icmp ne", one, "null", "ptr"), "i1")
    with f.when(complete):
        for place, one in enumerate(made):
            f.store(one, stack, layout.WORD * place, "ptr")
        function = f.load("%record", RECORD[callback], "ptr")
        given = f.call(
            "ptr",
            f.load("%api", API["call"], "ptr"),
            ("ptr", function),
            ("ptr", stack),
            ("i64", len(numbers)),
            ("ptr", "null"),
        )
        f.store(given, result, kind="ptr")
    for one in made:
        with f.when(f.op("icmp ne", one, "null", "ptr")):
            f.do(release, ("ptr", one))
    return f.load(result, kind="ptr")


# GPUs


def _gpu() -> Function:
    """Write the launch on the caller's stream: no allocation, nothing that waits, so a graph can capture it."""
    f = Function("run_gpu", "i64", _RUN)
    context = f.variable("ptr", "null")
    f.call("i32", f.load("%record", RECORD["current_context"], "ptr"), ("ptr", context))
    own = f.op("icmp eq", f.load(context), f.load("%record", RECORD["context"]))
    f.unless_give(own, MISS)
    stream = f.variable("ptr", "null")
    source = f.load("%record", RECORD["stream_of"], "ptr")
    with f.when(f.op("icmp ne", source, "null", "ptr")):
        device = f.value(f"trunc i64 {f.load('%record', RECORD['device'])} to i32")
        status = f.call("i32", source, ("i32", layout.DEVICE_CUDA), ("i32", device), ("ptr", stream))
        with f.when(f.op("icmp ne", status, 0, "i32")):
            f.do(f.load("%api", API["clear"], "ptr"))
            f.give(MISS)
    f.unless_give(f.call("i1", "@prepare", *_passed()), MISS)
    with f.when(f.op("icmp ne", f.load("%record", RECORD["slots_bytes"]), 0)):
        held = f.call("i64", "@workspace", ("ptr", "%record"), ("ptr", f.load(stream, kind="ptr")))
        f.unless_give(f.op("icmp ne", held, 0), MISS)
        f.store(held, "%block", f.load("%record", RECORD["workspace"]))
    maps = f.load("%record", RECORD["maps"], "ptr")
    with f.count_up(f.load("%record", RECORD["map_count"])) as number:
        one = f.at(maps, f.op("mul", number, layout.WORD * layout.MAP_WORDS))
        described = f.call("i1", "@describe", ("ptr", one), ("ptr", "%block"), ("ptr", "%record"))
        f.unless_give(described, MISS)
    state = _release(f)
    status = f.call("i32", "@launch_gpu", *_passed(), ("ptr", f.load(stream, kind="ptr")))
    _regain(f, state)
    with f.when(f.op("icmp ne", status, 0, "i32")):
        _tell(f, "failed", [f.value(f"zext i32 {status} to i64")])
        f.give(FAILED)
    f.give(DONE)
    return f


def _workspace() -> Function:
    """Write the search for a stream's workspace; gives 0 where Python makes one: a new stream, or one under capture."""
    f = Function("workspace", "i64", [("ptr", "record"), ("ptr", "stream")])
    number, captured = f.variable("i64", "0"), f.variable("i32", "0")
    with f.when(f.op("icmp ne", "%stream", "null", "ptr")):
        _ask(f, "is_capturing", captured)
        # A capture would be ended by the question for the number.
        f.unless_give(f.op("icmp eq", f.load(captured, kind="i32"), 0, "i32"), 0)
        _ask(f, "stream_id", number)
    known = f.load("%record", RECORD["workspaces"], "ptr")
    with f.count_up(str(layout.WORKSPACES)) as place:
        one = f.at(known, f.op("mul", place, layout.WORKSPACE_BYTES))
        own = f.op("icmp eq", f.load(one, WORKSPACE["stream"]), f.load(number))
        size = f.load(one, WORKSPACE["slots_bytes"])
        enough = f.op("icmp uge", size, f.load("%record", RECORD["slots_bytes"]))
        with f.when(f.op("and", own, enough, "i1")):
            f.give(f.load(one, WORKSPACE["address"]))
    f.give(0)
    return f


def _ask(f: Function, name: str, out: str) -> None:
    """Ask the driver about a stream, or give 0 where it does not answer."""
    function = f.load("%record", RECORD[name], "ptr")
    status = f.call("i32", function, ("ptr", "%stream"), ("ptr", out))
    f.unless_give(f.op("icmp eq", status, 0, "i32"), 0)


def _gpu_launch() -> Function:
    f = Function("launch_gpu", "i32", [*_RUN, ("ptr", "stream")])
    launches = f.load("%record", RECORD["launches"], "ptr")
    counts = f.at("%block", f.load("%record", RECORD["counts"]))
    with f.count_up(f.load("%record", RECORD["launch_count"])) as number:
        launch = f.at(launches, f.op("mul", number, layout.LAUNCH_BYTES))
        programs = f.load(counts, f.op("shl", number, 3))
        most = f.load(launch, LAUNCH["most"])
        # Programs that share out steps are as many as can be, however few tiles there are.
        shares = f.op("icmp ne", f.load(launch, LAUNCH["shares"]), 0)
        some = f.op("and", shares, f.op("icmp ne", programs, 0), "i1")
        wanted = f.value(f"select i1 {some}, i64 {most}, i64 {programs}")
        grid = f.value(f"call i64 @llvm.umin.i64(i64 {wanted}, i64 {most})")
        with f.when(f.op("icmp ne", grid, 0)):
            narrow = [
                f.value(f"trunc i64 {value} to i32")
                for value in (grid, f.load(launch, LAUNCH["threads"]), f.load(launch, LAUNCH["shared"]))
            ]
            function = f.load(launch, LAUNCH["function"], "ptr")
            params = f.at("%block", f.load(launch, LAUNCH["pointers"]))
            last = f.variable("i32", "0")
            overlaps = f.op("icmp ne", f.load(launch, LAUNCH["overlaps"]), 0)
            with f.when(overlaps):
                f.store(_launch_with(f, function, narrow, params), last, kind="i32")
            with f.when(f.op("xor", overlaps, "true", "i1")):
                f.store(_launch_plainly(f, function, narrow, params), last, kind="i32")
            status = f.load(last, kind="i32")
            with f.when(f.op("icmp ne", status, 0, "i32")):
                f.give(status)
    f.give(0)
    return f


def _launch_plainly(f: Function, function: str, narrow: list[str], params: str) -> str:
    """Call `cuLaunchKernel` with the grid, the threads and the shared memory of `narrow`."""
    start = f.load("%record", RECORD["launch_kernel"], "ptr")
    one: list[tuple[str, str | int]] = [("i32", 1), ("i32", 1)]
    return f.call(
        "i32",
        start,
        ("ptr", function),
        ("i32", narrow[0]),
        *one,
        ("i32", narrow[1]),
        *one,
        ("i32", narrow[2]),
        ("ptr", "%stream"),
        ("ptr", params),
        ("ptr", "null"),
    )


def _launch_with(f: Function, function: str, narrow: list[str], params: str) -> str:
    """Call `cuLaunchKernelEx`: programs may start before the launch before has ended, as they wait themselves."""
    config = f.array("i64", layout.CONFIG_WORDS)
    attribute = f.array("i64", layout.ATTRIBUTE_WORDS)
    for place in range(layout.ATTRIBUTE_WORDS):
        f.store(0, attribute, layout.WORD * place)
    f.store(layout.PROGRAMMATIC_SERIALIZATION, attribute, ATTRIBUTE["id"], "i32")
    f.store(1, attribute, ATTRIBUTE["value"], "i32")
    for name, size in (("grid", narrow[0]), ("block", narrow[1])):
        for axis, extent in enumerate((size, 1, 1)):
            f.store(extent, config, CONFIG[name] + 4 * axis, "i32")
    f.store(narrow[2], config, CONFIG["shared"], "i32")
    f.store("%stream", config, CONFIG["stream"], "ptr")
    f.store(attribute, config, CONFIG["attributes"], "ptr")
    f.store(1, config, CONFIG["count"], "i32")
    start = f.load("%record", RECORD["launch_with"], "ptr")
    return f.call("i32", start, ("ptr", config), ("ptr", function), ("ptr", params), ("ptr", "null"))


def _describe() -> Function:
    """Put a tensor map into the block: a remembered one, else a new one of the driver's."""
    f = Function("describe", "i1", [("ptr", "map"), ("ptr", "block"), ("ptr", "record")])
    address = f.load("%block", f.load("%map", MAP["pointer"]))
    rank = f.load("%map", MAP["rank"])
    key = f.array("i64", layout.MAP_KEY_WORDS)
    f.store(address, key)
    with f.count_up(f.op("shl", rank, 1)) as place:
        word = f.op("shl", place, 3)
        offset = f.load(f.at("%map", MAP["axes"]), word)
        f.store(f.load("%block", offset), f.at(key, layout.WORD), word)
    bits = layout.MAP_SLOTS.bit_length() - 1
    mixed = f.op("lshr", f.op("mul", f.op("lshr", address, 4), 0x9E3779B97F4A7C15 - 2**64), 64 - bits)
    entry = f.at(f.load("%map", MAP["cache"], "ptr"), f.op("mul", mixed, layout.MAP_ENTRY))
    known = f.variable("i1", "true")
    words = f.op("add", f.op("shl", rank, 1), 1)
    with f.count_up(words) as place:
        word = f.op("shl", place, 3)
        alike = f.op("icmp eq", f.load(key, word), f.load(entry, word))
        f.store(f.op("and", f.load(known, kind="i1"), alike, "i1"), known, kind="i1")
    goal = f.at("%block", f.load("%map", MAP["at"]))
    made = f.at(entry, layout.MAP_DATA)
    with f.when(f.op("xor", f.load(known, kind="i1"), "true", "i1")):
        f.store(-1, entry)  # a failure half-way must not leave an entry that looks whole
        f.unless_give(_encode(f, key, address, rank, made), "false")
        with f.count_up(words) as place:
            word = f.op("shl", place, 3)
            f.store(f.load(key, word), entry, word)
    # A copy: another thread may need the entry while the driver reads this one.
    for place in range(0, layout.MAP_DATA, layout.WORD):
        f.store(f.load(made, place), goal, place)
    f.give("true")
    return f


def _encode(f: Function, key: str, address: str, rank: str, made: str) -> str:
    sizes, strides = f.array("i64", layout.MAP_AXES), f.array("i64", layout.MAP_AXES)
    with f.count_up(rank) as axis:
        pair, word = f.op("shl", axis, 4), f.op("shl", axis, 3)
        size = f.load(f.at(key, layout.WORD), pair)
        # The Python path knows a variant without maps for larger arrays, and what stands for empty ones.
        f.unless_give(f.op("icmp ult", f.op("sub", size, 1), MOST_MAPPED), "false")
        step = f.op("mul", f.load(f.at(key, 2 * layout.WORD), pair), f.load("%map", MAP["bytes"]))
        f.store(size, sizes, word)
        f.store(_step(f, size, step), strides, word)
    number = [
        f.value(f"trunc i64 {f.load('%map', MAP[name])} to i32")
        for name in ("kind", "interleave", "swizzle", "promotion", "fill")
    ]
    status = f.call(
        "i32",
        f.load("%record", RECORD["encode"], "ptr"),
        ("ptr", made),
        ("i32", number[0]),
        ("i32", f.value(f"trunc i64 {rank} to i32")),
        ("i64", address),
        ("ptr", sizes),
        ("ptr", f.at(strides, layout.WORD)),
        ("ptr", f.load("%map", MAP["box"], "ptr")),
        ("ptr", f.load("%map", MAP["ones"], "ptr")),
        *(("i32", value) for value in number[1:]),
    )
    return f.op("icmp eq", status, 0, "i32")


def _step(f: Function, size: str, step: str) -> str:
    """Return a stride in bytes; that of one element is never used, but must be a multiple of 16 all the same."""
    whole = f.op("icmp eq", f.op("and", step, 15), 0)
    fits = f.op("and", whole, f.op("icmp sgt", step, 0), "i1")
    single = f.op("icmp eq", size, 1)
    least = f.value(f"call i64 @llvm.smax.i64(i64 {step}, i64 1)")
    rounded = f.op("and", f.op("add", least, 15), -16)
    free = f.op("and", single, f.op("xor", fits, "true", "i1"), "i1")
    return f.value(f"select i1 {free}, i64 {rounded}, i64 {step}")
