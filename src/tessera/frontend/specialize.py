"""What a kernel is compiled for: facts about its arguments, values of its constants, the tuning point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from tessera.data import dataclass
from tessera.numerics.dtypes import DType


@dataclass(frozen=True, slots=True)
class ArgFacts:
    """What is known of one argument.

    Args:
        kind: `tensor` or `scalar`.
        dtype: element type.
        sizes: size of each dimension, None where unknown. Used only where the kernel needs a static size.
        strides: stride of each dimension in elements where it may be relied on (such as 1 or 0), else -1.
        align: bytes that divide the base address.
        stride_div: number that divides each stride, in elements.
        dim_div: number that divides each size.
        alias: the first tensor argument that starts at the same address, -1 when none before it does.
        view: the first tensor argument that is the same view of that memory (dtype, sizes and strides), -1 likewise.
        order: dimensions by their strides, the longest first; empty where that is their own order, and of matrices.
        contiguous: whether strides follow from sizes, also where these are not known.
    """

    kind: Literal["tensor", "scalar"]
    dtype: DType
    sizes: tuple[int | None, ...] = ()
    strides: tuple[int, ...] = ()
    align: int = 1
    stride_div: tuple[int, ...] = ()
    dim_div: tuple[int, ...] = ()
    alias: int = -1
    view: int = -1
    order: tuple[int, ...] = ()
    contiguous: bool = False


@dataclass(frozen=True, slots=True)
class Specialization:
    """Everything that decides what a kernel's source compiles to.

    Args:
        args: facts of the tensor and scalar parameters, in order (constexpr parameters are left out).
        constexprs: values of the constexpr parameters.
        config: the tuning point, seen as attributes of `ts.tile.context()`.
        profile: numerics profile.
        debug: whether device asserts are compiled in.
        linear_block: elements of one program of a kernel that uses `ts.tile.linear_id()`.
    """

    args: tuple[ArgFacts, ...]
    constexprs: tuple[tuple[str, object], ...] = ()
    config: tuple[tuple[str, object], ...] = ()
    profile: str = "fast"
    debug: bool = False
    linear_block: int = 1024

    @property
    def has_aliases(self) -> bool:
        """Whether any two tensor arguments start at the same address."""
        return any(fact.alias >= 0 for fact in self.args)

    def seen_aliases(self, written: Sequence[bool]) -> Specialization:
        """Return it without the aliases among arguments that a kernel only reads: they make no difference to it.

        Args:
            written: whether it stores to each argument.
        """
        changed = {place if fact.alias < 0 else fact.alias for place, fact in enumerate(self.args) if written[place]}
        return replace(
            self,
            args=tuple(
                fact if fact.alias < 0 or fact.alias in changed else replace(fact, alias=-1, view=-1)
                for fact in self.args
            ),
        )
