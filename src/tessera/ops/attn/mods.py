"""A user's own functions in attention: what they do to scores, which keys a query sees, and the blocks that follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, cast
from uuid import uuid4

import tessera as ts
from tessera.frontend.function import DeviceFunction
from tessera.frontend.structure import ConstantField, Layout, Structure, TensorField
from tessera.ops import arrays
from tessera.ops.epilogue.chain import FORMALS
from tessera.ops.refusals import checked, refused
from tessera.ops.steps import needs_gradient

LISTED = 128
"""Queries, and keys, of a block of a mask's lists."""
_MOST = 4
"""Tensors that a function reads."""

MB, NB = ts.dims("MB NB")


_PLAIN: dict[Any, Mod] = {}
"""Functions that were given without tensors."""


class Mod(Structure):
    """A user's function with the tensors it reads; made by `mod`.

    Args:
        function: what it is.
        tensors: arrays that are passed to it after its other arguments.
    """

    __slots__ = ("function", "name")

    HELP: ClassVar[str] = "pass a @ts.function, or op.attn.mod(function, tensors…)"

    def __init__(self, function: DeviceFunction[..., Any], tensors: tuple[Any, ...]) -> None:
        views = [arrays.view(one, f"tensor {place} of {function!r}") for place, one in enumerate(tensors)]
        fields = tuple(
            (f"t{place}", TensorField(tuple(f"d{place}_{axis}" for axis in range(len(view.shape))), view.dtype))
            for place, view in enumerate(views)
        )
        constants = (("function", ConstantField(function)), ("count", ConstantField(len(tensors))))
        super().__init__(Layout.of(function.function.__name__, _call, (), (*constants, *fields)), tensors)
        self.function = function
        self.name = NAMES.name_of(self.layout)

    def __repr__(self) -> str:
        return f"mod({self.function.function.__name__})"


@ts.function
def _call(self: Any, x: Any, b: Any, h: Any, rows: Any, columns: Any) -> Any:
    """Apply the function; `x` is None for a mask."""
    return with_tensors(self, b, h, rows, columns) if x is None else scored(self, x, b, h, rows, columns)


@ts.function
def scored(mod: Any, x: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    """Return a score as the function changes it."""
    if mod.count == 0:
        return mod.function(x, b, h, q, k)
    if mod.count == 1:
        return mod.function(x, b, h, q, k, mod.t0)
    if mod.count == 2:
        return mod.function(x, b, h, q, k, mod.t0, mod.t1)
    if mod.count == 3:
        return mod.function(x, b, h, q, k, mod.t0, mod.t1, mod.t2)
    return mod.function(x, b, h, q, k, mod.t0, mod.t1, mod.t2, mod.t3)


@ts.function
def with_tensors(mod: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    """Return whether queries see keys."""
    if mod.count == 0:
        return mod.function(b, h, q, k)
    if mod.count == 1:
        return mod.function(b, h, q, k, mod.t0)
    if mod.count == 2:
        return mod.function(b, h, q, k, mod.t0, mod.t1)
    if mod.count == 3:
        return mod.function(b, h, q, k, mod.t0, mod.t1, mod.t2)
    return mod.function(b, h, q, k, mod.t0, mod.t1, mod.t2, mod.t3)


class Mods(Structure):
    """What a call of attention has of its own: `mods.score`, `mask`, `drop` and `finish`, None for what it has not.

    Args:
        layout: what of them is compiled in.
        values: their tensors and numbers.
    """

    __slots__ = ()

    HELP: ClassVar[str] = "pass what NAMES.mods_of(…) returns"


class Names:
    """Texts for layouts of functions, which operators of PyTorch take.

    A text is of one process: a graph that another process kept names none of this one's functions.
    """

    def __init__(self) -> None:
        self._process = uuid4().hex
        self._names: dict[Layout, str] = {}
        self._layouts: dict[str, Layout | None] = {"": None}

    def name_of(self, layout: Layout) -> str:
        """Return the text for a function."""
        name = self._names.setdefault(layout, f"{self._process}-{len(self._names)}")
        self._layouts[name] = layout
        return name

    def mods_of(
        self, names: str, values: Sequence[Any], drop: Layout | None = None, finish: Layout | None = None
    ) -> Mods:
        """Return the functions that texts with `|` between them stand for, with their tensors, dropout and epilogue.

        Raises:
            CallError: `bad-argument` for a text of another process.
        """
        if not names and drop is finish is None:
            return NO_MODS
        each = names.split("|") if names else ("", "")
        if any(name not in self._layouts for name in each):
            raise refused("a graph names functions of another process", "bad-argument", "trace it again")
        score, mask = (self._layouts[name] for name in each)
        return Mods(_layout_of(score, mask, drop, finish), tuple(values))


def _layout_of(
    score: Layout | None, mask: Layout | None, drop: Layout | None = None, finish: Layout | None = None
) -> Layout:
    parts = {"score": score, "mask": mask, "drop": drop, "finish": finish}
    formals = () if finish is None else FORMALS
    return Layout.of("mods", _call, formals, tuple((name, one or ConstantField(None)) for name, one in parts.items()))


NO_MODS = Mods(_layout_of(None, None), ())
NAMES = Names()


@checked
def mod(function: Any, *tensors: Any) -> Mod:
    """Return a function for `score_mod` or `mask_mod` of `op.flash_attention` with tensors that it reads.

        @ts.function
        def same_document(b, h, q, k, documents):
            return documents[q] == documents[k]

        op.flash_attention(q, k, v, mask_mod=op.attn.mod(same_document, documents))

    Each layout of a mod is compiled for itself: make the function once, not at each call, and outside of what
    `torch.compile` traces.

    Args:
        function: a `@ts.function`. As `score_mod` it takes `(score, b, h, q, k, *tensors)` and returns the score; as
            `mask_mod` it takes `(b, h, q, k, *tensors)` and returns whether query `q` sees key `k`. `b` and `h` are
            scalars, `q` and `k` tiles of i32 that broadcast to the scores' block: numbers from 0 on.
        *tensors: at most four arrays on the device of the call, of any shape; they have no gradients.

    Raises:
        CallError: `bad-argument`, `not-an-array`, or `no-gradient` for tensors that need one.
    """
    if not isinstance(function, DeviceFunction):
        raise refused(f"{function!r:.60} is no function of kernels", "bad-argument", "decorate it with @ts.function")
    if len(tensors) > _MOST:
        raise refused(f"{len(tensors)} tensors", "bad-argument", f"a function reads at most {_MOST}: stack some")
    if needs_gradient(tensors):
        raise refused("tensors of a mod have no gradients", "no-gradient", "detach them")
    return Mod(cast("DeviceFunction[..., Any]", function), tensors)


def as_mod(given: Any, name: str) -> Mod | None:
    """Return what was given for a function of attention.

    Raises:
        CallError: `bad-argument`.
    """
    if given is None or isinstance(given, Mod):
        return given
    if not isinstance(given, DeviceFunction):
        raise refused(f"{name} is {given!r:.60}", "bad-argument", Mod.HELP)
    plain = cast("DeviceFunction[..., Any]", given)
    found = _PLAIN.get(plain)
    if found is None:
        found = _PLAIN[plain] = Mod(plain, ())
    return found
