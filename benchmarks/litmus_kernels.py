"""Litmus tests of the memory model as kernels: programs that meet, access two tensors, and write down what they saw.

Every group of programs tries many times, each time at elements of its own. Before a try its programs meet, so that
their accesses fall together; a program that waits in vain goes on after a while, as nothing says that all run at once.

Source of the shapes: Alglave, Maranget, Tautschnig, "Herding Cats", TOPLAS 2014 (MP, SB, LB, IRIW, CoRR).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import tessera as ts

PATIENCE = 400
"""How often a program looks whether the others of its group have come."""
TILE = 256
"""Elements of the data that a message is about: more than one thread of a GPU has."""

I32 = ts.Tensor["L", ts.i32]
Results = ts.Tensor[4, "L", ts.i32]
Data = ts.Tensor["L", 256, ts.i32]


@dataclass(frozen=True)
class Litmus:
    """A litmus test.

    Args:
        name: what it is called.
        kernel: `kernel(x, y, turn, seen, programs, tries)`, of `roles` programs a group.
        roles: programs of a group.
        hits: which tries had the outcome that is asked about, from what was seen.
        forbidden: whether the model forbids it.
        wide: whether `x` holds a tile for each try.
    """

    name: str
    kernel: Callable[..., Any]
    roles: int
    hits: Callable[[np.ndarray], np.ndarray]
    forbidden: bool
    wide: bool = False


@ts.function
def meet(turn, i, roles):
    """Wait until all programs of the group have come to a try, or for a while."""
    ts.tile.atomic_add(turn[i], 1)
    looked = 0
    while looked < PATIENCE:
        if ts.tile.atomic_load(turn[i]) >= roles:
            break
        looked += 1


def message_passing(write: str, read: str, fences: bool = False) -> Callable[..., Any]:
    """One program stores a tile and then a flag, the other loads the flag and then the tile (MP).

    The tile's elements are stored by many threads of a GPU and the flag by one: the release has to be the program's.
    """

    def kernel(x: Data, y: I32, turn: I32, seen: Results, who: ts.Tensor["P", ts.i32], tries: int):
        for p in ts.tile.grid((P, 1)):
            first = p // 2 * tries
            for t in ts.tile.range(tries):
                i = first + t
                meet(turn, i, 2)
                if p % 2 == 0:
                    ts.tile.atomic_store(x[i, :], 1)
                    if fences:
                        ts.tile.fence(write)
                    ts.tile.atomic_store(y[i], 1, order="relaxed" if fences else write)
                else:
                    flag = ts.tile.atomic_load(y[i], order="relaxed" if fences else read)
                    if fences:
                        ts.tile.fence(read)
                    data = ts.tile.atomic_load(x[i, :])
                    seen[0, i] = flag
                    seen[1, i] = ts.tile.min(data)

    return ts.kernel(kernel)


def plain_message(x: Data, y: I32, turn: I32, seen: Results, who: ts.Tensor["P", ts.i32], tries: int):
    """MP with plain accesses to the data, as programs use it; the reader leaves alone what was not yet released."""
    for p in ts.tile.grid((P, 1)):
        first = p // 2 * tries
        for t in ts.tile.range(tries):
            i = first + t
            meet(turn, i, 2)
            if p % 2 == 0:
                x[i, :] = ts.tile.full((TILE,), 1, ts.i32)
                ts.tile.atomic_store(y[i], 1, order="release")
            else:
                flag = ts.tile.atomic_load(y[i], order="acquire")
                if flag == 1:
                    seen[0, i] = 1
                    seen[1, i] = ts.tile.min(x[i, :])


def handed_back(x: Data, y: I32, turn: I32, seen: Results, who: ts.Tensor["P", ts.i32], tries: int):
    """A program reads a tile and then releases it; the other overwrites it once it has acquired that."""
    for p in ts.tile.grid((P, 1)):
        first = p // 2 * tries
        for t in ts.tile.range(tries):
            i = first + t
            meet(turn, i, 2)
            if p % 2 == 0:
                data = x[i, :]
                ts.tile.atomic_store(y[i], 1, order="release")
                seen[0, i] = 1
                seen[1, i] = 1 - ts.tile.max(data)
            else:
                if ts.tile.atomic_load(y[i], order="acquire") == 1:
                    x[i, :] = ts.tile.full((TILE,), 1, ts.i32)


def store_buffering(write: str, read: str, fence: str | None = None) -> Callable[..., Any]:
    """Each program stores to one tensor and loads from the other (SB)."""

    def kernel(x: I32, y: I32, turn: I32, seen: Results, who: ts.Tensor["P", ts.i32], tries: int):
        for p in ts.tile.grid((P, 1)):
            first = p // 2 * tries
            for t in ts.tile.range(tries):
                i = first + t
                meet(turn, i, 2)
                if p % 2 == 0:
                    ts.tile.atomic_store(x[i], 1, order=write)
                    if fence is not None:
                        ts.tile.fence(fence)
                    seen[0, i] = ts.tile.atomic_load(y[i], order=read)
                else:
                    ts.tile.atomic_store(y[i], 1, order=write)
                    if fence is not None:
                        ts.tile.fence(fence)
                    seen[1, i] = ts.tile.atomic_load(x[i], order=read)

    return ts.kernel(kernel)


def load_buffering(write: str, read: str) -> Callable[..., Any]:
    """Each program loads from one tensor and stores to the other (LB)."""

    def kernel(x: I32, y: I32, turn: I32, seen: Results, who: ts.Tensor["P", ts.i32], tries: int):
        for p in ts.tile.grid((P, 1)):
            first = p // 2 * tries
            for t in ts.tile.range(tries):
                i = first + t
                meet(turn, i, 2)
                if p % 2 == 0:
                    r = ts.tile.atomic_load(x[i], order=read)
                    ts.tile.atomic_store(y[i], 1, order=write)
                    seen[0, i] = r
                else:
                    r = ts.tile.atomic_load(y[i], order=read)
                    ts.tile.atomic_store(x[i], 1, order=write)
                    seen[1, i] = r

    return ts.kernel(kernel)


def independent_reads(write: str, read: str) -> Callable[..., Any]:
    """Two programs store, one to each tensor; two load both, in opposite orders (IRIW)."""

    def kernel(x: I32, y: I32, turn: I32, seen: Results, who: ts.Tensor["P", ts.i32], tries: int):
        for p in ts.tile.grid((P, 1)):
            first, role = p // 4 * tries, p % 4
            for t in ts.tile.range(tries):
                i = first + t
                meet(turn, i, 4)
                if role == 0:
                    ts.tile.atomic_store(x[i], 1, order=write)
                elif role == 1:
                    ts.tile.atomic_store(y[i], 1, order=write)
                elif role == 2:
                    a = ts.tile.atomic_load(x[i], order=read)
                    b = ts.tile.atomic_load(y[i], order=read)
                    seen[0, i] = a
                    seen[1, i] = b
                else:
                    a = ts.tile.atomic_load(y[i], order=read)
                    b = ts.tile.atomic_load(x[i], order=read)
                    seen[2, i] = a
                    seen[3, i] = b

    return ts.kernel(kernel)


def coherence(x: I32, y: I32, turn: I32, seen: Results, who: ts.Tensor["P", ts.i32], tries: int):
    """A program stores twice to one element, the other loads it twice (CoRR): relaxed atomics have one order each."""
    for p in ts.tile.grid((P, 1)):
        first = p // 2 * tries
        for t in ts.tile.range(tries):
            i = first + t
            meet(turn, i, 2)
            if p % 2 == 0:
                ts.tile.atomic_store(x[i], 1)
                ts.tile.atomic_store(x[i], 2)
            else:
                a = ts.tile.atomic_load(x[i])
                b = ts.tile.atomic_load(x[i])
                seen[0, i] = a
                seen[1, i] = b


def _stale(seen: np.ndarray) -> np.ndarray:
    return (seen[0] == 1) & (seen[1] == 0)


def _both(value: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda seen: (seen[0] == value) & (seen[1] == value)


def _disagree(seen: np.ndarray) -> np.ndarray:
    return (seen[0] == 1) & (seen[1] == 0) & (seen[2] == 1) & (seen[3] == 0)


def _backwards(seen: np.ndarray) -> np.ndarray:
    return seen[0] > seen[1]


def all_tests() -> list[Litmus]:
    """Return every test: those whose outcome is forbidden, and for each shape one whose outcome is allowed."""
    return [
        Litmus("MP plain data, release, acquire", ts.kernel(plain_message), 2, _stale, True, wide=True),
        Litmus("MP release, acquire", message_passing("release", "acquire"), 2, _stale, True, wide=True),
        Litmus("MP seq_cst", message_passing("seq_cst", "seq_cst"), 2, _stale, True, wide=True),
        Litmus("MP fences", message_passing("release", "acquire", fences=True), 2, _stale, True, wide=True),
        Litmus("MP relaxed", message_passing("relaxed", "relaxed"), 2, _stale, False, wide=True),
        Litmus("read, release; acquire, write", ts.kernel(handed_back), 2, _stale, True, wide=True),
        Litmus("SB seq_cst", store_buffering("seq_cst", "seq_cst"), 2, _both(0), True),
        Litmus("SB seq_cst fences", store_buffering("relaxed", "relaxed", "seq_cst"), 2, _both(0), True),
        Litmus("SB release, acquire", store_buffering("release", "acquire"), 2, _both(0), False),
        Litmus("SB relaxed", store_buffering("relaxed", "relaxed"), 2, _both(0), False),
        Litmus("LB release, acquire", load_buffering("release", "acquire"), 2, _both(1), True),
        Litmus("LB relaxed", load_buffering("relaxed", "relaxed"), 2, _both(1), False),
        Litmus("IRIW seq_cst", independent_reads("seq_cst", "seq_cst"), 4, _disagree, True),
        Litmus("IRIW relaxed", independent_reads("relaxed", "relaxed"), 4, _disagree, False),
        Litmus("CoRR relaxed", ts.kernel(coherence), 2, _backwards, True),
    ]


def run(test: Litmus, groups: int, tries: int, device: str = "cpu") -> np.ndarray:
    """Run a test and return what was seen, `-1` where nothing was written down.

    Args:
        test: the test.
        groups: how many groups of programs try at the same time.
        tries: how often each of them does.
        device: where.
    """
    count = groups * tries
    shapes = [(count, TILE) if test.wide else (count,), (count,), (count,)]
    given = [np.zeros(shape, np.int32) for shape in shapes]
    given += [np.full((4, count), -1, np.int32), np.zeros(groups * test.roles, np.int32)]
    arrays = [ts.asarray(array, device=device) for array in given]
    test.kernel(*arrays, tries)
    return np.from_dlpack(arrays[3]) if device == "cpu" else arrays[3].numpy()
