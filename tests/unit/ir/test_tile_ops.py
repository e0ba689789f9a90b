"""What the verifiers of TIR-H refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from xdsl.dialects import test
from xdsl.dialects.builtin import ArrayAttr, IntAttr, StringAttr
from xdsl.dialects.scf import ForOp, YieldOp
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.utils.exceptions import VerifyException

from tessera.ir.tile import (
    atomics,
    debug,
    elementwise,
    exchange,
    memory,
    mma,
    random,
    reduce,
    roles,
    shape,
    shared,
    split,
    stream,
    structure,
    warpgroup,
)
from tessera.ir.tile.types import SharedType, TensorType, TileType
from tessera.ir.types import NarrowFloatType, dtype_of, element_type, i1, index
from tessera.numerics import dtypes

F32, BF16, I32, I64 = (element_type(d) for d in (dtypes.f32, dtypes.bf16, dtypes.i32, dtypes.i64))


def value(type_: Attribute) -> SSAValue:
    return test.TestOp(result_types=[type_]).results[0]


def tile(*sizes: int, element: Attribute = F32) -> SSAValue:
    return value(TileType.of(sizes, element))


def tensor(*sizes: int, element: Attribute = F32) -> SSAValue:
    return value(TensorType.of(sizes, element))


def with_result(op: Operation, type_: Attribute) -> Operation:
    """The same op with another result type, as a text could claim."""
    return type(op).create(operands=op.operands, properties=op.properties, result_types=[type_])


def with_property(op: Operation, name: str, attr: Attribute) -> Operation:
    op.properties[name] = attr
    return op


def kernel(infos: list[structure.ArgInfo], types: list[Attribute]) -> Operation:
    op = structure.KernelOp("k", infos, types)
    op.body.block.add_op(structure.ReturnOp())
    return op


def wrong_ops() -> Iterator[tuple[str, Callable[[], Operation]]]:
    add = lambda: elementwise.ElementwiseOp("add", [tile(4), tile(4)])  # noqa: E731
    yield "no elementwise function", lambda: with_property(add(), "fn", StringAttr("frobnicate"))
    yield "takes 2 operands, got 1", lambda: elementwise.ElementwiseOp("add", [tile(4)])
    yield (
        "operands differ: tile<4xf32>, tile<8xf32>",
        lambda: elementwise.ElementwiseOp("add", [tile(4), tile(8)]),
    )
    yield "operands differ", lambda: elementwise.ElementwiseOp("mul", [tile(4), tile(4, element=BF16)])
    yield "round_tf32 takes f32, got tile<4xbf16>", lambda: elementwise.RoundTf32Op(tile(4, element=BF16))
    yield "keeps the type", lambda: with_result(elementwise.RoundTf32Op(tile(4)), TileType.of([8], F32))
    yield "not defined for tile<4xi32>", lambda: elementwise.ElementwiseOp("exp", [tile(4, element=I32)])
    yield "not defined for tile<4xbool>", lambda: elementwise.ElementwiseOp("add", [tile(4, element=i1)] * 2)
    yield "bool condition", lambda: elementwise.ElementwiseOp("select", [tile(4), tile(4), tile(4)])
    yield (
        "bool condition",
        lambda: elementwise.ElementwiseOp("select", [tile(8, element=i1), tile(4), tile(4)]),
    )
    yield (
        "gives tile<4xbool>",
        lambda: with_result(elementwise.ElementwiseOp("lt", [tile(4), tile(4)]), TileType.of([4], F32)),
    )
    yield "keeps the shape", lambda: with_result(elementwise.CastOp(tile(4), BF16), TileType.of([8], BF16))
    yield "a bitcast keeps the shape", lambda: with_result(elementwise.BitcastOp(tile(4), I32), TileType.of([8], I32))
    yield "bitcast of tile<4xf32> to tile<4xbf16>", lambda: elementwise.BitcastOp(tile(4), BF16)
    yield (
        "byte_perm takes integers of 32 bits, not tile<4xi16>",
        lambda: elementwise.ElementwiseOp("byte_perm", [tile(4, element=element_type(dtypes.i16))] * 3),
    )
    yield "splat of f32", lambda: with_result(elementwise.SplatOp(value(F32), [4]), TileType.of([4], BF16))
    yield "one-dimensional integer", lambda: elementwise.ArangeOp(4, F32)
    yield "cannot be f32", lambda: with_result(elementwise.ConstantOp(1, index), F32)
    yield "does not broadcast", lambda: shape.BroadcastOp(tile(2, 4), [4, 4])
    yield "does not broadcast", lambda: shape.BroadcastOp(tile(4), [4, 4])
    yield "does not have the size", lambda: shape.ReshapeOp(tile(2, 4), [4, 4])
    for places, sizes in (([0, 2], [2, 4]), ([4, 0], [2, 2]), ([0], [2]), ([0, 0], [2, 3])):
        yield "none of equal parts", lambda p=places, s=sizes: shape.SubtileOp(tile(4, 8), p, s)
    yield "dtype stays", lambda: with_result(shape.SubtileOp(tile(4), [0], [2]), TileType.of([2], BF16))
    yield "dtype stays", lambda: with_result(shape.ReshapeOp(tile(4), [4]), TileType.of([4], BF16))
    yield (
        "not a permutation",
        lambda: with_property(shape.TransposeOp(tile(2, 4), [1, 0]), "perm", ArrayAttr([IntAttr(0), IntAttr(0)])),
    )
    yield (
        "is not tile<2x4xf32>",
        lambda: with_result(shape.TransposeOp(tile(2, 4), [1, 0]), TileType.of([2, 4], F32)),
    )
    yield "keeps the type", lambda: with_result(exchange.ExchangeOp(tile(4), 0, 1), TileType.of([4], BF16))
    yield "axis 1 of 1 dimensions", lambda: exchange.ExchangeOp(tile(4), 1, 1)
    yield "no index below 5 has a partner", lambda: exchange.ExchangeOp(tile(5), 0, 8)
    yield "no index below 4 has a partner", lambda: exchange.ExchangeOp(tile(4), 0, 0)
    numbers = tile(4, element=I32)
    yield "3 tiles", lambda: exchange.SortOp([numbers] * 3, 0)
    yield "keeps the types", lambda: with_result(exchange.SortOp([numbers], 0), TileType.of([4], BF16))
    yield "tiles of several shapes", lambda: exchange.SortOp([numbers, tile(8, element=I32)], 0)
    yield "integers are put in order", lambda: exchange.SortOp([tile(4)], 0)
    yield "axis 1 of 1 dimensions", lambda: exchange.SortOp([numbers], 1)
    yield "6 elements along the axis", lambda: exchange.SortOp([tile(6, element=I32)], 0, merge=True)
    yield "no reduction is called mean", lambda: reduce.ReduceOp(tile(4), 0, "mean")
    yield "axis 1 does not exist", lambda: reduce.ReduceOp(tile(4), 1, "sum")
    yield "does not give", lambda: with_result(reduce.ReduceOp(tile(4, 2), 0, "sum"), TileType.of([4], F32))
    yield "keeps the type", lambda: with_result(reduce.ScanOp(tile(4), 0, "sum"), TileType.of([4], BF16))


def wrong_memory_ops() -> Iterator[tuple[str, Callable[[], Operation]]]:
    at = value(index)
    yield "2 offsets and sizes", lambda: memory.LoadOp(tensor(-1, -1), [at], [4, 4])
    yield "size 1 can be dropped", lambda: memory.LoadOp(tensor(-1, -1), [at, at], [4, 4], drop=[0])
    yield "the slice holds (4, 4)", lambda: memory.StoreOp(tile(4), tensor(-1, -1), [at, at], [4, 4])
    yield "is not tile<4xbf16>", lambda: memory.StoreOp(tile(4, element=BF16), tensor(-1), [at], [4])
    yield "mask is a bool tile", lambda: memory.LoadOp(tensor(-1), [at], [4], mask=tile(4))
    yield "mask is a bool tile", lambda: memory.LoadOp(tensor(-1), [at], [4], mask=tile(8, element=i1))
    yield "tensor's dtype", lambda: memory.LoadOp(tensor(-1), [at], [4], fill=value(BF16))
    yield "takes 2 indices, got 1", lambda: memory.GatherOp(tensor(-1, -1), [tile(4, element=I32)])
    yield (
        "every index has the shape (4,)",
        lambda: memory.GatherOp(tensor(-1, -1), [tile(4, element=I32), tile(8, element=I32)]),
    )
    yield "every index has the shape", lambda: memory.ScatterOp(tile(8), tensor(-1), [tile(4, element=I32)])
    yield "no atomic function", lambda: atomics.AtomicOp("nand", tile(4), tensor(-1), [tile(4, element=I32)])
    yield (
        "no atomic order",
        lambda: atomics.AtomicOp("add", tile(4), tensor(-1), [tile(4, element=I32)], order="consume"),
    )
    yield (
        "load has no order release; one of relaxed, acquire, seq_cst",
        lambda: atomics.AtomicOp("load", None, tensor(-1), [tile(4, element=I32)], order="release"),
    )
    yield (
        "store has no order acq_rel; one of relaxed, release, seq_cst",
        lambda: atomics.AtomicOp("store", tile(4), tensor(-1), [tile(4, element=I32)], order="acq_rel"),
    )
    yield "unless it is a load", lambda: atomics.AtomicOp("load", tile(4), tensor(-1), [tile(4, element=I32)])
    yield "unless it is a load", lambda: atomics.AtomicOp("store", None, tensor(-1), [tile(4, element=I32)])
    yield "fence has no order relaxed", lambda: atomics.FenceOp("relaxed", "device")
    yield "no atomic scope is called system", lambda: atomics.FenceOp("acquire", "system")
    yield (
        "takes a compare value",
        lambda: atomics.AtomicOp("compare_exchange", tile(4), tensor(-1), [tile(4, element=I32)]),
    )
    yield "mma of tile<4x8xf32>", lambda: mma.MmaOp(tile(4, 8), tile(4, 8), tile(4, 8), "f32")
    yield "one dtype", lambda: mma.MmaOp(tile(4, 8), tile(8, 4, element=BF16), tile(4, 4), "f32")
    yield "64-bit", lambda: random.PhiloxOp(value(I32), tile(4, element=I64))


def wrong_shared_ops() -> Iterator[tuple[str, Callable[[], Operation]]]:
    at, buffer = value(index), value(SharedType.of([4, 8], F32))
    turned = value(SharedType.of([4, 8], F32, perm=[1, 0]))
    yield "first stored dimension", lambda: shared.SharedViewOp(turned, at)
    yield "does not hold", lambda: shared.SharedStoreOp(tile(4, 4), buffer)
    yield "does not hold", lambda: with_result(shared.SharedLoadOp(buffer), TileType.of([4, 8], BF16))
    yield "the slice holds", lambda: shared.CpAsyncOp(buffer, tensor(-1, -1), [at, at], [4, 4])
    yield "not negative", lambda: shared.WaitGroupOp(-1)
    yield "one {} per operand", lambda: debug.PrintOp("{} {}", [at])
    yield "condition is bool", lambda: debug.AssertOp(at, "")
    yield "axis 1 does not exist", lambda: structure.DimOp(tensor(-1), 1)
    yield "one extent", lambda: structure.GridOp([at], [4, 4])
    yield "block sizes are positive", lambda: structure.GridOp([at], [0])
    yield "1 arguments but 0 records", lambda: kernel([], [F32])
    yield (
        "record of rank 0",
        lambda: kernel([structure.ArgInfo("x")], [TensorType.of([-1], F32)]),
    )
    unordered = structure.ArgInfo("x", ("N",), 1, (1,), (1,), (1,), order=(1,))
    yield "[1] is no order of its dimensions", lambda: kernel([unordered], [TensorType.of([-1], F32)])
    yield (
        "neither tensor nor scalar",
        lambda: kernel([structure.ArgInfo("x")], [TileType.of([4], F32)]),
    )
    for first in (0, 1):  # a scalar, itself
        yield (
            f"alias {first} is not a tensor before it",
            lambda first=first: kernel(
                [structure.ArgInfo("s"), structure.ArgInfo("x", alias=first)], [F32, TensorType.of([], F32)]
            ),
        )


def wrong_roles() -> Iterator[tuple[str, Callable[[], Operation]]]:
    at, buffer = value(index), value(SharedType.of([4, 8], F32, "panels"))
    barriers = value(roles.BarriersType(IntAttr(2)))

    def copy(source: SSAValue, sizes: list[int], drop: tuple[int, ...] = ()) -> Operation:
        return roles.BulkCopyOp(buffer, source, barriers, at, [at] * len(sizes), sizes, drop)

    yield "at least one arrival", lambda: roles.AllocBarriersOp(2, 0)
    yield "expected bytes is not negative", lambda: roles.BarrierExpectOp(barriers, at, -1)
    yield "the slice holds (4, 4)", lambda: copy(tensor(-1, -1), [4, 4])
    yield "2 offsets and sizes", lambda: copy(tensor(-1, -1), [4])
    yield "size 1 can be dropped", lambda: copy(tensor(-1, -1, -1), [2, 4, 8], (0,))
    yield "is not shared<4x8xf32", lambda: copy(tensor(-1, -1, element=BF16), [4, 8])
    yield (
        "only f32 is rounded",
        lambda: roles.BulkCopyOp(
            value(SharedType.of([4, 8], BF16)),
            tensor(-1, -1, element=BF16),
            barriers,
            at,
            [at, at],
            [4, 8],
            tf32=True,
        ),
    )
    yield "barriers", lambda: roles.BarrierArriveOp(buffer, at)
    yield "index", lambda: roles.BarrierWaitOp(barriers, at, value(I32))
    yield "the slice holds (4, 4)", lambda: roles.BulkStoreOp(buffer, tensor(-1, -1), [at, at], [4, 4])
    yield "bulk stores is not negative", lambda: roles.BulkWaitOp(-1)
    yield "its own block, which has none", lambda: in_the_producer(roles.BulkWaitOp(0))
    yield "only consumers are counted", roles.RoleGroupOp
    yield "only consumers are counted", lambda: in_the_producer(roles.RoleGroupOp())
    yield "one or two groups", lambda: groups_of(3)


def groups_of(count: int, *ahead: Operation) -> Operation:
    """Roles of which the producer runs some ops."""
    return roles.RolesOp(Block([*ahead, roles.RoleEndOp()]), Block([roles.RoleEndOp()]), 24, 240, groups=count)


def in_the_producer(op: Operation) -> Operation:
    groups_of(2, op)
    return op


def wrong_splits() -> Iterator[tuple[str, Callable[[], Operation]]]:
    links, part = value(roles.BarriersType(IntAttr(1))), tile(4, 8)
    buffer = value(SharedType.of([4, 8], F32))
    yield "at least two programs", lambda: split.AllocLinksOp(1)
    yield "a buffer of its size", lambda: split.PartialSendOp(links, [part, part], [buffer])
    yield "a buffer of its size", lambda: split.PartialSumOp(links, [tile(8, 4)], [buffer])
    yield "at least one partial sum", lambda: stream.LeaveSumsOp([])
    yield "at least one partial sum", lambda: stream.CollectSumsOp(value(index), [])
    yield "index", lambda: stream.ShareOp(value(I32))


def started(count: int) -> list[Operation]:
    """Products, started one after the other in one block, each waited for at the end by a wait that leaves none."""
    left, right = (value(SharedType.of([64, 64], BF16, "panels")) for _ in range(2))
    starts = [warpgroup.MmaStartOp(left, right, tile(64, 64), "bf16") for _ in range(count)]
    Block([*starts, *(warpgroup.MmaWaitOp(start.result) for start in starts)])
    return starts


def wait_for(number: int, pending: int) -> Operation:
    """The wait for one of two products, which leaves some pending."""
    (use,) = started(2)[number].results[0].uses
    return with_property(use.operation, "pending", IntAttr(pending))


def moved_away(index: int) -> Operation:
    """A product (0) or its wait (1), the wait in another block."""
    (start,) = started(1)
    (use,) = start.results[0].uses
    use.operation.detach()
    Block([use.operation])
    return (start, use.operation)[index]


def before_its_start() -> Operation:
    (start,) = started(1)
    (use,) = start.results[0].uses
    block = start.parent
    assert block is not None
    use.operation.detach()
    block.insert_op_before(use.operation, start)
    return use.operation


def wait_behind_loop(pending: int) -> Operation:
    """The wait for products that a loop has started."""
    bound, shared_tile = value(index), value(SharedType.of([64, 64], BF16, "panels"))
    begin = warpgroup.MmaBeginOp(tile(64, 64))
    body = Block(arg_types=[index, begin.result.type])
    start = warpgroup.MmaStartOp(shared_tile, shared_tile, body.args[1], "bf16")
    body.add_ops([start, YieldOp(start.result)])
    loop = ForOp(bound, bound, bound, [begin.result], body)
    wait = warpgroup.MmaWaitOp(loop.results[0], pending)
    Block([begin, loop, wait])
    return wait


def wrong_products() -> Iterator[tuple[str, Callable[[], Operation]]]:
    shared_tile = value(SharedType.of([64, 64], BF16, "panels"))
    unused = lambda: warpgroup.MmaStartOp(shared_tile, shared_tile, tile(64, 64), "bf16")  # noqa: E731
    yield "the step of a turn", lambda: warpgroup.TurnOp("skip")
    yield "waited for exactly once", unused
    yield "waited for exactly once", lambda: moved_away(0)
    yield "its own block starts", lambda: moved_away(1)
    yield "its own block starts", lambda: warpgroup.MmaWaitOp(value(wait_for(0, 0).operands[0].type))
    yield "may still be under way", lambda: wait_for(0, 2)
    yield "may still be under way", lambda: wait_for(1, 1)
    yield "may still be under way", lambda: wait_for(0, -1)
    yield "may still be under way", before_its_start
    yield "waited for exactly once", lambda: warpgroup.MmaBeginOp(tile(64, 64))
    yield "no product may be pending", lambda: wait_behind_loop(1)
    yield "not negative", lambda: warpgroup.MmaRetireOp(-1)
    yield (
        "mma of shared<64x64xbf16>",
        lambda: warpgroup.MmaStartOp(shared_tile, shared_tile, tile(64, 32), "bf16"),
    )
    yield (
        "accumulator's type, pending",
        lambda: with_result(started(1)[0], warpgroup.PendingType(TileType.of([64, 32], F32))),
    )


CASES = [
    *wrong_splits(),
    *wrong_ops(),
    *wrong_memory_ops(),
    *wrong_shared_ops(),
    *wrong_roles(),
    *wrong_products(),
]


@pytest.mark.parametrize(
    ("message", "build"), CASES, ids=[f"{i}-{message[:24]}" for i, (message, _) in enumerate(CASES)]
)
def test_the_verifier_refuses(message: str, build: Callable[[], Operation]) -> None:
    op = build()
    with pytest.raises(VerifyException) as caught:
        op.verify()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("message", "build"),
    [
        ("static", lambda: TileType.of([-1], F32)),
        ("at least one dimension", lambda: TileType.of([], F32)),
        ("has elements", lambda: TileType.of([0], F32)),
        ("negative", lambda: TensorType.of([-2], F32)),
        ("not an element type", lambda: TileType.of([4], TileType.of([4], F32))),
        ("swizzle", lambda: SharedType.of([4], F32, "spiral")),
        ("not a permutation", lambda: SharedType.of([4, 4], F32, perm=[0, 0])),
        ("positive", lambda: SharedType.of([-1], F32)),
        ("at least one", lambda: roles.BarriersType(IntAttr(0))),
        ("not a narrow float", lambda: NarrowFloatType(StringAttr("f32"))),
    ],
)
def test_types_refuse(message: str, build: Callable[[], Attribute]) -> None:
    with pytest.raises(VerifyException, match=message):
        build()


@pytest.mark.parametrize("dtype", [d for d in dtypes.ALL if d.name != "tf32"], ids=str)
def test_element_types_are_dtypes(dtype: dtypes.DType) -> None:
    assert dtype_of(element_type(dtype)) == dtype


def test_tf32_is_stored_as_f32() -> None:
    assert element_type(dtypes.tf32) == F32
