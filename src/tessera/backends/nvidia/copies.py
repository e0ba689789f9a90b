"""Copies from global to shared memory: `cp.async` where the target has it, else loads and stores."""

from __future__ import annotations

from tessera.backends.llvm.ops import I32
from tessera.backends.nvidia.emitter import NVIDIA, NvidiaEmitter
from tessera.backends.nvidia.realign import RUN_BYTES, WORD_BYTES, Runs
from tessera.backends.simt.emitter import register_accesses
from tessera.backends.simt.memory import BoxAddresses, SharedAddresses, copy_layout, store_shared, turning_layout
from tessera.ir.layouts import REGISTER, LinearLayout
from tessera.ir.target.arithmetic import constant_value
from tessera.ir.target.memory import CommitOp, MemcpyOp, WaitOp
from tessera.ir.target.types import BufferType

RUNS_AHEAD = 4
"""Runs that a thread has under way, of five registers each."""


@NVIDIA.register(MemcpyOp)
def emit_memcpy(emitter: NvidiaEmitter, op: MemcpyOp) -> None:
    """Copy a box to a buffer, the threads side by side along the contiguous dimension."""
    buffer = op.buffer.type
    assert isinstance(buffer, BufferType)
    fast = buffer.permutation.index(len(buffer.shape) - 1)
    vector, dtype = op.vector.data, buffer.dtype
    if (count := _run(op, fast)) is not None:
        _copy_runs(emitter, op, fast, count)
        return
    layout = _split_copy(op, buffer, fast, emitter.num_warps)
    box = BoxAddresses(emitter, op, layout, dtype)
    shared = SharedAddresses(emitter, buffer, emitter.unit(op.buffer), layout, [0] * len(buffer.shape))
    owner = emitter.owner_predicate(layout)
    vector = min(vector, layout.contiguous_per_thread(fast))
    for access in register_accesses(layout.sublayout([REGISTER]), fast, vector):
        element = shared.map.apply(register=access.registers[0])[0]
        target, source = shared.offset(element), box.pointer(access.at)
        inside = box.predicate(access.at)
        if op.engine.data == "cp.async":
            _copy_async(emitter, target, source, vector * dtype.bytes, inside, owner)
            continue
        types = emitter.word_types(dtype, vector)
        # Threads that share an element all load and store it: the same value to the same place.
        words = emitter.load_words(source, types, inside)
        store_shared(emitter, target, list(zip(types, words, strict=True)))


def _split_copy(op: MemcpyOp, buffer: BufferType, fast: int, num_warps: int) -> LinearLayout:
    """Return how a copy is split over the threads."""
    loaded = [axis for axis, dim in enumerate(op.axis_list) if constant_value(op.strides[dim]) == 1]
    if op.vector.data == 1 and loaded and fast not in loaded:
        return turning_layout(buffer.shape, fast, loaded[0], 32, num_warps)
    return copy_layout(buffer.shape, fast, op.vector.data, 32, num_warps)


def _run(op: MemcpyOp, fast: int) -> int | None:
    """Return how many elements are copied at once by shifts, None where the known alignment allows words.

    Args:
        op: the copy.
        fast: the axis of its buffer along which elements are neighbours.
    """
    buffer = op.buffer.type
    assert isinstance(buffer, BufferType)
    size = buffer.dtype.bytes
    contiguous = constant_value(op.strides[op.axis_list[fast]]) == 1
    asynchronous = op.engine.data == "cp.async"
    if asynchronous or not contiguous or size >= WORD_BYTES or op.vector.data * size >= WORD_BYTES:
        return None
    count = min(RUN_BYTES // size, buffer.shape[fast])
    return count if count * size >= WORD_BYTES else None


def _copy_runs(emitter: NvidiaEmitter, op: MemcpyOp, fast: int, count: int) -> None:
    """Copy runs of elements from any address, several loads before the first store."""
    buffer = op.buffer.type
    assert isinstance(buffer, BufferType)
    layout = copy_layout(buffer.shape, fast, count, 32, emitter.num_warps)
    runs = Runs(emitter, BoxAddresses(emitter, op, layout, buffer.dtype), fast, count, buffer.dtype)
    shared = SharedAddresses(emitter, buffer, emitter.unit(op.buffer), layout, [0] * len(buffer.shape))
    # Threads that share an element all load and store it: the same value to the same place.
    accesses = list(register_accesses(layout.sublayout([REGISTER]), fast, count))
    for start in range(0, len(accesses), RUNS_AHEAD):
        together = accesses[start : start + RUNS_AHEAD]
        loaded = [runs.load(access.at) for access in together]
        for access, words in zip(together, loaded, strict=True):
            target = shared.offset(shared.map.apply(register=access.registers[0])[0])
            store_shared(emitter, target, [(I32, word) for word in words])


def _copy_async(
    emitter: NvidiaEmitter, target: str, source: str, size: int, inside: str | None, owner: str | None
) -> None:
    """Emit one `cp.async`; a source size of 0 fills with zeros and reads nothing."""
    level = "cg" if size == 16 else "ca"
    args = [("i32", emitter.shared_address(target)), ("ptr addrspace(1)", source)]
    constraints, amount, guard = ["r", "l"], "", ""
    if inside is not None:
        taken = emitter.ops.select(I32, inside, str(size), "0")
        args.append(("i32", taken))
        constraints.append("r")
        amount = f", ${len(args) - 1}"
    if owner is not None:
        args.append(("i1", owner))
        constraints.append("b")
        guard = f"@${len(args) - 1} "
    text = f"{guard}cp.async.{level}.shared.global [$0], [$1], {size}{amount};"
    emitter.asm(text, ",".join([*constraints, "~{memory}"]), [], args)


@NVIDIA.register(CommitOp)
def emit_commit(emitter: NvidiaEmitter, _op: CommitOp) -> None:
    """Close a group of copies; without `cp.async` copies are complete already."""
    if emitter.target.has("cp_async"):
        emitter.asm("cp.async.commit_group;", "~{memory}", [], [])


@NVIDIA.register(WaitOp)
def emit_wait(emitter: NvidiaEmitter, op: WaitOp) -> None:
    """Wait for groups of copies."""
    if emitter.target.has("cp_async"):
        emitter.asm(f"cp.async.wait_group {op.pending.data};", "~{memory}", [], [])
