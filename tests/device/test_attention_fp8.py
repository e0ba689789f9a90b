"""`ops.flash_attention_fp8` and `ops.hadamard` on a real GPU, against PyTorch in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tessera import ops as op
from tests.device.test_library import agree

pytestmark = pytest.mark.device

SHAPES = {
    "shared heads": (2, 4, 2, 333, 333, 128, 128),
    "narrow heads": (2, 4, 4, 300, 517, 64, 64),
    "one key for all": (1, 4, 1, 129, 700, 96, 96),
    "other values": (1, 2, 1, 150, 300, 192, 128),
    "wide heads": (1, 2, 2, 100, 130, 256, 256),
    "small heads": (1, 2, 2, 140, 270, 16, 48),
    "more queries": (1, 2, 2, 200, 70, 64, 64),
    "one query": (3, 8, 2, 1, 515, 128, 128),
    "long rows": (1, 2, 1, 1500, 2100, 128, 64),
}


@pytest.fixture
def torch() -> Any:
    found = pytest.importorskip("torch")
    found.manual_seed(0)
    return found


def operands(torch: Any, shape: tuple[int, ...], kind: Any) -> list[Any]:
    """Return queries, keys and values."""
    b, h, g, s, n, d, e = shape
    return [torch.randn(size, device="cuda").to(kind) for size in ((b, h, s, d), (b, g, n, d), (b, g, n, e))]


def seen(torch: Any, scores: Any, causal: bool) -> Any:
    """Return scores with -inf where a query does not see a key."""
    queries, keys = scores.shape[2:]
    apart = torch.arange(keys, device="cuda") - torch.arange(queries, device="cuda")[:, None] - keys + queries
    return scores.masked_fill(apart > 0, -math.inf) if causal else scores


def attend(torch: Any, given: list[Any], causal: bool) -> tuple[Any, Any]:
    """Return attention and the logarithms of its sums, as they are defined."""
    q, k, v = (one.double() for one in given)
    k, v = (one.repeat_interleave(q.shape[1] // k.shape[1], 1) for one in (k, v))
    scores = seen(torch, q @ k.transpose(-1, -2) / math.sqrt(q.shape[3]), causal)
    lse = torch.logsumexp(scores, -1)
    return torch.exp(scores - torch.where(lse == -math.inf, 0.0, lse)[..., None]) @ v, lse


def error(found: Any, exact: Any) -> float:
    """Return the root mean square of a difference, as a part of that of what is exact."""
    return float(((found.double() - exact).square().mean() / exact.square().mean()).sqrt())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("name", SHAPES)
def test_numbers_that_are_rounded(torch, name, kind, causal):
    given = operands(torch, SHAPES[name], getattr(torch, kind))
    exact, sums = attend(torch, given, causal)
    found, lse = op.flash_attention_fp8(*given, causal=causal, return_lse=True, dtype=torch.float32)
    assert error(found, exact) < 0.035
    assert torch.equal(lse == -math.inf, sums == -math.inf)
    near = sums > -math.inf
    assert torch.allclose(lse.double()[near], sums[near], atol=2e-3)
    assert (found[(sums == -math.inf)] == 0).all()
    host = [one.cpu() for one in given]
    assert error(found.cpu(), op.flash_attention_fp8(*host, causal=causal, dtype=torch.float32).double()) < 0.03


@pytest.mark.parametrize("options", [{}, {"scale": "block"}, {"hadamard": True, "scale": "block"}], ids=str)
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
def test_numbers_that_are_rounded_here(torch, kind, options):
    for name in ("shared heads", "narrow heads", "long rows"):
        given = operands(torch, SHAPES[name], getattr(torch, kind))
        for causal in (False, True):
            exact, _ = attend(torch, given, causal)
            found = op.flash_attention_fp8(*given, causal=causal, **options)
            assert found.dtype == getattr(torch, kind)
            assert error(found, exact) < 0.1


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_means_of_values_are_exact(torch, name, causal):
    b, h, g, s, n, d, e = SHAPES[name]
    v = torch.randint(-7, 8, (b, g, n, e), device="cuda").float()
    q, k = torch.zeros(b, h, s, d, device="cuda"), torch.randn(b, g, n, d, device="cuda")
    weights = torch.exp(seen(torch, torch.zeros(b, h, s, n, device="cuda").double(), causal))
    exact = weights @ v.double().repeat_interleave(h // g, 1) / weights.sum(-1, keepdim=True).clamp(min=1)
    eighths = [one.to(torch.float8_e4m3fn) for one in (q, k, v)]
    for given in ([q, k, v], eighths):
        found = op.flash_attention_fp8(*given, causal=causal, dtype=torch.float32)
        assert float((found.double() - exact).abs().max()) < 2e-2  # sums of 8-bit products may be shorter than f32


def test_layouts_outliers_and_the_same_bits_again(torch):
    given = operands(torch, SHAPES["shared heads"], torch.bfloat16)
    given = [one + 10 * torch.randn_like(one) * (torch.rand_like(one) < 0.001) for one in given]
    exact, _ = attend(torch, given, True)
    turned = [one.transpose(1, 2).contiguous() for one in given]
    found = op.flash_attention_fp8(*turned, causal=True, layout="bshd", hadamard=True, scale="block")
    assert error(found.transpose(1, 2), exact) < 0.1
    for _ in range(5):
        again = op.flash_attention_fp8(*turned, causal=True, layout="bshd", hadamard=True, scale="block")
        assert torch.equal(found, again)


@pytest.mark.parametrize("size", [1, 64, 1024, 16384])
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
def test_hadamard(torch, kind, size):
    matrix = torch.ones(1, 1, dtype=torch.float64, device="cuda")
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    signs = torch.randn(size, device="cuda").sign()
    x = torch.randn(3, 33, size, device="cuda").to(getattr(torch, kind))
    theirs = lambda x: (x * signs) @ matrix.to(x.dtype) / math.sqrt(size)  # noqa: E731
    agree(torch, lambda x: op.hadamard(x, signs=signs), theirs, [x], 32 if kind == "float32" else 4)
