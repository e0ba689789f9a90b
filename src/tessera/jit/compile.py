"""`ts.compile` and `ts.load`: kernels compiled without a device, and run from a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tessera.errors import CallError, ResourceError
from tessera.frontend.annotations import Dim
from tessera.frontend.signature import MISSING, ConstexprParam, ScalarParam, Signature, TensorParam
from tessera.frontend.specialize import ArgFacts, Specialization
from tessera.jit.binding import (
    alignment,
    assumed_facts,
    canonical_strides,
    check_constexpr,
    check_tensors,
    runs_backwards,
    tensor_facts,
)
from tessera.jit.entry import DirectCalls, Given, Origin
from tessera.jit.launch import Launcher, new_launcher, stream_source
from tessera.jit.settings import settings
from tessera.jit.structured import StructuredKernel
from tessera.jit.variants import Space, Variant, compile_point, points
from tessera.numerics.dtypes import as_policy, dtype_named
from tessera.numerics.profiles import current_profile
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
from tessera.runtime.entry.host import Callable as EntryCallable
from tessera.runtime.entry.host import call_directly
from tessera.runtime.forking import compiling
from tessera.runtime.platforms import platform_of
from tessera.runtime.views import ArrayView, view_of
from tessera.target.artifact import ArgSpec, Artifact
from tessera.target.records import TargetRecord
from tessera.target.registry import target_named

if TYPE_CHECKING:
    from tessera.jit.kernel import Kernel

DUMPS = ("tirh", "tirt", "ll", "ptx", "cubin", "asm")
"""Names of the stages that `dump=` takes."""


def compile(
    kernel: Kernel[..., Any] | StructuredKernel[..., Any],
    target: str | None = None,
    dump: Sequence[str] = (),
    dims: Mapping[str, int] | None = None,
    strides: Mapping[str, Sequence[int]] | None = None,
    **constexprs: Any,
) -> Artifact:
    """Compile a kernel without running it; no device is needed.

    Contiguous (unless `strides` says otherwise), 16-byte aligned arguments are assumed, and recorded in the artefact's
    `args`.

    Args:
        kernel: what `@ts.kernel` made.
        target: `"cpu"` (this machine), `"sm_90a"`, …; by default the chosen backend's device.
        dump: stages to keep in `Artifact.dumps`: `tirh`, `tirt`, `ll`, `ptx`, `cubin`, `asm`.
        dims: sizes of dimension names: fixed where the kernel needs one at compile time, hints elsewhere.
        strides: strides of tensor arguments, in elements, by name.
        **constexprs: values of constexpr parameters, of tunables and of structured parameters.

    Returns:
        The artefact.

    Raises:
        CallError: `unknown-dump`, `unknown-dim`, `unknown-keyword`, `argument-count`, or `bad-argument` for strides.
        TargetError: `unknown-target`.
        TesseraError: what the compiler says.
    """
    if isinstance(kernel, StructuredKernel):
        return kernel.compile(target, dump, dims, strides, **constexprs)
    _check_kernel(kernel)
    for name in _names(dump):
        if name not in DUMPS:
            raise CallError(
                f"there is no dump {name!r}", code="unknown-dump", help=f"one of {', '.join(DUMPS)}"
            )
    signature = kernel.signature
    sizes = _checked_dims(signature, _mapping(dims, "dims"))
    record = target_record(target)
    space = _narrowed(signature, kernel.space, constexprs)
    steps = _mapping(strides, "strides")
    _check_strides(signature, steps)
    spec = _assumed(signature, sizes, steps, constexprs, {name for name, _ in space})
    last: ResourceError | None = None
    for point in points(space):
        try:
            with compiling():
                return compile_point(signature, spec, point, record, dump)[1]
        except ResourceError as error:  # the next point may need less
            last = error
    assert last is not None, "a space has at least one point"
    raise last


def _check_kernel(kernel: object) -> None:
    from tessera.jit.kernel import Kernel

    if not isinstance(kernel, Kernel):
        raise CallError(
            f"{kernel!r:.80} is no kernel", code="not-a-kernel", help="decorate a function with @ts.kernel"
        )


def _names(dump: Any) -> Sequence[str]:
    if isinstance(dump, str) or not isinstance(dump, Sequence | set | frozenset):
        raise CallError(
            f"dump is {dump!r:.80}, not a list of names",
            code="unknown-dump",
            help=f"a list of {', '.join(DUMPS)}",
        )
    return cast(Sequence[str], dump)


def _mapping(value: Any, name: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(
        isinstance(key, str) for key in cast(Mapping[Any, Any], value)
    ):
        raise CallError(
            f"{name} is {value!r:.80}, not a dictionary by name", code="bad-argument",
            help=f'write {name}={{"M": …}}',
        )  # fmt: skip
    return cast(Mapping[str, Any], value)


def target_record(name: str | None) -> TargetRecord:
    """Return the record of a target by name; `cpu` and None mean this machine's.

    Raises:
        TargetError: `unknown-target`.
    """
    if name is None:
        device = default_device()
        return platform_of(device).device_target(device)
    return target_named(name if isinstance(name, str) else repr(name))  # pyright: ignore[reportUnnecessaryIsInstance]


def _checked_dims(signature: Signature, dims: Mapping[str, int]) -> dict[str, int]:
    for name, size in dims.items():
        if name not in signature.dim_names:
            raise CallError(
                f"{signature.name} has no dimension {name!r}", code="unknown-dim",
                help=f"dimensions: {', '.join(signature.dim_names) or 'none'}",
            )  # fmt: skip
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 2**62:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise CallError(
                f"dimension {name!r} is {size}", code="wrong-shape", help="sizes are integers, not negative"
            )
    return dict(dims)


def _check_strides(signature: Signature, strides: Mapping[str, Sequence[int]]) -> None:
    ranks = {param.name: len(param.dims) for param in signature.tensors}
    for name, steps in strides.items():
        fits = isinstance(steps, Sequence) and all(isinstance(step, int) for step in steps)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not fits or len(steps) != ranks.get(name):
            known = ", ".join(f"{name} has {rank} dimensions" for name, rank in ranks.items())
            raise CallError(
                f"strides of {name!r} are {steps!r:.80}", code="bad-argument",
                help=f"one for each dimension of a tensor argument: {known}",
            )  # fmt: skip


def _narrowed(signature: Signature, space: Space, constexprs: dict[str, Any]) -> Space:
    """Return the space with the tunables that the caller gives taken out of `constexprs` and fixed."""
    own = {param.name for param in signature.params}
    given = {name: constexprs.pop(name) for name, _ in space if name in constexprs and name not in own}
    return tuple((name, (given[name],) if name in given else values) for name, values in space)


def _assumed(
    signature: Signature,
    sizes: dict[str, int],
    strides: Mapping[str, Sequence[int]],
    constexprs: Mapping[str, Any],
    tunables: set[str],
) -> Specialization:
    facts: list[ArgFacts] = []
    values: list[tuple[str, object]] = []
    for param in signature.params:
        match param:
            case TensorParam():
                facts.append(assumed_facts(param, sizes, strides.get(param.name)))
            case ScalarParam():
                facts.append(ArgFacts("scalar", param.dtype))
            case ConstexprParam():
                values.append((param.name, _constexpr_value(signature, param, constexprs, tunables)))
    known = [name for name, _ in values]
    for name in constexprs:
        if name not in known:
            raise CallError(
                f"{signature.name} has no constexpr {name!r}", code="unknown-keyword",
                help=f"constexprs and tunables: {', '.join([*known, *sorted(tunables)]) or 'none'}",
            )  # fmt: skip
    return Specialization(tuple(facts), tuple(values), profile=current_profile(), debug=settings().debug)


def _constexpr_value(
    signature: Signature, param: ConstexprParam, given: Mapping[str, Any], tunables: set[str]
) -> object:
    value = given.get(param.name, param.default)
    if value is MISSING:
        if param.name in tunables:
            return MISSING
        raise CallError(
            f"{signature.name} needs the constexpr {param.name!r}", code="argument-count",
            help=f"write ts.compile({signature.name}, {param.name}=…)",
        )  # fmt: skip
    check_constexpr(param, value)
    return value


_ORIGINS_KEPT = 64


class LoadedKernel(EntryCallable):
    """A kernel from a file; call it with its tensor and scalar arguments.

    As with other kernels, CPython calls the compiled entry for calls that repeat.

    Args:
        artifact: the compiled kernel.
    """

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        self._variant = Variant(_fixed_sizes(artifact), artifact, "file")
        self._direct = DirectCalls(self, Signature(None, _params(artifact)), ())
        self._origins: dict[Specialization, Origin] = {}
        self._expected = [ExpectedTensor.of_spec(spec) for spec in artifact.args if spec.kind == "tensor"]
        self._launchers: dict[Device, Launcher] = {}

    def __call__(self, *args: Any, stream: Any = None, **kwargs: Any) -> Any:
        """Run the kernel.

        Args:
            *args: tensors and scalars in order; constexprs are compiled in.
            stream: CUDA stream (or its address) to launch on.
            **kwargs: arguments by name.

        Returns:
            The arrays that the kernel returns.

        Raises:
            CallError: an argument is not what the artefact was compiled for.
        """
        values = self._bind(args, kwargs)
        specs = self.artifact.args
        tensors = [(spec, value) for spec, value in zip(specs, values, strict=True) if spec.kind == "tensor"]
        read = [view_of(value) for _, value in tensors]
        views = [view for _, view, _ in read]
        check_tensors(self._expected, views)
        device = common_device([spec.name for spec, _ in tensors], views) or default_device()
        self._check_backend(device)
        shapes = [
            (view.shape, _guarded(spec, pointer, view))
            for (spec, _), (pointer, view, _) in zip(tensors, read, strict=True)
        ]
        self._check_memory([pointer for pointer, _, _ in read], views)
        described = iter(shapes)
        launcher = self._launcher(device)
        plan = launcher.prepare([next(described) if spec.kind == "tensor" else None for spec in specs])
        scalars = [value for spec, value in zip(specs, values, strict=True) if spec.kind == "scalar"]
        where = stream_source(values, device)(values) if stream is None else _stream_address(stream)
        plan.launch([pointer for pointer, _, _ in read], scalars, [keep for _, _, keep in read], where)
        if stream is None:
            facts = [
                tensor_facts(spec.name, pointer, view, strides)
                for (spec, _), (pointer, view, _), (_, strides) in zip(tensors, read, shapes, strict=True)
            ]
            origin = None if settings().debug else self._origin(facts, launcher)  # checked at each call
            self._direct.served_slowly(plan, origin, Given(values, len(args), tuple(kwargs)))
        returned = [values[place] for place in self.artifact.returns]
        return returned[0] if len(returned) == 1 else (tuple(returned) or None)

    def _check_memory(self, pointers: Sequence[int], views: Sequence[ArrayView]) -> None:
        """Check that each array that the code stores to is its own memory, as `ts.compile` assumes."""
        tensors = [spec for spec in self.artifact.args if spec.kind == "tensor"]
        names, written = [spec.name for spec in tensors], [spec.written for spec in tensors]
        check_starts(names, pointers, views, written)
        if settings().debug:
            check_overlap(names, list(map(elements, pointers, views)), written)

    def _origin(self, tensors: Sequence[ArgFacts], launcher: Launcher) -> Origin:
        """Return what the entry has to know of a call."""
        remaining = iter(tensors)
        facts = tuple(
            next(remaining) if spec.kind == "tensor" else ArgFacts("scalar", dtype_named(spec.dtype))
            for spec in self.artifact.args
        )
        found = Specialization(facts, profile=current_profile())
        if len(self._origins) >= _ORIGINS_KEPT:
            self._origins.clear()
        return self._origins.setdefault(found, Origin(found, self._variant, launcher))

    def _launcher(self, device: Device) -> Launcher:
        if device not in self._launchers:
            with compiling():
                self._launchers[device] = new_launcher(self.artifact, device)
        return self._launchers[device]

    def _check_backend(self, device: Device) -> None:
        if backend_for(device) != self.artifact.backend:
            raise CallError(
                f"{self.artifact.name} was built for {self.artifact.target}; the arguments are on {device}",
                code="wrong-device", help="compile it for that device, or move the arrays",
            )  # fmt: skip

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        names = [spec.name for spec in self.artifact.args]
        unknown = [name for name in kwargs if name not in names[len(args) :]]
        if len(args) + len(kwargs) != len(names) or unknown:
            given = ", ".join([f"{len(args)} by position", *kwargs])
            raise CallError(
                f"{self.artifact.name} takes {', '.join(names)}; got {given}", code="argument-count",
                help="constexpr parameters are compiled in and are not passed",
            )  # fmt: skip
        return [*args, *(kwargs[name] for name in names[len(args) :])]

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
    return {
        text: size
        for spec in artifact.args
        for text, size in zip(spec.dims, spec.sizes, strict=True)
        if size >= 0
    }


def _stream_address(stream: Any) -> int:
    from tessera.runtime.cuda import stream_address

    return stream_address(stream)


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
            raise _guard(
                spec, f"a stride divisible by {spec.stride_div[axis]} in dimension {axis}", str(strides[axis])
            )
    if spec.written:
        check_writable(spec.name, view)
    return strides


def _guard(spec: ArgSpec, wanted: str, got: str) -> CallError:
    return CallError(
        f"the artefact was compiled for {wanted} of argument {spec.name!r}, got {got}", code="artifact-guard",
        help="compile it again for such arguments, or call the kernel itself",
    )  # fmt: skip


def load(path: str | Path) -> LoadedKernel:
    """Return a saved artefact as a callable.

    Args:
        path: a file that `Artifact.save` wrote.

    Raises:
        ArtifactError: `bad-artifact`.
        CallError: `no-such-file`.
    """
    try:
        data = Path(path).read_bytes()
    except (OSError, TypeError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no path"
        raise CallError(
            f"{path!s:.200} cannot be read: {why}", code="no-such-file", help="give a file that .save() wrote"
        ) from error
    return LoadedKernel(Artifact.from_bytes(data))
