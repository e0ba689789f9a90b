"""The CUDA driver, through cuda-bindings: devices, contexts, streams, memory and error codes.

Nothing here is imported before the first use of a GPU. Primary contexts are shared with PyTorch and CuPy.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from tessera.data import dataclass
from tessera.errors import CallError, DeviceError, TargetError
from tessera.runtime.device import Device
from tessera.target.nvidia import NVIDIA_TARGETS
from tessera.target.records import TargetRecord
from tessera.target.registry import target_named

INSTALL = 'pip install "tessera[gpu-cuda]"'


@cache
def driver() -> Any:
    """Return `cuda.bindings.driver`, initialised.

    Raises:
        TargetError: `missing-extra` when cuda-bindings is not installed.
        DeviceError: `no-driver` when the machine has no working NVIDIA driver.
    """
    try:
        module: Any = importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise TargetError("the CUDA bindings are not installed", code="missing-extra", help=INSTALL) from error
    try:
        status, *_ = module.cuInit(0)
    except RuntimeError as error:  # cuda-pathfinder's error for a missing libcuda
        raise _no_driver(str(error)) from error
    if int(status) != 0:
        raise _no_driver(f"cuInit gave {status.name}")
    return module


def _no_driver(reason: str) -> DeviceError:
    return DeviceError(
        f"no usable NVIDIA driver: {reason}",
        code="no-driver",
        help="install the NVIDIA driver, or run on the CPU",
    )


def check(result: tuple[Any, ...]) -> Any:
    """Return what a driver call gave.

    Raises:
        DeviceError: `cuda-error`, with the driver's name and text for it.
    """
    status, *values = result
    if int(status) != 0:
        _, text = driver().cuGetErrorString(status)
        raise DeviceError(
            f"{status.name}: {(text or b'').decode()}",
            code="cuda-error",
            help="an earlier launch may be at fault: run under compute-sanitizer",
        )
    return values[0] if len(values) == 1 else tuple(values)


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """One GPU.

    Args:
        device: its name here.
        context: its primary context (the driver's object).
        handle: the context's address, for comparison.
        name: the vendor's name for it.
        capability: compute capability.
        multiprocessors: number of SMs.
        memory_bytes: device memory.
        shared_bytes: shared memory a block may ask for.
    """

    device: Device
    context: Any
    handle: int
    name: str
    capability: tuple[int, int]
    multiprocessors: int
    memory_bytes: int
    shared_bytes: int


def device_count() -> int:
    """Return how many GPUs the driver lists (it obeys `CUDA_VISIBLE_DEVICES`)."""
    return check(driver().cuDeviceGetCount())


@cache
def cuda_device(index: int) -> CudaDevice:
    """Return a GPU, its primary context retained for the life of the process.

    Raises:
        DeviceError: `no-device` when there is no such GPU.
    """
    cu = driver()
    count = device_count()
    if not 0 <= index < count:
        raise DeviceError(
            f"there is no cuda:{index}; the driver lists {count} GPUs",
            code="no-device",
            help="tessera doctor lists them; CUDA_VISIBLE_DEVICES hides some",
        )
    handle = check(cu.cuDeviceGet(index))
    attribute = cu.CUdevice_attribute

    def ask(name: str) -> int:
        return check(cu.cuDeviceGetAttribute(getattr(attribute, f"CU_DEVICE_ATTRIBUTE_{name}"), handle))

    context = check(cu.cuDevicePrimaryCtxRetain(handle))
    name: bytes = check(cu.cuDeviceGetName(128, handle))
    return CudaDevice(
        Device("cuda", index),
        context,
        int(context),
        name.split(b"\0")[0].decode(),
        (ask("COMPUTE_CAPABILITY_MAJOR"), ask("COMPUTE_CAPABILITY_MINOR")),
        ask("MULTIPROCESSOR_COUNT"),
        check(cu.cuDeviceTotalMem(handle)),
        ask("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
    )


class Active:
    """A `with` block in which a device's context is current; it gives the driver.

    Args:
        device: the GPU.
    """

    __slots__ = ("_device", "_pushed")

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._pushed = False

    def __enter__(self) -> Any:
        """Push the context where another one is current."""
        cu = driver()
        current = int(check(cu.cuCtxGetCurrent()))
        if current == 0:  # a thread without a context keeps this one, as with the CUDA runtime
            check(cu.cuCtxSetCurrent(self._device.context))
        elif current != self._device.handle:
            check(cu.cuCtxPushCurrent(self._device.context))
            self._pushed = True
        return cu

    def __exit__(self, *_: object) -> None:
        """Pop the context if it was pushed."""
        if self._pushed:
            check(driver().cuCtxPopCurrent())


def active(device: CudaDevice) -> Active:
    """Return a `with` block in which a device's context is current."""
    return Active(device)


@cache
def target_of(index: int) -> TargetRecord:
    """Return the record to compile for on a GPU: its own, or the nearest older one of the same major version.

    Raises:
        TargetError: `unsupported-device`.
    """
    info = cuda_device(index)
    major, minor = info.capability
    own = f"sm_{major}{minor}"
    for name in (f"{own}a", own):
        if name in NVIDIA_TARGETS:
            return target_named(name)
    older = [name for name in NVIDIA_TARGETS if name == f"sm_{major}{name[-1]}" and int(name[-1]) < minor]
    if not older:
        raise TargetError(
            f"{info.name} has compute capability {major}.{minor}, which no target covers",
            code="unsupported-device",
            help=f"targets: {', '.join(NVIDIA_TARGETS)}",
        )
    return target_named(max(older))


def device_of_pointer(pointer: int) -> Device:
    """Return the GPU whose memory an address is in."""
    cu = driver()
    cuda_device(0)  # pointer queries need an initialised context
    attribute = cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return Device("cuda", int(check(cu.cuPointerGetAttribute(attribute, pointer))))


# Streams. 0 is the legacy default stream, which waits for every blocking stream and they for it.
def wait_for_stream(stream: int) -> None:
    """Block until everything queued on a stream is done."""
    check(driver().cuStreamSynchronize(stream_object(stream)))


def stream_address(stream: Any) -> int:
    """Return the address of a stream given as a number, or as an object of PyTorch, CuPy or cuda-core.

    Raises:
        CallError: `bad-stream`.
    """
    if isinstance(stream, int):
        return stream
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    address = getattr(stream, "cuda_stream", getattr(stream, "ptr", None))
    if not isinstance(address, int):
        raise CallError(
            f"stream is {stream!r}, which is not a CUDA stream",
            code="bad-stream",
            help="pass a stream of PyTorch, CuPy or cuda-core, or its address",
        )
    return address


@cache
def stream_object(stream: int) -> Any:
    """Return the driver's object for a stream address (the call path must not make one each time)."""
    return driver().CUstream(stream)


@cache
def torch_stream_getter() -> Callable[[int], int]:
    """Return the function that gives PyTorch's current stream on a device; PyTorch is imported already."""
    torch = sys.modules["torch"]
    # The raw getter saves building a Stream object at every call; public API where a build lacks it.
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return raw or (lambda index: torch.cuda.current_stream(index).cuda_stream)


def current_stream(arrays: tuple[Any, ...], index: int) -> int:
    """Return the caller's stream: PyTorch's or CuPy's current one if an array is theirs, else the default."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and any(isinstance(array, torch.Tensor) for array in arrays):
        return torch_stream_getter()(index)
    if cupy is not None and any(isinstance(array, cupy.ndarray) for array in arrays):
        return cupy.cuda.get_current_stream().ptr
    return 0


def order_after(device: CudaDevice, later: int, earlier: int) -> None:
    """Make what is queued on stream `later` from now on wait for what stream `earlier` holds now."""
    with active(device) as cu:
        event = check(cu.cuEventCreate(cu.CUevent_flags.CU_EVENT_DISABLE_TIMING))
        check(cu.cuEventRecord(event, stream_object(earlier)))
        check(cu.cuStreamWaitEvent(stream_object(later), event, 0))
        check(cu.cuEventDestroy(event))


# Stream-ordered memory.
_KEPT_PART = 64
"""The part of a GPU's memory, one in so many, that its pool may keep when nothing uses it."""


@cache
def _keep_freed(index: int) -> None:
    """Let the device's pool keep freed memory, which it else gives back at the next synchronisation.

    Memory that is asked for again at every call, such as scratch, would then be mapped anew each time. A threshold that
    another library has set is never lowered. Source: CUDA Driver API, "Stream Ordered Memory Allocator"
    (`CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`).
    """
    device = cuda_device(index)
    with active(device) as cu:
        # Attributes of pools may not be touched while the thread captures, unless it says that it knows.
        mode = check(cu.cuThreadExchangeStreamCaptureMode(cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
        try:
            pool = check(cu.cuDeviceGetDefaultMemPool(check(cu.cuDeviceGet(index))))
            threshold = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
            wanted = device.memory_bytes // _KEPT_PART
            if int(check(cu.cuMemPoolGetAttribute(pool, threshold))) < wanted:
                check(cu.cuMemPoolSetAttribute(pool, threshold, cu.cuuint64_t(wanted)))
        finally:
            check(cu.cuThreadExchangeStreamCaptureMode(mode))


WORD_BYTES = 16
"""Code may load the aligned word in which an array ends, and leaves what lies behind."""


def allocate(device: CudaDevice, size: int, stream: int) -> int:
    """Return the address of new device memory of whole words, usable by work queued on `stream`.

    Raises:
        DeviceError: `out-of-memory`.
    """
    _keep_freed(device.device.index)
    with active(device) as cu:
        result = cu.cuMemAllocAsync(-(-size // WORD_BYTES) * WORD_BYTES, stream_object(stream))
        if result[0] == cu.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise DeviceError(
                f"{device.device} has no {size} bytes left",
                code="out-of-memory",
                help="delete arrays that are not needed any more",
            )
        return int(check(result))


ZERO_BYTES = 128


@cache
def zero_page(index: int, written: bool = False) -> int:
    """Return the address of `ZERO_BYTES` zeros on a GPU: what descriptors of empty arrays point at.

    Args:
        index: which GPU.
        written: whether a kernel stores to the array: what it drops there must not be read through others.
    """
    with active(cuda_device(index)) as cu:
        pointer = int(check(cu.cuMemAlloc(ZERO_BYTES)))
        check(cu.cuMemsetD8(pointer, 0, ZERO_BYTES))
    return pointer


def free(device: CudaDevice, pointer: int, stream: int) -> None:
    """Free memory once what `stream` holds now is done."""
    with active(device) as cu:
        check(cu.cuMemFreeAsync(pointer, stream_object(stream)))


def copy_to_device(device: CudaDevice, pointer: int, host: int, size: int, stream: int) -> None:
    """Copy host memory to the device; the host memory may be reused on return."""
    with active(device) as cu:
        check(cu.cuMemcpyHtoDAsync(pointer, host, size, stream_object(stream)))
        check(cu.cuStreamSynchronize(stream_object(stream)))


def copy_to_host(device: CudaDevice, host: int, pointer: int, size: int, stream: int) -> None:
    """Copy device memory to the host, after all that `stream` holds."""
    with active(device) as cu:
        check(cu.cuMemcpyDtoHAsync(host, pointer, size, stream_object(stream)))
        check(cu.cuStreamSynchronize(stream_object(stream)))
