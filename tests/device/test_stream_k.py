"""Products whose last tiles are shared out over all programs, on a real GPU: results, streams and graphs."""

from __future__ import annotations

from typing import Any

import pytest

import tessera as ts

pytestmark = pytest.mark.device


def product(rows: int, columns: int) -> Any:
    @ts.kernel.autotune(space=dict(BM=[rows], BN=[columns], BK=[64], stream_k=[1]))
    def shared(
        A: ts.Tensor["M", "K", ts.bf16], B: ts.Tensor["K", "N", ts.bf16], C: ts.Tensor["M", "N", ts.bf16]
    ) -> None:
        ctx = ts.tile.context()
        for m, n in ts.tile.grid((M, ctx.BM), (N, ctx.BN)):
            acc = ts.tile.zeros((ctx.BM, ctx.BN), ts.f32)
            for k in ts.tile.range(0, K, ctx.BK):
                acc = ts.tile.mma(A[m : m + ctx.BM, k : k + ctx.BK], B[k : k + ctx.BK, n : n + ctx.BN], acc)
            C[m : m + ctx.BM, n : n + ctx.BN] = acc

    return shared


@ts.kernel.autotune(space=dict(stream_k=[1]))
def gated(
    X: ts.Tensor["M", "K", ts.bf16],
    G: ts.Tensor["K", "N", ts.bf16],
    U: ts.Tensor["K", "N", ts.bf16],
    Y: ts.Tensor["M", "N", ts.bf16],
) -> None:
    for m, n in ts.tile.grid((M, 128), (N, 128)):
        gate = ts.tile.zeros((128, 128), ts.f32)
        up = ts.tile.zeros((128, 128), ts.f32)
        for k in ts.tile.range(0, K, 64):
            gate = ts.tile.mma(X[m : m + 128, k : k + 64], G[k : k + 64, n : n + 128], gate)
            up = ts.tile.mma(X[m : m + 128, k : k + 64], U[k : k + 64, n : n + 128], up)
        Y[m : m + 128, n : n + 128] = gate * ts.tile.sigmoid(gate) * up


@pytest.fixture
def torch() -> Any:
    found = pytest.importorskip("torch")
    found.manual_seed(0)
    return found


def operands(torch: Any, m: int, n: int, k: int) -> tuple[Any, Any, Any]:
    a, b = (torch.randn(*shape, device="cuda").bfloat16() for shape in ((m, k), (k, n)))
    return a, b, torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)


def error(got: Any, exact: Any) -> float:
    return float((got.double() - exact).abs().max() / exact.abs().max())


@pytest.mark.parametrize("tile", [(64, 64), (128, 128), (128, 256)])
@pytest.mark.parametrize(
    "shape",
    [(64, 64, 64), (1, 8, 8192), (136, 264, 4104), (1000, 776, 328), (1536, 1536, 1536), (17024, 256, 128)],
)
def test_any_number_of_tiles_and_steps(torch: Any, tile: tuple[int, int], shape: tuple[int, int, int]) -> None:
    kernel = product(*tile)
    a, b, c = operands(torch, *shape)
    kernel(a, b, c)
    assert error(c, a.double() @ b.double()) < 6e-3
    if torch.cuda.get_device_capability() == (9, 0):
        assert "stream_k" not in kernel.explain().reflection
        assert kernel.explain().schedule["stream_k"] == 1


def test_two_sums(torch: Any) -> None:
    x, g, y = operands(torch, 640, 768, 2048)
    u = torch.randn_like(g)
    gated(x, g, u, y)
    gate = x.double() @ g.double()
    assert error(y, gate * gate.sigmoid() * (x.double() @ u.double())) < 1e-2


def test_bits_are_the_same_in_every_run_beside_other_kernels(torch: Any) -> None:
    one, other = product(128, 128), product(128, 256)
    a, b, first = operands(torch, 1536, 1536, 1536)
    one(a, b, first)
    second = torch.empty_like(first)
    other(a, b, second)
    for _ in range(100):
        c, d = torch.full_like(first, float("nan")), torch.full_like(first, float("nan"))
        one(a, b, c)
        other(a, b, d)
        assert torch.equal(c, first)
        assert torch.equal(d, second)


def test_streams_do_not_share_what_programs_leave(torch: Any) -> None:
    kernel, outs = product(128, 128), list[Any]()
    a, b, first = operands(torch, 1536, 1536, 1536)
    kernel(a, b, first)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(2)]
    for _ in range(40):
        for stream in streams:
            with torch.cuda.stream(stream):
                c = torch.full_like(first, float("nan"))
                kernel(a, b, c)
                outs.append(c)
    torch.cuda.synchronize()
    assert all(torch.equal(c, first) for c in outs)


def test_graphs_are_replayed_beside_launches(torch: Any) -> None:
    kernel = product(128, 128)
    a, b, first = operands(torch, 1536, 1536, 1536)
    kernel(a, b, first)
    held = torch.empty_like(first)
    streams = [torch.cuda.Stream() for _ in range(2)]
    for _ in range(5):  # what a graph had is used again once it is gone
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=streams[0]):
            kernel(a, b, held)
        for _ in range(20):
            held.fill_(float("nan"))
            torch.cuda.synchronize()
            with torch.cuda.stream(streams[1]):
                graph.replay()
            with torch.cuda.stream(streams[0]):
                c = torch.full_like(first, float("nan"))
                kernel(a, b, c)
            torch.cuda.synchronize()
            assert torch.equal(held, first)
            assert torch.equal(c, first)
        graph.reset()


def test_all_streams_of_a_capture_have_workspaces_of_their_own(torch: Any) -> None:
    """Beside it, a stream that takes no part launches as ever."""
    kernel = product(128, 128)
    a, b, first = operands(torch, 1536, 1536, 1536)
    kernel(a, b, first)
    outs = [torch.empty_like(first) for _ in range(5)]
    main, side, apart = (torch.cuda.Stream() for _ in range(3))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=main):
        side.wait_stream(main)
        for place, stream in enumerate((main, side, main, side, apart)):
            with torch.cuda.stream(stream):
                kernel(a, b, outs[place])
        main.wait_stream(side)
    torch.cuda.synchronize()
    assert torch.equal(outs[4], first)
    for _ in range(20):
        for out in outs[:4]:
            out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(out, first) for out in outs)
