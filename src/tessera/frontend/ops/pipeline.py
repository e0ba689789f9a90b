"""Compiles groups of copies in the words of pipelines, and barriers of copies."""

from __future__ import annotations

from typing import Any

from tessera.errors import LanguageError, TypeMismatchError
from tessera.frontend import tile
from tessera.frontend.builder import Builder
from tessera.frontend.convert import static_int, to_index
from tessera.frontend.expressions import apply
from tessera.frontend.ops.shared import check_pending, end_group
from tessera.frontend.registry import compiles, handler_of
from tessera.frontend.values import BarriersValue, show
from tessera.ir.tile.shared import BarrierOp, WaitGroupOp


@compiles(tile.pipeline.begin)
def _begin(b: Builder) -> None:
    b.require_program("pipeline.begin")
    if b.uncommitted:
        raise LanguageError(
            "pipeline.begin: copies before it belong to no group",
            code="open-group",
            help="end their group with ts.tile.pipeline.commit()",
        )


@compiles(tile.pipeline.commit)
def _commit(b: Builder) -> None:
    b.require_program("pipeline.commit")
    end_group(b)


@compiles(tile.pipeline.wait)
def _wait(b: Builder, slot: Any, pending: Any) -> None:
    b.require_program("pipeline.wait")
    if slot is not None:
        to_index(b, slot, "pipeline.wait: the slot")
    count = static_int(b, pending, "pipeline.wait: the number")
    check_pending(count, "pipeline.wait")
    _arrived(b, count)


@compiles(tile.pipeline.swap)
def _swap(b: Builder, slot: Any, stages: Any) -> Any:
    b.require_program("pipeline.swap")
    count = at_least(static_int(b, stages, "pipeline.swap: the stages"), 1, "pipeline.swap")
    b.emit(BarrierOp())
    if isinstance(slot, int):
        return (slot + 1) % count
    to_index(b, slot, "pipeline.swap: the slot")
    return apply(b, "mod", apply(b, "add", slot, 1, what="pipeline.swap"), count, what="pipeline.swap")


MOST = 1 << 16
"""Barriers, or stages, that no shared memory has room for."""


def at_least(value: int, least: int, what: str) -> int:
    """Return a number that a call takes.

    Raises:
        LanguageError: `bad-argument` when it is less, or more than `MOST`.
    """
    if value < least:
        raise LanguageError(f"{what}: {value} is less than {least}", code="bad-argument", help=f"give {least} or more")
    if value > MOST:
        raise LanguageError(f"{what}: {value} is more than {MOST}", code="bad-argument", help=f"give {MOST} or less")
    return value


def _arrived(b: Builder, pending: int) -> None:
    b.emit(WaitGroupOp(pending))
    b.emit(BarrierOp())


@compiles(tile.mbarrier.alloc)
def _alloc(b: Builder, count: Any) -> BarriersValue:
    b.require_program("mbarrier.alloc")
    return BarriersValue(at_least(static_int(b, count, "mbarrier.alloc: the number"), 1, "mbarrier.alloc"))


@compiles(tile.mbarrier.arrive)
def _arrive(b: Builder, barrier: Any) -> None:
    b.arrived.add(_one(barrier, "mbarrier.arrive").key)
    if b.uncommitted:
        end_group(b)


@compiles(tile.mbarrier.wait)
def _wait_for(b: Builder, barrier: Any) -> None:
    b.awaited.setdefault(_one(barrier, "mbarrier.wait").key, b.location())
    _arrived(b, 0)


def check_arrivals(b: Builder) -> None:
    """Check, at a kernel's end, that something arrives at all barriers that it waits for.

    Raises:
        LanguageError: `never-arrived`.
    """
    for key, location in b.awaited.items():
        if key not in b.arrived:
            raise LanguageError(
                "mbarrier.wait for barriers at which nothing arrives",
                code="never-arrived",
                location=location,
                help="call ts.tile.mbarrier.arrive(barriers[slot]) after the copies that it waits for",
            )


def _one(barrier: Any, what: str) -> BarriersValue:
    if not isinstance(barrier, BarriersValue) or not (barrier.one or barrier.count == 1):
        raise TypeMismatchError(
            f"{what} takes one barrier, got {show(barrier)}",
            code="not-a-barrier",
            help="take one of ts.tile.mbarrier.alloc: barriers[slot]",
        )
    return barrier


_NAMES = ("sum", "prod", "max", "min", "all", "any")


def _whole(b: Builder, name: str, x: Any) -> Any:
    found = handler_of(getattr(tile, name))
    assert found is not None, "reductions are compiled by `reduce`"
    return found[0](b, x, None, False)


def _reduction(name: str) -> Any:
    def compile_reduction(b: Builder, x: Any) -> Any:
        return _whole(b, name, x)

    return compile_reduction


for _name in _NAMES:
    compiles(getattr(tile.group, _name))(_reduction(_name))


@compiles(tile.group.reduce)
def _reduce(b: Builder, x: Any, op: Any) -> Any:
    if op not in _NAMES:
        raise LanguageError(
            f"group.reduce: no reduction is called {show(op)}",
            code="bad-argument",
            help=f"one of {', '.join(_NAMES)}",
        )
    return _whole(b, op, x)


@compiles(tile.group.barrier)
def _barrier(b: Builder) -> None:
    found = handler_of(tile.barrier)
    assert found is not None, "barriers are compiled by `shared`"
    found[0](b)
