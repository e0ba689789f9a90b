"""Names in tuples, in programs that are drawn."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from tessera.tools.fuzz import tree
from tessera.tools.fuzz.arrays import contents
from tessera.tools.fuzz.generate import generate
from tessera.tools.fuzz.generate_scope import Options
from tessera.tools.fuzz.generate_tuples import KINDS, Part, part_of, tupled
from tessera.tools.fuzz.meaning import meaning
from tessera.tools.fuzz.meaning_values import Undetermined
from tessera.tools.fuzz.run import Device, check
from tessera.tools.fuzz.shrink_edits import check_types
from tessera.tools.fuzz.source import source
from tessera.tools.fuzz.source_tuples import assigned

PLAIN = Options(tuples=0.0, debug=0.0, large=0.0, small=0.8)


def test_an_element_of_a_tuple_is_known_by_its_name():
    assert part_of("q12_3[2]") == Part("q12_3", 3, 2)
    assert [part_of(name) for name in ("v12", "buffer3[0]", "q12_3", "M")] == [None] * 4


@pytest.mark.parametrize("kind", KINDS)
def test_an_assignment_makes_the_whole_tuple_anew(kind):
    def with_element(values, place, new):
        return (*values[:place], new, *values[place + 1 :])

    def chosen(keep, values, others):
        return tuple(old if kept else new for kept, old, new in zip(keep, values, others, strict=True))

    scope = {"with_element": with_element, "chosen": chosen}
    exec(assigned([(f"{kind}0_3[{place}]", str(place)) for place in range(3)]), scope)
    assert scope[f"{kind}0_3"] == (0, 1, 2)
    exec(assigned([(f"{kind}0_3[2]", "7"), ("x", f"{kind}0_3[0]"), (f"{kind}0_3[0]", f"{kind}0_3[2]")]), scope)
    assert (scope[f"{kind}0_3"], scope["x"]) == ((2, 1, 7), 0)


def test_tuples_change_no_meaning():
    compared = Counter[str]()
    for seed in range(150):
        plain = generate(seed, PLAIN)
        packed = tupled(plain, random.Random(seed))
        check_types(packed)
        compared.update({name[0] for name in source(packed).split() if part_of(name.rstrip(",):"))})
        values = {tensor.name: contents(tensor, seed) for tensor in plain.tensors}
        try:
            expected, _ = meaning(plain, values)
        except Undetermined:
            continue
        found, _ = meaning(packed, values)
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name].data, value.data)
    assert set(compared) == set(KINDS)


def test_tuples_are_carried_chosen_and_given_back():
    """Loops, branches and functions make tuples anew that come from around them."""
    places = Counter[str]()
    for seed in range(200):
        drawn = generate(seed, Options(tuples=1.0))
        for node in (node for block in (*drawn.grids, *drawn.helpers) for node in tree.walk(block)):
            if isinstance(node, tree.For | tree.While | tree.If | tree.Helper):
                inside = [part for part in tree.walk(node) if isinstance(part, tree.Assign)]
                whole = {part for assign in inside for part in map(part_of, assign.names) if part and part.place == 0}
                made = [assign for assign in inside if any(map(part_of, assign.names))]
                anew = len(made) > len({part.tuple for part in whole})
                places[type(node).__name__] += bool(made) if isinstance(node, tree.Helper) else anew
    assert min(places[kind] for kind in ("For", "While", "If", "Helper")) > 2, places


@pytest.mark.parametrize("seed", range(9100, 9112))
def test_programs_with_tuples_are_right(seed, tmp_path):
    outcome = check(generate(seed, Options(tuples=1.0, small=1.0, large=0.0)), Device("cpu"), tmp_path)
    assert outcome.kind in ("same", "skipped"), outcome
