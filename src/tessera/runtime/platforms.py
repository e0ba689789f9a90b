"""What the runtime asks of a platform: its devices, their memory, and code loaded on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from tessera.data import dataclass
from tessera.errors import TargetError
from tessera.numerics.dtypes import DType
from tessera.runtime.device import CPU, Device
from tessera.runtime.packing import Shapes
from tessera.runtime.views import ArrayView, Reader
from tessera.target.artifact import Artifact
from tessera.target.records import TargetRecord
from tessera.target.registry import Family, families

if TYPE_CHECKING:
    from tessera.entry.tables import ArrayGuard, Work

Stream = Callable[[Sequence[Any]], int]
"""Gives the stream of a call from its arguments."""


class Plan(Protocol):
    """A launch prepared for one set of shapes."""

    def launch(
        self, pointers: Sequence[int], scalars: Sequence[Any], keep: Sequence[Any] = (), stream: int = 0
    ) -> None:
        """Run or queue the kernel."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Again:
    """A launch that is started again and again on other arrays.

    Args:
        plan: the launch.
        sources: for each pointer the place of an address among a run's, and how many bytes after it the pointer is.
        scalars: its other arguments.
    """

    plan: Plan
    sources: tuple[tuple[int, int], ...]
    scalars: tuple[Any, ...]


class Table(Protocol):
    """Launches that are started together, one after the other."""

    def run(self, addresses: Sequence[int], stream: int) -> None:
        """Run or queue all of them; not from two threads at once.

        Args:
            addresses: what the sources of the launches count from.
            stream: the stream's address.
        """
        ...


class Launcher(Protocol):
    """Code loaded on a device."""

    def prepare(self, shapes: Shapes) -> Plan:
        """Return the launch for one set of shapes."""
        ...

    def work(self, stream_of: int) -> Work:
        """Return the launches for the compiled entry.

        Args:
            stream_of: what `entry_stream` of the platform gives.

        Raises:
            NotDirect: the entry cannot start them.
        """
        ...


class LoadedCode(Protocol):
    """Object code made executable; the code stays while this object does."""

    def address(self, symbol: str) -> int:
        """Return the address of a function."""
        ...


class HostArrays(Protocol):
    """Arrays that the host can compute with, which stand for a device's."""

    arrays: list[Any]

    def write_back(self) -> None:
        """Bring what was stored to the device."""
        ...


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device of this machine.

    Args:
        device: its name for `device=`.
        backend: the backend that runs there.
        name: the vendor's name for it.
        target: the target that kernels are compiled for there.
        memory_bytes: its memory, 0 when unknown.
    """

    device: Device
    backend: str
    name: str
    target: str
    memory_bytes: int = 0


class DevicePlatform(Family, Protocol):
    """A platform with devices."""

    @property
    def has_tensor_maps(self) -> bool:
        """Whether copies go by descriptors, which hold no negative strides and no large ones, nor large sizes."""
        ...

    @property
    def has_streams(self) -> bool:
        """Whether launches are queued on streams, by `start_ir` for the compiled entry, which runs others itself."""
        ...

    def start_ir(self) -> str:
        """Return the LLVM IR of `layout.STARTER`, which starts the launches of a record."""
        ...

    @property
    def array_protocol(self) -> str:
        """The attribute of arrays of other libraries on its devices that have no DLPack; empty for none."""
        ...

    def protocol_reader(self) -> Reader:
        """Return how arrays with `array_protocol` are read."""
        ...

    def export_stream(self, array: Any) -> int | None:
        """Return the stream to name to an array on its devices whose `__dlpack__` is asked, None for none."""
        ...

    def devices(self) -> list[DeviceInfo]:
        """Return its devices in this machine that can be used; none when a driver or a package is missing."""
        ...

    def require(self) -> None:
        """Check that there is a device.

        Raises:
            TargetError: `missing-extra`.
            DeviceError: `no-driver` or `no-device`.
        """
        ...

    def capabilities(self) -> dict[str, Any]:
        """Return what its first device can do; raises as `require`."""
        ...

    def device_target(self, device: Device) -> TargetRecord:
        """Return the record to compile for on a device."""
        ...

    def device_identity(self, device: Device) -> str:
        """Return what decides the code for a device, for cache keys; found without loading a compiler."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: DType, device: Device) -> Any:
        """Return an array whose elements are not set."""
        ...

    def fill(self, array: Any, host: Any) -> None:
        """Copy a NumPy array to an array that `empty` made."""
        ...

    def borrow(self, source: Any, pointer: int, view: ArrayView, keep: object) -> Any:
        """Return an array over the memory of `source`, or `source` when it is such an array."""
        ...

    def to_numpy(self, source: Any, pointer: int, view: ArrayView, keep: object) -> Any:
        """Return a NumPy array of what `source` holds, over the same memory where the host can address it."""
        ...

    def on_host(
        self, pointers: Sequence[int], views: Sequence[ArrayView], keep: Sequence[object], stream: int
    ) -> HostArrays:
        """Return arrays of one device as the host's; arrays that share memory there share it here."""
        ...

    def stream_source(self, args: Sequence[Any], device: Device) -> Stream:
        """Return how calls with such arguments find their stream."""
        ...

    def stream_address(self, stream: Any) -> int:
        """Return the address of a stream that a caller names.

        Raises:
            CallError: `bad-stream`.
        """
        ...

    def array_guard(self, array: Any) -> ArrayGuard | None:
        """Return what the compiled entry checks of an array of the kind that `empty` makes, None for other arrays.

        Place, dimensions and whether it is written are left open.

        Raises:
            NotDirect: the entry cannot read this one.
        """
        ...

    def entry_stream(self, args: Sequence[Any]) -> int:
        """Return the address of DLPack's function that gives the stream of such calls; 0 for the default stream.

        Raises:
            NotDirect: the stream is found in Python.
        """
        ...

    def launcher(self, artifact: Artifact, device: Device) -> Launcher:
        """Load an artefact on a device.

        Raises:
            DeviceError: the device refuses it; `wrong-cpu`.
            ResourceError: it needs more than the device has.
        """
        ...

    def table(self, launches: Sequence[Again], walk: Callable[[], int]) -> Table:
        """Return launches of plans of this platform's as a table.

        Args:
            launches: the launches, in order.
            walk: gives the address of `layout.WALKER`.
        """
        ...

    def runs_here(self, artifact: Artifact) -> bool:
        """Return whether this process may run an artefact's code, which another process of this machine made."""
        ...


class HostPlatform(DevicePlatform, Protocol):
    """The platform of the CPU that Python runs on: the runtime's own machine code is for it."""

    def native_code(self, name: str) -> bytes:
        """Compile a part of the runtime: `entry`, `pool`, `walk`, or what starts launches on a platform, by name."""
        ...

    def load(self, code: bytes) -> LoadedCode:
        """Make object code executable."""
        ...


def platforms() -> list[DevicePlatform]:
    """Return the platforms that have devices, the host's first."""
    return [cast(DevicePlatform, one) for one in families() if one.device_kind]


def platform_of(device: Device) -> DevicePlatform:
    """Return the platform of a device.

    Raises:
        TargetError: `unknown-device`.
    """
    for one in platforms():
        if one.device_kind == device.kind:
            return one
    raise TargetError(
        f"no platform has the device {device}",
        code="unknown-device",
        help="use arrays of the CPU, or of a GPU that ts.runtime.devices() names",
    )


class StreamMemory(Protocol):
    """Memory of a device that is taken, used and given back in the order of a stream; platforms of GPUs have it."""

    def stream_address(self, stream: Any) -> int:
        """Return what `DevicePlatform.stream_address` does."""
        ...

    def allocate(self, device: Device, size: int, stream: int) -> int:
        """Return the address of new memory, usable by work queued on `stream`.

        Raises:
            DeviceError: `out-of-memory`.
        """
        ...

    def free(self, device: Device, pointer: int, stream: int) -> None:
        """Free memory once what `stream` holds now is done."""
        ...

    def over_scratch(self, pointer: int, view: ArrayView, stream: int) -> Any:
        """Return an array over memory that is used on one stream only."""
        ...

    def is_own(self, array: Any) -> bool:
        """Return whether an array is one that `empty` makes."""
        ...


def stream_memory(device: Device) -> StreamMemory:
    """Return the memory of a device whose work is queued on streams."""
    return cast(StreamMemory, platform_of(device))


def host_platform() -> HostPlatform:
    """Return the platform of the host's CPU."""
    return cast(HostPlatform, platform_of(CPU))
