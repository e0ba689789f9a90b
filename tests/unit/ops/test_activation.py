"""Gated activations against NumPy in float64, finite differences and PyTorch."""

from __future__ import annotations

from math import erf, pi

import numpy as np
import pytest

import tessera as ts
from tessera import ops as op
from tests.unit.ops import library as lib

A = op.activation
NAMES = {"swiglu": (A.swiglu, ()), "geglu": (A.geglu, ()), "geglu tanh": (A.geglu, ("tanh",)), "reglu": (A.reglu, ())}
each_op = pytest.mark.parametrize("name", NAMES)


def exact(name, gate, up):
    """The activations as their papers write them."""
    g, u = gate.astype(np.float64), up.astype(np.float64)
    if name == "swiglu":
        return g / (1 + np.exp(-g)) * u
    if name == "reglu":
        return np.maximum(g, 0) * u
    if name == "geglu":
        return g * 0.5 * (1 + np.vectorize(erf, otypes=[float])(g / np.sqrt(2))) * u
    return 0.5 * g * (1 + np.tanh(np.sqrt(2 / pi) * (g + 0.044715 * g**3))) * u


SHAPES = [(5, 33), (2, 3, 70), (7,), (0, 9), (2, 0)]


@pytest.mark.parametrize("library", lib.LIBRARIES)
@pytest.mark.parametrize(
    ("name", "shape"), [*(("swiglu", one) for one in SHAPES), *((one, SHAPES[0]) for one in NAMES if one != "swiglu")]
)
def test_shapes_apart_and_packed(name, library, shape):
    rng = np.random.default_rng(1)
    g, u = lib.normal(rng, *shape), lib.normal(rng, *shape)
    function, how = NAMES[name]
    g2, u2 = (lib.of_library(library, one) for one in (g, u))
    lib.close(function(g2, u2, *how), exact(name, g, u), ts.f32, 4)
    packed = lib.of_library(library, np.concatenate([g, u], -1))
    lib.close(function(packed, None, *how), exact(name, g, u), ts.f32, 4)
    assert np.allclose(function.reference(packed, None, *how), exact(name, g, u), atol=1e-12)
    apart = function.backward(g2, g2, u2, *how)
    halves = function.backward(g2, packed, None, *how)["gate"]
    assert np.array_equal(halves, np.concatenate([apart["gate"], apart["up"]], -1))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*(("swiglu", one) for one in lib.FLOATS), ("geglu", ts.bf16), ("geglu tanh", ts.f16), ("reglu", ts.f32)],
    ids=str,
)
def test_dtypes_results_and_gradients(name, dtype):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(2)
    g, u, grad = (lib.normal(rng, 19, 130, dtype=dtype, scale=2) for _ in range(3))
    function, how = NAMES[name]
    lib.close(function(g, u, *how), exact(name, g, u), dtype)
    found = function.backward(grad, g, u, *how)
    g2, u2 = (torch.from_numpy(one.astype(np.float64)).requires_grad_() for one in (g, u))
    f = torch.nn.functional
    acts = {"swiglu": f.silu, "geglu": f.gelu, "reglu": f.relu}
    act = acts.get(name, lambda x: f.gelu(x, approximate="tanh"))
    (act(g2) * u2 * torch.from_numpy(grad.astype(np.float64))).sum().backward()
    lib.close(found["gate"], g2.grad.numpy(), dtype)
    lib.close(found["up"], u2.grad.numpy(), dtype)


@each_op
def test_gradients_are_finite_differences(name):
    rng = np.random.default_rng(3)
    at = {"gate": rng.standard_normal((3, 5)), "up": rng.standard_normal((3, 5))}
    grad = rng.standard_normal((3, 5))
    function, how = NAMES[name]
    found = function.backward(grad, at["gate"], at["up"], *how)
    slopes = lib.differences(lambda given: float((function(given["gate"], given["up"], *how) * grad).sum()), at)
    for one, slope in slopes.items():
        assert np.allclose(found[one], slope, atol=1e-8), one


@each_op
def test_extreme_values(name):
    torch = pytest.importorskip("torch")
    f = torch.nn.functional
    acts = {"swiglu": f.silu, "geglu": f.gelu, "reglu": f.relu}
    x = torch.tensor([[np.nan, np.inf, 0.0, -0.0, -80.0, 80.0, 1e-40, -1e-40, 3e38]], requires_grad=True)
    one = torch.ones_like(x)
    function, how = NAMES[name]
    # In float64: PyTorch's f32 on some CPUs makes NaN of infinity.
    want = acts.get(name, lambda x: f.gelu(x, approximate="tanh"))(x.double()).float()
    assert torch.allclose(function(x.detach(), one, *how), want, atol=1e-6, rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", ["swiglu", "geglu tanh"])
def test_any_strides_and_results_in_given_arrays(name):
    base = np.random.default_rng(7).standard_normal((6, 8, 10)).astype(np.float32)
    function, how = NAMES[name]
    for x in (base.T, base[::2, 1:, ::3], base[:, ::-1], np.broadcast_to(base[0], (4, 8, 10))):
        lib.close(function(x, -x, *how), exact(name, x, -x), ts.f32, 4)
    big, x = np.zeros((12, 16, 20), np.float32), base
    for out in (big[:6, :8, :10], big[::2, ::2, ::2], big.reshape(-1)[:480].reshape(6, 8, 10)):
        assert function(x, x, *how, out=out) is out
        lib.close(out, exact(name, x, x), ts.f32, 4)


@pytest.mark.parametrize("name", ["swiglu", "geglu tanh"])
def test_training_with_pytorch(name):
    torch = pytest.importorskip("torch")
    function, how = NAMES[name]
    f = torch.nn.functional
    acts = {"swiglu": f.silu, "geglu": f.gelu, "reglu": f.relu}
    act = acts.get(name, lambda x: f.gelu(x, approximate="tanh"))
    x = torch.randn(3, 4, 10, requires_grad=True)
    for given in ((x, None), (x[..., :5], x[..., 5:])):
        function(*given, *how).square().sum().backward()
        found, x.grad = x.grad, None
        (act(x[..., :5]) * x[..., 5:]).square().sum().backward()
        assert torch.allclose(found, x.grad, atol=1e-5)
        x.grad = None
    with pytest.raises(ts.errors.CallError, match="out-needs-no-gradient"):
        function(x, None, *how, out=torch.empty(3, 4, 5))


def test_operators_of_pytorch_are_sound():
    torch = pytest.importorskip("torch")
    import tessera.torch  # noqa: F401

    g, u = torch.randn(6, 34, requires_grad=True), torch.randn(6, 34, requires_grad=True)
    torch.library.opcheck(torch.ops.tessera.glu.default, (g, u, "silu"))
    torch.library.opcheck(
        torch.ops.tessera.glu.default, (g, None, "gelu"), test_utils=("test_schema", "test_faketensor")
    )


@pytest.mark.slow
def test_torch_compile_takes_them_whole():
    torch = pytest.importorskip("torch")
    import tessera.torch  # noqa: F401

    @torch.compile(backend="aot_eager", fullgraph=True)
    def loss(x):
        return (A.swiglu(x) * A.geglu(x, approximate="tanh")).sum()

    x = torch.randn(4, 10, requires_grad=True)
    loss(x).backward()
    found, x.grad = x.grad, None
    f, (g, u) = torch.nn.functional, x.chunk(2, -1)
    (f.silu(g) * u * f.gelu(g, approximate="tanh") * u).sum().backward()
    assert torch.allclose(found, x.grad, atol=1e-5)


X = np.zeros((3, 10), np.float32)
WRONG = {
    "not-an-array": lambda f: f(3, 9),
    "wrong-shape": lambda f: f(X, X[:2]),
    "wrong-shape of halves": lambda f: f(X[:, :9]),
    "wrong-shape of a number": lambda f: f(np.zeros((), np.float32)),
    "wrong-shape of out": lambda f: f(X, X, out=X[:2]),
    "wrong-dtype": lambda f: f(X.astype(np.int32)),
    "wrong-dtype of up": lambda f: f(X, X.astype(np.float64)),
    "wrong-dtype of out": lambda f: f(X, X, out=X.astype(np.float64)),
    "wrong-shape of a gradient": lambda f: f.backward(X, X),
    "wrong-dtype of a gradient": lambda f: f.backward(X.astype(np.float64), X, X),
}


@pytest.mark.parametrize("name", ["swiglu", "geglu", "reglu"])
@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes(name, mistake):
    with pytest.raises(ts.errors.CallError) as caught:
        WRONG[mistake](getattr(A, name))
    assert caught.value.code == mistake.split(" ")[0]
    assert "test_activation.py" in str(caught.value)


def test_an_unknown_form_of_gelu_is_a_mistake():
    with pytest.raises(ts.errors.CallError, match="bad-argument"):
        A.geglu(X, X, "quick")


@each_op
@pytest.mark.parametrize(("gradient", "target"), [(False, "sm_90a"), (True, "sm_80")])
def test_kernels_compile_without_a_device(name, target, gradient):
    function, how = NAMES[name]
    given = {"approximate": how[0]} if how else {}
    made = function.compile(11008, ts.bf16, gradient=gradient, target=target, **given)
    assert made.reflection["target"].startswith(target)
    assert lib.spills(made) == 0


def test_costs():
    assert A.swiglu.bytes((4, 8), ts.bf16) == 4 * 8 * 2 * 3
    assert A.swiglu.bytes((4, 8), ts.bf16, gradient=True) == 4 * 8 * 2 * 5
    assert A.reglu.flops((4, 8)) == 64
