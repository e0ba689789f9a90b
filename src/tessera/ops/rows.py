"""Arrays as rows: what is computed along trailing dimensions, or along one dimension, as one matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from operator import index
from typing import Any, cast

import numpy as np

from tessera.errors import CallError, caller_location
from tessera.numerics.dtypes import DType, f32, f64
from tessera.ops import arrays
from tessera.ops.steps import check_no_gradient, check_not_traced
from tessera.ops.traced import Traced
from tessera.runtime.platforms import platform_of
from tessera.target.records import TargetRecord

FLOATS = ("f64", "f32", "bf16", "f16")
_PROGRAMS_OF_CPUS = 64
"""Fixed, so that results do not depend on the number of threads."""
_LEAST_ELEMENTS = 4096
"""Fewer for a program of a sum over rows, and its own sums cost more than what it adds up."""


def float_dtype(array: Any, name: str) -> DType:
    """Return the dtype of an argument that has to be of floating point numbers.

    Raises:
        CallError: `not-an-array` or `wrong-dtype`.
    """
    found = arrays.dtype_of(array, name)
    if found.name not in FLOATS:
        raise CallError(
            f"argument {name!r} has the dtype {found}",
            code="wrong-dtype",
            location=caller_location(),
            help=f"it takes {', '.join(FLOATS)}",
        )
    return found


def accumulator(dtype: DType) -> DType:
    """Return the dtype that rows of a dtype are computed in: f64 for f64, else f32."""
    return f64 if dtype.name == "f64" else f32


def trailing(shape: Sequence[Any], normalized_shape: int | Sequence[int], name: str = "input") -> tuple[int, ...]:
    """Return the trailing dimensions that a norm goes over.

    Raises:
        CallError: `wrong-shape` where the array's trailing dimensions are others.
    """
    given = normalized_shape if isinstance(normalized_shape, Sequence) else (normalized_shape,)
    sizes = tuple(one if hasattr(one, "__index__") else index(one) for one in given)
    if not sizes or tuple(shape[-len(sizes) :]) != sizes:
        raise CallError(
            f"argument {name!r} has the shape {tuple(shape)}, normalized_shape is {sizes}",
            code="wrong-shape",
            location=caller_location(),
            help="normalized_shape is the sizes of the last dimensions",
        )
    return sizes


def check_rank(array: Any, name: str, rank: int) -> None:
    """Check how many dimensions an argument has.

    Raises:
        CallError: `not-an-array` or `wrong-rank`.
    """
    shape = tuple(arrays.shape_of(array, name))
    if len(shape) != rank:
        raise CallError(
            f"{name} has the shape {shape}",
            code="wrong-rank",
            location=caller_location(),
            help=f"it has {rank} dimensions",
        )


def same_shape(array: Any, name: str, wanted: Sequence[Any]) -> None:
    """Check the shape of an argument.

    Raises:
        CallError: `not-an-array` or `wrong-shape`.
    """
    found = arrays.shape_of(array, name)
    if tuple(found) != tuple(wanted):
        raise CallError(
            f"argument {name!r} has the shape {tuple(found)}, not {tuple(wanted)}",
            code="wrong-shape",
            location=caller_location(),
            help=f"give an array of the shape {tuple(wanted)}",
        )


def same_dtype(array: Any, name: str, other: Any, of: str) -> None:
    """Check that an argument has the dtype of another one.

    Raises:
        CallError: `not-an-array` or `wrong-dtype`.
    """
    found, wanted = arrays.dtype_of(array, name), arrays.dtype_of(other, of)
    if found.name != wanted.name:
        raise CallError(
            f"{of} has the dtype {wanted}, {name} {found}",
            code="wrong-dtype",
            location=caller_location(),
            help="convert one of them",
        )


def check_vectors(vectors: Mapping[str, Any], sizes: Sequence[int]) -> None:
    """Check what there is one number of for each element of a row: None, or arrays of one dtype.

    Raises:
        CallError: `not-an-array`, `wrong-shape` or `wrong-dtype`.
    """
    first = ""
    for name, array in vectors.items():
        if array is None:
            continue
        same_shape(array, name, sizes)
        dtype = float_dtype(array, name)
        if first and dtype != arrays.dtype_of(vectors[first]):
            raise CallError(
                f"{first!r} has the dtype {arrays.dtype_of(vectors[first])}, {name!r} {dtype}",
                code="wrong-dtype",
                location=caller_location(),
                help="convert one of them",
            )
        first = name


def matrix(array: Any, rows: Any, width: Any) -> Any:
    """Return an array as rows of a width, copied where no strides give them; None stays None."""
    if array is None or (len(array.shape) == 2 and array.shape[1] == width):
        return array
    return array.reshape(rows, width)


def in_rows(array: Any) -> Any:
    """Return an array whose rows' elements follow one another; those of devices have them so."""
    if arrays.is_torch(array):
        return array if not array.ndim or array.stride(-1) == 1 else array.contiguous()
    if not isinstance(array, np.ndarray):
        return array
    given = cast(Any, array)
    return given if not given.ndim or given.strides[-1] == given.itemsize else np.ascontiguousarray(given)


def contiguous(array: Any) -> Any:
    """Return an array whose elements follow one another: a copy where they do not."""
    if arrays.is_torch(array):
        return array.contiguous()
    if isinstance(array, Traced):
        return array.copied()
    return np.ascontiguousarray(cast("Any", array)) if isinstance(array, np.ndarray) else array


def vector(array: Any) -> Any:
    """Return an array as one dimension; None stays None."""
    return array if array is None or len(array.shape) == 1 else array.reshape(-1)


def checked_out(out: Any, shape: Sequence[Any], dtype: DType, *inputs: Any) -> None:
    """Check an array for a result.

    Args:
        out: the array.
        shape: shape of the result.
        dtype: dtype of the result.
        inputs: what PyTorch must not ask gradients of.

    Raises:
        CallError: `not-an-array`, `wrong-shape`, `wrong-dtype` or `out-needs-no-gradient`.
    """
    check_no_gradient((*inputs, out))
    check_not_traced(out, *inputs)
    same_shape(out, "out", shape)
    if arrays.dtype_of(out, "out") != dtype:
        raise CallError(
            f"argument 'out' has the dtype {arrays.dtype_of(out, 'out')}, the result is {dtype}",
            code="wrong-dtype",
            location=caller_location(),
            help="make out of that dtype, or leave it out",
        )
    for array in inputs:
        if array is not None:
            _check_place(out, array)


def _check_place(out: Any, array: Any) -> None:
    """Check that a result which begins where an input does has its elements at the same places.

    Raises:
        CallError: `overlapping-arguments`.
    """
    if not 0 < prod(arrays.shape_of(out, "out")) or arrays.start(out, "out") != arrays.start(array, "an input"):
        return
    one, other = arrays.view(out, "out"), arrays.view(array, "an input")
    if (one.shape, one.strides) != (other.shape, other.strides):
        raise CallError(
            "out lies over an input, in another order",
            code="overlapping-arguments",
            location=caller_location(),
            help="give another array, or leave `out` away",
        )


def check_two(first: Any, second: Any) -> None:
    """Check that two results do not lie at one place.

    Raises:
        CallError: `overlapping-arguments`.
    """
    if first is not None and second is not None and 0 not in arrays.shape_of(first, "out"):
        if arrays.start(first, "out") == arrays.start(second, "out"):
            raise CallError(
                "both results are one array",
                code="overlapping-arguments",
                location=caller_location(),
                help="give two arrays",
            )


def apart(out: Any, **inputs: Any) -> None:
    """Check that a result does not lie where an input does, whose elements are read after others are written.

    Raises:
        CallError: `bad-argument`.
    """
    for name, array in inputs.items():
        if arrays.start(out, "out") == arrays.start(array, name) and 0 not in arrays.shape_of(out, "out"):
            raise CallError(
                f"out is {name}",
                code="bad-argument",
                location=caller_location(),
                help="give another array, or leave `out` away",
            )


def out_rows(out: Any, trailing_dims: int) -> Any:
    """Return an array for a result as rows over its last dimensions, None where no strides give them."""
    found = arrays.view(out, "out")
    split = len(found.shape) - trailing_dims
    halves = (slice(None, split), slice(split, None))
    if not all(is_one(found.shape[half], found.strides[half]) for half in halves):
        return None
    return matrix(out, prod(found.shape[:split]), prod(found.shape[split:]))


def is_one(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether dimensions are one by their strides."""
    kept = [(extent, stride) for extent, stride in zip(shape, strides, strict=True) if extent != 1]
    return all(outer[1] == inner[0] * inner[1] for outer, inner in pairwise(kept)) or 0 in shape


def together(width: int) -> int:
    """Return how many rows of a width a program computes at a time where it sums over rows: a power of two."""
    padded = 1 << max(width - 1, 0).bit_length()
    return max(1, min(4096 // padded, max(8, 2048 // padded), 64))


def record_of(array: Any) -> TargetRecord:
    """Return the record of an array's device."""
    device = arrays.view(array, "an array").device
    return platform_of(device).device_target(device)


def most_programs(array: Any, of_unit: int) -> int:
    """Return the most programs that share out a sum on an array's device, `of_unit` of each multiprocessor of a GPU."""
    record = record_of(array)
    return of_unit * record.machine.units if record.simt else _PROGRAMS_OF_CPUS


def is_simt(array: Any) -> bool:
    """Return whether an array's device computes by threads."""
    return bool(record_of(array).simt)


def share(rows: int, width: int, array: Any, of_unit: int, together: int) -> int:
    """Return how many rows a program has where a sum over rows is shared out; it depends on sizes and machine alone.

    Args:
        rows: how many there are.
        width: elements of one.
        array: on the device.
        of_unit: programs of each multiprocessor of a GPU.
        together: what the number is a multiple of.
    """
    most = min(most_programs(array, of_unit), rows, rows * width // _LEAST_ELEMENTS)
    return -(-rows // (max(1, most) * together)) * together
