"""Sums along columns that several programs share, on a real GPU: results, bits from run to run, streams and graphs."""

from __future__ import annotations

from typing import Any

import pytest

import tessera as ts
from tessera.target.artifact import MOST_PARTS
from tessera.target.gpu_rates import LEFT_BYTES

pytestmark = pytest.mark.device


LEFT = 2 * 64 * 4
"""Bytes that a program leaves for the last one of its tile: two sums of 64 columns."""


@ts.kernel
def columns(x: ts.Tensor["M", "N", ts.f32], total: ts.Tensor["N", ts.f32], most: ts.Tensor["N", ts.f32]) -> None:
    for n in ts.tile.grid((N, 64)):
        added, high = ts.tile.zeros((64,), ts.f32), ts.tile.full((64,), -1e30, ts.f32)
        for m in ts.tile.range(0, M, 16):
            block = ts.tile.load(x[m : m + 16, n : n + 64], fill=-1e30)
            high = ts.tile.maximum(high, ts.tile.max(block, 0))
            added = added + ts.tile.sum(ts.tile.where(block > -1e30, block, 0.0), 0)
        total[n : n + 64] = added
        most[n : n + 64] = high


@pytest.fixture
def torch() -> Any:
    found = pytest.importorskip("torch")
    found.manual_seed(0)
    return found


def arrays(torch: Any, rows: int, width: int) -> tuple[Any, Any, Any]:
    x = torch.randn(rows, width, device="cuda")
    return x, *(torch.full((width,), float("nan"), device="cuda") for _ in range(2))


@pytest.mark.parametrize("width", [1, 64, 700, 5000, 200_000])
@pytest.mark.parametrize("rows", [1, 15, 17, 1000, 4097])
def test_any_number_of_tiles_and_steps(torch: Any, rows: int, width: int) -> None:
    x, total, most = arrays(torch, rows, width)
    for _ in range(2):  # by Python, then by the compiled entry
        total.fill_(float("nan"))
        columns(x, total, most)
        exact, scale = x.double().sum(0), x.double().abs().sum(0)
        assert float(((total.double() - exact).abs() / (scale + 1)).max()) < 1e-5
        assert torch.equal(most, x.amax(0))
    shared = columns.explain().schedule["split_sums"]
    assert shared == min(LEFT_BYTES // LEFT, MOST_PARTS)
    assert shared >= torch.cuda.get_device_properties(0).multi_processor_count  # one tile alone is work for all


def test_bits_are_the_same_in_every_run_and_stream(torch: Any) -> None:
    x, first, most = arrays(torch, 8192, 700)
    columns(x, first, most)
    torch.cuda.synchronize()
    streams, found = [torch.cuda.Stream() for _ in range(3)], list[Any]()
    for _ in range(60):
        for stream in streams:
            with torch.cuda.stream(stream):
                total, high = torch.full_like(first, float("nan")), torch.empty_like(first)
                columns(x, total, high)
                found.append((total, high))
    torch.cuda.synchronize()
    assert all(torch.equal(total, first) and torch.equal(high, most) for total, high in found)


def test_graphs_are_replayed_beside_launches(torch: Any) -> None:
    x, first, most = arrays(torch, 4096, 300)
    columns(x, first, most)
    held, graph = torch.empty_like(first), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        columns(x, held, torch.empty_like(first))
    for _ in range(20):
        held.fill_(float("nan"))
        total = torch.full_like(first, float("nan"))
        graph.replay()
        columns(x, total, torch.empty_like(first))
        torch.cuda.synchronize()
        assert torch.equal(held, first)
        assert torch.equal(total, first)
