"""Ops of the library in traced functions: as outside, for any size, with gradients that are finite differences."""

import ml_dtypes
import numpy as np
import pytest
import torch

import tessera as ts
from tessera import ops
from tessera.ir.text import parse_module, text_of
from tests.unit.graph.differences import assert_gradients

RNG = np.random.default_rng(8)


def normal(*shape):
    return RNG.standard_normal(shape)


def positive(*shape):
    return np.abs(normal(*shape)) + 0.3


def places(below, *shape):
    return RNG.integers(0, below, shape)


MASK = np.arange(35).reshape(5, 7) % 3 > 0
SMOOTH = {
    "softmax": (lambda x: ops.softmax(x, causal=True, scale=0.5), [normal(2, 5, 7)]),
    "softmax, middle": (lambda x: ops.softmax(x, 1), [normal(2, 5, 3)]),
    "softmax, mask": (lambda x: ops.softmax(x, mask=MASK), [normal(5, 7)]),
    "log_softmax": (lambda x: ops.log_softmax(x), [normal(5, 7)]),
    "logsumexp": (lambda x: ops.logsumexp(x, 0), [normal(5, 7)]),
    "rms": (lambda x, w: ops.norm.rms(x, x.shape[-1:], w), [normal(5, 7), normal(7)]),
    "ln": (
        lambda x, w, b, h: ops.norm.ln(x, x.shape[-1], w, b, residual=h),
        [normal(3, 5, 7), normal(7), normal(7), normal(3, 5, 7)],
    ),
    "group": (lambda x, w, b: ops.norm.group(x, 2, w, b), [normal(3, 4, 5), normal(4), normal(4)]),
    "l2": (lambda x: ops.norm.l2(x), [normal(5, 7)]),
    "sum": (lambda x: ops.reduce.sum(x, (0, 2)), [normal(5, 7, 3)]),
    "var": (lambda x: ops.reduce.var(x, 0, keepdim=True), [normal(5, 7)]),
    "norm": (lambda x: ops.reduce.norm(x, dim=1), [normal(5, 7)]),
    "max": (lambda x: ops.reduce.max(x, 1), [normal(5, 7)]),
    "cumsum": (lambda x: ops.cumsum(x, 1), [normal(5, 7)]),
    "cumprod": (lambda x: ops.cumprod(x, 0), [normal(5, 7)]),
    "cummax": (lambda x: ops.cummax(x, 1), [normal(5, 7)]),
    "sort": (lambda x: ops.sort(x, 0, descending=True), [normal(5, 7)]),
    "topk": (lambda x: ops.topk(x, 3), [normal(5, 7)]),
    "mse": (lambda x, y: ops.mse(x, y), [normal(5, 7), normal(5, 7)]),
    "huber": (lambda x, y: ops.loss.huber(x, y, reduction="none"), [normal(5, 7), normal(5, 7)]),
    "cross_entropy": (
        lambda x, t: ops.loss.cross_entropy(x, t, label_smoothing=0.1, z_loss=0.1),
        [normal(5, 7, 3), places(7, 5, 3)],
    ),
    "linear_cross_entropy": (
        lambda x, w, t: ops.loss.linear_cross_entropy(x, w, t),
        [normal(5, 7), normal(9, 7), places(9, 5)],
    ),
    "bce_with_logits": (lambda x: ops.loss.bce_with_logits(x, MASK.astype(float), np.arange(1.0, 8.0)), [normal(5, 7)]),
    "triplet_margin": (lambda *xs: ops.loss.triplet_margin(*xs), [normal(5, 7), normal(5, 7), normal(5, 7)]),
    "swiglu": (lambda x: ops.activation.swiglu(x), [normal(5, 8)]),
    "geglu": (lambda x, y: ops.activation.geglu(x, y), [normal(5, 7), normal(5, 7)]),
    "rope": (lambda x, c, s: ops.attn.rope(x, cos=c, sin=s)[..., ::2], [normal(2, 3, 5, 8)]),
    "flash_attention": (
        lambda q, k, v: ops.flash_attention(q, k, v.transpose(0, 2, 1, 3), causal=True),
        [normal(1, 2, 5, 16), normal(1, 2, 5, 16), normal(1, 5, 2, 16)],
    ),
    "hadamard": (lambda x: ops.hadamard(x), [normal(5, 8)]),
    "embedding": (lambda w, i: ops.embedding(i, w), [normal(9, 4), places(9, 3, 5)]),
    "dropout": (lambda x: ops.dropout(x, 0.3, seed=3), [normal(5, 8)]),
    "conv1d": (lambda x, w, b: ops.conv1d(x, w, b), [normal(2, 4, 9), normal(4, 3), normal(4)]),
    "scan": (lambda g, x: ops.scan(g, x), [positive(2, 5, 3) / 3, normal(2, 5, 3)]),
    "matmul": (lambda a, b: ops.matmul(a, b), [normal(2, 5, 7), normal(7)]),
    "gemm": (
        lambda a, b, c: ops.linalg.gemm(a, b, c, alpha=2.0, beta=0.5, trans_a=True),
        [normal(7, 5), normal(7, 3), normal(5, 3)],
    ),
    "linear": (lambda x, w, b: ops.linalg.linear(x, w, b), [normal(2, 5, 7), normal(3, 7), normal(3)]),
}
SMOOTH["rope"][1].extend([normal(5, 4), normal(5, 4)])


def first(found):
    return found[0] if isinstance(found, tuple) else found


@pytest.mark.parametrize("name", SMOOTH)
def test_values_and_gradients(name):
    function, given = SMOOTH[name]
    smooth = [number for number, one in enumerate(given) if one.dtype == np.float64 and name != "rope"] or [0]
    wanted = first(function(*given))
    weight = normal(*np.shape(wanted))

    def weighted(*args):
        return np.sum(np.asarray(first(function(*args))) * weight)

    def traced(*args):
        found = first(function(*args))
        return np.sum(found * weight), found

    ((_, found), gradient) = ts.value_and_grad(traced, argnums=tuple(smooth), has_aux=True)(*given)
    assert np.abs(found - wanted).max() < 1e-13 * (1 + np.abs(wanted).max())
    assert_gradients(gradient, weighted, given, smooth)


OTHERS = {
    "argmax": (lambda x: ops.reduce.argmax(x, 1), [normal(5, 7)]),
    "histogram": (lambda x: ops.histogram(x, 6, -1.0, 1.0), [normal(20)]),
    "quantised": (lambda x: ops.norm.rms(x, 8, quantize=ts.fp8_e4m3), [normal(5, 8).astype(np.float32)]),
    "ssd": (
        lambda x, dt, a, b, c: ops.ssd(x, dt, a, b, c),
        [
            *(normal(1, 6, 2, 4), positive(1, 6, 2), -positive(2)),
            *(normal(1, 6, 1, 4), normal(1, 6, 1, 4)),
        ],
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_all_results_are_those_of_the_op(name):
    function, given = OTHERS[name]
    given = [one.astype(np.float32) if name == "ssd" else one for one in given]
    found, wanted = (x if isinstance(x, tuple) else (x,) for x in (ts.jit(function)(*given), function(*given)))
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)


def test_sizes_are_symbols():
    calls = []

    @ts.jit
    def layer(x, w):
        calls.append(x.shape)
        return ops.norm.rms(x * 2.0, x.shape[-1], w) + 1.0

    for rows, width in ((5, 7), (6, 9), (33, 4)):
        x, w = normal(rows, width), normal(width)
        assert np.abs(layer(x, w) - ops.norm.rms.reference(x * 2, width, w) - 1).max() < 1e-12
    assert len(calls) == 1
    assert layer(normal(0, 7), normal(7)).shape == (0, 7)
    assert layer(normal(1, 1), normal(1)).shape == (1, 1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tensors_of_pytorch(dtype):
    q, k, v = torch.randn(3, 2, 5, 2, 16, generator=torch.Generator().manual_seed(1)).to(getattr(torch, dtype))

    def attend(q, k, v):
        return ops.flash_attention(*(one.transpose(0, 2, 1, 3) for one in (q, k, v)))

    found = ts.jit(attend)(q, k, v)
    wanted = ops.flash_attention(*(one.transpose(1, 2) for one in (q, k, v)))
    assert found.dtype == q.dtype
    assert torch.equal(found, wanted)


def test_products_keep_dtypes():
    a, b = (normal(5, 7).astype(ml_dtypes.bfloat16), normal(7, 3).astype(ml_dtypes.bfloat16))
    assert ts.jit(lambda a, b: ops.matmul(a, b))(a, b).dtype == ml_dtypes.bfloat16
    wide = ts.jit(lambda a, b: ops.matmul(a, b, out_dtype=ts.f32))(a, b)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert wide.dtype == np.float32
    assert np.abs(wide - exact).max() < 1e-5
    whole = ts.jit(lambda a, b: ops.matmul(a, b))(places(9, 5, 7).astype(np.int8), places(9, 7, 3).astype(np.int8))
    assert whole.dtype == np.int32


def test_equal_calls_run_once():
    f = ts.jit(lambda x: ops.cumsum(x, 1) + ops.cumsum(x, 1) * 2.0)
    x = normal(5, 7)
    assert np.abs(f(x) - 3 * np.cumsum(x, 1)).max() < 1e-12
    assert f.graph().count("tessera_graph.call") == 1
    assert text_of(parse_module(f.graph())) == f.graph()


def test_unused_calls_do_not_run():
    f = ts.jit(lambda x: (ops.cumsum(x, 1), x + 1.0)[1])
    f(normal(5, 7))
    assert "tessera_graph.call" not in f.graph()


def test_arrays_around_are_read_at_each_call():
    mask = np.zeros((5, 7))
    f = ts.jit(lambda x: ops.softmax(x, mask=mask))
    f(normal(5, 7))
    mask[:, 0] = -np.inf
    assert np.all(f(normal(5, 7))[:, 0] == 0)


X = normal(5, 7)
WRONG = {
    "bad-axis": lambda x: ops.softmax(x, 3),
    "wrong-shape": lambda x: ops.norm.ln(x, 9),
    "wrong-dtype": lambda x: ops.embedding(x[0], x),
    "not-in-graphs": lambda x: ops.softmax(x, out=np.zeros((5, 7))),
    "value-needed": lambda x: ops.softmax(x, scale=x[0, 0]),
    "not-traceable": lambda x: ops.linalg.gemm(x, x.T, block=(64, 64, 64)),
    "not-in-graphs, step": lambda x: ops.optim.sgd_([x], [x], stochastic_rounding=True),
    "written-argument": lambda x: ops.optim.sgd_([x[1:]], [x[1:]]),
    "not-an-array": lambda x: ops.softmax("x", mask=x),
    "wrong-shape, product": lambda x: ops.matmul(x, x),
    "value-needed, runs": lambda x: ops.unique_consecutive(x),
    "no-adjoint": lambda x: ts.grad(lambda x: np.sum(ops.histogram(x, 5, 0.0, 1.0)))(x),
    "no-adjoint, mask": lambda x: ts.grad(lambda x: np.sum(ops.softmax(X, mask=x)))(x),
    "no-adjoint, forwards": lambda x: ts.jvp(lambda x: ops.cumprod(x, 1), (x,), (x,))[1],
    "no-adjoint, twice": lambda x: ts.grad(
        lambda x: np.sum(ts.grad(lambda x: np.sum(ops.cumprod(x, 1)))(x)),
    )(x),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_name_the_line(name):
    with pytest.raises(ts.TesseraError) as caught:
        ts.jit(WRONG[name])(X)
    assert caught.value.code == name.partition(",")[0]
    assert caught.value.location.frame.file == __file__
