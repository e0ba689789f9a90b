"""Library ops on a real GPU, forward and backward, against PyTorch in float64."""

from __future__ import annotations

from typing import Any

import pytest

from tessera import ops as op

pytestmark = pytest.mark.device

ROUNDING = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
WIDTHS = (1, 33, 256, 1001, 4096, 20000)


@pytest.fixture
def torch() -> Any:
    found = pytest.importorskip("torch")
    found.manual_seed(0)
    return found


def _rms(f: Any, n: int) -> tuple[Any, Any]:
    return (
        lambda x, w, b: op.norm.rms(x, n, w, 1e-5, bias=b),
        lambda x, w, b: f.rms_norm(x, (n,), w, 1e-5) + b,
    )


def _ln(f: Any, n: int) -> tuple[Any, Any]:
    return lambda x, w, b: op.norm.ln(x, n, w, b), lambda x, w, b: f.layer_norm(x, (n,), w, b)


def _added(f: Any, n: int) -> tuple[Any, Any]:
    def ours(x: Any, w: Any, b: Any) -> Any:
        y, h = op.norm.rms(x, n, w, 1e-5, residual=2 * x, input_bias=b)
        return y + h

    def theirs(x: Any, w: Any, b: Any) -> Any:
        h = x + b + 2 * x
        return f.rms_norm(h, (n,), w, 1e-5) + h

    return ours, theirs


ROWS = {"rms": _rms, "ln": _ln, "added": _added}
"""Ops of rows with weights and a bias: ours and PyTorch's, by the width."""


def agree(torch: Any, ours: Any, theirs: Any, inputs: list[Any]) -> None:
    """Compare results and gradients with those of the same in float64: a few roundings of the whole's size."""
    own = [one.clone().requires_grad_() for one in inputs]
    exact = [one.double().requires_grad_() for one in inputs]
    got, want = ours(*own), theirs(*exact)
    grads = torch.randn_like(got)
    got.backward(grads)
    want.backward(grads.double())
    pairs = [(got, want), *((one.grad, other.grad) for one, other in zip(own, exact, strict=True))]
    for found, expected in pairs:
        rounding = ROUNDING[str(found.dtype).removeprefix("torch.")]
        size = float(expected.abs().max()) if expected.numel() else 0.0
        assert float((found.double() - expected).abs().max()) <= 8 * rounding * size


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", ROUNDING)
@pytest.mark.parametrize("name", ROWS)
def test_rows(torch, name, kind, width):
    dtype = getattr(torch, kind)
    x = torch.randn(77, width, device="cuda").to(dtype)
    w, b = (torch.randn(width, device="cuda").to(dtype) for _ in range(2))
    agree(torch, *ROWS[name](torch.nn.functional, width), [x, w, b])


@pytest.mark.parametrize("name", ROWS)
def test_many_rows_give_the_same_bits_again(torch, name):
    x = torch.randn(30000, 130, device="cuda").bfloat16()
    w, b = (torch.randn(130, device="cuda").bfloat16() for _ in range(2))
    ours, theirs = ROWS[name](torch.nn.functional, 130)
    agree(torch, ours, theirs, [x, w, b])
    found = []
    for _ in range(2):
        given = [one.clone().requires_grad_() for one in (x, w, b)]
        ours(*given).sum().backward()
        found.append([one.grad for one in given])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
