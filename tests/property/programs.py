"""Random TIR-H programs: expressions over tiles with loops, branches, slices and index tiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.scf import ForOp, IfOp, YieldOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from tessera.ir.text import check
from tessera.ir.tile import elementwise, memory, reduce, shape, structure
from tessera.ir.tile.types import TensorType, TileType, element_of, shape_of
from tessera.ir.types import dtype_of, element_type, i1, index
from tessera.numerics import dtypes

F32, BF16, I32 = (element_type(d) for d in (dtypes.f32, dtypes.bf16, dtypes.i32))
ELEMENTS = (F32, BF16, I32)
SHAPES = ((8,), (4, 8), (1, 8), (8, 1), (2, 3, 4))
VALUES = {F32: [0.0, -0.0, 1.0, -1.0, 0.5, 3.0], BF16: [0.0, -0.0, 1.0, 2.0], I32: [0, 1, -1, 7, 2**31 - 1]}
BINARY = {
    F32: ["add", "sub", "mul", "div", "maximum", "minimum"],
    BF16: ["add", "sub", "mul", "maximum"],
    I32: ["add", "sub", "mul", "and", "or", "xor", "maximum"],
}
UNARY = {F32: ["neg", "abs", "exp", "floor", "sqrt"], BF16: ["neg", "abs"], I32: ["neg", "not"]}

Draw = Callable[[Any], Any]


@dataclass
class Scope:
    """A block under construction and the values that can be used in it."""

    block: Block
    draw: Draw
    values: list[SSAValue] = field(default_factory=list)

    def add(self, op: Operation) -> SSAValue:
        self.block.add_op(op)
        self.values.append(op.results[0])
        return op.results[0]

    def pick(self, type_: Attribute) -> SSAValue:
        found = [value for value in self.values if value.type == type_]
        return self.draw(st.sampled_from(found)) if found else self.make(type_)

    def make(self, type_: Attribute) -> SSAValue:
        """Make a value of a type from a constant."""
        element = element_of(type_)
        number = self.draw(st.sampled_from([0, 1] if element in (i1, index) else VALUES[element]))
        scalar = self.add(elementwise.ConstantOp(number, element))
        return self.add(elementwise.SplatOp(scalar, shape_of(type_))) if isinstance(type_, TileType) else scalar

    def tile_type(self) -> TileType:
        return TileType.of(self.draw(st.sampled_from(SHAPES)), self.draw(st.sampled_from(ELEMENTS)))

    def inner(self, *arguments: Attribute) -> Scope:
        block = Block(arg_types=arguments)
        return Scope(block, self.draw, [*self.values, *block.args])


def arithmetic(scope: Scope) -> None:
    type_ = scope.draw(st.sampled_from([scope.tile_type(), *ELEMENTS]))
    fns = BINARY[element_of(type_)]
    scope.add(elementwise.ElementwiseOp(scope.draw(st.sampled_from(fns)), [scope.pick(type_), scope.pick(type_)]))


def unary(scope: Scope) -> None:
    type_ = scope.tile_type()
    scope.add(elementwise.ElementwiseOp(scope.draw(st.sampled_from(UNARY[type_.element])), [scope.pick(type_)]))


def select(scope: Scope) -> None:
    type_ = scope.tile_type()
    fn = scope.draw(st.sampled_from(["lt", "eq", "ge"]))
    flags = scope.add(elementwise.ElementwiseOp(fn, [scope.pick(type_), scope.pick(type_)]))
    condition = scope.draw(st.sampled_from([flags, scope.pick(flags.type), scope.make(flags.type)]))
    scope.add(elementwise.ElementwiseOp("select", [condition, scope.pick(type_), scope.pick(type_)]))


def cast(scope: Scope) -> None:
    value = scope.pick(scope.tile_type())
    for _ in range(scope.draw(st.integers(1, 2))):
        value = scope.add(elementwise.CastOp(value, scope.draw(st.sampled_from(ELEMENTS))))


def reshape(scope: Scope) -> None:
    value = scope.pick(scope.tile_type())
    same = [s for s in SHAPES if prod(s) == prod(shape_of(value.type))]
    scope.add(shape.ReshapeOp(value, scope.draw(st.sampled_from(same))))


def transpose(scope: Scope) -> None:
    value = scope.pick(scope.tile_type())
    scope.add(shape.TransposeOp(value, scope.draw(st.permutations(range(len(shape_of(value.type)))))))


def broadcast(scope: Scope) -> None:
    scope.add(shape.BroadcastOp(scope.pick(TileType.of([1, 8], scope.draw(st.sampled_from(ELEMENTS)))), [4, 8]))


def reduction(scope: Scope) -> None:
    value = scope.pick(scope.tile_type())
    axis = scope.draw(st.integers(0, len(shape_of(value.type)) - 1))
    scope.add(reduce.ReduceOp(value, axis, scope.draw(st.sampled_from(["sum", "max", "min"]))))


def branch(scope: Scope) -> None:
    type_ = scope.tile_type()
    regions = []
    for _ in range(2):
        inner = scope.inner()
        steps(inner, 2)
        inner.block.add_op(YieldOp(inner.pick(type_)))
        regions.append(Region(inner.block))
    condition = scope.draw(st.sampled_from([scope.pick(i1), scope.make(i1)]))
    scope.add(IfOp(condition, [type_], *regions))


def loop(scope: Scope) -> None:
    types = [scope.tile_type() for _ in range(scope.draw(st.integers(1, 2)))]
    initial = [scope.pick(type_) for type_ in types]
    bounds = [scope.add(elementwise.ConstantOp(n, index)) for n in (0, scope.draw(st.integers(0, 2)), 1)]
    inner = scope.inner(index, *types)
    steps(inner, 3)
    inner.block.add_op(YieldOp(*(inner.pick(type_) for type_ in types)))
    op = ForOp(*bounds, initial, inner.block)
    scope.add(op)
    scope.values.extend(op.results[1:])


LEAVES = (arithmetic, arithmetic, arithmetic, unary, select, cast, reshape, transpose, broadcast, reduction)


def steps(scope: Scope, count: int) -> None:
    for _ in range(scope.draw(st.integers(1, count))):
        scope.draw(st.sampled_from(LEAVES))(scope)


@dataclass(frozen=True)
class Program:
    """A kernel and arrays to run it on; the last ones are its outputs."""

    module: ModuleOp
    inputs: tuple[np.ndarray, ...]
    outputs: tuple[np.ndarray, ...]


@st.composite
def programs(draw: Draw) -> Program:
    """A kernel that reads a vector through a slice and an index tile, computes, and stores what it has last."""
    size = draw(st.sampled_from([5, 8, 20]))
    vector, n_type = TensorType.of([-1], F32), TensorType.of([size], F32)
    kernel = structure.KernelOp("random", [], [vector, n_type, I32])
    dynamic, static, scalar = kernel.body.block.args
    scope = Scope(kernel.body.block, draw, [scalar])
    extent = scope.add(structure.DimOp(draw(st.sampled_from([dynamic, static])), 0))
    offset = scope.add(elementwise.ConstantOp(draw(st.integers(0, 6)), index))
    scope.add(memory.LoadOp(dynamic, [offset], [8]))
    _indexed(scope, static, extent, offset)
    for _ in range(draw(st.integers(2, 6))):
        draw(st.sampled_from([*LEAVES, branch, loop]))(scope)
    kept = [value for value in scope.values if isinstance(value.type, TileType)][-4:]
    infos = [_info("x", vector), _info("y", n_type), structure.ArgInfo("s")]
    for number, value in enumerate(kept):
        type_ = TensorType.of(shape_of(value.type), element_of(value.type))
        kernel.body.block.insert_arg(type_, 3 + number)
        infos.append(_info(f"out{number}", type_, written=True))
        zero = scope.add(elementwise.ConstantOp(0, index))
        target = kernel.body.block.args[3 + number]
        kernel.body.block.add_op(memory.StoreOp(value, target, [zero] * type_.rank, type_.shape))
    kernel.body.block.add_op(structure.ReturnOp())
    kernel.properties["arg_info"] = structure.KernelOp("k", infos, []).arg_info
    module = ModuleOp([kernel])
    check(module)
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    inputs = (
        *(rng.standard_normal(size).astype(np.float32) for _ in range(2)),
        np.int32(draw(st.integers(-9, 9))),
    )
    return Program(module, inputs, tuple(_empty(value.type) for value in kept))


def _indexed(scope: Scope, tensor: SSAValue, extent: SSAValue, offset: SSAValue) -> None:
    """Read `tensor[offset + 0, 1, …]` where that is below `extent`."""
    tile = TileType.of([8], index)
    lanes = scope.add(elementwise.ArangeOp(8, index))
    start = scope.add(elementwise.SplatOp(offset, [8]))
    at = scope.add(elementwise.ElementwiseOp("add", scope.draw(st.permutations([lanes, start]))))
    assert at.type == tile
    mask = scope.add(elementwise.ElementwiseOp("lt", [at, scope.add(elementwise.SplatOp(extent, [8]))]))
    fill = scope.pick(F32) if scope.draw(st.booleans()) else None
    scope.add(memory.GatherOp(tensor, [at], mask=mask, fill=fill))


def _info(name: str, type_: TensorType, written: bool = False) -> structure.ArgInfo:
    ones = (1,) * type_.rank
    return structure.ArgInfo(name, ("?",) * type_.rank, 1, (-1,) * type_.rank, ones, ones, written)


def _empty(type_: Attribute) -> np.ndarray:
    dtype = dtype_of(element_of(type_)).numpy()
    return np.zeros(shape_of(type_), dtype)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays agree in every bit, but for what a NaN carries."""
    if a.dtype.kind in "biu":
        return np.array_equal(a, b)
    nan = np.isnan(a.astype(np.float32)), np.isnan(b.astype(np.float32))
    bits = f"u{a.dtype.itemsize}"
    return np.array_equal(nan[0], nan[1]) and np.array_equal(a.view(bits)[~nan[0]], b.view(bits)[~nan[1]])
