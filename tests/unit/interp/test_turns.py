"""Programs that wait for each other run in turns; those that wait for ever are a deadlock."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import numpy as np
import pytest

import tessera as ts
from tessera.errors import DeviceError
from tessera.interp import interpret
from tessera.interp.turns import waiting_loops
from tessera.ir.tile.structure import GridOp
from tests.unit.frontend.support import built

F, FLAGS = ts.f32, ts.Tensor["m", ts.i32]
ORDERS = [None, *range(12)]


def run(function: Callable[..., None], order_seed: int | None = None, size: int = 6) -> list[np.ndarray]:
    arrays = [np.zeros(size, np.float32), np.zeros(size, np.int32)]
    interpret(built(function).module, arrays, order_seed=order_seed)
    return arrays


def chain(x: ts.Tensor["n", F], f: FLAGS):
    """Each program waits for the one after it."""
    for i in ts.tile.grid((n, 1)):
        if i < n - 1:
            while ts.tile.atomic_add(f[i + 1], 0, order="acquire") == 0:
                pass
            x[i] = x[i + 1] * 2.0 + 1.0
        else:
            x[i] = 1.0
        ts.tile.atomic_exchange(f[i], 1, order="release")


def counting_chain(x: ts.Tensor["n", F], f: FLAGS):
    """The loops count, so that no iteration leaves everything as it was."""
    for i in ts.tile.grid((n, 1)):
        tries = 0
        if i < n - 1:
            while ts.tile.atomic_compare_exchange(f[i + 1], 1, 1, order="acquire") == 0:
                tries += 1
            x[i] = x[i + 1] * 2.0 + 1.0
        else:
            x[i] = 1.0
        ts.tile.atomic_exchange(f[i], 1, order="release")


@pytest.mark.parametrize("function", [chain, counting_chain], ids=lambda function: function.__name__)
@pytest.mark.parametrize("order", ORDERS)
def test_a_program_waits_for_another(function: Callable[..., None], order: int | None) -> None:
    assert run(function, order)[0].tolist() == [63, 31, 15, 7, 3, 1]


def locked(x: ts.Tensor["n", F], f: FLAGS):
    """A counter that a lock guards."""
    for _i in ts.tile.grid((n, 1)):
        for _ in ts.tile.range(3):
            while ts.tile.atomic_exchange(f[0], 1, order="acquire") != 0:
                pass
            x[0] = x[0] + 1.0
            ts.tile.atomic_exchange(f[0], 0, order="release")


@pytest.mark.parametrize("order", ORDERS)
def test_a_lock_guards_a_counter(order: int | None) -> None:
    assert run(locked, order)[0][0] == 18


def all_meet(x: ts.Tensor["n", F], f: FLAGS):
    """A barrier of all programs, then each reads what its neighbour stored."""
    for i in ts.tile.grid((n, 1)):
        x[i] = ts.tile.cast(i, F)
        ts.tile.atomic_add(f[0], 1, order="release")
        while ts.tile.atomic_add(f[0], 0, order="acquire") < n:
            pass
        seen = x[(i + 1) % n]
        ts.tile.atomic_add(f[1], 1, order="release")
        while ts.tile.atomic_add(f[1], 0, order="acquire") < n:
            pass
        x[i] = seen


@pytest.mark.parametrize("order", ORDERS)
def test_all_programs_meet(order: int | None) -> None:
    assert run(all_meet, order)[0].tolist() == [1, 2, 3, 4, 5, 0]


def ring(x: ts.Tensor["n", F], f: FLAGS):
    for i in ts.tile.grid((n, 1)):
        while ts.tile.atomic_add(f[i], 0, order="acquire") == 0:  # waits
            pass
        ts.tile.atomic_exchange(f[(i + 1) % n], 1, order="release")


def each_waits_elsewhere(x: ts.Tensor["n", F], f: FLAGS):
    for i in ts.tile.grid((n, 3)):
        if i == 0:
            while ts.tile.atomic_add(f[0], 0) == 0:  # waits
                x[0] = 1.0
            ts.tile.atomic_exchange(f[3], 1)
        else:
            while ts.tile.atomic_add(f[3], 0) == 0:  # waits
                pass
            ts.tile.atomic_exchange(f[0], 1)


def never_stored(x: ts.Tensor["n", F], f: FLAGS):
    for i in ts.tile.grid((n, 3)):
        if i == 0:
            ts.tile.atomic_exchange(f[1], 1)
        else:
            while ts.tile.atomic_add(f[0], 0) == 0:  # waits
                pass


@pytest.mark.parametrize("function", [ring, each_waits_elsewhere, never_stored], ids=lambda f: f.__name__)
@pytest.mark.parametrize("order", ORDERS)
def test_a_deadlock_names_the_lines(function: Callable[..., None], order: int | None) -> None:
    with pytest.raises(DeviceError, match="no program can go on") as caught:
        run(function, order)
    error = caught.value
    assert error.code == "deadlock"
    assert error.location is not None
    lines, start = inspect.getsourcelines(function)
    waits = {number for number, line in enumerate(lines, start) if line.rstrip().endswith("# waits")}
    assert {error.location.frame.line, *(place.frame.line for _, place in error.related)} == waits


def test_one_order_of_turns_for_each_seed() -> None:
    def tickets(x: ts.Tensor["n", F], f: FLAGS):
        for i in ts.tile.grid((n, 1)):
            for _ in ts.tile.range(4):
                while ts.tile.atomic_exchange(f[0], 1, order="acquire") != 0:
                    pass
                x[i] = x[i] * 31.0 + ts.tile.cast(ts.tile.atomic_add(f[1], 1), F)
                ts.tile.atomic_exchange(f[0], 0, order="release")

    results = [run(tickets, seed)[0].tolist() for seed in (1, 1, 2, 3)]
    assert results[0] == results[1]
    assert len({tuple(result) for result in results}) > 1


def test_an_error_of_one_program_ends_all() -> None:
    def fails(x: ts.Tensor["n", F], f: FLAGS):
        for i in ts.tile.grid((n, 1)):
            if i == 3:
                assert i < 3, "the fourth"
            while ts.tile.atomic_add(f[0], 0) == 0:
                pass

    arrays = [np.zeros(6, np.float32), np.zeros(6, np.int32)]
    with pytest.raises(DeviceError, match="the fourth"):
        interpret(built(fails, debug=True).module, arrays)


def test_ordinary_loops_take_no_turns() -> None:
    def halves(x: ts.Tensor["n", F], f: FLAGS):
        for i in ts.tile.grid((n, 1)):
            k = f[i]
            while k > 1:
                k = k // 2 + f[k] * 0
            x[i] = ts.tile.cast(k, F)

    (grid,) = (op for op in built(halves).module.walk() if isinstance(op, GridOp))
    assert not waiting_loops(list(grid.walk()))
    (grid,) = (op for op in built(chain).module.walk() if isinstance(op, GridOp))
    assert len(waiting_loops(list(grid.walk()))) == 1
