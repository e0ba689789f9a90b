"""Kernels in traced functions: what they write are values, in NumPy's arrays and PyTorch's."""

import ml_dtypes
import numpy as np
import pytest
import torch

import tessera as ts
from tests.unit.graph.differences import assert_gradients

RNG = np.random.default_rng(9)
T = ts.dtype_var("T")


@ts.kernel
def square(x: ts.Tensor["n", T], y: ts.Tensor["n", T]):
    for i in ts.tile.grid((n, 64)):
        tile = x[i : i + 64]
        y[i : i + 64] = tile * tile


@square.vjp
def _(given, results, cotangents):
    return {"x": 2.0 * given["x"] * cotangents["y"]}


@ts.kernel
def saxpy(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], alpha: ts.f32) -> ts.Tensor["n", ts.f32]:
    i = ts.tile.linear_id()
    if i < n:
        y[i] = alpha * x[i] + y[i]
    return y


@ts.kernel
def ramp(y: ts.Tensor["n", ts.f32], by: ts.i64) -> ts.Tensor["n", ts.f32]:
    i = ts.tile.linear_id()
    if i < n:
        y[i] = i * by
    return y


def squares(x):
    y = np.empty_like(x)
    square(x * 2.0, y)
    return y + 1.0


def single(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_results_are_what_a_kernel_writes(dtype):
    f = ts.jit(squares)
    for n in (5, 130, 7):
        x = RNG.standard_normal(n).astype(dtype)
        assert f(x).dtype == dtype
        assert np.abs(f(x) - 4 * x.astype(np.float64) ** 2 - 1).max() < 30 * np.finfo(dtype).eps
    assert f(np.empty(0, dtype)).shape == (0,)
    assert f.graph().count("tessera_graph.call") == 1


def test_a_kernel_reads_what_it_writes():
    x = single(9)
    for _ in range(5):  # calls that CPython starts without Python's code, too
        saxpy(x, np.zeros(9, np.float32), 2.0)

    @ts.jit
    def f(x, alpha):
        y, z = np.copy(x), x * 2.0
        one = saxpy(x, y, alpha)
        saxpy(x, z, -1.0)
        many = saxpy(x, np.full(x.shape, 3.0, np.float32, like=x), 0.5)
        return one, y, z, many, x

    for alpha in (2.0, -0.5):
        found = f(x, np.array(alpha, np.float32))
        for one, wanted in zip(found, ((alpha + 1) * x, (alpha + 1) * x, x, 0.5 * x + 3, x), strict=True):
            assert np.abs(one - wanted).max() < 1e-5
    given = torch.from_numpy(x)
    assert torch.allclose(f(given, torch.tensor(2.0))[0], 3 * given)
    assert torch.equal(given, torch.from_numpy(x))


def test_a_kernel_without_inputs_takes_sizes():
    f = ts.jit(lambda x: ramp(np.empty((x.shape[0] * 2,), np.float32, like=x), x.shape[0]))
    for n in (5, 8):
        assert np.array_equal(f(single(n)), np.arange(2 * n) * n)


def test_gradients_of_any_order():
    def loss(x):
        y = np.empty_like(x)
        square(x, y)
        return np.sum(np.sin(y))

    x = RNG.standard_normal(6)
    assert_gradients([ts.grad(loss)(x)], lambda x: np.sum(np.sin(x * x)), [x], [0])
    second = ts.grad(lambda x: np.sum(ts.grad(loss)(x)))(x)
    assert_gradients([second], lambda x: np.sum(np.cos(x * x) * 2 * x), [x], [0])


def test_one_kernel_in_two_functions_and_a_jit_in_a_jit():
    inner = ts.jit(squares)
    outer = ts.jit(lambda x: inner(x) * inner(x))
    x = RNG.standard_normal(7)
    assert np.abs(outer(x) - (4 * x * x + 1) ** 2).max() < 1e-11
    assert np.abs(inner(x) - (4 * x * x + 1)).max() < 1e-12
    assert outer.graph().count("tessera_graph.call") == 1


def part_before(x):
    y = np.zeros_like(x)
    part = y[2:]
    saxpy(x, y, 2.0)
    return part


def wrong_gradient(x):
    @ts.kernel
    def double(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]) -> ts.Tensor["n", ts.f32]:
        i = ts.tile.linear_id()
        if i < n:
            y[i] = 2.0 * x[i]
        return y

    double.vjp(lambda given, results, cotangents: {"x": cotangents["y"][1:]})
    return ts.grad(lambda x: np.sum(double(x, np.empty_like(x))))(x)


AROUND = np.zeros(9, np.float32)
WRONG = {
    "written-argument": lambda x: saxpy(x, x, 2.0),
    "written-argument, of grad": lambda x: ts.grad(lambda x: np.sum(saxpy(x, x, 2.0)))(x),
    "written-argument, part": lambda x: saxpy(x, np.zeros_like(x, shape=(20,))[:9], 2.0),
    "written-argument, part before": part_before,
    "written-argument, around": lambda x: saxpy(x, AROUND, 2.0),
    "wrong-shape": lambda x: saxpy(x, np.zeros((8,), np.float32, like=x), 2.0),
    "wrong-rank": lambda x: saxpy(x, np.zeros_like(x, shape=(9, 2)), 2.0),
    "wrong-dtype": lambda x: saxpy(x, np.zeros_like(x, dtype=np.float64), 2.0),
    "wrong-scalar": lambda x: saxpy(x, np.zeros_like(x), x),
    "argument-count": lambda x: saxpy(x, np.zeros_like(x)),
    "not-an-array": lambda x: saxpy(x, 1.0, 2.0),
    "no-adjoint": lambda x: ts.grad(lambda x: np.sum(saxpy(x, np.zeros_like(x), np.sum(x))))(x),
    "no-adjoint, forwards": lambda x: ts.jvp(squares, (x,), (x,))[1],
    "bad-gradient": wrong_gradient,
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls_name_the_line(name):
    with pytest.raises(ts.TesseraError) as caught:
        ts.jit(WRONG[name])(single(9))
    assert caught.value.code == name.partition(",")[0]
    assert caught.value.location.frame.file == __file__
    assert not AROUND.any()


@ts.kernel
def scores(q: ts.Tensor["m", "d", ts.f64], k: ts.Tensor["n", "d", ts.f64], p: ts.Tensor["m", "n", ts.f64]):
    for i in ts.tile.grid((m, 16)):
        s = ts.tile.mma(q[i : i + 16, :], k[:, :].T)
        p[i : i + 16, :] = ts.tile.softmax(s, axis=1)


@ts.kernel
def highest(x: ts.Tensor["n", ts.f32], y: ts.Tensor["1", ts.f32]):
    for i in ts.tile.grid((n, 64)):
        ts.tile.atomic_max(y[0], ts.tile.max(x[i : i + 64]))


def attention(q, k, v):
    return np.sum((scores_of(q * 0.5, k) @ v) ** 2)


def scores_of(q, k):
    p = np.empty_like(q, shape=(q.shape[0], k.shape[0]))
    scores(q, k, p)
    return p


def plain(q, k, v):
    s = q * 0.5 @ k.T
    e = np.exp(s - s.max(1, keepdims=True))
    return np.sum((e / e.sum(1, keepdims=True) @ v) ** 2)


@pytest.mark.parametrize("sizes", [(5, 7, 3), (33, 20, 4)])
def test_the_gradient_of_a_kernel_follows_from_it(sizes):
    m, n, d = sizes
    given = [RNG.standard_normal(shape) for shape in ((m, d), (n, d), (n, d))]
    found = ts.jit(ts.grad(attention, argnums=(0, 1, 2)))(*given)
    assert_gradients(found, plain, given, (0, 1, 2))


def test_gradients_of_what_a_kernel_reads_and_writes():
    def total(x, y):
        z = np.copy(y * y)
        saxpy(x, z, 3.0)
        return np.sum(z * z)

    x, y = single(150), single(150)
    found = ts.jit(ts.grad(total, argnums=(0, 1)))(x, y)
    z = 3.0 * x.astype(np.float64) + y.astype(np.float64) ** 2
    for one, wanted in zip(found, (6.0 * z, 4.0 * z * y), strict=True):
        assert np.abs(one - wanted).max() < 1e-4


def test_what_has_no_adjoint_names_the_line_of_the_kernel():
    def peak(x):
        y = np.zeros_like(x, shape=(1,))
        highest(x, y)
        return np.sum(y)

    with pytest.raises(ts.TesseraError, match="atomic_max has no adjoint") as caught:
        ts.grad(peak)(single(9))
    assert caught.value.code == "no-adjoint"


def test_a_gradient_is_a_function():
    with pytest.raises(ts.TesseraError, match="not-a-function"):
        saxpy.vjp({"x": 1.0})


@pytest.mark.parametrize(
    "quotient",
    [
        pytest.param(lambda x, y: x / np.max(x, axis=1, keepdims=True), id="rows"),
        pytest.param(lambda x, y: x / np.max(y, axis=0), id="columns"),
        pytest.param(lambda x, y: x / y, id="elements"),
    ],
)
def test_quotients_are_rounded_once(quotient) -> None:
    rng = np.random.default_rng(4)
    x, y = rng.standard_normal((37, 515)).astype(np.float32), rng.uniform(0.1, 3, (37, 515)).astype(np.float32)
    np.testing.assert_array_equal(ts.jit(quotient)(x, y), quotient(x, y))


@pytest.mark.parametrize(("dtype", "instruction"), [(np.float32, "div.rn.f32"), (ml_dtypes.bfloat16, "div.full.f32")])
def test_gpus_round_quotients_once_where_it_shows(dtype, instruction) -> None:
    x = np.ones((64, 512), dtype)
    found = ts.jit(lambda x, y: x / y).compile(x, x, target="sm_90a", dump=["ptx"])
    (text,) = found.dumps["ptx"].values()
    assert instruction in text
    assert ("div.full.f32" in text) == (instruction == "div.full.f32")


DECIDED = {
    "whole": lambda x, y: np.floor(x / y),
    "an integer": lambda x, y: (x / y).astype(np.int32),
    "compared": lambda x, y: np.where(x / y >= 1, x, y),
    "a remainder": lambda x, y: np.mod(1 + x / y, 3),
}


@pytest.mark.parametrize("name", DECIDED)
def test_gpus_round_quotients_that_decide_something(name) -> None:
    x = np.ones((64, 512), ml_dtypes.bfloat16)
    (text,) = ts.jit(DECIDED[name]).compile(x, x, target="sm_90a", dump=["ptx"]).dumps["ptx"].values()
    assert "div.rn.f32" in text
    assert "div.full.f32" not in text


def test_gpus_round_products_that_become_whole() -> None:
    x = np.ones((64, 512), np.float32)
    texts = [
        ts.jit(function).compile(x, x, target="sm_90a", dump=["ptx"]).dumps["ptx"].values()
        for function in (lambda x, y: np.floor(x * y + x), lambda x, y: x * y + x)
    ]
    assert ["fma.rn" in text for (text,) in texts] == [False, True]
