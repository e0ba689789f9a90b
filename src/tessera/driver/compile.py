"""`ts.compile`: kernels compiled without a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, cast

from tessera.driver.binding import (
    assumed_facts,
    check_constexpr,
    check_names,
)
from tessera.driver.open_kernel import OpenKernel
from tessera.driver.settings import settings
from tessera.driver.structured import StructuredKernel
from tessera.driver.variants import Space, compile_point, points
from tessera.errors import CallError, ResourceError, shown
from tessera.frontend.signature import MISSING, ConstexprParam, ScalarParam, Signature, TensorParam
from tessera.frontend.specialize import ArgFacts, Specialization
from tessera.numerics.profiles import current_profile
from tessera.platforms.platform import check_dumps
from tessera.runtime.backend import default_device
from tessera.runtime.forking import compiling
from tessera.runtime.platforms import platform_of
from tessera.target.artifact import Artifact
from tessera.target.records import TargetRecord
from tessera.target.registry import target_named

if TYPE_CHECKING:
    from pathlib import Path

    from tessera.driver.kernel import Kernel

DUMPS = ("tirh", "tirt", "ll", "ptx", "cubin", "asm")
"""Names of the stages that `dump=` takes."""


def compile(
    kernel: Kernel[..., Any] | StructuredKernel[..., Any] | OpenKernel[..., Any] | str | Path,
    /,
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
        kernel: what `@ts.kernel` made; or the path or the text of a dump, edited or not, to go on from there.
        target: `"cpu"` (this machine), `"sm_90a"`, …; by default the chosen backend's device, or what the dump says.
        dump: stages to keep in `Artifact.dumps`: `tirh`, `tirt`, `ll`; on GPUs `ptx`, `cubin`; on CPUs `asm`.
        dims: sizes of dimension names: fixed where the kernel needs one at compile time, hints elsewhere.
        strides: strides of tensor arguments, in elements, by name.
        **constexprs: values of constexpr parameters, of tunables and of structured parameters; the dtypes of dtype
            variables by name (`T=ts.bf16`); None for an optional tensor that is missing.

    Returns:
        The artefact.

    Raises:
        CallError: `unknown-dump`, `unknown-dim`, `unknown-keyword`, `argument-count`, or `bad-argument` for strides;
            `reserved-name` for a kernel that calls a constexpr `target`, `dump`, `dims` or `strides`;
            `no-such-level` for a dump that the target lacks; for a kernel from a dump also `no-record`, `no-target`
            or `wrong-target`.
        VerifyError: a dump is wrong; has the line.
        TargetError: `unknown-target`.
        TesseraError: what the compiler says.
    """
    if isinstance(kernel, StructuredKernel | OpenKernel):
        return kernel.compile(target, dump, dims, strides, **constexprs)
    if isinstance(kernel, str | PathLike):
        return _compile_dump(kernel, target, dump, {"dims": dims, "strides": strides, **constexprs})
    _check_kernel(kernel)
    signature = kernel.signature
    constants = [param.name for param in signature.params if isinstance(param, ConstexprParam)]
    check_names(signature.name, [*constants, *(name for name, _ in kernel.space)])
    check_known(dump)
    sizes = _checked_dims(signature, _mapping(dims, "dims"))
    record = target_record(target)
    check_dumps(dump, record)
    space = _narrowed(signature, kernel.space, constexprs)
    steps = _mapping(strides, "strides")
    _check_strides(signature, steps)
    spec = _assumed(signature, sizes, steps, constexprs, {name for name, _ in space})
    return _first_that_fits(signature, spec, space, record, dump)


def _first_that_fits(
    signature: Signature, spec: Specialization, space: Space, record: TargetRecord, dump: Sequence[str]
) -> Artifact:
    """Compile the first point of a space whose resources the target has.

    Raises:
        ResourceError: what the last point lacks, where none fits.
    """
    last: ResourceError | None = None
    for point in points(space):
        try:
            with compiling():
                return compile_point(signature, spec, point, record, dump)[1]
        except ResourceError as error:  # the next point may need less
            last = error
    assert last is not None, "a space has at least one point"
    raise last


def check_known(dump: Any, known: Sequence[str] = DUMPS) -> Sequence[str]:
    """Return the names of stages to keep.

    Raises:
        CallError: `unknown-dump`, with the nearest name that there is.
    """
    names = _names(dump, known)
    for name in names:
        if name not in known:
            from difflib import get_close_matches  # only a mistake needs it

            close = get_close_matches(str(name), known, 1)
            near = f"did you mean {close[0]!r}? " if close else ""
            raise CallError(f"there is no dump {name!r}", code="unknown-dump", help=f"{near}one of {', '.join(known)}")
    return names


def _compile_dump(source: str | Path, target: str | None, dump: Sequence[str], others: Mapping[str, Any]) -> Artifact:
    from tessera.driver.levels import compile_text, read_dump

    for name, value in others.items():
        if value is not None:
            raise CallError(f"a dump has its {name} already", code="bad-argument", help="give none, or the kernel")
    text, file = read_dump(source)
    with compiling():
        return compile_text(text, file, None if target is None else target_record(target), _names(dump))


def _check_kernel(kernel: object) -> None:
    from tessera.driver.kernel import Kernel

    if not isinstance(kernel, Kernel):
        raise CallError(
            f"{kernel!r:.80} is not a kernel", code="not-a-kernel", help="decorate a function with @ts.kernel"
        )


def _names(dump: Any, known: Sequence[str] = DUMPS) -> Sequence[str]:
    if isinstance(dump, str) or not isinstance(dump, Sequence | set | frozenset):
        raise CallError(
            f"dump is {dump!r:.80}, not a list of names",
            code="unknown-dump",
            help=f"a list of {', '.join(known)}",
        )
    return cast(Sequence[str], dump)


def _mapping(value: Any, name: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in cast(Mapping[Any, Any], value)):
        raise CallError(
            f"{name} is {value!r:.80}, not a dictionary by name",
            code="bad-argument",
            help=f'write {name}={{"M": …}}',
        )
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
                f"{signature.name} has no dimension {name!r}",
                code="unknown-dim",
                help=f"dimensions: {', '.join(signature.dim_names) or 'none'}",
            )
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 2**62:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise CallError(
                f"dimension {name!r} is {shown(size)}", code="wrong-shape", help="sizes are integers, not negative"
            )
    for param in signature.tensors:
        for axis, dim in enumerate(param.dims):
            size = dim.value(dims)
            if (size is None and set(dim.names) <= dims.keys()) or (size is not None and size < 0):
                raise CallError(
                    f"dimension {axis} of {param.name!r} is {dim} = {'a quotient by zero' if size is None else size}",
                    code="wrong-shape",
                    help="sizes are integers, not negative",
                )
    return dict(dims)


def _check_strides(signature: Signature, strides: Mapping[str, Sequence[int]]) -> None:
    ranks = {param.name: len(param.dims) for param in signature.tensors}
    for name, steps in strides.items():
        fits = isinstance(steps, Sequence) and all(isinstance(step, int) for step in steps)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not fits or len(steps) != ranks.get(name):
            known = ", ".join(f"{name} has {rank} dimensions" for name, rank in ranks.items())
            raise CallError(
                f"strides of {name!r} are {steps!r:.80}",
                code="bad-argument",
                help=f"one for each dimension of a tensor argument: {known}",
            )


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
                f"{signature.name} has no constexpr {name!r}",
                code="unknown-keyword",
                help=f"constexprs and tunables: {', '.join([*known, *sorted(tunables)]) or 'none'}",
            )
    return Specialization(tuple(facts), tuple(values), profile=current_profile(), debug=settings().debug)


def _constexpr_value(
    signature: Signature, param: ConstexprParam, given: Mapping[str, Any], tunables: set[str]
) -> object:
    value = given.get(param.name, param.default)
    if value is MISSING:
        if param.name in tunables:
            return MISSING
        raise CallError(
            f"{signature.name} needs the constexpr {param.name!r}",
            code="argument-count",
            help=f"write ts.compile({signature.name}, {param.name}=…)",
        )
    check_constexpr(param, value)
    return value
