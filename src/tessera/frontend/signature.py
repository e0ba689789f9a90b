"""The parameters of a kernel, read from its annotations when it is decorated. Needs no IR."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType
from typing import Any, cast

from tessera.data import dataclass
from tessera.errors import LanguageError, Location, caller_location
from tessera.frontend.annotations import ConstexprAnnotation, Dim, OpenTensor, TensorAnnotation
from tessera.frontend.function import check_not_async, signature_of
from tessera.frontend.source import source_of
from tessera.frontend.static_eval import evaluate_annotation, lookup_in
from tessera.frontend.structure import Layout, StructureAnnotation, StructureParam, TensorField, parts_of
from tessera.numerics import dtypes
from tessera.numerics.dtypes import DType, Policy

MISSING: Any = inspect.Parameter.empty
"""Default of a parameter that has none."""


@dataclass(frozen=True, slots=True)
class TensorParam:
    """A tensor parameter.

    Args:
        name: its name.
        dims: the size of each dimension.
        policy: dtype and its numeric rules.
    """

    name: str
    dims: tuple[Dim, ...]
    policy: Policy

    @property
    def dtype(self) -> DType:
        """The element type, as annotated (`tf32` stays `tf32`)."""
        return self.policy.dtype

    def __str__(self) -> str:
        return f"{self.name}: {TensorAnnotation(self.dims, self.policy)}"


@dataclass(frozen=True, slots=True)
class ScalarParam:
    """A scalar known at the call only.

    Args:
        name: its name.
        dtype: its type.
        default: value when the caller gives none, or `MISSING`.
    """

    name: str
    dtype: DType
    default: Any = MISSING


@dataclass(frozen=True, slots=True)
class ConstexprParam:
    """A parameter whose value is compiled in.

    Args:
        name: its name.
        type: the Python type of its values, None for any.
        default: value when the caller gives none, or `MISSING`.
    """

    name: str
    type: type | None = None
    default: Any = MISSING


Param = TensorParam | ScalarParam | ConstexprParam

_PYTHON_SCALARS: dict[Any, DType] = {int: dtypes.i64, float: dtypes.f32}


@dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """A kernel's parameters.

    Args:
        function: the Python function; None for a kernel from a file.
        params: all parameters, in order.
        returns: what its return annotation promises, None when there is none.
        structures: the structured parameters whose parts are among `params`, with what is passed for them.
        known_as: the name of a kernel from a file.
        dtypes: what the dtype variables stand for.
    """

    function: Any
    params: tuple[Param, ...]
    returns: tuple[TensorAnnotation, ...] | None = None
    structures: tuple[tuple[StructureParam, Layout], ...] = ()
    known_as: str = ""
    dtypes: tuple[tuple[str, DType], ...] = ()

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.known_as or self.function.__name__

    @property
    def runtime_params(self) -> tuple[TensorParam | ScalarParam, ...]:
        """Tensors and scalars, in order: what a compiled kernel is launched with."""
        return tuple(p for p in self.params if not isinstance(p, ConstexprParam))

    @property
    def tensors(self) -> tuple[TensorParam, ...]:
        """The tensor parameters, in order."""
        return tuple(p for p in self.params if isinstance(p, TensorParam))

    @property
    def dim_names(self) -> tuple[str, ...]:
        """The names that dimensions are made of, each once, in order of appearance."""
        names = (name for tensor in self.tensors for dim in tensor.dims for name in dim.names)
        return tuple(dict.fromkeys(names))

    @property
    def position_only(self) -> frozenset[str]:
        """The parameters before a `/`, which have no name at a call; the parts of structures among them."""
        return self._of_kind(inspect.Parameter.POSITIONAL_ONLY)

    @property
    def name_only(self) -> frozenset[str]:
        """The parameters after a `*`, which have no position at a call; the parts of structures among them."""
        return self._of_kind(inspect.Parameter.KEYWORD_ONLY)

    def _of_kind(self, kind: Any) -> frozenset[str]:
        if not isinstance(self.function, FunctionType):
            return frozenset()  # a kernel from a file, or one that is generated
        declared = signature_of(self.function).parameters
        return frozenset(p.name for p in self.params if declared[p.name.partition(".")[0]].kind is kind)

    def location_of(self, name: str) -> Location | None:
        """Return where parameter `name` stands in the source, None when there is no source."""
        return _param_location(self.function, name.partition(".")[0])

    @classmethod
    def of(
        cls,
        function: Any,
        layouts: Mapping[str, Layout] | None = None,
        dtypes: Mapping[str, DType] | None = None,
        missing: Collection[str] = (),
    ) -> Signature:
        """Read the annotations of `function`.

        Args:
            function: the kernel's function.
            layouts: what is passed for its structured parameters, by name.
            dtypes: what its dtype variables stand for.
            missing: optional tensors that are not passed.

        Raises:
            LanguageError: `bad-signature`, `bad-annotation`, `unknown-name`, `unknown-dtype` or `bad-policy`.
        """
        if not isinstance(function, FunctionType):
            raise LanguageError(
                f"@ts.kernel needs a function, got {_show(function)}",
                code="bad-signature",
                location=caller_location(),
                help="decorate a def; a method or a callable object has no kernel to compile",
            )
        check_not_async(function, "ts.kernel")
        lookup, bound = lookup_in(function), dtypes or {}
        params: list[Param] = []
        structures: list[tuple[StructureParam, Layout]] = []
        for found in signature_of(function).parameters.values():
            with _located(function, found):
                param = _parse(found, lookup, bound, missing)
                if isinstance(param, StructureParam):
                    layout = (layouts or {})[param.name]
                    structures.append((param, layout))
                    params += _expanded(param, layout)
                else:
                    params.append(param)
        returns = _parse_returns(function, lookup, bound)
        signature = cls(function, tuple(params), returns, tuple(structures), dtypes=tuple(bound.items()))
        signature._check_names()
        return signature

    def _check_names(self) -> None:
        """Check that no name is both a dimension's and a parameter's."""
        clash = set(self.dim_names) & {p.name for p in self.params}
        if clash:
            name = min(clash)
            raise LanguageError(
                f"{name!r} names a dimension and a parameter",
                code="bad-signature",
                location=_param_location(self.function, name),
                help=self._clash_help(name),
            )

    def _clash_help(self, name: str) -> str:
        if isinstance(next(p for p in self.params if p.name == name), ScalarParam):
            return f"leave the parameter out: {name} in the body is the size of the dimension"
        return (
            f"rename one of them; what {name} is at compile time may be a number in the annotation, as in ts.Tensor[64]"
        )


def open_params(function: Any) -> dict[str, OpenTensor]:
    """Return the parameters of a function whose dtype, or whose presence, a call decides."""
    if not isinstance(function, FunctionType):
        return {}
    lookup = lookup_in(function)
    found = {name: _maybe_structure(value, lookup) for name, value in function.__annotations__.items()}
    return {name: value for name, value in found.items() if isinstance(value, OpenTensor) and name != "return"}


def structured_params(function: Any) -> dict[str, StructureAnnotation]:
    """Return the structured parameters of a function, with what they take."""
    if not isinstance(function, FunctionType):
        return {}
    lookup = lookup_in(function)
    found = {name: _maybe_structure(value, lookup) for name, value in function.__annotations__.items()}
    return {name: value for name, value in found.items() if isinstance(value, StructureAnnotation)}


def _maybe_structure(annotation: Any, lookup: Any) -> Any:
    """Return an annotation's value; None where its text has an error, which `Signature.of` reports."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return evaluate_annotation(annotation, lookup)
    except LanguageError:
        return None


def _expanded(param: StructureParam, layout: Layout) -> Iterator[Param]:
    """Yield the tensors and scalars of a structured parameter."""
    for name, field, dims in parts_of(param, layout):
        if isinstance(field, TensorField):
            yield TensorParam(name, dims, Policy(field.dtype))
        else:
            yield ScalarParam(name, field.dtype)


def _parse(
    found: inspect.Parameter, lookup: Any, dtypes: Mapping[str, DType], missing: Collection[str]
) -> Param | StructureParam:
    name = found.name
    if found.kind in (found.VAR_POSITIONAL, found.VAR_KEYWORD):
        stars = "*" if found.kind is found.VAR_POSITIONAL else "**"
        raise LanguageError(
            f"a kernel cannot take {stars}{name}",
            code="bad-signature",
            help="name and annotate every parameter",
        )
    if found.annotation is MISSING:
        raise LanguageError(
            f"parameter {name!r} has no annotation",
            code="bad-signature",
            help='annotate it: ts.Tensor["M", ts.f32] for a tensor, ts.f32 or int for a scalar, ts.constexpr',
        )
    annotation = found.annotation
    if isinstance(annotation, str):
        annotation = evaluate_annotation(annotation, lookup)
    if name in missing:
        return ConstexprParam(name, type(None), None)
    may_be_missing = isinstance(annotation, OpenTensor) and annotation.optional and found.default is None
    if isinstance(annotation, OpenTensor):
        annotation = annotation.bound(dtypes)
    if isinstance(annotation, TensorAnnotation):
        if found.default is not MISSING and not may_be_missing:
            raise LanguageError(
                f"tensor parameter {name!r} cannot have a default",
                code="bad-signature",
                help="pass it at the call",
            )
        return TensorParam(name, annotation.dims, annotation.policy)
    if isinstance(annotation, StructureAnnotation):
        return StructureParam(name, annotation)
    if isinstance(annotation, ConstexprAnnotation):
        return ConstexprParam(name, annotation.type, found.default)
    if annotation is bool:
        return ConstexprParam(name, bool, found.default)
    return ScalarParam(name, _scalar_dtype(name, annotation), _scalar_default(name, found.default))


@contextmanager
def _located(function: FunctionType, param: inspect.Parameter) -> Generator[None]:
    """Give errors about a parameter its place in the source."""
    try:
        yield
    except LanguageError as error:
        if error.location is None or isinstance(param.annotation, str):
            error.location = _param_location(function, param.name)
        raise


def _show(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else repr(value)


def _scalar_dtype(name: str, annotation: Any) -> DType:
    dtype = annotation if isinstance(annotation, DType) else None
    if dtype is None and isinstance(annotation, type):
        dtype = _PYTHON_SCALARS.get(annotation)
    if dtype is None:
        raise LanguageError(
            f"parameter {name!r}: {_show(annotation)} is not a kernel parameter type",
            code="bad-annotation",
            help='use ts.Tensor["M", ts.f32], a dtype, int, float, bool or ts.constexpr',
        )
    if dtype.bits < 16 and dtype.is_float:
        raise LanguageError(
            f"parameter {name!r}: a scalar cannot be {dtype}", code="bad-annotation", help="pass it as ts.f32"
        )
    return dtype.storage


def _scalar_default(name: str, default: Any) -> Any:
    if default is MISSING or isinstance(default, int | float):
        return default
    raise LanguageError(
        f"parameter {name!r}: the default {default!r} is not a number",
        code="bad-signature",
        help="annotate it as ts.constexpr if the value is compiled in",
    )


def _parse_returns(
    function: FunctionType, lookup: Any, dtypes: Mapping[str, DType]
) -> tuple[TensorAnnotation, ...] | None:
    annotation: Any = signature_of(function).return_annotation
    if isinstance(annotation, str):
        annotation = evaluate_annotation(annotation, lookup)
    if annotation is MISSING or annotation is None:
        return None
    parts = cast(tuple[Any, ...], getattr(annotation, "__args__", (annotation,)))  # tuple[...] of several
    parts = tuple(part.bound(dtypes) if isinstance(part, OpenTensor) else part for part in parts)
    if not all(isinstance(part, TensorAnnotation) for part in parts):
        raise LanguageError(
            f"a kernel returns tensors, not {annotation!r}",
            code="bad-annotation",
            location=_param_location(function, "return"),
            help='write -> ts.Tensor["M", "N", ts.f32]',
        )
    return tuple(parts)


def _param_location(function: FunctionType, name: str) -> Location | None:
    try:
        source = source_of(function)
    except LanguageError:
        return None
    args = source.node.args
    found: Iterator[Any] = (a for a in (*args.posonlyargs, *args.args, *args.kwonlyargs) if a.arg == name)
    node = next(found, None)
    if name == "return":
        node = source.node.returns
    return source.header() if node is None else source.locate(node)
