"""NVIDIA instructions in LLVM IR: NVVM intrinsics where they exist, inline PTX where they do not.

Source of instruction semantics: PTX ISA 9.2; LLVM "User Guide for NVPTX Back-end".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from xdsl.ir import Block, SSAValue

from tessera.backends.llvm.arithmetic import ARITHMETIC
from tessera.backends.llvm.control import CONTROL
from tessera.backends.llvm.emitter import Handlers
from tessera.backends.llvm.ops import F32, F64, I8, I16, I32, Ops
from tessera.backends.llvm.remainder import floor_function, remainder_function
from tessera.backends.llvm.text import FunctionText, ModuleText
from tessera.backends.llvm.types import LLVMType, of_dtype
from tessera.backends.llvm.vecmath import vecmath_function
from tessera.backends.nvidia import fp8
from tessera.backends.simt.emitter import SIMT, SimtEmitter
from tessera.numerics.dtypes import DType
from tessera.numerics.elementary.exponential import CONSTANTS, LOG2_E
from tessera.numerics.elementary.writer import UNIT
from tessera.target.records import TargetRecord

NVIDIA = Handlers()
SHARED_SYMBOL = "tessera_shared"

_RECIPROCAL = "llvm.nvvm.rcp.approx.ftz.f"
_CONSTRAINT = {"i8": "h", "i16": "h", "i32": "r", "i64": "l", "float": "f", "double": "d"}
_PTX_BITS = {"i8": "b8", "i16": "b16", "i32": "b32", "i64": "b64"}


class NvidiaOps(Ops):
    """Instructions that have a faster form under the `fast` profile, or one that LLVM does not find.

    `divides_exactly` says that quotients are rounded once all the same.
    """

    divides_exactly = False

    def binary(self, op: str, type_: LLVMType, a: str, b: str) -> str:
        """Append an instruction; an f32 division becomes `div.full` (2 ULP, whole range) under `fast`."""
        if op == "fdiv" and type_ == F32 and self.flags and not self.divides_exactly:
            group = self.module.attributes("nounwind memory(none)")
            return self.fn.assign(f'call float asm "div.full.f32 $0, $1, $2;", "=f,f,f"(float {a}, float {b}) {group}')
        return super().binary(op, type_, a, b)

    def extreme(self, name: str, type_: LLVMType, a: str, b: str) -> str:
        """Append a maximum or minimum; of f64 in three instructions, where LLVM takes nine.

        `max.f64` has 0 above -0, so that only NaN is left to be put in. LLVM compares with both zeros too.
        """
        if type_ != F64:
            return super().extreme(name, type_, a, b)
        number = self.intrinsic(f"{name}num", type_, a, b)
        return self.select(type_, self.compare("uno", type_, a, b), self.real(type_, math.nan), number)

    def remainder(self, type_: LLVMType, a: str, b: str) -> str:
        """Append a call of the exact remainder: NVPTX's own `frem` is wrong for large quotients."""
        return self._called(remainder_function(type_.element, _RECIPROCAL), type_, a, b)

    def floored_quotient(self, type_: LLVMType, a: str, b: str) -> str:
        """Append the whole quotient of f32 by a function whose common case takes no division."""
        if type_ != F32:
            return super().floored_quotient(type_, a, b)
        exact = "tessera_floordiv_exact_f32"
        if not self.module.has(exact):
            fn = FunctionText(f"define internal float @{exact}(float %x, float %y)")
            fn.line(f"ret float {Ops.floored_quotient(NvidiaOps(self.module, fn), type_, '%x', '%y')}")
            self.module.define(exact, fn.render())
        return self._called(floor_function(_RECIPROCAL, exact), type_, a, b)

    def _called(self, function: tuple[str, str, tuple[str, ...]], type_: LLVMType, a: str, b: str) -> str:
        name, text, declares = function
        self.module.declare(*declares)
        self.module.define(name, text)
        return self.fn.assign(f"call {type_} @{name}({type_} {a}, {type_} {b})")


class NvidiaEmitter(SimtEmitter):
    """Writes one kernel for NVIDIA GPUs.

    Args:
        module: the module being written.
        fn: the function being written.
        profile: numerics profile.
        num_warps: warps of a program.
        target: the target record.
        divides_exactly: whether quotients are rounded once under every profile.

    `consumer_warps` are the warps before the producer's, where roles are split; `groups` how many groups they form, and
    `in_role` whether what is emitted is theirs. `both_halves` says whether the function has values of bf16 and of f16.
    `has_products` says whether matrix units work in the function: exponentials are what their loops wait for.
    `words_in` are the packed registers of operands that come from outside a block, by that block.
    """

    asm_output = "="
    registries: ClassVar[tuple[Handlers, ...]] = (NVIDIA, SIMT, CONTROL, ARITHMETIC)

    def __init__(
        self,
        module: ModuleText,
        fn: FunctionText,
        profile: str,
        num_warps: int,
        target: TargetRecord,
        divides_exactly: bool = False,
    ):
        super().__init__(module, fn, profile, num_warps)
        ops = NvidiaOps(module, fn, contract=profile == "fast")
        ops.divides_exactly = divides_exactly
        self.ops: Ops = ops
        self.target = target
        self.consumer_warps = num_warps
        self.in_role = False
        self.groups = 1
        self.both_halves = False
        self.copies_sums = False
        self.has_products = False
        self.words_in: dict[tuple[SSAValue, Block | None], list[str]] = {}

    # Identity

    def thread(self) -> str:
        """Return the thread's number in the block."""
        return self._register("tid.x")

    def _register(self, name: str) -> str:
        self.module.declare(f"declare i32 @llvm.nvvm.read.ptx.sreg.{name}()")
        return self.entry(name, f"call i32 @llvm.nvvm.read.ptx.sreg.{name}()")

    def lane(self) -> str:
        """Return the lane's number."""
        return self.entry("lane", f"and i32 {self._register('tid.x')}, 31")

    def first_lane(self) -> str:
        """Return whether the thread is the first of its warp."""
        return self.entry("lane.zero", f"icmp eq i32 {self.lane()}, 0")

    def any_lane(self, condition: str) -> str:
        """Return whether a condition holds in some lane of the warp, all of which ask."""
        self.module.declare("declare i1 @llvm.nvvm.vote.any.sync(i32, i1)")
        return self.fn.assign(f"call i1 @llvm.nvvm.vote.any.sync(i32 -1, i1 {condition})")

    def first_thread(self) -> str:
        """Return whether the thread is the first of its block, or of its group of consumers."""
        if self.groups > 1:
            threads = self.num_warps * 32
            inside = self.entry("thread.group", f"and i32 {self.thread()}, {threads - 1}")
            return self.entry("thread.group.zero", f"icmp eq i32 {inside}, 0")
        return self.entry("thread.zero", f"icmp eq i32 {self.thread()}, 0")

    def warp(self) -> str:
        """Return the warp's number among those of its block, or of its group of consumers.

        It is equal in all lanes, which the shuffle tells the compiler.
        """
        if self.num_warps == 1:
            return self.entry("warp", "add i32 0, 0")
        if self.groups > 1:
            return self.entry("warp.group", f"and i32 {self.warp_uniform()}, {self.num_warps - 1}")
        return self.warp_uniform()

    def warp_uniform(self) -> str:
        """Return the warp's number in the whole block, other roles' warps included."""
        thread = self.thread()
        raw = self.entry("warp.raw", f"lshr i32 {thread}, 5")
        self.module.declare("declare i32 @llvm.nvvm.shfl.sync.idx.i32(i32, i32, i32, i32)")
        return self.entry("warp", f"call i32 @llvm.nvvm.shfl.sync.idx.i32(i32 -1, i32 {raw}, i32 0, i32 31)")

    def group(self) -> str:
        """Return the number of the warp's group of consumers."""
        shift = self.num_warps.bit_length() - 1
        return self.entry("role.group", f"lshr i32 {self.warp_uniform()}, {shift}")

    def program_id(self) -> str:
        """Return the block's number."""
        return self.entry("program", f"zext i32 {self._register('ctaid.x')} to i64")

    def program_count(self) -> str:
        """Return the number of blocks."""
        return self.entry("programs", f"zext i32 {self._register('nctaid.x')} to i64")

    def cluster_rank(self) -> str:
        """Return the block's number in its cluster."""
        return self.entry("rank", f"zext i32 {self._register('cluster.ctarank')} to i64")

    # Memory

    def shared_pointer(self, offset: str) -> str:
        """Return the address of a byte of shared memory."""
        return self.fn.assign(f"getelementptr i8, ptr addrspace(3) @{SHARED_SYMBOL}, i32 {offset}")

    def shared_address(self, offset: str) -> str:
        """Return the 32-bit shared-window address of a byte, as PTX instructions take it."""
        return self.ops.convert("ptrtoint", LLVMType("ptr addrspace(3)"), self.shared_pointer(offset), I32)

    def load_words(
        self, pointer: str, words: Sequence[LLVMType], predicate: str | None, otherwise: Sequence[str] | None = None
    ) -> list[str]:
        """Load words by one instruction; a predicated one leaves zeros, or other words, where it does not run."""
        element, count = words[0].element, len(words)
        if predicate is None:
            vector = LLVMType(element, count)
            size = int(element[1:]) // 8 * count
            value = self.fn.assign(f"load {vector}, ptr addrspace(1) {pointer}, align {size}")
            return [self.ops.extract(vector, value, lane) for lane in range(count)]
        register = "i16" if element == "i8" else element
        bits, kind = _PTX_BITS[element], _CONSTRAINT[element]
        outputs = ", ".join(f"${i}" for i in range(count))
        suffix, braces = ("", outputs) if count == 1 else (f".v{count}", f"{{{outputs}}}")
        clear, before = "", list(otherwise or ())
        if not before:
            clear = "".join(f"mov.{_PTX_BITS[register]} ${i}, 0; " for i in range(count))
        elif element == "i8":
            before = [self.ops.convert("zext", LLVMType("i8"), word, LLVMType("i16")) for word in before]
        text = f"{clear}@${count + 1} ld.global{suffix}.{bits} {braces}, [${count}];"
        given = [str(number) for number in range(len(before))]
        constraints = ",".join([*[f"=&{kind}"] * count, "l", "b", *given, "~{memory}"])
        result = self.asm(
            text,
            constraints,
            [LLVMType(register)] * count,
            [("ptr addrspace(1)", pointer), ("i1", predicate), *((register, word) for word in before)],
        )
        if element == "i8":
            return [self.ops.convert("trunc", LLVMType("i16"), value, LLVMType("i8")) for value in result]
        return result

    def load_holding(self, pointer: str, predicate: str | None, count: int = 1) -> list[str]:
        """Load the aligned i32 around elements of which some may be outside; zeros where the predicate is false.

        The instruction says `.weak`, which loads are anyway: so the emulator knows that one byte of it has to belong to
        an array, and no more. An address does not tell, as LLVM drops the rounding of one that is aligned.
        """
        outputs = ", ".join(f"${word}" for word in range(count))
        suffix, braces = ("", outputs) if count == 1 else (f".v{count}", f"{{{outputs}}}")
        text = f"ld.weak.global{suffix}.b32 {braces}, [${count}];"
        given = [("ptr addrspace(1)", pointer)]
        if predicate is not None:
            text = "".join(f"mov.b32 ${word}, 0; " for word in range(count)) + f"@${count + 1} {text}"
            given.append(("i1", predicate))
        constraints = ",".join([*["=&r"] * count, "l", *["b"] * (predicate is not None), "~{memory}"])
        return self.asm(text, constraints, [I32] * count, given)

    def load_vector(self, instruction: str, words: Sequence[LLVMType], address: tuple[str, str]) -> list[str]:
        """Load neighbouring words at once, by an instruction that LLVM does not have.

        Args:
            instruction: its name, up to the vector and the type.
            words: integer types of the words, all alike.
            address: type and value, an i32 or a pointer of 64 bits.
        """
        count, element = len(words), words[0].element
        outputs = ", ".join(f"${i}" for i in range(count))
        suffix, braces = ("", outputs) if count == 1 else (f".v{count}", f"{{{outputs}}}")
        text = f"{instruction}{suffix}.{_PTX_BITS[element]} {braces}, [${count}];"
        where = "r" if address[0] == "i32" else "l"
        constraints = ",".join([*[f"={_CONSTRAINT[element]}"] * count, where, "~{memory}"])
        return self.asm(text, constraints, words, [address])

    def store_words(self, pointer: str, words: Sequence[tuple[LLVMType, str]], predicate: str | None) -> None:
        """Store words by one instruction."""
        element, count = words[0][0].element, len(words)
        if predicate is None:
            vector = LLVMType(element, count)
            size = int(element[1:]) // 8 * count
            value = words[0][1]
            if count > 1:
                value = "poison"
                for lane, (_type, word) in enumerate(words):
                    value = self.ops.insert(vector, value, word, lane)
            self.fn.line(f"store {vector} {value}, ptr addrspace(1) {pointer}, align {size}")
            return
        values = [(t.element, v) for t, v in words]
        if element == "i8":
            values = [("i16", self.ops.convert("zext", LLVMType("i8"), v, LLVMType("i16"))) for _, v in values]
        inputs = ", ".join(f"${i + 2}" for i in range(count))
        suffix, braces = ("", inputs) if count == 1 else (f".v{count}", f"{{{inputs}}}")
        text = f"@$1 st.global{suffix}.{_PTX_BITS[element]} [$0], {braces};"
        constraints = ",".join(["l", "b", *[_CONSTRAINT[element]] * count, "~{memory}"])
        self.asm(text, constraints, [], [("ptr addrspace(1)", pointer), ("i1", predicate), *values])

    def opaque(self, word: str, type_: LLVMType = I32) -> str:
        """Return the same i32 or i16 through an empty instruction."""
        (result,) = self.asm("", f"={_CONSTRAINT[type_.element]},0", [type_], [(str(type_), word)], pure=True)
        return result

    def reinterpret(self, value: str, source: LLVMType, result: LLVMType) -> str:
        """Return the same bits as another type; LLVM 22 ends the process where it sees a `bfloat` as a `half`."""
        if {source.element, result.element} != {"bfloat", "half"}:
            return super().reinterpret(value, source, result)
        word = I16 if source.width == 1 else I32
        hidden = self.opaque(self.ops.convert("bitcast", source, value, word), word)
        return self.ops.convert("bitcast", word, hidden, result)

    # Synchronisation and exchange

    def barrier(self) -> None:
        """Wait for all threads of the block, or of the consumers (of one group of them) where roles are split."""
        if self.groups > 1:
            mine = self.entry("barrier.group", f"add i32 {self.group()}, 1")
            self.asm(f"bar.sync $0, {self.num_warps * 32};", "r,~{memory}", [], [("i32", mine)])
            return
        if self.in_role:
            self.asm(f"bar.sync 1, {self.num_warps * 32};", "~{memory}", [], [])
            return
        self.module.declare("declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)")
        self.fn.line("call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)")

    def shuffle_xor(self, value: str, mask: int | str) -> str:
        """Return the i32 of lane `lane ^ mask`."""
        self.module.declare("declare i32 @llvm.nvvm.shfl.sync.bfly.i32(i32, i32, i32, i32)")
        return self.fn.assign(f"call i32 @llvm.nvvm.shfl.sync.bfly.i32(i32 -1, i32 {value}, i32 {mask}, i32 31)")

    def asm_register(self, dtype: DType) -> tuple[str, LLVMType]:
        """PTX has registers of 16, 32 and 64 bits, and those of f32 and f64."""
        if dtype.is_float and dtype.bits >= 32:
            return "f" if dtype.bits == 32 else "d", of_dtype(dtype)
        return {16: "h", 32: "r", 64: "l"}[dtype.bits], LLVMType(f"i{dtype.bits}")

    def asm(
        self,
        text: str,
        constraints: str,
        results: Sequence[LLVMType],
        args: Sequence[tuple[str, str]],
        *,
        pure: bool = False,
        alone: bool = False,
    ) -> list[str]:
        """Emit inline PTX and return its results.

        Args:
            text: the instructions, operands as `$0`, `$1`, …
            constraints: LLVM constraint string.
            results: types of the outputs.
            args: type and value of the inputs.
            pure: whether it only computes; then it may be moved or removed.
            alone: whether each thread does so by itself; then it may leave loops.
        """
        escaped = text.replace('"', '\\"')
        kind = "void" if not results else str(results[0])
        if len(results) > 1:
            kind = "{ " + ", ".join(str(r) for r in results) + " }"
        given = ", ".join(f"{t} {v}" for t, v in args)
        effect = "memory(none) " if pure else ""
        group = self.module.attributes(f"{'' if alone else 'convergent '}nounwind {effect}".strip())
        call = f'call {kind} asm {"" if pure else "sideeffect "}"{escaped}", "{constraints}"({given}) {group}'
        if not results:
            self.fn.line(call)
            return []
        value = self.fn.assign(call)
        if len(results) == 1:
            return [value]
        return [self.fn.assign(f"extractvalue {kind} {value}, {i}") for i in range(len(results))]

    # Numbers

    def native_narrow(self, dtype: DType) -> str | None:
        """Return the 16-bit float types that `cvt` converts to."""
        if dtype.name == "f16":
            return "half"
        return "bfloat" if dtype.name == "bf16" and self.target.has("bf16_arith") else None

    def widen(self, value: str, dtype: DType, width: int) -> str:
        """Return the f32 value of a narrow float."""
        if dtype.name == "bf16" and value in self.upper_halves:  # one instruction, for a move and a shift
            upper = self.ops.binary("and", I32, self.upper_halves[value], str(-1 << 16))
            return self.ops.convert("bitcast", I32, upper, F32)
        if dtype.name == "bf16" and width == 1 and self.both_halves:
            # LLVM 22 computes `f16(f32(bf16 a) + f32(bf16 b))` in f16, whose range is smaller; so it sees no bf16.
            wide = self.ops.convert("zext", I16, self.ops.convert("bitcast", LLVMType("bfloat"), value, I16), I32)
            return self.ops.convert("bitcast", I32, self.ops.binary("shl", I32, wide, "16"), F32)
        if dtype.bits == 16 and width == 1:
            return self.ops.convert("fpext", LLVMType("half" if dtype.name == "f16" else "bfloat"), value, F32)
        if width == 1 and fp8.converts(self, dtype):
            return fp8.widened(self, fp8.to_halves(self, self.ops.convert("zext", I8, value, I16), dtype))[0]
        return super().widen(value, dtype, width)

    def narrow(self, value: str, dtype: DType, width: int, saturate: bool = False) -> str:
        """Round an f32 value to a narrower float."""
        native = self.native_narrow(dtype)
        if native is not None and width == 1 and not saturate:
            return self.ops.convert("fptrunc", F32, value, LLVMType(native))
        if width == 1 and fp8.converts(self, dtype):
            return self.ops.convert("trunc", I32, fp8.from_f32(self, [value], dtype, saturate), I8)
        return super().narrow(value, dtype, width, saturate)

    def truncated(self, value: str, source: DType, result: DType, width: int) -> str:
        """Convert a float to an integer by `cvt`, which bounds it; NaN gives 0 only from f32 to 32 bits.

        Source: PTX ISA, "Data Movement and Conversion Instructions: cvt".
        """
        if width > 1 or result.bits < 32:
            return super().truncated(value, source, result, width)
        type_, dst = of_dtype(source), of_dtype(result)
        kind, letter = ("s" if result.kind == "int" else "u"), ("r" if result.bits == 32 else "l")
        text = f"cvt.rzi.{kind}{result.bits}.{source.name} $0, $1;"
        given = "f" if source.bits == 32 else "d"
        (found,) = self.asm(text, f"={letter},{given}", [dst], [(str(type_), value)], pure=True, alone=True)
        if source.bits == result.bits == 32:
            return found
        ordered = self.ops.compare("ord", type_, value, value)
        return self.ops.select(dst, ordered, found, self.ops.integer(dst, 0))

    def math_call(self, name: str, dtype: DType, width: int, args: Sequence[str]) -> str:
        """Apply a transcendental function: by the hardware's approximations under `fast`, else by polynomials."""
        if dtype.name == "f32" and self.profile == "fast" and name in _APPROXIMATE:
            return _APPROXIMATE[name](self, args[0])
        if name == "rsqrt":
            type_ = LLVMType("float" if dtype.name == "f32" else "double")
            root = self.ops.intrinsic("sqrt", type_, args[0])
            return self.ops.binary("fdiv", type_, self.ops.real(type_, 1.0), root)
        if name == "sigmoid":
            return self._sigmoid(dtype, args[0])
        units = _UNITS if dtype.name == "f32" and self.profile == "fast" else frozenset[str]()
        function = vecmath_function(name, width, dtype.name, features=units)
        self.module.declare(*function.declares)
        self.module.define(function.name, function.definition)
        type_ = LLVMType("float" if dtype.name == "f32" else "double")
        given = ", ".join(f"{type_} {arg}" for arg in args)
        return self.fn.assign(f"call {type_} @{function.name}({given})")

    def byte_perm(self, width: int, x: str, y: str, selector: str) -> str:
        """Pick four of the eight bytes of two words; the top bit of a digit would repeat the byte's sign."""
        if width > 1:
            return super().byte_perm(width, x, y, selector)
        digits = self.ops.binary("and", I32, selector, str(0x7777))
        return self.ops.call("llvm.nvvm.prmt", I32, [(I32, x), (I32, y), (I32, digits)])

    def _sigmoid(self, dtype: DType, value: str) -> str:
        type_ = LLVMType("float" if dtype.name == "f32" else "double")
        one = self.ops.real(type_, 1.0)
        negated = self.fn.assign(f"fneg {type_} {value}")
        grown = self.math_call("exp", dtype, 1, [negated])
        return self.ops.binary("fdiv", type_, one, self.ops.binary("fadd", type_, one, grown))

    def unary_asm(self, instruction: str, value: str) -> str:
        """Apply a one-operand f32 instruction."""
        (result,) = self.asm(f"{instruction} $0, $1;", "=f,f", [F32], [("float", value)], pure=True)
        return result


def _exp2(emitter: NvidiaEmitter, value: str) -> str:
    # Without `.ftz`, three more instructions scale arguments whose result is no normal number.
    return emitter.unary_asm("ex2.approx.ftz.f32", value)


def _exp(emitter: NvidiaEmitter, value: str) -> str:
    """Return exp: where nothing waits for it, what the product with log2(e) loses is made good."""
    ops = emitter.ops
    scaled = ops.binary("fmul", F32, value, ops.real(F32, LOG2_E))
    rough = _exp2(emitter, scaled)
    if emitter.has_products:
        return rough
    negated = emitter.fn.assign(f"fneg float {scaled}")
    lost = ops.intrinsic("fma", F32, value, ops.real(F32, LOG2_E), negated)
    lost = ops.intrinsic("fma", F32, value, ops.real(F32, CONSTANTS["f32"].log2e_low), lost)
    exact = ops.intrinsic("fma", F32, rough, ops.binary("fmul", F32, lost, ops.real(F32, math.log(2.0))), rough)
    # Infinities stay, and what rounds to them: their difference is NaN.
    within = emitter.fn.assign(f"fcmp olt float {ops.intrinsic('fabs', F32, scaled)}, {ops.real(F32, 127.0)}")
    return emitter.fn.assign(f"select i1 {within}, float {exact}, float {rough}")


def _rsqrt(emitter: NvidiaEmitter, value: str) -> str:
    return emitter.unary_asm("rsqrt.approx.f32", value)


def _sigmoid(emitter: NvidiaEmitter, value: str) -> str:
    negated = emitter.fn.assign(f"fneg float {value}")
    below = emitter.ops.binary("fadd", F32, emitter.ops.real(F32, 1.0), _exp(emitter, negated))
    return emitter.unary_asm("rcp.approx.ftz.f32", below)  # of at least 1: what is flushed is below 2**-126


_UNITS = frozenset({UNIT})
_APPROXIMATE = {"exp2": _exp2, "exp": _exp, "rsqrt": _rsqrt, "sigmoid": _sigmoid}
