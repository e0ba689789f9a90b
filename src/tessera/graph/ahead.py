"""Goes through a graph's steps without running them, and compiles what they will launch; see `driver.ahead`.

Arrays are made as steps make them, and hold anything.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from tessera.driver.ahead import wanting
from tessera.driver.variants import Wanted
from tessera.graph.plan import Applied, Called, Changed, Group, Multiplied, Plan, Step, Written
from tessera.graph.recorded import drop
from tessera.graph.runs import Run, Values
from tessera.ops import arrays
from tessera.ops.watching import CREATES, is_view
from tessera.target.dims import Dim

Need = Callable[[Group | Multiplied, Values], Wanted | None]
"""Makes the arrays that a group writes, and returns the code that its kernel needs, None where it is there; a product
notes what its own kernel needs."""
_HARMLESS = (
    *CREATES,
    "aten::zeros",
    "aten::new_zeros",
    "aten::full",
    "aten::zero_",
    "aten::fill_",
    "aten::clone",
    "aten::copy_",
    "aten::_to_copy",
    "aten::cat",
)
"""Ops of PyTorch that may run on arrays that hold anything."""


def compile_ahead(
    plan: Plan, given: Values, need: Need, step: Callable[[Step], Run], size: Callable[[Dim], int]
) -> None:
    """Compile what a call of a graph needs and what is not there yet.

    Args:
        plan: what the graph does.
        given: its values, of which the arguments are there; left as they are.
        need: of a group.
        step: gives how another step runs.
        size: gives the number of elements along a dimension.
    """
    values = list(given)
    like = values[0]
    with wanting() as wants, _harmless(like):
        for what, gone in zip(plan.steps, plan.gone, strict=True):
            match what:
                case Group() | Multiplied():
                    with suppress(Exception):
                        wants.add(need(what, values))
                case Called():
                    with suppress(Exception):  # of what may not run on such arrays
                        step(what)(values)
                    for number, (dims, dtype) in zip(what.goals, what.types, strict=True):
                        if values[number] is not None:
                            continue
                        with suppress(Exception):  # of memory that is short: all arguments are held meanwhile
                            values[number] = arrays.maker(like, tuple(map(size, dims)), dtype)(like)
                case Applied():
                    with suppress(Exception):
                        step(what)(values)
                case Changed():  # what it overwrites may be an argument
                    for number, operand in zip(what.goals, what.operands[: len(what.in_place)], strict=False):
                        values[number] = values[operand]
                case Written():
                    pass
            drop(gone, values)
    values.clear()
    wants.compile()


@contextmanager
def _harmless(like: Any) -> Generator[None]:
    """Let only that run of PyTorch, or of NumPy, which may run on arrays that hold anything."""
    if arrays.is_torch(like):
        with _mode()():
            yield
    else:
        with np.errstate(all="ignore"):
            yield


@cache
def _mode() -> Any:
    base: Any = import_module("torch.utils._python_dispatch").TorchDispatchMode

    class Harmless(base):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func._schema.name
            if not (name in _HARMLESS or name.startswith("tessera::") or is_view(func)):
                raise _Harmful(name)
            return func(*args, **(kwargs or {}))

    return Harmless


class _Harmful(Exception):
    """An op that may not run on arrays that hold anything, such as one that takes places from them."""
