"""The compiled entry on a real GPU: results, streams, graphs, and errors of the driver's."""

import pytest

import tessera as ts
from tessera.driver.kernel import Kernel
from tessera.entry import host
from tessera.errors import CallError

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(bool(host.why_not()), reason=host.why_not()),
]


@ts.kernel
def add(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], scale: ts.f32 = 1.0):
    """Compute y += scale * x."""
    i = ts.tile.linear_id()
    if i < n:
        y[i] = scale * x[i] + y[i]
    return y


def product(a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["M", "N", ts.bf16]):
    """Multiply by tiles that go through tensor maps on Hopper."""
    for m, n in ts.tile.grid((M, 128), (N, 256)):
        acc = ts.tile.zeros((128, 256), ts.f32)
        for k in ts.tile.range(0, K, 64):
            acc = ts.tile.mma(a[m : m + 128, k : k + 64], b[k : k + 64, n : n + 256], acc)
        c[m : m + 128, n : n + 256] = acc
    return c


gemm = ts.kernel.autotune({"stream_k": [0]})(product)
shared = ts.kernel(product)
"""Its launches may share steps, and need memory of their own in each capture, where the Python path starts them."""


def served(kernel: Kernel) -> bool:
    """Return whether the entry served the last call."""
    return kernel._direct.last() is not None


def warm(kernel: Kernel, *args) -> None:
    """Call until the entry serves such calls."""
    for _ in range(4):
        kernel(*args)
    assert served(kernel)


def test_device_arrays_are_served():
    x, y = ts.ones(1000, device="cuda"), ts.zeros(1000, device="cuda")
    warm(add, x, y)
    assert add(x, y, 2.0) is y
    add(x, y, 2.0)
    assert y.numpy().tolist() == [8.0] * 1000
    with pytest.raises(CallError) as caught:
        add(ts.ones(999, device="cuda"), y)
    assert caught.value.code == "wrong-shape"


def test_tensors_of_many_sizes():
    torch = pytest.importorskip("torch")
    warm(add, torch.zeros(32, device="cuda"), torch.zeros(32, device="cuda"))
    for count in (0, 1, 16, 1000, 4096, 100_003):
        x, y = (torch.randn(count, device="cuda") for _ in range(2))
        wanted = x.double() + y.double()
        assert add(x, y) is y
        torch.testing.assert_close(y.double(), wanted, rtol=1e-6, atol=1e-6)


def test_products_through_tensor_maps_at_ever_new_addresses():
    torch = pytest.importorskip("torch")
    warm(gemm, *(torch.zeros(256, 256, device="cuda", dtype=torch.bfloat16) for _ in range(3)))
    kept = []
    for m, n, k in [(256, 512, 128), (512, 256, 320), (1024, 1024, 1024)] * 5:
        a = torch.randn(m, k, device="cuda").bfloat16()
        b = torch.randn(k, n, device="cuda").bfloat16()
        c = gemm(a, b, torch.empty(m, n, device="cuda", dtype=torch.bfloat16))
        wanted = a.double() @ b.double()
        assert (c.double() - wanted).abs().max() <= 0.01 * wanted.abs().max()
        kept += a, b, c


def test_launches_follow_the_current_stream():
    torch = pytest.importorskip("torch")
    x, y = torch.ones(1 << 20, device="cuda"), torch.zeros(1 << 20, device="cuda")
    warm(add, x, y)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(10_000_000)
        y.zero_()
        for _ in range(5):
            add(x, y)
        y.mul_(2)
        add(x, y)
        assert served(add)
    side.synchronize()
    assert bool((y == 11).all())


def test_a_graph_captures_and_replays():
    torch = pytest.importorskip("torch")
    x, y = torch.randn(4096, device="cuda"), torch.randn(4096, device="cuda")
    a, b = (torch.randn(512, 512, device="cuda").bfloat16() for _ in range(2))
    c, d = torch.empty_like(a), torch.empty_like(a)
    warm(add, x, y)
    warm(gemm, a, b, c)
    warm(shared, a, b, d)
    torch.cuda.synchronize()
    kept = y.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        add(x, y)
        gemm(a, b, c)
        add(x, y)
        assert served(add)
        assert served(gemm)
        shared(a, b, d)
    torch.cuda.synchronize()
    assert torch.equal(y, kept)
    for count in range(1, 4):
        a.copy_(torch.randn(512, 512, device="cuda").bfloat16())
        graph.replay()
        torch.cuda.synchronize()
        torch.testing.assert_close(y.double(), kept.double() + 2 * count * x.double(), rtol=1e-5, atol=1e-5)
        wanted = a.double() @ b.double()
        assert all((one.double() - wanted).abs().max() <= 0.01 * wanted.abs().max() for one in (c, d))


def test_several_gpus_have_their_own_records():
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    for device in ("cuda:0", "cuda:1", "cuda:0"):
        x, y = torch.ones(64, device=device), torch.zeros(64, device=device)
        for _ in range(5):
            add(x, y)
        assert y.tolist() == [5.0] * 64
