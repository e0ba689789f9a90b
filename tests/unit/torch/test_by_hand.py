"""Attention as programs write it by hand becomes PyTorch's function for it, and nothing else does."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
F: Any = torch.nn.functional

from tessera.torch.compiled import backend as compiled  # noqa: E402 - only where PyTorch is
from tessera.torch.compiled import by_hand  # noqa: E402

SHAPE = 2, 3, 24, 16
INF = math.inf


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    compiled.reports.clear()
    torch.manual_seed(0)
    monkeypatch.setitem(by_hand.FASTER, "cpu", (torch.float64, torch.float32, torch.bfloat16))


def gpt(q: Any, k: Any, v: Any, m: Any) -> Any:
    scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
    scores = scores.masked_fill(m[None, None] == 0, -INF)
    return F.dropout(F.softmax(scores, dim=-1), 0.0, True) @ v


def bert(q: Any, k: Any, v: Any, m: Any) -> Any:
    scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
    scores = scores + (1.0 - m[None, None].to(q.dtype)) * torch.finfo(q.dtype).min
    return torch.matmul(torch.nn.Softmax(-1)(scores), v).permute(0, 2, 1, 3).contiguous()


def llama(q: Any, k: Any, v: Any, m: Any) -> Any:
    mask = torch.zeros_like(m, dtype=q.dtype).masked_fill(m == 0, torch.finfo(q.dtype).min)
    weights = F.softmax(torch.matmul(q, k.transpose(2, 3)) * 0.3 + mask, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(F.dropout(weights, p=0.1, training=False), v).transpose(1, 2).contiguous()


def sums(q: Any, k: Any, v: Any, m: Any) -> Any:
    q, k, v = (one.transpose(1, 2) for one in (q, k, v))
    scores = torch.einsum("bqhd, bkhd -> bhqk", q, k) * 0.25
    return torch.einsum("bhqk,bkhd->bqhd", scores.masked_fill(~(m > 0), -1e9).softmax(-1), v)


def scaled_before(q: Any, k: Any, v: Any, m: Any) -> Any:
    return ((q * 0.25) @ k.transpose(-2, -1)).softmax(dim=-1) @ v


def batches(q: Any, k: Any, v: Any, m: Any) -> Any:
    q, k, v = (one.flatten(0, 1) for one in (q, k, v))
    scores = torch.baddbmm(m[None].to(q.dtype).log(), q, k.transpose(1, 2), beta=1, alpha=0.2)
    return torch.bmm(scores.softmax(2), v)


def chosen(q: Any, k: Any, v: Any, m: Any) -> Any:
    scores = torch.where(m > 0, q @ k.mT / 4, -INF)
    return torch.softmax(scores.float(), -1).type_as(v) @ v


def chosen_after_a_bias(q: Any, k: Any, v: Any, m: Any) -> Any:
    scores = torch.where(m == 0, -1e8, q @ k.mT - m.to(q.dtype).cumsum(0) * 0.1)
    return scores.softmax(-1) @ v


def biased_first(q: Any, k: Any, v: Any, m: Any) -> Any:
    place = torch.arange(q.shape[-2], dtype=q.dtype)
    scores = (-(place - place[:, None]).abs() * 0.1 + q @ k.mT) * 0.7
    return scores.masked_fill(m == 0, -INF).softmax(-1) @ v


def hidden_first(q: Any, k: Any, v: Any, m: Any) -> Any:
    scores = (q @ k.mT).masked_fill(m == 0, -INF) * 0.2 + m.to(q.dtype).cumsum(1) * 0.1
    return scores.softmax(-1) @ v


def in_place(q: Any, k: Any, v: Any, m: Any) -> Any:
    scores = torch.matmul(q, k.transpose(3, 2))
    scores += m.to(q.dtype).cumsum(0) * 0.1
    return torch.matmul(F.softmax(scores.float(), dim=-1).type_as(scores), v)


def truth_values(q: Any, k: Any, v: Any, m: Any) -> Any:
    scores = q @ k.mT / 4 + (m == 0) - m.to(torch.uint8)
    return torch.dropout(scores.softmax(-1), p=0.5, train=False) @ v


HAND = (
    *(gpt, bert, llama, sums, scaled_before, batches, chosen, chosen_after_a_bias, biased_first, hidden_first),
    *(in_place, truth_values),
)


def weights_too(q: Any, k: Any, v: Any, m: Any) -> Any:
    weights = (q @ k.mT).softmax(-1)
    return weights @ v + weights[..., :1]


def scores_too(q: Any, k: Any, v: Any, m: Any) -> Any:
    scores = q @ k.mT
    return (scores - scores.amax(-1, True)).softmax(-1) @ v


def twice_itself(q: Any, k: Any, v: Any, m: Any) -> Any:
    scores = q @ k.mT
    return (scores + scores).softmax(-1) @ v


def weighed(q: Any, k: Any, v: Any, m: Any) -> Any:
    return (q @ k.mT * m.to(q.dtype)).softmax(-1) @ v


def columns(q: Any, k: Any, v: Any, m: Any) -> Any:
    return (q @ k.mT).softmax(-2) @ v


def shallow(q: Any, k: Any, v: Any, m: Any) -> Any:
    return (q @ k.mT).masked_fill(m == 0, -3.0).softmax(-1) @ v


def broadcast(q: Any, k: Any, v: Any, m: Any) -> Any:
    return (q[:1] @ k.mT + k.sum((-1, -2))[..., None, None]).softmax(-1) @ v


def weights_twice(q: Any, k: Any, v: Any, m: Any) -> Any:
    weights = (q @ k.mT).softmax(-1)
    return (weights @ weights)[..., :16] * v


def biased_after(q: Any, k: Any, v: Any, m: Any) -> Any:
    return ((q @ k.mT).masked_fill(m == 0, -1e4) + m.to(q.dtype).cumsum(0)).softmax(-1) @ v


def by_two_numbers(q: Any, k: Any, v: Any, m: Any) -> Any:
    return (q @ k.mT).masked_fill(m == 0, -1e4).masked_fill(m.mT == 0, -1e9).softmax(-1) @ v


def hardly_hidden(q: Any, k: Any, v: Any, m: Any) -> Any:
    return ((q @ k.mT).masked_fill(m == 0, -1e4) * 1e-4).softmax(-1) @ v


def whole_numbers(q: Any, k: Any, v: Any, m: Any) -> Any:
    return ((q @ k.mT).softmax(-1) + q.mean() * 0).to(torch.int32).to(v.dtype) @ v + q + k


OTHER = (
    *(weights_too, scores_too, twice_itself, weighed, columns, shallow, broadcast),
    *(weights_twice, biased_after, by_two_numbers, hardly_hidden, whole_numbers),
)


def by_a_number(q: Any, k: Any, v: Any, m: Any) -> Any:
    return (q @ k.mT * 0.5).masked_fill(m == 0, -1e9).softmax(-1) @ v


def by_the_least(q: Any, k: Any, v: Any, m: Any) -> Any:
    scores = (q @ k.mT).masked_fill_(m == 0, torch.finfo(q.dtype).min) * 0.25
    return scores.softmax(-1) @ v


def by_one_number_twice(q: Any, k: Any, v: Any, m: Any) -> Any:
    return torch.where(m > 0, (q @ k.mT).masked_fill(m[:, :1] == 0, -1e4), -1e4).softmax(-1) @ v


def by_a_number_after_a_bias(q: Any, k: Any, v: Any, m: Any) -> Any:
    return (q @ k.mT * 0.2 + (m.mT + m[4]).to(q.dtype).log()).masked_fill(m == 0, -1e9).softmax(-1) @ v


BLIND = by_a_number, by_the_least, by_one_number_twice, by_a_number_after_a_bias


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("function", [*HAND, *OTHER, *BLIND])
def test_attention_by_hand(function: Callable[..., Any], dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    theirs = F.scaled_dot_product_attention
    monkeypatch.setattr(by_hand, "_rewrite", lambda *args, real=by_hand._rewrite: (asked.append(args), real(*args)))
    given = [torch.randn(SHAPE).to(dtype).requires_grad_() for _ in range(3)]
    wide = [one.detach().double().requires_grad_() for one in given]
    mask = torch.ones(SHAPE[-2], SHAPE[-2]).tril()
    if function in BLIND:
        mask[3] = mask[7] = 0
    run = torch.compile(function, backend=compiled.backend)
    found, exact, rounded = (_both_ways(*each, mask) for each in ((run, given), (function, wide), (function, given)))
    for got, wanted, allowed in zip(found, exact, rounded, strict=True):
        least = 8 * torch.finfo(dtype).eps * float(wanted.abs().max())
        assert (got.double() - wanted).abs().max() <= max(2 * float((allowed.double() - wanted).abs().max()), least)
    assert len(asked) == (function not in OTHER)
    assert not any(report.left for report in compiled.reports)
    assert F.scaled_dot_product_attention is theirs


def _both_ways(function: Callable[..., Any], given: list[Any], mask: Any) -> list[Any]:
    found = function(*given, mask)
    return [found.detach(), *torch.autograd.grad(found.double().square().sum(), given)]


def test_attention_by_hand_of_any_size() -> None:
    run = torch.compile(gpt, backend=compiled.backend, dynamic=True)
    for length in (5, 9, 24):
        given = [torch.randn(2, 3, length, 16, dtype=torch.float64) for _ in range(3)]
        mask = torch.ones(length, length).tril()
        torch.testing.assert_close(run(*given, mask), gpt(*given, mask))


def test_what_dropout_leaves_out_by_hand() -> None:
    def attend(q: Any, k: Any, v: Any) -> Any:
        return F.dropout((q @ k.mT).softmax(-1), 0.5, True) @ v

    q, k = (torch.zeros(4, 8, 64, 16) for _ in range(2))
    found = torch.compile(attend, backend=compiled.backend)(q, k, torch.ones(4, 8, 64, 16))
    assert 0.98 < float(found.mean()) < 1.02
    assert 0.08 < float(found[..., 0].std()) < 0.18  # of 64 keys, each kept by half: 1/8


def _method(keys: Any) -> None:
    keys.mul_(2)


def _option(keys: Any) -> None:
    F.silu(keys, True)


@pytest.mark.parametrize("change", [_method, _option])
def test_what_is_changed_between_products(change: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> None:
    def attend(q: Any, k: Any, v: Any) -> Any:
        keys = k.clone()
        scores = q @ keys.mT
        change(keys)
        return scores.softmax(-1) @ v + keys.sum()

    monkeypatch.setattr(by_hand, "_rewrite", None)
    given = [torch.randn(SHAPE, dtype=torch.float64) for _ in range(3)]
    torch.testing.assert_close(torch.compile(attend, backend=compiled.backend)(*given), attend(*given))


def test_weights_without_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    def attend(q: Any, k: Any, v: Any) -> Any:
        with torch.no_grad():
            weights = (q @ k.mT).softmax(-1)
        return weights @ v

    monkeypatch.setattr(by_hand, "_rewrite", None)
    given = [torch.randn(SHAPE, requires_grad=True) for _ in range(3)]
    found = torch.compile(attend, backend=compiled.backend)(*given).sum()
    assert torch.autograd.grad(found, given[:2], allow_unused=True) == (None, None)


def test_biases_that_autocast_would_round(monkeypatch: pytest.MonkeyPatch) -> None:
    def attend(q: Any, k: Any, v: Any, bias: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return (q @ k.mT + bias).softmax(-1) @ v

    monkeypatch.setattr(by_hand, "_rewrite", None)
    given = [torch.randn(SHAPE) for _ in range(3)]
    bias = torch.full((24, 24), torch.finfo(torch.float32).min).triu(1)
    found = torch.compile(attend, backend=compiled.backend)(*given, bias)
    torch.testing.assert_close(found, attend(*given, bias), atol=0.05, rtol=0)


def test_cpus_compute_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(by_hand.FASTER, "cpu")
    monkeypatch.setattr(by_hand, "_rewrite", None)
    given = [torch.randn(SHAPE) for _ in range(3)]
    found = torch.compile(scaled_before, backend=compiled.backend)(*given, None)
    torch.testing.assert_close(found, scaled_before(*given, None))
