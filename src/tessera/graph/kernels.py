"""Kernels in traced functions: what a kernel writes are results of its call, whose old values it may read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, cast

from xdsl.ir import SSAValue

from tessera.data import dataclass
from tessera.driver.kernel import Kernel
from tessera.driver.pullback import pullback
from tessera.driver.traced import rule_of
from tessera.errors import CallError, LanguageError, TypeMismatchError, caller_location, shown
from tessera.frontend.signature import ConstexprParam, ScalarParam, TensorParam
from tessera.graph.calls import Sizes, Template, is_array, written
from tessera.graph.floats import Number
from tessera.graph.traced import Array, Trace
from tessera.ir.graph.callees import Callee, Values
from tessera.ir.graph.points import CastOp, FullOp, MapOp
from tessera.ir.graph.structure import CallOp
from tessera.ir.graph.sums import ContractOp, ReduceOp
from tessera.ir.graph.takes import AddRowsOp
from tessera.ir.graph.types import array_type, dims_of
from tessera.ir.graph.views import BroadcastOp, ConcatOp, PlaceOp, ReshapeOp, SliceOp, TransposeOp
from tessera.numerics.dtypes import DType
from tessera.ops import arrays
from tessera.runtime.views import ArrayView, row_major
from tessera.target.dims import Dim


@dataclass(frozen=True)
class Fresh:
    """An argument of a call that is written, and holds one number before.

    Args:
        dims: its sizes.
        dtype: its dtype.
        number: what it holds.
    """

    dims: tuple[Dim, ...]
    dtype: DType
    number: float

    def __repr__(self) -> str:
        return f"{self.number}: {self.dtype}[{', '.join(map(str, self.dims))}]"

    def made(self, like: Any, sizes: Sizes) -> Any:
        """Return it beside an array."""
        shape = tuple(cast(int, dim.value(sizes)) for dim in self.dims)
        array = arrays.maker(like, shape, self.dtype)(like)
        if self.number:
            array.fill_(self.number) if arrays.is_torch(array) else array.fill(self.number)
        else:
            arrays.zero(array)
        return array


def call_kernel(kernel: Any, values: Sequence[Any]) -> Any:
    """Return what a kernel's call in a traced function returns.

    Args:
        kernel: the kernel.
        values: its arguments, by parameter; those that it writes become results of the call.

    Raises:
        LanguageError: `not-traceable`.
        CallError: `written-argument`, or what does not fit.
    """
    trace = next(value.tracing for value in values if isinstance(value, Array))
    with trace.at_caller():
        if not isinstance(kernel, Kernel):
            raise LanguageError("kernels from files are not traced", code="not-traceable", help="call it outside")
        return _called(trace, cast("Kernel[..., Any]", kernel), list(values))


def _called(trace: Trace, kernel: Kernel[..., Any], values: list[Any]) -> Any:
    params = kernel.signature.params
    tensors = [at for at, param in enumerate(params) if isinstance(param, TensorParam)]
    for at, param in enumerate(params):
        values[at] = _operand(trace, param, values[at])
    stored, returned = kernel.written(values, [_view(trace, values[at]) for at in tensors])
    changed = [at for at, is_stored in zip(tensors, stored, strict=True) if is_stored]
    for at in changed:
        _check_own(trace, values[at], kernel, params[at].name)
    given = [_given(trace, at, value, changed) for at, value in enumerate(values)]
    beside = None if any(map(is_array, given)) else Array(trace, trace.writer.arguments[0])
    template = Template(trace, [beside, *given])
    name, is_new = trace.name_of(kernel.signature.name, (kernel, template.key))
    if is_new:
        run = _run(kernel, template, changed)
        trace.writer.callees[name] = Callee(run, _pull(trace, kernel, template, changed))
    found = written(trace, name, template, [array_type(values[at].ssa) for at in changed])
    for at, made in zip(changed, found, strict=True):
        values[at].put(made.ssa)
    return values[returned[0]] if len(returned) == 1 else tuple(values[at] for at in returned) or None


def _operand(trace: Trace, param: Any, value: Any) -> Any:
    """Return an argument as a call of the graph takes it."""
    if isinstance(param, TensorParam):
        if not is_array(value):
            raise CallError(
                f"argument {param.name!r} is {shown(value)}, which is not an array",
                code="not-an-array",
                help="pass an array that is traced, or a NumPy array or PyTorch tensor",
            )
        return value if isinstance(value, Array) else _Outside(trace, trace.array(value).ssa)
    if isinstance(value, Number):
        return float(value) if isinstance(param, ConstexprParam) else value.array
    if isinstance(param, ConstexprParam) and isinstance(value, Array):
        raise LanguageError(
            f"{param.name} is compiled in, and needs the value of a traced array",
            code="value-needed",
            help="pass a number, or a size",
        )
    if isinstance(param, ScalarParam) and isinstance(value, Array) and value.ndim:
        raise CallError(
            f"argument {param.name!r} is {value!r}, the kernel takes a number",
            code="wrong-scalar",
            help="pass one element of it, or a number",
        )
    return value


class _Outside(Array):
    """An array of the program around."""

    __slots__ = ()


def _view(trace: Trace, array: Array) -> ArrayView:
    """Return what an array is at this call; each kernel sees elements that lie side by side."""
    shape = tuple(cast(int, dim.value(trace.writer.hints)) for dim in dims_of(array.ssa))
    return ArrayView(shape, row_major(shape), array.element, trace.device, readonly=False)


_MAKERS = (MapOp, CastOp, ReduceOp, ContractOp, CallOp, AddRowsOp, ConcatOp, PlaceOp)
_VIEWS = (SliceOp, ReshapeOp, TransposeOp)


def _check_own(trace: Trace, array: Array, kernel: Kernel[..., Any], name: str) -> None:
    """Check that an array that a kernel writes has memory that nothing else is a part of.

    Raises:
        CallError: `written-argument`.
    """
    owner = array.ssa.owner
    what = f"{kernel.signature.name} writes its argument {name!r}"
    if isinstance(array, _Outside):
        _refuse(f"{what}, an array of the program around ts.jit")
    if array.target is not None or (not array.is_own and not isinstance(owner, _MAKERS)):
        _refuse(f"{what}, which is an argument of the traced function, or a part of another array")
    if any(isinstance(use.operation, _VIEWS) for use in array.ssa.uses):
        _refuse(f"{what}, of which a part, a transpose or another shape was taken before")


def _refuse(message: str) -> NoReturn:
    raise CallError(
        message,
        code="written-argument",
        location=caller_location(),
        help="arrays are values here: write to np.empty_like(x), np.zeros(shape, like=x) or np.copy(x), and return it",
    )


def _given(trace: Trace, at: int, value: Any, changed: Sequence[int]) -> Any:
    """Return an argument of the call: arrays that hold one number are made by it."""
    if at not in changed:
        return value
    owner = value.ssa.owner
    full = owner.source.owner if isinstance(owner, BroadcastOp) else owner
    if isinstance(full, FullOp):
        return Fresh(dims_of(value.ssa), value.element, full.number)
    return value


def _run(kernel: Kernel[..., Any], template: Template, changed: Sequence[int]) -> Any:
    """Return what runs a kernel on copies of the arrays that it writes."""
    params = kernel.signature.params

    def at(sizes: Sizes) -> Callable[..., Sequence[Any]]:
        fill = template.at(sizes)

        def run(*arguments: Any) -> Sequence[Any]:
            _, *values = fill(arguments)
            like = arguments[0]
            for place, value in enumerate(values):
                if isinstance(value, Fresh):
                    values[place] = value.made(like, sizes)
                elif place in changed:
                    values[place] = arrays.copied(value)
                elif isinstance(params[place], ScalarParam) and hasattr(value, "item"):
                    values[place] = value.item()
            kernel(*values)
            return [values[place] for place in changed]

        return run

    return at


def _pull(trace: Trace, kernel: Kernel[..., Any], template: Template, changed: Sequence[int]) -> Any:
    """Return what appends the gradient of a kernel: the one that is stated for it, else its adjoint."""
    params = kernel.signature.params

    def pull(op: CallOp, cotangents: Values, needed: Sequence[bool]) -> Values:
        _, *values = template.traced(op.inputs)
        given = {param.name: _seen(trace, value) for param, value in zip(params, values, strict=True)}
        names = [params[at].name for at in changed]
        results = {name: Array(trace, one) for name, one in zip(names, op.outputs, strict=True)}
        back = {name: _weight(trace, one, of) for name, one, of in zip(names, cotangents, op.outputs, strict=True)}
        _, *places = template.flags([*range(1, len(needed) + 1)])
        by_place = dict(zip(places, (param.name for param in params), strict=True))
        wanted = [by_place.get(place, "") if one else "" for place, one in enumerate(needed, 1)]
        rule = rule_of(kernel.signature.function)
        found = rule(given, results, back) if rule else _derived(trace, kernel, given, results, back, wanted)
        parts = _checked(trace, kernel, found, given)
        return [parts.get(name) for name in wanted]

    return pull


def _derived(
    trace: Trace,
    kernel: Kernel[..., Any],
    given: Mapping[str, Any],
    results: Mapping[str, Array],
    cotangents: Mapping[str, Array],
    wanted: Sequence[str],
) -> dict[str, Any]:
    """Return what a kernel's adjoint gives for some of its arrays, by name."""
    params = kernel.signature.params
    wrt = [param.name for param in params if param.name in wanted]
    for param in params:
        if param.name in wrt and isinstance(param, ScalarParam):
            raise LanguageError(
                f"{kernel.signature.name} has no adjoint by {param.name}, a number",
                code="no-adjoint",
                help=f"give one with @{kernel.signature.name}.vjp, pass a tensor, or ts.stop_gradient({param.name})",
            )
    back = {name: one for name, one in cotangents.items() if one.element.is_float}
    if not wrt or not back:
        return {}
    template = Template(trace, [*(results.get(param.name, given[param.name]) for param in params), *back.values()])
    name, is_new = trace.name_of(f"adjoint_{kernel.signature.name}", (kernel, (*wrt, "", *back), template.key))
    if is_new:
        trace.writer.callees[name] = Callee(_backwards(kernel, template, wrt, list(back)), None)
    with trace.at_caller():
        found = written(trace, name, template, [array_type(given[one].ssa) for one in wrt])
    return dict(zip(wrt, found, strict=True))


def _backwards(kernel: Kernel[..., Any], template: Template, wrt: Sequence[str], back: Sequence[str]) -> Any:
    """Return what runs the adjoint of a kernel."""
    adjoint, params = pullback(kernel, tuple(wrt)), kernel.signature.params

    def at(sizes: Sizes) -> Callable[..., Sequence[Any]]:
        fill = template.at(sizes)

        def run(*arguments: Any) -> Sequence[Any]:
            values = fill(arguments)
            own, cotangents = values[: len(params)], values[len(params) :]
            for place, (param, value) in enumerate(zip(params, own, strict=True)):
                if isinstance(param, ScalarParam) and hasattr(value, "item"):
                    own[place] = value.item()
            found = adjoint(*own, cotangents=dict(zip(back, cotangents, strict=True)))
            return [found[name] for name in wrt]

        return run

    return at


def _seen(trace: Trace, value: Any) -> Any:
    """Return an argument as a gradient sees it."""
    if not isinstance(value, Fresh):
        return value
    with trace.at_caller() as writer:
        return Array(trace, writer.broadcast_to(writer.full(value.number, value.dtype), value.dims))


def _weight(trace: Trace, cotangent: SSAValue | None, of: SSAValue) -> Array:
    with trace.at_caller() as writer:
        return Array(trace, writer.zeros_like(of) if cotangent is None else cotangent)


def _checked(trace: Trace, kernel: Kernel[..., Any], found: Any, given: Mapping[str, Any]) -> dict[str, SSAValue]:
    """Return what a gradient gave, by name.

    Raises:
        TypeMismatchError: `bad-gradient`.
    """
    name = kernel.signature.name
    if not isinstance(found, dict):
        raise _bad(f"the gradient of {name} is {shown(found)}", "a dictionary, by the names of arguments")
    result: dict[str, SSAValue] = {}
    for key, value in cast("dict[str, Any]", found).items():
        of = given.get(key)
        if not isinstance(of, Array):
            raise _bad(f"the gradient of {name} has {shown(key)}", "names of the kernel's arrays")
        with trace.at_caller() as writer:
            one = trace.array(value)
            dims = dims_of(one.ssa), dims_of(of.ssa)
            if len(dims[0]) != len(dims[1]) or not all(map(writer.same, *dims)):
                raise _bad(f"the gradient of {name} by {key} is {one!r}, {key} {of!r}", "an array of its shape")
            result[key] = writer.cast(one.ssa, of.element)
    return result


def _bad(message: str, help: str) -> TypeMismatchError:
    return TypeMismatchError(message, code="bad-gradient", location=caller_location(), help=f"give {help}")
