"""Barriers between accesses to global memory: enough for every thread, and none where threads read their own.

Random programs are run thread by thread (`tools.fuzz.races`), which knows nothing of how barriers were placed and
bounds found.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from xdsl.dialects import scf

import tessera as ts
from tessera.ir.target.memory import BarrierOp, ScatterOp, StoreOp
from tessera.ir.target.structure import FuncOp
from tessera.lower.simt.order import order_accesses
from tessera.tools.fuzz.races import Machine
from tests.unit.lower.support import lowered

SIZES = {0: (2, 24, 40), 1: (2, 24, 40)}

HEAD = """import tessera as ts


@ts.kernel
def kernel(x: ts.Tensor["B", 24, 40, ts.f32], y: ts.Tensor["B", 24, 40, ts.f32], z: int):
    for b in ts.tile.grid((B, 1)):
"""


def program(seed: int) -> str:
    """Return a kernel that loads, permutes and stores boxes of two tensors in place, in loops and branches."""
    draw = random.Random(seed)
    lines: list[str] = []

    def box(rows: int, columns: int, loop: str | None) -> str:
        top, left = (
            draw.randrange(0, 25 - rows),
            draw.choice([draw.randrange(0, 41 - columns), "z", "z + 40"]),
        )
        place = f"{loop} * {draw.choice([1, 2, columns])}" if loop and draw.random() < 0.6 else str(left)
        return f"{draw.choice('xy')}[b, {top}:{top + rows}, {place}:{place} + {columns}]"

    def statement(depth: int, indent: str, loop: str | None) -> None:
        kind = draw.choice(("move", "move", "turn", "scan", "scalar", "loop", "if")) if depth < 3 else "move"
        rows, columns = draw.choice(((1, 40), (4, 8), (8, 4), (24, 40), (16, 16), (3, 5)))
        if kind == "loop":
            name = f"i{len(lines)}"
            lines.append(f"{indent}for {name} in ts.tile.range({draw.choice(('3', '0, 24, 8', 'B'))}):")
            for _ in range(draw.randint(1, 3)):
                statement(depth + 1, indent + "    ", name)
        elif kind == "if":
            lines.append(f"{indent}if B > {draw.randint(0, 3)}:")
            statement(depth + 1, indent + "    ", loop)
            if draw.random() < 0.5:
                lines.append(f"{indent}else:")
                statement(depth + 1, indent + "    ", loop)
        elif kind == "scalar":
            lines.append(
                f"{indent}{draw.choice('xy')}[b, 0, {draw.randrange(40)}] = x[b, 1, {draw.randrange(40)}] + 1.0"
            )
        else:
            value = box(rows, columns, loop)
            if kind == "turn":
                value, rows, columns = f"({value}).T", columns, rows
                if rows > 24:
                    rows, columns, value = 1, 40, box(1, 40, loop)
            elif kind == "scan":
                value = f"ts.tile.cumsum({value}, 1)"
            lines.append(f"{indent}{box(rows, columns, loop)} = {value} * 2.0")

    for _ in range(draw.randint(2, 6)):
        statement(0, " " * 8, None)
    return HEAD + "\n".join(lines) + "\n"


def kernel_of(text: str, folder: Any) -> FuncOp:
    """Lower a kernel's source."""
    path = folder / f"k{abs(hash(text))}.py"
    path.write_text(text)
    scope: dict[str, Any] = {}
    exec(compile(text, str(path), "exec"), scope)
    return lowered(scope["kernel"].__wrapped__)


@pytest.mark.parametrize("seed", range(25))
def test_random_programs_have_no_race_and_stay_inside(seed: int, tmp_path: Any) -> None:
    text = program(seed)
    func = kernel_of(text, tmp_path)
    for z in (-9, -3, 0, 2, 2**63 - 50):
        machine = Machine(func, SIZES, program=1, scalars={2: z})
        assert not machine.run(), text
        assert not machine.outside, text


def without_barriers(func: FuncOp) -> FuncOp:
    for op in list(func.walk()):
        if isinstance(op, BarrierOp):
            op.detach()
    return func


def test_the_reference_finds_what_missing_barriers_would_do(tmp_path: Any) -> None:
    racing = [
        bool(Machine(without_barriers(kernel_of(program(seed), tmp_path)), SIZES, scalars={2: 0}).run())
        for seed in range(25)
    ]
    assert sum(racing) >= 15


def barriers(function: Any, **options: Any) -> int:
    return sum(isinstance(op, BarrierOp) for op in lowered(function, **options).walk())


def test_threads_that_read_what_they_wrote_wait_for_no_one() -> None:
    def twice(x: ts.Tensor["n", ts.f32]) -> None:
        for i in ts.tile.grid((n, 1024)):
            x[i : i + 1024] = x[i : i + 1024] * 2.0
            x[i : i + 1024] = x[i : i + 1024] + 1.0

    assert barriers(twice) == 0


def test_chunks_of_a_row_are_disjoint_from_trip_to_trip() -> None:
    def chunks(x: ts.Tensor["m", "n", ts.f32]) -> None:
        for r in ts.tile.grid((m, 8)):
            for k in ts.tile.range(0, n, 256):
                x[r : r + 8, k : k + 256] = x[r : r + 8, k : k + 256] + 1.0

    assert barriers(chunks) == 0


def test_tensors_that_only_one_access_touches_need_none() -> None:
    def shifted(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]) -> None:
        for i in ts.tile.grid((n, 1024)):
            y[i : i + 1024] = x[i + 1 : i + 1025]

    assert barriers(shifted) == 0


def test_a_shift_in_place_waits_once_for_each_access() -> None:
    def shifted(x: ts.Tensor["n", ts.f32]) -> None:
        for i in ts.tile.grid((n, 1024)):
            for _ in ts.tile.range(3):
                x[i + 1 : i + 1025] = x[i : i + 1024]

    assert barriers(shifted) == 2


def test_what_a_condition_read_last_is_read_before_it_is_stored() -> None:
    """A `while` ends behind its condition, whatever barriers its body has."""

    def walked(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]) -> None:
        for i in ts.tile.grid((n, 1024)):
            c = ts.tile.cast(0, ts.i32)
            while (c < 4) & (x[0] < 100.0):
                y[i + 1 : i + 1025] = y[i : i + 1024]
                c = c + 1
            x[0] = 1.0

    func = lowered(walked)
    (loop,) = [op for op in func.walk() if isinstance(op, scf.WhileOp)]
    behind = list(loop.parent_block().ops)[list(loop.parent_block().ops).index(loop) + 1 :]
    order = [type(op) for op in behind if isinstance(op, BarrierOp | StoreOp | ScatterOp)]
    assert order[0] is BarrierOp
    assert len(order) > 1


def test_updates_that_commute_are_not_ordered_but_a_read_behind_them_is() -> None:
    def histogram(x: ts.Tensor["n", ts.i32], h: ts.Tensor["m", ts.i32]) -> None:
        for i in ts.tile.grid((n, 1024)):
            for _ in ts.tile.range(3):
                ts.tile.atomic_add(h[x[i : i + 1024]], 1)

    def told(x: ts.Tensor["n", ts.i32], h: ts.Tensor["m", ts.i32], y: ts.Tensor["n", ts.i32]) -> None:
        for i in ts.tile.grid((n, 1024)):
            ts.tile.atomic_add(h[x[i : i + 1024]], 1)
            y[i : i + 1024] = h[x[i : i + 1024]]

    assert barriers(histogram) == 0
    assert barriers(told) == 1


def test_updates_of_another_dtype_at_one_address_are_ordered() -> None:
    """A carry of the one runs into elements of the other."""

    def alike(x: ts.Tensor["n", ts.i32], y: ts.Tensor["m", ts.i32]) -> None:
        for i in ts.tile.grid((n, 1024)):
            ts.tile.atomic_add(x[i : i + 1024], 1)
            ts.tile.atomic_add(y[i : i + 1024], 1)

    def narrow(x: ts.Tensor["n", ts.i32], y: ts.Tensor["m", ts.i8]) -> None:
        for i in ts.tile.grid((n, 1024)):
            ts.tile.atomic_add(x[i : i + 1024], 1)
            ts.tile.atomic_add(y[i : i + 1024], 1)

    for function, waits in ((alike, 0), (narrow, 1)):
        func = lowered(function)
        assert not any(isinstance(op, BarrierOp) for op in func.walk())
        order_accesses(func, lambda _: 0)  # the arguments are one memory
        assert sum(isinstance(op, BarrierOp) for op in func.walk()) == waits


def test_an_atomic_load_is_a_read_among_others() -> None:
    def loads(x: ts.Tensor["n", ts.i32], y: ts.Tensor["n", ts.i32]) -> None:
        for i in ts.tile.grid((n, 1024)):
            y[i : i + 1024] = x[i : i + 1024] + ts.tile.atomic_load(x[i + 1023 - ts.tile.arange(1024)])

    def stores(x: ts.Tensor["n", ts.i32], y: ts.Tensor["n", ts.i32]) -> None:
        for i in ts.tile.grid((n, 1024)):
            y[i : i + 1024] = ts.tile.atomic_load(x[i + 1023 - ts.tile.arange(1024)])
            x[i : i + 1024] = ts.tile.full((1024,), 0, ts.i32)

    def adds(x: ts.Tensor["n", ts.i32], y: ts.Tensor["n", ts.i32]) -> None:
        for i in ts.tile.grid((n, 1024)):
            ts.tile.atomic_add(x[i + ts.tile.arange(1024)], 1)
            y[i : i + 1024] = ts.tile.atomic_load(x[i + 1023 - ts.tile.arange(1024)])

    sizes = {0: (1024,), 1: (1024,)}
    for function, waits in ((loads, 0), (stores, 1), (adds, 1)):
        func = lowered(function)
        assert sum(isinstance(op, BarrierOp) for op in func.walk()) == waits
        assert not Machine(func, sizes).run()
        assert bool(Machine(without_barriers(func), sizes).run()) is bool(waits)
