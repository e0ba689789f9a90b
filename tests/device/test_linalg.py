"""Matrix products and epilogues on a real GPU, against PyTorch in float64."""

from __future__ import annotations

from typing import Any

import pytest

import tessera as ts
from tessera import ops as op

pytestmark = pytest.mark.device

E, L = op.epilogue, op.linalg
BOUND = {"float64": 1e-12, "float32": 4e-6, "float16": 2e-3, "bfloat16": 1.2e-2, "int32": 0.0}
KINDS = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "uint8")


@pytest.fixture
def torch() -> Any:
    found = pytest.importorskip("torch")
    found.manual_seed(0)
    return found


def random(torch: Any, *shape: int, kind: str = "float32") -> Any:
    if "int" in kind:
        return torch.randint(0 if kind == "uint8" else -100, 100, shape, device="cuda").to(
            getattr(torch, kind)
        )
    return torch.randn(shape, device="cuda").to(getattr(torch, kind))


def error(got: Any, exact: Any) -> float:
    return float((got.double() - exact).abs().max() / exact.abs().max().clamp_min(1e-30))


def bound(got: Any) -> float:
    return BOUND[str(got.dtype).removeprefix("torch.")]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(300, 333, 777), (512, 256, 1024), (1, 4096, 512)])
@pytest.mark.parametrize("trans", [(False, False), (False, True), (True, False), (True, True)])
def test_every_dtype_and_layout(
    torch: Any, kind: str, shape: tuple[int, int, int], trans: tuple[bool, bool]
) -> None:
    m, n, k = shape
    a = random(torch, *((k, m) if trans[0] else (m, k)), kind=kind)
    b = random(torch, *((n, k) if trans[1] else (k, n)), kind=kind)
    got = L.gemm(a, b, trans_a=trans[0], trans_b=trans[1])
    exact = (a.double().t() if trans[0] else a.double()) @ (b.double().t() if trans[1] else b.double())
    assert error(got, exact) <= bound(got)


def test_tf32_strides_and_sizes_of_zero(torch: Any) -> None:
    a, b = random(torch, 300, 256), random(torch, 256, 200)
    assert error(L.gemm(a, b, compute=ts.tf32), a.double() @ b.double()) < 2e-3
    x, y = a[::2, ::2].bfloat16(), b[1::2, ::3].bfloat16()
    wide = random(torch, 300, 512, kind="bfloat16")[::2, ::2]
    assert error(L.gemm(wide, y.repeat(2, 1)), wide.double() @ y.repeat(2, 1).double()) < BOUND["bfloat16"]
    assert error(L.gemm(x, y), x.double() @ y.double()) < BOUND["bfloat16"]
    assert L.gemm(a[:0], b).shape == (0, 200)
    assert not L.gemm(a[:, :0], b[:0]).any()


@pytest.mark.parametrize("shape", [(256, 512, 320), (300, 333, 777), (16, 1024, 2048)])
def test_epilogues(torch: Any, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b = random(torch, m, k, kind="bfloat16"), random(torch, k, n, kind="bfloat16")
    bias, rest, old = random(torch, n), random(torch, m, n, kind="bfloat16"), random(torch, m, n)
    rows, cols = torch.empty(m, device="cuda"), torch.empty(n, device="cuda")
    product = a.double() @ b.double()
    gelu = torch.nn.functional.gelu
    cases = [
        ([E.bias(bias), E.gelu()], gelu(product + bias)),
        ([E.bias(bias), E.gelu("tanh"), E.residual(rest)], gelu(product + bias, approximate="tanh") + rest),
        ([E.scale(bias), E.scale(random(torch, 1)), E.silu()], None),
        ([E.row_sum(rows), E.col_max(cols), E.relu()], product.relu()),
    ]
    for steps, exact in cases:
        chain = E.chain(steps)
        if exact is None:
            exact = torch.from_numpy(chain.reference(product.cpu().numpy())).cuda()
        got = L.gemm(a, b, epilogue=chain, out_dtype=ts.f32)
        assert error(got, exact) < 4e-6, steps
    assert error(rows, product.sum(1)) < 1e-5
    assert error(cols, product.amax(0)) < 1e-5
    got = L.gemm(a, b, old, alpha=0.5, beta=2.0, out_dtype=ts.f32)
    assert error(got, 0.5 * product + 2 * old) < 4e-6


def test_dropout_is_that_of_the_cpu(torch: Any) -> None:
    a, b = random(torch, 300, 64, kind="float16"), random(torch, 64, 333, kind="float16")
    chain = E.chain([E.dropout(0.3, seed=9)])
    got, there = L.gemm(a, b, epilogue=chain), L.gemm(a.cpu(), b.cpu(), epilogue=chain)
    assert torch.equal(got.cpu() == 0, there == 0)


def test_scales_of_fp8_operands(torch: Any) -> None:
    m, n, k = 300, 500, 900
    a, b = random(torch, m, k, kind="float8_e4m3fn"), random(torch, n, k, kind="float8_e4m3fn")
    b = torch.nn.functional.pad(b.view(torch.uint8), (0, 12)).view(torch.float8_e4m3fn)[:, :k]
    for scale_a, scale_b in (
        (2.0, random(torch, 1)), (random(torch, m), random(torch, n)), (random(torch, m, 8), random(torch, 8, 4)),
        (random(torch, 3, 8), random(torch, 8, n)), (None, random(torch, 8, 4)),
    ):  # fmt: skip
        got = L.gemm(a, b, trans_b=True, scale_a=scale_a, scale_b=scale_b, out_dtype=ts.f32)
        exact = L.gemm.reference(a, b, trans_b=True, scale_a=scale_a, scale_b=scale_b)
        assert (
            error(got.cpu(), torch.from_numpy(exact)) < 1e-3
        )  # the matrix units add fp8 products with fewer bits


def test_batches_groups_and_triangles(torch: Any) -> None:
    a, b = random(torch, 3, 200, 320, kind="bfloat16"), random(torch, 3, 320, 264, kind="bfloat16")
    exact = a.double() @ b.double()
    for got, wanted in (
        (L.matmul(a, b), exact), (L.matmul(a, b[1]), a.double() @ b[1].double()),
        (L.matmul(a[1], b), a[1].double() @ b.double()),
        (L.matmul(a[:, None], b), a.double()[:, None] @ b.double()),
    ):  # fmt: skip
        assert error(got, wanted) < BOUND["bfloat16"]
    for part, keep in (("lower", torch.tril), ("upper", torch.triu)):
        got = L.gemm(a[0], b[0], triangular_only=part, out_dtype=ts.f32)
        assert error(got, keep(exact[0])) < 4e-6
    offsets = torch.tensor([0, 70, 70, 200], dtype=torch.int32, device="cuda")
    got = L.gemm_grouped(a[0], b, offsets)
    wanted = torch.cat([a[0, :70].double() @ b[0].double(), a[0, 70:].double() @ b[2].double()])
    assert error(got, wanted) < BOUND["bfloat16"]


@pytest.mark.parametrize("split", [1, 2, 4, 8])
def test_deterministic_results_are_the_same_bits_on_every_run(torch: Any, split: int) -> None:
    a, b = random(torch, 64, 2048, kind="bfloat16"), random(torch, 2048, 256, kind="bfloat16")
    rows = torch.empty(64, device="cuda")
    chain = E.chain([E.row_sum(rows), E.gelu("tanh")])
    with ts.numerics.profile("deterministic"):
        first = L.gemm(a, b, epilogue=chain, split_k=split)
        sums = rows.clone()
        for _ in range(100):
            assert torch.equal(L.gemm(a, b, epilogue=chain, split_k=split), first)
            assert torch.equal(rows, sums)
