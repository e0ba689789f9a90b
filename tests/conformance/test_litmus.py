"""Litmus tests: what orders forbid never happens, and the instructions that see to it stand between the accesses.

Runs on threads show that an outcome happens, never that it cannot: so the assembly is read, too, for machines that this
one is not.
"""

import os
import re
from functools import cache
from typing import Any

import numpy as np
import pytest
from litmus_kernels import Litmus, all_tests, run

import tessera as ts

TESTS = {test.name: test for test in all_tests()}
FORBIDDEN = [name for name, test in TESTS.items() if test.forbidden]
CALLS = 4
"""The first three launches of a size measure its programs one after the other; the fourth runs them together."""


def outcomes(test: Litmus, groups: int, tries: int, device: str = "cpu") -> np.ndarray:
    seen = run(test, groups, tries, device)
    written = seen[: 2 if test.roles == 2 else 4]
    assert test.name.startswith("MP plain") or (written >= 0).all(), "every try was seen"
    return seen


@pytest.mark.parametrize("name", FORBIDDEN)
def test_no_forbidden_outcome_on_threads(name: str) -> None:
    test = TESTS[name]
    tries = 10_000 if test.wide else 80_000
    hits = sum(int(test.hits(outcomes(test, 1, tries)).sum()) for _ in range(CALLS))
    assert hits == 0


def test_stores_are_buffered_where_nothing_forbids_it() -> None:
    """Without it the tests above would show nothing: on this machine programs do overtake each other."""
    if (os.cpu_count() or 1) < 2:
        pytest.skip("programs take turns on one CPU")
    test = TESTS["SB release, acquire"]
    for _ in range(40):
        if test.hits(outcomes(test, 1, 80_000)).any():
            return
    pytest.skip("the programs of a group never ran at the same time: this machine is too busy")


@pytest.mark.parametrize("name", list(TESTS))
def test_one_program_after_the_other_gives_what_the_source_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the interpreter the first program of a group has ended when the second begins."""
    monkeypatch.setenv("TESSERA_INTERPRET", "1")
    monkeypatch.setattr("litmus_kernels.PATIENCE", 2)
    test = next(test for test in all_tests() if test.name == name)
    seen = run(test, 3, 2)
    first = {"M": (1, 1), "r": (1, 1), "S": (0, 1), "L": (0, 1), "I": (1, 1), "C": (2, 2)}[name[0]]
    np.testing.assert_array_equal(seen[0], np.full(6, first[0]))
    np.testing.assert_array_equal(seen[1], np.full(6, first[1]))
    assert not test.hits(seen).any()


@pytest.mark.device
@pytest.mark.parametrize("name", FORBIDDEN)
def test_no_forbidden_outcome_on_a_device(name: str) -> None:
    test = TESTS[name]
    seen = outcomes(test, 64 // test.roles, 500 if test.wide else 5_000, "cuda")
    assert not test.hits(seen).any()


# Assembly


def publish(write: str, fence: str | None = None, scope: str = "device", size: int = 256) -> Any:
    def kernel(x: ts.Tensor[size, ts.i32], y: ts.Tensor[4, ts.i32], r: ts.Tensor[size, ts.i32]):
        for _ in ts.tile.grid((1, 1)):
            x[:] = r[:]
            if fence is not None:
                ts.tile.fence(fence, scope)
            ts.tile.atomic_store(y[0], 1, order=write, scope=scope)

    return ts.kernel(kernel)


def consume(read: str, fence: str | None = None, scope: str = "device", size: int = 256) -> Any:
    def kernel(x: ts.Tensor[size, ts.i32], y: ts.Tensor[4, ts.i32], r: ts.Tensor[size, ts.i32]):
        for _ in ts.tile.grid((1, 1)):
            flag = ts.tile.atomic_load(y[0], order=read, scope=scope)
            if fence is not None:
                ts.tile.fence(fence, scope)
            r[:] = x[:] + flag

    return ts.kernel(kernel)


def update(order: str, scope: str = "device", size: int = 256) -> Any:
    def kernel(x: ts.Tensor[size, ts.i32], y: ts.Tensor[4, ts.i32], r: ts.Tensor[size, ts.i32]):
        for _ in ts.tile.grid((1, 1)):
            x[:] = r[:]
            old = ts.tile.atomic_add(y[0], 1, order=order, scope=scope)
            r[:] = x[:] + old

    return ts.kernel(kernel)


def buffering(write: str, read: str, fence: str | None = None) -> Any:
    def kernel(x: ts.Tensor[4, ts.i32], y: ts.Tensor[4, ts.i32], r: ts.Tensor[4, ts.i32]):
        for _ in ts.tile.grid((1, 1)):
            ts.tile.atomic_store(x[0], 1, order=write)
            if fence is not None:
                ts.tile.fence(fence)
            r[0] = ts.tile.atomic_load(y[0], order=read)

    return ts.kernel(kernel)


@cache
def assembly(make: Any, arguments: tuple[Any, ...], target: str) -> str:
    """Return the instructions of a kernel; PTX is assembled, too."""
    ptx = target.startswith("sm_")
    dumps = ts.compile(make(*arguments), target=target, dump=["ptx", "cubin"] if ptx else ["asm"]).dumps
    text = dumps["ptx" if ptx else "asm"]
    assert isinstance(text, str)
    return text


# What must follow in this order, and what the same kernel has if it asks for less.
PLAIN_STORE, PLAIN_LOAD = r"\bst\.global\.v", r"\bld\.global\.v"
PTX = [
    (publish, ("release",), [PLAIN_STORE, "bar.sync", r"st\.release\.gpu\.global"]),
    (publish, ("release", None, "mesh"), [PLAIN_STORE, "bar.sync", r"st\.release\.sys\.global"]),
    (publish, ("release", None, "group"), [PLAIN_STORE, "bar.sync", r"st\.release\.cta\.global"]),
    (publish, ("relaxed", "release"), [PLAIN_STORE, "bar.sync", r"fence\.acq_rel\.gpu", r"st\.relaxed\.gpu\.global"]),
    (publish, ("seq_cst",), [PLAIN_STORE, "bar.sync", r"fence\.sc\.gpu", r"st\.relaxed\.gpu\.global"]),
    (consume, ("acquire",), [r"ld\.acquire\.gpu\.global", "bar.sync", PLAIN_LOAD]),
    (consume, ("acquire", None, "mesh"), [r"ld\.acquire\.sys\.global", "bar.sync", PLAIN_LOAD]),
    (consume, ("relaxed", "acquire"), [r"ld\.relaxed\.gpu\.global", r"fence\.acq_rel\.gpu", "bar.sync", PLAIN_LOAD]),
    (consume, ("seq_cst",), [r"fence\.sc\.gpu", r"ld\.acquire\.gpu\.global", "bar.sync", PLAIN_LOAD]),
    (update, ("acq_rel",), [PLAIN_STORE, "bar.sync", r"atom\.acq_rel\.gpu\.global\.add", "bar.sync", PLAIN_LOAD]),
    (
        update,
        ("seq_cst",),
        [PLAIN_STORE, "bar.sync", r"fence\.sc\.gpu", r"atom\.acquire\.gpu\.global\.add", "bar.sync", PLAIN_LOAD],
    ),
    (
        buffering,
        ("seq_cst", "seq_cst"),
        [r"st\.relaxed\.gpu\.global", r"fence\.sc\.gpu", r"ld\.acquire\.gpu\.global"],
    ),
    (
        buffering,
        ("relaxed", "relaxed", "seq_cst"),
        [r"st\.relaxed\.gpu\.global", "bar.sync", r"fence\.sc\.gpu", "bar.sync", r"ld\.relaxed\.gpu\.global"],
    ),
]
ONE_VECTOR = ("device", 4)
"""A scope, and a size of tiles for which code has no loop, so that instructions stand in the order they run in."""
X86 = [
    (buffering, ("seq_cst", "seq_cst"), [r"\bxchgl\s+%\w+, \(%\w+\)", r"movl\s+\(%\w+\), %"]),
    (
        buffering,
        ("relaxed", "relaxed", "seq_cst"),
        [r"movl\s+\$1, \(%\w+\)", r"mfence|lock\s+orl\s+\$0, .*\(%rsp\)", r"movl\s+\(%\w+\), %"],
    ),
    (update, ("acq_rel", *ONE_VECTOR), [r"vmov\w+\s+%xmm\w+, \(", r"lock\s+xaddl", r"vpaddd"]),
]
AARCH64 = [
    (publish, ("release", None, *ONE_VECTOR), [r"\bst[pr]\s+q", r"\bstlr\s"]),
    (publish, ("relaxed", "release", *ONE_VECTOR), [r"\bst[pr]\s+q", r"\bdmb\s+ish\b", r"\bstr\s+w"]),
    (consume, ("acquire", None, *ONE_VECTOR), [r"\bldap?r\s", r"\bld[pr]\s+q"]),
    (consume, ("relaxed", "acquire", *ONE_VECTOR), [r"\bldr\s+w", r"\bdmb\s+ishld", r"\bld[pr]\s+q"]),
    (buffering, ("seq_cst", "seq_cst"), [r"\bstlr\s", r"\bldar\s"]),
    (buffering, ("relaxed", "relaxed", "seq_cst"), [r"\bstr\s+w", r"\bdmb\s+ish\b", r"\bldr\s+w"]),
]
READ = [
    *((target, *case) for target in ("sm_80", "sm_90a") for case in PTX),
    *(("x86-64-v3", *case) for case in X86),
    *(("aarch64", *case) for case in AARCH64),
]


def follow(text: str, patterns: list[str]) -> bool:
    return re.search(r"[\s\S]*?".join(f"(?:{pattern})" for pattern in patterns), text) is not None


@pytest.mark.parametrize(
    ("target", "make", "arguments", "patterns"),
    [pytest.param(*case, id=f"{case[0]}-{case[1].__name__}-{'-'.join(map(str, case[2]))}") for case in READ],
)
def test_the_instructions_of_an_order_stand_between_the_accesses(
    target: str, make: Any, arguments: tuple[Any, ...], patterns: list[str]
) -> None:
    assert follow(assembly(make, arguments, target), patterns)
    relaxed = ("relaxed",) * (2 if make is buffering else 1)
    assert not follow(assembly(make, relaxed, target), patterns) or make is update, "relaxed ones have less"


@pytest.mark.parametrize("target", ["x86-64-v3", "aarch64", "sm_80", "sm_90a"])
def test_relaxed_accesses_cost_no_fence(target: str) -> None:
    text = assembly(buffering, ("relaxed", "relaxed"), target)
    assert not re.search(r"fence|xchg|lock|dmb|stlr|lda\w?r|bar\.sync[^;]*;[^;]*st\.relaxed", text)


def test_a_cluster_has_a_scope_of_its_own_where_there_are_clusters() -> None:
    assert follow(assembly(publish, ("release", None, "cluster"), "sm_90a"), ["bar.sync", r"st\.release\.cluster"])
    assert follow(assembly(publish, ("release", None, "cluster"), "sm_80"), ["bar.sync", r"st\.release\.gpu"])
