"""From the arguments of a call to what the compiler and the launcher need to know of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

from tessera.errors import CallError, caller_location, shown
from tessera.frontend.annotations import Dim
from tessera.frontend.signature import MISSING, ConstexprParam, Signature, TensorParam
from tessera.frontend.specialize import ArgFacts
from tessera.runtime.arguments import ExpectedTensor, bind_dims
from tessera.runtime.platforms import platform_of
from tessera.runtime.views import ArrayView
from tessera.target.artifact import MOST_MAPPED, MOST_STRIDE_BYTES
from tessera.target.divisors import WIDEST, class_of


def expected_tensors(signature: Signature) -> tuple[ExpectedTensor, ...]:
    """Return what each tensor parameter accepts."""
    return tuple(ExpectedTensor(param.name, param.dtype.storage, param.dims) for param in signature.tensors)


def dim_texts(signature: Signature) -> tuple[str, ...]:
    """Return every dimension that a compilation may fix, in a stable order: names, then what is made of them."""
    texts = (str(dim) for tensor in signature.tensors for dim in tensor.dims if not dim.is_static)
    return tuple(dict.fromkeys((*signature.dim_names, *texts)))


def text_sizes(signature: Signature, sizes: dict[str, int]) -> dict[str, int | None]:
    """Return the size of every dimension text, None where the names' sizes do not decide it."""
    return {text: Dim.parse(text).value(sizes) for text in dim_texts(signature)}


def canonical_strides(view: ArrayView) -> tuple[int, ...]:
    """Return the strides; those of one-element dimensions mean nothing and become a contiguous array's."""
    strides = list(view.strides)
    for axis in range(len(strides) - 1, -1, -1):
        if view.shape[axis] == 1:
            strides[axis] = 1 if axis == len(strides) - 1 else strides[axis + 1] * max(view.shape[axis + 1], 1)
    return tuple(strides)


def alignment(name: str, pointer: int, view: ArrayView) -> int:
    """Return the known alignment of an array's address, in bytes.

    Raises:
        CallError: `misaligned` when its elements do not lie at multiples of their size.
    """
    if pointer % WIDEST == 0 or 0 in view.shape:
        return WIDEST
    known = pointer & -pointer
    if known < view.dtype.bytes:
        raise CallError(
            f"argument {name!r} starts at an address that is not a multiple of its element's {view.dtype.bytes} bytes",
            code="misaligned",
            help="pass a copy of it",
        )
    return known


def runs_backwards(stride: int, view: ArrayView) -> bool:
    """Return whether a device can follow a stride only element by element."""
    return stride < 0 and platform_of(view.device).has_tensor_maps


def _unmapped(stride: int, view: ArrayView) -> bool:
    """Return whether no tensor map can have a stride, whether for itself or for the sizes of the array."""
    far = stride * view.dtype.bytes >= MOST_STRIDE_BYTES or max(view.shape) > MOST_MAPPED
    return (far and platform_of(view.device).has_tensor_maps) or runs_backwards(stride, view)


def tensor_facts(name: str, pointer: int, view: ArrayView, strides: tuple[int, ...]) -> ArgFacts:
    """Return what a compilation may rely on for one array.

    Nothing is known of strides that a GPU's copy engine cannot follow (CUDA Driver API, `cuTensorMapEncodeTiled`:
    they are unsigned numbers of 40 bits), or of arrays larger than its coordinates reach: no copy is started along
    strides that nothing is known of.
    """
    known = tuple(stride if stride in (0, 1) else -1 for stride in strides)
    return ArgFacts(
        "tensor",
        view.dtype,
        view.shape,
        known,
        alignment(name, pointer, view),
        tuple(1 if _unmapped(stride, view) else class_of(stride, view.dtype.bytes) for stride in strides),
        tuple(class_of(size, view.dtype.bytes) for size in view.shape),
        order=order_of(strides),
    )


def order_of(strides: Sequence[int | None]) -> tuple[int, ...]:
    """Return dimensions by their strides, the longest first; none where that is their own order, or is not known.

    Matrices have none: which of their dimensions has stride 1 says as much.
    """
    steps = [step for step in strides if step is not None and step > 0]
    if len(steps) < len(strides) or len(steps) < 3:
        return ()
    order = tuple(sorted(range(len(steps)), key=lambda axis: -steps[axis]))
    return () if order == tuple(range(len(steps))) else order


def with_aliases(
    facts: Sequence[ArgFacts],
    pointers: Sequence[int],
    views: Sequence[ArrayView],
    strides: Sequence[tuple[int, ...]],
) -> tuple[ArgFacts, ...]:
    """Return the facts of a call's arguments, with the arrays marked that start at one address.

    Args:
        facts: facts of the run-time arguments.
        pointers: addresses of the arrays among them.
        views: the arrays.
        strides: their canonical strides.
    """
    found = list(facts)
    places = [place for place, fact in enumerate(facts) if fact.kind == "tensor"]
    starts: dict[int, int] = {}
    alike: dict[tuple[Any, ...], int] = {}
    for place, pointer, view, steps in zip(places, pointers, views, strides, strict=True):
        if 0 in view.shape:
            continue  # has no memory
        first = starts.setdefault(pointer, place)
        same = alike.setdefault((pointer, view.dtype, view.shape, steps), place)
        if first != place:
            found[place] = replace(found[place], alias=first, view=-1 if same == place else same)
    return tuple(found)


def assumed_facts(param: TensorParam, sizes: dict[str, int], steps: Sequence[int] | None = None) -> ArgFacts:
    """Return the facts that `ts.compile` assumes: 16-byte aligned, of the sizes given.

    Args:
        param: the tensor parameter.
        sizes: sizes by dimension name.
        steps: strides in elements, by default those of a contiguous array.
    """
    dtype = param.dtype.storage
    shape = tuple(dim.value(sizes) for dim in param.dims)
    stride: int | None = 1
    strides: list[int | None] = []
    for size in reversed(shape):
        strides.insert(0, stride)
        stride = None if stride is None or size is None else stride * size
    if steps is not None:
        strides = list(steps)
    return ArgFacts(
        "tensor",
        dtype,
        shape,
        tuple(1 if step == 1 else -1 for step in strides),
        WIDEST,
        tuple(1 if step is None else class_of(step, dtype.bytes) for step in strides),
        tuple(1 if size is None else class_of(size, dtype.bytes) for size in shape),
        order=order_of(strides),
        contiguous=steps is None,
    )


def check_tensors(expected: Sequence[ExpectedTensor], views: Sequence[ArrayView]) -> dict[str, int]:
    """Check dtypes, ranks and shapes, and return the value of each dimension name.

    Raises:
        CallError: `wrong-dtype`, `wrong-rank` or `wrong-shape`.
    """
    for tensor, view in zip(expected, views, strict=True):
        tensor.check(view)
    return bind_dims(expected, views)


def bind_arguments(
    signature: Signature, args: Sequence[Any], kwargs: dict[str, Any], tuned: frozenset[str] = frozenset()
) -> list[Any]:
    """Put the arguments of a call into the order of the parameters, defaults filled in.

    Args:
        signature: the kernel's parameters.
        args: positional arguments.
        kwargs: keyword arguments.
        tuned: constexpr parameters that the tuning space gives when the caller does not: `MISSING` then.

    Raises:
        CallError: `argument-count` or `unknown-keyword`; of what stands before a `/` or after a `*`, too.
    """
    given = _by_name(signature, args, kwargs)
    bound: list[Any] = []
    for param in signature.params:
        default = MISSING if isinstance(param, TensorParam) else param.default
        value = given.get(param.name, default)
        if value is MISSING and param.name not in tuned:
            raise CallError(
                f"{signature.name} needs the argument {param.name!r}",
                code="argument-count",
                help=_parameters(signature),
            )
        bound.append(value)
    return bound


def _by_name(signature: Signature, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that a caller gives, by name."""
    names = [param.name for param in signature.params]
    position_only, name_only = signature.position_only, signature.name_only
    by_position = [name for name in names if name not in name_only]
    if len(args) > len(by_position):
        by_name = names[len(by_position) :]
        raise CallError(
            f"{signature.name} takes {len(by_position)} arguments{' by position' if by_name else ''}, got {len(args)}",
            code="argument-count",
            help=f"pass {', '.join(by_name)} by name" if by_name else _parameters(signature),
        )
    given = dict(zip(by_position, args, strict=False))
    for name, value in kwargs.items():
        if name in position_only:
            raise CallError(
                f"{signature.name} takes {name!r} by position only",
                code="unknown-keyword",
                help=f"pass it without its name: it stands before the '/' of the parameters ({', '.join(names)})",
            )
        if name in given:
            raise CallError(
                f"{signature.name} got argument {name!r} twice",
                code="argument-count",
                help="pass it by position or by name",
            )
        if name not in names:
            raise CallError(
                f"{signature.name} has no parameter {name!r}",
                code="unknown-keyword",
                help=KNOBS_BY_NAME if _is_knob(name) else _parameters(signature),
            )
        given[name] = value
    return given


def grid_at_call(kernel: str, grid: object) -> CallError:
    """Return the error of a launch in the manner of others, `kernel[grid](x)`."""
    return CallError(
        f"{kernel} is given the grid {shown(grid)} at its call",
        code="grid-at-call",
        location=caller_location(),
        help="call it as a function, kernel(x, y): the kernel says its grid, for i in ts.tile.grid((n, 64))",
    )


KNOBS_BY_NAME = (
    "tunables and knobs are given by name: @ts.kernel.autotune(space=dict(BM=[64, 128], num_warps=[4]), key=())"
)


def _is_knob(name: str) -> bool:
    from tessera.schedule.knobs import KNOBS  # a call that finds its code in the cache needs no schedule

    return any(name in (knob.name, knob.alias) for knob in KNOBS.values())


def _parameters(signature: Signature) -> str:
    compiled_in = "; constexpr parameters are compiled in and are not passed" if signature.known_as else ""
    return f"parameters: {', '.join(param.name for param in signature.params)}{compiled_in}"


COMPILE_OPTIONS = ("target", "dump", "dims", "strides")
"""What `ts.compile` takes by name beside what a kernel decides about at compile time."""


def check_names(kernel: str, names: Iterable[str]) -> None:
    """Check that what `ts.compile` is given by name for a kernel is not called as one of its own options.

    Raises:
        CallError: `reserved-name`.
    """
    for name in names:
        if name in COMPILE_OPTIONS:
            raise CallError(
                f"{name!r} of {kernel} has the name of an option of ts.compile",
                code="reserved-name",
                help=f"call the parameter something else than {', '.join(COMPILE_OPTIONS)}",
            )


def check_constexpr(param: ConstexprParam, value: Any) -> None:
    """Check a compile-time argument.

    Raises:
        CallError: `wrong-constexpr` when it is of another type, or not hashable.
    """
    if param.type is not None and type(value) is not param.type:
        wanted, kind = param.type.__name__, cast("type[Any]", type(value))
        foreign = kind.__module__ != "builtins"  # NumPy's bool is called that, too
        name = f"{kind.__module__}.{kind.__name__}" if foreign else kind.__name__
        raise CallError(
            f"argument {param.name!r} is {shown(value)} ({name}), the kernel takes a {wanted} known at compile time",
            code="wrong-constexpr",
            help=f"pass {wanted}({param.name})" if foreign else f"pass a {wanted}",
        )
    try:
        hash(value)
    except (TypeError, ValueError) as error:  # what can be written to has no hash, and says so in either way
        raise CallError(
            f"argument {param.name!r} is a {type(value).__name__}, which cannot be a compile-time constant",
            code="wrong-constexpr",
            help="pass a number, a string, a dtype, or a tuple of them",
        ) from error
