"""Structured kernel arguments: several tensors, scalars and constants that are passed, and called, as one.

A kernel names only the structure and the dimensions it is over: `epilogue: Epilogue["M", "N"]`. What is in it is
decided at the call. Its *layout* (the fields, without the arrays) is compiled in, its tensors and scalars become
parameters of the kernel, and calling it in the kernel's body inlines its entry function.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, cast

from tessera.data import dataclass
from tessera.errors import CallError, LanguageError, caller_location
from tessera.frontend.annotations import Dim, OneType, dim_of
from tessera.frontend.exact import exact
from tessera.frontend.function import DeviceFunction
from tessera.numerics.dtypes import DType

_EXAMPLE = 'name the kernel\'s dimensions: ["M", "N"]'


@dataclass(frozen=True, slots=True)
class TensorField:
    """A tensor in a structure.

    Args:
        dims: its dimensions: formal names of the structure, integers, or other names, which are the field's own.
        dtype: element type.
    """

    dims: tuple[str | int, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class ScalarField:
    """A scalar known at the call only.

    Args:
        dtype: its type.
    """

    dtype: DType


@dataclass(frozen=True, slots=True)
class ConstantField:
    """A value that is compiled in.

    Args:
        value: the value.
    """

    value: Any


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """All of a structure that is compiled in. There is one object for each layout (`Layout.of`).

    Args:
        label: its name in messages.
        entry: what a call in a kernel inlines; it takes the structure and the call's arguments.
        formals: names of the dimensions it is over.
        fields: its fields by name; a tuple of layouts is a tuple of structures.
    """

    label: str
    entry: DeviceFunction[Any, Any]
    formals: tuple[str, ...]
    fields: tuple[tuple[str, Field], ...]

    @classmethod
    def of(
        cls,
        label: str,
        entry: DeviceFunction[Any, Any],
        formals: tuple[str, ...],
        fields: tuple[tuple[str, Field], ...] = (),
    ) -> Layout:
        """Return the layout with these parts."""
        key = (label, entry, formals, exact(fields))
        if key not in _layouts:
            _layouts[key] = cls(label, entry, formals, fields)
        return _layouts[key]


Field = TensorField | ScalarField | ConstantField | Layout | tuple[Layout, ...]

_layouts: dict[Any, Layout] = {}


@dataclass(frozen=True, slots=True)
class StructureAnnotation(OneType):
    """What a kernel's parameter says of a structure: the dimensions it is over.

    Args:
        kind: the class of structures that fit.
        dims: the kernel's dimension for each of the structure's, from the last one backwards.
    """

    kind: type[Structure]
    dims: tuple[Dim, ...]

    def __str__(self) -> str:
        return f"{self.kind.__name__}[{', '.join(map(str, self.dims))}]"


class Structure:
    """An argument with parts.

    Args:
        layout: what of it is compiled in.
        values: the arrays and scalars of its fields, in order.
    """

    __slots__ = ("layout", "needs_sizes", "values")

    HELP: ClassVar[str] = "pass a structure"
    """What to pass where one is missing."""

    needs_sizes: bool
    """Whether a launch needs memory of its own: `bound` is asked for it before, `finish` is called after."""

    def __init__(self, layout: Layout, values: tuple[Any, ...]) -> None:
        self.layout = layout
        self.values = values
        self.needs_sizes = False

    def bound(self, sizes: Mapping[str, int]) -> Structure:
        """Return the structure for one launch.

        Args:
            sizes: the sizes of the dimensions it is over, by their formal names.
        """
        return self

    def finish(self, stream: Any = None) -> None:
        """Do what is left after a launch on a stream."""

    def __class_getitem__(cls, items: Any) -> Any:
        """Return the annotation of a parameter: the kernel's dimensions that the structure is over."""
        parts = cast(tuple[Any, ...], items) if isinstance(items, tuple) else (items,)
        try:
            return StructureAnnotation(cls, tuple(dim_of(part, _EXAMPLE) for part in parts))
        except LanguageError as error:
            raise error.at(caller_location()) from None


@dataclass(frozen=True, slots=True)
class StructureParam:
    """A structured parameter of a kernel's source.

    Args:
        name: its name.
        annotation: what it takes.
    """

    name: str
    annotation: StructureAnnotation

    def dims_of(self, layout: Layout) -> dict[str, Dim]:
        """Return the kernel's dimension of each formal name; leading ones may be missing."""
        return dict(zip(reversed(layout.formals), reversed(self.annotation.dims), strict=False))


@dataclass(frozen=True, slots=True, eq=False)
class StructureValue:
    """A structure inside a kernel.

    Args:
        layout: its fields.
        fields: what each of them is.
    """

    layout: Layout
    fields: Mapping[str, Any]


def parts_of(param: StructureParam, layout: Layout) -> Iterator[tuple[str, TensorField | ScalarField, tuple[Dim, ...]]]:
    """Yield the tensors and scalars of a structure in order: name of the parameter, field, dimensions."""
    dims = param.dims_of(layout)
    yield from _parts(param.name, layout, dims)


def _parts(
    path: str, layout: Layout, dims: Mapping[str, Dim]
) -> Iterator[tuple[str, TensorField | ScalarField, tuple[Dim, ...]]]:
    for name, field in layout.fields:
        where = f"{path}.{name}"
        if isinstance(field, TensorField):
            yield where, field, tuple(_actual(where, dim, layout, dims) for dim in field.dims)
        elif isinstance(field, ScalarField):
            yield where, field, ()
        elif isinstance(field, Layout):
            yield from _parts(where, field, dims)
        elif isinstance(field, tuple):
            for part, inner in zip(labels(field), field, strict=True):
                yield from _parts(f"{path}.{part}", inner, dims)


def _actual(path: str, dim: str | int, layout: Layout, dims: Mapping[str, Dim]) -> Dim:
    if isinstance(dim, int):
        return Dim((), dim)
    if dim in layout.formals and dim not in dims:
        raise CallError(
            f"argument {path!r} has a dimension for the {dim}, and the kernel has none",
            code="wrong-rank",
            help=f"annotate the parameter with all of {', '.join(layout.formals)}, or pass one without",
        )
    return dims.get(dim) or Dim((f"{path}.{dim}".replace(".", "_"),))


def labels(layouts: tuple[Layout, ...]) -> list[str]:
    """Return a name for each of several structures: `bias`, or `bias_0` and `bias_1` where there are two."""
    names = [layout.label for layout in layouts]
    return [
        name if names.count(name) == 1 else f"{name}_{names[:place].count(name)}" for place, name in enumerate(names)
    ]


def value_of(param: StructureParam, layout: Layout, members: Mapping[str, Any]) -> StructureValue:
    """Return a structure as kernels see it.

    Args:
        param: the parameter.
        layout: what is passed for it.
        members: the values of its tensors and scalars, by parameter name.
    """
    return _value(param.name, layout, param.dims_of(layout), members)


def _value(path: str, layout: Layout, dims: Mapping[str, Dim], members: Mapping[str, Any]) -> StructureValue:
    fields: dict[str, Any] = dict(dims)
    for name, field in layout.fields:
        if isinstance(field, ConstantField):
            fields[name] = field.value
        elif isinstance(field, Layout):
            fields[name] = _value(f"{path}.{name}", field, dims, members)
        elif isinstance(field, tuple):
            pairs = zip(labels(field), field, strict=True)
            fields[name] = tuple(_value(f"{path}.{part}", inner, dims, members) for part, inner in pairs)
        else:
            fields[name] = members[f"{path}.{name}"]
    return StructureValue(layout, fields)
