"""What a group is known to read while it grows is what it reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from xdsl.ir import SSAValue

import tessera as ts
from tessera.schedule.fuse.group import Group


def chain(x: Any, y: Any) -> Any:
    for step in range(6):
        x = x * y[step % 3] + np.tanh(x.T).T
    return x


def rows(x: Any, y: Any) -> Any:
    x = x - x.max(-1, keepdims=True)
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True) * y[0][:, None] + x[::-1]


def joined(x: Any, y: Any) -> Any:
    first, second = x * y[1], x + y[2]
    return np.concatenate([first, second * 2, first - second], 1).reshape(-1) * 3, (first * second).sum(0)


@pytest.mark.parametrize("function", [chain, rows, joined])
def test_reads_of_a_growing_group(function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch):
    asked: list[int] = []
    reads = Group.reads

    def checked(self: Group) -> set[SSAValue]:
        found = reads(self)
        assert found == set(self.inputs())
        asked.append(len(found))
        return found

    monkeypatch.setattr(Group, "reads", checked)
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((8, 8), np.float32), rng.standard_normal((3, 8), np.float32)
    for found, expected in zip(ts.jit(function)(x, y), function(x, y), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert max(asked) > 1


def turned_twice(x: Any, y: Any) -> Any:
    return (x[:, ::-1] * 2).cumsum(1)[:, ::-1] / y


def test_places_are_computed_where_they_are_read():
    rng = np.random.default_rng(4)
    x, y = rng.standard_normal((6, 40), np.float32), rng.uniform(1, 2, (6, 40)).astype(np.float32)
    function = ts.jit(turned_twice)
    np.testing.assert_allclose(function(x, y), turned_twice(x, y), rtol=1e-4, atol=1e-5)
    assert function.explain().written <= 4 * x.nbytes
