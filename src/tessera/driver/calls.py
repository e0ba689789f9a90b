"""The call path of kernels: those that compile at their first call, and those that come from a file.

Nothing that depends on shapes alone is done at every call. Arguments are read into a key (raw traits, without meaning);
the key finds a `CallPlan`, in which everything but addresses and scalar values is packed already. Only a new key goes
through checks, specialisation and the look-up of code (`_new_plan`).
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar, cast

from tessera.data import dataclass
from tessera.driver import ahead
from tessera.driver.binding import bind_arguments, grid_at_call
from tessera.driver.direct_calls import DirectCalls, Given, Origin
from tessera.driver.explain import Explanation
from tessera.driver.launch import Launch, Stream
from tessera.driver.traced import tracer_of
from tessera.driver.variants import Wanted
from tessera.entry.host import Callable as EntryCallable
from tessera.errors import CallError, TesseraError, caller_location, shown
from tessera.frontend.exact import exact
from tessera.frontend.signature import ScalarParam, Signature, TensorParam
from tessera.numerics.profiles import chosen_profile
from tessera.runtime import recording
from tessera.runtime.backend import selected_backend
from tessera.runtime.device import Device
from tessera.runtime.forking import compiling
from tessera.runtime.platforms import platform_of
from tessera.runtime.readers import READERS, array_help, read_view, reader_of
from tessera.runtime.views import ArrayView, Reader

P = ParamSpec("P")
R = TypeVar("R")

_MAX_PLANS = 4096
"""Distinct calls remembered per kernel: a program with ever new shapes must not grow without limit."""


@dataclass(slots=True)
class CallPlan:
    """A call with everything done that does not change between calls of one key.

    Args:
        launch: runs it: addresses, scalar values, objects to keep alive, stream.
        device: where it runs.
        stream: gives the stream from the call's arguments.
        returns: positions of the arguments to hand back.
        explanation: what it runs.
        origin: what it was made from, None when the interpreter runs it or addresses are checked at each call.
    """

    launch: Launch
    device: Device
    stream: Stream
    returns: tuple[int, ...]
    explanation: Explanation
    origin: Origin | None = None


class Calls(EntryCallable, Generic[P, R], ABC):
    """A callable that takes arrays and numbers. A subclass plans calls of a new kind.

    From the third call of a kind on, CPython calls the compiled entry (`driver/direct_calls.py`), and `__call__` serves
    what that leaves to it.

    Args:
        signature: the parameters.
        key: names whose values select a tuning result.
        tuned: constexpr parameters that the tuning space gives when the caller does not.
    """

    def __init__(self, signature: Signature, key: tuple[str, ...] = (), tuned: frozenset[str] = frozenset()) -> None:
        self.signature = signature
        self._kinds = [
            "tensor" if isinstance(p, TensorParam) else "scalar" if isinstance(p, ScalarParam) else "constexpr"
            for p in signature.params
        ]
        self._tuned = tuned
        self._has_names_only = bool(signature.name_only)
        self._plans: dict[tuple[Any, ...], CallPlan] = {}
        self._compiling = threading.RLock()
        self._last: CallPlan | None = None
        self._direct = DirectCalls(self, signature, key)
        self._takes_stream = all(p.name != "stream" for p in signature.params)

    def __getitem__(self, grid: object) -> NoReturn:
        """Refuse a launch in the manner of others, `kernel[grid](x)`.

        Raises:
            CallError: `grid-at-call`.
        """
        raise grid_at_call(self.signature.name, grid)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the kernel.

        Args:
            *args: the kernel's arguments.
            **kwargs: arguments by name, and `stream`: the stream (or its address) to launch on. Without it the
                caller's current PyTorch or CuPy stream is used, else the default stream.

        Returns:
            The arrays that the kernel returns: the caller's own objects.

        Raises:
            CallError: an argument does not fit.
            TesseraError: what the compiler or the device says.
        """
        try:
            values: Sequence[Any] = args
            stream, names = None, ()
            if kwargs or len(args) != len(self._kinds) or self._has_names_only:
                stream, names = self._pop_stream(kwargs), tuple(kwargs)
                values = bind_arguments(self.signature, args, kwargs, self._tuned)
            trace = tracer_of(values)
            if trace is not None:
                return cast(R, trace(self, values))
            pointers, scalars, owners, key = self._read(values)
            plan = self._plans.get(key)
            wants = ahead.current()
            if wants is not None:
                wants.add(self._wanted(values) if plan is None else None)
                return cast(R, self._given_back(values))
            if plan is None:
                plan = self._plan(values, pointers, key)
            queue = plan.stream(values) if stream is None else platform_of(plan.device).stream_address(stream)
            plan.launch(pointers, scalars, owners, queue)
            if recording.current() is None:
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
        key: list[Any] = [chosen_profile(), selected_backend()]
        readers: dict[Any, Reader] = READERS
        for kind, arg in zip(self._kinds, args, strict=True):
            if kind == "tensor":
                reader = readers.get(type(arg)) or self._find_reader(arg, args)
                try:
                    pointer, traits, owner = reader.read(arg)
                except CallError as error:
                    raise _named(error, self._name_of(arg, args)) from error
                pointers.append(pointer)
                key += traits, pointer & 15 if pointer else None  # of no memory there is no plan
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

    def _pop_stream(self, kwargs: dict[str, Any]) -> Any:
        return kwargs.pop("stream", None) if self._takes_stream else None

    def _find_reader(self, arg: Any, args: Sequence[Any]) -> Reader:
        kind = cast("type[Any]", type(arg))
        reader = reader_of(kind)
        if reader is None:
            raise CallError(
                f"argument {self._name_of(arg, args)!r} is {shown(arg)} ({kind.__name__}), which is not an array",
                code="not-an-array",
                help=array_help(),
            )
        return reader

    def _views(self, args: Sequence[Any]) -> list[ArrayView]:
        views: list[ArrayView] = []
        for param, arg in zip(self.signature.params, args, strict=True):
            if isinstance(param, TensorParam):
                reader = self._find_reader(arg, args)
                try:
                    views.append(read_view(reader, arg)[1])
                except CallError as error:
                    raise _named(error, param.name) from error
        return views

    def _plan(self, args: Sequence[Any], pointers: Sequence[int], key: tuple[Any, ...]) -> CallPlan:
        """Check a call of a new kind, find its code, and remember how it is launched."""
        with compiling(), self._compiling:
            if key in self._plans:
                return self._plans[key]
            plan = self._new_plan(args, pointers)
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
            self._plans[key] = plan
            return plan

    @abstractmethod
    def _new_plan(self, args: Sequence[Any], pointers: Sequence[int]) -> CallPlan:
        """Check a call of a new kind and find its code.

        Args:
            args: the arguments in order.
            pointers: addresses of the arrays.

        Raises:
            TesseraError: an argument does not fit, or the code cannot be made.
        """

    def _wanted(self, args: Sequence[Any]) -> Wanted | None:
        """Return the code that a call of a new kind needs, None where it is there.

        Args:
            args: the arguments in order.
        """
        return None

    def _given_back(self, args: Sequence[Any]) -> Any:
        """Return what a call would, by the text of the kernel, as there may be no code yet."""
        from tessera.frontend.source import source_of  # with much behind it, and most processes ask for none

        names = [param.name for param in self.signature.params]
        found = [args[names.index(name)] for name in source_of(self.signature.function).returned if name in names]
        return found[0] if len(found) == 1 else tuple(found) or None

    def _positions(self, returns: tuple[int, ...]) -> tuple[int, ...]:
        """Turn positions among the run-time parameters into positions among all."""
        places = [place for place, kind in enumerate(self._kinds) if kind != "constexpr"]
        return tuple(places[runtime] for runtime in returns)

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


def _named(error: CallError, name: str) -> CallError:
    return CallError(f"argument {name!r}: {error.message}", code=error.code, location=error.location, help=error.help)
