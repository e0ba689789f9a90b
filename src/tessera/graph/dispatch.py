"""NumPy's calls on traced arrays: which of its functions is which of ours."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any

import numpy as np

from tessera.graph.compositions import call_method
from tessera.graph.functions import CREATED, FUNCTIONS, UFUNCS, WRITTEN, create, matmul, refused
from tessera.graph.traced import Trace


def call_ufunc(trace: Trace, ufunc: Any, method: str, inputs: Sequence[Any], options: dict[str, Any]) -> Any:
    """Return one of NumPy's elementwise functions.

    Raises:
        LanguageError: `not-traceable`.
    """
    if ufunc is np.matmul and method == "__call__" and not options:
        return matmul(*inputs)
    if ufunc in WRITTEN and method == "__call__" and not options:
        return WRITTEN[ufunc](*inputs)
    if (over := call_method(ufunc, method)) is not None:
        return over(*inputs, **options)
    if method != "__call__" or options or ufunc not in UFUNCS:
        raise refused(ufunc.__name__)
    with trace.at_caller():
        return trace.elementwise(UFUNCS[ufunc], inputs)


def call_function(trace: Trace, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return one of NumPy's functions of whole arrays.

    Raises:
        LanguageError: `not-traceable`.
    """
    if function in CREATED:
        return create(trace, function, args, kwargs)
    ours = FUNCTIONS.get(function)
    if ours is None:
        raise refused(function.__name__)
    try:
        given = signature(ours).bind_partial(*args, **kwargs).arguments
    except TypeError as error:  # an option that is not here
        raise refused(f"{function.__name__}: {error}") from None
    if given.get("out") is not None:
        raise refused(f"{function.__name__}(out=...)")
    return ours(*args, **kwargs)
