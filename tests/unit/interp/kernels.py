"""Small kernels for the interpreter's tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from tessera.interp import interpret
from tessera.ir.text import check
from tessera.ir.tile import memory, structure
from tessera.ir.tile.types import TensorType, TileType, element_of
from tessera.ir.types import element_type
from tessera.numerics.dtypes import from_numpy
from tests.unit.ir.samples import At

Build = Callable[..., Any]


def tensor_kernel(types: Sequence[TensorType | Any], build: Build, written: Sequence[int] = ()) -> ModuleOp:
    """A kernel of parameters p0, p1, … whose body `build(at, *parameters)` makes."""
    infos = []
    for position, type_ in enumerate(types):
        rank = type_.rank if isinstance(type_, TensorType) else 0
        dims = tuple("?" if size < 0 else str(size) for size in type_.shape) if rank else ()
        ones = (1,) * rank
        infos.append(structure.ArgInfo(f"p{position}", dims, 1, (-1,) * rank, ones, ones, position in written))
    kernel = structure.KernelOp("k", infos, list(types))
    at = At(kernel.body.block)
    returned = build(at, *kernel.body.block.args)
    at.do(structure.ReturnOp(returned or ()))
    module = ModuleOp([kernel])
    check(module)
    return module


def tensor_of(array: np.ndarray) -> TensorType:
    dtype = from_numpy(array.dtype)
    assert dtype is not None
    return TensorType.of(array.shape, element_type(dtype))


def evaluate(build: Build, *inputs: np.ndarray) -> Any:
    """Return the tile (or scalar) that `build(at, *tiles)` makes of whole arrays."""
    results: list[SSAValue] = []

    def body(at: At, *parameters: SSAValue) -> Sequence[SSAValue]:
        zero = at.const(0)
        tiles = []
        for parameter, array in zip(parameters, inputs, strict=True):
            tiles.append(at(memory.LoadOp(parameter, [zero] * array.ndim, array.shape)))
        results.append(build(at, *tiles))
        return ()

    # The result's type is known once the body is built, so the output joins in a second kernel.
    tensor_kernel([tensor_of(a) for a in inputs], body)
    type_ = results[-1].type
    shape = type_.shape if isinstance(type_, TileType) else (1,)
    out_type = TensorType.of(shape, element_of(type_))

    def body_with_store(at: At, *parameters: SSAValue) -> Sequence[SSAValue]:
        body(at, *parameters[:-1])
        drop = [] if isinstance(type_, TileType) else [0]
        zero = at.const(0)
        at.do(memory.StoreOp(results[-1], parameters[-1], [zero] * len(shape), shape, drop))
        return ()

    module = tensor_kernel([*(tensor_of(a) for a in inputs), out_type], body_with_store, [len(inputs)])
    out = np.zeros(shape, out_type.dtype.numpy())
    interpret(module, [*inputs, out])
    return out if isinstance(type_, TileType) else out[0]
