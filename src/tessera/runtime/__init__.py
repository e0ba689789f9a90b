"""Devices, memory and launches. Knows artefacts, never IR."""

from tessera.runtime.arrays import asarray, empty, from_dlpack, full, ones, to_numpy, zeros
from tessera.runtime.backend import (
    BACKENDS,
    capabilities,
    devices,
    select_backend,
    selected_backend,
)
from tessera.runtime.device import Device
from tessera.runtime.platforms import DeviceInfo

__all__ = [
    "BACKENDS",
    "Device",
    "DeviceInfo",
    "asarray",
    "capabilities",
    "devices",
    "empty",
    "from_dlpack",
    "full",
    "ones",
    "select_backend",
    "selected_backend",
    "to_numpy",
    "zeros",
]
