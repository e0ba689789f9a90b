"""What ops ask of the arrays they are given, and results in the same library's arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from math import prod
from operator import methodcaller
from typing import Any, cast

import numpy as np

from tessera.errors import CallError, LanguageError, caller_location, shown
from tessera.numerics.dtypes import BY_NAME, DType, u8
from tessera.ops.traced import Traced
from tessera.runtime import empty, recording, to_numpy
from tessera.runtime.platforms import StreamMemory
from tessera.runtime.readers import READERS, array_help, reader_of, view_of
from tessera.runtime.shortage import out_of_memory
from tessera.runtime.views import ArrayView, Reader

_TORCH_NAMES = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "bool": "bool",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}
_BY_TORCH_NAME = {f"torch.{theirs}": BY_NAME[ours] for ours, theirs in _TORCH_NAMES.items()}

Maker = Callable[[Any], Any]
"""Makes an unset array beside another one: same library, same device."""


def reader(array: Any, name: str) -> Reader:
    """Return how an argument is read.

    Raises:
        CallError: `not-an-array`.
        LanguageError: `not-traceable` for one of a traced function, which has no memory yet.
    """
    kind = cast("type[Any]", type(array))
    found = READERS.get(kind) or reader_of(kind)
    if found is None and isinstance(array, Traced):
        raise LanguageError(
            "this call reads memory, and arrays of a traced function have none yet",
            code="not-traceable",
            location=caller_location(),
            help="call it outside of ts.jit; docs/graphs.md says which ops of the library are traced",
        )
    if found is None:
        raise CallError(
            f"argument {name!r} is {shown(array)} ({kind.__name__}), which is not an array",
            code="not-an-array",
            location=caller_location(),
            help=array_help(),
        )
    return found


def view(array: Any, name: str) -> ArrayView:
    """Return what an array argument is.

    Raises:
        CallError: `not-an-array`, or what is wrong with it.
    """
    reader(array, name)
    try:
        return view_of(array)[1]
    except CallError as error:
        raise CallError(f"argument {name!r}: {error.message}", code=error.code, help=error.help) from error


def start(array: Any, name: str) -> int:
    """Return the address of an array's first element.

    Raises:
        CallError: `not-an-array`, or what is wrong with it.
    """
    return reader(array, name).read(array)[0]


def starter(like: Any) -> Callable[[Any], int]:
    """Return what gives the addresses of arrays such as one."""
    if is_torch(like):
        return methodcaller("data_ptr")
    return lambda array: reader(array, "an array").read(array)[0]


def shape_of(array: Any, name: str) -> tuple[Any, ...]:
    """Return the shape of an argument, without looking at its memory: a traced tensor has none.

    Raises:
        CallError: `not-an-array`.
    """
    if is_torch(array) or isinstance(array, Traced):
        return tuple(array.shape)
    return view(array, name).shape


def dtype_of(array: Any, name: str = "an array") -> DType:
    """Return the dtype of an argument, without looking at its memory.

    Raises:
        CallError: `not-an-array`, or `wrong-dtype` for one that Tessera has not.
    """
    if isinstance(array, Traced):
        return array.element
    if not is_torch(array):
        return view(array, name).dtype
    found = by_torch_name(str(array.dtype))
    if found is None:
        raise CallError(
            f"argument {name!r} has the dtype {array.dtype}",
            code="wrong-dtype",
            help="convert it to a dtype that Tessera has, such as float32",
        )
    return found


def by_torch_name(name: str) -> DType | None:
    """Return the dtype that PyTorch calls by a name such as `torch.float32`."""
    return _BY_TORCH_NAME.get(name)


def is_array(value: Any) -> bool:
    """Return whether a value is an array of any library; NumPy's scalars are numbers."""
    if isinstance(value, np.generic | type):
        return False
    kind = cast("type[Any]", type(value))
    return kind in READERS or issubclass(kind, np.ndarray) or is_torch(value) or hasattr(kind, "__dlpack__")


def is_torch(array: Any) -> bool:
    """Return whether an array is a PyTorch tensor; PyTorch is never imported for the question."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def axis_moved(array: Any, source: int, target: int) -> Any:
    """Return an array with one dimension in another place, and the others in order."""
    return array.movedim(source, target) if is_torch(array) else np.moveaxis(array, source, target)


def maker(like: Any, shape: tuple[int, ...], dtype: DType) -> Maker:
    """Return what makes an unset array of a shape and dtype, in the library and on the device of `like`.

    It raises ResourceError, `out-of-memory` (as does `empty` on a GPU, a DeviceError).
    """
    if isinstance(like, np.ndarray):
        return _numpy_maker(shape, dtype.numpy())
    if is_torch(like):
        return _torch_maker(shape, torch_dtypes()[dtype.name])
    device = view_of(like)[1].device
    return lambda _like: empty(shape, dtype, device)


def _numpy_maker(shape: tuple[int, ...], kind: Any) -> Maker:
    def make(_like: Any) -> Any:
        try:
            made = np.empty(shape, kind)
        except (MemoryError, ValueError) as error:
            if isinstance(error, ValueError) and not _says(error, "too big", "maximum allowed"):
                raise
            raise out_of_memory(shape) from error
        _note(made)
        return made

    return make


def _note(made: Any) -> None:
    """Note a new array where work is recorded."""
    recorder = recording.current()
    if recorder is not None:
        recorder.take(start(made, "a new array"), made.nbytes, made)


def _torch_maker(shape: tuple[int, ...], kind: Any) -> Maker:
    return lambda tensor: unset_tensor(tensor, shape, kind)


def unset_tensor(tensor: Any, shape: tuple[Any, ...], kind: Any) -> Any:
    """Return an unset tensor beside another one.

    Raises:
        ResourceError: `out-of-memory`.
    """
    try:
        made = tensor.new_empty(shape, dtype=kind)
    except RuntimeError as error:
        refuse_memory(error, shape)
        raise
    _note(made)
    return made


def refuse_memory(error: RuntimeError, shape: tuple[Any, ...]) -> None:
    """Say that there is no memory for a tensor, if that is what an error says: on a GPU it may be of a kernel before.

    Raises:
        ResourceError: `out-of-memory`.
    """
    if _says(error, "out of memory", "not enough memory", "can't allocate memory", "overflow"):
        raise out_of_memory(shape) from error


def _says(error: Exception, *words: str) -> bool:
    """Return whether a library means more bytes than there are: it has one error for much else."""
    return any(each in str(error).lower() for each in words)


def over_scratch(like: Any, pointer: int, view: ArrayView, stream: int, memory: StreamMemory) -> Any:
    """Return an array over GPU memory that is used on one stream only: a tensor beside a tensor, else one of our own.

    Args:
        like: an array.
        pointer: address of the first element.
        view: what lies there.
        stream: the stream.
        memory: the platform's.
    """
    if not is_torch(like):
        return memory.over_scratch(pointer, view, stream)
    # DLPack lacks dtypes that PyTorch has: bytes are passed. -1: no stream has to wait for another.
    size = (1 + sum((n - 1) * step for n, step in zip(view.shape, view.strides, strict=True))) * view.dtype.bytes
    held = memory.over_scratch(pointer, ArrayView((size,), (1,), u8, view.device, readonly=False), stream)
    torch: Any = sys.modules["torch"]
    return (
        torch.from_dlpack(held.__dlpack__(stream=-1))
        .view(torch_dtypes()[view.dtype.name])
        .as_strided(view.shape, view.strides)
    )


def zero(array: Any) -> None:
    """Set an array that `maker` made to zero."""
    recorder = recording.current()
    if recorder is not None:
        recorder.refuse("an array is set without a launch")
    if is_torch(array):
        array.zero_()
    else:
        array.fill(0)


def copied(array: Any) -> Any:
    """Return an array of its own with the same elements, which follow one another."""
    if is_torch(array):
        return array.clone(memory_format=sys.modules["torch"].contiguous_format)
    return np.array(cast(Any, array), order="C") if isinstance(array, np.ndarray) else array.copy()


@cache
def torch_dtypes() -> dict[str, Any]:
    """Return PyTorch's dtypes by Tessera's names."""
    torch = sys.modules["torch"]
    return {ours: getattr(torch, theirs) for ours, theirs in _TORCH_NAMES.items() if hasattr(torch, theirs)}


def host(array: Any) -> Any:
    """Return numbers as a float64 NumPy array, for references and sizes that depend on elements."""
    recorder = recording.current()
    if recorder is not None:
        recorder.refuse("elements are read")
    if is_torch(array) and array.dtype in (torch_dtypes().get("bf16"), *_small(array)):
        return array.detach().to("cpu", torch_dtypes()["f32"]).numpy().astype(np.float64)
    source: Any = cast(Any, array) if isinstance(array, int | float | list) else to_numpy(array)
    return np.asarray(source).astype(np.float64)


def _small(_array: Any) -> list[Any]:
    return [torch_dtypes()[name] for name in ("fp8_e4m3", "fp8_e5m2") if name in torch_dtypes()]


def nbytes(array: Any, name: str) -> int:
    """Return the bytes an array's elements take."""
    found = view(array, name)
    return prod(found.shape) * found.dtype.bytes
