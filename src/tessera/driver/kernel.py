"""`@ts.kernel`: a Python function that compiles at its first call and launches at every call (`calls.py`)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any, ParamSpec, TypeVar, cast

from tessera.driver.agreement import Agreement
from tessera.driver.binding import (
    KNOBS_BY_NAME,
    bind_arguments,
    canonical_strides,
    check_constexpr,
    check_tensors,
    expected_tensors,
    tensor_facts,
    text_sizes,
    with_aliases,
)
from tessera.driver.calls import CallPlan, Calls
from tessera.driver.direct_calls import Origin
from tessera.driver.explain import Explanation
from tessera.driver.launch import InterpreterPlan, Launch, checked, launcher_for, stream_source
from tessera.driver.settings import settings
from tessera.driver.traced import HasGradient
from tessera.driver.variants import Space, Variant, Variants, Wanted, destination_of
from tessera.entry.host import call_directly
from tessera.errors import CallError, LanguageError, caller_location, shown
from tessera.frontend.function import decorator
from tessera.frontend.signature import (
    MISSING,
    ConstexprParam,
    ScalarParam,
    Signature,
    TensorParam,
    open_params,
    structured_params,
)
from tessera.frontend.specialize import ArgFacts, Specialization
from tessera.frontend.structure import Layout
from tessera.frontend.text import keep_text
from tessera.numerics.dtypes import DType
from tessera.numerics.profiles import current_profile
from tessera.runtime.arguments import check_overlap, check_writable, common_device, elements
from tessera.runtime.backend import backend_for, default_device
from tessera.runtime.device import Device
from tessera.runtime.views import ArrayView
from tessera.target.artifact import Artifact

P = ParamSpec("P")
R = TypeVar("R")


class Kernel(Calls[P, R], HasGradient):
    """A compiled function over tiles. Call it like the function: `y = saxpy(x, y, 2.0)`.

    Args:
        function: the Python function.
        space: tunables and their values, in the order they are tried.
        key: names whose values select a tuning result.
        layouts: what is passed for structured parameters, whose parts become the kernel's parameters.
        dtypes: what dtype variables stand for.
        missing: optional tensors that are not passed.
        agreement: what other kernels of the same function have read of the program.
    """

    __wrapped__: Callable[..., Any]
    may_copy = True
    """Whether calls may run on copies of arrays that lie wrong (`driver.realign`)."""
    apart: tuple[tuple[str, str], ...] = ()
    """Pairs of tensors that must not begin at one address, the one that is written first."""

    def __init__(
        self,
        function: FunctionType,
        space: Space = (),
        key: tuple[str, ...] = (),
        layouts: Mapping[str, Layout] | None = None,
        dtypes: Mapping[str, DType] | None = None,
        missing: Collection[str] = (),
        agreement: Agreement | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        signature = Signature.of(function, layouts, dtypes, missing)
        keep_text(function)
        self._begin(signature, space, key, agreement)

    def _begin(
        self, signature: Signature, space: Space = (), key: tuple[str, ...] = (), agreement: Agreement | None = None
    ) -> None:
        """Set all that follows from the parameters."""
        self.space = space
        self.key = key
        self.variants = Variants(signature, space, agreement)
        tunables = {name for name, _ in space}
        constants = (param.name for param in signature.params if isinstance(param, ConstexprParam))
        super().__init__(signature, key, frozenset(tunables.intersection(constants)))
        self._expected = expected_tensors(signature)

    @property
    def names(self) -> set[str]:
        """The names of its dimensions and parameters."""
        return {*self.signature.dim_names, *(param.name for param in self.signature.params)}

    def _check_constexprs(self, args: Sequence[Any]) -> None:
        for param, arg in zip(self.signature.params, args, strict=True):
            if isinstance(param, ConstexprParam) and arg is not MISSING:
                check_constexpr(param, arg)

    def _check_apart(self, spec: Specialization) -> None:
        """Check that tensors that have to be apart begin at addresses of their own.

        Raises:
            CallError: `bad-argument`.
        """
        names = [param.name for param in self.signature.runtime_params]
        first = {n: names[fact.alias] if fact.alias >= 0 else n for n, fact in zip(names, spec.args, strict=True)}
        for written, read in self.apart:
            if first[written] == first[read]:
                raise CallError(
                    f"{written} is the memory of {read}, which other programs read",
                    code="bad-argument",
                    help=f"give {written} memory of its own",
                )

    def _new_plan(self, args: Sequence[Any], pointers: Sequence[int]) -> CallPlan:
        self._check_constexprs(args)
        views = self._views(args)
        device = common_device([tensor.name for tensor in self._expected], views) or default_device()
        backend_for(device)
        strides = [canonical_strides(view) for view in views]
        spec = self._specialization(args, pointers, views, strides)
        self._check_apart(spec)
        if settings().interpret:
            return self._interpreted(args, spec, views, device)
        variant = self.variant_for(spec, views, device)
        tensors = iter(zip(views, strides, strict=True))
        shapes: list[Any] = []
        for fact, arg in zip(spec.args, variant.artifact.args, strict=True):
            view, steps = next(tensors) if fact.kind == "tensor" else (None, ())
            if view is not None and arg.written:
                check_writable(arg.name, view)
            shapes.append(None if view is None else (view.shape, steps))
        launcher = launcher_for(variant, device)
        explanation = Explanation.of(
            variant.artifact,
            str(device),
            spec.profile,
            config=variant.config,
            fixed=variant.fixed,
            origin=variant.origin,
            rejected=variant.rejected,
        )
        launch, origin = launcher.prepare(shapes).launch, Origin(spec, variant, launcher, device)
        if self.may_copy and "misplaced" in variant.artifact.reflection.get("schedule", {}):
            launch, origin, explanation = self._placed(spec, pointers, views, strides, launch, origin, explanation)
        written = [arg.written for arg in variant.artifact.args if arg.kind == "tensor"]
        if any(written) and len(written) > 1:
            names = [tensor.name for tensor in self._expected]
            if spec.debug:
                launch, origin = checked(launch, names, views, written), None
            else:
                check_overlap(names, list(map(elements, pointers, views)), written)
        returns = self._positions(variant.artifact.returns)
        return CallPlan(launch, device, stream_source(args, device), returns, explanation, origin)

    def _placed(
        self,
        spec: Specialization,
        pointers: Sequence[int],
        views: Sequence[ArrayView],
        strides: Sequence[tuple[int, ...]],
        launch: Launch,
        origin: Origin,
        explanation: Explanation,
    ) -> tuple[Launch, Origin | None, Explanation]:
        """Return a call's launch, or that on copies of arrays where it is faster, what it is made from and runs."""
        from tessera.driver.realign import on_copies  # most programs need none of it

        seen = [replace(view, strides=steps) for view, steps in zip(views, strides, strict=True)]
        found = on_copies(self, spec, origin.variant, pointers, seen, origin.device, launch)
        if found is None:
            return launch, origin, explanation
        texts = [f"{name} is copied first, to rows that begin at multiples of 16 bytes" for name in found.names]
        artifact = found.variant.artifact
        reflection = {**artifact.reflection, "copies": [*artifact.reflection.get("copies", ()), *texts]}
        return found.launch, None, replace(explanation, reflection=reflection, config=found.variant.config)

    def bound(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """Return the arguments of a call in the order of the parameters.

        Raises:
            CallError: `argument-count` or `unknown-keyword`.
        """
        return bind_arguments(self.signature, args, kwargs, self._tuned)

    def facts_of(self, args: Sequence[Any]) -> tuple[list[int], list[ArrayView], Specialization]:
        """Return addresses and views of a call's arrays, and what a compilation for it may rely on.

        Raises:
            CallError: an argument does not fit.
        """
        self._check_constexprs(args)
        pointers = self._read(args)[0]
        views = self._views(args)
        strides = [canonical_strides(view) for view in views]
        return pointers, views, self._specialization(args, pointers, views, strides)

    def sizes_of(self, views: Sequence[ArrayView]) -> dict[str, int | None]:
        """Return the size of each dimension's text, from the arrays of a call.

        Raises:
            CallError: they do not fit.
        """
        return self._text_sizes(views, check_tensors(self._expected, views))

    def variant_for(self, spec: Specialization, views: Sequence[ArrayView], device: Device) -> Variant:
        """Return the code for arrays on a device."""
        return self.variants.find(spec, self.sizes_of(views), destination_of(device))

    def _wanted(self, args: Sequence[Any]) -> Wanted | None:
        _, views, spec = self.facts_of(args)
        device = common_device([tensor.name for tensor in self._expected], views) or default_device()
        return self.wanted_for(spec, views, device)

    def wanted_for(self, spec: Specialization, views: Sequence[ArrayView], device: Device) -> Wanted | None:
        """Return the code for arrays on a device as `variant_for` finds it, None where it is there."""
        return self.variants.wanted(spec, self.sizes_of(views), destination_of(device))

    def loaded(self, pointers: Sequence[int], views: Sequence[ArrayView], device: Device) -> Launch:
        """Return how a kernel that takes arrays, and after them numbers at most, is launched on a device.

        Args:
            pointers: addresses, of which what they are multiples of counts.
            views: the arrays.
            device: where it runs.
        """
        variant = self.variant_for(self.spec_of(pointers, views), views, device)
        return self.prepared(variant, views, device)

    def spec_of(self, pointers: Sequence[int], views: Sequence[ArrayView]) -> Specialization:
        """Return what a compilation for arrays may rely on, of a kernel without constexpr parameters."""
        strides = [canonical_strides(view) for view in views]
        return self._specialization([None] * len(self.signature.params), pointers, views, strides)

    def prepared(self, variant: Variant, views: Sequence[ArrayView], device: Device) -> Launch:
        """Return how code is launched on arrays, and after them numbers at most."""
        numbers: list[Any] = [None] * (len(self.signature.params) - len(views))
        shapes = [(view.shape, canonical_strides(view)) for view in views]
        return launcher_for(variant, device).prepare([*shapes, *numbers]).launch

    def written(self, args: Sequence[Any], views: Sequence[ArrayView]) -> tuple[tuple[bool, ...], tuple[int, ...]]:
        """Return what a call would do to its arguments, of which only shapes, dtypes and device are known.

        Args:
            args: values by parameter; those of arrays do not count.
            views: contiguous arrays.

        Returns:
            For each array whether it is stored to, and the places of the parameters that the kernel returns.

        Raises:
            TesseraError: an argument does not fit, or the code cannot be made.
        """
        self._check_constexprs(args)
        device = common_device([tensor.name for tensor in self._expected], views) or default_device()
        pointers = [(1 + number) << 44 for number in range(len(views))]
        spec = self._specialization(args, pointers, views, [canonical_strides(view) for view in views])
        artifact = self.variant_for(spec, views, device).artifact
        stored = tuple(arg.written for arg in artifact.args if arg.kind == "tensor")
        return stored, self._positions(artifact.returns)

    def _interpreted(
        self, args: Sequence[Any], spec: Specialization, views: list[ArrayView], device: Device
    ) -> CallPlan:
        check_tensors(self._expected, views)
        plan = InterpreterPlan(self.signature, spec, self.space, views)
        explanation = Explanation(
            self.signature.name, "interp", "numpy", str(device), spec.profile, origin="interpreted"
        )
        stream = stream_source(args, device)
        return CallPlan(plan.launch, device, stream, self._positions(plan.returns), explanation)

    def _text_sizes(self, views: Sequence[ArrayView], sizes: dict[str, int]) -> dict[str, int | None]:
        found = text_sizes(self.signature, sizes)
        for tensor, view in zip(self.signature.tensors, views, strict=True):
            found |= {str(dim): size for dim, size in zip(tensor.dims, view.shape, strict=True) if not dim.is_static}
        return found

    def _specialization(
        self,
        args: Sequence[Any],
        pointers: Sequence[int],
        views: Sequence[ArrayView],
        strides: Sequence[tuple[int, ...]],
    ) -> Specialization:
        tensors = iter(zip(self.signature.tensors, pointers, views, strides, strict=True))
        facts: list[ArgFacts] = []
        constexprs: list[tuple[str, object]] = []
        for param, arg in zip(self.signature.params, args, strict=True):
            if isinstance(param, TensorParam):
                tensor, pointer, view, steps = next(tensors)
                facts.append(tensor_facts(tensor.name, pointer, view, steps))
            elif isinstance(param, ScalarParam):
                facts.append(ArgFacts("scalar", param.dtype))
            else:
                constexprs.append((param.name, arg))
        return Specialization(
            with_aliases(facts, pointers, views, strides),
            tuple(constexprs),
            profile=current_profile(),
            debug=settings().debug,
        )

    def compile(
        self,
        /,
        target: str | None = None,
        dump: Sequence[str] = (),
        dims: Mapping[str, int] | None = None,
        strides: Mapping[str, Sequence[int]] | None = None,
        **constexprs: Any,
    ) -> Artifact:
        """Compile without running; see `ts.compile`."""
        from tessera.driver.compile import compile as compile_kernel

        return compile_kernel(self, target=target, dump=dump, dims=dims, strides=strides, **constexprs)

    def __reduce__(self) -> str:
        """A kernel is copied and pickled by its name, as a function is."""
        return cast(str, self.signature.function.__qualname__)

    def __repr__(self) -> str:
        return f"<ts.kernel {self.signature.name}>"


call_directly(Kernel)


class KernelDecorator:
    """`@ts.kernel`, and `@ts.kernel.autotune(space=..., key=...)`."""

    @decorator("@ts.kernel", KNOBS_BY_NAME)
    def __call__(self, function: Callable[P, R] | None = None) -> Kernel[P, R]:
        """Make a kernel of a function.

        Raises:
            LanguageError: `bad-signature` where the signature is not a kernel's, or without a function.
        """
        if function is None:
            raise LanguageError(
                "@ts.kernel needs a function, got none",
                code="bad-signature",
                location=caller_location(),
                help="decorate a def, without parentheses: @ts.kernel; tunables go to @ts.kernel.autotune(space=...)",
            )
        return _kernel_of(cast(FunctionType, function), (), ())

    @decorator("@ts.kernel.autotune", KNOBS_BY_NAME)
    def autotune(
        self, space: Mapping[str, Sequence[object]], key: Sequence[str] = ()
    ) -> Callable[[Callable[P, R]], Kernel[P, R]]:
        """Make a kernel with a tuning space; the first point whose resources the target has is used.

        Args:
            space: values of each tunable, best guess first. A tunable is an attribute of `ts.tile.context()`
                or a `ts.constexpr` parameter that the caller leaves out.
            key: names of dims and parameters whose values select a tuning result.

        Raises:
            LanguageError: `bad-space` or `bad-key`.
        """
        checked, names = _checked_space(space), _checked_key(key)

        def decorate(function: Callable[P, R]) -> Kernel[P, R]:
            return _kernel_of(cast(FunctionType, function), checked, names)

        return decorate


def _kernel_of(function: FunctionType, space: Space, key: tuple[str, ...]) -> Any:
    structured = structured_params(function)
    if structured:
        from tessera.driver.structured import StructuredKernel  # few kernels are

        return StructuredKernel[..., Any](function, structured, space, key)
    opened = open_params(function)
    if opened:
        from tessera.driver.open_kernel import OpenKernel  # few kernels are

        made: Any = OpenKernel[..., Any](function, opened, space, key)
    else:
        made = Kernel[..., Any](function, space, key)
    _check_known(key, made.names, function.__name__)
    return made


def _checked_space(space: Any) -> Space:
    if not isinstance(space, Mapping):
        raise LanguageError(
            f"the tuning space is {shown(space)}",
            code="bad-space",
            location=caller_location(),
            help="give values by name: space=dict(BM=[64, 128])",
        )
    for name in cast("Mapping[Any, Any]", space):
        if not isinstance(name, str):
            raise LanguageError(
                f"a tunable is called {shown(name)}",
                code="bad-space",
                location=caller_location(),
                help="name it by a text: space=dict(BM=[64, 128])",
            )
    return tuple((name, _values(name, values)) for name, values in cast("Mapping[str, Any]", space).items())


def _checked_key(key: Any) -> tuple[str, ...]:
    if not isinstance(key, tuple | list) or not all(isinstance(name, str) for name in cast(Sequence[Any], key)):
        raise LanguageError(
            f"the autotune key is {shown(cast(object, key))}",
            code="bad-key",
            location=caller_location(),
            help='give a tuple of names: key=("M", "N")',
        )
    return tuple(cast("Sequence[str]", key))


def _check_known(key: Sequence[str], names: Collection[str], kernel: str) -> None:
    """Check that an autotune key names dimensions and parameters of a kernel."""
    for name in key:
        if name not in names:
            raise LanguageError(
                f"autotune key {name!r} is neither a dimension nor a parameter of {kernel}",
                code="bad-key",
                location=caller_location(),
                help=f"names: {', '.join(sorted(names))}",
            )


def _values(name: str, values: Sequence[object]) -> tuple[object, ...]:
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise LanguageError(
            f"tunable {name!r} has the values {values!r}",
            code="bad-space",
            location=caller_location(),
            help="give a list of at least one value: space=dict(BM=[64, 128])",
        )
    return tuple(values)


kernel = KernelDecorator()
"""Decorator that makes a kernel of a function over tiles."""
