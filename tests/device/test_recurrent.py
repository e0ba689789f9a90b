"""`ops.ssd`, `ops.linear_attention` and `ops.gated_delta_rule` on a real GPU, against PyTorch in float64."""

from __future__ import annotations

from typing import Any

import pytest

from tessera import ops as op
from tests.device.test_library import agree

pytestmark = pytest.mark.device


@pytest.fixture
def torch() -> Any:
    found = pytest.importorskip("torch")
    found.manual_seed(0)
    return found


def by_steps(torch: Any, q: Any, k: Any, v: Any, rates: Any, weights: Any, beta: Any = None) -> Any:
    """Return the results of a recurrence, step by step; by the delta rule where there is a `beta`."""
    q, k = (one.repeat_interleave(v.shape[2] // q.shape[2], 2) for one in (q, k))
    state = torch.zeros(v.shape[0], v.shape[2], k.shape[3], v.shape[3], dtype=v.dtype, device=v.device)
    found = []
    for t in range(v.shape[1]):
        state = torch.exp(rates[:, t])[..., None, None] * state
        values = weights[:, t, :, None] * v[:, t]
        if beta is not None:
            values = beta[:, t, :, None] * (values - torch.einsum("bhn,bhnp->bhp", k[:, t], state))
        state = state + k[:, t, :, :, None] * values[:, :, None, :]
        found.append(torch.einsum("bhn,bhnp->bhp", q[:, t], state))
    return torch.stack(found, 1)


SHAPES = {
    "Mamba-2": (2, 333, 8, 1, 128, 64),
    "groups": (1, 200, 6, 2, 64, 64),
    "narrow": (3, 129, 4, 4, 16, 32),
    "wide states": (1, 150, 2, 1, 256, 64),
    "odd heads": (1, 100, 2, 2, 72, 40),
}
KINDS = ["float32", "bfloat16", "float16"]


def operands(torch: Any, shape: tuple[int, ...], kind: str) -> list[Any]:
    """Return queries, keys, values, and numbers between 0 and 1 of heads and places."""
    b, length, h, g, n, p = shape
    q, k, v = (torch.randn(size, device="cuda") for size in ((b, length, g, n),) * 2 + ((b, length, h, p),))
    k = torch.nn.functional.normalize(k, dim=3)
    return [*(one.to(getattr(torch, kind)) for one in (q, k, v)), torch.rand(b, length, h, device="cuda")]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SHAPES)
def test_ssd(torch, name, kind):
    c, b, x, dt = operands(torch, SHAPES[name], kind)
    a, d = -torch.rand(x.shape[2], device="cuda") - 0.1, torch.randn(x.shape[2], device="cuda")
    theirs = lambda x, dt, a, b, c, d: by_steps(torch, c, b, x, dt * a, dt) + d[:, None] * x  # noqa: E731
    ours = lambda x, dt, a, b, c, d: op.ssd(x, dt, a, b, c, d=d)  # noqa: E731
    agree(torch, ours, theirs, [one.to(x.dtype) for one in (x, dt, a, b, c, d)], 512 if kind == "float32" else 16)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["groups", "narrow", "odd heads"])
def test_linear_attention(torch, name, kind):
    q, k, v, g = operands(torch, SHAPES[name], kind)
    theirs = lambda q, k, v, g: by_steps(torch, q, k, v, g, torch.ones_like(g))  # noqa: E731
    ours = lambda q, k, v, g: op.linear_attention(q, k, v, g, scale=1.0)  # noqa: E731
    agree(torch, ours, theirs, [q, k, v, -g.to(q.dtype)], 512 if kind == "float32" else 16)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*SHAPES, "square"])
def test_gated_delta_rule(torch, name, kind):
    shape = {**SHAPES, "square": (2, 300, 4, 4, 128, 128)}[name]
    q, k, v, beta = operands(torch, shape, kind)
    theirs = lambda q, k, v, g, beta: by_steps(torch, q, k, v, g, torch.ones_like(g), beta)  # noqa: E731
    ours = lambda q, k, v, g, beta: op.gated_delta_rule(q, k, v, g, beta, scale=1.0)  # noqa: E731
    given = [q, k, v, *(one.to(q.dtype) for one in (-0.2 * torch.rand_like(beta), beta))]
    agree(torch, ours, theirs, given, 512 if kind == "float32" else 16)


def test_halves_are_the_whole(torch):
    q, k, v, beta = operands(torch, SHAPES["groups"], "bfloat16")
    calls = {
        "ssd": lambda at, state: op.ssd(
            v[:, at], beta[:, at], -beta[0, 0], k[:, at], q[:, at], initial_state=state, return_state=True
        ),
        "delta": lambda at, state: op.gated_delta_rule(
            q[:, at], k[:, at], v[:, at], -beta[:, at], beta[:, at], initial_state=state, return_state=True
        ),
    }
    for call in calls.values():
        whole, last = call(slice(None), None)
        first, state = call(slice(0, 77), None)
        second, state = call(slice(77, None), state)
        for one, other in ((torch.cat([first, second], 1), whole), (state, last)):
            assert torch.allclose(one.double(), other.double(), rtol=0.05, atol=0.05 * float(other.abs().max()))


def test_the_same_bits_again(torch):
    c, b, x, dt = (one.requires_grad_() for one in operands(torch, SHAPES["Mamba-2"], "bfloat16"))
    a = (-torch.rand(8, device="cuda")).requires_grad_()
    found = []
    for _ in range(5):
        out = op.ssd(x, dt, a, b, c)
        found.append([out.detach(), *torch.autograd.grad(out, (x, dt, a, b, c), torch.ones_like(out))])
    assert all(torch.equal(one, other) for again in found[1:] for one, other in zip(found[0], again, strict=True))
