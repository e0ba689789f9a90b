"""Launches cubins (and PTX, which the driver assembles)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from tessera.entry.host import function_address
from tessera.entry.tables import NotDirect, Work
from tessera.errors import CallError, DeviceError, ResourceError
from tessera.runtime import cuda, recording, tensor_maps, workspaces
from tessera.runtime.cuda_entry import GRID_LIMIT, OWN
from tessera.runtime.packing import Block, Packing, Shapes
from tessera.target.artifact import Artifact, Launch, Parameter

_STATIC_SHARED = 48 * 1024
"""Dynamic shared memory beyond this has to be asked for."""


@cache
def driver_address(name: str) -> int:
    """Return the address of a function of the driver that is loaded already.

    Raises:
        NotDirect: the driver has no such function.
    """
    try:
        return function_address(ctypes.CDLL("libcuda.so.1"), name)
    except (OSError, AttributeError) as error:
        raise NotDirect(f"the driver has no {name}") from error


def check_grid(programs: int) -> None:
    """Refuse more programs than a launch may have.

    Raises:
        CallError: `grid-too-large`.
    """
    if programs > GRID_LIMIT:
        raise CallError(
            f"{programs} programs are more than a GPU's grid holds ({GRID_LIMIT})",
            code="grid-too-large",
            help="use larger tiles",
        )


class CudaLauncher:
    """A cubin loaded on one GPU.

    Args:
        artifact: the compiled kernel.
        index: which GPU.

    Raises:
        ResourceError: `shared-memory` when a launch asks for more than the GPU has.
        DeviceError: `cuda-error` when the driver refuses the code.
    """

    def __init__(self, artifact: Artifact, index: int) -> None:
        self.artifact = artifact
        self.device = cuda.cuda_device(index)
        with cuda.active(self.device) as cu:
            # PTX, for targets that no assembler here covers, is text and ends with a zero byte.
            image = artifact.code + b"\0" if artifact.code_kind == "ptx" else artifact.code
            self.module = cuda.check(cu.cuModuleLoadData(image))
            self.functions = [self._function(cu, launch.entry, launch.shared_bytes) for launch in artifact.launches]
        count = self.device.multiprocessors
        self.slots_bytes = max((one.slot_bytes * one.most_programs(count) for one in artifact.launches), default=0)
        self.waits = bool(artifact.reflection.get("debug"))

    def _function(self, cu: Any, entry: str, shared_bytes: int) -> Any:
        function = cuda.check(cu.cuModuleGetFunction(self.module, entry.encode()))
        if shared_bytes > self.device.shared_bytes:
            raise ResourceError(
                f"kernel {self.artifact.name} needs {shared_bytes} bytes of shared memory, "
                f"{self.device.name} has {self.device.shared_bytes} for a block",
                code="shared-memory",
                help="use smaller tiles or fewer stages",
            )
        if shared_bytes > _STATIC_SHARED:
            attribute = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            cuda.check(cu.cuFuncSetAttribute(function, attribute, shared_bytes))
        return function

    def most_programs(self, launch: Launch) -> int:
        """Return how many programs of a launch fill the GPU, or may be started where that does not matter."""
        fills = launch.persistent or launch.parts
        return launch.most_programs(self.device.multiprocessors) if fills else GRID_LIMIT

    def prepare(self, shapes: Shapes) -> CudaPlan:
        """Return the launch for one set of shapes."""
        return CudaPlan(self, shapes)

    def work(self, stream_of: int = 0) -> Work:
        """Return the launches for the compiled entry.

        Args:
            stream_of: address of the DLPack function that gives the current stream; 0 for the default stream.

        Raises:
            NotDirect: the launch has to be waited for, or the driver lacks a function.
        """
        if self.waits:
            raise NotDirect("launches with assertions are waited for")
        launches = self.artifact.launches
        maps = {
            param: tensor_maps.plan(param)
            for launch in launches
            for param in launch.params
            if param.kind == "tensor_map"
        }
        own = {
            "context": self.device.handle,
            "stream_of": stream_of,
            "device": self.device.device.index,
        }
        own |= {
            "current_context": driver_address("cuCtxGetCurrent"),
            "launch_kernel": driver_address("cuLaunchKernel"),
            "launch_with": driver_address("cuLaunchKernelEx") if any(one.overlaps for one in launches) else 0,
            "encode": driver_address("cuTensorMapEncodeTiled") if maps else 0,
        }
        if self.slots_bytes:
            own |= {
                "workspaces": workspaces.known(self.device.device.index),
                "is_capturing": driver_address("cuStreamIsCapturing"),
                "stream_id": driver_address("cuStreamGetId"),
            }
        most = [self.most_programs(launch) for launch in launches]

        def failed(status: int) -> object:
            return cuda.check((cuda.driver().CUresult(status),))

        functions = [int(function) for function in self.functions]
        words = {"slots_bytes": self.slots_bytes}
        own_words = [own.get(name, 0) for name in OWN]
        return Work(launches, functions, words, most, failed, maps=maps, own=own_words, keep=(self,))


Start = Callable[[int, Any, int], tuple[Any]]
"""Queues programs on a stream with parameters at an address; gives the driver's status."""


def _plain_start(cu: Any, function: Any, launch: Launch) -> Start:
    launch_kernel, threads, shared_bytes = cu.cuLaunchKernel, launch.threads, launch.shared_bytes

    def start(programs: int, queue: Any, address: int) -> tuple[Any]:
        return launch_kernel(function, programs, 1, 1, threads, 1, 1, shared_bytes, queue, address, 0)

    return start


def _overlapping_start(cu: Any, function: Any, launch: Launch) -> Start:
    """Return the start of programs that wait for the launch before themselves, and so may begin before its end."""
    attribute = cu.CUlaunchAttribute()
    attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1

    def start(programs: int, queue: Any, address: int) -> tuple[Any]:
        config = cu.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = programs, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = launch.threads, 1, 1
        config.sharedMemBytes, config.hStream = launch.shared_bytes, queue
        config.attrs, config.numAttrs = [attribute], 1
        return cu.cuLaunchKernelEx(config, function, address, 0)

    return start


class CudaPlan:
    """A launch with everything done that depends on shapes only.

    Args:
        launcher: the loaded artefact.
        shapes: sizes and strides of each argument.
    """

    def __init__(self, launcher: CudaLauncher, shapes: Shapes) -> None:
        self.launcher = launcher
        self.packing = Packing(launcher.artifact, shapes, encode=self._encode)
        cu = cuda.driver()
        launches = launcher.artifact.launches
        self._launches = [
            ((_overlapping_start if launch.overlaps else _plain_start)(cu, function, launch), launch)
            for function, launch in zip(launcher.functions, launches, strict=True)
        ]
        self._current, self._success = cu.cuCtxGetCurrent, cu.CUresult(0)

    def _encode(self, param: Parameter, pointer: int, sizes: Sequence[int], strides: Sequence[int]) -> bytes:
        launcher = self.launcher
        written = launcher.artifact.args[param.arg].written
        return tensor_maps.encode(param, pointer, sizes, strides, launcher.device.device.index, written)

    def launch(
        self, pointers: Sequence[int], scalars: Sequence[Any], keep: Sequence[Any] = (), stream: int = 0
    ) -> None:
        """Queue the kernel on a stream.

        Args:
            pointers: address of each tensor argument.
            scalars: value of each scalar argument.
            keep: Tessera's own arrays among the arguments, and objects that own the memory of others.
            stream: the stream's address.

        Raises:
            CallError: `wrong-scalar`, or `grid-too-large`.
            DeviceError: `cuda-error`; `device-assert` when an assertion of the kernel failed.
        """
        recorder = recording.current()
        if recorder is not None:
            recorder.launch(self, pointers, scalars, keep)
        for owner in keep:
            if hasattr(owner, "used_on"):
                owner.used_on(stream)
        block = self.packing.fill(pointers, scalars)
        counts = self.packing.counts(scalars)
        if int(self._current()[1]) == self.launcher.device.handle:
            self._queue(block, counts, stream)
        else:
            with cuda.active(self.launcher.device):
                self._queue(block, counts, stream)
        self.packing.release(block)  # the driver has copied the parameters
        if self.launcher.waits:
            self._wait(stream)

    def _queue(self, block: Block, counts: list[int], stream: int) -> None:
        queue = cuda.stream_object(stream)
        if slots_bytes := self.launcher.slots_bytes:
            block.put_workspace(workspaces.workspace(self.launcher.device, stream, slots_bytes))
        for (start, launch), address, programs in zip(self._launches, block.addresses, counts, strict=True):
            if programs == 0:
                continue
            check_grid(programs)
            (status,) = start(launch.started(programs, self.launcher.device.multiprocessors), queue, address)
            if status is not self._success and int(status) != 0:
                cuda.check((status,))

    def _wait(self, stream: int) -> None:
        """Wait for the launch, so that a failed assertion is reported by the call that made it."""
        with cuda.active(self.launcher.device) as cu:
            (status,) = cu.cuStreamSynchronize(cuda.stream_object(stream))
            if int(status) != 0:
                raise DeviceError(
                    f"kernel {self.launcher.artifact.name} stopped with {status.name}; "
                    "an assertion that failed has printed its message",
                    code="device-assert",
                    help="the GPU is unusable for the rest of this process",
                )
