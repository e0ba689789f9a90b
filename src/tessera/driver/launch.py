"""Loads compiled variants on devices, and finds the stream of a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tessera.driver.native import kept, load_native, load_pool
from tessera.driver.variants import Space, Variant, points, specialize_at
from tessera.entry import layout
from tessera.frontend.signature import Signature
from tessera.frontend.specialize import Specialization
from tessera.runtime import host, pool
from tessera.runtime.arguments import check_overlap, check_writable, elements
from tessera.runtime.device import CPU, Device
from tessera.runtime.once import once
from tessera.runtime.packing import scalar_number
from tessera.runtime.platforms import Again, DevicePlatform, Launcher, Stream, Table, platform_of
from tessera.runtime.views import ArrayView

pool.load_from(load_pool)
host.keep_by(kept)

Launch = Callable[[Sequence[int], Sequence[Any], Sequence[object], int], None]
"""Runs a call: addresses, scalar values, objects to keep alive, stream."""


def launcher_for(variant: Variant, device: Device) -> Launcher:
    """Return a variant loaded on a device, loaded at most once."""
    if device not in variant.launchers:
        variant.launchers[device] = platform_of(device).launcher(variant.artifact, device)
    return variant.launchers[device]


def checked(launch: Launch, names: Sequence[str], views: Sequence[ArrayView], written: Sequence[bool]) -> Launch:
    """Return a launch that first checks, at each call, that the arrays do not overlap; see `check_overlap`."""

    def check_and_launch(pointers: Sequence[int], scalars: Sequence[Any], keep: Sequence[object], stream: int) -> None:
        check_overlap(names, list(map(elements, pointers, views)), written)
        launch(pointers, scalars, keep, stream)

    return check_and_launch


def stream_source(args: Sequence[Any], device: Device) -> Stream:
    """Return how such calls find their stream: the caller's current PyTorch or CuPy one, else the default.

    Args:
        args: the arguments of one call.
        device: where it runs.
    """
    return platform_of(device).stream_source(args, device)


@once
def load_starts(platform: DevicePlatform) -> Any:
    """Return the loaded code that starts launches on a platform which queues them."""
    return load_native(platform.name)


def table_of(launches: Sequence[Again], device: Device) -> Table:
    """Return launches on a device as a table, to be started together.

    Raises:
        NotDirect: the driver lacks a function.
    """
    platform = platform_of(device)
    return platform.table(launches, partial(_walker, platform))


def _walker(platform: DevicePlatform) -> int:
    """Return the address of what starts a table's launches on a platform."""
    code = load_starts(platform) if platform.has_streams else _load_walk()
    return code.address(layout.WALKER)


@once
def _load_walk() -> Any:
    """Return the loaded code that runs a table's launches on the CPU."""
    return load_native("walk")


class InterpreterPlan:
    """Runs a call on the interpreter (`TESSERA_INTERPRET=1`): GPU arrays are copied to the host and back.

    Args:
        signature: the kernel's parameters.
        spec: facts of the call.
        space: the kernel's tuning space; its first point is used, as resources have no limit here.
        views: the tensor arguments.

    Raises:
        CallError: as `check_writable`.
    """

    def __init__(self, signature: Signature, spec: Specialization, space: Space, views: Sequence[ArrayView]) -> None:
        from tessera.driver.records import kernel_of
        from tessera.frontend.build import build_kernel
        from tessera.lower.launch import arg_specs

        first = specialize_at(signature, spec, next(points(space)))
        self._built = build_kernel(signature, replace(first, debug=True))
        self._specs = arg_specs(kernel_of(self._built.module))
        self._views = list(views)
        self.returns: tuple[int, ...] = self._built.returns
        for arg, view in zip([arg for arg in self._specs if arg.kind == "tensor"], views, strict=True):
            if arg.written:
                check_writable(arg.name, view)

    def launch(
        self, pointers: Sequence[int], scalars: Sequence[Any], keep: Sequence[Any] = (), stream: int = 0
    ) -> None:
        """Interpret the kernel.

        Raises:
            CallError: `wrong-scalar`.
            DeviceError: what the interpreter's checks found.
        """
        from tessera.interp import interpret

        numbers = iter(scalars)
        values = [scalar_number(arg, next(numbers)) if arg.kind == "scalar" else None for arg in self._specs]
        where = self._views[0].device if self._views else CPU
        held = platform_of(where).on_host(pointers, self._views, keep, stream)
        tensors = iter(held.arrays)
        interpret(self._built.module, [next(tensors) if value is None else value for value in values])
        held.write_back()
