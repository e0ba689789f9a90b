"""The interpreter: executes the IRs on NumPy, with checks; the oracle of all tests.

One file per op family; a file registers its handlers by `machine.handles`, and `interpret` loads every file.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Collection, Sequence
from functools import cache
from numbers import Number
from typing import Any, TextIO, cast

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from tessera.errors import CallError, VerifyError
from tessera.interp.elementwise import scalar
from tessera.interp.machine import HANDLERS, Machine
from tessera.interp.values import Array, Tensor, dtype_at
from tessera.ir.tile.structure import ArgInfo, KernelOp
from tessera.ir.tile.types import DYNAMIC, TensorType, describe
from tessera.numerics.dtypes import from_numpy
from tessera.runtime.arguments import check_overlap

__all__ = ["HANDLERS", "interpret", "load_handlers"]


@cache
def load_handlers() -> None:
    """Import every file; not when this package is imported, as the compiler folds constants with parts of it."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")


def interpret(
    module: ModuleOp,
    args: Sequence[Any],
    *,
    checks: bool = True,
    uninitialized: Collection[str] = (),
    order_seed: int | None = None,
    programs: int = 4,
    out: TextIO | None = None,
) -> list[Any]:
    """Run the kernel of a TIR-H module on NumPy arrays.

    Args:
        module: a module that holds one `tessera_tile.kernel`.
        args: one NumPy array (any strides) per tensor parameter and one number per scalar parameter. Arrays
            that the kernel stores to are changed in place.
        checks: report uninitialised reads, stages that do not exist and races. Without it, reads give whatever is
            there.
        uninitialized: names of tensor parameters whose contents do not count as written.
        order_seed: shuffles the order of a grid's programs, their turns where they wait for each other, how the roles
            of a program interleave at their barriers, and the order in which copies arrive, to expose results that
            depend on it.
        programs: how many programs a launch starts that shares out the steps of its tiles (`stream_k`).
        out: where device prints go, standard output by default.

    Returns:
        The arrays that the kernel returns, the caller's own objects.

    Raises:
        CallError: arguments that do not fit the kernel; `overlapping-arguments` for arrays of which it stores to one
            and that share elements without starting at one address.
        DeviceError: what a check found: `out-of-bounds`, `uninitialized-read`, `race`,
            `assertion-failed`, `deadlock`.
        VerifyError: the module holds no kernel.
    """
    load_handlers()
    kernel = _only_kernel(module)
    order = None if order_seed is None else np.random.default_rng(order_seed)
    given_out, profile = sys.stdout if out is None else out, kernel.profile.data
    machine = Machine(kernel.sym_name.data, checks, given_out, order, programs, profile)
    values = _bind(kernel, args, uninitialized)
    with np.errstate(all="ignore"):
        machine.run(kernel.body.block, values)
    given = {id(value): arg for value, arg in zip(values, args, strict=True)}
    return [given[id(tensor)] for tensor in machine.returned]


def _only_kernel(module: ModuleOp) -> KernelOp:
    kernels = [op for op in module.ops if isinstance(op, KernelOp)]
    if len(kernels) != 1:
        raise VerifyError(f"the module holds {len(kernels)} kernels, the interpreter runs one")
    return kernels[0]


def _bind(kernel: KernelOp, args: Sequence[Any], uninitialized: Collection[str]) -> list[Any]:
    parameters = kernel.body.block.args
    if len(args) != len(parameters):
        raise CallError(
            f"{kernel.sym_name.data} takes {len(parameters)} arguments, got {len(args)}",
            help="pass one value for each, in order",
        )
    values: list[Any] = []
    tensors: list[Tensor] = []
    written: list[bool] = []
    for arg, parameter, info in zip(args, parameters, kernel.infos, strict=True):
        if isinstance(parameter.type, TensorType):
            tensors.append(_bind_tensor(arg, parameter.type, info, info.name in uninitialized))
            written.append(info.written)
            values.append(tensors[-1])
        elif isinstance(arg, Number | np.generic):
            dtype = dtype_at(parameter.type)
            values.append(scalar(float(arg) if dtype.is_float else int(arg), dtype))  # pyright: ignore
        else:
            raise CallError(
                f"argument {info.name} is a scalar {describe(parameter.type)}, got {type(arg).__name__}",
                help="pass a number",
            )
    check_overlap([tensor.name for tensor in tensors], [tensor.array for tensor in tensors], written)
    return values


def _bind_tensor(array: Any, type_: TensorType, info: ArgInfo, undefined: bool) -> Tensor:
    if not isinstance(array, np.ndarray):
        raise CallError(f"argument {info.name} is an array, got {type(array).__name__}", help="pass a NumPy array")
    array = cast("Array", array)
    if array.dtype != type_.dtype.numpy():
        found = from_numpy(array.dtype) or array.dtype
        raise CallError(
            f"argument {info.name} has dtype {type_.dtype}, got {found}",
            code="dtype-mismatch",
            help=f"convert it: ts.asarray(x, {type_.dtype})",
        )
    shape: tuple[int, ...] = array.shape
    sizes = zip(shape, type_.shape, strict=False)
    if len(shape) != type_.rank or any(wanted not in (DYNAMIC, size) for size, wanted in sizes):
        raise CallError(
            f"argument {info.name} is {describe(type_)}, got shape {shape}",
            code="shape-mismatch",
            help="pass an array of that shape",
        )
    if info.written and not array.flags.writeable:
        raise CallError(
            f"argument {info.name} is stored to, but the array is read-only", code="read-only", help="pass a copy"
        )
    return Tensor(info.name, array, np.zeros(shape, np.bool_) if undefined else None)
