"""What a kernel is compiled for: facts about its arguments, values of its constants, the tuning point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
    """

    kind: Literal["tensor", "scalar"]
    dtype: DType
    sizes: tuple[int | None, ...] = ()
    strides: tuple[int, ...] = ()
    align: int = 1
    stride_div: tuple[int, ...] = ()
    dim_div: tuple[int, ...] = ()


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
