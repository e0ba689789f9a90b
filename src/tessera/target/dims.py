"""Sizes of dimensions as texts such as `M`, `B*H`, `n//2 + 1`: read, printed, computed, and solved for their names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from math import prod
from unicodedata import normalize

from tessera.data import dataclass
from tessera.errors import LanguageError

_TOKEN = re.compile(r"\s*(?:([^\W\d]\w*)|([0-9]+)|(//|[-+*()]))")
_MOST_TERMS = 64
_MOST_CHARACTERS = 1000
_MOST_DEPTH = 32

HELP = 'a name ("M"), a positive integer, or what +, -, * and // make of them ("B*H", "n+1", "n//2")'


@dataclass(frozen=True, slots=True)
class Quotient:
    """A quotient rounded down.

    Args:
        dividend: what is divided.
        divisor: what it is divided by.
    """

    dividend: Dim
    divisor: Dim

    @property
    def names(self) -> tuple[str, ...]:
        """The names in it, in order of appearance."""
        return (*self.dividend.names, *self.divisor.names)

    def value(self, sizes: Mapping[str, int]) -> int | None:
        """Return its value, None where a name has no size or the divisor is not positive."""
        parts = self.dividend.value(sizes), self.divisor.value(sizes)
        return None if parts[0] is None or parts[1] is None or parts[1] < 1 else parts[0] // parts[1]

    def __str__(self) -> str:
        return f"{_grouped(self.dividend, '*')}//{_grouped(self.divisor, '')}"


@dataclass(frozen=True, slots=True)
class Dim:
    """The size of a tensor dimension: `M`, `B*H`, `2*N`, `128`, or a sum of such terms as in `n+1`.

    Args:
        factors: names and quotients, as they are written.
        scale: integer factor.
        more: the other terms of a sum; none of them has terms of its own.
    """

    factors: tuple[str | Quotient, ...] = ()
    scale: int = 1
    more: tuple[Dim, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Dim:
        """Read `"M"`, `"B*H"`, `"n//2 + 1"` or `"128"`.

        Raises:
            LanguageError: `bad-annotation`.
        """
        dim = _Reader(normalize("NFKC", text)).read()  # as Python does with the names of a program
        if dim.is_static and dim.scale < 1:
            raise bad_dim(text)
        return dim

    @property
    def terms(self) -> tuple[Dim, ...]:
        """The products that it is the sum of."""
        return (Dim(self.factors, self.scale), *self.more)

    @property
    def names(self) -> tuple[str, ...]:
        """The names in it, in order of appearance; one that is a factor twice is there twice."""
        found: list[str] = []
        for term in self.terms:
            for factor in term.factors:
                found += [factor] if isinstance(factor, str) else factor.names
        return tuple(found)

    @property
    def is_static(self) -> bool:
        """Whether the dimension is a plain integer."""
        return not self.factors and not self.more

    @property
    def is_product(self) -> bool:
        """Whether it is a product of names and an integer."""
        return not self.more and all(isinstance(factor, str) for factor in self.factors)

    @property
    def is_name(self) -> bool:
        """Whether it is one name alone."""
        return self.is_product and self.scale == 1 and len(self.factors) == 1

    def value(self, sizes: Mapping[str, int]) -> int | None:
        """Return its value, None where a name in it has no size, or a divisor is not positive."""
        total = 0
        for term in self.terms:
            parts = [sizes.get(f) if isinstance(f, str) else f.value(sizes) for f in term.factors]
            if None in parts:
                return None
            total += term.scale * prod(part for part in parts if part is not None)
        return total

    def around(self, name: str) -> tuple[Dim, Dim] | None:
        """Return `a` and `b` of `a*name + b`; None where the name is in a quotient, in a power, or nowhere."""
        slope, rest = Dim((), 0), Dim((), 0)
        for term in self.terms:
            if term.factors.count(name) == 1:
                at = term.factors.index(name)
                term = Dim(term.factors[:at] + term.factors[at + 1 :], term.scale)
                slope += term
            else:
                rest += term
        known = name not in (*slope.names, *rest.names) and slope != Dim((), 0)
        return (slope, rest) if known else None

    def __add__(self, other: Dim | int) -> Dim:
        return _sum((*self.terms, *_as_dim(other).terms))

    def __sub__(self, other: Dim | int) -> Dim:
        return self + _as_dim(other) * -1

    def __rsub__(self, other: int) -> Dim:
        return _as_dim(other) - self

    def __mul__(self, other: Dim | int) -> Dim:
        return _sum(Dim(a.factors + b.factors, a.scale * b.scale) for a in self.terms for b in _as_dim(other).terms)

    def __floordiv__(self, other: Dim | int) -> Dim:
        divisor = _as_dim(other)
        if divisor == Dim():
            return self
        if divisor.is_static and divisor.scale < 1:
            raise bad_dim(f"{_grouped(self, '*')}//{divisor}")
        if self.is_static and divisor.is_static:
            return Dim((), self.scale // divisor.scale)
        return Dim((Quotient(self, divisor),))

    def __rfloordiv__(self, other: int) -> Dim:
        return _as_dim(other) // self

    __radd__ = __add__
    __rmul__ = __mul__

    def __str__(self) -> str:
        text = _term(self)
        for term in self.more:
            text += f"-{_term(Dim(term.factors, -term.scale))}" if term.scale < 0 else f"+{_term(term)}"
        return text


def _term(dim: Dim) -> str:
    """Return the text of a dimension's first term."""
    parts = [] if abs(dim.scale) == 1 and dim.factors else [str(abs(dim.scale))]
    alone = dim.scale == 1 and len(dim.factors) == 1
    parts += [f if isinstance(f, str) else str(f) if alone else f"({f})" for f in dim.factors]
    return ("-" if dim.scale < 0 else "") + "*".join(parts)


def _grouped(dim: Dim, allowed: str) -> str:
    """Return the text of a dimension in a quotient: what is not one factor stands in parentheses."""
    text = str(dim)
    plain = dim.is_product and dim.scale > 0 and (allowed == "*" or text.count("*") == 0)
    return text if plain else f"({text})"


def _as_dim(value: Dim | int) -> Dim:
    if isinstance(value, Dim):
        return value
    if isinstance(value, int) and not isinstance(value, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
        return Dim((), value)
    raise bad_dim(repr(value))


def _sum(terms: Iterable[Dim]) -> Dim:
    """Return a sum: terms of the same factors are one, those that are zero are none, the number stands last."""
    found: list[Dim] = []
    for term in terms:
        at = next((i for i, other in enumerate(found) if _alike(other, term)), None)
        if at is None:
            found.append(term)
        else:
            found[at] = Dim(found[at].factors, found[at].scale + term.scale)
    found = sorted((term for term in found if term.scale), key=lambda term: not term.factors)
    if len(found) > _MOST_TERMS:
        raise bad_dim(f"a sum of {len(found)} terms")
    return Dim(found[0].factors, found[0].scale, tuple(found[1:])) if found else Dim((), 0)


def _alike(first: Dim, second: Dim) -> bool:
    return Counter(first.factors) == Counter(second.factors)


def bad_dim(text: str) -> LanguageError:
    """Return the error for what is no dimension."""
    return LanguageError(f"{text!r:.200} is not a dimension", code="bad-annotation", help=HELP)


class _Reader:
    """Reads a dimension: sums of products, with `//` among the products as Python has it.

    Args:
        text: the text.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        self._depth = 0
        at = 0
        text = text.rstrip()
        while at < len(text) <= _MOST_CHARACTERS:
            found = _TOKEN.match(text, at)
            if found is None:
                raise bad_dim(self._text)
            self._tokens.append(found[0].strip())
            at = found.end()

    def read(self) -> Dim:
        """Return the dimension."""
        dim = self._sum()
        if self._tokens:
            raise bad_dim(self._text)
        return dim

    def _sum(self) -> Dim:
        dim = self._product()
        while self._tokens[:1] in (["+"], ["-"]):
            sign = self._tokens.pop(0)
            part = self._product()
            dim = dim + part if sign == "+" else dim - part
        return dim

    def _product(self) -> Dim:
        dim = self._factor()
        while self._tokens[:1] in (["*"], ["//"]):
            sign = self._tokens.pop(0)
            part = self._factor()
            dim = dim * part if sign == "*" else dim // part
        return dim

    def _factor(self) -> Dim:
        token = self._tokens.pop(0) if self._tokens else ""
        if token[:1].isdecimal():
            return Dim((), int(token))
        if token.isidentifier():
            return Dim((token,))
        if token not in ("(", "-") or self._depth == _MOST_DEPTH:
            raise bad_dim(self._text)
        self._depth += 1
        dim = self._sum() if token == "(" else self._factor() * -1
        if token == "(" and (not self._tokens or self._tokens.pop(0) != ")"):
            raise bad_dim(self._text)
        self._depth -= 1
        return dim


def solved(known: Iterable[tuple[Dim, int]]) -> dict[str, int]:
    """Return the sizes of names that sizes of dimensions decide; whether they agree is not checked.

    Args:
        known: dimensions and their sizes.
    """
    left = sorted(known, key=lambda pair: not pair[0].is_name)
    sizes: dict[str, int] = {}
    progress = True
    while progress:
        progress = False
        for dim, size in left:
            one = solve_for_one(dim, size, sizes)
            if one is not None and one[1] is not None:
                sizes[one[0]] = one[1]
                progress = True
    return sizes


def solve_for_one(dim: Dim, size: int, sizes: Mapping[str, int]) -> tuple[str, int | None] | None:
    """Return the one name of a dimension that has no size yet, with the size that makes it `size`, None if none does.

    Args:
        dim: the dimension.
        size: its size.
        sizes: sizes of names.

    Returns:
        None where several names, or none, have no size, or where any size, or one of several, would do.
    """
    unknown = set(dim.names) - sizes.keys()
    if len(unknown) != 1:
        return None
    (name,) = unknown
    linear = dim.around(name)
    slope, rest = (None, None) if linear is None else (linear[0].value(sizes), linear[1].value(sizes))
    if not slope or rest is None:
        return None
    value, left = divmod(size - rest, slope)
    return name, None if left or value < 0 else value
