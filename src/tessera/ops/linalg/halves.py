"""Runs f32 products as three products of tf32.

One kernel stores both operands as sums of two numbers of tf32, one multiplies them, and one computes the product again
by multiply-adds where an operand holds what such sums do not: infinities, NaN, or numbers so large that sums of parts
overflow. It reads a flag for each tile of the operands and does nothing where none is set: nothing waits for the host.
"""

from __future__ import annotations

from math import prod
from typing import Any, cast

import tessera as ts
from tessera.driver.kernel import Kernel
from tessera.numerics import dtypes
from tessera.ops import arrays
from tessera.ops.epilogue.chain import Epilogue
from tessera.ops.linalg import halves_kernels, kernels
from tessera.ops.linalg.by_halves import FLAG_BYTES, flags_of, stored
from tessera.ops.linalg.packing import Copy
from tessera.ops.linalg.plan import Plan
from tessera.ops.linalg.problem import Problem
from tessera.ops.linalg.scratch import MOST_PLACES, TILE, Scratch, parameters_of
from tessera.ops.templates import annotated
from tessera.runtime.device import Device
from tessera.runtime.views import ArrayView, row_major

_BLOCK = TILE["BM"], TILE["BN"]
_storing: dict[Any, Kernel[..., Any]] = {}


def product_kernel(problem: Problem, schedule: Plan, chain: Epilogue) -> Kernel[..., Any]:
    """Return the kernel that multiplies halves.

    Args:
        problem: what it computes; sizes do not matter.
        schedule: blocks and knobs.
        chain: what is done to results.
    """
    template = halves_kernels.gemm_halves if problem.batch is None else halves_kernels.gemm_halves_batched
    rows, columns, terms, batch = kernels.M, kernels.N, kernels.K, kernels.B
    a = ts.Tensor[(*((batch,) if problem.a_batched else ()), rows, terms, ts.tf32)]
    b = ts.Tensor[(*((batch,) if problem.b_batched else ()), columns, terms, ts.tf32)]
    out = (rows, columns) if problem.batch is None else (batch, rows, columns)
    annotations = {
        "a": a,
        "a_low": a,
        "b": b,
        "b_low": b,
        "out": ts.Tensor[(*out, problem.out)],
        "epilogue": Epilogue[out],
    }
    space = {name: values for name, values in schedule.space().items() if name != "terms"}
    space |= {"a_batched": (problem.a_batched,), "b_batched": (problem.b_batched,)}
    function = annotated(template, annotations)
    made = Kernel[..., Any](function, tuple(space.items()), ("M", "N", "K"), {"epilogue": chain.layout})
    made.may_copy = False
    return made


def storing_kernel(left: Copy, right: Copy) -> Kernel[..., Any]:
    """Return the kernel that stores operands as halves: it takes both, the lines of each half, and flags.

    Args:
        left: how the left operand's halves lie; sizes do not matter.
        right: the same of the right one.
    """
    key = tuple((len(copy.shape), copy.axis) for copy in (left, right))
    found = _storing.get(key)
    if found is None:
        given = parameters_of((left, right))
        lines = {name: one for half, one in given.lines.items() for name in (half, f"{half}_low")}
        annotations = given.sources | lines | {"odd": ts.Tensor[kernels.FLAGS, ts.i32]}
        function = annotated(halves_kernels.halve, annotations)
        found = _storing[key] = Kernel[..., Any](function, tuple(given.space.items()))
    return found


class Halves(Scratch):
    """What computes one kind of product in halves.

    Args:
        problem: the product.
        again: computes it by multiply-adds where a flag is set; takes operands, flags and the other arguments.
        alone: computes it by multiply-adds, where there is no memory for halves.
        device: the GPU.
    """

    def __init__(self, problem: Problem, again: Kernel[..., Any], alone: Kernel[..., Any], device: Device) -> None:
        self._made = stored(problem)
        self._flags = sum(flags_of(copy, _BLOCK) for copy in self._made)
        super().__init__(2 * sum(copy.bytes for copy in self._made) + self._flags * FLAG_BYTES, device, alone)
        self._again = again
        self._store = storing_kernel(*self._made)
        self._places: dict[tuple[int, int, type[Any]], list[Any]] = {}

    def _run(
        self, kernel: Kernel[..., Any], a: Any, b: Any, rest: tuple[Any, ...], pointer: int, where: int, named: Any
    ) -> Any:
        *halves, flags = self._arrays(pointer, where, a)
        self._store(a, b, *halves, flags, **named)
        kernel(*halves, *rest, **named)
        return self._again(a, b, flags, *rest, **named)

    def _arrays(self, pointer: int, stream: int, like: Any) -> list[Any]:
        """Return the halves of each operand and the flags, in arrays of the library of `like`."""
        key = (pointer, stream, cast("type[Any]", type(like)))
        found = self._places.get(key)
        if found is None:
            shapes = [(copy.lines, dtypes.f32) for copy in self._made for _half in range(2)]
            found = list[Any]()
            for shape, dtype in (*shapes, ((self._flags,), dtypes.i32)):
                view = ArrayView(shape, row_major(shape), dtype, self._device, readonly=False)
                found.append(arrays.over_scratch(like, pointer, view, stream, self._memory))
                pointer += prod(shape) * dtype.bytes
            if len(self._places) >= MOST_PLACES:
                self._places.clear()
            self._places[key] = found
        return found
