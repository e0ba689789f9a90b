"""Layers in `torch.compile`: what follows a product is computed in its kernel, forwards and backwards."""

from __future__ import annotations

from typing import Any

import pytest

from tessera.graph import products
from tessera.ir.graph.sums import ContractOp
from tessera.ir.graph.types import array_type

torch: Any = pytest.importorskip("torch")
tessera_torch: Any = pytest.importorskip("tessera.torch")
backend: Any = pytest.importorskip("tessera.torch.compiled.backend")


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = torch.nn.Linear(24, 40), torch.nn.Linear(40, 24)

    def forward(self, x: Any) -> Any:
        return self.narrow(torch.nn.functional.gelu(self.wide(x))) + x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training(dtype: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(products, "pays", lambda *_: True)
    torch.manual_seed(2)
    layers, exact = Layers().to(dtype), Layers().double()
    exact.load_state_dict({name: one.double() for name, one in layers.state_dict().items()})
    compiled = torch.compile(layers, backend="tessera", options={"fallback": "error"})
    for rows in (7, 7, 12):
        layers.zero_grad()
        exact.zero_grad()
        x = torch.randn(3, rows, 24, dtype=dtype, requires_grad=True)
        other = x.detach().double().requires_grad_()
        found, expected = compiled(x), exact(other)
        weight = torch.randn_like(found)
        found.backward(weight)
        expected.backward(weight.double())
        pairs = [(found, expected), (x.grad, other.grad)]
        pairs += [(one.grad, two.grad) for one, two in zip(layers.parameters(), exact.parameters(), strict=True)]
        for one, two in pairs:
            limit = (1e-5 if dtype is torch.float32 else 2e-2) * two.abs().max().item()
            torch.testing.assert_close(one.double(), two, rtol=0, atol=limit)
    ran = tessera_torch.explain(compiled, x)
    assert [part.ops[0] for graph in ran.graphs for part in graph.kernels] == ["matmul", "matmul"]


PRODUCTS = {
    "mm": (torch.mm, (32, 16), (16, 24)),
    "bmm": (torch.bmm, (3, 32, 16), (3, 16, 24)),
    "addmm": (lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), (24,), (32, 16), (16, 24)),
    "baddbmm": (lambda c, a, b: torch.baddbmm(c, a, b, beta=0.5), (3, 32, 24), (3, 32, 16), (3, 16, 24)),
    "addbmm": (torch.addbmm, (32, 24), (3, 32, 16), (3, 16, 24)),
    "einsum": (lambda a, b: torch.einsum("bij,kj->ibk", a, b), (4, 32, 16), (24, 16)),
    "tensordot": (lambda a, b: torch.tensordot(a, b, ([1, 2], [0, 1])), (8, 4, 16), (4, 16, 24)),
    "cdist": (torch.cdist, (32, 16), (24, 16)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_16_bit_floats_are_not_of_wider_ones(name):
    function, *shapes = PRODUCTS[name]
    given = [torch.randn(shape, dtype=torch.bfloat16, requires_grad=True) for shape in shapes]
    ran = []
    backend.watching.append(ran)
    try:
        torch.compile(function, backend=backend.backend)(*given).float().sum().backward()
    finally:
        backend.watching.remove(ran)
    products = [op for one, *_ in ran for op in one._program.module.walk() if isinstance(op, ContractOp)]
    assert len(products) >= 3
    assert {array_type(value).dtype.name for op in products for value in op.operands} == {"bf16"}
