"""The CPU launcher and its parameter blocks, on entry points made from Python functions."""

from __future__ import annotations

import ctypes
import struct
import threading

import ml_dtypes
import numpy as np
import pytest

from tessera.entry import layout
from tessera.entry.code import compile_ir, walk_ir
from tessera.errors import CallError, DeviceError
from tessera.runtime import cpu
from tessera.runtime.cpu import CpuLauncher
from tessera.runtime.cpu_table import CpuTable
from tessera.runtime.packing import Packing
from tessera.runtime.platforms import Again, host_platform
from tessera.target.artifact import ArgSpec, Artifact, Launch, Parameter

ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


class Code:
    """Stands for loaded object code: each symbol is a Python function behind a C pointer."""

    def __init__(self, functions):
        self.functions = {name: ENTRY(function) for name, function in functions.items()}

    def address(self, symbol):
        return ctypes.cast(self.functions[symbol], ctypes.c_void_p).value


def tensor(name):
    return ArgSpec(name, "tensor", "f32", ("n",), (-1,), (-1,), 4, (1,), (1,), True)


def artifact(launches, args, **facts):
    return Artifact("k", "cpu", "x86-64", tuple(args), (0,), tuple(launches), b"", "object", {}, facts)


def read(params, kinds):
    """Return the values behind an entry's parameters, by `struct` code."""
    pointers = (ctypes.c_void_p * len(kinds)).from_address(params)
    sizes = [struct.calcsize(kind) for kind in kinds]
    return [
        struct.unpack(kind, ctypes.string_at(pointer, size))[0]
        for kind, pointer, size in zip(kinds, pointers, sizes, strict=True)
    ]


POINTER, SIZE, STRIDE = Parameter("pointer", 0), Parameter("size", 0), Parameter("stride", 0)


def plan_of(function, params=(POINTER,), grid=((["size", 0, 0], 4),), args=None, scratch=0, **facts):
    spec = artifact([Launch("k", params, grid, scratch_bytes=scratch)], args or [tensor("x")], **facts)
    return CpuLauncher(spec, lambda _code: Code({"k": function})).prepare(
        [((10,), (1,))] + [None] * (len(spec.args) - 1)
    )


def test_parameters_arrive_in_order():
    seen = []
    params = (STRIDE, Parameter("scalar", 1, dtype="i32"), SIZE, POINTER, Parameter("scalar", 2, dtype="f64"))
    scalars = [ArgSpec("i", "scalar", "i32"), ArgSpec("d", "scalar", "f64")]
    plan = plan_of(lambda p, a, b: seen.append(read(p, "qiqQd")), params, ((["const", 1], 1),), [tensor("x"), *scalars])
    plan.launch([0x1000], [-7, 2.5])
    plan.launch([0x2000], [8, -0.5])
    assert seen == [[1, -7, 10, 0x1000, 2.5], [1, 8, 10, 0x2000, -0.5]]


@pytest.mark.parametrize(
    ("dtype", "value", "kind", "bits"),
    [
        ("f32", 1.1, "I", np.float32(1.1).view(np.uint32)),
        ("f16", 1.1, "H", np.float16(1.1).view(np.uint16)),
        ("bf16", 1.1, "H", np.asarray(1.1, ml_dtypes.bfloat16).view(np.uint16)),
        ("fp8_e4m3", 1.1, "B", np.asarray(1.1, ml_dtypes.float8_e4m3fn).view(np.uint8)),
        ("bool", True, "B", 1),
        ("u8", 255, "B", 255),
        ("i64", np.int64(-5), "Q", 2**64 - 5),
    ],
)
def test_scalars_have_the_bits_of_their_dtype(dtype, value, kind, bits):
    seen = []
    plan = plan_of(
        lambda p, a, b: seen.append(read(p, kind)[0]),
        (Parameter("scalar", 1, dtype=dtype),),
        ((["const", 1], 1),),
        [tensor("x"), ArgSpec("s", "scalar", dtype)],
    )
    plan.launch([0], [value])
    assert seen == [int(bits)]


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("i32", 1.5), ("i32", 2**31), ("u8", -1), ("f32", "a"), ("f32", None), ("bf16", "a"), ("f16", 1e6)],
)
def test_a_scalar_that_does_not_fit_is_named(dtype, value):
    plan = plan_of(
        lambda p, a, b: None,
        (Parameter("scalar", 1, dtype=dtype),),
        ((["const", 1], 1),),
        [tensor("x"), ArgSpec("alpha", "scalar", dtype)],
    )
    with pytest.raises(CallError) as caught:
        plan.launch([0], [value])
    assert caught.value.code == "wrong-scalar"
    assert "'alpha'" in caught.value.message
    assert dtype in caught.value.message


def test_the_grid_follows_sizes_and_scalars():
    seen = []
    scalar = ArgSpec("m", "scalar", "i64")
    grid = ((["size", 0, 0], 4), (["scalar", 1], 2))
    plan = plan_of(lambda p, a, b: seen.extend(range(a, b)), (POINTER,), grid, [tensor("x"), scalar])
    for m, programs in ((1, 3), (5, 9), (0, 0)):
        seen.clear()
        plan.launch([0], [m])
        assert sorted(seen) == list(range(programs)), "ceil(10/4) * ceil(m/2)"


def test_two_launches_run_in_order():
    seen = []
    spec = artifact([Launch(name, (), ()) for name in ("first", "second")], [tensor("x")])
    code = Code({"first": lambda p, a, b: seen.append("first"), "second": lambda p, a, b: seen.append("second")})
    CpuLauncher(spec, lambda _: code).prepare([((1,), (1,))]).launch([0], [])
    assert seen == ["first", "second"]


def test_scratch_is_aligned_and_each_thread_has_its_own(monkeypatch):
    monkeypatch.setattr(cpu, "INLINE_NS", 0)
    monkeypatch.setenv("TESSERA_NUM_THREADS", "3")
    seen = {}
    gate = threading.Barrier(2, timeout=5)

    def body(params, first, last):
        scratch = (ctypes.c_void_p * 2).from_address(params)[1]
        before = seen.setdefault(threading.get_ident(), scratch)
        assert before == scratch
        ctypes.memset(scratch, 1, 1000)
        if first >= 64:
            try:
                gate.wait()  # two threads are inside at once
            except threading.BrokenBarrierError:
                pass

    body_plan = plan_of(lambda p, a, b: body(p, a, b), (POINTER,), ((["const", 100], 1),), scratch=1000)
    threading.Timer(1.0, gate.abort).start()
    body_plan.launch([0], [])
    assert len(seen) > 1
    assert len(set(seen.values())) == len(seen)
    assert all(address % 64 == 0 for address in seen.values())


def test_a_failed_assertion_is_an_error_and_the_next_launch_is_clean():
    fail = [True]

    def body(params, first, last):
        if fail[0]:
            word = (ctypes.c_void_p * 3).from_address(params)[2]
            ctypes.c_int64.from_address(word).value = 2

    asserts = [{"message": "a"}, {"message": "n is odd", "location": "k.py:7:5"}]
    plan = plan_of(body, asserts=asserts)
    with pytest.raises(DeviceError) as caught:
        plan.launch([0], [])
    assert caught.value.code == "device-assert"
    assert "n is odd" in caught.value.message
    assert "k.py:7:5" in caught.value.message
    fail[0] = False
    plan.launch([0], [])


def test_blocks_are_reused_but_never_shared():
    packing = Packing(artifact([Launch("k", (POINTER,), ())], [tensor("x")]), [((1,), (1,))])
    first, second = packing.fill([1], []), packing.fill([2], [])
    assert first is not second
    packing.release(first)
    assert packing.fill([3], []) is first
    assert (first.slots[0], second.slots[0]) == (3, 2)


def test_cheap_launches_stay_on_the_calling_thread(monkeypatch):
    monkeypatch.setenv("TESSERA_NUM_THREADS", "4")
    monkeypatch.setattr(cpu, "shared_pool", lambda: pytest.fail("the pool was used"))
    monkeypatch.setattr(cpu, "INLINE_NS", 10**12)
    counted = []
    plan = plan_of(lambda p, a, b: counted.append(b - a), grid=((["const", 500], 1),))
    for _ in range(5):
        plan.launch([0], [])
    assert sum(counted) == 2500


@pytest.fixture(scope="module")
def walker():
    code = host_platform().load(compile_ir(walk_ir()))
    return lambda: code.address(layout.WALKER)


def table_of(seen, walker, state):
    """Return a table: two launches with scratch memory and a number, between them one that may fail."""

    def first(params, first, last):
        ctypes.memset((ctypes.c_void_p * 4).from_address(params)[2], 1, 100)
        seen.append(("first", read(params, "qq")[0], read(params, "qq")[1], first, last))

    def second(params, first, last):
        seen.append(("second", *read(params, "qq"), first, last))
        if state["fails"]:
            ctypes.c_int64.from_address((ctypes.c_void_p * 4).from_address(params)[3]).value = 1

    scalar, one = ArgSpec("n", "scalar", "i64"), ((["const", 1], 1),)
    with_number = plan_of(first, (POINTER, Parameter("scalar", 1)), one, [tensor("x"), scalar], scratch=100)
    launches = [Launch("k", (POINTER, SIZE), grid) for grid in (one, ((["const", 0], 1),), ((["size", 0, 0], 4),))]
    spec = artifact(launches, [tensor("x")], asserts=[{"message": "n is odd"}])
    asserting = CpuLauncher(spec, lambda _code: Code({"k": second})).prepare([((10,), (1,))])
    again = [Again(with_number, ((2, 8),), (7,)), Again(asserting, ((1, 0),), ()), Again(with_number, ((2, 16),), (9,))]
    return CpuTable(again, walker)


def test_a_table_runs_its_launches_in_order_with_the_addresses_of_each_run(walker):
    seen, state = [], {"fails": False}
    table = table_of(seen, walker, state)
    for number in range(8):
        seen.clear()
        table.run((0, 100 * number, 1000 * number), 0)
        second = [one[1:] for one in seen if one[0] == "second"]
        assert [one for one in seen if one[0] == "first"] == [
            ("first", 1000 * number + 8, 7, 0, 1),
            ("first", 1000 * number + 16, 9, 0, 1),
        ]
        assert seen[0][0] == seen[-1][0] == "first"
        assert all(one[:2] == (100 * number, 10) for one in second)
        assert sorted(at for one in second for at in range(*one[2:])) == [0, 0, 1, 2]


def test_a_table_whose_assertion_fails_runs_again(walker):
    seen, state = [], {"fails": False}
    table = table_of(seen, walker, state)
    for number in range(10):
        state["fails"] = number in (1, 6, 8)
        if state["fails"]:
            with pytest.raises(DeviceError, match="n is odd"):
                table.run((0, 100, 1000), 0)
            assert seen[-1][0] == "second", "what follows does not run"
        else:
            table.run((0, 100, 1000), 0)
            assert seen[-1][0] == "first"
