"""Which targets programs may be compiled for, and compiling for an older CPU than this machine's.

The latter tests every vector width on one machine.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tessera.errors import TargetError
from tessera.target.records import TargetRecord
from tessera.target.registry import target_named
from tessera.tools.fuzz.run import Device

_OF_GPUS = ("ptx", "races", "threads")
_OF_NO_TARGET = ("cuda", "interp")


def check(device: Device) -> None:
    """Refuse a target that programs cannot be run for, before the first one.

    Raises:
        TargetError: `unknown-target`; `wrong-target` for one that the device does not take; `unsupported-host` for a
            CPU that has what this one lacks.
    """
    if not device.target:
        return
    record = target_named(device.target)
    if device.kind in _OF_NO_TARGET:
        raise _refused(device, "it has no other target than its own")
    if device.kind in _OF_GPUS and record.backend != "ptx":
        raise _refused(device, "it takes GPUs, such as sm_90a")
    if device.kind == "cpu" and record.backend != "cpu":
        raise _refused(device, "it takes CPUs, such as x86-64-v3")
    if device.kind == "cpu":
        _runnable(device.target)


def _refused(device: Device, why: str) -> TargetError:
    return TargetError(f"--device {device.kind} cannot run {device.target}", code="wrong-target", help=why)


def _runnable(name: str) -> tuple[TargetRecord, TargetRecord]:
    """Return this machine's CPU and another target that it runs too."""
    from tessera.backends.cpu.host import host_target, resolve

    host, wanted = host_target(), resolve(target_named(name))
    missing = wanted.features - host.features - {"avx512vl", "avx512bw", "avx512dq"}
    if missing:
        raise TargetError(
            f"this CPU cannot run {name}: it lacks {', '.join(sorted(missing))}",
            code="unsupported-host",
            help="name an older CPU, such as x86-64-v2",
        )
    return host, wanted


def use(name: str) -> None:
    """Make kernels that are called from now on be compiled for a target that this CPU runs too.

    Args:
        name: the target, such as `x86-64-v3`.

    Raises:
        TargetError: `unsupported-host` when this CPU lacks what the target has.
    """
    from tessera.backends import cpu

    host, wanted = _runnable(name)
    record = replace(wanted, name=host.name, triple=host.triple, cores=host.cores)
    module: Any = cpu
    module.host_target = lambda: record
