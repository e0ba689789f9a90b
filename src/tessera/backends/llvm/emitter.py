"""The base of all emitters: walks TIR-T and writes LLVM IR.

Every SSA value is a list of *units*, each one LLVM value. A scalar, a pointer and a buffer's address are one
unit. How a fragment is split is the model's choice (`fragment_units`): in the SIMT model one scalar per
register, in the vector model one vector. Handlers are registered per op class in `Handlers` tables; a model
lists the tables it uses, its own first.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ClassVar, TypeVar

from xdsl.ir import Attribute, Block, Operation, SSAValue

from tessera.backends.llvm import narrow as narrow_floats
from tessera.backends.llvm.elementwise import byte_perm as bytes_of_words
from tessera.backends.llvm.ops import Ops
from tessera.backends.llvm.text import FunctionText, ModuleText
from tessera.backends.llvm.types import LLVMType, literal, of_dtype
from tessera.errors import CompilerFault
from tessera.ir.locations import location_of
from tessera.ir.target.types import BufferType, FragmentType, PointerType, element_of
from tessera.ir.types import dtype_of
from tessera.numerics import dtypes
from tessera.numerics.dtypes import DType

Handler = Callable[[Any, Any], None]
_H = TypeVar("_H", bound=Callable[..., None])


class Handlers:
    """A table from op class to the function that emits it."""

    def __init__(self) -> None:
        self._table: dict[type[Operation], Handler] = {}

    def register(self, *op_classes: type[Operation]) -> Callable[[_H], _H]:
        """Return a decorator that makes a function `(emitter, op)` the handler of these ops."""

        def enter(handler: _H) -> _H:
            self._table.update(dict.fromkeys(op_classes, handler))
            return handler

        return enter

    def get(self, op_class: type[Operation]) -> Handler | None:
        """Return the handler of an op class."""
        return self._table.get(op_class)


@cache
def load_handlers(*packages: str) -> None:
    """Import all modules of packages, which register what they emit."""
    for package in packages:
        for info in pkgutil.iter_modules(importlib.import_module(package).__path__):
            importlib.import_module(f"{package}.{info.name}")


class Emitter:
    """Writes one function of a module; models subclass it.

    Args:
        module: the module being written.
        fn: the function being written.
        profile: numerics profile; `fast` allows contraction.
    """

    registries: ClassVar[tuple[Handlers, ...]] = ()
    asm_output = "=&"
    """LLVM's constraint of a result of inline assembly, before its kind of register."""
    asm_clobbers: tuple[str, ...] = ()
    """What inline assembly changes besides."""

    def __init__(self, module: ModuleText, fn: FunctionText, profile: str):
        self.module = module
        self.fn = fn
        self.profile = profile
        self.ops = Ops(module, fn, contract=profile == "fast")
        self.values: dict[SSAValue, list[str]] = {}

    def fragment_units(self, type_: FragmentType) -> tuple[int, int]:
        """Return how many units a fragment has and how wide each is (1 = scalar)."""
        raise NotImplementedError

    def pointer_type(self, type_: PointerType | BufferType) -> LLVMType:
        """Return the LLVM type of an address; models with address spaces override it."""
        return LLVMType("ptr")

    def math_call(self, name: str, dtype: DType, width: int, args: Sequence[str]) -> str:
        """Apply a transcendental function to f32 or f64 lanes."""
        raise NotImplementedError

    def asm_register(self, dtype: DType) -> tuple[str, LLVMType]:
        """Return the kind of register that inline assembly has a number in, as LLVM writes it, and its type there."""
        raise NotImplementedError

    def byte_perm(self, width: int, x: str, y: str, selector: str) -> str:
        """Pick four of the eight bytes of two words."""
        return bytes_of_words(self.ops, width, x, y, selector)

    def reinterpret(self, value: str, source: LLVMType, result: LLVMType) -> str:
        """Return the same bits as a value of another type of that size."""
        return self.ops.convert("bitcast", source, value, result)

    def widen(self, value: str, dtype: DType, width: int) -> str:
        """Return the f32 value of a float narrower than that."""
        if dtype.bits == 16:
            codes = narrow_floats.storage_int(dtype, width)
            value = self.ops.convert("bitcast", of_dtype(dtype, width), value, codes)
        return narrow_floats.widen(self.ops, value, dtype, width)

    def narrow(self, value: str, dtype: DType, width: int, saturate: bool = False) -> str:
        """Round an f32 value to a narrower float."""
        codes = narrow_floats.narrow(self.ops, value, dtype, width, saturate)
        if dtype.bits != 16:
            return codes
        return self.ops.convert("bitcast", narrow_floats.storage_int(dtype, width), codes, of_dtype(dtype, width))

    def truncated(self, value: str, source: DType, result: DType, width: int) -> str:
        """Convert f32 or f64 lanes to integers: the nearest bound out of range, 0 of NaN."""
        name = "fptosi" if result.kind == "int" else "fptoui"
        type_, dst = of_dtype(source, width), of_dtype(result, width)
        return self.ops.call(f"llvm.{name}.sat.{dst.mangled}.{type_.mangled}", dst, [(type_, value)])

    def value_type(self, dtype: DType, width: int = 1) -> LLVMType:
        """Return the LLVM type of values of `dtype`; a model may keep narrow floats as integers."""
        return of_dtype(dtype, width)

    def literal(self, value: int | float, dtype: DType) -> str:
        """Return a scalar constant of `value_type`."""
        return literal(value, dtype)

    def unit_type(self, type_: Attribute) -> LLVMType:
        """Return the LLVM type of one unit of a TIR-T type."""
        if isinstance(type_, PointerType | BufferType):
            return self.pointer_type(type_)
        return self.value_type(dtype_of(element_of(type_)), self.unit_width(type_))

    def unit_width(self, type_: Attribute) -> int:
        """Return the number of lanes of one unit."""
        return self.fragment_units(type_)[1] if isinstance(type_, FragmentType) else 1

    def unit_count(self, type_: Attribute) -> int:
        """Return the number of units of a value."""
        return self.fragment_units(type_)[0] if isinstance(type_, FragmentType) else 1

    def units(self, value: SSAValue) -> list[str]:
        """Return the units of a value."""
        return self.values[value]

    def unit(self, value: SSAValue) -> str:
        """Return the only unit of a value."""
        (found,) = self.values[value]
        return found

    def bind(self, value: SSAValue, units: Sequence[str]) -> None:
        """Set the units of a value."""
        self.values[value] = list(units)

    def carried_types(self, type_: Attribute) -> list[LLVMType]:
        """Return the LLVM types that a value has when loops and branches carry it; its units by default."""
        return [self.unit_type(type_)] * self.unit_count(type_)

    def carried(self, value: SSAValue) -> list[tuple[LLVMType, str]]:
        """Return a value as loops and branches carry it."""
        return list(zip(self.carried_types(value.type), self.units(value), strict=True))

    def bind_carried(self, value: SSAValue, given: Sequence[str]) -> None:
        """Bind a value to what was carried."""
        self.bind(value, given)

    def to_index(self, value: str, dtype: DType) -> str:
        """Return an integer scalar as i64."""
        if dtype.bits == 64:
            return value
        op = "sext" if dtype.kind == "int" else "zext"
        return self.ops.convert(op, of_dtype(dtype), value, of_dtype(dtypes.i64))

    def emit_op(self, op: Operation) -> None:
        """Emit one op through the first table that knows it."""
        for table in self.registries:
            handler = table.get(type(op))
            if handler is not None:
                handler(self, op)
                return
        raise CompilerFault(f"{type(self).__name__} cannot emit {op.name}", code="no-emitter", location=location_of(op))

    def emit_block(self, block: Block) -> None:
        """Emit the ops of a block; region terminators are left to the op that holds the region.

        Raises:
            CompilerFault: an op cannot be emitted, as those of edited IR that are not what lowerings write.
        """
        for op in block.ops:
            try:
                self.emit_op(op)
            except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
                what = f"{type(error).__name__}: {error}".strip().removesuffix(":").split("\n")[0]
                raise CompilerFault(
                    f"{op.name} cannot be emitted ({what})", code="no-emitter", location=location_of(op)
                ) from error
