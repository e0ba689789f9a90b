"""Products of shared buffers, sums that start from tiles outside their block, and products of short rows."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tessera.tools.fuzz import tree
from tessera.tools.fuzz.generate import generate
from tessera.tools.fuzz.generate_scope import Options
from tessera.tools.fuzz.run import Device, check
from tessera.tools.fuzz.shrink_edits import check_types
from tessera.tools.fuzz.types import bits

PRODUCTS = Options(shared=1.0, buffer_products=0.5, plans=0.0, nests=0.0, debug=0.0)
STARTS = Options(starts=3.0, reuse=0.5, plans=0.0, nests=0.0, debug=0.0)
NARROW = Options(narrow=8.0, plans=1.0, chains=0.0, rows=0.0, nests=0.0, debug=0.0)
PLAIN = Options(plans=0.0, debug=0.0)
PANEL = 128
"""Bytes of the rows that the copy engine swizzles whole."""


def by_parts(program: tree.Program) -> bool:
    """Return whether a product reads a buffer that is written in parts only, with terms that are padded."""
    nodes = list(tree.walk(program))
    whole = {node.buffer for node in nodes if isinstance(node, tree.StoreShared | tree.CopyAsync)}
    parts = {node.buffer for node in nodes if isinstance(node, tree.StorePart)}
    products = [node for node in nodes if isinstance(node, tree.Mma) and len(node.a.type.shape) == 2]
    return any(
        isinstance(side, tree.ReadShared) and side.buffer in parts - whole and terms & (terms - 1) > 0
        for node in products
        for side, terms in ((node.a, node.a.type.shape[1]), (node.b, node.b.type.shape[0]))
    )


def of_few_elements(program: tree.Program) -> bool:
    """Return whether a buffer of three dimensions or more is read whole by one element a thread."""
    reads = (node for node in tree.walk(program) if isinstance(node, tree.ReadShared) and not node.stage)
    return any(len(node.type.shape) > 2 and node.type.size <= PANEL and node.type.shape[-1] >= 4 for node in reads)


def started(program: tree.Program) -> bool:
    """Return whether a block adds to what is computed from a tile outside of it, which is read again behind it."""
    for grid in program.grids:
        for number, block in enumerate(grid.body):
            behind = names(grid.body[number + 1 :])
            for sum_ in tree.walk(block) if isinstance(block, tree.For | tree.If) else ():
                if isinstance(sum_, tree.Assign) and isinstance(sum_.values[0], tree.Mma) and sum_.values[0].acc:
                    start = sum_.values[0].acc
                    if isinstance(start, tree.Apply) and names((start,)) & behind:
                        return True
    return False


def names(nodes: tuple[tree.Node, ...]) -> set[str]:
    return {part.name for node in nodes for part in tree.walk(node) if isinstance(part, tree.Name)}


def narrow(program: tree.Program) -> bool:
    """Return whether the programs of a cluster share a product with rows of less than a panel."""
    products = [node for node in tree.walk(program) if isinstance(node, tree.Mma)]
    short = any(node.b.type.shape[0] * bits(node.b.type.dtype) // 8 < PANEL for node in products)
    return short and dict(program.knobs).get("cluster") == 4


def divided(program: tree.Program) -> bool:
    """Return whether narrow integers times a number are divided by a power of two."""
    return any(
        node.fn in ("floordiv", "mod")
        and isinstance(by := node.args[1], tree.Number)
        and abs(int(by.value)).bit_count() == 1
        and isinstance(product := node.args[0], tree.Apply)
        and isinstance(product.args[0], tree.Cast)
        for node in tree.walk(program)
        if isinstance(node, tree.Apply) and len(node.args) == 2
    )


@pytest.mark.parametrize(
    ("options", "shown", "share"),
    [
        (PRODUCTS, by_parts, 0.1),
        (PRODUCTS, of_few_elements, 0.02),
        (STARTS, started, 0.01),
        (NARROW, narrow, 0.1),
        (PLAIN, divided, 0.005),
    ],
    ids=["by-parts", "of-few-elements", "started", "narrow", "divided"],
)
def test_programs_are_of_a_class(options: Options, shown: Callable[[tree.Program], bool], share: float) -> None:
    programs = [generate(seed, options) for seed in range(200)]
    for program in programs:
        check_types(program)
    assert sum(map(shown, programs)) >= share * len(programs)


@pytest.mark.parametrize("options", [PRODUCTS, STARTS, NARROW], ids=["products", "starts", "narrow"])
@pytest.mark.parametrize("seed", range(4000, 4005))
def test_they_do_what_they_mean(options: Options, seed: int, tmp_path: Path) -> None:
    outcome = check(generate(seed, options), Device("cpu", ""), tmp_path)
    assert outcome.kind in ("same", "skipped"), outcome.detail
