"""The generator's programs are the language's, and the interpreter agrees with their meaning."""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from tessera.tools.fuzz import tree
from tessera.tools.fuzz.arrays import contents, placed
from tessera.tools.fuzz.generate import generate
from tessera.tools.fuzz.meaning import meaning
from tessera.tools.fuzz.meaning_casts import cast
from tessera.tools.fuzz.meaning_elementwise import apply
from tessera.tools.fuzz.meaning_reductions import mma, reduce, scan
from tessera.tools.fuzz.meaning_values import FORMATS, Undetermined, Val, nearest
from tessera.tools.fuzz.source import source

SEEDS = range(40)


def test_a_seed_decides_the_program() -> None:
    assert [generate(seed) for seed in range(5)] == [generate(seed) for seed in range(5)]
    assert len({source(generate(seed)) for seed in range(5)}) == 5


@pytest.mark.parametrize("seed", range(3))
def test_nodes_are_rebuilt_from_their_children(seed: int) -> None:
    program = generate(seed)
    for node in tree.walk(program):
        assert tree.rebuild(node, tree.children(node)) == node


def test_most_of_what_programs_store_is_known() -> None:
    unknown: list[float] = []
    for seed in SEEDS:
        program = generate(seed)
        try:
            values, _ = meaning(program, {t.name: contents(t, seed) for t in program.tensors})
        except Undetermined:
            continue
        masks = [value.mask() for value in values.values()]
        unknown.append(1 - sum(int(mask.sum()) for mask in masks) / max(sum(mask.size for mask in masks), 1))
    assert len(unknown) > 0.9 * len(SEEDS)
    assert sum(unknown) < 0.02 * len(SEEDS)


_COMPARE = """
import json, sys, tempfile
from pathlib import Path
from tessera.tools.fuzz.generate import generate
from tessera.tools.fuzz.run import Device, check
outcomes = [check(generate(seed), Device("interp"), Path(sys.argv[1])) for seed in range(int(sys.argv[2]))]
print(json.dumps([[o.seed, o.kind, o.detail] for o in outcomes]))
"""


def test_the_interpreter_agrees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESSERA_INTERPRET", "1")
    command = [sys.executable, "-c", _COMPARE, str(tmp_path), str(len(SEEDS))]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    outcomes = json.loads(ran.stdout.splitlines()[-1])  # programs print before it
    assert [o for o in outcomes if o[1] not in ("same", "refused", "skipped")] == []
    assert sum(o[1] == "same" for o in outcomes) > len(outcomes) / 2


@pytest.mark.parametrize("name", ["f16", "bf16", "fp8_e4m3", "fp8_e5m2", "fp6_e2m3", "fp6_e3m2", "fp4_e2m1"])
def test_rounding_equals_ml_dtypes(name: str) -> None:
    from tessera.numerics.dtypes import BY_NAME

    form = FORMATS[name]
    steps = np.arange(-2000, 2000) * form.tiny / 8
    wide = np.random.default_rng(0).standard_normal(4000) * form.largest / 3
    x = np.concatenate([steps, wide[np.abs(wide) <= form.largest], [form.largest, -form.largest, 0.0]])
    x = x.astype(np.float32).astype(np.float64)  # ml_dtypes rounds to f32 first
    expected = x.astype(np.float32).astype(BY_NAME[name].numpy()).astype(np.float64)
    np.testing.assert_array_equal(nearest(x, name), expected)


def test_wide_integers_round_once() -> None:
    numbers = np.array([-60, 2**53 + 1, 2**62 + 2**38, 2**62 + 2**38 + 1, -(2**62) - 2**38 - 1], np.int64)
    got = cast(Val("i64", numbers), "f32").data
    assert got.tolist() == [-60.0, 2.0**53, 2.0**62, 2.0**62 + 2.0**39, -(2.0**62) - 2.0**39]
    assert cast(Val("i64", np.array([2**62 + 2**54 + 1])), "bf16").data[0] == 2.0**62 + 2.0**55


def test_a_bound_that_reaches_no_rounding_boundary_is_exact() -> None:
    value = cast(Val("f32", np.array([1.0, 1.0 + 2.0**-9]), np.array([1e-5, 1e-5])), "bf16")
    assert value.data.tolist() == [1.0, 1.0]
    assert value.err is None
    close = cast(Val("f32", np.array([1.0 + 2.0**-8]), np.array([1e-5])), "bf16")
    assert close.errors()[0] == 2.0**-7


def test_arrays_lie_where_their_layout_says_and_guards_notice_writes() -> None:
    layout = tree.Layout((1, 0), (2, -1), 3)
    values = np.arange(12, dtype=np.int16).reshape(3, 4)
    guarded = placed(values, layout)
    np.testing.assert_array_equal(guarded.view, values)
    assert guarded.view.strides == (4, -12)
    guarded.view[...] = 5
    assert guarded.overrun() == 0
    guarded.base[0] = 1
    assert guarded.overrun() == 1


def _sums(values: list[float], dtype: str = "f32") -> Val:
    return reduce("sum", Val(dtype, np.array(values)), 0, dtype)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_sums_whose_order_decides_whether_they_overflow_are_unknown(dtype: str) -> None:
    most, inf = FORMATS[dtype].largest, np.inf
    undecided = (
        [most, most, -most],
        [most, most, -inf],
        [-most, 1.0, -most, inf],
        [most, most, -most, -most],
    )
    for values in undecided:
        assert not _sums(values, dtype).mask().any()
    known = {
        (most, -most): 0.0,
        (most / 2, most / 4): 0.75 * most,
        (most, most): inf,
        (most, most, -1.0): inf,
        (-most, -most): -inf,
        (inf, most, most): inf,
        (-inf, most): -inf,
        (-inf, -most, -most): -inf,
    }
    for given, total in known.items():
        result = _sums([*given], dtype)
        assert result.mask().all()
        assert result.data == total or abs(result.data - total) <= result.errors()
    for values in ([inf, -inf, 1.0], [np.nan, most, most], [most, most, -inf, inf]):
        assert np.isnan(_sums(values, dtype).data)
        assert _sums(values, dtype).mask().all()


def test_a_running_sum_is_known_up_to_where_the_order_decides() -> None:
    most = FORMATS["f32"].largest
    found = scan("sum", Val("f32", np.array([1.0, most / 2, most, -np.inf, 0.0])), 0, False, "f32")
    assert found.mask().tolist() == [True, True, True, False, False]
    assert found.data[2] == np.inf


def test_infinities_in_products() -> None:
    inf, nan = np.inf, np.nan
    left = Val("f32", np.array([[1.0, inf], [inf, -inf], [nan, 0.0], [0.0, 2.0], [inf, 1.0]]))
    right = Val("f32", np.array([[2.0, 0.0], [3.0, 1.0]]))
    found = mma(left, right, None, "f32", "")
    assert found.mask().tolist() == [[True, True], [True, False], [True, False], [True, True], [True, False]]
    np.testing.assert_array_equal(found.data[:, 0], [inf, nan, nan, 6.0, inf])
    assert found.data[0, 1] == inf


def test_tf32_makes_infinities_of_the_largest_numbers() -> None:
    one = Val("f32", np.array([[0.25]]))
    for x, known in ((FORMATS["f32"].largest, False), (FORMATS["tf32"].largest, True)):
        found = mma(Val("f32", np.array([[x]])), one, None, "f32", "tf32")
        assert found.mask().all() == known


def test_integers_saturate_before_they_round() -> None:
    given = Val("i64", np.array([-(2**62), -449, 449, 447, 2**62]))
    assert cast(given, "fp8_e4m3", saturate=True).data.tolist() == [-448.0, -448.0, 448.0, 448.0, 448.0]


def adds(dtype: str, value: float, programs: int) -> tree.Program:
    """Every program of the grid adds a value to `C[0]`."""
    place = (tree.At(tree.Number(0)),)
    add = tree.Atomic("add", "C", place, dtype, tree.Cast(tree.Number(value), dtype))
    grid = tree.Grid(("i",), (tree.Number(programs),), (1,), (tree.Evaluate(add),))
    tensor = tree.Tensor("C", (1,), dtype, (1,), tree.Contents("small", 1, 1), tree.Layout((0,), (1,)))
    return tree.Program(7, (tensor,), (), (grid,))


@pytest.mark.parametrize(("value", "programs", "exact"), [(85.0, 3, True), (127.0, 3, False), (0.3, 1, True)])
def test_atomic_sums_that_round_depend_on_their_order(value: float, programs: int, exact: bool) -> None:
    found, _ = meaning(adds("bf16", value, programs), {"C": np.ones(1)})
    assert found["C"].mask().all()
    assert (found["C"].errors() == 0).all() == exact


@pytest.mark.parametrize(("profile", "bound"), [("fast", True), ("strict", False), ("deterministic", False)])
def test_a_product_may_start_from_what_it_is_added_to(profile: str, bound: bool) -> None:
    a = Val("f32", np.array([[3.0, 5.0, 0.25]]))
    b = Val("f32", np.array([[1.0], [1.0], [1.0]]))
    product = mma(a, b, None, "f32", "")
    large, small = Val("f32", np.array([[2.0**26]])), Val("f32", np.array([[16.0]]))
    assert apply("add", (small, product), "f32", profile).errors().item() == 0  # exact in any order
    first = apply("add", (large, product), "f32", profile)
    assert (first.errors().item() > 0) is bound
    other = np.float32(2.0**26) + np.float32(3.0) + np.float32(5.0) + np.float32(0.25)
    assert abs(float(other) - first.data.item()) <= first.errors().item() or not bound
    assert apply("sub", (large, product), "f32", profile).errors().item() == 0


def test_sums_of_f64_may_take_a_product_unrounded() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((2, 2000)) / 4
    one = Val("f64", np.ones(2000))
    bound = apply("sub", [one, apply("mul", [Val("f64", a), Val("f64", b)], "f64", "fast")], "f64", "fast")
    fused = np.array([float(1 - Fraction(x) * Fraction(y)) for x, y in zip(a, b, strict=True)])
    assert (fused != 1 - a * b).any(), "no case where the rounding shows"
    assert (np.abs(fused - bound.data) <= bound.errors()).all()


def test_fma_of_narrow_floats_is_rounded_in_f32_first() -> None:
    """Three times `big` lies half-way between two bf16, the even one below; f32 loses the 1 that is added."""
    big = 131.0 * 2**23
    product = Fraction(3) * Fraction(big)
    low = Fraction(nearest(np.asarray(float(product)), "bf16").item())
    args = [Val("bf16", np.asarray(x), None, None) for x in (3.0, big, 1.0)]
    assert abs(product - low) == Fraction(2**23)  # half of what lies between two bf16
    assert apply("fma", args, "bf16", "fast").data == float(low)
    assert nearest(np.asarray(float(product + 1)), "bf16") != float(low)  # rounded once it were above


def towards_zero(x: np.ndarray) -> np.ndarray:
    """Cut numbers off behind the digits of f32, as matrix units do."""
    near = x.astype(np.float32)
    return np.where(np.abs(near.astype(np.float64)) > np.abs(x), np.nextafter(near, np.float32(0)), near).astype(float)


@pytest.mark.parametrize("rounding", [lambda x: x.astype(np.float32).astype(float), towards_zero])
def test_products_of_what_is_off_are_rounded_as_others_are(rounding) -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        depth = int(random.integers(2, 20))
        data = 2.0 ** random.integers(-3, 4, (1, depth))
        off = np.where(random.random((1, depth)) < 0.5, data * 2.0**-10, 0.0)
        start = 2.0 ** random.integers(18, 24, (1, 1))
        right = random.integers(1, 4, (depth, 1)).astype(float)
        promised = mma(Val("f16", data, off), Val("f16", right), Val("f32", start), "f32", "")
        total = start
        for k in random.permutation(depth):
            total = rounding(total + (data + off * random.choice((-0.5, 0.0, 1.0), off.shape))[:, k : k + 1] * right[k])
        assert (np.abs(total - promised.data) <= promised.errors()).all()


def test_sums_of_what_is_off_are_rounded_as_others_are() -> None:
    data = np.array([2.0**23, *[1.0] * 8])
    off = np.array([0.0, *[0.6] * 8])
    total = np.float32(2.0**23)
    for value in data[1:] + off[1:]:
        total = np.float32(total + np.float32(value))
    promised = reduce("sum", Val("f32", data, off), None, "f32")
    assert abs(float(total) - float(promised.data)) <= float(promised.errors())
    exact = reduce("sum", Val("f32", data), None, "f32")
    assert exact.err is None
