"""Register-blocked kernels: `rows` x `vectors` accumulators stay in registers while the depth runs.

Each step loads `vectors` vectors of a panel of the right operand and multiplies them with one broadcast element of
each row of the left one. Sums begin at zero, and what memory holds is prefetched first and added last: no product waits
for it. Where the order is given (`chain`), they begin with what memory holds.
"""

from __future__ import annotations

from tessera.backends.cpu.instructions import multiply_add
from tessera.backends.cpu.shared import shared_function
from tessera.backends.cpu.texts import LINE_BYTES, first_lanes, masked_load, masked_store, prefetch
from tessera.backends.llvm.ops import I64, Ops
from tessera.backends.llvm.text import FunctionText, ModuleText, phi_text
from tessera.backends.llvm.types import LLVMType
from tessera.data import dataclass
from tessera.target.products import GROUPS
from tessera.target.records import TargetRecord

MAX_ROWS = 16
MOST_IN_PLACE = 8
"""Rows at a distance that is known only at run time: each takes a register for its address."""

UNROLL = 2
BYTES = {"i8": 1, "i16": 2, "float": 4, "double": 8, "i32": 4, "i64": 8}
FLIP = -0x7F7F7F80
"""The upper bit of each byte of an i32: what turns signed bytes into unsigned ones, 128 larger."""


def register_count(target: TargetRecord) -> int:
    """Return the number of vector registers."""
    return 32 if target.has("avx512f") or target.has("neon") else 16


def block_rows(target: TargetRecord, vectors: int, in_place: bool = False) -> int:
    """Return the rows of accumulators that fit beside `vectors` operands and a broadcast."""
    most = MOST_IN_PLACE if in_place else MAX_ROWS
    return max(min((register_count(target) - vectors - 2) // vectors, most), 1)


@dataclass(frozen=True)
class Block:
    """What one kernel is specialised for; strides are in elements.

    Args:
        instruction: a vector instruction of `instructions`.
        rows: rows of accumulators.
        vectors: vectors of each row.
        a_stride: distance of two rows of the left operand, None where it is an argument.
        a_step: distance of two elements of such a row: 1 unless the operand is stored by columns.
        b_stride: distance of two steps in a panel.
        operand: vector of operands.
        total: vector of sums.
        whole: whether the depth is a multiple of `UNROLL`, and not 0.
        shifted: whether bytes of the left operand are taken 128 too large, so that sums of the right one, which the
            caller has, are subtracted.
        odd: whether the last pair of the depth may hold one term, with what follows it in memory no part of it.
        fresh: whether the accumulators start from zero.
        masked: whether a part of the last vector of each row may be none of the sums, which is left as it is.
    """

    instruction: str
    rows: int
    vectors: int
    a_stride: int | None
    b_stride: int
    operand: LLVMType
    total: LLVMType
    whole: bool
    shifted: bool = False
    odd: bool = False
    a_step: int = 1
    fresh: bool = False
    masked: bool = False

    @property
    def goes_on(self) -> bool:
        """Whether the accumulators start from what memory holds."""
        return self.instruction == "chain" and not self.fresh

    @property
    def _flags(self) -> str:
        return "_w" * self.whole + "_s" * self.shifted + "_o" * self.odd + "_z" * self.fresh + "_m" * self.masked

    @property
    def name(self) -> str:
        """A symbol that tells kernels apart."""
        stride = "n" if self.a_stride is None else str(self.a_stride)
        stride += f"by{self.a_step}" * (self.a_step > 1)
        sizes = f"{self.rows}x{self.vectors}_{stride}_{self.b_stride}"
        return f"tessera_mma_{self.instruction}_{self.total.mangled}_{sizes}{self._flags}"


def block_kernel(module: ModuleText, target: TargetRecord, block: Block, shared: bool) -> str:
    """Define the kernel `void (a, b, c, step, depth, …)` once, and return its symbol.

    It adds `rows` x `depth` times `depth` x `vectors` to the accumulators, whose rows are `step` apart. Where rows are
    read in place, `pitch` follows, their distance in bytes; where bytes are shifted `shift`, which holds what is
    subtracted from each row first; `odd`, which is 1 when the last pair of the depth holds one term; and where the last
    vector is masked `last`, how many of its elements count. `shared` says whether other products have the same one.
    """
    if shared:
        shared_function(module, target, block.name, block, lambda where: _Kernel(where, target, block).render())
    elif not module.has(block.name):
        module.define(block.name, _Kernel(module, target, block).render())
    return block.name


class _Kernel:
    """Writes one kernel."""

    def __init__(self, module: ModuleText, target: TargetRecord, block: Block):
        attributes = module.attributes("nounwind noinline")
        signature = (
            f"define internal void @{block.name}(ptr noalias %a, ptr noalias %b, ptr noalias %c, i64 %step, "
            f"i64 %depth{', i64 %pitch' * (block.a_stride is None)}{', ptr noalias %shift' * block.shifted}"
            f"{', i64 %odd' * block.odd}{', i64 %last' * block.masked}) {attributes}"
        )
        self.module, self.target, self.block = module, target, block
        self.fn = FunctionText(signature, once=True)
        self.ops = Ops(module, self.fn)
        self.align = BYTES[block.total.element]
        self.bases: list[str] = []
        self.mask = ""

    def render(self) -> str:
        """Return the function's text."""
        fn, block, ops = self.fn, self.block, self.ops
        element, width = block.total.element, block.total.width
        rows = ["%c"] + [ops.gep(element, "%c", fn.assign(f"mul nsw i64 %step, {row}")) for row in range(1, block.rows)]
        places = [ops.gep(element, row, str(vector * width)) for row in rows for vector in range(block.vectors)]
        totals = ["zeroinitializer"] * len(places)
        self.mask = self._mask() if block.masked else ""
        if block.goes_on:
            totals = [self._held(number, place) for number, place in enumerate(places)]
        elif not block.fresh:
            self._ask(places)
        if block.shifted:
            shifts = [self._load("%shift", v, block.total) for v in range(block.vectors)]
            less = [ops.binary("sub", block.total, "zeroinitializer", shift) for shift in shifts]
            totals = less * block.rows
        self.bases = [self._base(row) for row in range(block.rows)]
        if block.whole:
            totals = self._loop("0", "%depth", UNROLL, totals, True)
        else:
            end = fn.assign("sub nsw i64 %depth, %odd") if block.odd else "%depth"
            most = fn.assign(f"and i64 {end}, {-UNROLL}")
            totals = self._loop("0", most, UNROLL, totals, False)
            totals = self._loop(most, end, 1, totals, False)
        if block.odd:
            totals = self._last_term(totals)
        if not block.fresh and not block.goes_on:
            totals = [self._with_held(number, place, totals[number]) for number, place in enumerate(places)]
        for number, (place, total) in enumerate(zip(places, totals, strict=True)):
            self._store(number, place, total)
        fn.line("ret void")
        return fn.render()

    def _with_held(self, number: int, place: str, total: str) -> str:
        """Return a vector of sums with what memory holds of it."""
        type_ = self.block.total
        held = self._held(number, place)
        return self.ops.binary("add" if type_.element.startswith("i") else "fadd", type_, held, total)

    def _mask(self) -> str:
        """Return which elements of the last vector of a row count."""
        return first_lanes(self.fn, self.ops, self.block.total.width, "%last")

    def _is_masked(self, number: int) -> bool:
        """Return whether a vector is the last one of a row, of which a part counts."""
        return self.block.masked and (number + 1) % self.block.vectors == 0

    def _held(self, number: int, place: str) -> str:
        """Return what memory holds of a vector of sums."""
        type_ = self.block.total
        if not self._is_masked(number):
            return self.fn.assign(f"load {type_}, ptr {place}, align {self.align}")
        return masked_load(self.module, self.fn, type_, place, self.align, self.mask)

    def _store(self, number: int, place: str, total: str) -> None:
        """Store a vector of sums."""
        type_ = self.block.total
        if self._is_masked(number):
            masked_store(self.module, self.fn, type_, total, place, self.align, self.mask)
        else:
            self.fn.line(f"store {type_} {total}, ptr {place}, align {self.align}")

    def _ask(self, places: list[str]) -> None:
        """Prefetch the lines of the sums."""
        vectors = max(LINE_BYTES // (self.block.total.width * self.align), 1)
        for number in range(0, len(places), self.block.vectors):
            for place in places[number : number + self.block.vectors : vectors]:
                prefetch(self.module, self.fn, place, "write", 3)

    def _base(self, row: int) -> str:
        stride = self.block.a_stride
        if stride is not None:
            return self.ops.gep(self.block.operand.element, "%a", str(row * stride))
        return self.ops.gep("i8", "%a", self.fn.assign(f"mul nsw i64 %pitch, {row}")) if row else "%a"

    def _last_term(self, totals: list[str]) -> list[str]:
        """Add the term of a pair of which memory holds the first half only."""
        fn = self.fn
        before, body, join = fn.block, fn.label("half"), fn.label("whole")
        fn.branch_if(self.ops.compare("ne", I64, "%odd", "0"), body, join)
        fn.start(body)
        last = self._step(fn.assign("sub nsw i64 %depth, 1"), totals, half=True)
        fn.branch(join)
        fn.start(join)
        return [fn.phi(str(self.block.total), [(a, before), (b, body)]) for a, b in zip(totals, last, strict=True)]

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

    def _scalar(self, row: int, k: str, half: bool) -> str:
        """Return one element of the left operand; with `half`, only the first term of the pair."""
        block, fn = self.block, self.fn
        element = block.operand.element
        place = self.ops.gep(element, self.bases[row], k) if block.a_step == 1 else self._at_column(row, k)
        if half:
            return fn.assign(f"zext i16 {fn.assign(f'load i16, ptr {place}, align 2')} to {element}")
        align = BYTES[element] // (GROUPS[block.instruction] if block.a_stride is None else 1)
        return fn.assign(f"load {element}, ptr {place}, align {align}")

    def _at_column(self, row: int, k: str) -> str:
        """Return where an element is by its column's address, which the rows of a step share."""
        element, block = self.block.operand.element, self.block
        assert block.a_stride is not None
        offset = self.fn.assign(f"mul nuw nsw i64 {k}, {block.a_step}")
        return self.ops.gep(element, self.ops.gep(element, "%a", offset), str(row * block.a_stride))

    def _step(self, k: str, totals: list[str], half: bool = False) -> list[str]:
        """Append one step: load the vectors of b, and use each element of a for all of them."""
        fn, ops, block = self.fn, self.ops, self.block
        operand = block.operand
        offset = fn.assign(f"mul nuw nsw i64 {k}, {block.b_stride}")
        panel = ops.gep(operand.element, "%b", offset)
        vectors = [self._load(panel, v, operand) for v in range(block.vectors)]
        results: list[str] = []
        for row in range(block.rows):
            scalar = self._scalar(row, k, half)
            spread = ops.splat(operand, scalar)
            for v, vector in enumerate(vectors):
                total = totals[row * block.vectors + v]
                types = (operand, block.total)
                results.append(multiply_add(ops, self.target, block.instruction, types, spread, vector, total))
        return results
