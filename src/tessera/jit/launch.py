"""Loads compiled variants on devices, and finds the stream of a call."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from tessera.frontend.signature import Signature
from tessera.frontend.specialize import Specialization
from tessera.jit.native import check_cpu, load_object, load_pool
from tessera.jit.variants import Space, Variant, points, specialize_at
from tessera.runtime import pool
from tessera.runtime.arguments import check_overlap, elements
from tessera.runtime.arrays import over_memory
from tessera.runtime.cpu import CpuLauncher
from tessera.runtime.device import Device
from tessera.runtime.packing import Shapes
from tessera.runtime.views import READERS, ArrayView
from tessera.target.artifact import Artifact

pool.load_from(load_pool)

Stream = Callable[[Sequence[Any]], int]
"""Gives the stream of a call from its arguments."""


Launch = Callable[[Sequence[int], Sequence[Any], Sequence[object], int], None]
"""Runs a call: addresses, scalar values, objects to keep alive, stream."""


class Plan(Protocol):
    """A launch prepared for one set of shapes."""

    def launch(
        self, pointers: Sequence[int], scalars: Sequence[Any], keep: Sequence[Any] = (), stream: int = 0
    ) -> None:
        """Run or queue the kernel."""
        ...


class Launcher(Protocol):
    """Code loaded on a device."""

    def prepare(self, shapes: Shapes) -> Plan:
        """Return the launch for one set of shapes."""
        ...


def new_launcher(artifact: Artifact, device: Device) -> Launcher:
    """Load an artefact on a device.

    Raises:
        DeviceError: the device refuses it; `wrong-cpu`.
        ResourceError: it needs more than the device has.
    """
    if device.kind == "cpu":
        check_cpu(artifact)
        return CpuLauncher(artifact, load_object)
    from tessera.runtime.cuda_launch import CudaLauncher

    return CudaLauncher(artifact, device.index)


def launcher_for(variant: Variant, device: Device) -> Launcher:
    """Return a variant loaded on a device, loaded at most once."""
    if device not in variant.launchers:
        variant.launchers[device] = new_launcher(variant.artifact, device)
    return variant.launchers[device]


def checked(
    launch: Launch, names: Sequence[str], views: Sequence[ArrayView], written: Sequence[bool]
) -> Launch:
    """Return a launch that first checks, at each call, that the arrays do not overlap; see `check_overlap`."""

    def check_and_launch(
        pointers: Sequence[int], scalars: Sequence[Any], keep: Sequence[object], stream: int
    ) -> None:
        check_overlap(names, list(map(elements, pointers, views)), written)
        launch(pointers, scalars, keep, stream)

    return check_and_launch


def _no_stream(_args: Sequence[Any]) -> int:
    return 0


def stream_source(args: Sequence[Any], device: Device) -> Stream:
    """Return how such calls find their stream: the caller's current PyTorch or CuPy one, else the default.

    Args:
        args: the arguments of one call.
        device: where it runs.
    """
    if device.kind == "cpu":
        return _no_stream
    from tessera.runtime import cuda

    torch = sys.modules.get("torch")
    index = device.index
    if torch is not None and any(isinstance(arg, torch.Tensor) for arg in args):
        getter = cuda.torch_stream_getter()
        return lambda _args: getter(index)
    from tessera.runtime.cuda_array import DeviceArray

    kinds: list[type] = [type(arg) for arg in args]
    if all(kind is DeviceArray for kind in kinds if kind in READERS):
        return _no_stream
    return lambda args: cuda.current_stream(tuple(args), index)


class InterpreterPlan:
    """Runs a call on the interpreter (`TESSERA_INTERPRET=1`): GPU arrays are copied to the host and back.

    Args:
        signature: the kernel's parameters.
        spec: facts of the call.
        space: the kernel's tuning space; its first point is used, as resources have no limit here.
        views: the tensor arguments.
    """

    def __init__(
        self, signature: Signature, spec: Specialization, space: Space, views: Sequence[ArrayView]
    ) -> None:
        from tessera.frontend.build import build_kernel

        first = specialize_at(signature, spec, next(points(space)))
        self._built = build_kernel(signature, replace(first, debug=True))
        self._kinds = [fact.kind for fact in spec.args]
        self._views = list(views)
        self.returns: tuple[int, ...] = self._built.returns

    def launch(
        self, pointers: Sequence[int], scalars: Sequence[Any], keep: Sequence[Any] = (), stream: int = 0
    ) -> None:
        """Interpret the kernel.

        Raises:
            DeviceError: what the interpreter's checks found.
        """
        from tessera.interp import interpret

        copies = None
        if any(view.device.kind == "cuda" for view in self._views):
            from tessera.runtime.cuda_array import HostCopies

            copies = HostCopies(pointers, self._views, stream)
            arrays = copies.arrays
        else:
            owner = tuple(keep)
            arrays = [over_memory(p, view, owner) for p, view in zip(pointers, self._views, strict=True)]
        tensors, numbers = iter(arrays), iter(scalars)
        interpret(
            self._built.module, [next(tensors) if kind == "tensor" else next(numbers) for kind in self._kinds]
        )
        if copies is not None:
            copies.write_back()
