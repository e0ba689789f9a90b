"""Races between the programs of a grid: both places are named, whatever the order of the programs."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import numpy as np
import pytest

import tessera as ts
from tessera.errors import DeviceError
from tessera.interp import interpret
from tests.unit.frontend.support import built

F, FLAGS = ts.f32, ts.Tensor["m", ts.i32]
ORDERS = [None, *range(6)]


def run(function: Callable[..., None], order_seed: int | None = None, size: int = 16, **options) -> list[np.ndarray]:
    """Run a kernel of two arrays, of floats and of flags."""
    arrays = [np.arange(size, dtype=np.float32), np.zeros(size, np.int32)]
    interpret(built(function).module, arrays, order_seed=order_seed, **options)
    return arrays


def marked(function: Callable[..., None]) -> set[int]:
    lines, start = inspect.getsourcelines(function)
    return {number for number, line in enumerate(lines, start) if line.rstrip().endswith("# race")}


def stores_overlap(x: ts.Tensor["n", F], f: FLAGS):
    for i in ts.tile.grid((n, 4)):
        x[i : i + 5] = ts.tile.zeros((5,), F)  # race


def neighbours_are_read(x: ts.Tensor["n", F], f: FLAGS):
    for i in ts.tile.grid((n, 4)):
        right = x[i + 4 : i + 5]  # race
        x[i : i + 1] = right  # race


def all_write_one_scalar(x: ts.Tensor["n", F], f: FLAGS):
    for _i in ts.tile.grid((n, 4)):
        x[0] = 1.0  # race


def everybody_reads_what_one_writes(x: ts.Tensor["n", F], f: FLAGS):
    for i in ts.tile.grid((n, 4)):
        total = ts.tile.sum(x[0:16])  # race
        if i == 8:
            x[3] = total  # race


def scatter_and_gather(x: ts.Tensor["n", F], f: FLAGS):
    for i in ts.tile.grid((n, 4)):
        at = (ts.tile.arange(4) * 5 + i // 2) % 16
        x[at] = x[at] + 1.0  # race


def atomic_and_plain_load(x: ts.Tensor["n", F], f: FLAGS):
    for i in ts.tile.grid((n, 4)):
        ts.tile.atomic_add(x[0:4], 1.0)  # race
        f[i] = ts.tile.cast(x[0], ts.i32)  # race


def atomic_and_plain_store(x: ts.Tensor["n", F], f: FLAGS):
    for i in ts.tile.grid((n, 4)):
        if i == 4:
            f[0] = 0  # race
        ts.tile.atomic_add(f[0], 1)  # race


def relaxed_flag(x: ts.Tensor["n", F], f: FLAGS):
    for i in ts.tile.grid((n, 8)):
        if i == 0:
            x[1] = 5.0  # race
            ts.tile.atomic_exchange(f[0], 1)
        else:
            while ts.tile.atomic_add(f[0], 0, order="acquire") == 0:
                pass
            x[9] = x[1]  # race


def flag_not_acquired(x: ts.Tensor["n", F], f: FLAGS):
    for i in ts.tile.grid((n, 8)):
        if i == 0:
            x[1] = 5.0  # race
            ts.tile.atomic_exchange(f[0], 1, order="release")
        else:
            while ts.tile.atomic_add(f[0], 0) == 0:
                pass
            x[9] = x[1]  # race


def flag_of_the_group(x: ts.Tensor["n", F], f: FLAGS):
    for i in ts.tile.grid((n, 8)):
        if i == 0:
            x[1] = 5.0  # race
            ts.tile.atomic_exchange(f[0], 1, order="release", scope="group")
        else:
            while ts.tile.atomic_add(f[0], 0, order="acquire", scope="group") == 0:
                pass
            x[9] = x[1]  # race


def released_too_early(x: ts.Tensor["n", F], f: FLAGS):
    for i in ts.tile.grid((n, 8)):
        if i == 0:
            ts.tile.atomic_exchange(f[0], 1, order="release")
            x[1] = 5.0  # race
        else:
            while ts.tile.atomic_add(f[0], 0, order="acquire") == 0:
                pass
            x[9] = x[1]  # race


def stored_flag_not_released(x: ts.Tensor["n", F], f: FLAGS):
    for i in ts.tile.grid((n, 8)):
        if i == 0:
            x[1] = 5.0  # race
            ts.tile.atomic_store(f[0], 1)
        else:
            while ts.tile.atomic_load(f[0], order="acquire") == 0:
                pass
            x[9] = x[1]  # race


def release_replaced_by_a_relaxed_store(x: ts.Tensor["n", F], f: FLAGS):
    """Who reads the second store knows nothing of what the first one released."""
    for i in ts.tile.grid((n, 8)):
        if i == 0:
            x[1] = 5.0  # race
            ts.tile.atomic_store(f[0], 1, order="release")
            ts.tile.atomic_store(f[0], 2)
        else:
            while ts.tile.atomic_load(f[0]) != 2:
                pass
            ts.tile.atomic_load(f[0], order="acquire")
            x[9] = x[1]  # race


def fence_on_one_side(x: ts.Tensor["n", F], f: FLAGS):
    for i in ts.tile.grid((n, 8)):
        if i == 0:
            x[1] = 5.0  # race
            ts.tile.fence("release")
            ts.tile.atomic_store(f[0], 1)
        else:
            while ts.tile.atomic_load(f[0]) == 0:
                pass
            x[9] = x[1]  # race


def fence_after_the_store(x: ts.Tensor["n", F], f: FLAGS):
    for i in ts.tile.grid((n, 8)):
        if i == 0:
            x[1] = 5.0  # race
            ts.tile.atomic_store(f[0], 1)
            ts.tile.fence("release")
        else:
            while ts.tile.atomic_load(f[0]) == 0:
                pass
            ts.tile.fence("acquire")
            x[9] = x[1]  # race


def atomic_load_of_a_plain_store(x: ts.Tensor["n", F], f: FLAGS):
    for i in ts.tile.grid((n, 4)):
        if i == 4:
            f[0] = 1  # race
        x[i] = ts.tile.cast(ts.tile.atomic_load(f[0]), F)  # race


def masked_stores_meet(x: ts.Tensor["n", F], f: FLAGS):
    for _i in ts.tile.grid((n, 4)):
        if ts.tile.arange(16) % 4 == 3:
            x[0:16] = 1.0  # race


RACES = [
    stores_overlap,
    neighbours_are_read,
    all_write_one_scalar,
    everybody_reads_what_one_writes,
    scatter_and_gather,
    atomic_and_plain_load,
    atomic_and_plain_store,
    relaxed_flag,
    flag_not_acquired,
    flag_of_the_group,
    released_too_early,
    masked_stores_meet,
    stored_flag_not_released,
    release_replaced_by_a_relaxed_store,
    fence_on_one_side,
    fence_after_the_store,
    atomic_load_of_a_plain_store,
]


@pytest.mark.parametrize("function", RACES, ids=lambda function: function.__name__)
@pytest.mark.parametrize("order", ORDERS)
def test_both_places_are_named(function: Callable[..., None], order: int | None) -> None:
    with pytest.raises(DeviceError) as caught:
        run(function, order)
    error = caught.value
    assert error.code == "race"
    assert error.location is not None
    ((other, place),) = error.related
    lines = {error.location.frame.line, place.frame.line}
    assert lines <= marked(function)
    assert len(lines) == 2 or error.message.split()[1] in ("writes", "updates") or len(marked(function)) == 1
    assert error.message.count("program at") == 2
    assert "program at" in other


@pytest.mark.parametrize("function", RACES, ids=lambda function: function.__name__)
def test_nothing_is_said_without_checks(function: Callable[..., None]) -> None:
    run(function, checks=False)


def own_elements(x: ts.Tensor["n", F], f: FLAGS):
    for i in ts.tile.grid((n, 4)):
        x[i : i + 4] = x[i : i + 4] * 2.0
        x[i : i + 4] += 1.0
    for j in ts.tile.grid((n, 8)):
        x[j : j + 8] = 0.0 - x[j : j + 8]


def masked_stores_apart(x: ts.Tensor["n", F], f: FLAGS):
    for i in ts.tile.grid((n, 4)):
        if ts.tile.arange(16) // 4 == i // 4:
            x[0:16] = -0.0 - ts.tile.arange(16, dtype=F) * 2.0 - 1.0


def counted(x: ts.Tensor["n", F], f: FLAGS):
    """The last program to arrive sees what all have stored."""
    for i in ts.tile.grid((n, 4)):
        x[i : i + 4] = -1.0 - 2.0 * x[i : i + 4]
        ticket = ts.tile.atomic_add(f[0], 1, order="acq_rel")
        if ticket == 3:
            x[0:16] = ts.tile.load(x[0:16]) + 0.0


def fences(x: ts.Tensor["n", F], f: FLAGS):
    """Relaxed atomics between a fence that releases and one that acquires; a third program passes it on."""
    for i in ts.tile.grid((n, 4)):
        if i == 0:
            x[0:12] = -1.0 - 2.0 * x[0:12]
            ts.tile.fence("release")
            ts.tile.atomic_store(f[0], 1)
        if i == 4:
            while ts.tile.atomic_load(f[0]) == 0:
                pass
            ts.tile.fence("acquire")
            ts.tile.atomic_store(f[1], 1, order="release")
        if i == 8:
            while ts.tile.atomic_load(f[1], order="seq_cst") == 0:
                pass
            x[0:12] = x[0:12] + 0.0
        if i == 12:
            x[12:16] = -1.0 - 2.0 * x[12:16]
            x[12] = x[12] + ts.tile.cast(ts.tile.load(f[2]) + ts.tile.atomic_load(f[2]), F) * 0.0


@pytest.mark.parametrize("function", [own_elements, masked_stores_apart, counted, fences], ids=lambda f: f.__name__)
@pytest.mark.parametrize("order", ORDERS)
def test_what_is_ordered_is_no_race(function: Callable[..., None], order: int | None) -> None:
    assert np.array_equal(run(function, order)[0], -1.0 - 2.0 * np.arange(16))


def test_two_arguments_can_be_one_memory() -> None:
    def shifted(x: ts.Tensor["n", F], y: ts.Tensor["n", F]):
        for i in ts.tile.grid((n, 4)):
            y[i : i + 4] = x[i + 4 : i + 8]

    x = np.zeros(16, np.float32)
    interpret(built(shifted).module, [x, np.zeros(16, np.float32)])
    with pytest.raises(DeviceError, match="nothing orders the two"):
        interpret(built(shifted).module, [x, x])
