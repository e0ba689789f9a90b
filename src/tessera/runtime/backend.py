"""Which backends this machine has and which one was chosen."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from typing import Any

from tessera.errors import CallError, DeviceError, TargetError
from tessera.runtime.device import CPU, Device
from tessera.runtime.entry.host import new_generation
from tessera.target.records import TargetRecord

BACKENDS = ("cpu", "ptx", "rocm", "level_zero")
_LATER = ("rocm", "level_zero")


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


class _Choice:
    """The process-wide choice; `name` is None until somebody chooses."""

    def __init__(self) -> None:
        self.name = None
        self.read_environment = False

    @property
    def name(self) -> str | None:
        """The backend chosen; to change it makes every record of the compiled entry void."""
        return self._name

    @name.setter
    def name(self, name: str | None) -> None:
        self._name = name
        new_generation()


_choice = _Choice()


def host_record() -> TargetRecord:
    """Return the record of this machine's CPU.

    Raises:
        TargetError: `unsupported-host` for an architecture without a CPU backend.
    """
    # By name: the backend stands above this package, and like a plug-in it is loaded when it is asked for.
    return importlib.import_module("tessera.backends.cpu").host_target()


def _validated(name: str, source: str) -> str:
    if not isinstance(name, str) or name not in BACKENDS:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TargetError(
            f"{source}: no backend is called {name!r}",
            code="unknown-backend",
            help=f"one of {', '.join(BACKENDS)}",
        )
    if name in _LATER:
        raise TargetError(
            f"{source}: the backend {name!r} is not there yet",
            code="unsupported-backend",
            help="use cpu or ptx",
        )
    return name


def select_backend(name: str) -> None:
    """Run kernels on one backend only: arrays elsewhere are then a typed error, never copied in silence.

    Args:
        name: `cpu`, `ptx`, `rocm` or `level_zero`.

    Raises:
        TargetError: `unknown-backend`, `unsupported-backend`, or `missing-extra`.
        DeviceError: `no-driver` or `no-device` when the machine has no GPU.
    """
    _validated(name, "select_backend")
    if name == "ptx":
        from tessera.runtime.cuda import cuda_device

        cuda_device(0)
    _choice.name = name


def selected_backend() -> str | None:
    """Return the backend chosen by `select_backend` or `TESSERA_BACKEND`, None when the arrays decide.

    Raises:
        TargetError: as `select_backend`, for the variable's value.
    """
    if _choice.name is None and not _choice.read_environment:
        name = os.environ.get("TESSERA_BACKEND")
        if name:
            _validated(name, "TESSERA_BACKEND")
            select_backend(name)
        _choice.read_environment = True
    return _choice.name


def default_device() -> Device:
    """Return where new arrays go when no device is named."""
    return Device("cuda", 0) if selected_backend() == "ptx" else CPU


def backend_for(device: Device) -> str:
    """Return the backend that runs kernels on arrays of a device.

    Raises:
        CallError: `wrong-device` when another backend was chosen.
    """
    backend = "cpu" if device.kind == "cpu" else "ptx"
    chosen = selected_backend()
    if chosen not in (None, backend):
        copy = 'ts.asarray(array, device="cuda")' if chosen == "ptx" else "ts.runtime.to_numpy(array)"
        raise CallError(
            f"the arrays are on {device}, but the backend {chosen!r} was chosen", code="wrong-device",
            help=f"copy them with {copy}, or choose the backend {backend!r}",
        )  # fmt: skip
    return backend


def cuda_devices() -> list[DeviceInfo]:
    """Return the GPUs that can be used, none when the bindings or the driver are missing."""
    from tessera.runtime import cuda

    try:
        count = cuda.device_count()
    except (TargetError, DeviceError):  # what is missing is `tessera doctor`'s to say
        return []
    infos: list[DeviceInfo] = []
    for index in range(count):
        info = cuda.cuda_device(index)
        infos.append(DeviceInfo(info.device, "ptx", info.name, cuda.target_of(index).name, info.memory_bytes))
    return infos


def devices() -> list[DeviceInfo]:
    """Return the devices of this machine that kernels can run on, the CPU first."""
    record = host_record()
    return [DeviceInfo(CPU, "cpu", record.cpu or record.name, record.name), *cuda_devices()]


def capabilities(backend: str | None = None) -> dict[str, Any]:
    """Return what a backend can do on this machine, under the keys of the portability guide.

    Args:
        backend: the backend; by default the chosen one, else `ptx` when there is a GPU, else `cpu`.

    Raises:
        TargetError: `unknown-backend`, `unsupported-backend`, or `missing-extra`.
        DeviceError: `no-driver` or `no-device`.
    """
    chosen = selected_backend() if backend is None else backend
    name = ("ptx" if cuda_devices() else "cpu") if chosen is None else chosen
    if _validated(name, "capabilities") == "cpu":
        return {**host_record().capabilities(), "device": "cpu"}
    from tessera.runtime import cuda

    info = cuda.cuda_device(0)
    return {
        **cuda.target_of(0).capabilities(),
        "device": info.name,
        "shared_bytes_per_block": info.shared_bytes,
        "multiprocessors": info.multiprocessors,
        "memory_bytes": info.memory_bytes,
    }
