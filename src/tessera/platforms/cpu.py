"""CPUs: this machine's own, which is the host, and others by name. Programs share a pool of threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from platform import machine
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from tessera.errors import CallError, DeviceError
from tessera.platforms.platform import Platform
from tessera.target.cpus import CPU_TARGETS, CPUS
from tessera.target.records import TargetRecord

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from tessera.backends.llvm.code import CompiledCode
    from tessera.entry.tables import ArrayGuard
    from tessera.ir.passes import Pass
    from tessera.numerics.dtypes import DType
    from tessera.runtime.cpu import CpuLauncher
    from tessera.runtime.cpu_table import CpuTable
    from tessera.runtime.device import Device
    from tessera.runtime.platforms import Again, DeviceInfo, HostArrays, LoadedCode, Stream
    from tessera.runtime.views import ArrayView, Reader
    from tessera.schedule.knobs import Knobs
    from tessera.target.artifact import Artifact


class CpuPlatform(Platform):
    """CPUs through LLVM; the target `cpu` is this machine's own."""

    name = "cpu"
    device_kind = "cpu"
    dlpack_kinds = (1, 3)  # kDLCPU, kDLCUDAHost
    targets = ("cpu", *CPU_TARGETS)
    code_kinds = ("object", "")
    texts = ("ll", "asm")
    comments: ClassVar[Mapping[str, str]] = MappingProxyType({"ll": ";"})
    has_tensor_maps = False
    has_streams = False
    array_protocol = ""

    def target(self, name: str) -> TargetRecord:
        """Return the record of a CPU.

        Raises:
            TargetError: `unsupported-host` when this machine's own has no backend.
        """
        if name in CPUS:
            return CPUS[name]
        from tessera.backends.cpu.host import host_target

        return host_target()

    def schedule(self, target: TargetRecord, knobs: Knobs) -> tuple[Pass, ...]:
        """Return the scheduling passes."""
        from tessera.canonicalize.round_products import RoundProductsPass
        from tessera.schedule.bound_stages import BoundStagesPass
        from tessera.schedule.cpu.begin_sums import BeginSumsPass
        from tessera.schedule.cpu.expand_sorts import ExpandSortsPass
        from tessera.schedule.cpu.pack_operands import PackOperandsPass
        from tessera.schedule.cpu.place_sums import PlaceSumsPass
        from tessera.schedule.cpu.prefetch_boxes import PrefetchBoxesPass
        from tessera.schedule.cpu.sink_stores import SinkStoresPass
        from tessera.schedule.cpu.split_masks import SplitMasksPass
        from tessera.schedule.cpu.stream_stores import StreamStoresPass
        from tessera.schedule.cpu.strip_products import StripProductsPass
        from tessera.schedule.cpu.trim_tiles import TrimTilesPass
        from tessera.schedule.cpu.turn_squares import TurnSquaresPass
        from tessera.schedule.raise_copies import RaiseCopiesPass

        return (
            RoundProductsPass(),
            RaiseCopiesPass(target, knobs),
            BoundStagesPass(),
            SinkStoresPass(target, knobs),
            SplitMasksPass(target, knobs),
            PackOperandsPass(target, knobs),
            BeginSumsPass(target, knobs),
            PlaceSumsPass(target, knobs),
            TurnSquaresPass(target, knobs),
            TrimTilesPass(target, knobs),
            StripProductsPass(target, knobs),
            PrefetchBoxesPass(target, knobs),
            StreamStoresPass(target, knobs),
            ExpandSortsPass(),
        )

    def assembly(self, target: TargetRecord) -> str:
        """Return the architecture where it is this machine's: LLVM assembles no other here."""
        own, this = (name.replace("arm64", "aarch64") for name in (target.triple.split("-")[0], machine()))
        return own if own == this else ""

    def lower(self, module: ModuleOp, target: TargetRecord) -> ModuleOp:
        """Return the TIR-T of a scheduled module: loops over vectors."""
        from tessera.lower.vector import lower_to_vector

        return lower_to_vector(module, target)

    def generate(self, module: ModuleOp, target: TargetRecord, dump: Sequence[str]) -> CompiledCode:
        """Return the object code."""
        from tessera.backends.cpu import compile_cpu

        return compile_cpu(module, target, dump)

    def write(self, module: ModuleOp, target: TargetRecord, dump: Sequence[str]) -> CompiledCode:
        """Return the texts asked for; LLVM runs for `asm` only."""
        from tessera.backends.cpu import compile_cpu, write_cpu

        return compile_cpu(module, target, dump) if "asm" in dump else write_cpu(module, target)

    def resume(self, level: str, text: str, target: TargetRecord, dump: Sequence[str]) -> CompiledCode:
        """Return the object code of LLVM IR."""
        from tessera.backends.cpu import resume_cpu

        return resume_cpu(text, target, dump)

    def start_ir(self) -> str:
        """Raise: the compiled entry runs programs on the host itself."""
        raise NotImplementedError("the compiled entry runs programs on the host")

    def protocol_reader(self) -> Reader:
        """Raise: arrays on the host that are not NumPy's or PyTorch's have DLPack."""
        raise NotImplementedError("arrays on the host have no protocol of their own")

    def export_stream(self, array: Any) -> None:
        """Return None: there are no streams."""

    def devices(self) -> list[DeviceInfo]:
        """Return this machine's CPU."""
        from tessera.runtime.device import CPU
        from tessera.runtime.platforms import DeviceInfo

        record = self.target("cpu")
        return [DeviceInfo(CPU, self.name, record.cpu or record.name, record.name)]

    def require(self) -> None:
        """Do nothing: Python runs on it."""

    def capabilities(self) -> dict[str, Any]:
        """Return what this machine's CPU can do."""
        return {**self.target("cpu").capabilities(), "device": "cpu"}

    def device_target(self, device: Device) -> TargetRecord:
        """Return the record of this machine's CPU."""
        return self.target("cpu")

    def device_identity(self, device: Device) -> str:
        """Return what decides the code for this CPU."""
        from tessera.runtime.identity import host_identity

        return host_identity()

    def empty(self, shape: tuple[int, ...], dtype: DType, device: Device) -> Any:
        """Return a NumPy array, 64-byte aligned."""
        from tessera.runtime.host_arrays import aligned

        return aligned(shape, dtype)

    def fill(self, array: Any, host: Any) -> None:
        """Copy one NumPy array to another."""
        array[...] = host

    def borrow(self, source: Any, pointer: int, view: ArrayView, keep: object) -> Any:
        """Return a NumPy array over the memory of `source`."""
        from tessera.runtime.host_arrays import borrow

        return borrow(source, pointer, view, keep)

    def to_numpy(self, source: Any, pointer: int, view: ArrayView, keep: object) -> Any:
        """Return a NumPy array over the memory of `source`."""
        return self.borrow(source, pointer, view, keep)

    def on_host(
        self, pointers: Sequence[int], views: Sequence[ArrayView], keep: Sequence[object], stream: int
    ) -> HostArrays:
        """Return NumPy arrays over the same memory."""
        from tessera.runtime.host_arrays import InPlace

        return InPlace(pointers, views, keep)

    def stream_source(self, args: Sequence[Any], device: Device) -> Stream:
        """Return 0 for every call: there are no streams."""
        return lambda _args: 0

    def stream_address(self, stream: Any) -> int:
        """Return 0: a call ends before it returns, so that it may name the stream of any device.

        Raises:
            CallError: `bad-stream` when no device has such streams.
        """
        from tessera.runtime.platforms import platforms

        for other in platforms():
            if other is not self:
                with suppress(CallError):
                    other.stream_address(stream)
                    return 0
        raise CallError(f"stream is {stream!r}, which is no device's", code="bad-stream", help="leave it out")

    def array_guard(self, array: Any) -> ArrayGuard | None:
        """Return how the entry reads a NumPy array. A subclass may mean something else: the exact type only."""
        from tessera.runtime.host_arrays import guard_of

        return guard_of(array)

    def entry_stream(self, args: Sequence[Any]) -> int:
        """Return 0: there are no streams."""
        return 0

    def launcher(self, artifact: Artifact, device: Device) -> CpuLauncher:
        """Load an artefact.

        Raises:
            DeviceError: `wrong-cpu`, naming the features that this CPU lacks.
        """
        from tessera.runtime.cpu import CpuLauncher

        if missing := self._missing(artifact):
            raise DeviceError(
                f"{artifact.name} was compiled for {artifact.target}; this CPU has no {', '.join(missing)}",
                code="wrong-cpu",
                help='compile it on this machine, or for a target that all have, such as "x86-64-v3"',
            )
        return CpuLauncher(artifact, self.load)

    def table(self, launches: Sequence[Again], walk: Callable[[], int]) -> CpuTable:
        """Return launches as a table."""
        from tessera.runtime.cpu_table import CpuTable

        return CpuTable(launches, walk)

    def runs_here(self, artifact: Artifact) -> bool:
        """Return whether this process has all features: another one may use more of the CPU, such as AMX."""
        return not self._missing(artifact)

    def _missing(self, artifact: Artifact) -> list[str]:
        from tessera.runtime.host import surely_has

        if surely_has(artifact.requires):
            return []
        from tessera.backends.cpu import missing_features  # asks LLVM, which takes 20 ms to import

        return missing_features(artifact.requires)

    def native_code(self, name: str) -> bytes:
        """Compile a part of the runtime: `entry`, `pool`, `walk`, or what starts launches on a platform, by name."""
        from tessera.entry import code  # with llvmlite
        from tessera.runtime.platforms import platforms

        starts = {one.name: one.start_ir for one in platforms() if one.has_streams}
        if name in starts:
            return bytes(code.compile_ir(starts[name]()))
        if name == "walk":
            return bytes(code.compile_ir(code.walk_ir()))
        return bytes({"entry": code.compile_entry, "pool": code.compile_pool}[name]())

    def load(self, code: bytes) -> LoadedCode:
        """Make object code executable, through LLVM where it needs more than a place."""
        from tessera.runtime.elf import map_object
        from tessera.runtime.host import matrix_unit_granted

        matrix_unit_granted()
        found = map_object(code)
        if found is not None:
            return found
        from tessera.backends.cpu import load_object

        return load_object(code)
