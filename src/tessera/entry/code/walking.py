"""Walks a table of launches on the CPU: puts addresses into parameters, and runs all programs on the calling thread."""

from __future__ import annotations

from tessera.entry import layout
from tessera.entry.code.module import module_ir
from tessera.entry.code.writer import Function
from tessera.entry.layout import PATCH, WALK_LINE


def walk_ir() -> str:
    """Return the LLVM IR of the walker."""
    return module_ir([_walk()])


def _walk() -> Function:
    """Write the walk of `count` lines; gives 0, or the number of the line that failed, counted from 1."""
    f = Function(layout.WALKER, "i64", [("ptr", "lines"), ("i64", "count"), ("ptr", "given")], exported=True)
    with f.count_up("%count") as number:
        line = f.at("%lines", f.op("mul", number, layout.WALK_LINE_BYTES))
        patches = f.load(line, WALK_LINE["patches"], "ptr")
        with f.count_up(f.load(line, WALK_LINE["patch_count"])) as place:
            patch = f.at(patches, f.op("mul", place, layout.PATCH_BYTES))
            address = f.load("%given", f.load(patch, PATCH["number"]))
            f.store(f.op("add", address, f.load(patch, PATCH["after"])), f.load(patch, PATCH["goal"], "ptr"))
        params, programs = f.load(line, WALK_LINE["params"], "ptr"), f.load(line, WALK_LINE["programs"])
        f.do(f.load(line, WALK_LINE["function"], "ptr"), ("ptr", params), ("i64", 0), ("i64", programs))
        error = f.load(f.load(line, WALK_LINE["error"], "ptr"))
        f.unless_give(f.op("icmp eq", error, 0), f.op("add", number, 1))
    f.give(0)
    return f
