"""`@ts.kernel`: a Python function that compiles at its first call and launches at every call.

The call path keeps no work that depends on shapes only. Arguments are read into a key (raw traits, without
meaning); the key finds a `CallPlan`, in which all but addresses and scalar values is already packed. Only a
new key goes through checks, specialisation and look-up of code (`_plan`).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Generic, ParamSpec, TypeVar, cast

from tessera.errors import CallError, LanguageError, TesseraError, caller_location
from tessera.frontend.exact import exact
from tessera.frontend.signature import (
    MISSING,
    ConstexprParam,
    ScalarParam,
    Signature,
    TensorParam,
    structured_params,
)
from tessera.frontend.specialize import ArgFacts, Specialization
from tessera.frontend.structure import Layout
from tessera.frontend.text import keep_text
from tessera.jit.binding import (
    bind_arguments,
    canonical_strides,
    check_constexpr,
    check_tensors,
    expected_tensors,
    tensor_facts,
    text_sizes,
    with_aliases,
)
from tessera.jit.entry import DirectCalls, Given, Origin
from tessera.jit.explain import Explanation
from tessera.jit.launch import InterpreterPlan, Launch, Stream, checked, launcher_for, stream_source
from tessera.jit.settings import settings
from tessera.jit.structured import StructuredKernel
from tessera.jit.variants import Space, Variants, destination_of
from tessera.numerics.profiles import current_profile
from tessera.runtime.arguments import check_overlap, check_writable, common_device, elements
from tessera.runtime.backend import backend_for, default_device, selected_backend
from tessera.runtime.device import Device
from tessera.runtime.entry.host import Callable as EntryCallable
from tessera.runtime.entry.host import call_directly
from tessera.runtime.forking import compiling
from tessera.runtime.views import ARRAY_HELP, READERS, ArrayView, Reader, reader_of
from tessera.target.artifact import Artifact

P = ParamSpec("P")
R = TypeVar("R")

_MAX_PLANS = 4096
"""Distinct calls remembered per kernel: a program with ever new shapes must not grow without bound."""


@dataclass(slots=True)
class CallPlan:
    """A call with everything done that does not change between calls of one key.

    Args:
        launch: runs it: addresses, scalar values, objects to keep alive, stream.
        stream: gives the stream from the call's arguments.
        returns: positions of the arguments to hand back.
        explanation: what it runs.
        origin: what it was made from, None when the interpreter runs it or addresses are checked at each call.
    """

    launch: Launch
    stream: Stream
    returns: tuple[int, ...]
    explanation: Explanation
    origin: Origin | None = None


class Kernel(EntryCallable, Generic[P, R]):
    """A compiled function over tiles. Call it like the function: `y = saxpy(x, y, 2.0)`.

    From the third call of a kind on, CPython calls the compiled entry (`jit/entry.py`) and `__call__` serves what that
    leaves.

    Args:
        function: the Python function.
        space: tunables and their values, in the order they are tried.
        key: names whose values select a tuning result.
        layouts: what is passed for structured parameters, whose parts become the kernel's parameters.
    """

    __wrapped__: Callable[..., Any]

    def __init__(
        self,
        function: FunctionType,
        space: Space = (),
        key: tuple[str, ...] = (),
        layouts: Mapping[str, Layout] | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.signature = Signature.of(function, layouts)
        keep_text(function)
        self.space = space
        self.key = key
        self.variants = Variants(self.signature, space)
        params = self.signature.params
        self._kinds = [
            "tensor"
            if isinstance(p, TensorParam)
            else "scalar"
            if isinstance(p, ScalarParam)
            else "constexpr"
            for p in params
        ]
        tunables = {name for name, _ in space}
        self._tuned = frozenset(
            p.name for p in params if isinstance(p, ConstexprParam) and p.name in tunables
        )
        self._expected = expected_tensors(self.signature)
        self._plans: dict[tuple[Any, ...], CallPlan] = {}
        self._compiling = threading.RLock()
        self._last: CallPlan | None = None
        self._direct = DirectCalls(self, self.signature, key)
        self._takes_stream = all(p.name != "stream" for p in params)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the kernel.

        Args:
            *args: the kernel's arguments.
            **kwargs: arguments by name, and `stream`: the CUDA stream (or its address) to launch on. Without it
                the caller's current PyTorch or CuPy stream is used, else the default stream.

        Returns:
            The arrays that the kernel returns: the caller's own objects.

        Raises:
            CallError: an argument does not fit.
            TesseraError: what the compiler or the device says.
        """
        try:
            values: Sequence[Any] = args
            stream, names = None, ()
            if kwargs or len(args) != len(self._kinds):
                stream, names = self._pop_stream(kwargs), tuple(kwargs)
                values = bind_arguments(self.signature, args, kwargs, self._tuned)
            pointers, scalars, owners, key = self._read(values)
            plan = self._plans.get(key)
            if plan is None:
                plan = self._plan(values, pointers, key)
            plan.launch(pointers, scalars, owners, plan.stream(values) if stream is None else stream)
            self._direct.served_slowly(
                plan, plan.origin, Given(values, len(args), names) if stream is None else None
            )
        except TesseraError as error:
            raise error.at(caller_location()) from error.__cause__
        self._last = plan
        returns = plan.returns
        if len(returns) == 1:
            return cast(R, values[returns[0]])
        return cast(R, tuple(values[place] for place in returns) if returns else None)

    def _read(self, args: Sequence[Any]) -> tuple[list[int], list[Any], list[object], tuple[Any, ...]]:
        """Return addresses, scalar values, objects to keep alive, and all that the launch depends on besides."""
        pointers: list[int] = []
        scalars: list[Any] = []
        owners: list[object] = []
        key: list[Any] = [current_profile(), selected_backend()]
        readers: dict[Any, Reader] = READERS
        for kind, arg in zip(self._kinds, args, strict=True):
            if kind == "tensor":
                reader = readers.get(type(arg)) or self._find_reader(arg, args)
                try:
                    pointer, traits, owner = reader.read(arg)
                except CallError as error:
                    raise _named(error, self._name_of(arg, args)) from error
                pointers.append(pointer)
                key += traits, pointer & 15
                if owner is not None:
                    owners.append(owner)
            elif kind == "scalar":
                scalars.append(arg)
            else:
                key.append(exact(arg))
        if len(set(pointers)) < len(pointers):
            key.append(tuple(map(pointers.index, pointers)))
        return pointers, scalars, owners, tuple(key)

    def _name_of(self, arg: object, args: Sequence[Any]) -> str:
        place = next(place for place, other in enumerate(args) if other is arg)
        return self.signature.params[place].name

    def _pop_stream(self, kwargs: dict[str, Any]) -> int | None:
        if not self._takes_stream or "stream" not in kwargs:
            return None
        from tessera.runtime.cuda import stream_address

        return stream_address(kwargs.pop("stream"))

    def _find_reader(self, arg: Any, args: Sequence[Any]) -> Reader:
        kind = cast("type[Any]", type(arg))
        reader = reader_of(kind)
        if reader is None:
            raise CallError(
                f"argument {self._name_of(arg, args)!r} is {arg!r:.60} ({kind.__name__}), which is no array",
                code="not-an-array", help=ARRAY_HELP,
            )  # fmt: skip
        return reader

    def _check_constexprs(self, args: Sequence[Any]) -> None:
        for param, arg in zip(self.signature.params, args, strict=True):
            if isinstance(param, ConstexprParam) and arg is not MISSING:
                check_constexpr(param, arg)

    def _views(self, args: Sequence[Any]) -> list[ArrayView]:
        views: list[ArrayView] = []
        for param, arg in zip(self.signature.params, args, strict=True):
            if isinstance(param, TensorParam):
                reader = self._find_reader(arg, args)
                try:
                    views.append(reader.decode(reader.read(arg)[1]))
                except CallError as error:
                    raise _named(error, param.name) from error
        return views

    def _plan(self, args: Sequence[Any], pointers: Sequence[int], key: tuple[Any, ...]) -> CallPlan:
        """Check a call of a new kind, find its code, and remember how it is launched."""
        with compiling(), self._compiling:
            if key in self._plans:
                return self._plans[key]
            self._check_constexprs(args)
            plan = self._new_plan(args, pointers)
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
            self._plans[key] = plan
            return plan

    def _new_plan(self, args: Sequence[Any], pointers: Sequence[int]) -> CallPlan:
        views = self._views(args)
        sizes = check_tensors(self._expected, views)
        device = common_device([tensor.name for tensor in self._expected], views) or default_device()
        backend_for(device)
        strides = [canonical_strides(view) for view in views]
        spec = self._specialization(args, pointers, views, strides)
        if settings().interpret:
            return self._interpreted(args, spec, views, device)
        variant = self.variants.find(spec, self._text_sizes(views, sizes), destination_of(device))
        tensors = iter(zip(views, strides, strict=True))
        shapes: list[Any] = []
        for fact, arg in zip(spec.args, variant.artifact.args, strict=True):
            view, steps = next(tensors) if fact.kind == "tensor" else (None, ())
            if view is not None and arg.written:
                check_writable(arg.name, view)
            shapes.append(None if view is None else (view.shape, steps))
        launcher = launcher_for(variant, device)
        explanation = Explanation.of(
            variant.artifact, str(device), spec.profile, config=variant.config, fixed=variant.fixed,
            origin=variant.origin, rejected=variant.rejected,
        )  # fmt: skip
        launch, origin = launcher.prepare(shapes).launch, Origin(spec, variant, launcher)
        written = [arg.written for arg in variant.artifact.args if arg.kind == "tensor"]
        if any(written) and len(written) > 1:
            names = [tensor.name for tensor in self._expected]
            if spec.debug:
                launch, origin = checked(launch, names, views, written), None
            else:
                check_overlap(names, list(map(elements, pointers, views)), written)
        returns = self._positions(variant.artifact.returns)
        return CallPlan(launch, stream_source(args, device), returns, explanation, origin)

    def _interpreted(
        self, args: Sequence[Any], spec: Specialization, views: list[ArrayView], device: Device
    ) -> CallPlan:
        plan = InterpreterPlan(self.signature, spec, self.space, views)
        explanation = Explanation(
            self.signature.name, "interp", "numpy", str(device), spec.profile, origin="interpreted"
        )
        return CallPlan(plan.launch, stream_source(args, device), self._positions(plan.returns), explanation)

    def _positions(self, returns: tuple[int, ...]) -> tuple[int, ...]:
        """Turn positions among the run-time parameters into positions among all."""
        places = [place for place, kind in enumerate(self._kinds) if kind != "constexpr"]
        return tuple(places[runtime] for runtime in returns)

    def _text_sizes(self, views: Sequence[ArrayView], sizes: dict[str, int]) -> dict[str, int | None]:
        found = text_sizes(self.signature, sizes)
        for tensor, view in zip(self.signature.tensors, views, strict=True):
            found |= {
                str(dim): size for dim, size in zip(tensor.dims, view.shape, strict=True) if not dim.is_static
            }
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

    def explain(self) -> Explanation:
        """Return what the last call really ran: backend, target, schedule, emulations, dtype fallbacks.

        Raises:
            CallError: `never-run` before the first call.
        """
        last = self._direct.last() or self._last
        if last is None:
            raise CallError(
                f"{self.signature.name} has not run yet",
                code="never-run",
                help="call it first; explain() reports that call",
            )
        return last.explanation

    def compile(
        self,
        target: str | None = None,
        dump: Sequence[str] = (),
        dims: Mapping[str, int] | None = None,
        strides: Mapping[str, Sequence[int]] | None = None,
        **constexprs: Any,
    ) -> Artifact:
        """Compile without running; see `ts.compile`."""
        from tessera.jit.compile import compile as compile_kernel

        return compile_kernel(self, target=target, dump=dump, dims=dims, strides=strides, **constexprs)

    def __reduce__(self) -> str:
        """A kernel is copied and pickled by its name, as a function is."""
        return cast(str, self.signature.function.__qualname__)

    def __repr__(self) -> str:
        return f"<ts.kernel {self.signature.name}>"


call_directly(Kernel)


def _named(error: CallError, name: str) -> CallError:
    return CallError(
        f"argument {name!r}: {error.message}", code=error.code, location=error.location, help=error.help
    )


class KernelDecorator:
    """`@ts.kernel`, and `@ts.kernel.autotune(space=..., key=...)`."""

    def __call__(self, function: Callable[P, R]) -> Kernel[P, R]:
        """Make a kernel of a function.

        Raises:
            LanguageError: the signature is no kernel's.
        """
        structured = structured_params(function)
        if structured:
            return cast(Any, StructuredKernel[P, R](cast(FunctionType, function), structured))
        return Kernel[P, R](cast(FunctionType, function))

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
        if not isinstance(space, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise LanguageError(
                f"the tuning space is {space!r:.80}", code="bad-space", location=caller_location(),
                help="give values by name: space=dict(BM=[64, 128])",
            )  # fmt: skip
        names: Any = key
        if not isinstance(names, tuple | list) or not all(
            isinstance(name, str) for name in cast(Sequence[Any], names)
        ):
            raise LanguageError(
                f"the autotune key is {names!r:.80}", code="bad-key", location=caller_location(),
                help='give a tuple of names: key=("M", "N")',
            )  # fmt: skip
        checked = tuple((name, _values(name, values)) for name, values in space.items())

        def decorate(function: Callable[P, R]) -> Kernel[P, R]:
            plain = cast(FunctionType, function)
            structured = structured_params(function)
            if structured:
                return cast(Any, StructuredKernel[P, R](plain, structured, checked, tuple(key)))
            made = Kernel[P, R](plain, checked, tuple(key))
            names = {*made.signature.dim_names, *(param.name for param in made.signature.params)}
            for name in key:
                if name not in names:
                    raise LanguageError(
                        f"autotune key {name!r} is no dimension and no parameter of {made.signature.name}",
                        code="bad-key", location=caller_location(), help=f"names: {', '.join(sorted(names))}",
                    )  # fmt: skip
            return made

        return decorate


def _values(name: str, values: Sequence[object]) -> tuple[object, ...]:
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise LanguageError(
            f"tunable {name!r} has the values {values!r}", code="bad-space", location=caller_location(),
            help="give a list of at least one value: space=dict(BM=[64, 128])",
        )  # fmt: skip
    return tuple(values)


kernel = KernelDecorator()
"""Decorator that makes a kernel of a function over tiles."""
