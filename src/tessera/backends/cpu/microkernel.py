"""Register-blocked kernels: `rows` x `vectors` accumulators stay in registers while the depth runs.

Each step loads `vectors` vectors of a panel of the right operand and multiplies them with one broadcast element of
each row of the left one.
"""

from __future__ import annotations

from dataclasses import dataclass

from tessera.backends.cpu.instructions import multiply_add
from tessera.backends.llvm.ops import I64, Ops
from tessera.backends.llvm.text import FunctionText, ModuleText, phi_text
from tessera.backends.llvm.types import LLVMType
from tessera.target.records import TargetRecord

MAX_ROWS = 16
UNROLL = 2
BYTES = {"float": 4, "double": 8, "i32": 4, "i64": 8}
FLIP = -0x7F7F7F80
"""The upper bit of each byte of an i32: what turns signed bytes into unsigned ones, 128 larger."""


def register_count(target: TargetRecord) -> int:
    """Return the number of vector registers."""
    return 32 if target.has("avx512f") or target.has("neon") else 16


def block_rows(target: TargetRecord, vectors: int) -> int:
    """Return the rows of accumulators that fit beside `vectors` operands and a broadcast."""
    return max(min((register_count(target) - vectors - 2) // vectors, MAX_ROWS), 1)


@dataclass(frozen=True)
class Block:
    """What one kernel is specialised for; strides are in elements.

    Args:
        instruction: a vector instruction of `instructions`.
        rows: rows of accumulators.
        vectors: vectors of each row.
        a_stride: distance of two rows of the left operand.
        b_stride: distance of two steps in a panel.
        c_stride: distance of two rows of accumulators.
        operand: vector of operands.
        total: vector of sums.
        whole: whether the depth is a multiple of `UNROLL`.
        flip: whether bytes of the left operand are still signed.
        shifted: whether bytes of the left operand are taken 128 too large, so that sums of the right one, which the
            caller has, are subtracted.
    """

    instruction: str
    rows: int
    vectors: int
    a_stride: int
    b_stride: int
    c_stride: int
    operand: LLVMType
    total: LLVMType
    whole: bool
    flip: bool = False
    shifted: bool = False

    @property
    def _flags(self) -> str:
        return "_w" * self.whole + "_f" * self.flip + "_s" * self.shifted

    @property
    def name(self) -> str:
        """A symbol that tells kernels apart."""
        sizes = f"{self.rows}x{self.vectors}_{self.a_stride}_{self.b_stride}_{self.c_stride}"
        return f"tessera_mma_{self.instruction}_{self.total.mangled}_{sizes}{self._flags}"


def block_kernel(module: ModuleText, target: TargetRecord, block: Block) -> str:
    """Define the kernel `void (a, b, c, depth, shift)` once, and return its symbol.

    It adds `rows` x `depth` times `depth` x `vectors` to the accumulators; `shift` holds what is subtracted from each
    row first, where bytes are shifted.
    """
    if not module.has(block.name):
        module.define(block.name, _Kernel(module, target, block).render())
    return block.name


class _Kernel:
    """Writes one kernel."""

    def __init__(self, module: ModuleText, target: TargetRecord, block: Block):
        attributes = module.attributes("nounwind noinline")
        signature = (
            f"define internal void @{block.name}(ptr noalias %a, ptr noalias %b, ptr noalias %c, i64 %depth, "
            f"ptr noalias %shift) {attributes}"
        )
        self.module, self.target, self.block = module, target, block
        self.fn = FunctionText(signature)
        self.ops = Ops(module, self.fn)
        self.align = BYTES[block.total.element]

    def render(self) -> str:
        """Return the function's text."""
        fn, block, ops = self.fn, self.block, self.ops
        places = [
            ops.gep(block.total.element, "%c", str(row * block.c_stride + vector * block.total.width))
            for row in range(block.rows)
            for vector in range(block.vectors)
        ]
        totals = [fn.assign(f"load {block.total}, ptr {place}, align {self.align}") for place in places]
        if block.shifted:
            shifts = [self._load("%shift", v, block.total) for v in range(block.vectors)]
            totals = [
                ops.binary("sub", block.total, t, shifts[i % block.vectors]) for i, t in enumerate(totals)
            ]
        if block.whole:
            totals = self._loop("0", "%depth", UNROLL, totals, True)
        else:
            most = fn.assign(f"and i64 %depth, {-UNROLL}")
            totals = self._loop("0", most, UNROLL, totals, False)
            totals = self._loop(most, "%depth", 1, totals, False)
        for place, total in zip(places, totals, strict=True):
            fn.line(f"store {block.total} {total}, ptr {place}, align {self.align}")
        fn.line("ret void")
        return fn.render()

    def _loop(self, first: str, end: str, unroll: int, totals: list[str], at_least_once: bool) -> list[str]:
        """Loop over the depth from `first` to `end`."""
        fn, ops, block = self.fn, self.ops, self.block
        before, head, exit_ = fn.block, fn.label("loop"), fn.label("done")
        if at_least_once:
            fn.branch(head)
        else:
            fn.branch_if(ops.compare("slt", I64, first, end), head, exit_)
        fn.start(head)
        k, names = fn.fresh("k"), [fn.fresh("acc") for _ in totals]
        reserved = [fn.reserve() for _ in range(len(totals) + 1)]
        sums = list(names)
        for step in range(unroll):
            at = k if step == 0 else fn.assign(f"add nuw nsw i64 {k}, {step}")
            sums = self._step(at, sums)
        following = fn.assign(f"add nuw nsw i64 {k}, {unroll}")
        fn.fill(reserved[0], f"{k} = {phi_text('i64', [(first, before), (following, head)])}")
        for place, name, start, total in zip(reserved[1:], names, totals, sums, strict=True):
            fn.fill(place, f"{name} = {phi_text(str(block.total), [(start, before), (total, head)])}")
        again = ops.compare("slt", I64, following, end)
        fn.branch_if(again, head, exit_, f", !llvm.loop {self.module.loop()}")
        fn.start(exit_)
        if at_least_once:
            return sums
        return [
            fn.phi(str(block.total), [(start, before), (total, head)])
            for start, total in zip(totals, sums, strict=True)
        ]

    def _load(self, base: str, vector: int, type_: LLVMType) -> str:
        place = self.ops.gep(type_.element, base, str(vector * type_.width))
        return self.fn.assign(f"load {type_}, ptr {place}, align {self.align}")

    def _step(self, k: str, totals: list[str]) -> list[str]:
        """Append one step: load the vectors of b, and use each element of a for all of them."""
        fn, ops, block = self.fn, self.ops, self.block
        operand = block.operand
        offset = fn.assign(f"mul nuw nsw i64 {k}, {block.b_stride}")
        panel = ops.gep(operand.element, "%b", offset)
        vectors = [self._load(panel, v, operand) for v in range(block.vectors)]
        results: list[str] = []
        for row in range(block.rows):
            base = ops.gep(operand.element, "%a", str(row * block.a_stride))
            place = ops.gep(operand.element, base, k)
            scalar = fn.assign(f"load {operand.element}, ptr {place}, align {self.align}")
            if block.flip:
                scalar = fn.assign(f"xor {operand.element} {scalar}, {FLIP}")
            spread = ops.splat(operand, scalar)
            for v, vector in enumerate(vectors):
                total = totals[row * block.vectors + v]
                types = (operand, block.total)
                results.append(
                    multiply_add(ops, self.target, block.instruction, types, spread, vector, total)
                )
        return results
