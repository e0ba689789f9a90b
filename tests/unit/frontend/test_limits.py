"""Compile-time arithmetic stays affordable, and facts that the frontend derives by itself."""

from __future__ import annotations

import ast
import importlib.util
import time

import numpy as np
import pytest

import tessera as ts
from tessera.frontend import builder
from tessera.frontend.liveness import Liveness
from tests.unit.frontend.support import built, ops, run


def refused(kernel, sizes=None, **options):
    with pytest.raises(ts.TesseraError) as caught:
        built(kernel, sizes or dict(n=64), **options)
    return caught.value.code


PIECES = {
    "power": "y[0] = 9**9**9",
    "shift": "y[0] = 1 << 10**12",
    "repetition": "print('a' * 10**12)",
    "list": "y[0] = len([1] * 10**12)",
    "called": "y[0] = pow(9, 10**9)",
    "factorial": "y[0] = math.factorial(10**7) % 7",
    "permutations": "y[0] = math.perm(10**7) % 7",
    "choices": "y[0] = math.comb(2 * 10**6, 10**6) % 7",
    "digits": "y[0] = round(5, -(10**9))",
    "width": "print('%999999999d' % 5)",
    "long range": "y[0] = sum(LONG)",
    "endless": "y[0] = sum(ENDLESS)",
    "search": "y[0] = 1.0 if 0.5 in LONG else 2.0",
    "digits of a number": "print(f'{1 << 16000}')",
    "shown number": "y[0] = (1 << 16000) @ 1",
    "tuple of tuples": "t = (1, 2)\n    for _ in ts.tile.static_range(60):\n        t = (t, t)",
    "sum of tuples": "t = (1, 2)\n    for _ in ts.tile.static_range(60):\n        t += t",
    "sum of texts": "t = 'ab'\n    for _ in ts.tile.static_range(60):\n        t = t + t",
    "f-string": "t = 'ab'\n    for _ in ts.tile.static_range(60):\n        t = f'{t}{t}'",
    "array as condition": "if ARRAY:\n        y[0] = 1.0",
    "array in `not`": "y[0] = 1.0 if not ARRAY else 2.0",
    "array in `and`": "y[0] = 1.0 if ARRAY and ARRAY else 2.0",
    "array in a chain": "y[0] = 1.0 if 0 < ARRAY < 2 else 2.0",
    "object as condition": "if STUBBORN:\n        y[0] = 1.0",
    "attribute of an object": "y[0] = STUBBORN.size",
    "operator of an object": "y[0] = STUBBORN + 1",
}
HEADER = """
import itertools
import math
import numpy as np
import tessera as ts

LONG, ENDLESS, ARRAY = range(10**12), itertools.count(), np.ones(3)


class Stubborn:
    def __bool__(self):
        raise RuntimeError("no")

    def __getattr__(self, name):
        raise OSError("gone")

    def __add__(self, other):
        raise MemoryError


STUBBORN = Stubborn()
"""


def compiled(tmp_path, body, before="", params='y: ts.Tensor["n", ts.f32]'):
    """Return the function of a kernel with such a body, from a file of its own."""
    path = tmp_path / f"kernel_{len(list(tmp_path.iterdir()))}.py"
    path.write_text(f"{HEADER}\n{before}\n\ndef kernel({params}):\n    {body}\n")
    spec = importlib.util.spec_from_file_location("source_of_kernel", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kernel


@pytest.mark.parametrize("body", PIECES.values(), ids=PIECES)
def test_compile_time_values_neither_hang_nor_raise_by_themselves(tmp_path, body):
    assert refused(compiled(tmp_path, body)) == "constant-expression"


def chain(count, body="return f{0}(v)"):
    helpers = ["@ts.function\ndef f0(v):\n    return v + 1.0"]
    helpers += [f"@ts.function\ndef f{i}(v):\n    {body.format(i - 1)}" for i in range(1, count)]
    return "\n\n".join(helpers)


def test_compile_time_work_has_a_budget(tmp_path, monkeypatch):
    monkeypatch.setattr(builder, "MAX_STEPS", 20000)
    tree = compiled(tmp_path, "y[0] = f39(0.0)", chain(40, "return f{0}(v) + f{0}(v)"))
    loops = compiled(
        tmp_path,
        "for i in ts.tile.static_range(4000):\n        for j in ts.tile.static_range(4000):\n"
        "            y[0] = y[0] + 1.0",
    )
    for kernel in (tree, loops):
        assert refused(kernel) == "compile-budget"


DEEP = {
    "sum": ("y[0] = " + " + ".join(["y[1]"] * 800), "", None),
    "product": ("y[0] = " + " * ".join(["y[1]"] * 400), "", None),
    "product of dimensions": ("y[0] = " + " * ".join(["n"] * 400), "", None),
    "helpers": ("y[0] = f79(1.0)", chain(80), None),
    "parentheses": ("y[0] = " + "(y[1] + " * 90 + "1.0" + ")" * 90, "", None),
    "branches": ("\n    el".join(f"if y[0] == {i}.0:\n        y[1] = {i}.0" for i in range(60)), "", None),
    "too many signs": ("y[0] = " + "-" * 900 + "y[1]", "", "nesting-depth"),
    "too many helpers": ("y[0] = f599(1.0)", chain(600), "nesting-depth"),
    "too many branches": (
        "\n    el".join(f"if y[0] == {i}.0:\n        y[1] = {i}.0" for i in range(900)),
        "",
        "nesting-depth",
    ),
}


@pytest.mark.parametrize(("body", "before", "code"), DEEP.values(), ids=DEEP)
def test_deep_source_compiles_or_is_refused(tmp_path, body, before, code):
    kernel = compiled(tmp_path, body, before)
    if code is None:
        built(kernel, dict(n=64))
    else:
        assert refused(kernel) == code


def test_nested_loops_are_compiled_a_few_times_each():
    """16 levels, each of which carries a number whose type only its body decides."""

    def kernel(x: ts.Tensor["n", ts.i32], y: ts.Tensor[1, ts.i32]):
        a = 0
        for _ in ts.tile.range(1):
            b = 0
            for _ in ts.tile.range(2):
                c = 0
                for _ in ts.tile.range(1):
                    d = 0
                    for _ in ts.tile.range(2):
                        e = 0
                        for _ in ts.tile.range(1):
                            f = 0
                            for _ in ts.tile.range(2):
                                g = 0
                                for _ in ts.tile.range(1):
                                    h = 0
                                    for _ in ts.tile.range(2):
                                        h = h + x[0]
                                    g = g + h
                                f = f + g
                            e = e + f
                        d = d + e
                    c = c + d
                b = b + c
            a = a + b
        y[0] = a
        return y

    start = time.monotonic()
    assert run(kernel, np.full(4, 3, np.int32), np.zeros(1, np.int32))[0] == 48
    assert time.monotonic() - start < 10


def test_a_row_of_seventy_million_elements_is_a_tile():
    def kernel(x: ts.Tensor["n", ts.i8], y: ts.Tensor[1, ts.i64]):
        for _ in ts.tile.grid((1, 1)):
            y[0] = ts.tile.sum(x[:].to(ts.i64))
        return y

    x = np.ones(70_000_007, np.int8)
    x[::1_000_003] = -100
    assert run(kernel, x, np.zeros(1, np.int64))[0] == len(x) - 70 * 101


def test_huge_tiles_and_loops_are_refused():
    def tile(y: ts.Tensor["n", ts.f32]):
        y[0 : 2**40] = 0.0

    def loop(y: ts.Tensor["n", ts.f32]):
        for _ in ts.tile.static_range(10**12):
            y[0] = 1.0

    assert refused(tile) == "tile-too-large"
    assert refused(loop) == "bad-range"


def test_equal_computations_give_a_static_extent():
    def kernel(y: ts.Tensor["n", ts.f32], k: int):
        y[k // 2 * 8 + k % 3 : (k // 2 + 1) * 8 + k % 3] = 1.0
        y[k * n : k * n + n] = 2.0

    assert [op.size_list for op in ops(built(kernel, dict(n=5)), "store")] == [(8,), (5,)]
    assert built(kernel, dict(n=5)).fixed_dims == {"n": 5}

    def different(y: ts.Tensor["n", ts.f32], k: int):
        y[k // 2 : k // 3] = 1.0

    assert refused(different) == "slice-extent"


def test_a_product_of_dimensions_in_the_body():
    def kernel(x: ts.Tensor["B*H", "S", ts.f32]):
        for bh, s in ts.tile.grid((B * H, 1), (S, 4)):
            x[bh, s : s + 4] += 1

    x = np.zeros((6, 5), np.float32)
    run(kernel, x)
    np.testing.assert_array_equal(x, 1)


def test_liveness():
    tree = ast.parse(
        "def f():\n a = 1\n b = 2\n c = 3\n for i in r:\n  a = a + i\n  c = i\n  d = c\n if a:\n  b = 1\n return b"
    )
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    loop, branch = function.body[3], function.body[4]
    assert isinstance(loop, ast.For)
    liveness = Liveness(function)
    assert liveness.after(loop) == {"a", "b"}
    assert liveness.after(branch) == {"b"}
    assert liveness.exposed(loop.body) == {"a", "i"}
    assert liveness.after(loop.body[0]) == {"a", "b", "i"}


def test_leading_ones_of_a_stored_tile_are_dropped():
    def kernel(x: ts.Tensor[2, 8, ts.f32], y: ts.Tensor[8, ts.f32]):
        y[:] = x[1:2, :] * 2

    x, y = np.arange(16, dtype=np.float32).reshape(2, 8), np.zeros(8, np.float32)
    run(kernel, x, y)
    np.testing.assert_array_equal(y, 2 * x[1])


def test_asserts_leave_nothing_behind_without_debug():
    def kernel(x: ts.Tensor["n", ts.f32]):
        assert x[0:8] > 0, "positive"
        x[0:8] = 1.0

    assert not ops(built(kernel), "load")
    assert len(ops(built(kernel, debug=True), "load")) == 1


def test_numpy_scalars_are_constants():
    def kernel(x: ts.Tensor["n", ts.f32], block: ts.constexpr):
        for m in ts.tile.grid((n, block)):
            x[m : m + block] = 1.0

    assert ops(built(kernel, constexprs=dict(block=np.int64(16))), "grid")[0].block_sizes == (16,)


def test_linear_id_counts_what_is_returned_before_what_is_stored():
    def returned(x: ts.Tensor[100, ts.f32], y: ts.Tensor[8, ts.f32]):
        i = ts.tile.linear_id()
        y[i] = 1.0
        x[i] = 1.0
        return x

    def stored(h: ts.Tensor[8, ts.i32], y: ts.Tensor[60, ts.f32]):
        i = ts.tile.linear_id()
        ts.tile.atomic_add(h[i * 0], 1)
        y[i] = 1.0

    for kernel, count in ((returned, 100), (stored, 60)):
        (grid,) = ops(built(kernel), "grid")
        assert grid.extents[0].owner.python_value == count


def test_a_scaled_dimension_gives_its_factor():
    def kernel(x: ts.Tensor["2*N", ts.f32]):
        x[0:N] = ts.tile.zeros((N,))

    kernel_ = built(kernel, dict(N=6))
    assert kernel_.fixed_dims == {"2*N": 12}
    assert not ops(kernel_, "dim")
    assert ops(kernel_, "store")[0].size_list == (6,)


def test_the_context_knows_constexprs_and_their_defaults():
    def kernel(x: ts.Tensor["n", ts.f32], BN: ts.constexpr = 8):
        ctx = ts.tile.context()
        for m in ts.tile.grid((ctx.n, ctx.BN)):
            x[m : m + ctx.BN] = 1.0

    assert ops(built(kernel), "grid")[0].block_sizes == (8,)
    assert ops(built(kernel, constexprs=dict(BN=4)), "grid")[0].block_sizes == (4,)


def test_axes_outside_the_rank_are_refused():
    def kernel(x: ts.Tensor[4, 8, ts.f32]):
        x[0:4, 0:8] = ts.tile.transpose(x[:, :], (2, -1))

    assert refused(kernel) == "bad-axis"


def test_a_fixed_product_fixes_no_factor_of_it():
    def kernel(x: ts.Tensor["B*H", ts.f32], y: ts.Tensor["H", ts.f32]):
        y[0] = ts.tile.sum(x[:]) + B

    kernel_ = built(kernel, dict(B=2, H=3))
    assert kernel_.fixed_dims == {"B*H": 6}
    x, y = np.ones(6, np.float32), np.zeros(3, np.float32)
    run(kernel, x, y, sizes=dict(B=2))
    assert y[0] == 8
