"""The whole entry: finds the record that a call fits, runs it, or hands the call to the Python path."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import llvmlite.binding as llvm

from tessera.entry import layout
from tessera.entry.code import grids, reading, running
from tessera.entry.code.writer import Function
from tessera.entry.layout import API, ARG_BYTES, KERNEL, RECORD, TABLE
from tessera.errors import CompilerFault

_llvm: Any = llvm  # llvmlite ships no types

_MISS = "inttoptr (i64 1 to ptr)"
_DECLARATIONS = """\
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.umax.i64(i64, i64)
declare i64 @llvm.umin.i64(i64, i64)
declare double @llvm.fabs.f64(double)
declare float @llvm.fabs.f32(float)
declare i64 @llvm.fptosi.sat.i64.f64(double)
declare {i64, i1} @llvm.sadd.with.overflow.i64(i64, i64)
declare {i64, i1} @llvm.ssub.with.overflow.i64(i64, i64)
declare {i64, i1} @llvm.smul.with.overflow.i64(i64, i64)
"""


def entry_ir() -> str:
    """Return the LLVM IR of the entry."""
    parts = [
        *reading.functions(),
        grids.programs(),
        *running.functions(),
        _names(),
        _attempt(),
        _search(),
        _slow(),
        _entry(),
    ]
    return module_ir(parts)


def module_ir(parts: Iterable[Function]) -> str:
    """Return the LLVM IR of functions."""
    return "\n".join([_DECLARATIONS, *(part.render() for part in parts)])


def compile_entry() -> bytes:
    """Return the object code of the entry for this machine.

    Raises:
        CompilerFault: `llvm-failed` when LLVM rejects it.
    """
    return compile_ir(entry_ir())


def compile_ir(text: str) -> bytes:
    """Return the object code of a part of the runtime for this machine.

    Args:
        text: its LLVM IR.

    Raises:
        CompilerFault: `llvm-failed` when LLVM rejects it.
    """
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = _llvm.Target.from_triple(_llvm.get_process_triple())
    machine = target.create_target_machine(
        cpu=_llvm.get_host_cpu_name(),
        features=_llvm.get_host_cpu_features().flatten(),
        opt=2,
        reloc="pic",
        codemodel="small",
    )
    try:
        module = _llvm.parse_assembly(text)
        module.triple = machine.triple
        module.data_layout = str(machine.target_data)
        module.verify()
    except RuntimeError as error:
        raise CompilerFault(f"LLVM rejects the compiled entry: {error}", code="llvm-failed") from error
    options = _llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_unrolling = options.loop_vectorization = options.slp_vectorization = False
    builder = _llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return machine.emit_object(module)


def _names() -> Function:
    """Write the comparison of a call's keyword names with a record's; both are interned."""
    f = Function("names_fit", "i1", [("ptr", "record"), ("ptr", "names"), ("i64", "count")])
    wanted = f.load("%record", RECORD["names"], "ptr")
    with f.count_up("%count") as place:
        word = f.op("shl", place, 3)
        given = f.load(f.at("%names", layout.TUPLE_ITEMS), word)
        f.unless_give(f.op("icmp eq", given, f.load(wanted, word)), "false")
    f.give("true")
    return f


def _attempt() -> Function:
    """Write the run of one record: gives the call's result, null with an exception, or `_MISS`."""
    f = Function("attempt", "ptr", [("ptr", "record"), ("ptr", "args"), ("ptr", "api")])
    generation = f.load(f.load("%api", API["generation"], "ptr"))
    f.unless_give(f.op("icmp eq", generation, f.load("%record", RECORD["generation"])), _MISS)
    f.unless_give(_profile_fits(f), _MISS)
    block = f.value(f"alloca i8, i64 {f.load('%record', RECORD['block_bytes'])}, align 64")
    args = f.load("%record", RECORD["args"], "ptr")
    with f.count_up(f.load("%record", RECORD["arg_count"])) as number:
        arg = f.at(args, f.op("mul", number, ARG_BYTES))
        object_ = f.load("%args", f.op("shl", f.load(arg, layout.ARG["place"]), 3), "ptr")
        fits = f.call("i1", "@read_argument", ("ptr", arg), ("ptr", object_), ("ptr", block), ("ptr", "%api"))
        f.unless_give(fits, _MISS)
    fills = f.load("%record", RECORD["fills"], "ptr")
    with f.count_up(f.load("%record", RECORD["fill_count"])) as number:
        pair = f.at(fills, f.op("shl", number, 4))
        f.store(f.load(pair, layout.WORD), f.at(block, f.load(pair)))
    _compare(f, block)
    status = f.variable("i64", str(layout.MISS))
    start = f.load("%record", RECORD["start"], "ptr")
    here = f.op("icmp eq", start, "null", "ptr")
    passed: list[tuple[str, str | int]] = [("ptr", "%record"), ("ptr", block), ("ptr", "%api")]
    with f.when(here):
        f.store(f.call("i64", "@run_cpu", *passed), status)
    with f.when(f.op("xor", here, "true", "i1")):
        f.store(f.call("i64", start, *passed), status)
    outcome = f.load(status)
    f.unless_give(f.op("icmp ne", outcome, layout.MISS), _MISS)
    f.unless_give(f.op("icmp ne", outcome, layout.FAILED), "null")
    f.give(_result(f))
    return f


def _compare(f: Function, block: str) -> None:
    """Write the comparisons of words of the block: those that are equal, and addresses that are not."""
    for name in ("equal", "apart"):
        pairs = f.load("%record", RECORD[f"{name}s"], "ptr")
        with f.count_up(f.load("%record", RECORD[f"{name}_count"])) as number:
            pair = f.at(pairs, f.op("shl", number, 4))
            left, right = f.load(block, f.load(pair)), f.load(block, f.load(pair, layout.WORD))
            fits = f.op("icmp eq" if name == "equal" else "icmp ne", left, right)
            if name == "apart":  # empty arrays of PyTorch are all at 0
                fits = f.op("or", fits, f.op("icmp eq", left, 0), "i1")
            f.unless_give(fits, _MISS)


def _profile_fits(f: Function) -> str:
    """Return whether the numerics profile that this context chose is the record's."""
    current = f.variable("ptr", "null")
    get = f.load("%api", API["context_get"], "ptr")
    f.call("i32", get, ("ptr", f.load("%api", API["profile"], "ptr")), ("ptr", "null"), ("ptr", current))
    found = f.load(current, kind="ptr")
    missing = f.op("icmp eq", found, "null", "ptr")
    with f.when(missing):
        f.do(f.load("%api", API["clear"], "ptr"))
    with f.when(f.op("xor", missing, "true", "i1")):
        f.do(f.load("%api", API["decref"], "ptr"), ("ptr", found))
    return f.op("icmp eq", found, f.load("%record", RECORD["profile"], "ptr"), "ptr")


def _result(f: Function) -> str:
    """Return what the call returns, a new reference: an argument, a tuple of them, or None."""
    count = f.load("%record", RECORD["return_count"])
    returns = f.load("%record", RECORD["returns"], "ptr")
    result = f.variable("ptr", f.load("%api", API["none"], "ptr"))
    with f.when(f.op("icmp eq", count, 1)):
        f.store(f.load("%args", f.op("shl", f.load(returns), 3)), result)
    take = f.load("%api", API["incref"], "ptr")
    with f.when(f.op("icmp ule", count, 1)):
        f.do(take, ("ptr", f.load(result, kind="ptr")))
        f.give(f.load(result, kind="ptr"))
    made = f.call("ptr", f.load("%api", API["tuple_new"], "ptr"), ("i64", count))
    f.unless_give(f.op("icmp ne", made, "null", "ptr"), "null")
    with f.count_up(count) as place:
        one = f.load("%args", f.op("shl", f.load(returns, f.op("shl", place, 3)), 3), "ptr")
        f.do(take, ("ptr", one))
        f.call("i32", f.load("%api", API["tuple_set"], "ptr"), ("ptr", made), ("i64", place), ("ptr", one))
    return made


_CALL = (
    ("ptr", "kernel"),
    ("ptr", "args"),
    ("i64", "positional"),
    ("i64", "keywords"),
    ("ptr", "names"),
    ("ptr", "table"),
    ("ptr", "api"),
)


def _search() -> Function:
    """Write the search for the record of a call, the one that served last first; gives what `@attempt` gives."""
    f = Function("search", "ptr", _CALL)
    given = f.op("add", "%positional", "%keywords")
    count = f.load("%table", TABLE["count"])
    place = f.variable("i64", f.load("%table", TABLE["hint"]))
    with f.count_up(count):
        current = f.load(place)
        record = f.load(f.at("%table", TABLE["records"]), f.op("shl", current, 3), "ptr")
        alike = f.op("icmp eq", given, f.load(record, RECORD["arguments"]))
        alike = f.op("and", alike, f.op("icmp eq", "%positional", f.load(record, RECORD["positional"])), "i1")
        with f.when(alike):
            fits = f.call("i1", "@names_fit", ("ptr", record), ("ptr", "%names"), ("i64", "%keywords"))
            with f.when(fits):
                outcome = f.call("ptr", "@attempt", ("ptr", record), ("ptr", "%args"), ("ptr", "%api"))
                with f.when(f.op("icmp ne", outcome, _MISS, "ptr")):
                    f.store(f.load(record, RECORD["id"]), "%kernel", KERNEL["last"])
                    f.store(current, "%table", TABLE["hint"])
                    f.give(outcome)
        following = f.op("add", current, 1)
        wrapped = f.op("icmp eq", following, count)
        f.store(f.value(f"select i1 {wrapped}, i64 0, i64 {following}"), place)
    f.give(_MISS)
    return f


def _slow() -> Function:
    """Write the call of the Python function with the kernel before the arguments."""
    f = Function("call_slowly", "ptr", _CALL)
    given = f.op("add", "%positional", "%keywords")
    bytes_ = f.op("shl", f.op("add", given, 1), 3)
    all_ = f.value(f"alloca i8, i64 {bytes_}, align 16")
    f.store("%kernel", all_, kind="ptr")
    with f.count_up(given) as place:
        word = f.op("shl", place, 3)
        f.store(f.load("%args", word), f.at(all_, layout.WORD), word)
    function = f.load("%table", TABLE["slow"], "ptr")
    count = f.op("add", "%positional", 1)
    call = f.load("%api", API["call"], "ptr")
    f.give(f.call("ptr", call, ("ptr", function), ("ptr", all_), ("i64", count), ("ptr", "%names")))
    return f


def _entry() -> Function:
    """Write the function that CPython calls."""
    params = [("ptr", "kernel"), ("ptr", "args"), ("i64", "flagged"), ("ptr", "names")]
    f = Function(layout.ENTRY, "ptr", params, exported=True)
    table = f.load("%kernel", KERNEL["table"], "ptr")
    api, owner = f.load(table, TABLE["api"], "ptr"), f.load(table, TABLE["owner"], "ptr")
    f.do(f.load(api, API["incref"], "ptr"), ("ptr", owner))  # the table may be replaced meanwhile
    positional = f.op("and", "%flagged", 2**63 - 1)  # the highest bit is a flag of the protocol
    keywords = f.variable("i64", "0")
    with f.when(f.op("icmp ne", "%names", "null", "ptr")):
        f.store(f.load("%names", layout.TUPLE_SIZE), keywords)
    passed: list[tuple[str, str | int]] = [
        ("ptr", "%kernel"),
        ("ptr", "%args"),
        ("i64", positional),
        ("i64", f.load(keywords)),
        ("ptr", "%names"),
        ("ptr", table),
        ("ptr", api),
    ]
    result = f.variable("ptr", f.call("ptr", "@search", *passed))
    with f.when(f.op("icmp eq", f.load(result, kind="ptr"), _MISS, "ptr")):
        f.store(f.call("ptr", "@call_slowly", *passed), result, kind="ptr")
    f.do(f.load(api, API["decref"], "ptr"), ("ptr", owner))
    f.give(f.load(result, kind="ptr"))
    return f
