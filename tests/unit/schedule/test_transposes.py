"""Random graphs of transposed arrays give the same after their transposes have moved: NumPy computes both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tessera.ir.graph.points import FullOp, IotaOp, MapOp
from tessera.ir.graph.structure import ReturnOp
from tessera.ir.graph.sums import ReduceOp
from tessera.ir.graph.takes import TakeOp
from tessera.ir.graph.types import ArrayType, dims_of
from tessera.ir.graph.views import BroadcastOp, ConcatOp, PlaceOp, ReshapeOp, SliceOp, TransposeOp
from tessera.ir.graph.writer import GraphWriter
from tessera.numerics import dtypes
from tessera.schedule.fuse.transposes import move_transposes
from tessera.target.dims import Dim

FUNCTIONS = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "maximum": np.maximum, "sin": np.sin}
SHAPE = (2, 3, 1, 4)


def sizes(value: Any) -> tuple[int, ...]:
    return tuple(dim.scale for dim in dims_of(value))


def computed(op: Any, args: list[Any]) -> Any:
    """Return what an op gives."""
    match op:
        case MapOp():
            return FUNCTIONS[op.fn.data](*args)
        case FullOp():
            return np.asarray(op.number)
        case IotaOp():
            return np.indices(sizes(op.result))[op.axis.data]
        case ReduceOp():
            return {"sum": np.sum, "max": np.max}[op.fn.data](args[0], op.reduced)
        case BroadcastOp():
            thin = np.ones(len(sizes(op.result)), int)
            thin[list(op.places)] = args[0].shape
            return np.broadcast_to(args[0].reshape(thin), sizes(op.result))
        case ReshapeOp():
            return args[0].reshape(sizes(op.result))
        case TransposeOp():
            return args[0].transpose(op.permutation)
        case SliceOp():
            return args[0][part_of(op, sizes(op.result))]
        case PlaceOp():
            whole = np.zeros(sizes(op.result))
            whole[part_of(op, args[0].shape)] = args[0]
            return whole
        case ConcatOp():
            return np.concatenate(args, op.axis.data)
        case TakeOp():
            return taken(op, args)


def part_of(op: Any, inner: tuple[int, ...]) -> tuple[slice, ...]:
    """Return where the elements of a part are."""
    bounds = zip(op.first, inner, op.apart, strict=True)
    return tuple(slice(at.scale, at.scale + count * step, step) for at, count, step in bounds)


def taken(op: TakeOp, args: list[Any]) -> Any:
    """Return the elements of the first operand at the places of the others."""
    rank, grid = len(sizes(op.result)), np.indices(sizes(op.result))
    along = (one.data for one in op.along.data)
    return args[0][tuple(grid[at] if at < rank else args[1 + at - rank] for at in along)]


def run(graph: Any, given: list[Any]) -> list[Any]:
    """Return what a graph gives."""
    values = dict(zip(graph.body.block.args, given, strict=True))
    for op in graph.body.block.ops:
        op.verify()
        args = [values[operand] for operand in op.operands]
        if isinstance(op, ReturnOp):
            return args
        values[op.results[0]] = computed(op, args)
        assert np.shape(values[op.results[0]]) == sizes(op.results[0])
    raise AssertionError("a graph returns")


def grown(w: GraphWriter, rng: Any, x: Any, y: Any) -> Any:
    """Return a value that is made of others."""
    own, rank = sizes(x), len(sizes(x))
    axis = int(rng.integers(rank)) if rank else 0
    static = [Dim((), size) for size in own]
    match rng.integers(10):
        case 0:
            return w.apply("sin", x)
        case 1:
            return w.reduce("sum", w.apply("mul", x, 0.3), [axis], bool(rng.integers(2))) if rank else x
        case 2:
            return w.transpose(x, [int(one) for one in rng.permutation(rank)])
        case 3 if rank:
            count = (own[axis] + 1) // 2
            dims = [Dim((), count) if at == axis else dim for at, dim in enumerate(static)]
            part = w.slice(x, [Dim((), 0)] * rank, [1 + (at == axis) for at in range(rank)], dims)
            return w.place(
                part,
                [*static[:axis], Dim((), 2 * count), *static[axis + 1 :]],
                [Dim((), 0)] * rank,
                [1 + (at == axis) for at in range(rank)],
            )
        case 4 if rank:
            return w.concat([x, w.apply("sin", x), x], axis)
        case 5 if rank > 1:
            joined = Dim((), own[0] * own[1])
            return w.reshape(x, [joined, *static[2:]])
        case 6 if rank and own[axis] % 2 == 0:
            return w.reshape(x, [*static[:axis], Dim((), 2), Dim((), own[axis] // 2), *static[axis + 1 :]])
        case 7 if rank:
            place = w.apply("sub", own[axis] - 1, w.iota(static, axis, dtypes.i64))
            return w.take(x, [place if at == axis else at for at in range(rank)], static)
        case 8 if rank:
            small = w.reduce("max", x, [axis])
            return w.apply("add", x, w.with_ones(small, [axis]))
    return w.apply("maximum", x, y) if sizes(x) == sizes(y) else w.apply("add", x, 1.5)


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    type_ = ArrayType.of([Dim((), size) for size in SHAPE], dtypes.f64)
    w = GraphWriter("random", [type_, type_], {})
    seeds = [w.transpose(one, [int(at) for at in rng.permutation(4)]) for one in w.arguments]
    values = [*w.arguments, *seeds]
    for _ in range(14):
        one, other = rng.choice(len(values), 2)
        values.append(grown(w, rng, values[one], values[other]))
    module = w.finish(values[2:])
    given = [rng.standard_normal(SHAPE) for _ in range(2)]
    wanted = run(w.graph, given)
    move_transposes(w.graph, [one.owner for one in seeds if isinstance(one.owner, TransposeOp)])
    module.verify()
    for one, other in zip(run(w.graph, given), wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)
