"""Clusters: programs that run together and read each other's shared memory.

Source: PTX ISA 9.2, "barrier.cluster", "mapa", "mbarrier.arrive", "ld.shared::cluster".
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from tessera.backends.llvm.ops import I32, I64
from tessera.backends.nvidia.emitter import NVIDIA, NvidiaEmitter
from tessera.backends.nvidia.roles import barrier_address
from tessera.backends.simt.memory import SharedAddresses, shared_runs
from tessera.ir.layouts import REGISTER
from tessera.ir.target.cluster import (
    ClusterArriveAllOp,
    ClusterArriveOp,
    ClusterBarrierOp,
    ClusterLoadOp,
    ClusterPutOp,
    ClusterRankOp,
    ClusterWaitOp,
)
from tessera.ir.target.types import BufferType, FragmentType


@NVIDIA.register(ClusterRankOp)
def emit_rank(emitter: NvidiaEmitter, op: ClusterRankOp) -> None:
    """Read the program's number in its cluster."""
    emitter.bind(op.result, [emitter.cluster_rank()])


@NVIDIA.register(ClusterBarrierOp)
def emit_barrier(emitter: NvidiaEmitter, _op: ClusterBarrierOp) -> None:
    """Wait for the threads of the cluster, and see what they wrote; the producer's end does not hold it up."""
    aligned = "" if emitter.in_role else ".aligned"
    text = f"barrier.cluster.arrive.release{aligned}; barrier.cluster.wait.acquire{aligned};"
    emitter.asm(text, "~{memory}", [], [])


@NVIDIA.register(ClusterArriveOp)
def emit_arrive(emitter: NvidiaEmitter, _op: ClusterArriveOp) -> None:
    """Arrive, and go on."""
    emitter.asm("barrier.cluster.arrive.release.aligned;", "~{memory}", [], [])


@NVIDIA.register(ClusterWaitOp)
def emit_wait(emitter: NvidiaEmitter, _op: ClusterWaitOp) -> None:
    """Wait for the threads of the cluster, and see what they wrote before they arrived."""
    emitter.asm("barrier.cluster.wait.acquire.aligned;", "~{memory}", [], [])


@NVIDIA.register(ClusterPutOp)
def emit_put(emitter: NvidiaEmitter, op: ClusterPutOp) -> None:
    """Lane n of the first warp writes to program n."""
    buffer, programs = op.buffer.type, op.programs.data
    assert isinstance(buffer, BufferType)
    bytes_ = buffer.dtype.bytes
    rank = emitter.ops.convert("trunc", I64, emitter.cluster_rank(), I32)
    place = emitter.ops.binary("mul", I32, rank, str(bytes_))
    own = emitter.ops.binary("add", I32, emitter.unit(op.buffer), place)
    address = _remote(emitter, emitter.shared_address(own), emitter.lane())
    one = emitter.entry(("lane.below", programs), f"icmp ult i32 {emitter.lane()}, {programs}")
    first = emitter.entry("warp.first", f"icmp eq i32 {emitter.warp()}, 0")
    writes = emitter.fn.assign(f"and i1 {one}, {first}")
    ((type_, word),) = emitter.pack([emitter.unit(op.value)], buffer.dtype)
    constraint = "r" if bytes_ == 4 else "l"
    emitter.asm(
        f"@$2 st.shared::cluster.b{8 * bytes_} [$0], $1;",
        f"r,{constraint},b,~{{memory}}",
        [],
        [("i32", address), (str(type_), word), ("i1", writes)],
    )


def _number(emitter: NvidiaEmitter, rank: SSAValue) -> str:
    """Return a program's number in its cluster as 32 bits."""
    unit = emitter.unit(rank)
    return unit if unit.isdigit() else emitter.ops.convert("trunc", I64, unit, I32)


def _remote(emitter: NvidiaEmitter, local: str, number: str) -> str:
    """Return the cluster address of a byte of program `number`, given this program's address of it."""
    (address,) = emitter.asm(
        "mapa.shared::cluster.u32 $0, $1, $2;", "=r,r,r", [I32], [("i32", local), ("i32", number)], pure=True
    )
    return address


@NVIDIA.register(ClusterArriveAllOp)
def emit_arrive_all(emitter: NvidiaEmitter, op: ClusterArriveAllOp) -> None:
    """Lane n of each warp arrives at program n.

    What it releases was read by matrix instructions that have completed, so that no write has to be seen elsewhere: the
    default scope suffices, where the cluster's would be a memory barrier per warp and stage.
    """
    address = _remote(emitter, barrier_address(emitter, op.barriers, op.at), emitter.lane())
    programs = op.programs.data
    leaders = emitter.entry(("lane.below", programs), f"icmp ult i32 {emitter.lane()}, {programs}")
    if op.when is not None:
        leaders = emitter.fn.assign(f"and i1 {leaders}, {emitter.unit(op.when)}")
    emitter.asm("bar.warp.sync -1;", "~{memory}", [], [])
    emitter.asm(
        "@$1 mbarrier.arrive.shared::cluster.b64 _, [$0], 1;",
        "r,b,~{memory}",
        [],
        [("i32", address), ("i1", leaders)],
    )


@NVIDIA.register(ClusterLoadOp)
def emit_load(emitter: NvidiaEmitter, op: ClusterLoadOp) -> None:
    """Read a fragment from another program's shared memory."""
    buffer, type_ = op.buffer.type, op.result.type
    assert isinstance(buffer, BufferType)
    assert isinstance(type_, FragmentType)
    start = _remote(emitter, emitter.shared_address("0"), _number(emitter, op.rank))
    addresses = SharedAddresses(emitter, buffer, emitter.unit(op.buffer), type_.linear, [0, 0])
    runs, vector = shared_runs(addresses, type_.dtype)
    words = emitter.word_types(type_.dtype, vector)
    units: list[str] = [""] * type_.linear.in_size(REGISTER)
    for access in runs:
        address = emitter.ops.binary("add", I32, start, addresses.offset(access.at[0]))
        loaded = emitter.load_vector("ld.shared::cluster", words, ("i32", address))
        for register, unit in zip(access.registers, emitter.unpack(loaded, type_.dtype, vector), strict=True):
            units[register] = unit
    emitter.bind(op.result, units)
