"""The entry's tables: grids against the artefact's own evaluation, limits, and the checks of this Python."""

import ctypes
import random

import numpy as np
import pytest

from tessera.driver.direct_calls import _load_entry
from tessera.entry import host, layout
from tessera.entry.tables import (
    ArrayGuard,
    AxisGuard,
    NotDirect,
    Record,
    ScalarGuard,
    Table,
    Work,
    grid_steps,
)
from tessera.errors import CallError
from tessera.runtime import pool
from tessera.runtime.pool import shared_pool
from tessera.target.artifact import Launch, Parameter, program_count
from tessera.target.extents import FUNCTIONS
from tessera.target.schema import ArtifactError

pytestmark = pytest.mark.skipif(bool(host.why_not()), reason=host.why_not())

ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
INT64 = (layout.INTEGER, -(2**63), 2**63 - 1)


class Probe(host.Callable):
    """Something with a table of its own."""

    def __call__(self, *args, **kwargs):
        return "slow", args, kwargs


host.call_directly(Probe)


def launch(grid, params=()) -> Launch:
    """Return a launch of a grid."""
    return Launch("f", params, tuple(grid))


def probe(launches, arguments, conditions=(), **words):
    """Return a callable whose work notes how many programs of each launch ran."""
    ran = []

    @ENTRY
    def run(params, first, last):
        if first:  # a launch begins with a piece that is timed
            first, before = ran.pop()
            assert before <= last
        ran.append((first, last))

    address = ctypes.cast(run, ctypes.c_void_p).value
    work = Work(
        launches,
        [address] * len(launches),
        {"threads": 1, "pool": ctypes.addressof(pool.words), **words},
        [0] * len(launches),
        lambda number: 1 / 0,
        (layout.SCRATCH, -2),
        shared_pool,
        keep=(run,),
        conditions=conditions,
    )
    record = Record(len(arguments), (), arguments, (), (), (), None, work)
    made = Probe()
    made.table = Table([record], Probe.__call__)
    host.put_word(id(made) + layout.KERNEL["table"], made.table.address)
    host.put_word(id(made) + layout.KERNEL["call"], _load_entry()[1])
    return made, ran


def random_expression(rng, scalars, depth):
    """Return a grid expression."""
    if depth == 0 or rng.random() < 0.2:
        if rng.random() < 0.5:
            return ("const", rng.choice([0, 1, -1, 3, 16, 1000, rng.randrange(-(2**40), 2**40)]))
        return ("scalar", rng.randrange(scalars))
    fn = rng.choice(list(FUNCTIONS))
    if fn in ("signed", "unsigned"):
        return (fn, random_expression(rng, scalars, depth - 1), ("const", rng.choice([1, 8, 16, 31, 32, 63])))
    return (fn, random_expression(rng, scalars, depth - 1), random_expression(rng, scalars, depth - 1))


def test_grids_have_the_programs_that_the_artefact_says():
    rng = random.Random(11)
    served = 0
    for _ in range(150):
        grid = [
            (random_expression(rng, 3, rng.randrange(5)), rng.choice([1, 2, 7, 64, 1000]))
            for _ in range(rng.randrange(4))
        ]
        one = launch(grid)
        call, ran = probe([one], [ScalarGuard(place, *INT64) for place in range(3)])
        for _ in range(6):
            values = [rng.choice([0, 1, -1, 5, rng.randrange(-50, 5000), rng.randrange(2**62)]) for _ in range(3)]
            ran.clear()
            slow = call(*values)
            try:
                wanted = program_count(one, [], dict(enumerate(values)))
            except (ArtifactError, CallError):
                wanted = None
            if slow is None:
                served += 1
                assert wanted is not None
                assert ran == ([(0, wanted)] if wanted else [])
            else:  # left to the Python path: nothing ran, and only for what 64 bits do not hold or -1 divides
                assert slow == ("slow", tuple(values), {})
                assert ran == []
    assert served > 500


def test_a_division_by_zero_is_left_to_python():
    call, ran = probe([launch([(("floordiv", ("const", 8), ("scalar", 0)), 1)])], [ScalarGuard(0, *INT64)])
    assert call(0) == ("slow", (0,), {})
    assert call(3) is None
    assert ran == [(0, 2)]


def test_calls_are_refused_where_a_condition_is_zero():
    above = ("lt", ("const", 3), ("scalar", 0))
    even = ("eq", ("mod", ("scalar", 1), ("const", 2)), ("const", 0))
    call, ran = probe(
        [launch([(("scalar", 0), 1)]), launch([])],
        [ScalarGuard(place, *INT64) for place in range(2)],
        conditions=(above, even),
    )
    for values, holds in (((4, 2), True), ((3, 2), False), ((9, 0), True), ((9, 1), False), ((-4, 2), False)):
        ran.clear()
        assert call(*values) == (None if holds else ("slow", values, {}))
        assert ran == ([(0, values[0]), (0, 1)] if holds else [])


def test_unsigned_numbers_of_64_bits_are_left_to_python():
    with pytest.raises(NotDirect):
        probe([launch([(("unsigned", ("scalar", 0), ("const", 64)), 1)])], [ScalarGuard(0, *INT64)])


def test_grids_of_sizes_and_several_launches():
    axes = (AxisGuard(-1, 1, -1, 1), AxisGuard(-1, 1, 1, 1))
    x = np.zeros((5, 7), np.float32)
    guard = ArrayGuard(layout.NUMPY, (id(np.ndarray),), id(x.dtype), 0, 4, 16, axes, True, 2)
    grids = [[(("size", 0, 0), 2), (("size", 0, 1), 4)], [(("size", 0, 1), 8)], []]
    call, ran = probe([launch(grid) for grid in grids], [guard])
    aligned = np.zeros(500, np.uint8)
    start = -aligned.ctypes.data % 64
    x = aligned[start : start + 140].view(np.float32).reshape(5, 7)
    assert call(x) is None
    assert ran == [(0, 6), (0, 1), (0, 1)]
    assert call(x.astype(np.float64))[0] == "slow"


def test_limits_are_typed():
    deep = ("scalar", 0)
    for _ in range(layout.GRID_DEPTH + 1):
        deep = ("add", ("const", 1), deep)
    with pytest.raises(NotDirect):
        probe([launch([(deep, 1)])], [ScalarGuard(0, *INT64)])
    with pytest.raises(NotDirect):
        probe([launch([(("scalar", 0), 1)])], [ScalarGuard(0, layout.FLOAT32)])
    many = tuple(Parameter("scalar", 0) for _ in range(3000))
    with pytest.raises(NotDirect):
        probe([launch([], many)], [ScalarGuard(0, *INT64)])


def test_steps_need_no_deeper_stack_than_is_counted():
    left = ("const", 1)
    for _ in range(100):
        left = ("add", left, ("const", 1))

    class Block:
        """Stands for offsets that no step here needs."""

    assert len(grid_steps([(left, 4)], Block())) == 202


def test_names_of_steps_are_those_of_artefacts():
    assert set(layout.GRID_CODES) - {"load", "blocks", "const", "require"} == set(FUNCTIONS)


def test_a_callable_without_a_table_is_python():
    plain = Probe()
    assert plain(1, a=2) == ("slow", (1,), {"a": 2})
    assert Probe.__call__(plain, 3) == ("slow", (3,), {})


def test_unknown_layouts_are_noticed(monkeypatch):
    assert host._objects_are_as_expected()
    assert host._arrays_are_as_expected()
    for field in ("data", "rank", "sizes", "strides", "dtype", "flags"):
        # An address may have the flag's bit by chance, a rank has not.
        other = layout.ARRAY["data"] + 8 if field == "data" else layout.ARRAY["rank" if field == "flags" else "data"]
        monkeypatch.setitem(layout.ARRAY, field, other)
        assert not host._arrays_are_as_expected()
        monkeypatch.undo()
    monkeypatch.setattr(layout, "BYTES_DATA", 24)
    assert not host._objects_are_as_expected()
    monkeypatch.undo()
    monkeypatch.setitem(host._SIZES, "__basicsize__", 48)
    assert not host._types_are_as_expected()
    assert "layout" in host._why_not_this_python()
    monkeypatch.undo()
    monkeypatch.setattr(host.sys, "abiflags", "t")
    assert "GIL" in host._why_not_this_python()


def test_platforms_without_a_loader_are_named(monkeypatch):
    for where, name, wanted in (("win32", "AMD64", "win32"), ("linux", "riscv64", "riscv64")):
        host.why_not.cache_clear()
        monkeypatch.setattr(host.sys, "platform", where)
        monkeypatch.setattr(host.platform, "machine", lambda name=name: name)
        assert wanted in host.why_not()
        monkeypatch.undo()
    host.why_not.cache_clear()
    assert host.why_not() == ""
