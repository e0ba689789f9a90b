"""`ts.load`: kernels that run from a file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tessera.driver.binding import alignment, canonical_strides, check_tensors, runs_backwards, tensor_facts
from tessera.driver.calls import CallPlan, Calls
from tessera.driver.direct_calls import Origin
from tessera.driver.explain import Explanation
from tessera.driver.launch import checked, launcher_for, stream_source
from tessera.driver.settings import settings
from tessera.driver.variants import Variant
from tessera.entry.host import call_directly
from tessera.errors import CallError
from tessera.frontend.annotations import Dim
from tessera.frontend.signature import ScalarParam, Signature, TensorParam
from tessera.frontend.specialize import ArgFacts, Specialization
from tessera.numerics.dtypes import as_policy, dtype_named
from tessera.numerics.profiles import chosen_profile
from tessera.runtime.arguments import (
    ExpectedTensor,
    check_overlap,
    check_starts,
    check_writable,
    common_device,
    elements,
)
from tessera.runtime.backend import backend_for, default_device
from tessera.runtime.device import Device
from tessera.runtime.views import ArrayView
from tessera.target.artifact import ArgSpec, Artifact

if TYPE_CHECKING:
    from pathlib import Path


class LoadedKernel(Calls[..., Any]):
    """A kernel from a file. Call it with its tensor and scalar arguments; constexprs are compiled in.

    It runs under the numerics profile that it was compiled under. A call in a `with ts.numerics.profile(...)` block
    that names another one is an error, `wrong-profile`.

    Args:
        artifact: the compiled kernel.
    """

    def __init__(self, artifact: Artifact) -> None:
        super().__init__(Signature(None, _params(artifact), known_as=artifact.name))
        self.artifact = artifact
        self._variant = Variant(_fixed_sizes(artifact), artifact, "file")
        self._expected = [ExpectedTensor.of_spec(spec) for spec in artifact.args if spec.kind == "tensor"]

    def _new_plan(self, args: Sequence[Any], pointers: Sequence[int]) -> CallPlan:
        self._check_profile()
        views, specs = self._views(args), self.artifact.args
        check_tensors(self._expected, views)
        tensors = [spec for spec in specs if spec.kind == "tensor"]
        device = common_device([spec.name for spec in tensors], views) or default_device()
        self._check_backend(device)
        strides = list(map(_guarded, tensors, pointers, views))
        names, written = [spec.name for spec in tensors], [spec.written for spec in tensors]
        check_starts(names, pointers, views, written)
        shapes = iter([(view.shape, steps) for view, steps in zip(views, strides, strict=True)])
        launcher = launcher_for(self._variant, device)
        launch = launcher.prepare([next(shapes) if spec.kind == "tensor" else None for spec in specs]).launch
        facts = iter([tensor_facts(*given) for given in zip(names, pointers, views, strides, strict=True)])
        known = tuple(
            next(facts) if spec.kind == "tensor" else ArgFacts("scalar", dtype_named(spec.dtype)) for spec in specs
        )
        origin = Origin(Specialization(known, profile=self.artifact.profile), self._variant, launcher, device)
        if settings().debug:
            launch, origin = checked(launch, names, views, written), None
        else:
            check_overlap(names, list(map(elements, pointers, views)), written)
        explanation = Explanation.of(
            self.artifact, str(device), self.artifact.profile, fixed=self._variant.fixed, origin="file"
        )
        returns = self._positions(self.artifact.returns)
        return CallPlan(launch, device, stream_source(args, device), returns, explanation, origin)

    def _check_profile(self) -> None:
        chosen, own = chosen_profile(), self.artifact.profile
        if chosen not in (None, own):
            raise CallError(
                f"{self.artifact.name} was compiled under the profile {own}, and is called under {chosen}",
                code="wrong-profile",
                help=f'call it in ts.numerics.profile("{own}") or outside of any, or compile it under {chosen}',
            )

    def _check_backend(self, device: Device) -> None:
        if backend_for(device) != self.artifact.backend:
            raise CallError(
                f"{self.artifact.name} was built for {self.artifact.target}; the arguments are on {device}",
                code="wrong-device",
                help="compile it for that device, or move the arrays",
            )

    def __repr__(self) -> str:
        return f"<tessera artefact {self.artifact.name} for {self.artifact.target}>"


call_directly(LoadedKernel)


def _params(artifact: Artifact) -> tuple[TensorParam | ScalarParam, ...]:
    return tuple(
        TensorParam(spec.name, tuple(map(Dim.parse, spec.dims)), as_policy(dtype_named(spec.dtype)))
        if spec.kind == "tensor"
        else ScalarParam(spec.name, dtype_named(spec.dtype))
        for spec in artifact.args
    )


def _fixed_sizes(artifact: Artifact) -> dict[str, int]:
    """Return the sizes that the code holds as constants, by dimension."""
    return {text: size for spec in artifact.args for text, size in zip(spec.dims, spec.sizes, strict=True) if size >= 0}


def _guarded(spec: ArgSpec, pointer: int, view: ArrayView) -> tuple[int, ...]:
    """Check what the code relies on beyond dtype and rank; returns the strides to launch with.

    An empty array may have any strides and address, as it has no element to be found there.

    Raises:
        CallError: `artifact-guard`, naming what was assumed, or as `check_writable`.
    """
    strides = canonical_strides(view)
    if 0 in view.shape:
        known = zip(spec.strides, spec.stride_div, strict=True)
        strides = tuple(some if stride == -1 else stride for stride, some in known)
    if alignment(spec.name, pointer, view) % min(spec.align, 16):
        raise _guard(spec, f"an address that is a multiple of {spec.align} bytes", f"{pointer:#x}")
    for axis, size in enumerate(view.shape):
        if spec.sizes[axis] not in (-1, size):
            raise _guard(spec, f"size {spec.sizes[axis]} in dimension {axis}", str(size))
        if size % spec.dim_div[axis]:
            raise _guard(spec, f"a size divisible by {spec.dim_div[axis]} in dimension {axis}", str(size))
        if size > 1 and spec.strides[axis] not in (-1, strides[axis]):
            raise _guard(spec, f"stride {spec.strides[axis]} in dimension {axis}", str(strides[axis]))
        backwards = runs_backwards(strides[axis], view) and spec.stride_div[axis] > 1
        if size > 1 and (backwards or strides[axis] % spec.stride_div[axis]):
            raise _guard(spec, f"a stride divisible by {spec.stride_div[axis]} in dimension {axis}", str(strides[axis]))
    if spec.written:
        check_writable(spec.name, view)
    return strides


def _guard(spec: ArgSpec, wanted: str, got: str) -> CallError:
    return CallError(
        f"the artefact was compiled for {wanted} of argument {spec.name!r}, got {got}",
        code="artifact-guard",
        help="compile it again for such arguments, or call the kernel itself",
    )


def load(path: str | Path) -> LoadedKernel:
    """Return a saved artefact as a callable, which runs under the numerics profile that it was compiled under.

    A call in a `with ts.numerics.profile(...)` block that names another profile is a `CallError`, `wrong-profile`.

    Args:
        path: a file that `Artifact.save` wrote.

    Raises:
        ArtifactError: `bad-artifact`.
        CallError: `no-such-file`.
    """
    try:
        with open(os.fspath(path), "rb") as file:
            data = file.read()
    except (OSError, TypeError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not a path"
        raise CallError(
            f"{path!s:.200} cannot be read: {why}", code="no-such-file", help="give a file that .save() wrote"
        ) from error
    return LoadedKernel(Artifact.from_bytes(data))
