"""Device arrays: stream-ordered GPU memory with a shape and a dtype."""

from __future__ import annotations

import ctypes
import struct
import weakref
from collections.abc import Sequence
from math import prod
from operator import index
from typing import Any

import numpy as np

from tessera.entry import layout
from tessera.entry.exchange import description_at
from tessera.entry.tables import ArrayGuard, NotDirect
from tessera.errors import CallError, DeviceError
from tessera.numerics.dtypes import DType
from tessera.runtime import cuda, dlpack
from tessera.runtime.device import Device
from tessera.runtime.readers import READERS
from tessera.runtime.views import ArrayView, Reader, Traits, row_major

_DL_TENSOR = struct.Struct("<QiiiBBHQQQ")


class _Memory:
    """One allocation, its owner stream, and the other streams that have used it.

    Memory of another library (`owner` set) is only kept alive.
    """

    def __init__(self, device: cuda.CudaDevice, size: int, stream: int, pointer: int = 0, owner: object = None) -> None:
        self.device = device
        self.stream = stream
        self.users: set[int] = set()
        self.owner = owner
        self.pointer = pointer
        if owner is None and size:
            self.pointer = cuda.allocate(device, size, stream)
            weakref.finalize(self, _free, device, self.pointer, stream, self.users).atexit = False

    def used_on(self, stream: int) -> None:
        """Order a first use on another stream after what the owner stream holds, and note it for `_free`."""
        if stream != self.stream and stream not in self.users:
            cuda.order_after(self.device, stream, self.stream)
            self.users.add(stream)


def _free(device: cuda.CudaDevice, pointer: int, stream: int, users: set[int]) -> None:
    for user in users:
        cuda.order_after(device, stream, user)
    cuda.free(device, pointer, stream)


class DeviceArray:
    """An array on a GPU. Made by `ts.empty` and its kin; passes to PyTorch, CuPy and JAX without a copy.

    Args:
        shape: size of each dimension.
        dtype: element type.
        device: the GPU.
        stream: stream that allocates and frees the memory; 0 is the default stream.
    """

    __slots__ = ("__dict__", "__weakref__", "description")

    def __init__(self, shape: tuple[int, ...], dtype: DType, device: Device, stream: int = 0) -> None:
        self.view = ArrayView(shape, row_major(shape), dtype.storage, device, readonly=False)
        self._memory = _Memory(cuda.cuda_device(device.index), self.nbytes, stream)
        self.pointer = self._memory.pointer
        self._describe()

    @classmethod
    def borrow(cls, pointer: int, view: ArrayView, owner: object, stream: int = 0) -> DeviceArray:
        """Return an array over memory that `owner` keeps alive, or whoever made it where there is no owner.

        Args:
            pointer: address of the first element.
            view: what lies there.
            owner: what keeps the memory.
            stream: the stream that it is used on.
        """
        array = cls.__new__(cls)
        array.view = view
        array._memory = _Memory(cuda.cuda_device(view.device.index), 0, stream, pointer, owner)
        array.pointer = pointer
        array._describe()
        return array

    def _describe(self) -> None:
        """Set `description`, the `DLTensor` that the compiled entry reads; none off the default stream."""
        shape, strides = self.view.shape, self.view.strides
        rank = len(shape)
        self._extents = (ctypes.c_int64 * (2 * rank))(*shape, *strides)
        start = ctypes.addressof(self._extents)
        kind = dlpack.type_code(self.view.dtype)
        self.description: bytes | None = None
        if kind is not None and self._memory.stream == 0 and not self.view.readonly:
            self.description = _DL_TENSOR.pack(
                self.pointer, *dlpack.device_pair(self.device), rank, *kind, 1, start, start + 8 * rank, 0
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Size of each dimension."""
        return self.view.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """Step of each dimension, in elements."""
        return self.view.strides

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.view.dtype

    @property
    def device(self) -> Device:
        """The GPU it is on."""
        return self.view.device

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.view.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        total = 1
        for size in self.view.shape:
            total *= size
        return total

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.dtype.bytes

    def reshape(self, *shape: int | Sequence[int]) -> DeviceArray:
        """Return the same elements in other dimensions, without a copy.

        Args:
            shape: the sizes, one of which may be -1: what the others leave.

        Raises:
            CallError: `not-contiguous`, or `wrong-shape` where the sizes do not hold as many elements.
        """
        self._must_be_contiguous()
        sizes = [index(size) for one in shape for size in (one if isinstance(one, Sequence) else (one,))]
        known = prod(size for size in sizes if size != -1)
        if sizes.count(-1) == 1 and known > 0 and self.size % known == 0:
            sizes[sizes.index(-1)] = self.size // known
        if any(size < 0 for size in sizes) or prod(sizes) != self.size:
            raise CallError(
                f"an array of shape {self.shape} has no shape {tuple(sizes)}",
                code="wrong-shape",
                help=f"it has {self.size} elements",
            )
        array = DeviceArray.__new__(DeviceArray)
        wanted = tuple(sizes)
        array.view = ArrayView(wanted, row_major(wanted), self.dtype, self.device, readonly=self.view.readonly)
        array._memory, array.pointer = self._memory, self.pointer  # the memory knows the streams of both
        array._describe()
        return array

    def used_on(self, stream: int) -> None:
        """Tell the array that work using it was or will be queued on a stream of another library."""
        self._memory.used_on(stream)

    def copy_from(self, source: Any) -> None:
        """Copy a host array of the same shape and dtype into this one.

        Raises:
            CallError: `wrong-shape` or `wrong-dtype`.
        """
        host = np.ascontiguousarray(source)
        if host.shape != self.shape:
            raise CallError(
                f"an array of shape {host.shape} does not fill {self.shape}",
                code="wrong-shape",
                help="reshape it",
            )
        if host.dtype != self.dtype.numpy():
            raise CallError(
                f"an array of {host.dtype} does not fill {self.dtype}",
                code="wrong-dtype",
                help="convert it first",
            )
        self._must_be_contiguous()
        if self.nbytes:
            cuda.copy_to_device(self._memory.device, self.pointer, host.ctypes.data, self.nbytes, self._memory.stream)

    def numpy(self) -> Any:
        """Return a copy on the host, after all work queued on the array's own stream and its users."""
        for user in self._memory.users:
            cuda.wait_for_stream(user)
        return host_copy(self.pointer, self.view, self._memory.stream)

    def fill(self, value: float) -> DeviceArray:
        """Set every element to `value`; returns the array."""
        self._must_be_contiguous()
        bits = np.array(value).astype(self.dtype.numpy()).tobytes()
        if self.size:
            _fill(self._memory.device, self.pointer, bits, self.size, self._memory.stream)
        return self

    def _must_be_contiguous(self) -> None:
        if self.view.strides != row_major(self.view.shape):
            raise CallError(
                f"an array with strides {self.view.strides} is not contiguous",
                code="not-contiguous",
                help="use a contiguous array",
            )

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.device_pair(self.device)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return a DLPack capsule; the consumer's `stream` waits for what this array's stream holds."""
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError("a Tessera device array is exported in place only")
        if stream != -1:  # -1: the consumer orders the work itself
            self._memory.used_on({None: 0, 1: 0}.get(stream, stream or 0))
        versioned = max_version is not None and max_version[0] >= 1
        return dlpack.make_capsule(self, self.pointer, self.shape, self.strides, self.dtype, self.device, versioned)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The array under Numba's protocol, version 3."""
        step = self.dtype.bytes
        return {
            "shape": self.shape,
            "strides": tuple(stride * step for stride in self.strides),
            "typestr": np.dtype(self.dtype.numpy()).str,
            "data": (self.pointer, False),
            "version": 3,
            "stream": self._memory.stream or 1,
        }

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype}, device={self.device})"


def _fill(device: cuda.CudaDevice, pointer: int, bits: bytes, count: int, stream: int) -> None:
    with cuda.active(device) as cu:
        queue = cuda.stream_object(stream)
        word = int.from_bytes(bits, "little")
        if len(bits) == 8:  # the driver has no 64-bit memset: two interleaved columns of 32 bits
            for half, offset in ((word & 0xFFFFFFFF, 0), (word >> 32, 4)):
                cuda.check(cu.cuMemsetD2D32Async(pointer + offset, 8, half, 1, count, queue))
            return
        memset = {1: cu.cuMemsetD8Async, 2: cu.cuMemsetD16Async, 4: cu.cuMemsetD32Async}[len(bits)]
        cuda.check(memset(pointer, word, count, queue))


def description_offset(array: DeviceArray) -> int:
    """Return where device arrays point at their description; needs CPython, and one array that has one."""
    for offset in range(object.__basicsize__, DeviceArray.__basicsize__, 8):
        if ctypes.c_int64.from_address(id(array) + offset).value == id(array.description):
            return offset
    raise AssertionError("an object holds its slots")


def guard_of(array: Any) -> ArrayGuard | None:
    """Return what the compiled entry checks of a device array, None for other arrays.

    Raises:
        NotDirect: the array has a stream, or a dtype that DLPack lacks.
    """
    if type(array) is not DeviceArray:
        return None
    if array.description is None:
        raise NotDirect("the array has a stream, or a dtype that DLPack lacks")
    facts = description_at(layout.BYTES_DATA + id(array.description))
    return ArrayGuard(
        kind=layout.DEVICE,
        types=(id(DeviceArray),),
        dtype=facts.dtype,
        device=facts.device,
        inner=description_offset(array),
    )


def _span(view: ArrayView) -> int:
    """Return how many elements lie from the first to the last; strides are not negative on a GPU."""
    if 0 in view.shape:
        return 0
    if any(stride < 0 for stride in view.strides):
        raise DeviceError(f"a device array has strides {view.strides}", code="negative-stride", help="pass a copy")
    return 1 + sum((size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True))


def host_copy(pointer: int, view: ArrayView, stream: int = 0) -> Any:
    """Return a NumPy copy of device memory with the same strides, after all that `stream` holds."""
    span = _span(view)
    if span == 0:
        return np.empty(view.shape, view.dtype.numpy())
    memory = np.empty(span * view.dtype.bytes, np.uint8)
    cuda.copy_to_host(cuda.cuda_device(view.device.index), memory.ctypes.data, pointer, memory.size, stream)
    strides = tuple(stride * view.dtype.bytes for stride in view.strides)
    return np.ndarray(view.shape, view.dtype.numpy(), memory, strides=strides)


class HostCopies:
    """NumPy copies of device arrays; arrays that share memory on the device share it here.

    Args:
        pointers: their addresses.
        views: the arrays, all on one device.
        stream: the copies are made after all that it holds.
    """

    def __init__(self, pointers: Sequence[int], views: Sequence[ArrayView], stream: int) -> None:
        self._device = cuda.cuda_device(views[0].device.index)
        self._stream = stream
        ends = [at + _span(view) * view.dtype.bytes for at, view in zip(pointers, views, strict=True)]
        joined: list[list[int]] = []
        for start, end in sorted(zip(pointers, ends, strict=True)):
            if joined and start < joined[-1][1]:
                joined[-1][1] = max(joined[-1][1], end)
            elif start < end:
                joined.append([start, end])
        self._memory = {start: np.empty(end - start, np.uint8) for start, end in joined}
        for start, memory in self._memory.items():
            cuda.copy_to_host(self._device, memory.ctypes.data, start, memory.size, stream)
        self.arrays = [self._array(at, view) for at, view in zip(pointers, views, strict=True)]

    def _array(self, pointer: int, view: ArrayView) -> Any:
        kind = view.dtype.numpy()
        if 0 in view.shape:
            return np.empty(view.shape, kind)
        start = max(start for start in self._memory if start <= pointer)
        strides = tuple(stride * view.dtype.bytes for stride in view.strides)
        array = np.ndarray(view.shape, kind, self._memory[start], pointer - start, strides)
        array.flags.writeable = not view.readonly
        return array

    def write_back(self) -> None:
        """Copy to the device what arrays that are not read-only lie in."""
        for start, memory in self._memory.items():
            if any(array.flags.writeable and np.may_share_memory(array, memory) for array in self.arrays):
                cuda.copy_to_device(self._device, start, memory.ctypes.data, memory.size, self._stream)


def _read(array: DeviceArray) -> tuple[int, Traits, object]:
    return array.pointer, (array.view,), array


def _decode(traits: Traits) -> ArrayView:
    return traits[0]


READERS[DeviceArray] = Reader(_read, _decode)
