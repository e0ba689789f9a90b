"""What a kernel's parameters are annotated with: tensors, symbolic dimensions and compile-time constants."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, TypeVar, cast
from unicodedata import normalize

from tessera.data import dataclass
from tessera.errors import LanguageError, caller_location, shown
from tessera.numerics.dtypes import DType, Policy, as_policy, dtype_help
from tessera.target.dims import Dim

if TYPE_CHECKING:
    from tessera.frontend.tile.values import Tile, TileLike

_LARGEST = 2**63 - 1
_NAME = re.compile(r"[^\W\d]\w*\Z")


def dims(names: str) -> Any:
    """Make symbolic dimensions: `M, N, K = ts.dims("M N K")`.

    Used in annotations (`ts.Tensor[M, K, ts.bf16]`) and as index values in a kernel's body, where linters and
    type checkers then see a defined name.

    Args:
        names: dimension names separated by spaces or commas.

    Returns:
        One dimension, or a tuple of them when there are several names.

    Raises:
        LanguageError: `bad-annotation` when a name is not an identifier.
    """
    words = normalize("NFKC", names).replace(",", " ").split() if isinstance(names, str) else [repr(names)]  # pyright: ignore[reportUnnecessaryIsInstance]
    if not words:
        raise LanguageError(
            "no dimension is named",
            code="bad-annotation",
            location=caller_location(),
            help='name them in a text: ts.dims("M N K")',
        )
    for word in words:
        if not _NAME.match(word):
            raise LanguageError(
                f"{word!r} cannot name a dimension",
                code="bad-annotation",
                location=caller_location(),
                help='use identifiers: ts.dims("M N K")',
            )
    made = tuple(Dim((word,)) for word in words)
    return made[0] if len(made) == 1 else made


class OneType:
    """An annotation that is not a part of a union: a parameter has one type."""

    __slots__ = ()

    def __or__(self, other: Any) -> Any:
        raise no_union(f"{self} | {other}").at(caller_location())

    def __ror__(self, other: Any) -> Any:
        raise no_union(f"{other} | {self}").at(caller_location())


def no_union(text: str) -> LanguageError:
    """Return the error for an annotation with several types."""
    return LanguageError(
        f"{text}: a parameter has one type",
        code="bad-annotation",
        help='a tensor that may be missing is ts.Tensor["n", ts.f32] | None; for several dtypes see ts.dtype_var',
    )


@dataclass(frozen=True, slots=True)
class DTypeVar(OneType):
    """A dtype that each call decides; made by `dtype_var`.

    Args:
        name: its name.
        choices: dtypes that it may be; any when there is none.
    """

    name: str
    choices: tuple[DType, ...] = ()

    def __str__(self) -> str:
        return self.name


def dtype_var(name: str, *choices: DType | str) -> DTypeVar:
    """Make a dtype variable: a kernel with it takes arrays of several dtypes, and is compiled once for each.

        T = ts.dtype_var("T", ts.f16, ts.bf16, ts.f32)

        @ts.kernel
        def scale(x: ts.Tensor["n", T], y: ts.Tensor["n", T], a: float): ...

    All tensors with one variable have one dtype at a call. In the kernel's body the variable is that dtype.

    Args:
        name: what messages and `ts.compile(kernel, T=ts.f32)` call it.
        choices: dtypes that it may be; any when none is given.

    Returns:
        What stands for the dtype in annotations.

    Raises:
        LanguageError: `bad-annotation` for a name that is none; `bad-dtype`, `unknown-dtype` or `bad-policy` for a
            choice that is no dtype.
    """
    if not isinstance(name, str) or not _NAME.match(name):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise LanguageError(
            f"{name!r} cannot name a dtype",
            code="bad-annotation",
            location=caller_location(),
            help='use an identifier: ts.dtype_var("T", ts.f16, ts.f32)',
        )
    return DTypeVar(name, tuple(chosen_dtype(choice, f"a choice of {name}") for choice in choices))


def chosen_dtype(value: Any, what: str) -> DType:
    """Return a dtype, given as such, as a policy or by its name.

    Raises:
        LanguageError: `bad-dtype` for anything else, `unknown-dtype` or `bad-policy` for a text that names none.
    """
    if isinstance(value, DType | Policy | str):
        return as_policy(value).dtype
    raise LanguageError(
        f"{what} is {shown(value)}, no dtype", code="bad-dtype", help=dtype_help(value, "give ts.f32, or its name")
    )


@dataclass(frozen=True, slots=True)
class TensorAnnotation(OneType):
    """A parsed `ts.Tensor[...]`.

    Args:
        dims: the size of each dimension.
        policy: element type and its numeric rules.
    """

    dims: tuple[Dim, ...]
    policy: Policy

    def __str__(self) -> str:
        return f"Tensor[{', '.join([*map(str, self.dims), str(self.policy)])}]"

    def __or__(self, other: Any) -> Any:
        return OpenTensor(self.dims, self.policy, True) if other is None else OneType.__or__(self, other)

    __ror__ = __or__


@dataclass(frozen=True, slots=True)
class OpenTensor(OneType):
    """A tensor that a call decides about: its dtype, or whether it is there.

    Args:
        dims: the size of each dimension.
        element: its dtype with the numeric rules, or the variable that stands for it.
        optional: whether it may be missing.
    """

    dims: tuple[Dim, ...]
    element: Policy | DTypeVar
    optional: bool = False

    def __str__(self) -> str:
        return f"Tensor[{', '.join([*map(str, self.dims), str(self.element)])}]{' | None' if self.optional else ''}"

    def __or__(self, other: Any) -> Any:
        return OpenTensor(self.dims, self.element, True) if other is None else OneType.__or__(self, other)

    __ror__ = __or__

    def bound(self, dtypes: Mapping[str, DType]) -> TensorAnnotation:
        """Return the annotation with its variable's dtype."""
        element = self.element
        return TensorAnnotation(self.dims, Policy(dtypes[element.name]) if isinstance(element, DTypeVar) else element)


class Tensor:
    """Annotation of a tensor parameter: `ts.Tensor["M", "K", ts.bf16]`.

    Dimensions come first, the dtype, numeric policy or `ts.dtype_var` last. A dimension is a name, an integer, what
    `+`, `-`, `*` and `//` make of them (`"B*H"`, `"n+1"`, `"n//2"`), or the same of the symbols of `ts.dims`. Names
    are index values inside the kernel's body. A call checks that all sizes agree; a name that stands nowhere alone is
    solved for where one size of it fits, as `n` of `"n+1"` is. A tensor that may be missing is
    `ts.Tensor["N", ts.f32] | None`; the body asks `if bias is not None`, at compile time.
    """

    def __class_getitem__(cls, items: Any) -> TensorAnnotation | OpenTensor:
        """Parse the dimensions and the dtype."""
        parts = cast(tuple[Any, ...], items) if isinstance(items, tuple) else (items,)
        try:
            if not parts:
                raise LanguageError("a tensor has a dtype", code="bad-annotation", help=f"write {_EXAMPLE}")
            if isinstance(parts[-1], DTypeVar):
                return OpenTensor(tuple(dim_of(part, _EXAMPLE) for part in parts[:-1]), parts[-1])
            return TensorAnnotation(tuple(dim_of(part, _EXAMPLE) for part in parts[:-1]), _policy(parts[-1]))
        except LanguageError as error:
            raise error.at(caller_location()) from None

    if not TYPE_CHECKING:

        def __new__(cls, *items: Any) -> Any:
            """Refuse a call: dimensions and dtype stand in brackets."""
            raise LanguageError(
                "ts.Tensor is called",
                code="bad-annotation",
                location=caller_location(),
                help='it is an annotation, with brackets: ts.Tensor["M", 128, ts.f32]',
            )

    if TYPE_CHECKING:
        # What a parameter annotated so can do inside a kernel; the class has no instances.

        @property
        def shape(self) -> tuple[int, ...]:
            """The size of each dimension."""
            ...

        @property
        def dtype(self) -> DType:
            """The element type."""
            ...

        def __getitem__(self, index: Any) -> Tile:
            """Load a bounded slice, or elements at index tiles."""
            ...

        def __setitem__(self, index: Any, value: TileLike) -> None:
            """Store to a bounded slice, or to elements at index tiles."""


_EXAMPLE = 'dimensions come first and the dtype last: ts.Tensor["M", 128, ts.f32]'


def dim_of(part: Any, example: str) -> Dim:
    """Return the dimension that a part of an annotation is.

    Args:
        part: a name, an expression, a positive integer, or symbols of `ts.dims`.
        example: the help of the error.

    Raises:
        LanguageError: `bad-annotation`.
    """
    dim = None
    if isinstance(part, str):
        dim = Dim.parse(part)
    elif isinstance(part, int) and not isinstance(part, bool):
        dim = Dim((), part)
    elif isinstance(part, Dim):
        dim = part
    if dim is None or (dim.is_static and dim.scale < 1):
        raise LanguageError(f"{part!r} is not a dimension", code="bad-annotation", help=example)
    if any(abs(term.scale) > _LARGEST for term in dim.terms):
        raise LanguageError(
            f"the dimension {dim} has a number beyond 64 bits", code="bad-annotation", help=f"at most {_LARGEST}"
        )
    return dim


def _policy(part: Any) -> Policy:
    if isinstance(part, DType | Policy):
        return as_policy(part)
    if isinstance(part, str) and not _is_only_a_dim(part):
        return as_policy(part)
    raise LanguageError(
        f"a tensor's annotation ends with its dtype, not with {part!r}",
        code="bad-annotation",
        help=dtype_help(part, 'write ts.Tensor["M", "K", ts.f32]'),
    )


def _is_only_a_dim(text: str) -> bool:
    """Whether a last item such as `"K"` is a dimension whose dtype was forgotten."""
    from tessera.numerics.dtypes import BY_NAME

    word = text.strip()
    if "@" in word or word in BY_NAME:
        return False
    try:
        return len(word) <= 2 or not Dim.parse(word).is_name
    except LanguageError:
        return False


@dataclass(frozen=True, slots=True)
class ConstexprAnnotation(OneType):
    """A parsed `ts.constexpr` or `ts.constexpr[int]`.

    Args:
        type: the Python type its values have, None for any.
    """

    type: type | None = None

    def __str__(self) -> str:
        return "ts.constexpr"

    def __call__(self, *values: Any) -> Any:
        """Refuse a call: a value is the parameter's default."""
        raise LanguageError(
            "ts.constexpr is called",
            code="bad-annotation",
            location=caller_location(),
            help="it is an annotation: BLOCK: ts.constexpr = 64; in a kernel, numbers are constants as they are",
        )

    def __getitem__(self, item: Any) -> ConstexprAnnotation:
        if isinstance(item, type):
            return ConstexprAnnotation(item)
        raise LanguageError(
            f"constexpr takes a Python type, got {item!r}",
            code="bad-annotation",
            location=caller_location(),
            help="write ts.constexpr or ts.constexpr[int]",
        )


if TYPE_CHECKING:
    _T = TypeVar("_T")
    constexpr: TypeAlias = Annotated[_T, "known when the kernel is compiled"]
else:
    constexpr: Final = ConstexprAnnotation()
    """Annotation of a parameter whose value is known when the kernel is compiled: `BM: ts.constexpr`."""
