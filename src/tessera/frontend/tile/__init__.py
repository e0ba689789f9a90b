"""`ts.tile`: the functions of the kernel language. One file per family, read when one of its functions is asked for.

No file has the name of a function: importing it would put the module in the function's place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tessera.errors import caller_location
from tessera.frontend.tile.stub import FUNCTIONS, NAMESPACES
from tessera.frontend.tile.values import Context as Context
from tessera.frontend.tile.values import Scalar as Scalar
from tessera.frontend.tile.values import Shared as Shared
from tessera.frontend.tile.values import Tile as Tile

if TYPE_CHECKING:
    from tessera.frontend.tile import group as group
    from tessera.frontend.tile import mbarrier as mbarrier
    from tessera.frontend.tile import pipeline as pipeline
    from tessera.frontend.tile.activations import *  # noqa: F403
    from tessera.frontend.tile.assembly import *  # noqa: F403
    from tessera.frontend.tile.atomics import *  # noqa: F403
    from tessera.frontend.tile.bits import *  # noqa: F403
    from tessera.frontend.tile.create import *  # noqa: F403
    from tessera.frontend.tile.debug import *  # noqa: F403
    from tessera.frontend.tile.derivatives import *  # noqa: F403
    from tessera.frontend.tile.math import *  # noqa: F403
    from tessera.frontend.tile.memory import *  # noqa: F403
    from tessera.frontend.tile.order import *  # noqa: F403
    from tessera.frontend.tile.parts import *  # noqa: F403
    from tessera.frontend.tile.products import *  # noqa: F403
    from tessera.frontend.tile.random import *  # noqa: F403
    from tessera.frontend.tile.reductions import *  # noqa: F403
    from tessera.frontend.tile.shape import *  # noqa: F403
    from tessera.frontend.tile.shared import *  # noqa: F403
    from tessera.frontend.tile.structure import *  # noqa: F403

FAMILIES = (
    "structure",
    "create",
    "memory",
    "math",
    "reductions",
    "products",
    "shape",
    "parts",
    "activations",
    "assembly",
    "atomics",
    "bits",
    "order",
    "random",
    "shared",
    "debug",
    "derivatives",
    *NAMESPACES,
)
"""The files with functions, in the order in which a name is looked for: what most kernels use comes first."""


def functions() -> Mapping[str, Callable[..., object]]:
    """Return every tile function by name."""
    for family in FAMILIES:
        _read(family)
    return FUNCTIONS


def _read(family: str) -> ModuleType:
    """Import a file and take its functions in; those of a namespace stay there."""
    module = import_module(f"{__name__}.{family}")
    if family not in NAMESPACES:
        for name in module.__all__:
            globals().setdefault(name, getattr(module, name))  # a program's own stay
    return module


def __getattr__(name: str) -> Any:
    if name in NAMESPACES:
        return _read(name)
    if not name.startswith("_"):
        for family in FAMILIES:
            _read(family)
            if name in globals():
                return globals()[name]
        from tessera.frontend.foreign import missing_name

        raise missing_name("ts.tile", name, FUNCTIONS).at(caller_location())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    functions()
    return sorted(globals())
