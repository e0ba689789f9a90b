"""Networks, and what they scatter and put in order, through `torch.compile`, beside eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
F: Any = torch.nn.functional

import networks  # noqa: E402 - only where PyTorch is

from tessera.torch.compiled import backend as compiled  # noqa: E402


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    compiled.reports.clear()
    torch.manual_seed(0)


@pytest.mark.parametrize("name", ["experts, sorted"])
def test_networks_both_ways(name: str) -> None:
    work = networks.Work(torch, networks.networks()[name], "small", "cpu", torch.float32)
    measured = networks.Measured(torch, work, ("eager",))
    assert measured.ratio() < 2
    assert not measured.left


def both_ways(function: Callable[..., Any], *given: Any, left: dict[str, int] | None = None) -> None:
    """Compare results and gradients with eager PyTorch's."""
    floats = [one.requires_grad_() for one in given if one.is_floating_point()]
    found = []
    for run in (function, torch.compile(function, backend=compiled.backend)):
        results = run(*given)
        smooth = [one for one in results if one.is_floating_point()]
        torch.manual_seed(1)
        weights = [torch.rand(one.shape) for one in smooth]
        grads = torch.autograd.grad(smooth, floats, weights, allow_unused=True)
        found.append((results, [one.stride() for one in results], grads))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
    assert sum((report.left for report in compiled.reports), compiled.Counter()) == (left or {})


PADDED = torch.tensor([[False] * 7, [False] * 5 + [True] * 2, [False, True] * 3 + [False]])
CAUSAL = torch.ones(7, 7, dtype=torch.bool).triu(1)
MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "padding": {"src_key_padding_mask": PADDED},
    "places": {"src_mask": CAUSAL},
    "both": {"src_mask": CAUSAL, "src_key_padding_mask": PADDED},
}


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_layers_of_encoders_outside_of_training(first: bool, mask: str) -> None:
    activation = "gelu" if first else "relu"
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, 0.1, activation, batch_first=True, norm_first=first).eval()
    x = torch.randn(3, 7, 16)
    with torch.no_grad():
        got = torch.compile(layer, backend=compiled.backend)(x, **MASKS[mask])
        torch.testing.assert_close(got, layer(x, **MASKS[mask]), rtol=1e-5, atol=1e-5)
    assert not any(report.left or report.reason for report in compiled.reports), compiled.reports


@pytest.mark.parametrize("how", [{}, {"need_weights": False}, {"average_attn_weights": False}])
def test_attention_of_several_heads_outside_of_training(how: dict[str, Any]) -> None:
    layer = torch.nn.MultiheadAttention(16, 4, batch_first=True).eval()
    x, y = torch.randn(3, 7, 16), torch.randn(3, 4, 16)
    hidden = PADDED.clone()
    hidden[2] = "need_weights" not in how  # no key is left, of which PyTorch traces another formula without weights
    calls = ((x, x, x), {}), ((x, x, x), {"key_padding_mask": hidden}), ((y, x, x), {})
    run = torch.compile(layer, backend=compiled.backend)
    with torch.no_grad():
        for given, masks in calls:
            wanted = layer(*given, **masks, **how)
            found = run(*given, **masks, **how)
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert not any(report.left or report.reason for report in compiled.reports), compiled.reports


def test_what_is_put_or_added_at_places() -> None:
    twice, other = torch.tensor([3, -1, 3, 0]), torch.tensor([[0, 4], [4, 4], [2, 1]])

    def function(x: Any, v: Any, s: Any) -> Any:
        aten = torch.ops.aten
        put = aten.index_put(x.exp(), [twice[1:]], v[1:, 0]), aten.index_put(x, [None, twice[1:]], s[:, 1:], False)
        added = aten.index_put(x, [twice], v[:, 0], True), x.index_add(1, twice % 4, s.tanh(), alpha=2)
        apart = aten.index_put(x[:, :, None] * s[:, None], [twice, None, twice], v[:, 0], True)
        along = x.scatter_add(1, other, s[:3, :2]), x.scatter(1, other[:, :1], s[:3, :1])
        numbers = x.scatter(0, other[:, 1:] // 2, 1.5)
        masked = x.clone()
        masked[x > 0.5] = 2
        return *put, *added, apart, *along, numbers, masked, x.gather(1, other), x[twice % 3, twice % 5]

    x, v, s = torch.randn(4, 5), torch.randn(4, 1, 5), torch.randn(4, 4)
    both_ways(function, x, v, s)


def test_elements_in_order_and_embeddings() -> None:
    def function(x: Any, w: Any, words: Any) -> Any:
        largest, smallest = torch.topk(x, 3, -1), torch.topk(x, 2, 0, largest=False)
        bags = (
            F.embedding_bag(words, w, padding_idx=1),
            F.embedding_bag(words[:, :1] * 0 + torch.arange(4), w, mode="max"),
        )
        ends = F.embedding_bag(words.flatten(), w, torch.tensor([0, 2, 2, 5]), mode="mean")
        return *largest, *smallest, *torch.sort(x, 1, True), F.embedding(words, w, 2).exp(), *bags, ends

    both_ways(function, torch.randn(6, 17), torch.randn(9, 5), torch.randint(0, 9, (3, 4)))


def test_attention_as_pytorch_has_it() -> None:
    mask = torch.arange(9) < torch.tensor([[0], [3], [9], [1], [2]])

    def function(q: Any, k: Any, v: Any, bias: Any) -> Any:
        def attention(*given: Any, **how: Any) -> Any:
            return F.scaled_dot_product_attention(*given, **how)

        return (
            attention(q, k, v, attn_mask=mask, enable_gqa=True),
            attention(q, k, v, is_causal=True, enable_gqa=True),
            attention(q[:, :2], k, v, attn_mask=bias, scale=0.3),
            attention(q[:, :2, None], k[:, :, None], v[:, :, None]),
        )

    both_ways(function, torch.randn(2, 4, 5, 8), torch.randn(2, 2, 9, 8), torch.randn(2, 2, 9, 6), torch.randn(5, 9))


def test_complex_numbers() -> None:
    phase = torch.polar(torch.ones(5, 4), torch.randn(5, 4))

    def function(x: Any, y: Any) -> Any:
        a = torch.view_as_complex(x.unflatten(-1, (4, 2)))
        turned = torch.view_as_real(a.transpose(0, 1)[1:] * phase.conj()[1:, None] * 0.5).flatten(-2)
        b = torch.complex(y, y.exp()) - a[0] * y
        return turned, torch.view_as_real(torch.cat((b[:, None, :2], -b[:, None, 2:]), -1)), (a * a.conj()).real * 2

    both_ways(function, torch.randn(3, 5, 8), torch.randn(5, 4))


def test_what_follows_from_numbers_alone_is_what_pytorch_computes() -> None:
    def function(x: Any) -> Any:
        place = torch.arange(300)
        far = (torch.log(place.float() / 8 + 1) / torch.log(torch.tensor(16.0)) * 8).long()
        rows, columns = torch.tril_indices(4, 4, -1)
        return (x + (place * torch.exp(-place / 30.0)).cos() + far, x[:16].view(4, 4)[rows, columns], far)

    both_ways(function, torch.randn(300))
