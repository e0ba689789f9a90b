"""Starts what a record of the compiled entry says on a GPU, from a filled block, through the driver's functions."""

from __future__ import annotations

from tessera.entry import layout
from tessera.entry.code import grids
from tessera.entry.code.module import module_ir
from tessera.entry.code.running import RUN, passed, prepare, regain, release, tell
from tessera.entry.code.writer import Function
from tessera.entry.layout import API, DONE, FAILED, LAUNCH, MAP, MISS, PATCH, PATCH_BYTES, RECORD
from tessera.runtime.cuda_entry import (
    ATTRIBUTE,
    ATTRIBUTE_WORDS,
    CONFIG,
    CONFIG_WORDS,
    DLPACK_KIND,
    GRID_LIMIT,
    MAP_CONSTANTS,
    OTHER_CONTEXT,
    OWN,
    PROGRAMMATIC_SERIALIZATION,
    START,
    START_BYTES,
    WALK,
    WORKSPACE,
    WORKSPACE_BYTES,
    WORKSPACES,
)
from tessera.target.artifact import MOST_MAPPED


def start_ir() -> str:
    """Return the LLVM IR of the functions that start a record's launches, and those of a table."""
    return module_ir([grids.programs(), prepare(GRID_LIMIT), _describe(), _launch(), _workspace(), _start(), _walk()])


def _own(f: Function) -> str:
    """Return the address of the record's words that are ours."""
    return f.load("%record", RECORD["own"], "ptr")


def _start() -> Function:
    """Write the launch on the caller's stream: no allocation, nothing that waits, so a graph can capture it."""
    f = Function(layout.STARTER, "i64", RUN, exported=True)
    own = _own(f)
    context = f.variable("ptr", "null")
    f.call("i32", f.load(own, OWN["current_context"], "ptr"), ("ptr", context))
    current = f.op("icmp eq", f.load(context), f.load(own, OWN["context"]))
    f.unless_give(current, MISS)
    stream = f.variable("ptr", "null")
    source = f.load(own, OWN["stream_of"], "ptr")
    with f.when(f.op("icmp ne", source, "null", "ptr")):
        device = f.value(f"trunc i64 {f.load(own, OWN['device'])} to i32")
        status = f.call("i32", source, ("i32", DLPACK_KIND), ("i32", device), ("ptr", stream))
        with f.when(f.op("icmp ne", status, 0, "i32")):
            f.do(f.load("%api", API["clear"], "ptr"))
            f.give(MISS)
    f.unless_give(f.call("i1", "@prepare", *passed()), MISS)
    with f.when(f.op("icmp ne", f.load("%record", RECORD["slots_bytes"]), 0)):
        held = f.call("i64", "@workspace", ("ptr", "%record"), ("ptr", f.load(stream, kind="ptr")))
        f.unless_give(f.op("icmp ne", held, 0), MISS)
        f.store(held, "%block", f.load("%record", RECORD["workspace"]))
    maps = f.load("%record", RECORD["maps"], "ptr")
    with f.count_up(f.load("%record", RECORD["map_count"])) as number:
        one = f.at(maps, f.op("mul", number, layout.WORD * layout.MAP_WORDS))
        described = f.call("i1", "@describe", ("ptr", one), ("ptr", "%block"), ("ptr", "%record"))
        f.unless_give(described, MISS)
    state = release(f)
    status = f.call("i32", "@launch", *passed(), ("ptr", f.load(stream, kind="ptr")))
    regain(f, state)
    with f.when(f.op("icmp ne", status, 0, "i32")):
        tell(f, "failed", [f.value(f"zext i32 {status} to i64")])
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
    known = f.load(_own(f), OWN["workspaces"], "ptr")
    with f.count_up(str(WORKSPACES)) as place:
        one = f.at(known, f.op("mul", place, WORKSPACE_BYTES))
        own = f.op("icmp eq", f.load(one, WORKSPACE["stream"]), f.load(number))
        size = f.load(one, WORKSPACE["slots_bytes"])
        enough = f.op("icmp uge", size, f.load("%record", RECORD["slots_bytes"]))
        with f.when(f.op("and", own, enough, "i1")):
            f.give(f.load(one, WORKSPACE["address"]))
    f.give(0)
    return f


def _ask(f: Function, name: str, out: str) -> None:
    """Ask the driver about a stream, or give 0 where it does not answer."""
    function = f.load(_own(f), OWN[name], "ptr")
    status = f.call("i32", function, ("ptr", "%stream"), ("ptr", out))
    f.unless_give(f.op("icmp eq", status, 0, "i32"), 0)


def _launch() -> Function:
    f = Function("launch", "i32", [*RUN, ("ptr", "stream")])
    launches = f.load("%record", RECORD["launches"], "ptr")
    counts = f.at("%block", f.load("%record", RECORD["counts"]))
    with f.count_up(f.load("%record", RECORD["launch_count"])) as number:
        launch = f.at(launches, f.op("mul", number, layout.LAUNCH_BYTES))
        programs = f.load(counts, f.op("shl", number, 3))
        most = f.load(launch, LAUNCH["most"])
        grid = _started(f, launch, programs, most)
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


def _started(f: Function, launch: str, programs: str, most: str) -> str:
    """Return how many programs are started, as `Launch.started` does."""
    # Programs that share out steps are as many as can be, however few tiles there are.
    shares = f.op("icmp ne", f.load(launch, LAUNCH["shares"]), 0)
    some = f.op("and", shares, f.op("icmp ne", programs, 0), "i1")
    wanted = f.value(f"select i1 {some}, i64 {most}, i64 {programs}")
    whole = f.value(f"call i64 @llvm.umin.i64(i64 {wanted}, i64 {most})")
    # Those that share tiles are as many for each tile.
    parts = f.load(launch, LAUNCH["parts"])
    tiles = f.value(f"call i64 @llvm.umax.i64(i64 {programs}, i64 1)")
    each = f.value(f"call i64 @llvm.umin.i64(i64 {f.op('udiv', most, tiles)}, i64 {parts})")
    each = f.value(f"call i64 @llvm.umax.i64(i64 {each}, i64 1)")
    split = f.op("icmp ne", parts, 0)
    return f.value(f"select i1 {split}, i64 {f.op('mul', programs, each)}, i64 {whole}")


def _launch_plainly(f: Function, function: str, narrow: list[str], params: str) -> str:
    """Call `cuLaunchKernel` with the grid, the threads and the shared memory of `narrow`."""
    return _launch_by(f, f.load(_own(f), OWN["launch_kernel"], "ptr"), function, narrow, params)


def _launch_by(f: Function, start: str, function: str, narrow: list[str], params: str) -> str:
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


def _walk() -> Function:
    """Write the starts of a table's launches; gives the driver's status, or `OTHER_CONTEXT`."""
    f = Function(layout.WALKER, "i64", [("ptr", "table"), ("ptr", "given"), ("ptr", "stream")], exported=True)
    context = f.variable("ptr", "null")
    f.call("i32", f.load("%table", WALK["current_context"], "ptr"), ("ptr", context))
    current = f.op("icmp eq", f.load(context), f.load("%table", WALK["context"]))
    f.unless_give(current, OTHER_CONTEXT)
    patches = f.load("%table", WALK["patches"], "ptr")
    with f.count_up(f.load("%table", WALK["patch_count"])) as number:
        patch = f.at(patches, f.op("mul", number, PATCH_BYTES))
        address = f.load("%given", f.load(patch, PATCH["number"]))
        f.store(f.op("add", address, f.load(patch, PATCH["after"])), f.load(patch, PATCH["goal"], "ptr"))
    starts = f.load("%table", WALK["starts"], "ptr")
    with f.count_up(f.load("%table", WALK["start_count"])) as number:
        start = f.at(starts, f.op("mul", number, START_BYTES))
        function, params = (f.load(start, START[name], "ptr") for name in ("function", "params"))
        config = f.load(start, START["config"], "ptr")
        last = f.variable("i32", "0")
        plain = f.op("icmp eq", config, "null", "ptr")
        with f.when(plain):
            narrow = [
                f.value(f"trunc i64 {f.load(start, START[name])} to i32") for name in ("grid", "threads", "shared")
            ]
            launch = f.load("%table", WALK["launch_kernel"], "ptr")
            f.store(_launch_by(f, launch, function, narrow, params), last, kind="i32")
        with f.when(f.op("xor", plain, "true", "i1")):
            f.store("%stream", config, CONFIG["stream"], "ptr")
            launch = f.load("%table", WALK["launch_with"], "ptr")
            given = ("ptr", config), ("ptr", function), ("ptr", params), ("ptr", "null")
            f.store(f.call("i32", launch, *given), last, kind="i32")
        status = f.load(last, kind="i32")
        with f.when(f.op("icmp ne", status, 0, "i32")):
            f.give(f.value(f"zext i32 {status} to i64"))
    f.give(0)
    return f


def _launch_with(f: Function, function: str, narrow: list[str], params: str) -> str:
    """Call `cuLaunchKernelEx`: programs may start before the launch before has ended, as they wait themselves."""
    config = f.array("i64", CONFIG_WORDS)
    attribute = f.array("i64", ATTRIBUTE_WORDS)
    for place in range(ATTRIBUTE_WORDS):
        f.store(0, attribute, layout.WORD * place)
    f.store(PROGRAMMATIC_SERIALIZATION, attribute, ATTRIBUTE["id"], "i32")
    f.store(1, attribute, ATTRIBUTE["value"], "i32")
    for name, size in (("grid", narrow[0]), ("block", narrow[1])):
        for axis, extent in enumerate((size, 1, 1)):
            f.store(extent, config, CONFIG[name] + 4 * axis, "i32")
    f.store(narrow[2], config, CONFIG["shared"], "i32")
    f.store("%stream", config, CONFIG["stream"], "ptr")
    f.store(attribute, config, CONFIG["attributes"], "ptr")
    f.store(1, config, CONFIG["count"], "i32")
    start = f.load(_own(f), OWN["launch_with"], "ptr")
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
    constants = f.load("%map", MAP["constants"], "ptr")
    number = [f.value(f"trunc i64 {f.load(constants, offset)} to i32") for offset in MAP_CONSTANTS.values()]
    status = f.call(
        "i32",
        f.load(_own(f), OWN["encode"], "ptr"),
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
