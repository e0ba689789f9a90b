"""Operands of products that are loaded before their loop, in branches, and outside of tensors."""

from collections import Counter
from pathlib import Path

import pytest

from tessera.tools.fuzz import tree
from tessera.tools.fuzz.generate import generate
from tessera.tools.fuzz.generate_scope import Options
from tessera.tools.fuzz.run import Device, check
from tessera.tools.fuzz.shrink_edits import check_types

ALL = Options(moved=1.0, plans=0.5, products=3.0, jumps=0.0, small=1.0, large=0.0)


def kinds(program: tree.Program) -> set[str]:
    """Return where a program's operands are loaded that are moved."""
    found: set[str] = set()
    for loop in (node for node in tree.walk(program) if isinstance(node, tree.For)):
        names = {node.name for part in loop.body for node in tree.walk(part) if isinstance(node, tree.Name)}
        bound = {name for part in loop.body for name in _bound(part)}
        found.update("early" for name in names - bound if name.startswith("moved"))
        for part in loop.body:
            if isinstance(part, tree.If):
                chosen = all(name.startswith("moved") for name in _bound(part))
                products = any(isinstance(node, tree.Mma) for node in tree.walk(part))
                found.add("chosen" if chosen and _bound(part) else "in a branch" if products else "")
    return found - {""}


def _bound(node: tree.Node) -> set[str]:
    return {name for part in tree.walk(node) if isinstance(part, tree.Assign) for name in part.names}


def test_operands_are_loaded_everywhere() -> None:
    found = Counter[str]()
    for seed in range(300):
        drawn = generate(seed, ALL)
        check_types(drawn)
        found.update(kinds(drawn))
    assert {name for name, number in found.items() if number > 3} >= {"early", "chosen", "in a branch"}


def test_none_move_where_the_switch_is_off() -> None:
    for seed in range(100):
        program = generate(seed, Options(moved=0.0))
        assert not any(isinstance(node, tree.Name) and node.name.startswith("moved") for node in tree.walk(program))


@pytest.mark.parametrize("seed", range(3000, 3012))
def test_programs_with_moved_operands_do_what_they_mean(seed: int, tmp_path: Path) -> None:
    outcome = check(generate(seed, ALL), Device("cpu", ""), tmp_path)
    assert outcome.kind in ("same", "skipped"), outcome.detail
