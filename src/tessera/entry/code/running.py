"""Runs what a record says on the CPU, from a filled block; and what platforms need to start it elsewhere."""

from __future__ import annotations

from tessera.entry import layout
from tessera.entry.code.writer import Function
from tessera.entry.layout import API, COST, DONE, FAILED, LAUNCH, MISS, RECORD

RUN = (("ptr", "record"), ("ptr", "block"), ("ptr", "api"))
"""Parameters of what starts a record."""

_MOST_PROGRAMS = 2**62


def functions() -> list[Function]:
    """Return the functions that run records."""
    return [prepare(_MOST_PROGRAMS), _clock(), _cpu_launch(), _cpu()]


def prepare(limit: int) -> Function:
    """Write the parameters' addresses and the programs of every launch, up to a limit, into the block."""
    f = Function("prepare", "i1", RUN)
    scratch = f.load("%record", RECORD["scratch"], "ptr")
    counts = f.at("%block", f.load("%record", RECORD["counts"]))
    launches = f.load("%record", RECORD["launches"], "ptr")
    f.store(0, f.at("%block", f.load("%record", RECORD["error"])))
    with f.count_up(f.load("%record", RECORD["launch_count"])) as number:
        launch = f.at(launches, f.op("mul", number, layout.LAUNCH_BYTES))
        found = f.call("i64", "@programs", ("ptr", launch), ("ptr", "%block"))
        f.unless_give(f.op("icmp ule", found, limit), "false")  # unsigned: a refusal is beyond it
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


def _clock() -> Function:
    f = Function("now", "i64", [("ptr", "api")])
    time = f.array("i64", 2)
    kind = f.value(f"trunc i64 {f.load('%api', API['clock_kind'])} to i32")
    f.call("i32", f.load("%api", API["clock"], "ptr"), ("i32", kind), ("ptr", time))
    f.give(f.op("add", f.op("mul", f.load(time), 1_000_000_000), f.load(time, 8)))
    return f


def _cpu() -> Function:
    f = Function("run_cpu", "i64", RUN)
    busy = f.load("%record", RECORD["scratch_busy"])
    f.unless_give(f.op("icmp eq", busy, 0), MISS)
    f.unless_give(f.call("i1", "@prepare", *passed()), MISS)
    signature = _signature(f)
    own = f.op("icmp ne", f.load("%record", RECORD["scratch"]), 0)
    f.store(f.value(f"zext i1 {own} to i64"), "%record", RECORD["scratch_busy"])
    with f.count_up(f.load("%record", RECORD["launch_count"])) as number:
        status = f.call("i64", "@launch_cpu", *passed(), ("i64", number), ("i64", signature))
        with f.when(f.op("icmp ne", status, DONE)):
            f.store(0, "%record", RECORD["scratch_busy"])
            f.give(status)
    f.store(0, "%record", RECORD["scratch_busy"])
    f.give(DONE)
    return f


def passed() -> list[tuple[str, str | int]]:
    """Return the parameters as arguments."""
    return [(kind, f"%{name}") for kind, name in RUN]


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
    f = Function("launch_cpu", "i64", [*RUN, ("i64", "number"), ("i64", "signature")])
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
        tell(f, "failed", [error])
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


def release(f: Function) -> str:
    """Give up the GIL; returns what takes it back."""
    return f.call("ptr", f.load("%api", API["save"], "ptr"))


def regain(f: Function, state: str) -> None:
    """Take the GIL back."""
    f.do(f.load("%api", API["restore"], "ptr"), ("ptr", state))


def _probe(f: Function, function: str, params: str, programs: str, slot: str, uses: str, first: str) -> None:
    """Run the first programs against the clock: only one where it takes long, as no signal is handled meanwhile."""
    threads = f.load("%record", RECORD["threads"])
    part = f.op("udiv", programs, f.op("shl", threads, 4))
    part = f.value(f"call i64 @llvm.umax.i64(i64 {part}, i64 1)")
    state = release(f)
    before = f.call("i64", "@now", ("ptr", "%api"))
    _enter(f, function, params, "0", "1")
    after = f.variable("i64", f.call("i64", "@now", ("ptr", "%api")))
    f.store(1, first)
    quick = f.op("icmp slt", f.op("sub", f.load(after), before), f.op("udiv", layout.POOL_PIECE_NS, part))
    with f.when(f.op("and", quick, f.op("icmp ugt", part, 1), "i1")):
        _enter(f, function, params, "1", part)
        f.store(f.call("i64", "@now", ("ptr", "%api")), after)
        f.store(part, first)
    regain(f, state)
    spent, all_, some = (
        f.value(f"uitofp i64 {value} to double")
        for value in (f.op("sub", f.load(after), before), programs, f.load(first))
    )
    each = f.op("fdiv", spent, some, "double")
    cost = f.value(f"call i64 @llvm.fptosi.sat.i64.f64(double {f.op('fmul', each, all_, 'double')})")
    least = f.value(f"call i64 @llvm.smin.i64(i64 {cost}, i64 {f.load(slot, COST['nanoseconds'])})")
    fresh = f.op("icmp eq", uses, 0)
    f.store(f.value(f"select i1 {fresh}, i64 {cost}, i64 {least}"), slot, COST["nanoseconds"])


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
        state = release(f)
        _enter(f, function, params, start, programs)
        regain(f, state)


def _run_on_pool(f: Function, function: str, params: str, start: str, programs: str, launch: str, cost: str) -> None:
    """Run programs on the pool (also where there is one thread: long launches let signals through there)."""
    words = f.load("%record", RECORD["pool"], "ptr")
    missing = f.op("icmp eq", f.load(words, layout.POOL_WORDS["run"], "ptr"), "null", "ptr")
    with f.when(missing):
        made = tell(f, "make_pool", [])
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


def tell(f: Function, callback: str, numbers: list[str]) -> str:
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
