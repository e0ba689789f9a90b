"""`ts.jit`: traced functions are NumPy functions, so NumPy itself in float64 says what they give."""

import threading
import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tessera as ts
from tessera.graph.constants import beside
from tessera.runtime.device import CPU, Device
from tessera.schedule.fuse.apart import MOST_OPS

RNG = np.random.default_rng(5)


def attention(q, k, v):
    scores = q @ np.swapaxes(k, -1, -2) / 8.0
    weights = np.exp(scores - np.max(scores, axis=-1, keepdims=True))
    return weights / np.sum(weights, axis=-1, keepdims=True) @ v


def layer_norm(x, w, b):
    apart = x - np.mean(x, axis=-1, keepdims=True)
    return apart / np.sqrt(np.mean(apart * apart, axis=-1, keepdims=True) + 1e-5) * w + b


def mlp(x, w, b):
    return np.tanh(np.maximum(x, 0.0) * w + b) - x.T.T


def shapes(x, w, b):
    y = np.stack([x, x * w], axis=1).reshape(-1, 2 * x.shape[1])
    return np.concatenate([y[:, 1:], y[:, :1]], axis=1).T + x.shape[0]


def statistics(x, w, b):
    extremes = x.max(axis=1), x.min(), np.any(x > 2.0, axis=1)
    return np.std(x, axis=0), np.var(x, ddof=1), np.prod(np.tanh(x), axis=0), *extremes


def columns(x, w, b):
    return (x * w).sum(axis=0), x.sum(), (x - x.mean(axis=0)).max(axis=0, keepdims=True)


FUNCTIONS = (layer_norm, mlp, shapes, statistics, columns)
TOLERANCE = {"float64": 1e-12, "float32": 3e-5, "bfloat16": 6e-2, "float16": 8e-3}


def close(got: Any, wanted: Any, dtype: Any) -> None:
    if isinstance(wanted, tuple):
        assert len(got) == len(wanted)
        for one, other in zip(got, wanted, strict=True):
            close(one, other, dtype)
        return
    wanted = np.asarray(wanted)
    assert got.shape == wanted.shape
    scale = np.abs(wanted.astype(np.float64)).max() + 1
    error = np.abs(np.asarray(got, np.float64) - wanted.astype(np.float64)).max() / scale
    assert error < TOLERANCE[np.dtype(dtype).name], error


@pytest.mark.parametrize("dtype", [np.float64, np.float32, ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_give_what_numpy_gives(function, dtype):
    traced = ts.jit(function)
    for rows, columns_ in ((4, 6), (33, 7), (5, 300)):
        x, w, b = (RNG.standard_normal(shape).astype(dtype) for shape in ((rows, columns_), (columns_,), (columns_,)))
        close(traced(x, w, b), function(*(one.astype(np.float64) for one in (x, w, b))), dtype)


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_products_of_batches(batch):
    traced = ts.jit(attention)
    for queries, keys in ((5, 9), (16, 16), (1, 40)):
        q, k, v = (RNG.standard_normal((*batch, n, 64)).astype(np.float32) for n in (queries, keys, keys))
        close(traced(q, k, v), attention(*(one.astype(np.float64) for one in (q, k, v))), np.float32)


def test_vectors_and_matrices():
    x, w = RNG.standard_normal((5, 7)), RNG.standard_normal(7)
    close(ts.jit(lambda x, w: (x @ w, w @ x.T, w @ w, np.dot(x, w)))(x, w), (x @ w, w @ x.T, w @ w, x @ w), np.float64)


def test_products_of_small_integers():
    x, y = RNG.integers(-128, 128, (5, 40)).astype(np.int8), RNG.integers(-128, 128, (40, 6)).astype(np.int8)
    got = ts.jit(lambda x, y: x @ y + 1)(x, y)
    assert got.dtype == np.int32
    assert np.array_equal(got, x.astype(np.int64) @ y.astype(np.int64) + 1)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.bool_])
def test_integers(dtype):
    x = RNG.integers(0, 2 if dtype is np.bool_ else 100, (6, 11)).astype(dtype)
    y = RNG.integers(1, 2 if dtype is np.bool_ else 100, (6, 11)).astype(dtype)
    if dtype is np.bool_:
        got = ts.jit(lambda x, y: (x & y, x | ~y, x ^ y, np.all(x, axis=0), np.any(y)))(x, y)
        wanted: Any = (x & y, x | ~y, x ^ y, np.all(x, axis=0), np.any(y))
    else:

        def function(x, y):
            sums = np.sum(x), np.sum(y, axis=0), np.max(y, axis=1)
            return x + y, x * y, x // y, x % y, np.maximum(x, y), x > y, *sums

        got, wanted = ts.jit(function)(x, y), function(x, y)
    for one, other in zip(got, wanted, strict=True):
        assert np.array_equal(one, other)


def test_a_new_size_needs_no_tracing():
    count = 0

    def function(x):
        nonlocal count
        count += 1
        return np.exp(x) * x.shape[0]

    traced = ts.jit(function)
    for size in (5, 9, 200, 9):
        x = RNG.standard_normal(size)
        close(traced(x), np.exp(x) * size, np.float64)
    assert count == 1
    for other in (RNG.standard_normal(1), RNG.standard_normal((4, 4)), RNG.standard_normal(5).astype(np.float32)):
        close(traced(other), np.exp(other.astype(np.float64)) * other.shape[0], other.dtype)
    assert count == 4


def test_numbers_keep_all_their_bits():
    x = np.ones(2)
    for number in (0.1, 1 / 3, -0.0, 5e-324, 1e300, np.inf, -np.inf, np.nan):
        assert ts.jit(lambda x, n=number: x * n)(x).tobytes() == (x * number).tobytes()
    signs = ts.jit(lambda x: (np.copysign(x, 0.0), np.copysign(x, -0.0)))(x)
    assert np.array_equal(signs, [[1, 1], [-1, -1]])
    assert ts.jit(lambda x: x + (2**53 + 1))(np.zeros(1, np.int64))[0] == 2**53 + 1


def test_a_size_may_decide():
    traced = ts.jit(lambda x: x * 2 if x.shape[0] > 8 else x + 1)
    for size in (5, 9, 7, 12, 8):
        x = RNG.standard_normal(size)
        assert np.array_equal(traced(x), x * 2 if size > 8 else x + 1)


def test_sizes_that_were_equal_may_differ():
    traced = ts.jit(lambda x, y: (x.sum(axis=0), y * 2))
    for rows, columns_ in ((6, 6), (6, 7), (3, 9)):
        x, y = RNG.standard_normal((rows, 4)), RNG.standard_normal(columns_)
        got = traced(x, y)
        close(got[0], x.sum(axis=0), np.float64)
        assert np.array_equal(got[1], y * 2)


def test_sizes_that_have_to_be_equal_are_compared_in_every_call():
    traced = ts.jit(lambda x, y: x + y)
    traced(np.ones(6), np.ones(6))
    with pytest.raises(ts.TypeMismatchError, match="do not broadcast"):
        traced(np.ones(6), np.ones(7))


def test_arrays_lie_in_any_way():
    traced = ts.jit(layer_norm)
    base = RNG.standard_normal((40, 30))
    for x in (base[::2, 3:20], base.T[:17, :20].T, np.broadcast_to(base[0, :17], (9, 17)), base[::-1, 13:]):
        w, b = RNG.standard_normal(34)[::2], RNG.standard_normal(17)
        close(traced(x, w, b), layer_norm(x, w, b), np.float64)


def test_arrays_without_elements():
    def function(x):
        return x * 2, np.sum(x, axis=1), np.prod(x, axis=0), x @ x.T, np.any(x > 0, axis=0), np.mean(x * x)

    for shape in ((0, 5), (5, 0)):
        for one, other in zip(ts.jit(function)(np.zeros(shape)), _quietly(function, np.zeros(shape)), strict=True):
            assert np.array_equal(one, other, equal_nan=True)
    with pytest.raises(ts.TypeMismatchError, match="max of no elements"):
        ts.jit(lambda x: np.max(x, axis=0))(np.zeros((0, 3)))


def _quietly(function, x):
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(x)


def test_trees_numbers_and_arrays_of_the_program():
    table = RNG.standard_normal(4)
    traced = ts.jit(lambda p, *, factor: {"y": [p["x"] * factor + table, (p["n"] + 1,)], "fixed": 7})
    x, n = RNG.standard_normal((3, 4)), np.int64(3) * np.ones((), np.int64)
    got = traced({"x": x, "n": n}, factor=2.5)
    assert got["fixed"] == 7
    close(got["y"][0], x * 2.5 + table, np.float64)
    assert got["y"][1][0] == 4
    table[:] = 0  # arrays are read at each call
    close(traced({"x": x, "n": n}, factor=2.5)["y"][0], x * 2.5, np.float64)


def test_results_are_new_arrays():
    x = RNG.standard_normal(8)
    y, twin, same, turned = ts.jit(lambda x: (x + 0, x + 0, x * 1, (x + 0).T))(x)
    y[:] = 0
    assert np.all(x != 0)
    assert np.array_equal(twin, x)
    assert np.array_equal(same, x)
    assert np.array_equal(turned, x)


def test_threads_share_a_traced_function():
    traced = ts.jit(layer_norm)
    wrong: list[int] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for size in (8, 9, 10, 11):
            x, w, b = rng.standard_normal((seed + 2, size)), rng.standard_normal(size), rng.standard_normal(size)
            if np.abs(traced(x, w, b) - layer_norm(x, w, b)).max() > 1e-10:
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_interpreted(monkeypatch):
    monkeypatch.setenv("TESSERA_INTERPRET", "1")
    x, w, b = RNG.standard_normal((3, 8)), RNG.standard_normal(8), RNG.standard_normal(8)
    close(ts.jit(layer_norm)(x, w, b), layer_norm(x, w, b), np.float64)


@pytest.mark.parametrize("rest", [-2, 0, 2])
def test_sums_behind_a_group_that_is_full(rest):
    chain = 20
    count, last = divmod(MOST_OPS - 2 + rest, chain)

    def function(x):
        start, ends = np.cos(np.sin(x)), []
        for length in (*[chain] * count, last):
            value = start
            for _ in range(length // 2):
                value = np.tanh(value + 0.1 * (len(ends) + 1))
            ends.append(value)
        return tuple(np.sum(value, axis=0) for value in ends)

    x = RNG.standard_normal((70, 5))
    close(ts.jit(function)(x), function(x), np.float64)


def test_one_kernel_where_one_suffices():
    traced = ts.jit(layer_norm)
    traced(RNG.standard_normal((4, 8)), RNG.standard_normal(8), RNG.standard_normal(8))
    assert traced.graph().count("tessera_graph.group") == 1


@pytest.mark.parametrize(
    ("function", "code"),
    [
        (lambda x: x if x > 0 else -x, "value-needed"),
        (lambda x: float(np.sum(x)), "value-needed"),
        (lambda x: np.linalg.inv(x), "not-traceable"),
        (lambda x: np.searchsorted(x, 1.0), "rank-mismatch"),
        (lambda x: np.add.reduceat(x, [0, 2]), "not-traceable"),
        (lambda x: x[x > 0], "value-needed"),
        (lambda x: x.reshape(5, 5), "shape-mismatch"),
        (lambda x: x.sum(axis=3), "bad-axis"),
        (lambda x: x[9], "bad-index"),
        (lambda x: x + x[:2], "shape-mismatch"),
        (lambda x: x @ x[:2], "shape-mismatch"),
        (lambda x: x & 1, "dtype-mismatch"),
        (lambda x: (x > 0) - (x < 0), "dtype-mismatch"),
        (lambda x: x.astype("text"), "unknown-dtype"),
    ],
)
def test_mistakes_name_their_line(function, code):
    with pytest.raises(ts.TesseraError) as caught:
        ts.jit(function)(RNG.standard_normal((4, 4)))
    assert caught.value.code == code
    assert "test_jit.py" in str(caught.value)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: np.concatenate([x]),
        lambda x: np.stack([x])[0],
        lambda x: x.astype(x.dtype),
        lambda x: x.astype(x.dtype)[1:].T,
        lambda x: np.clip(x, None, None),
        lambda x: np.copy(x),
        lambda x: np.sum(x[:1], axis=0),
        lambda x: x,
        lambda x: x[1:],
        lambda x: np.swapaxes(x[:, 1:3], 0, 1).reshape(-1, 1)[0],
        lambda x: np.expand_dims(x.T, 0),
    ],
)
def test_results_share_memory_as_those_of_numpy_do(function):
    x = np.random.default_rng(5).standard_normal((5, 4))
    found, wanted = ts.jit(function)(x), function(x)
    np.testing.assert_array_equal(found, wanted)
    assert np.shares_memory(found, x) == np.shares_memory(wanted, x)


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda x, y: np.sum(x, 0, None, y), "shape-mismatch"),
        (lambda x, y: np.clip(x, 0, 1, out=np.empty((3, 4))), "not-traceable"),
        (lambda x, y: np.divmod(x, 2.0, out=(y, y)), "not-traceable"),
        (lambda x, y: np.add(x, 1, dtype=np.int32), "dtype-mismatch"),
    ],
)
def test_results_that_do_not_fit_given_arrays_are_refused(call, code):
    with pytest.raises(ts.TesseraError) as error:
        ts.jit(lambda x: call(x, np.empty_like(x)))(np.ones((3, 4)))
    assert error.value.code == code


def methods(x, w):
    shapes = x.ravel(), x.flatten(), x[None].squeeze(), x.swapaxes(0, 1), x.dot(w), x.take(np.array([1, 0]), 1)
    rows = x.var(1, ddof=1), x.std(0), x.prod(1), (x > 0).any(1), (x > -9).all(), x.clip(-0.5, 0.5), +x
    return *shapes, *rows, *divmod(x, w[0]), np.outer(x, w)


def elements(x, w):
    signs = np.sign(x), np.fabs(x), np.positive(x), np.reciprocal(x), np.deg2rad(x), np.rad2deg(x)
    return *signs, np.fmax(x, w[0]), np.fmin(x, w[0]), np.logaddexp(x, w[0]), np.sign((x * 9).astype(np.int32))


def logic(x, w):
    whole = (x * 3).astype(np.int32), np.abs(w * 3).astype(np.uint8)
    pairs = (x, w), whole, (whole[0], whole[0] > 0), (whole[0], 2), (True, whole[1])
    found = [fn(*pair) for pair in pairs for fn in (np.logical_and, np.logical_or, np.logical_xor)]
    return *found, np.logical_not(x), np.logical_not(whole[0]), np.sign(whole[1])


def in_place(x, w):
    y = x
    x += w.sum()
    h = y * 2
    alias = h
    h *= x
    h -= 1
    places = (x * 50).astype(np.int32)
    places <<= 2
    places //= 3
    return alias, h, x * 3, places, places >> 1


def parts_of_arguments(x, w):
    x[:, 1] += 2.0
    x[0] *= w
    x[1:, ::2] -= 1.0
    x[0][1] = 5.0
    x.T[2][1:] = x[1:, 0]
    part = x[1:, ::-1]
    del x
    part += w
    part[0] = w
    return part * 2.0


@pytest.mark.parametrize("function", [methods, elements, logic, in_place, parts_of_arguments])
def test_methods_and_operators_are_numpys(function):
    x, w = np.linspace(-2.5, 3.1, 12).reshape(3, 4), np.array([0.5, -1.0, 2.0, 1.5])
    given = [x.copy(), x.copy()]
    traced = ts.jit(function)
    for _ in range(2):
        wanted, got = function(given[0], w), traced(given[1], w)
        for one, other in zip((*wanted, given[0]), (*got, given[1]), strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-12, atol=1e-12)


def test_numbers_that_are_none_and_infinite():
    x, y = (part.ravel() for part in np.meshgrid([np.nan, np.inf, -np.inf, -0.0, 1.5], [np.nan, np.inf, -np.inf, 2.0]))
    with np.errstate(invalid="ignore"):
        for one in (np.fmax, np.fmin, np.logaddexp):
            np.testing.assert_array_equal(ts.jit(lambda x, y, one=one: one(x, y))(x, y), one(x, y))
        np.testing.assert_array_equal(ts.jit(lambda x: np.sign(x))(x), np.sign(x))


def test_what_is_differentiated_changes_no_argument():
    def loss(x):
        x += 1.0
        h = x * x
        h += x
        return np.sum(h)

    x = np.array([1.0, 2.0])
    np.testing.assert_allclose(ts.grad(loss)(x), [5.0, 7.0])
    np.testing.assert_array_equal(x, [1.0, 2.0])


def shape_of_argument(x):
    y = x.reshape(-1)
    y += 1.0


def more_room(x):
    y = x[0] * 2.0
    y += x


def fractions(x):
    y = (x > 0).astype(np.int32)
    y += 0.5


def elements_by_mask(x):
    y = np.copy(x)
    y[x > 0] = x[0]


REFUSED = {
    shape_of_argument: "written-argument",
    more_room: "shape-mismatch",
    fractions: "dtype-mismatch",
    elements_by_mask: "value-needed",
    lambda x: x.byteswap(): "not-traceable",
    lambda x: f"{x:.2f}": "value-needed",
}


@pytest.mark.parametrize(("function", "code"), REFUSED.items())
def test_changes_that_arrays_have_no_room_for(function, code):
    with pytest.raises(ts.TesseraError) as caught:
        ts.jit(function)(np.ones((2, 3)))
    assert caught.value.code == code


def test_code_that_asks_whether_an_array_has_a_method_is_told() -> None:
    found = ts.jit(lambda x: x + 1 if not hasattr(x, "tolist") else x)(np.ones(3, np.float32))
    np.testing.assert_array_equal(found, np.full(3, 2, np.float32))


def test_arrays_of_the_program_around_are_taken_to_the_device() -> None:
    torch = pytest.importorskip("torch")
    gpu, numbers = Device("cuda", 0), np.arange(3)
    elsewhere = torch.empty(1, device="meta")
    assert beside(numbers, numbers, CPU) is numbers
    moved = beside(numbers[::-1], elsewhere, gpu)
    assert (moved.device, moved.shape, moved.dtype) == (elsewhere.device, (3,), torch.int64)
    for array, like in ((torch.zeros(3), elsewhere), (numbers, numbers)):
        with pytest.raises(ts.errors.CallError) as caught:
            beside(array, like, gpu)
        assert caught.value.code == "wrong-device"


def test_arrays_of_the_program_around_beside_tensors_are_as_they_are_at_each_call() -> None:
    torch = pytest.importorskip("torch")
    held = np.arange(5, dtype=np.float32)
    half = np.arange(5).astype(ml_dtypes.bfloat16)
    f = ts.jit(lambda x, y: (x * held)[::-1] + x[np.array([4, 3, 2, 1, 0])] * y + half)
    for _ in range(4):
        x, y = torch.randn(5), RNG.standard_normal(5).astype(np.float32)
        held += 1
        want = (x * torch.from_numpy(held)).flip(0) + x.flip(0) * torch.from_numpy(y) + torch.arange(5)
        assert torch.allclose(f(x, y), want, atol=1e-6)
    with pytest.raises(ts.errors.CallError) as caught:
        f(x, np.flip(y))
    assert caught.value.code == "mixed-libraries"
