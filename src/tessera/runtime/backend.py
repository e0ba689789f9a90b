"""Which backends this machine has and which one was chosen."""

from __future__ import annotations

import os
from typing import Any

from tessera.entry.host import new_generation
from tessera.errors import CallError, TargetError
from tessera.runtime.device import CPU, Device
from tessera.runtime.platforms import DeviceInfo, DevicePlatform, platform_of, platforms

BACKENDS = ("cpu", "ptx", "rocm", "level_zero")
"""The names that are settled; for some of them there is no platform yet."""


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


def _named(name: str, source: str) -> DevicePlatform:
    """Return the platform with devices that a backend's name means."""
    found = platforms()
    text = name if isinstance(name, str) else ""  # pyright: ignore[reportUnnecessaryIsInstance]
    for one in found:
        if one.name == text:
            return one
    if text in BACKENDS:
        raise TargetError(
            f"{source}: the backend {name!r} is not there yet",
            code="unsupported-backend",
            help=f"use {' or '.join(one.name for one in found)}",
        )
    raise TargetError(
        f"{source}: no backend is called {name!r}",
        code="unknown-backend",
        help=f"one of {', '.join(BACKENDS)}",
    )


def select_backend(name: str) -> None:
    """Run kernels on one backend only: arrays elsewhere are then a typed error, never copied in silence.

    Args:
        name: `cpu`, `ptx`, `rocm` or `level_zero`.

    Raises:
        TargetError: `unknown-backend`, `unsupported-backend`, or `missing-extra`.
        DeviceError: `no-driver` or `no-device` when the machine has no GPU.
    """
    _named(name, "select_backend").require()
    _choice.name = name


def selected_backend() -> str | None:
    """Return the backend chosen by `select_backend` or `TESSERA_BACKEND`, None when the arrays decide.

    Raises:
        TargetError: as `select_backend`, for the variable's value.
    """
    if _choice.name is None and not _choice.read_environment:
        name = os.environ.get("TESSERA_BACKEND")
        if name:
            _named(name, "TESSERA_BACKEND")
            select_backend(name)
        _choice.read_environment = True
    return _choice.name


def default_device() -> Device:
    """Return where new arrays go when no device is named."""
    name = selected_backend()
    return CPU if name is None else Device(_named(name, "select_backend").device_kind)


def backend_for(device: Device) -> str:
    """Return the backend that runs kernels on arrays of a device.

    Raises:
        CallError: `wrong-device` when another backend was chosen.
    """
    backend = platform_of(device).name
    chosen = selected_backend()
    if chosen not in (None, backend):
        where = default_device()
        copy = "ts.runtime.to_numpy(array)" if where.is_host else f'ts.asarray(array, device="{where.kind}")'
        raise CallError(
            f"the arrays are on {device}, but the backend {chosen!r} was chosen",
            code="wrong-device",
            help=f"copy them with {copy}, or choose the backend {backend!r}",
        )
    return backend


def devices() -> list[DeviceInfo]:
    """Return the devices of this machine that kernels can run on, the CPU first."""
    return [info for one in platforms() for info in one.devices()]


def capabilities(backend: str | None = None) -> dict[str, Any]:
    """Return what a backend can do on this machine, under the keys of the portability guide.

    Args:
        backend: the backend; by default the chosen one, else that of the first GPU, else `cpu`.

    Raises:
        TargetError: `unknown-backend`, `unsupported-backend`, or `missing-extra`.
        DeviceError: `no-driver` or `no-device`.
    """
    chosen = selected_backend() if backend is None else backend
    if chosen is not None:
        return _named(chosen, "capabilities").capabilities()
    host, *others = platforms()
    return next((one for one in others if one.devices()), host).capabilities()
