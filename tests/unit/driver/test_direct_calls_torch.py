"""The compiled entry with PyTorch's tensors on the CPU."""

import gc
import sys

import numpy as np
import pytest

import tessera as ts
from tessera.driver.kernel import Kernel
from tessera.entry import exchange, host
from tessera.errors import CallError

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.skipif(bool(host.why_not()), reason=host.why_not()),
    pytest.mark.skipif(
        not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"),
        reason=f"PyTorch {torch.__version__} has no DLPack exchange functions",
    ),
]


@ts.kernel
def saxpy(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], alpha: ts.f32 = 2.0):
    """Compute y = alpha * x + y."""
    i = ts.tile.linear_id()
    if i < n:
        y[i] = alpha * x[i] + y[i]
    return y


@ts.kernel
def copy_rows(x: ts.Tensor["M", "N", ts.f32], out: ts.Tensor["M", "N", ts.f32]):
    """Copy a matrix."""
    for m, k in ts.tile.grid((M, 8), (N, 16)):
        out[m : m + 8, k : k + 16] = x[m : m + 8, k : k + 16]
    return out


def served(kernel: Kernel) -> bool:
    """Return whether the entry served the last call."""
    return kernel._direct.last() is not None


def warm(kernel: Kernel, *args) -> None:
    """Call until the entry serves such calls."""
    for _ in range(4):
        kernel(*args)
    assert served(kernel)


def test_this_pytorch_is_known():
    assert exchange.torch_exchange() is not None


@pytest.mark.parametrize("count", [0, 1, 16, 1000, 4097])
def test_tensors_of_any_size(count):
    warm(saxpy, torch.zeros(33), torch.zeros(33))
    for _ in range(4):
        x, y = torch.randn(count), torch.randn(count)
        wanted = x.double() * 2 + y.double()
        assert saxpy(x, y) is y
        torch.testing.assert_close(y.double(), wanted, rtol=1e-6, atol=1e-6)
    assert served(saxpy)


class Wrapper(torch.Tensor):
    """A tensor whose elements another one holds."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_tensors_without_memory_are_refused():
    from torch._subclasses.fake_tensor import FakeTensorMode

    warm(saxpy, torch.zeros(33), torch.zeros(33))
    freed = torch.zeros(99)
    first, rest = freed[:33], freed[16:49]
    freed.untyped_storage().resize_(0)
    with FakeTensorMode():
        traced = torch.zeros(99)
    wrapped = torch.Tensor._make_wrapper_subclass(Wrapper, (33,))
    others = [torch._efficientzerotensor(33), torch._to_functional_tensor(torch.zeros(33))]
    for tensor in (first, rest, traced[:33], traced[16:49], wrapped, *others):
        with pytest.raises(CallError, match=r"'x': an array of shape \(33,\) has no memory") as caught:
            saxpy(tensor, torch.zeros(33))
        assert caught.value.code == "not-an-array"
        for read in (ts.asarray, ts.from_dlpack, ts.to_numpy):
            with pytest.raises(CallError, match=r"an array of shape \(33,\) has no memory") as caught:
                read(tensor)
            assert caught.value.code == "not-an-array"


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "float16", "bfloat16", "bool", "int8", "int64", "uint8", "float8_e4m3fn"]
)
def test_every_dtype(dtype):
    names = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "bool": "bool_"}
    names |= {"int8": "i8", "int64": "i64", "uint8": "u8", "float8_e4m3fn": "fp8_e4m3"}
    element = getattr(ts, names[dtype])

    @ts.kernel
    def move(x: ts.Tensor["n", element], out: ts.Tensor["n", element]):
        i = ts.tile.linear_id()
        if i < n:
            out[i] = x[i]

    x = torch.randint(0, 2 if dtype == "bool" else 100, (77,)).to(getattr(torch, dtype))
    for _ in range(5):
        out = torch.zeros_like(x)
        move(x, out)
        assert torch.equal(out.view(torch.uint8), x.view(torch.uint8))
    assert served(move)


def test_strides_are_guarded_and_used():
    whole = torch.randn(24, 70)
    for x in (whole[:, :64], whole[3:20:2, 1:66], whole.T, whole.T[::3], whole[:1], whole[:, :1]):
        for _ in range(5):
            out = torch.zeros(x.shape)
            copy_rows(x, out)
            assert torch.equal(out, x)
        assert served(copy_rows)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i32", "bool_"])
def test_a_tensor_that_is_no_number(dtype):
    @ts.kernel
    def put(out: ts.Tensor["n", getattr(ts, dtype)], value: getattr(ts, dtype)):
        i = ts.tile.linear_id()
        if i < n:
            out[i] = value

    out = ts.empty((3,), getattr(ts, dtype))
    for _ in range(4):
        put(out, 1)
    for value in (torch.ones((), device="meta"), torch.ones(2)):
        with pytest.raises(CallError) as caught:
            put(out, value)
        assert caught.value.code == "wrong-scalar"


class Tagged(torch.Tensor):
    """A tensor of another type."""


def test_what_is_no_plain_tensor_goes_through_python():
    x, y = torch.randn(32), torch.randn(32)
    warm(saxpy, x, y.clone())
    saxpy(x, torch.nn.Parameter(y.clone()))
    assert served(saxpy)  # a parameter is a plain tensor
    for other in (x.clone().as_subclass(Tagged), x.numpy(), x.numpy().astype(np.float32)):
        again = y.clone()
        for _ in range(2):
            saxpy(other, again)
        wanted = 4 * x.double() + y.double()
        torch.testing.assert_close(again.double(), wanted, rtol=1e-5, atol=1e-5)
    wrong = {
        "not-an-array": [torch._neg_view(x), x.to_sparse()],
        "wrong-dtype": [x.double(), x.half(), x.int(), x.to(torch.complex64)],
        "wrong-rank": [x[None]],
        "wrong-shape": [x[:16]],
        "wrong-device": [x.to("meta")],
    }
    for code, tensors in wrong.items():
        for tensor in tensors:
            for _ in range(3):
                with pytest.raises(CallError) as caught:
                    saxpy(tensor, y.clone())
                assert caught.value.code == code
                assert "test_direct_calls_torch.py" in str(caught.value.location)
    saxpy(x, y)
    assert served(saxpy)
    with pytest.raises(CallError) as caught:
        saxpy(x, y[:1].expand(32))
    assert caught.value.code == "overlapping"


def test_tensors_that_need_gradients_and_views_of_storage():
    x = torch.randn(40, requires_grad=True)
    y = torch.randn(48)
    wanted = 2 * x.detach().double() + y[8:].double()
    warm(saxpy, x, torch.zeros(40))
    saxpy(x, y[8:])
    assert served(saxpy)
    torch.testing.assert_close(y[8:].double(), wanted, rtol=1e-6, atol=1e-6)


def test_reference_counts_stay():
    x, y = torch.randn(16), torch.randn(16)
    warm(saxpy, x, y, 0.0)
    alpha = 0.0
    gc.collect()
    before = sys.getrefcount(x), sys.getrefcount(y), sys.getallocatedblocks()
    for _ in range(100_000):
        saxpy(x, y, alpha)
    gc.collect()
    after = sys.getrefcount(x), sys.getrefcount(y), sys.getallocatedblocks()
    assert after[:2] == before[:2]
    assert abs(after[2] - before[2]) < 300


def test_an_unknown_pytorch_is_read_in_python(monkeypatch):
    monkeypatch.setattr(exchange, "torch_exchange", lambda: None)

    @ts.kernel
    def fresh(x: ts.Tensor["n", ts.f32]):
        i = ts.tile.linear_id()
        if i < n:
            x[i] = x[i] + 1.0

    x = torch.zeros(5)
    for _ in range(5):
        fresh(x)
    assert not served(fresh)
    assert x.tolist() == [5.0] * 5


def test_a_tensor_without_the_bit_of_negated_views_is_not_read_directly(monkeypatch):
    monkeypatch.setattr(exchange, "_bits", lambda *_: 0)
    assert exchange._negation(torch) is None
