"""Lets this process compile for an older CPU than its own, so that every vector width is tested on one machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tessera.errors import TargetError
from tessera.target.registry import target_named


def use(name: str) -> None:
    """Make kernels that are called from now on be compiled for a target that this CPU runs too.

    Args:
        name: the target, such as `x86-64-v3`.

    Raises:
        TargetError: `unsupported-host` when this CPU lacks what the target has.
    """
    from tessera.backends import cpu
    from tessera.backends.cpu.host import host_target, resolve

    host, wanted = host_target(), resolve(target_named(name))
    missing = wanted.features - host.features - {"avx512vl", "avx512bw", "avx512dq"}
    if missing:
        raise TargetError(f"this CPU cannot run {name}: it lacks {', '.join(sorted(missing))}", code="unsupported-host")
    record = replace(wanted, name=host.name, triple=host.triple, cores=host.cores)
    module: Any = cpu
    module.host_target = lambda: record
