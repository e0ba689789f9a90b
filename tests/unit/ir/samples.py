"""One instance of every op of both dialects, inside modules that verify."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.scf import ForOp, YieldOp
from xdsl.ir import Attribute, Block, Operation, OpResult, SSAValue

from tessera.ir.layouts import LinearLayout
from tessera.ir.target import arithmetic as t_arith
from tessera.ir.target import atomics as t_atomics
from tessera.ir.target import cluster as t_cluster
from tessera.ir.target import debug as t_debug
from tessera.ir.target import exchange as t_exchange
from tessera.ir.target import memory as t_mem
from tessera.ir.target import product as t_product
from tessera.ir.target import roles as t_roles
from tessera.ir.target import stream as t_stream
from tessera.ir.target import structure as t_struct
from tessera.ir.target import tensor_core as t_core
from tessera.ir.target import warpgroup as t_group
from tessera.ir.target.types import BufferType, FragmentType, PointerType
from tessera.ir.tile import (
    atomics,
    cluster,
    debug,
    elementwise,
    exchange,
    flat,
    memory,
    mma,
    parts,
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
from tessera.ir.tile.types import TensorType
from tessera.ir.types import element_type, i1, index
from tessera.numerics import dtypes
from tessera.numerics.assembly import assembly
from tessera.target.artifact import Parameter

F32, BF16, I32, I64, U32 = (element_type(d) for d in (dtypes.f32, dtypes.bf16, dtypes.i32, dtypes.i64, dtypes.u32))


class At:
    """Appends ops to a block and hands back their first result."""

    def __init__(self, block: Block) -> None:
        self.block = block

    def __call__(self, op: Operation) -> OpResult:
        self.block.add_op(op)
        return op.results[0]

    def do(self, op: Operation) -> None:
        self.block.add_op(op)

    def const(self, value: float, type_: Attribute = index) -> SSAValue:
        return self(elementwise.ConstantOp(value, type_))


def tile_module() -> ModuleOp:
    """A kernel that holds every op of TIR-H."""
    infos = [
        structure.ArgInfo("A", ("M", "K"), 16, (-1, 1), (8, 1), (1, 8), order=(1, 0)),
        structure.ArgInfo("C", ("M", "N"), 16, (-1, 1), (1, 1), (1, 1), written=True),
        structure.ArgInfo("counts", ("128",), 4, (1,), (1,), (1,), written=True, alias=1),
        structure.ArgInfo("alpha"),
        structure.ArgInfo("seed"),
    ]
    types = [
        TensorType.of([-1, -1], BF16),
        TensorType.of([-1, -1], F32),
        TensorType.of([128], element_type(dtypes.i32)),
        F32,
        I64,
    ]
    kernel = structure.KernelOp("every_op", infos, types)
    a, c, counts, alpha, seed = kernel.body.block.args
    at = At(kernel.body.block)
    m = at(structure.DimOp(a, 0))
    n = at(structure.DimOp(c, 1))
    at.do(structure.AssumeOp(["eq", ["mod", ["size", 0, 1], ["const", 16]], ["const", 0]]))
    grid = structure.GridOp([m, n], [64, 32], m)
    at.do(grid)
    at(structure.MisalignmentOp(a, [m, m]))
    row = at(flat.LoadFlatOp(a, at(structure.StrideOp(a, 0)), 64))
    at.do(flat.StoreFlatOp(row, a, m))
    far = at(elementwise.SplatOp(m, [8]))
    at.do(flat.ScatterAtOp(at(flat.GatherAtOp(a, far)), a, far))
    at.do(structure.ReturnOp([c]))
    _tile_body(At(grid.body.block), a, c, counts, alpha, seed, *grid.body.block.args)
    return ModuleOp([kernel])


def _tile_body(
    at: At,
    a: SSAValue,
    c: SSAValue,
    counts: SSAValue,
    alpha: SSAValue,
    seed: SSAValue,
    i: SSAValue,
    j: SSAValue,
) -> None:
    zero = at.const(0)
    fill = at.const(0.5, BF16)
    flag = at.const(1, i1)
    mask = at(elementwise.SplatOp(flag, [64, 32]))
    loaded = at(memory.LoadOp(a, [i, zero], [64, 32], mask=mask, fill=fill))
    row = at(memory.LoadOp(a, [i, zero], [1, 32], drop=[0]))
    at(memory.LoadOp(a, [i, zero], [1, 1], drop=[0, 1]))
    wide = at(elementwise.CastOp(loaded, F32, saturate=True))
    alphas = at(elementwise.SplatOp(alpha, [64, 32]))
    scaled = at(elementwise.ElementwiseOp("mul", [wide, alphas]))
    less = at(elementwise.ElementwiseOp("lt", [scaled, wide]))
    at(elementwise.ElementwiseOp("select", [less, scaled, wide]))
    at(elementwise.RoundTf32Op(scaled))
    at(elementwise.BitcastOp(scaled, element_type(dtypes.i32)))
    lane = at(elementwise.ArangeOp(32, element_type(dtypes.i32)))
    at(shape.ReshapeOp(row, [1, 32]))
    at(shape.SubtileOp(row, [16], [16]))
    at(parts.PartOp(scaled, [i, zero], [8, 4], steps=[1, -2]))
    at(parts.PartOp(scaled, [zero, j], [], wrap=[1]))
    at(parts.TakeOp(row, lane, 0))
    lifted = at(shape.ReshapeOp(lane, [1, 32]))
    columns = at(shape.BroadcastOp(lifted, [64, 32]))
    at(shape.TransposeOp(columns, [1, 0]))
    at(exchange.ExchangeOp(columns, 1, 5))
    at(exchange.SortOp([columns, columns], 1, descending=True))
    at(exchange.SortOp([lane], 0, merge=True))
    sums = at(reduce.ReduceOp(scaled, 1, "sum"))
    at(reduce.ReduceOp(sums, 0, "max"))
    at(reduce.ScanOp(scaled, 1, "sum", reverse=True))
    at(reduce.ReduceByOp([scaled, columns], 1, _combiner()))
    at(reduce.ScanByOp([scaled, columns], 0, _combiner(), reverse=True))
    at(memory.GatherOp(counts, [lane]))
    at.do(memory.ScatterOp(lane, counts, [lane]))
    at(atomics.AtomicOp("add", lane, counts, [lane]))
    at.do(atomics.AtomicOp("store", lane, counts, [lane], order="release", scope="group"))
    at(atomics.AtomicOp("load", None, counts, [lane], order="seq_cst", scope="mesh"))
    at.do(atomics.FenceOp("acq_rel", "cluster"))
    at(atomics.AtomicOp("compare_exchange", lane, counts, [lane], compare=lane, order="acq_rel", scope="device"))
    counters = at(elementwise.ArangeOp(32, I64))
    at(random.PhiloxOp(seed, counters))
    at.do(debug.PrintOp("{} of {}", [alpha, lane]))
    at.do(debug.AssertOp(less, "scaled is smaller"))
    at.do(debug.AssemblyOp(assembly({"ptx": "prefetch.global.L2 [$1];"}), [seed]))
    _shared_body(at, a, c, i, j, loaded, scaled)


def _combiner() -> Block:
    """Return a combiner of f32 and i32 elements."""
    i32 = element_type(dtypes.i32)
    block = Block(arg_types=[F32, i32, F32, i32])
    at = At(block)
    x, i, y, j = block.args
    total = at(elementwise.ElementwiseOp("add", [x, y]))
    less = at(elementwise.ElementwiseOp("lt", [i, j]))
    at.do(reduce.CombinedOp([total, at(elementwise.ElementwiseOp("select", [less, i, j]))]))
    return block


def _shared_body(at: At, a: SSAValue, c: SSAValue, i: SSAValue, j: SSAValue, loaded: SSAValue, acc: SSAValue) -> None:
    zero, stop, step = at.const(0), at.const(64), at.const(32)
    ring = at(shared.AllocSharedOp([2, 64, 32], BF16, "xor"))
    stage = at(shared.SharedViewOp(ring, zero))
    turned = at(shared.SharedTransposeOp(stage, [1, 0]))
    at.do(shared.CpAsyncOp(stage, a, [i, zero], [64, 32]))
    at.do(shared.CommitGroupOp())
    at.do(shared.WaitGroupOp(0))
    at.do(shared.BarrierOp())
    held = at(shared.SharedLoadOp(stage))
    at.do(shared.BarrierOp())
    at.do(shared.SharedStoreOp(held, stage))
    at.do(shared.ProxyFenceOp())
    at.do(shared.BarrierOp())
    square = at(shape.TransposeOp(loaded, [1, 0]))
    small = at(elementwise.SplatOp(at.const(0.0, F32), [32, 32]))
    at(mma.MmaOp(turned, held, small, "bf16"))
    at(mma.MmaOp(square, loaded, small, "bf16"))
    body = Block(arg_types=[index, acc.type])
    inner = At(body)
    more = inner(elementwise.ElementwiseOp("add", [body.args[1], acc]))
    inner.do(YieldOp(more))
    total = at(ForOp(zero, stop, step, [acc], body))
    at.do(memory.StoreOp(total, c, [i, j], [64, 32]))
    _roles_body(at, a, i)
    _split_body(at)


def _roles_body(at: At, a: SSAValue, i: SSAValue) -> None:
    zero, one = at.const(0), at.const(1)
    ring = at(shared.AllocSharedOp([2, 64, 64], BF16, "panels"))
    row = at(shared.AllocSharedOp([64], BF16))
    bins = at(shared.AllocSharedOp([8, 16], I32))
    places = [at(elementwise.ArangeOp(8, I64)) for _ in range(2)]
    ones = at(elementwise.SplatOp(at.const(1, I32), [8]))
    at(shared.SharedGatherOp(bins, places))
    at.do(shared.SharedScatterOp(ones, bins, places))
    at(atomics.SharedAtomicOp("max", ones, bins, places, scope="group"))
    at(atomics.SharedAtomicOp("compare_exchange", ones, bins, places, compare=ones, order="seq_cst"))
    at(atomics.SharedAtomicOp("load", None, bins, places, order="acquire"))
    at.do(atomics.SharedAtomicOp("store", ones, bins, places, order="release"))
    full, empty = at(roles.AllocBarriersOp(2, 1)), at(roles.AllocBarriersOp(2, 1))
    producer, consumer = Block(), Block()
    ahead, behind = At(producer), At(consumer)
    ahead.do(roles.BarrierWaitOp(empty, zero, one))
    ahead.do(roles.BarrierExpectOp(full, zero, 64 * 64 * 2 + 64 * 2))
    stage = ahead(shared.SharedViewOp(ring, zero))
    ahead.do(roles.BulkCopyOp(stage, a, full, zero, [i, zero], [64, 64]))
    ahead.do(roles.BulkCopyOp(row, a, full, zero, [i, zero], [1, 64], drop=[0]))
    behind.do(roles.BarrierWaitOp(full, zero, zero))
    ready = behind(shared.SharedViewOp(ring, zero))
    left = behind(shared.SharedLoadOp(ready))
    acc = behind(elementwise.SplatOp(behind.const(0.0, F32), [64, 64]))
    first = behind(warpgroup.MmaStartOp(ready, ready, acc, "bf16"))
    second = behind(warpgroup.MmaStartOp(left, ready, acc, "bf16"))
    behind(warpgroup.MmaWaitOp(first, 1))
    behind(warpgroup.MmaWaitOp(second))
    behind.do(roles.BarrierArriveOp(empty, zero))
    _carried_products(behind, ready, acc, empty)
    behind.do(roles.BulkWaitOp(1))
    behind.do(roles.BulkStoreOp(row, a, [i, zero], [1, 64], drop=[0]))
    for block in (producer, consumer):
        block.insert_arg(one.type, 0)
        At(block).do(roles.RoleEndOp([block.args[0]]))
    at.do(warpgroup.TurnOp("init"))
    at.do(roles.RolesOp(producer, consumer, 56, 240, [zero], groups=2))


def _carried_products(at: At, ready: SSAValue, acc: SSAValue, empty: SSAValue) -> None:
    """Add products under way to a sum that a loop carries."""
    group, one, two = at(roles.RoleGroupOp()), at.const(1), at.const(2)
    begun = at(warpgroup.MmaBeginOp(acc))
    step = Block(arg_types=[one.type, begun.type])
    inside = At(step)
    following = inside(warpgroup.MmaStartOp(ready, ready, step.args[1], "bf16"))
    inside.do(warpgroup.MmaRetireOp(1))
    inside.do(roles.BarrierArriveOp(empty, one, inside(elementwise.ElementwiseOp("gt", [step.args[0], group]))))
    inside.do(YieldOp(following))
    at(warpgroup.MmaWaitOp(at(ForOp(group, two, one, [begun], step))))


def _split_body(at: At) -> None:
    zero = at.const(0.0, F32)
    part = at(elementwise.SplatOp(zero, [8, 8]))
    buffer = at(shared.AllocSharedOp([8, 8], F32))
    links = at(split.AllocLinksOp(2))
    at(cluster.ClusterRankOp())
    at.do(cluster.ClusterArriveOp())
    at.do(cluster.ClusterWaitOp())
    at.do(cluster.ClusterPutOp(zero, at(shared.AllocSharedOp([2], F32))))
    at(split.PartialSumOp(links, [part], [buffer]))
    at.do(split.PartialSendOp(links, [part], [buffer]))
    share = stream.ShareOp(at.const(4))
    at.do(share)
    at(stream.CollectSumsOp(share.others, [part]))
    at.do(stream.LeaveSumsOp([part]))


def layout() -> LinearLayout:
    """A fragment of 8 x 8 elements over 32 lanes: two neighbouring elements of a row each."""
    return LinearLayout.make({"register": [(0, 1)], "lane": [(0, 2), (0, 4), (1, 0), (2, 0), (4, 0)]}, (8, 8))


def target_module() -> ModuleOp:
    """A function that holds every op of TIR-T."""
    params = [
        Parameter("pointer", 0, align=16, dtype="bf16"),
        Parameter("size", 0, 0),
        Parameter("stride", 0, 0),
        Parameter("tensor_map", 0, dtype="bf16", order=(1, 0), box=(64, 8)),
        Parameter("workspace", -1, align=16, dtype="u32", slot_bytes=512),
    ]
    types = [PointerType.of(BF16), index, index, PointerType.of(BF16, "param"), PointerType.of(U32)]
    func = t_struct.FuncOp("every_op", params, types, '[[["const", 4], 1]]', num_warps=4)
    pointer, size, stride, tensor_map, workspace = func.body.block.args
    at = At(func.body.block)
    program = at(t_struct.ProgramIdOp())
    at(t_struct.ProgramCountOp())
    at.do(t_struct.GridWaitOp())
    zero = at(t_arith.ConstantOp(0, index))
    fragment = FragmentType.of(BF16, layout())
    box = ([program, zero], [stride, size], [size, size])
    loaded = at(t_mem.LoadOp(pointer, *box, fragment, [0, 1], [0], vector=2))
    at.do(t_mem.StoreOp(loaded, pointer, *box, [0, 1], [0], vector=2))
    at.do(t_mem.StoreOp(loaded, pointer, *box, [0, 1], [0], stream=at(t_arith.ConstantOp(True, i1))))
    at.do(
        t_mem.StoreOp(
            at(t_mem.LoadOp(pointer, *box, fragment, [0, 1], [], 4, seen=True)), pointer, *box, [0, 1], [], 4, seen=True
        )
    )
    at.do(t_mem.PrefetchOp(pointer, *box[:2]))
    at(t_mem.MisalignmentOp(pointer, *box[:2]))
    _target_arithmetic(at, pointer, loaded, zero)
    _target_buffers(at, pointer, loaded, zero, box)
    _target_roles(at, tensor_map, program, zero)
    _target_cluster(at, zero)
    _target_stream(at, workspace, zero)
    at.do(t_struct.ReturnOp())
    return ModuleOp([func])


def _target_arithmetic(at: At, pointer: SSAValue, loaded: SSAValue, zero: SSAValue) -> None:
    wide = at(t_arith.CastOp(loaded, F32, saturate=True))
    one = at(t_arith.ConstantOp(1.0, F32))
    ones = at(t_arith.SplatOp(one, layout()))
    at(t_arith.RoundTf32Op(ones))
    at(t_arith.BitcastOp(ones, element_type(dtypes.i32)))
    total = at(t_arith.ElementwiseOp("add", [wide, ones]))
    at(t_arith.ScaleOp(wide, ones))
    less = at(t_arith.ElementwiseOp("lt", [wide, ones]))
    offsets = at(t_arith.IotaOp(1, index, layout()))
    halved = LinearLayout.make({"register": [], "lane": [(2,), (4,), (0,), (0,), (0,)]}, (8,))
    partial = at(t_arith.ReduceRegistersOp(total, 1, "sum", FragmentType.of(F32, halved)))
    at(t_arith.ReduceLanesOp(partial, 3, "sum"))
    everywhere = at(t_arith.SplatOp(one, LinearLayout.make({"lane": [()] * 5}, ())))
    at(t_arith.ExtractOp(everywhere))
    pair = LinearLayout.make({"register": [(1,)]}, (2,))
    chunks = [at(t_arith.SplatOp(one, pair)), at(t_arith.SplatOp(one, pair))]
    at(t_arith.TransposeChunksOp(chunks, chunks[0].type))
    at(t_arith.HalvesOp(at(t_arith.SplatOp(one, pair)), F32))
    at(t_arith.ExchangeLanesOp(total, 4))
    at(t_exchange.ExchangeOp(total, 1, 4))
    bits = at(t_arith.ConstantOp(2, element_type(dtypes.u32)))
    other = at(t_exchange.ExchangeOp(total, 0, 0, bits))
    at(t_exchange.KeepInOrderOp([total], [other], 0, bits, descending=True))
    warps = LinearLayout.make({"register": [(1,)], "lane": [(2,), (4,), (8,), (16,), (32,)], "warp": [(64,)]}, (128,))
    rounds = at(t_mem.AllocOp(BufferType.of([1, 128], F32, "shared"), transient=True))
    at(t_exchange.ExchangeWarpsOp(at(t_arith.SplatOp(one, warps)), rounds, 1, 2, 1, bits))
    at(t_arith.RelayoutOp(total, layout(), [0, 1]))
    at(t_mem.GatherOp(pointer, offsets, less, vector=[1, 2]))
    at.do(t_mem.ScatterOp(loaded, pointer, offsets, less, vector=[1, 2]))
    at(t_atomics.AtomicOp("add", loaded, pointer, offsets, None, None, "relaxed", "device"))
    at.do(t_atomics.AtomicOp("store", loaded, pointer, offsets, None, None, "seq_cst", "mesh"))
    at(t_atomics.AtomicOp("load", None, pointer, offsets, None, None, "acquire", "group"))
    at.do(t_atomics.FenceOp("seq_cst", "device"))
    at(t_atomics.AddressOp(at(t_mem.AllocOp(BufferType.of([4], F32, "shared")))))
    at.do(t_debug.PrintOp("{}", [zero]))
    at.do(t_debug.AssertOp(less, "smaller"))
    at.do(t_debug.AssemblyOp(assembly({"ptx": "nanosleep.u32 8;"}), []))


def _target_buffers(at: At, pointer: SSAValue, loaded: SSAValue, zero: SSAValue, box: tuple) -> None:
    buffer = at(t_mem.AllocOp(BufferType.of([2, 8, 8], BF16, "shared", "xor")))
    stage = at(t_mem.ViewOp(buffer, BufferType.of([8, 8], BF16, "shared", "xor"), zero))
    at(t_mem.ViewOp(stage, BufferType.of([8, 8], BF16, "shared", "xor", perm=[1, 0])))
    at.do(t_mem.MemcpyOp(stage, pointer, *box, [0, 1], [0, 1], 8, "cp.async"))
    at.do(t_mem.CommitOp())
    at.do(t_mem.WaitOp(0))
    at.do(t_mem.BarrierOp())
    held = at(t_mem.BufferLoadOp(stage, loaded.type, [zero, zero], fill=None))
    at(t_mem.BufferGatherOp(stage, at(t_arith.IotaOp(1, U32, layout()))))
    at.do(t_mem.BufferScatterOp(held, stage, at(t_arith.IotaOp(1, U32, layout()))))
    at.do(t_mem.BufferStoreOp(held, stage, [zero, zero]))
    at(t_mem.LdmatrixOp(stage, loaded.type, transposed=True, offsets=[zero, zero]))
    scratch = at(t_mem.AllocOp(BufferType.of([8, 8], F32, "scratch", pitch=16), 64))
    at.do(t_core.TensorCoreOp(stage, stage, scratch, "fma"))
    panels = at(t_mem.AllocOp(BufferType.of([1, 8, 16], F32, "scratch"), 320))
    at.do(
        t_product.ProductOp(scratch, panels, scratch, (zero, zero, zero), "fma", fresh=at(t_arith.ConstantOp(True, i1)))
    )
    at.do(t_product.ProductOp(scratch, pointer, scratch, (zero, zero, zero), "fma", [zero, zero, zero]))
    zeros = [zero, zero, zero]
    at.do(
        t_product.ProductOp(
            pointer,
            panels,
            scratch,
            (zero, zero, zero),
            "fma",
            left=zeros[:2],
            source=pointer,
            ahead=[*zeros, zero],
            fresh=at(t_arith.ConstantOp(True, i1)),
        )
    )
    run = LinearLayout.make({"register": [(1,)]}, (2,))
    half = at(t_arith.SplatOp(at(t_arith.ConstantOp(1.0, BF16)), run))
    at(t_product.GroupChunksOp([half, half], "interleave"))
    acc = at(t_arith.CastOp(loaded, F32))
    at(t_core.TensorCoreOp(loaded, held, acc, "m16n8k16"))
    begun = at(t_group.TensorCoreBeginOp(acc))
    at.do(t_group.TensorCoreRetireOp(1))
    started = at(t_group.TensorCoreStartOp(loaded, stage, begun, "wgmma"))
    at.do(t_group.OrderOp())
    at.do(t_group.TurnOp("take"))
    at(t_group.TensorCoreWaitOp(started, 0))


def _target_cluster(at: At, zero: SSAValue) -> None:
    rows = LinearLayout.make({"register": [(0, 1)], "lane": [(0, 2), (1, 0), (2, 0), (4, 0), (8, 0)]}, (16, 4))
    buffer = at(t_mem.AllocOp(BufferType.of([16, 4], F32, "shared")))
    barrier = at(t_mem.AllocOp(BufferType.of([1], I64, "shared")))
    at(t_cluster.ClusterRankOp())
    at.do(t_cluster.ClusterBarrierOp())
    at.do(t_cluster.ClusterArriveOp())
    at.do(t_cluster.ClusterWaitOp())
    places = at(t_mem.AllocOp(BufferType.of([4], F32, "shared")))
    at.do(t_cluster.ClusterPutOp(at(t_arith.ConstantOp(0.0, F32)), places, 3))
    at.do(t_cluster.ClusterArriveAllOp(barrier, zero, 2))
    at.do(t_cluster.ClusterArriveAllOp(barrier, zero, 2, at(t_arith.ElementwiseOp("eq", [zero, zero]))))
    at(t_cluster.ClusterLoadOp(buffer, zero, FragmentType.of(F32, rows)))


def _target_stream(at: At, workspace: SSAValue, zero: SSAValue) -> None:
    rows = LinearLayout.make({"register": [(0, 1)], "lane": [(0, 2), (1, 0), (2, 0), (4, 0), (8, 0)]}, (16, 4))
    tile = at(t_arith.SplatOp(at(t_arith.ConstantOp(0.0, F32)), rows))
    left = at(t_stream.SlotCombineOp("add", tile, workspace, zero, 2, 256, 512))
    at(t_stream.SlotsCombineOp("add", tile, workspace, zero, zero, 2, 256, 512))
    at.do(t_stream.SlotStoreOp(left, workspace, zero, 0, 512))
    at.do(t_stream.FlagSetOp(workspace, zero))
    at.do(t_stream.FlagTakeOp(workspace, zero))
    at.do(t_stream.FlagsTakeOp(workspace, zero, zero))


def _target_roles(at: At, tensor_map: SSAValue, program: SSAValue, zero: SSAValue) -> None:
    buffer = at(t_mem.AllocOp(BufferType.of([8, 128], BF16, "shared", "panels")))
    full = at(t_mem.AllocOp(BufferType.of([2], I64, "shared")))
    at.do(t_roles.MbarrierInitOp(full, 1))
    producer, consumer = Block(), Block()
    ahead, behind = At(producer), At(consumer)
    at.do(t_roles.PrefetchMapOp(tensor_map))
    ahead.do(t_roles.MbarrierExpectOp(full, zero, 2048))
    ahead.do(t_roles.BulkCopyOp(buffer, tensor_map, full, zero, [zero, program], [64, 8]))
    behind.do(t_roles.MbarrierWaitOp(full, zero, zero))
    behind.do(t_roles.BulkWaitOp(0))
    behind.do(t_roles.WarpBarrierOp())
    behind.do(t_roles.ProxyFenceOp())
    behind.do(t_roles.BulkStoreOp(buffer, tensor_map, [zero, program], [64, 2], 2, 1))
    behind.do(t_roles.MbarrierArriveOp(full, zero))
    group = behind(t_roles.RoleGroupOp())
    behind.do(t_roles.MbarrierArriveOp(full, zero, behind(t_arith.ElementwiseOp("eq", [group, zero]))))
    at.do(t_roles.RolesOp(producer, consumer, (56, 240), 2))
