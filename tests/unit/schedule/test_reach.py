"""What needs what while ops join groups, beside a walk over all that is read."""

import random

import pytest

from tessera.ir.graph.types import ArrayType
from tessera.ir.graph.writer import GraphWriter
from tessera.numerics import dtypes
from tessera.schedule.fuse.group import Group
from tessera.schedule.fuse.reach import Reach
from tessera.target.dims import Dim


def walked(op, group, home):
    """Return whether an op needs a group, by a walk."""
    work, seen = [op], set()
    while work:
        one = work.pop()
        if one in seen:
            continue
        if home.get(one) is group:
            return True
        seen.add(one)
        members = home[one].places if one in home else (one,)
        work += [value.owner for member in members for value in member.operands if hasattr(value.owner, "operands")]
    return False


@pytest.mark.parametrize("seed", range(6))
def test_against_a_walk(seed):
    rng = random.Random(seed)
    writer = GraphWriter("graph", [ArrayType.of((Dim((), 4),), dtypes.f32)] * 2, {})
    values = list(writer.arguments)
    for _ in range(40):
        values.append(writer.apply("add", *rng.choices(values[-8:], k=2)))
    ops = [value.owner for value in values[2:]]
    home, groups = {}, []
    reach = Reach(home)
    for op in ops:
        near = [
            group
            for group in groups[-4:]
            if not any(
                walked(v.owner, group, home) and home.get(v.owner) is not group for v in op.operands if v.owner in ops
            )
        ]
        if rng.random() < 0.3:
            reach.add(op)
            continue
        if not near or rng.random() < 0.4:
            near = [Group([])]
            groups += near
        group = rng.choice(near)
        group.places[op] = ()
        home[op] = group
        reach.put(op, group)
        first, second = (rng.choice(groups) for _ in range(2))
        apart = not any(walked(a, two, home) for one, two in ((first, second), (second, first)) for a in one.places)
        if first is not second and apart and rng.random() < 0.5:
            first.places |= second.places
            home.update(dict.fromkeys(second.places, first))
            reach.unite(first, second)
            groups.remove(second)
    for op in ops:
        for group in groups:
            if home.get(op) is not group:
                assert reach.needs(op, group) == walked(op, group, home)
