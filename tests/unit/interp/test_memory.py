"""Boxes, index tiles, atomics, grids, control flow, argument checks; and the checks' messages."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects.scf import ConditionOp, ForOp, IfOp, WhileOp, YieldOp
from xdsl.ir import Block, Region

from tessera.errors import CallError, DeviceError, VerifyError
from tessera.interp import interpret
from tessera.ir.text import parse_module
from tessera.ir.tile import atomics, debug, elementwise, memory, structure
from tessera.ir.tile.types import TensorType
from tessera.ir.types import element_type, i1, index
from tessera.numerics import dtypes
from tests.unit.interp.kernels import tensor_kernel, tensor_of
from tests.unit.ir.samples import BF16, F32, At

I32 = element_type(dtypes.i32)
MATRIX = TensorType.of([-1, -1], F32)
VECTOR = TensorType.of([-1], F32)
INTS = TensorType.of([-1], I32)


def copy_kernel(offset: tuple[int, int], sizes: tuple[int, int], fill: float | None = None):
    """Load a box of p0 and store it to the whole of p1."""

    def body(at, source, target):
        at_offset = [at.const(o) for o in offset]
        value = None if fill is None else at.const(fill, F32)
        tile = at(memory.LoadOp(source, at_offset, sizes, fill=value))
        zero = at.const(0)
        at.do(memory.StoreOp(tile, target, [zero, zero], sizes))
        return [target]

    return tensor_kernel([MATRIX, MATRIX], body, [1])


@pytest.mark.parametrize("offset", [(0, 0), (2, 3), (-2, -1), (6, 0), (9, 9), (-9, 2)])
@pytest.mark.parametrize("fill", [None, 7.5])
def test_a_box_outside_is_filled(offset: tuple[int, int], fill: float | None) -> None:
    source = np.arange(48, dtype=np.float32).reshape(6, 8)
    target = np.full((4, 5), -1, np.float32)
    padded = np.full((40, 40), fill or 0, np.float32)
    padded[16:22, 16:24] = source
    wanted = padded[16 + offset[0] : 20 + offset[0], 16 + offset[1] : 21 + offset[1]]
    [result] = interpret(copy_kernel(offset, (4, 5), fill), [source, target])
    assert result is target
    assert np.array_equal(target, wanted)


def test_strided_views_and_empty_arrays() -> None:
    base = np.arange(96, dtype=np.float32).reshape(12, 8)
    out = np.zeros((8, 12), np.float32)
    interpret(copy_kernel((1, 0), (4, 5)), [base[::-2].T, out.T[:4, :5]])
    assert np.array_equal(out.T[:4, :5], base[::-2].T[1:5, :5])
    empty = np.zeros((0, 3), np.float32)
    interpret(copy_kernel((0, 0), (4, 5), 2.0), [empty, out.T])
    assert (out.T[:4, :5] == 2).all()
    interpret(copy_kernel((0, 0), (4, 5)), [base, empty])


def index_kernel(masked: bool = False):
    """p2[p1[i]] = p0[p1[i]], for i < 4, masked by p1[i] < 100 on demand."""

    def body(at, source, where, target):
        zero = at.const(0)
        indices = at(memory.LoadOp(where, [zero], [4]))
        mask = None
        if masked:
            limit = at(elementwise.SplatOp(at.const(100, I32), [4]))
            mask = at(elementwise.ElementwiseOp("lt", [indices, limit]))
        got = at(memory.GatherOp(source, [indices], mask=mask))
        at.do(memory.ScatterOp(got, target, [indices], mask=mask))
        return [target]

    return tensor_kernel([VECTOR, INTS, VECTOR], body, [2])


def run_indices(where: list[int], masked: bool = False, **options) -> np.ndarray:
    source, target = np.arange(8, dtype=np.float32) + 10, np.zeros(8, np.float32)
    interpret(index_kernel(masked), [source, np.array(where, np.int32), target], **options)
    return target


def test_gather_and_scatter() -> None:
    assert run_indices([3, 0, 7, 5]).tolist() == [10, 0, 0, 13, 0, 15, 0, 17]
    assert run_indices([3, 100, 107, 5], masked=True).tolist() == [0, 0, 0, 13, 0, 15, 0, 0]


@pytest.mark.parametrize("checks", [True, False])
def test_an_index_outside_touches_nothing(checks: bool) -> None:
    assert run_indices([8, -1, 2, 10**9], checks=checks).tolist() == [0, 0, 12, 0, 0, 0, 0, 0]


def test_different_values_to_one_place_are_a_race() -> None:
    def body(at, where, target):
        indices = at(memory.LoadOp(where, [at.const(0)], [4]))
        at.do(memory.ScatterOp(at(elementwise.CastOp(indices, F32)), target, [indices]))
        lanes = at(elementwise.CastOp(at(elementwise.ArangeOp(4, I32)), F32))
        at.do(memory.ScatterOp(lanes, target, [indices]))

    module = tensor_kernel([INTS, VECTOR], body, [1])
    with pytest.raises(DeviceError, match=r"different values to p1\[2\]") as caught:
        interpret(module, [np.array([1, 2, 2, 3], np.int32), np.zeros(8, np.float32)])
    assert caught.value.code == "race"


@pytest.mark.parametrize("fn", ["add", "max", "min", "exchange"])
@pytest.mark.parametrize("where", [[0, 1, 2, 3], [1, 1, 0, 1]], ids=["distinct", "same"])
def test_atomics_run_one_after_the_other(fn: str, where: list[int]) -> None:
    def body(at, target, indices, values, old):
        zero = at.const(0)
        i, v = (at(memory.LoadOp(t, [zero], [4])) for t in (indices, values))
        at.do(memory.StoreOp(at(atomics.AtomicOp(fn, v, target, [i])), old, [zero], [4]))

    target, values = np.array([5, 6, 7, 8], np.float32), np.array([1, 9, 3, 4], np.float32)
    old = np.zeros(4, np.float32)
    update = {"add": lambda a, b: a + b, "max": max, "min": min, "exchange": lambda a, b: b}[fn]
    wanted, olds = target.copy(), []
    for place, value in zip(where, values, strict=True):
        olds.append(wanted[place])
        wanted[place] = update(wanted[place], value)
    interpret(
        tensor_kernel([VECTOR, INTS, VECTOR, VECTOR], body, [0, 3]),
        [target, np.array(where, np.int32), values, old],
    )
    assert np.array_equal(target, wanted)
    assert np.array_equal(old, np.array(olds))


def test_compare_exchange() -> None:
    def body(at, target, indices, expected):
        zero = at.const(0)
        i, e = (at(memory.LoadOp(t, [zero], [3])) for t in (indices, expected))
        new = at(elementwise.SplatOp(at.const(99, I32), [3]))
        at(atomics.AtomicOp("compare_exchange", new, target, [i], compare=e))

    target = np.array([4, 5, 6], np.int32)
    interpret(
        tensor_kernel([INTS, INTS, INTS], body, [0]),
        [target, np.array([0, 1, 0], np.int32), np.array([4, 0, 4], np.int32)],
    )
    assert target.tolist() == [99, 5, 6]


def test_uninitialized_tensors() -> None:
    module = copy_kernel((1, 0), (2, 2))
    source, target = np.ones((3, 2), np.float32), np.zeros((2, 2), np.float32)
    with pytest.raises(DeviceError, match=r"reads p0\[1, 0\], which nothing was written to") as caught:
        interpret(module, [source, target], uninitialized=["p0"])
    assert caught.value.code == "uninitialized-read"
    interpret(module, [source, target], uninitialized=["p1"])
    interpret(module, [source, target], uninitialized=["p0"], checks=False)


def grid_kernel():
    """Counts the programs of a grid and notes their order: p0[i // 4, j // 8] = the count so far."""

    def body(at, target, counter):
        m, n = at.const(10), at.const(17)
        grid = structure.GridOp([m, n], [4, 8])
        at.do(grid)
        inner = At(grid.body.block)
        i, j = grid.body.block.args
        one = inner.const(1, I32)
        zero = inner.const(0, I32)
        count = inner(atomics.AtomicOp("add", one, counter, [zero]))
        row = inner(elementwise.ElementwiseOp("floordiv", [i, inner.const(4)]))
        column = inner(elementwise.ElementwiseOp("floordiv", [j, inner.const(8)]))
        inner.do(memory.StoreOp(count, target, [row, column], [1, 1], [0, 1]))
        return [target]

    return tensor_kernel([TensorType.of([-1, -1], I32), INTS], body, [0, 1])


def test_a_grid_runs_every_tile_in_order_or_shuffled() -> None:
    order, counter = np.full((3, 3), -1, np.int32), np.zeros(1, np.int32)
    interpret(grid_kernel(), [order, counter])
    assert order.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    shuffled = np.full((3, 3), -1, np.int32)
    interpret(grid_kernel(), [shuffled, np.zeros(1, np.int32)], order_seed=3)
    assert sorted(shuffled.ravel().tolist()) == list(range(9))
    assert not np.array_equal(shuffled, order)


def test_loops_branches_and_while() -> None:
    def body(at, target, n):
        zero, one = at.const(0), at.const(1)
        loop = Block(arg_types=[index, F32])
        inner = At(loop)
        doubled = inner(elementwise.ElementwiseOp("add", [loop.args[1], loop.args[1]]))
        inner.do(YieldOp(doubled))
        power = at(ForOp(zero, n, one, [at.const(1.0, F32)], loop))
        then, other = Block(), Block()
        At(then).do(YieldOp(power))
        branch = At(other)
        branch.do(YieldOp(branch.const(-1.0, F32)))
        big = at(elementwise.ElementwiseOp("gt", [n, at.const(3)]))
        chosen = at(IfOp(big, [F32], Region(then), Region(other)))
        before, after = Block(arg_types=[F32]), Block(arg_types=[F32])
        head = At(before)
        size = head(elementwise.ElementwiseOp("abs", [before.args[0]]))
        small = head(elementwise.ElementwiseOp("lt", [size, head.const(100.0, F32)]))
        head.do(ConditionOp(small, before.args[0]))
        tail = At(after)
        tail.do(YieldOp(tail(elementwise.ElementwiseOp("mul", [after.args[0], tail.const(3.0, F32)]))))
        grown = at(WhileOp([chosen], [F32], Region(before), Region(after)))
        for place, value in enumerate((power, chosen, grown)):
            at.do(memory.StoreOp(value, target, [at.const(place)], [1], [0]))

    module = tensor_kernel([VECTOR, index], body, [0])
    out = np.zeros(3, np.float32)
    interpret(module, [out, 5])
    assert out.tolist() == [32, 32, 288]
    interpret(module, [out, 0])
    assert out.tolist() == [1, -1, -243]


def test_a_loop_needs_a_positive_step() -> None:
    def body(at, step):
        loop = Block(arg_types=[index])
        At(loop).do(YieldOp())
        at.do(ForOp(at.const(0), at.const(4), step, [], loop))

    with pytest.raises(DeviceError, match="step is positive, got 0"):
        interpret(tensor_kernel([index], body), [0])


def test_assertions_name_kernel_program_and_element() -> None:
    def body(at, n):
        grid = structure.GridOp([n], [4])
        at.do(grid)
        inner = At(grid.body.block)
        lanes = inner(elementwise.ArangeOp(4, index))
        start = inner(elementwise.SplatOp(grid.body.block.args[0], [4]))
        place = inner(elementwise.ElementwiseOp("add", [lanes, start]))
        limit = inner(elementwise.SplatOp(inner.const(6), [4]))
        inner.do(debug.AssertOp(inner(elementwise.ElementwiseOp("lt", [place, limit])), "place is small"))

    with pytest.raises(DeviceError, match=r"place is small \(kernel k, program at \(4\), element \(2\)\)"):
        interpret(tensor_kernel([index], body), [12])


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        ([np.zeros((2, 2), np.float32)], "bad-argument", "takes 3 arguments, got 1"),
        ([1.0, np.zeros(4, ml_dtypes.bfloat16), 2.0], "bad-argument", "p0 is an array, got float"),
        (
            [np.zeros((2, 2)), np.zeros(4, ml_dtypes.bfloat16), 1],
            "dtype-mismatch",
            "p0 has dtype f32, got f64",
        ),
        ([np.zeros(2, np.float32), np.zeros(4, ml_dtypes.bfloat16), 1], "shape-mismatch", "got shape (2,)"),
        (
            [np.zeros((2, 2), np.float32), np.zeros(5, ml_dtypes.bfloat16), 1],
            "shape-mismatch",
            "tensor<4xbf16>",
        ),
        (
            [np.zeros((2, 2), np.float32), np.zeros(4, ml_dtypes.bfloat16), "x"],
            "bad-argument",
            "scalar f32, got str",
        ),
        ([np.zeros((2, 2), np.complex64), np.zeros(4, ml_dtypes.bfloat16), 1], "dtype-mismatch", "complex64"),
    ],
)
def test_arguments_that_do_not_fit(args: list, code: str, message: str) -> None:
    module = tensor_kernel([MATRIX, TensorType.of([4], BF16), F32], lambda at, *p: None, [0])
    with pytest.raises(CallError) as caught:
        interpret(module, args)
    assert caught.value.code == code
    assert message in str(caught.value)


def test_a_read_only_array_cannot_be_stored_to() -> None:
    target = np.zeros((4, 5), np.float32)
    target.flags.writeable = False
    with pytest.raises(CallError, match="read-only"):
        interpret(copy_kernel((0, 0), (4, 5)), [np.zeros((4, 5), np.float32), target])


def test_a_module_needs_one_kernel() -> None:
    with pytest.raises(VerifyError, match="0 kernels"):
        interpret(parse_module("builtin.module {}"), [])


def test_scalar_arguments_take_the_parameters_type() -> None:
    def body(at, flag, small, target):
        at.do(debug.AssertOp(flag, "flag"))
        at.do(memory.StoreOp(small, target, [at.const(0)], [1], [0]))

    out = np.zeros(1, ml_dtypes.bfloat16)
    interpret(tensor_kernel([i1, BF16, tensor_of(out)], body, [2]), [True, np.float64(1 / 3), out])
    assert out[0] == ml_dtypes.bfloat16(1 / 3)
