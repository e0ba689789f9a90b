"""The type of Graph IR: arrays whose sizes are expressions in symbols, `!tessera_graph.array<["B", "2*S"], bf16>`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, cast

from xdsl.dialects.builtin import ArrayAttr, StringAttr
from xdsl.ir import Attribute, ParametrizedAttribute, SSAValue, TypeAttribute
from xdsl.irdl import irdl_attr_definition, param_def
from xdsl.utils.exceptions import VerifyException

from tessera.errors import LanguageError
from tessera.ir.attributes import text
from tessera.ir.types import dtype_of, element_type, is_scalar
from tessera.numerics.dtypes import DType
from tessera.target.dims import Dim

ONE = Dim()
"""A size of 1."""
ZERO = Dim((), 0)
"""A size of 0, and the first place."""


@lru_cache(maxsize=65536)
def dim_of(source: str) -> Dim:
    """Return the size that a text says; zero is one, too."""
    return Dim((), 0) if source == "0" else ordered(Dim.parse(source))


def ordered(dim: Dim) -> Dim:
    """Return a size with the factors of each term, and then the terms, in one order, so that equal sums are equal."""
    if not dim.more and len(dim.factors) < 2:
        return dim
    terms = [Dim(tuple(sorted(term.factors, key=str)), term.scale) for term in dim.terms]
    terms.sort(key=lambda term: (not term.factors, str(term.factors)))
    return Dim(terms[0].factors, terms[0].scale, tuple(terms[1:]))


def product(dims: Iterable[Dim]) -> Dim:
    """Return the product of sizes."""
    total = ONE
    for dim in dims:
        total = total * dim
    return ordered(total)


def texts(dims: Iterable[Dim]) -> ArrayAttr[StringAttr]:
    """Return sizes as an attribute."""
    return ArrayAttr([text(str(ordered(dim))) for dim in dims])


@irdl_attr_definition
class ArrayType(ParametrizedAttribute, TypeAttribute):
    """An array: the text of each size (`target/dims.py`) and the element type; without sizes it is one number."""

    name = "tessera_graph.array"
    sizes: ArrayAttr[StringAttr] = param_def()
    element: Attribute = param_def()

    @classmethod
    def of(cls, dims: Sequence[Dim], dtype: DType) -> ArrayType:
        """Make the type from sizes and a dtype."""
        return _type_of(tuple(dims), dtype)

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The size of each dimension."""
        held: dict[str, Any] = vars(self)  # a cached property would be a field to xDSL
        if "_dims" not in held:
            held["_dims"] = tuple([dim_of(size.data) for size in self.sizes.data])
        return held["_dims"]

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.sizes.data)

    @property
    def dtype(self) -> DType:
        """The dtype of the elements."""
        return dtype_of(self.element)

    def verify(self) -> None:
        """Check the element type and that each size can be read."""
        if not is_scalar(self.element):
            raise VerifyException(f"{self.element} is not an element type")
        for size in self.sizes.data:
            try:
                dim_of(size.data)
            except LanguageError as error:
                raise VerifyException(f"{size.data!r} is no size: {error.message}") from None


@lru_cache(maxsize=65536)
def _type_of(dims: tuple[Dim, ...], dtype: DType) -> ArrayType:
    return ArrayType(texts(dims), element_type(dtype))


def array_type(value: SSAValue) -> ArrayType:
    """Return the type of a value, which is an array."""
    return cast(ArrayType, value.type)


def dims_of(value: SSAValue) -> tuple[Dim, ...]:
    """Return the sizes of an array."""
    return array_type(value).dims
