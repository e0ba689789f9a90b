"""Matrix products on vector units: `tensor_core` with the instruction `fma`, as register-blocked kernels.

A block of `rows` x `vectors` accumulators stays in registers while k runs; each step loads `vectors` vectors
of the packed right operand and multiplies them with one broadcast element of each row of the left one.
Products are fused multiply-adds wherever the CPU has them, whatever the profile: a product is one operation
of the language.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tessera.backends.cpu.emitter import CPU, CpuEmitter
from tessera.backends.llvm.ops import I64, Ops
from tessera.backends.llvm.text import FunctionText, ModuleText, phi_text
from tessera.backends.llvm.types import LLVMType, llvm_element
from tessera.ir.target.tensor_core import TensorCoreOp
from tessera.ir.target.types import BufferType
from tessera.target.records import TargetRecord

MAX_ROWS = 16
UNROLL = 4


def register_count(target: TargetRecord) -> int:
    """Return the number of vector registers."""
    return 32 if target.has("avx512f") or target.has("neon") else 16


def block_rows(target: TargetRecord, vectors: int) -> int:
    """Return the rows of accumulators that fit beside `vectors` operands and a broadcast."""
    return max(min((register_count(target) - vectors - 2) // vectors, MAX_ROWS), 1)


@dataclass(frozen=True)
class _Shape:
    """What one micro-kernel is specialised for: sizes and strides in elements, and the vector type."""

    rows: int
    vectors: int
    depth: int
    a_stride: int
    b_stride: int
    c_stride: int
    type_: LLVMType
    fused: bool

    @property
    def name(self) -> str:
        """A symbol that tells kernels apart."""
        sizes = f"{self.rows}x{self.vectors}x{self.depth}_{self.a_stride}_{self.b_stride}_{self.c_stride}"
        return f"tessera_mma_{self.type_.mangled}_{sizes}"


@CPU.register(TensorCoreOp)
def emit_tensor_core(emitter: CpuEmitter, op: TensorCoreOp) -> None:
    """Walk the panels of b and the blocks of rows of a, updating acc in place."""
    a, b, acc = op.a.type, op.b.type, op.acc.type
    assert isinstance(a, BufferType)
    assert isinstance(b, BufferType)
    assert isinstance(acc, BufferType)
    (rows, columns), (_, depth, width) = acc.shape, b.shape
    lanes = max(emitter.target.vector_bytes // acc.dtype.bytes, 1)
    type_ = LLVMType(llvm_element(acc.dtype), lanes)
    fused = emitter.target.has("fma") or emitter.target.has("neon")
    pointers = [emitter.unit(v) for v in (op.a, op.b, op.acc)]
    full, rest = divmod(columns, width)
    strides = (a.strides[0], width, acc.strides[0])
    if full:
        shape = _Shape(0, width // lanes, depth, *strides, type_, fused)
        _counted(emitter, full, lambda p: _panel(emitter, shape, rows, _moved(emitter, pointers, shape, p)))
    if rest:
        shape = _Shape(0, -(-rest // lanes), depth, *strides, type_, fused)
        _panel(emitter, shape, rows, _moved(emitter, pointers, shape, str(full)))


def _moved(emitter: CpuEmitter, pointers: list[str], shape: _Shape, panel: str) -> list[str]:
    """Return the addresses for one panel: its part of b and its columns of acc."""
    a, b, c = pointers
    element = shape.type_.element
    b_offset = emitter.mul(panel, str(shape.depth * shape.b_stride))
    c_offset = emitter.mul(panel, str(shape.b_stride))
    return [a, emitter.ops.gep(element, b, b_offset), emitter.ops.gep(element, c, c_offset)]


def _panel(emitter: CpuEmitter, shape: _Shape, rows: int, pointers: list[str]) -> None:
    limit = block_rows(emitter.target, shape.vectors)
    blocks, rest = divmod(rows, limit)
    if blocks:
        _counted(
            emitter, blocks, lambda i: _call(emitter, shape, limit, emitter.mul(i, str(limit)), pointers)
        )
    if rest:
        _call(emitter, shape, rest, str(blocks * limit), pointers)


def _call(emitter: CpuEmitter, shape: _Shape, rows: int, first: str, pointers: list[str]) -> None:
    shape = replace(shape, rows=rows)
    if not emitter.module.has(shape.name):
        emitter.module.define(shape.name, _block_kernel(emitter.module, shape))
    a, b, c = pointers
    element = shape.type_.element
    a = emitter.ops.gep(element, a, emitter.mul(first, str(shape.a_stride)))
    c = emitter.ops.gep(element, c, emitter.mul(first, str(shape.c_stride)))
    emitter.fn.line(f"call void @{shape.name}(ptr {a}, ptr {b}, ptr {c})")


def _counted(emitter: CpuEmitter, count: int, body: Callable[[str], None]) -> None:
    """Loop `count` times; `body` takes the counter as text."""
    fn = emitter.fn
    if count == 1:
        body("0")
        return
    before, head = fn.block, fn.label("mma.loop")
    fn.branch(head)
    fn.start(head)
    place, counter = fn.reserve(), fn.fresh("i")
    body(counter)
    following = fn.assign(f"add nsw i64 {counter}, 1")
    fn.fill(place, f"{counter} = phi i64 [ 0, %{before} ], [ {following}, %{fn.block} ]")
    exit_ = fn.label("mma.exit")
    again = emitter.ops.compare("slt", I64, following, str(count))
    fn.branch_if(again, head, exit_, f", !llvm.loop {emitter.module.loop()}")
    fn.start(exit_)


def _block_kernel(module: ModuleText, shape: _Shape) -> str:
    """Return the function that adds `rows` x `depth` times `depth` x `vectors` to the accumulators."""
    attributes = module.attributes("nounwind noinline")
    fn = FunctionText(
        f"define internal void @{shape.name}(ptr noalias %a, ptr noalias %b, ptr noalias %c) {attributes}"
    )
    ops = Ops(module, fn)
    type_, lanes = shape.type_, shape.type_.width
    align = {"float": 4, "double": 8, "i32": 4, "i64": 8}[type_.element]
    places = [
        ops.gep(type_.element, "%c", str(row * shape.c_stride + vector * lanes))
        for row in range(shape.rows)
        for vector in range(shape.vectors)
    ]
    start = [fn.assign(f"load {type_}, ptr {place}, align {align}") for place in places]
    unroll = next(u for u in (UNROLL, 2, 1) if shape.depth % u == 0)
    fn.branch("loop")
    fn.start("loop")
    k, b = fn.fresh("k"), fn.fresh("b")
    names = [fn.fresh("acc") for _ in places]
    reserved = [fn.reserve() for _ in range(len(places) + 2)]
    totals, b_now = list(names), b
    for step in range(unroll):
        at = k if step == 0 else fn.assign(f"add nuw nsw i64 {k}, {step}")
        b_now = b if step == 0 else ops.gep(type_.element, b, str(step * shape.b_stride))
        totals = _step(ops, shape, align, at, b_now, totals)
    following = fn.assign(f"add nuw nsw i64 {k}, {unroll}")
    b_next = ops.gep(type_.element, b, str(unroll * shape.b_stride))
    fn.fill(reserved[0], f"{k} = {phi_text('i64', [('0', 'entry'), (following, 'loop')])}")
    fn.fill(reserved[1], f"{b} = {phi_text('ptr', [('%b', 'entry'), (b_next, 'loop')])}")
    for place, name, first, total in zip(reserved[2:], names, start, totals, strict=True):
        fn.fill(place, f"{name} = {phi_text(str(type_), [(first, 'entry'), (total, 'loop')])}")
    again = ops.compare("ult", I64, following, str(shape.depth))
    fn.branch_if(again, "loop", "done", f", !llvm.loop {module.loop()}")
    fn.start("done")
    for place, total in zip(places, totals, strict=True):
        fn.line(f"store {type_} {total}, ptr {place}, align {align}")
    fn.line("ret void")
    return fn.render()


def _step(ops: Ops, shape: _Shape, align: int, k: str, b: str, totals: list[str]) -> list[str]:
    """Append one step of k: load the vectors of b, and use each element of a for all of them."""
    fn, type_ = ops.fn, shape.type_
    vectors = [
        fn.assign(f"load {type_}, ptr {ops.gep(type_.element, b, str(v * type_.width))}, align {align}")
        for v in range(shape.vectors)
    ]
    results: list[str] = []
    for row in range(shape.rows):
        base = ops.gep(type_.element, "%a", str(row * shape.a_stride))
        scalar = fn.assign(f"load {type_.element}, ptr {ops.gep(type_.element, base, k)}, align {align}")
        spread = ops.splat(type_, scalar)
        for v, vector in enumerate(vectors):
            results.append(_multiply_add(ops, shape, spread, vector, totals[row * shape.vectors + v]))
    return results


def _multiply_add(ops: Ops, shape: _Shape, a: str, b: str, c: str) -> str:
    type_ = shape.type_
    if not type_.is_float:
        return ops.binary("add", type_, ops.binary("mul", type_, a, b), c)
    if shape.fused:
        return ops.intrinsic("fma", type_, a, b, c)
    return ops.binary("fadd", type_, ops.binary("fmul", type_, a, b), c)
