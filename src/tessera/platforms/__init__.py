"""The platforms that kernels compile for and run on, one readable file each; no other package knows them all.

An extension's platform is added by `tessera.target.registry.register`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tessera.platforms.cpu import CpuPlatform
from tessera.platforms.nvidia import NvidiaPlatform
from tessera.platforms.platform import Platform

if TYPE_CHECKING:
    from tessera.runtime.platforms import DevicePlatform, HostPlatform

    _host: HostPlatform = CpuPlatform()
    _gpu: DevicePlatform = NvidiaPlatform()

PLATFORMS: tuple[Platform, ...] = (CpuPlatform(), NvidiaPlatform())
"""The host's first: it is asked before the others."""
