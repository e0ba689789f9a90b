"""NVIDIA GPUs, from Volta on: LLVM to PTX to cubin, and the CUDA driver."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from tessera.errors import DeviceError, TargetError
from tessera.platforms.platform import Platform
from tessera.target.nvidia import NVIDIA_TARGETS, nvidia_target
from tessera.target.records import TargetRecord

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from tessera.backends.llvm.code import CompiledCode
    from tessera.entry.tables import ArrayGuard
    from tessera.ir.passes import Pass
    from tessera.numerics.dtypes import DType
    from tessera.runtime.cuda_launch import CudaLauncher
    from tessera.runtime.cuda_table import CudaTable
    from tessera.runtime.device import Device
    from tessera.runtime.platforms import Again, DeviceInfo, HostArrays, Stream
    from tessera.runtime.views import ArrayView, Reader
    from tessera.schedule.knobs import Knobs
    from tessera.target.artifact import Artifact


@cache
def _cuda() -> Any:
    """Return the driver's side of the runtime, which is imported where there is a GPU to use."""
    from tessera.runtime import cuda

    return cuda


class NvidiaPlatform(Platform):
    """NVIDIA GPUs through PTX."""

    name = "ptx"
    device_kind = "cuda"
    dlpack_kinds = (2, 13)  # kDLCUDA, kDLCUDAManaged
    targets = NVIDIA_TARGETS
    code_kinds = ("cubin", "ptx", "")  # PTX for targets that the assembler does not cover
    texts = ("ll", "ptx")
    comments: ClassVar[Mapping[str, str]] = MappingProxyType({"ll": ";", "ptx": "//"})
    has_tensor_maps = True
    has_streams = True
    array_protocol = "__cuda_array_interface__"

    def dumps(self, target: TargetRecord) -> tuple[str, ...]:
        """Return the texts, and `cubin` where there is an assembler for the target."""
        from tessera.backends.nvidia.assemble import can_assemble

        return (*self.levels, "cubin") if can_assemble(target) else self.levels

    def target(self, name: str) -> TargetRecord:
        """Return the record of a GPU."""
        return nvidia_target(name)

    def schedule(self, target: TargetRecord, knobs: Knobs) -> tuple[Pass, ...]:
        """Return the scheduling passes."""
        from tessera.canonicalize.fold_scales import FoldScalesPass
        from tessera.canonicalize.narrow_comparisons import NarrowComparisonsPass
        from tessera.canonicalize.round_products import RoundProductsPass
        from tessera.canonicalize.share_reciprocals import ShareReciprocalsPass
        from tessera.canonicalize.stages import CLEAN_UP
        from tessera.schedule.bound_stages import BoundStagesPass
        from tessera.schedule.gpu.align_rows import AlignRowsPass
        from tessera.schedule.gpu.batch_programs import BatchProgramsPass
        from tessera.schedule.gpu.batch_steps import BatchStepsPass
        from tessera.schedule.gpu.chunk_tiles import ChunkTilesPass
        from tessera.schedule.gpu.copies import StageCopiesPass
        from tessera.schedule.gpu.fit_permutes import FitPermutesPass
        from tessera.schedule.gpu.flatten_rows import FlattenRowsPass
        from tessera.schedule.gpu.full_boxes import FullBoxesPass
        from tessera.schedule.gpu.instructions import ChooseProductsPass
        from tessera.schedule.gpu.keep_rows import KeepRowsPass
        from tessera.schedule.gpu.late_reductions import LateReductionsPass
        from tessera.schedule.gpu.load_steps import LoadStepsPass
        from tessera.schedule.gpu.pack_permutes import PackPermutesPass
        from tessera.schedule.gpu.private_sums import PrivateSumsPass
        from tessera.schedule.gpu.split_sums import SplitSumsPass
        from tessera.schedule.gpu.split_tiles import SplitTilesPass
        from tessera.schedule.gpu.sums_of_products import SumsOfProductsPass
        from tessera.schedule.gpu.warps import ChooseWarpsPass
        from tessera.schedule.gpu.widen_programs import WidenProgramsPass
        from tessera.schedule.hopper.deepen_steps import DeepenStepsPass
        from tessera.schedule.hopper.divide_rows import DivideRowsPass
        from tessera.schedule.hopper.fit_blocks import FitBlocksPass
        from tessera.schedule.hopper.late_waits import LateWaitsPass
        from tessera.schedule.hopper.load_ahead import LoadAheadPass
        from tessera.schedule.hopper.pair_tiles import PairTilesPass
        from tessera.schedule.hopper.ping_pong import GroupBuffersPass
        from tessera.schedule.hopper.pipeline_products import PipelineProductsPass
        from tessera.schedule.hopper.release_early import ReleaseEarlyPass
        from tessera.schedule.hopper.scan_rows import ScanRowsPass
        from tessera.schedule.hopper.share_rows import ShareRowsPass
        from tessera.schedule.hopper.shorten_steps import ShortenStepsPass
        from tessera.schedule.hopper.skip_masks import SkipMasksPass
        from tessera.schedule.hopper.skip_scales import SkipScalesPass
        from tessera.schedule.hopper.split_k import SplitKPass
        from tessera.schedule.hopper.start_together import StartTogetherPass
        from tessera.schedule.hopper.stores import BulkStoresPass
        from tessera.schedule.hopper.stream_k import StreamKPass
        from tessera.schedule.hopper.trim_boxes import TrimBoxesPass
        from tessera.schedule.hopper.warp_specialize import WarpSpecializePass
        from tessera.schedule.hopper.whole_stores import WholeStoresPass
        from tessera.schedule.raise_copies import RaiseCopiesPass

        return (
            FoldScalesPass(),  # the hardware's exponential is of base 2
            ShareReciprocalsPass(),
            RoundProductsPass(),
            RaiseCopiesPass(target, knobs),
            WidenProgramsPass(target, knobs),
            FlattenRowsPass(target, knobs),
            PackPermutesPass(target, knobs),
            FitPermutesPass(target, knobs),  # programs of its blocks are no longer small
            BatchStepsPass(target, knobs),
            BatchProgramsPass(target, knobs),
            AlignRowsPass(target, knobs),
            PrivateSumsPass(target, knobs),
            ShareRowsPass(target, knobs),
            ScanRowsPass(target, knobs),
            KeepRowsPass(target, knobs),
            ChunkTilesPass(target, knobs),
            BoundStagesPass(),
            SumsOfProductsPass(target, knobs),
            FitBlocksPass(target, knobs),
            DeepenStepsPass(target, knobs),
            TrimBoxesPass(target, knobs),
            DivideRowsPass(target, knobs),
            SplitTilesPass(target, knobs),
            SplitKPass(target, knobs),
            StreamKPass(target, knobs),
            PairTilesPass(target, knobs),
            ShortenStepsPass(target, knobs),
            WarpSpecializePass(target, knobs),
            ChooseProductsPass(target, knobs),
            LateReductionsPass(target, knobs),
            SplitSumsPass(target, knobs),
            FullBoxesPass(target, knobs),
            LoadStepsPass(target, knobs),
            StageCopiesPass(target, knobs),
            WholeStoresPass(target, knobs),
            BulkStoresPass(target, knobs),
            ChooseWarpsPass(target, knobs),
            NarrowComparisonsPass(),
            SkipMasksPass(target, knobs),
            ReleaseEarlyPass(target, knobs),
            PipelineProductsPass(target, knobs),
            LateWaitsPass(target, knobs),
            SkipScalesPass(target, knobs),
            StartTogetherPass(target, knobs),
            GroupBuffersPass(target, knobs),
            *CLEAN_UP,
            LoadAheadPass(target, knobs),
        )

    def assembly(self, target: TargetRecord) -> str:
        """Return `ptx`."""
        return "ptx"

    def lower(self, module: ModuleOp, target: TargetRecord) -> ModuleOp:
        """Return the TIR-T of a scheduled module: fragments that threads hold."""
        from tessera.lower.simt import lower_to_simt

        return lower_to_simt(module, target)

    def generate(self, module: ModuleOp, target: TargetRecord, dump: Sequence[str]) -> CompiledCode:
        """Return the cubin, or PTX for targets that the assembler does not cover."""
        from tessera.backends.nvidia import compile_nvidia

        return compile_nvidia(module, target)

    def write(self, module: ModuleOp, target: TargetRecord, dump: Sequence[str]) -> CompiledCode:
        """Return the texts of the code; no assembler is needed."""
        from tessera.backends.nvidia import compile_nvidia

        return compile_nvidia(module, target, assemble=False)

    def resume(self, level: str, text: str, target: TargetRecord, dump: Sequence[str]) -> CompiledCode:
        """Return the cubin of optimised LLVM IR or of PTX, or PTX for targets that the assembler does not cover."""
        from tessera.backends.nvidia import resume_nvidia

        return resume_nvidia(level, text, target)

    def start_ir(self) -> str:
        """Return the code that launches through the CUDA driver."""
        from tessera.backends.nvidia.start import start_ir

        return start_ir()

    def protocol_reader(self) -> Reader:
        """Return how arrays with `__cuda_array_interface__` are read (Numba's and others)."""
        from tessera.runtime.cuda_interface import READER

        return READER

    def export_stream(self, array: Any) -> int:
        """Return CuPy's current stream for its arrays, else the default stream."""
        from tessera.runtime.cuda_interface import export_stream

        return export_stream(array)

    def devices(self) -> list[DeviceInfo]:
        """Return the GPUs that can be used, none when the bindings or the driver are missing."""
        from tessera.runtime import cuda
        from tessera.runtime.platforms import DeviceInfo

        try:
            count = cuda.device_count()
        except (TargetError, DeviceError):  # `tessera doctor` reports what is missing
            return []
        gpus = [cuda.cuda_device(index) for index in range(count)]
        return [
            DeviceInfo(gpu.device, self.name, gpu.name, cuda.target_of(index).name, gpu.memory_bytes)
            for index, gpu in enumerate(gpus)
        ]

    def require(self) -> None:
        """Check that there is a GPU.

        Raises:
            TargetError: `missing-extra`.
            DeviceError: `no-driver` or `no-device`.
        """
        from tessera.runtime.cuda import cuda_device

        cuda_device(0)

    def capabilities(self) -> dict[str, Any]:
        """Return what the first GPU can do; raises as `require`."""
        from tessera.runtime import cuda

        gpu = cuda.cuda_device(0)
        return {
            **cuda.target_of(0).capabilities(),
            "device": gpu.name,
            "shared_bytes_per_block": gpu.shared_bytes,
            "multiprocessors": gpu.multiprocessors,
            "memory_bytes": gpu.memory_bytes,
        }

    def device_target(self, device: Device) -> TargetRecord:
        """Return the record to compile for on a GPU.

        Raises:
            TargetError: `unsupported-device`.
        """
        from tessera.runtime.cuda import target_of

        return target_of(device.index)

    def device_identity(self, device: Device) -> str:
        """Return the target's name and what identifies the assembler."""
        from tessera.runtime.toolkit import assembler_identity

        return f"{self.device_target(device).name} {assembler_identity()}"

    def empty(self, shape: tuple[int, ...], dtype: DType, device: Device) -> Any:
        """Return a device array."""
        from tessera.runtime.cuda_array import DeviceArray

        return DeviceArray(shape, dtype, device)

    def fill(self, array: Any, host: Any) -> None:
        """Copy a NumPy array to a device array."""
        array.copy_from(host)

    def borrow(self, source: Any, pointer: int, view: ArrayView, keep: object) -> Any:
        """Return a device array over the memory of `source`."""
        from tessera.runtime.cuda_array import DeviceArray

        return source if isinstance(source, DeviceArray) else DeviceArray.borrow(pointer, view, (source, keep))

    def to_numpy(self, source: Any, pointer: int, view: ArrayView, keep: object) -> Any:
        """Return a copy, made after what the source's stream holds."""
        from tessera.runtime.cuda import current_stream
        from tessera.runtime.cuda_array import DeviceArray, host_copy

        if isinstance(source, DeviceArray):
            return source.numpy()
        return host_copy(pointer, view, current_stream((source,), view.device.index))

    def on_host(
        self, pointers: Sequence[int], views: Sequence[ArrayView], keep: Sequence[object], stream: int
    ) -> HostArrays:
        """Return copies."""
        from tessera.runtime.cuda_array import HostCopies

        return HostCopies(pointers, views, stream)

    def stream_source(self, args: Sequence[Any], device: Device) -> Stream:
        """Return how such calls find their stream: the caller's current PyTorch or CuPy one, else the default."""
        from tessera.runtime import cuda
        from tessera.runtime.cuda_array import DeviceArray
        from tessera.runtime.readers import READERS

        torch: Any = sys.modules.get("torch")
        index = device.index
        if torch is not None and any(isinstance(arg, torch.Tensor) for arg in args):
            getter = cuda.torch_stream_getter()
            return lambda _args: getter(index)
        kinds: list[type] = [type(arg) for arg in args]
        if all(kind is DeviceArray for kind in kinds if kind in READERS):
            return lambda _args: 0
        return lambda args: cuda.current_stream(tuple(args), index)

    def stream_address(self, stream: Any) -> int:
        """Return the address of a stream given as a number, or as an object of PyTorch, CuPy or cuda-core.

        Raises:
            CallError: `bad-stream`.
        """
        return _cuda().stream_address(stream)

    def allocate(self, device: Device, size: int, stream: int) -> int:
        """Return the address of new device memory, usable by work queued on `stream`.

        Raises:
            DeviceError: `out-of-memory`.
        """
        from tessera.runtime import recording

        pointer = _cuda().allocate(_cuda().cuda_device(device.index), size, stream)
        recorder = recording.current()
        if recorder is not None:
            recorder.take(pointer, size)
        return pointer

    def free(self, device: Device, pointer: int, stream: int) -> None:
        """Free memory once what `stream` holds now is done."""
        _cuda().free(_cuda().cuda_device(device.index), pointer, stream)

    def over_scratch(self, pointer: int, view: ArrayView, stream: int) -> Any:
        """Return a device array over memory that is used on one stream only."""
        from tessera.runtime.cuda_array import DeviceArray

        return DeviceArray.borrow(pointer, view, None, stream)

    def is_own(self, array: Any) -> bool:
        """Return whether an array is a device array."""
        from tessera.runtime.cuda_array import DeviceArray

        return type(array) is DeviceArray

    def array_guard(self, array: Any) -> ArrayGuard | None:
        """Return how the entry reads a device array."""
        from tessera.runtime.cuda_array import guard_of

        return guard_of(array)

    def entry_stream(self, args: Sequence[Any]) -> int:
        """Return PyTorch's function for its current stream if a tensor is an argument, else 0, the default stream.

        Raises:
            NotDirect: this PyTorch has none, or a device array has to follow that stream.
        """
        from tessera.entry import exchange
        from tessera.entry.tables import NotDirect

        if not any(type(arg) in exchange.torch_types() for arg in args):
            return 0
        found = exchange.torch_exchange()
        if found is None or any(map(self.is_own, args)):
            raise NotDirect("Tessera's arrays follow a stream of PyTorch's in Python")
        return found.stream

    def launcher(self, artifact: Artifact, device: Device) -> CudaLauncher:
        """Load an artefact on a GPU.

        Raises:
            DeviceError: the driver refuses it.
            ResourceError: it needs more than the GPU has.
        """
        from tessera.runtime.cuda_launch import CudaLauncher

        return CudaLauncher(artifact, device.index)

    def table(self, launches: Sequence[Again], walk: Callable[[], int]) -> CudaTable:
        """Return launches as a table, which machine code walks."""
        from tessera.runtime.cuda_table import CudaTable

        return CudaTable(launches, walk)

    def runs_here(self, artifact: Artifact) -> bool:
        """Return True: the target is part of the key."""
        return True
