"""Steps of optimizers that are like earlier ones: what those launched is started again, without the Python between.

A step's second run of its kind is recorded, with its numbers in a table in memory. Later ones of the kind write theirs
there and start the launches. A kind is what decides what a step launches: the optimizer and its options, and how each
tensor lies. Gradients may lie elsewhere in each step; parameters that move are looked at anew. This is for PyTorch's
tensors of a CPU; what follows or traces a step makes it run as it is written.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tessera.numerics.profiles import current_profile
from tessera.ops.recorded import Repeat, Results, ranges, repeat_of
from tessera.ops.rules import RULES
from tessera.ops.watching import is_watched, watched
from tessera.runtime.recording import recording

_MOST_KNOWN = 64
"""Kinds of steps that are remembered; with one more, all are forgotten."""
_ALIGNED = 16

Lists = dict[str, list[Any]]
Launch = Callable[[Lists, Any], None]


class Asked(NamedTuple):
    """A step.

    Args:
        key: where its kind is looked for.
        forms: how each tensor lies.
        tensors: all of them, list by list.
        pointers: their addresses.
    """

    key: Any
    forms: list[Any]
    tensors: list[Any]
    pointers: list[int]


class Again:
    """What a step launched.

    Args:
        asked: the step.
        table: the tensor that its numbers are in.
        repeat: starts its launches.
    """

    def __init__(self, asked: Asked, table: Any, repeat: Repeat) -> None:
        self.forms, self._table, self._repeat = asked.forms, table, repeat
        self._numbers, self._place = table.numpy(), table.data_ptr()
        self._bytes = np.array([one.nbytes for one in asked.tensors])
        self._aligned = np.array(asked.pointers) % _ALIGNED
        self._last = asked.pointers

    def take(self, asked: Asked, numbers: Sequence[float]) -> bool:
        """Take a step by its numbers; return whether it could be taken."""
        if not self._fits(asked.pointers) or not self._repeat.take():
            return False
        self._numbers[:] = numbers
        self._repeat([*asked.tensors, self._table], [*asked.pointers, self._place])
        return True

    def _fits(self, pointers: list[int]) -> bool:
        """Return whether tensors at these addresses share no memory, and are aligned as the launches ask."""
        if pointers != self._last:
            starts = np.array(pointers)
            if not _are_apart(starts, self._bytes) or (starts % _ALIGNED != self._aligned).any():
                return False
            self._last = pointers
        return True


_known: dict[Any, Again | list[Any] | None] = {}
"""By keys of steps: what starts them again, how the tensors lie of one that has been seen, or None to leave them."""


def asked(kind: tuple[Any, ...], given: Lists) -> Asked | None:
    """Return a step that may be one of a known kind, None for one that runs as it is written.

    Args:
        kind: the optimizer and its options.
        given: lists of its arrays.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or torch.compiler.is_compiling() or is_watched(torch):
        return None
    tensors = [one for some in given.values() for one in some]
    if not tensors or not getattr(tensors[0], "is_cpu", False):
        return None
    try:
        pointers = [one.data_ptr() for one in tensors]
        forms: list[Any] = [
            (type(one), one.dtype, one.shape, one.stride(), one.is_cpu, one.is_neg()) for one in tensors
        ]
    except (AttributeError, RuntimeError, NotImplementedError):  # other arrays, tensors without memory
        return None
    return Asked((kind, current_profile(), RULES.get(), len(tensors), pointers[0]), forms, tensors, pointers)


def is_known(step: Asked | None) -> bool:
    """Return whether steps like one have been taken, so that its arrays need no other check."""
    found = None if step is None else _known.get(step.key)
    return step is not None and isinstance(found, Again) and found.forms == step.forms


def run(step: Asked | None, given: Lists, numbers: Sequence[Any], launch: Launch) -> None:
    """Take a step, as an earlier one did where that is known.

    Args:
        step: what was asked.
        given: its arrays.
        numbers: its numbers.
        launch: takes it as it is written, by a table of numbers or by known ones where there is none.
    """
    if step is None:
        launch(given, None)
        return
    found = _known.get(step.key, [])
    if isinstance(found, Again) and found.forms == step.forms:
        if not found.take(step, list(map(float, numbers))):
            launch(given, None)
    elif found == step.forms and _are_simple(step):
        _known[step.key] = None
        _known[step.key] = _recorded(step, given, numbers, launch)
    else:
        launch(given, None)
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        if found is not None:
            _known[step.key] = step.forms


def _are_simple(step: Asked) -> bool:
    """Return whether tensors are PyTorch's own, of a CPU, and share no memory."""
    torch: Any = sys.modules["torch"]
    own = (torch.Tensor, torch.nn.Parameter)
    sizes = np.array([one.nbytes for one in step.tensors])
    are_own = all([form[0] in own and form[4] and not form[5] for form in step.forms])
    return are_own and bool((sizes > 0).all()) and _are_apart(np.array(step.pointers), sizes)


def _are_apart(starts: Any, sizes: Any) -> bool:
    """Return whether pieces of memory share none."""
    order = np.argsort(starts)
    return bool(((starts + sizes)[order][:-1] <= starts[order][1:]).all())


def _recorded(step: Asked, given: Lists, numbers: Sequence[Any], launch: Launch) -> Again | None:
    """Take a step; return what starts its launches again, None where it did more than launch."""
    torch: Any = sys.modules["torch"]
    table = torch.tensor([float(number) for number in numbers], dtype=torch.float64)
    plain = {name: [one.detach() for one in some] for name, some in given.items()}
    tensors = [*(one for some in plain.values() for one in some), table]
    pointers = [*step.pointers, table.data_ptr()]
    with recording(ranges(tensors, pointers)) as recorder, watched(table, recorder):
        launch(plain, table)
    if recorder.refused or recorder.changes or recorder.made or not recorder.launches:
        return None
    repeat = repeat_of(recorder, Results(tensors, recorder), table, lambda _tensors: None, None)
    return None if repeat is None else Again(step, table, repeat)
