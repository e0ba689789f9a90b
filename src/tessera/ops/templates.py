"""Kernels whose dtypes and layouts are known at a call only: the source is one, the annotations are made."""

from __future__ import annotations

from types import FunctionType
from typing import Any, cast


def annotated(template: Any, annotations: dict[str, Any]) -> FunctionType:
    """Return a kernel's function with annotations: dtypes and layouts are those of a call, not of the source."""
    source = cast(FunctionType, template)
    name = source.__name__
    made = FunctionType(source.__code__, source.__globals__, name, source.__defaults__, source.__closure__)
    made.__module__, made.__qualname__, made.__doc__ = source.__module__, name, source.__doc__
    made.__annotations__ = annotations
    return made
