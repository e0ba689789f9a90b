"""`break`, `continue` and `return` in programs that are drawn."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tessera.tools.fuzz import tree
from tessera.tools.fuzz.generate import generate
from tessera.tools.fuzz.generate_scope import INDEX, Options
from tessera.tools.fuzz.meaning import meaning
from tessera.tools.fuzz.run import Device, check
from tessera.tools.fuzz.serial import dumps, loads
from tessera.tools.fuzz.shrink_edits import check_types, edits
from tessera.tools.fuzz.types import TreeError, Type

SEEDS = range(300)
ALL = Options(jumps=1.0)
K, AT, M = (tree.Name(name, INDEX) for name in "kiM")
ONE = tree.Number(1)


def equals(name: tree.Name, number: int) -> tree.Apply:
    return tree.Apply("eq", (name, tree.Number(number)))


def put(at: tree.Expr, value: tree.Expr) -> tree.Store:
    return tree.Store("X", (tree.At(at),), "i32", tree.Cast(value, "i32"))


def loop(*body: tree.Stmt) -> tree.For:
    return tree.For("k", tree.Number(0), tree.Number(6), ONE, body)


def program(*body: tree.Stmt, helpers: tuple[tree.Helper, ...] = ()) -> tree.Program:
    x = tree.Tensor("X", ("M",), "i32", (8,), tree.Contents("small", 0, 0), tree.Layout((0,), (1,)))
    return tree.Program(0, (x,), helpers, (tree.Grid(("i",), (M,), (4,), body),))


def result(given: tree.Program) -> list[int]:
    check_types(given)
    assert loads(dumps(given)) == given
    return meaning(given, {"X": np.zeros(8, np.int32)})[0]["X"].data.tolist()


def test_every_jump_is_drawn_in_every_loop() -> None:
    found = Counter[str]()
    for seed in SEEDS:
        drawn = generate(seed, ALL)
        check_types(drawn)
        for node in tree.walk(drawn):
            if isinstance(node, tree.For | tree.While):
                found.update(["else"] * bool(node.orelse))
                jumps = {type(part).__name__ for part in tree.walk(node) if isinstance(part, tree.Jump)}
                kind = "static" if isinstance(node, tree.For) and node.static else type(node).__name__
                found.update(f"{jump} in {kind}" for jump in jumps)
        helpers = {type(part).__name__ for helper in drawn.helpers for part in tree.walk(helper)}
        found.update(f"{name} in a helper" for name in helpers & {"Return", "Break"})
    loops = {f"{jump} in {kind}" for jump in ("Break", "Continue", "Return") for kind in ("static", "For", "While")}
    assert {*loops, "Return in a helper", "Break in a helper", "else"} <= {
        name for name, number in found.items() if number > 1
    }


def test_helpers_return_numbers_beside_scalars() -> None:
    helpers = [helper for seed in SEEDS for helper in generate(seed, ALL).helpers if not helper.result.type.shape]
    loops = [node for helper in helpers for node in tree.walk(helper) if isinstance(node, tree.For)]
    numbers = [
        part for loop in loops for part in tree.walk(loop) if isinstance(part, tree.Return) and part.value == ONE
    ]
    assert len(helpers) > 30
    assert len(numbers) > 5


def test_no_jumps_are_drawn_where_the_switch_is_off() -> None:
    for seed in SEEDS:
        assert not any(isinstance(node, tree.Jump) for node in tree.walk(generate(seed, Options(jumps=0.0))))


def test_what_jumps_mean() -> None:
    leave, skip = tree.If(equals(K, 2), (tree.Break(),)), tree.If(equals(K, 1), (tree.Continue(),))
    first = tree.If(equals(AT, 4), (tree.Return(),))
    assert result(program(first, loop(put(K, K), leave, put(K, tree.Number(9))))) == [9, 9, 2, 0, 0, 0, 0, 0]
    assert result(program(first, loop(skip, put(K, tree.Number(5)), leave))) == [5, 0, 5, 0, 0, 0, 0, 0]
    after = put(tree.Number(7), tree.Number(3))
    assert result(program(first, loop(tree.If(equals(K, 2), (tree.Return(),)), put(K, ONE)), after))[7] == 0
    assert result(program(tree.If(equals(AT, 0), (tree.Continue(),)), after))[7] == 3


def test_what_the_else_of_a_loop_means() -> None:
    leave, ended = tree.If(equals(K, 2), (tree.Break(),)), (put(tree.Number(7), ONE),)
    assert result(program(tree.For("k", tree.Number(0), tree.Number(2), ONE, (leave,), orelse=ended)))[7] == 1
    assert result(program(tree.For("k", tree.Number(0), tree.Number(3), ONE, (leave,), orelse=ended)))[7] == 0
    assert result(program(tree.While(tree.Apply("lt", (AT, tree.Number(0))), (), ended)))[7] == 1


def test_what_endless_loops_and_helpers_mean() -> None:
    count, number = tree.Name("c", Type("i32")), tree.Name("v", Type("i32"))
    step = tree.Assign(("c",), (tree.Apply("add", (count, ONE)),))
    doubled = tree.Assign(("v",), (tree.Apply("mul", (count, tree.Number(2))),))
    forever = tree.While(tree.Number(True), (step, doubled, tree.If(tree.Apply("ge", (number, ONE)), (tree.Break(),))))
    start = tree.Assign(("c",), (tree.Cast(tree.Number(-2), "i32"),))
    assert result(program(start, forever, put(AT, number))) == [2, 0, 0, 0, 2, 0, 0, 0]
    a = tree.Name("a", Type("i32"))
    body = (loop(tree.If(tree.Apply("gt", (K, a)), (tree.Return(tree.Cast(K, "i32")),))),)
    helper = tree.Helper("above", (a,), body, tree.Cast(tree.Number(-1), "i32"))
    call = tree.Call("above", (tree.Cast(AT, "i32"),), Type("i32"))
    assert result(program(put(AT, call), helpers=(helper,))) == [1, 0, 0, 0, 5, 0, 0, 0]


@pytest.mark.parametrize(
    "body",
    [
        (tree.Break(),),
        (loop(tree.Continue(), put(K, ONE)),),
        (loop(tree.If(tree.Full((4,), tree.Number(True), "bool"), (tree.Break(),))),),
    ],
)
def test_jumps_that_the_language_lacks_are_none_of_the_tree(body: tree.Block) -> None:
    with pytest.raises(TreeError):
        check_types(program(*body))


def test_smaller_programs_have_jumps_where_they_may_stand() -> None:
    inner = loop(tree.If(equals(K, 2), (tree.Break(),)), put(K, ONE))
    smaller = [edit() for edit in edits(program(loop(inner)))]
    good = [made for made in smaller if not _refused(made)]
    assert any(not any(isinstance(node, tree.Jump) for node in tree.walk(made)) for made in good)
    assert any(sum(isinstance(node, tree.For) for node in tree.walk(made)) == 1 for made in good)


def _refused(made: tree.Program) -> bool:
    try:
        check_types(made)
    except TreeError:
        return True
    return False


@pytest.mark.parametrize("seed", range(2000, 2012))
def test_programs_with_jumps_do_what_they_mean(seed: int, tmp_path: Path) -> None:
    outcome = check(generate(seed, Options(jumps=1.0, small=1.0, large=0.0)), Device("cpu", ""), tmp_path)
    assert outcome.kind in ("same", "skipped"), outcome.detail
