"""Attention shares heads that programs repeat, and knows masks that they make of sizes alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
F: Any = torch.nn.functional

from tessera.torch.compiled import attention_arguments, by_hand  # noqa: E402 - only where PyTorch is
from tessera.torch.compiled import backend as compiled  # noqa: E402

attend = F.scaled_dot_product_attention
LENGTH, GROUPS = 24, 3


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    compiled.reports.clear()
    torch.manual_seed(0)
    monkeypatch.setitem(by_hand.FASTER, "cpu", (torch.float64,))


def expanded(x: Any) -> Any:
    batch, heads, length, width = x.shape
    wide = x[:, :, None, :, :].expand(batch, heads, GROUPS, length, width)
    return wide.reshape(batch, heads * GROUPS, length, width)


def inner(x: Any) -> Any:
    """Return heads repeated where they are the last dimension but one, as in Llama's own code."""
    batch, length, heads, width = x.transpose(1, 2).shape
    wide = x.transpose(1, 2)[..., None, :].expand(batch, length, heads, GROUPS, width)
    return wide.reshape(batch, length, heads * GROUPS, width).permute(0, 2, 1, 3)


def interleaved(x: Any) -> Any:
    return x.repeat_interleave(GROUPS, dim=1)


def columns(x: Any) -> Any:
    return x.unsqueeze(-3).repeat(1, 1, GROUPS, 1, 1).flatten(1, 2)


def copied(x: Any) -> Any:
    return interleaved(x.transpose(2, 3).contiguous()).transpose(2, 3).contiguous()


REPEATED = expanded, inner, interleaved, columns, copied


def given(heads: int = 2) -> list[Any]:
    shapes = (2, heads * GROUPS, LENGTH, 8), (2, heads, LENGTH, 8), (2, heads, LENGTH, 8)
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def told(function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, dynamic: bool = False) -> dict[str, Any]:
    """Return how attention is called in a compiled function, whose result and gradients are compared."""
    found: list[Any] = []

    def noted(traced: Any) -> None:
        attention_arguments.simplify_attention(traced)
        found.extend(traced.graph.find_nodes(op="call_function", target=attend))

    monkeypatch.setattr(compiled, "simplify_attention", noted)
    arrays = given()
    results = [torch.compile(function, backend=compiled.backend, dynamic=dynamic)(*arrays), function(*arrays)]
    torch.testing.assert_close(*results)
    gradients = [torch.autograd.grad(one.square().sum(), arrays, allow_unused=True) for one in results]
    torch.testing.assert_close(*gradients)
    (node,) = found
    mask = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
    return {"masked": mask is not None, **{name: node.kwargs.get(name, False) for name in ("is_causal", "enable_gqa")}}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("repeated", REPEATED)
def test_heads_are_shared(repeated: Callable[[Any], Any], dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def function(q: Any, k: Any, v: Any) -> Any:
        return attend(q, repeated(k), repeated(v))

    assert told(function, monkeypatch, dynamic)["enable_gqa"]


@pytest.mark.parametrize("repeated", REPEATED)
def test_heads_of_attention_by_hand_are_shared(repeated: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def function(q: Any, k: Any, v: Any) -> Any:
        return (q @ repeated(k).mT * 0.3).softmax(-1) @ repeated(v)

    assert told(function, monkeypatch)["enable_gqa"]


def in_turn(q: Any, k: Any, v: Any) -> Any:
    return attend(q, k.repeat(1, GROUPS, 1, 1), v.repeat(1, GROUPS, 1, 1))


def one_of_them(q: Any, k: Any, v: Any) -> Any:
    return attend(q, interleaved(k), v.repeat(1, GROUPS, 1, 1))


def changed_since(q: Any, k: Any, v: Any) -> Any:
    keys = k.clone()
    many = interleaved(keys)
    keys.add_(1)
    return attend(q, many, interleaved(v)) + keys.mean()


def raised_since(q: Any, k: Any, v: Any) -> Any:
    keys = k.clone()
    many = interleaved(keys)
    keys **= 2
    return attend(q, many, interleaved(v))


def changed_by_an_op(q: Any, k: Any, v: Any) -> Any:
    keys = k.clone()
    many = interleaved(keys)
    torch.ops.aten.mul_.Scalar(keys, 2)
    return attend(q, many, interleaved(v))


def without_gradients(q: Any, k: Any, v: Any) -> Any:
    with torch.no_grad():
        many = interleaved(k)
    return attend(q, many, interleaved(v))


def other_dimension(q: Any, k: Any, v: Any) -> Any:
    return attend(interleaved(k), interleaved(k), interleaved(v).repeat_interleave(2, 2)[:, :, ::2]) + q


@pytest.mark.parametrize(
    "function",
    [in_turn, one_of_them, changed_since, raised_since, changed_by_an_op, without_gradients, other_dimension],
)
def test_other_heads_stay(function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert not told(function, monkeypatch)["enable_gqa"]


def low(t: int) -> Any:
    return torch.full((t, t), -math.inf, dtype=torch.float64).triu(1)


def least(t: int) -> Any:
    mask = torch.zeros(t, t, dtype=torch.float64)
    return mask.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(diagonal=1), torch.finfo(torch.float64).min)


def ones(t: int) -> Any:
    return torch.tril(torch.ones(t, t)).view(1, 1, t, t) == 1


def places(t: int) -> Any:
    place = torch.arange(t)
    return place[:, None] >= place[None, :]


def subtracted(t: int) -> Any:
    return (1.0 - torch.ones((t, t), dtype=torch.float64).tril()) * -1e9


def in_place(t: int) -> Any:
    return torch.full((t, t), -math.inf, dtype=torch.float64).triu_(1)


def by_rows(t: int) -> Any:
    mask = torch.zeros(1, t, t, dtype=torch.bool)
    mask[0, :, :1].fill_(True)
    mask[:, 1:] = torch.ones(t - 1, t).tril(1) > 0
    return mask


@pytest.mark.parametrize("make", [low, least, ones, places, subtracted, in_place, by_rows])
def test_causal_masks_are_known(make: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def function(q: Any, k: Any, v: Any) -> Any:
        return attend(q, interleaved(k), interleaved(v), make(q.shape[-2]), 0.0)

    assert told(function, monkeypatch) == {"masked": False, "is_causal": True, "enable_gqa": True}
    torch._dynamo.reset()
    assert told(function, monkeypatch, dynamic=True)["masked"]  # the next call may have other sizes


def test_masks_like_other_arrays_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(q: Any, k: Any, v: Any) -> Any:
        mask = torch.ones_like(q[:1, :1, :, :1] * k[:1, :1, :, 0, None].mT).tril() * q.new_ones(LENGTH)
        return attend(q, interleaved(k), interleaved(v), (1 - mask) * -1e9)

    assert told(function, monkeypatch) == {"masked": False, "is_causal": True, "enable_gqa": True}


@pytest.mark.parametrize("fill", [-math.inf, -1e9])
def test_causal_masks_by_hand_are_known(fill: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def function(q: Any, k: Any, v: Any) -> Any:
        hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
        return (q @ interleaved(k).transpose(-2, -1)).masked_fill(hidden, fill).softmax(-1) @ interleaved(v)

    assert told(function, monkeypatch) == {"masked": False, "is_causal": True, "enable_gqa": True}


def test_masks_that_hide_nothing_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(q: Any, k: Any, v: Any) -> Any:
        return attend(q, expanded(k), expanded(v), attn_mask=torch.zeros(1, 1, 1, LENGTH, dtype=torch.float64))

    assert told(function, monkeypatch) == {"masked": False, "is_causal": False, "enable_gqa": True}


def named(q: Any, k: Any, v: Any) -> Any:
    wide = torch.repeat_interleave(input=k, repeats=GROUPS, dim=1)
    places = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device="cpu").tril()
    return attend(query=q, key=wide, value=interleaved(v), attn_mask=places)


def named_columns(q: Any, k: Any, v: Any) -> Any:
    wide = [torch.unsqueeze(input=one, dim=2).expand(-1, -1, GROUPS, -1, -1).flatten(1, 2) for one in (k, v)]
    seen = q.masked_fill(mask=torch.zeros(LENGTH, 1, dtype=torch.bool), value=0.0)
    return attend(seen, *wide, places(LENGTH))


def named_by_hand(q: Any, k: Any, v: Any) -> Any:
    scores = (q @ interleaved(k).mT).masked_fill(torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1), -math.inf)
    return F.dropout(input=torch.softmax(input=scores, dim=-1), p=0.0) @ interleaved(v)


@pytest.mark.parametrize("function", [named, named_columns, named_by_hand])
def test_arguments_have_names(function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(function, monkeypatch) == {"masked": False, "is_causal": True, "enable_gqa": True}


def test_gradients_are_off_afterwards() -> None:
    def function(q: Any, k: Any, v: Any) -> Any:
        found = attend(q, interleaved(k), interleaved(v))
        torch.set_grad_enabled(False)
        return found

    arrays = given()
    with torch.enable_grad():
        found = torch.compile(function, backend=compiled.backend)(*arrays)
    assert found.requires_grad


def test_devices_of_masks_are_known_by_name() -> None:
    graph = torch.fx.Graph()
    mask = graph.call_function(torch.ones, (3, 3), {"dtype": torch.bool, "device": "meta"})
    mask.meta["example_value"] = torch.ones(3, 3, dtype=torch.bool, device="meta")
    assert torch.equal(attention_arguments.known(mask, graph.output(mask)), torch.ones(3, 3, dtype=torch.bool))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_each_query_of_a_batch_attends() -> None:
    def one(q: Any, k: Any, v: Any) -> Any:
        return attend(q[None], interleaved(k[None]), interleaved(v[None]), places(LENGTH))[0]

    def function(q: Any, k: Any, v: Any) -> Any:
        return torch.vmap(one)(q, k, v)

    arrays = given()
    torch.testing.assert_close(torch.compile(function, backend=compiled.backend)(*arrays), function(*arrays))


def band(t: int) -> Any:
    return torch.ones(t, t, dtype=torch.bool).tril().triu(-4)


def biased(t: int) -> Any:
    return torch.arange(t, dtype=torch.float64) - torch.arange(t)[:, None]


def changed(t: int) -> Any:
    mask = torch.ones(t, t, dtype=torch.bool).tril()
    mask.logical_not_().logical_not_()
    mask.fill_diagonal_(False)
    return mask


def changed_afterwards(t: int) -> Any:
    mask = torch.ones(t, t, dtype=torch.bool).tril(-2)
    seen = mask.logical_or(torch.ones(t, t, dtype=torch.bool).tril(-5))
    mask.fill_(True)
    seen[:, 0] = True
    return seen


def changed_by_a_part(t: int) -> Any:
    mask = torch.ones(t, t, dtype=torch.bool).tril()
    found, (part, _) = mask[None], mask.chunk(2)
    part |= True
    return found


@pytest.mark.parametrize("make", [band, biased, changed, changed_afterwards, changed_by_a_part])
def test_other_masks_stay(make: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def function(q: Any, k: Any, v: Any) -> Any:
        mask = make(LENGTH)
        return attend(q, interleaved(k), interleaved(v), mask)

    assert told(function, monkeypatch)["masked"]


def test_masks_whose_views_are_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(q: Any, k: Any, v: Any) -> Any:
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        mask.view(1, -1)[0].fill_(True)
        return attend(q, interleaved(k), interleaved(v), mask.logical_and(torch.ones(LENGTH, dtype=torch.bool)))

    assert told(function, monkeypatch) == {"masked": False, "is_causal": False, "enable_gqa": True}


def test_masks_that_change_after_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(q: Any, k: Any, v: Any) -> Any:
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        found = attend(q, interleaved(k), interleaved(v), mask)
        mask.logical_not_()
        return found * mask.sum()

    assert told(function, monkeypatch) == {"masked": False, "is_causal": True, "enable_gqa": True}


def test_masks_of_data_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()

    def function(q: Any, k: Any, v: Any) -> Any:
        return attend(q, interleaved(k), interleaved(v), mask)

    assert told(function, monkeypatch)["masked"]


def test_fewer_queries_than_keys_keep_their_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(q: Any, k: Any, v: Any) -> Any:
        return attend(q[:, :, :5], interleaved(k), interleaved(v), torch.ones(5, LENGTH, dtype=torch.bool).tril(2))

    assert told(function, monkeypatch)["masked"]
