"""Matrix products and epilogues on a real GPU, against PyTorch in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
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
        return torch.randint(0 if kind == "uint8" else -100, 100, shape, device="cuda").to(getattr(torch, kind))
    return torch.randn(shape, device="cuda").to(getattr(torch, kind))


def error(got: Any, exact: Any) -> float:
    return float((got.double() - exact).abs().max() / exact.abs().max().clamp_min(1e-30))


def bound(got: Any) -> float:
    return BOUND[str(got.dtype).removeprefix("torch.")]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(300, 333, 777), (512, 256, 1024), (1, 4096, 512)])
@pytest.mark.parametrize("trans", [(False, False), (False, True), (True, False), (True, True)])
def test_every_dtype_and_layout(torch: Any, kind: str, shape: tuple[int, int, int], trans: tuple[bool, bool]) -> None:
    m, n, k = shape
    a = random(torch, *((k, m) if trans[0] else (m, k)), kind=kind)
    b = random(torch, *((n, k) if trans[1] else (k, n)), kind=kind)
    got = L.gemm(a, b, trans_a=trans[0], trans_b=trans[1])
    exact = (a.double().t() if trans[0] else a.double()) @ (b.double().t() if trans[1] else b.double())
    assert error(got, exact) <= bound(got)


@pytest.mark.parametrize("trans", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("shape", [(300, 256, 200), (1000, 776, 332), (12, 516, 2052), (1000, 777, 333)])
def test_tf32_is_as_exact_as_rounded_operands_allow(
    torch: Any, shape: tuple[int, int, int], trans: tuple[bool, bool]
) -> None:
    m, n, k = shape
    a = random(torch, *((k, m) if trans[0] else (m, k)))
    b = random(torch, *((n, k) if trans[1] else (k, n)))
    bias, rest = random(torch, n), random(torch, m, n)
    exact = (a.double().t() if trans[0] else a.double()) @ (b.double().t() if trans[1] else b.double())
    options: dict[str, Any] = dict(trans_a=trans[0], trans_b=trans[1], compute=ts.tf32)
    out = torch.full((m, n), float("nan"), device="cuda")
    got = L.gemm(a, b, out=out, **options)
    # Rounding both operands to nearest gives 2.9e-4, dropping bits twice that.
    assert float((got.double() - exact).norm() / exact.norm()) < 3.5e-4
    chain = E.chain([E.bias(bias), E.relu(), E.residual(rest)])
    got = L.gemm(a, b, epilogue=chain, **options)
    assert error(got, (exact + bias.double()).relu() + rest.double()) < 2e-3


@pytest.mark.parametrize("trans", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("shape", [(300, 333, 777), (1024, 1000, 512), (130, 2048, 2051), (2, 500, 260, 300)])
def test_f32_in_halves_is_no_less_exact(torch: Any, shape: tuple[int, ...], trans: tuple[bool, bool]) -> None:
    *batch, m, n, k = shape
    a = random(torch, *batch, *((k, m) if trans[0] else (m, k)))
    b = random(torch, *((n, k) if trans[1] else (k, n)))
    run: Any = L.gemm_batched if batch else L.gemm
    got = run(
        a,
        b,
        trans_a=trans[0],
        trans_b=trans[1],
        mma_kind="wgmma" if torch.cuda.get_device_capability()[0] == 9 else None,
    )
    left, right = a.mT if trans[0] else a, b.mT if trans[1] else b
    exact = left.double() @ right.double()
    assert error(got, exact) <= max(2 * error(left @ right, exact), 1e-6)


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan"), 3e38, 1e30, 1e-38])
def test_f32_in_halves_of_numbers_that_halves_do_not_hold(torch: Any, value: float) -> None:
    a, b = random(torch, 2048, 1024), random(torch, 1024, 1024)
    bias = random(torch, 1024)
    a[1117, 5] = value
    got = L.gemm(a, b, epilogue=E.chain([E.bias(bias), E.relu()]))
    torch.testing.assert_close(got, torch.relu(a @ b + bias), rtol=1e-4, atol=1e-3, equal_nan=True)


def test_tf32_rounds_to_nearest_even_on_hopper(torch: Any) -> None:
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("other GPUs use mma.sync, whose operands round ties away from zero")
    x = random(torch, 128, 128)
    bits = x.view(torch.int32)
    bits[::2] = (bits[::2] & -8192) | 4096  # ties
    rounded = ((bits + 4095 + ((bits >> 13) & 1)) & -8192).view(torch.float32)
    eye = torch.eye(128, device="cuda")
    for trans in ((False, False), (False, True), (True, False), (True, True)):
        a, b = (x.t().contiguous() if turn else x for turn in trans)
        options: dict[str, Any] = dict(trans_a=trans[0], trans_b=trans[1], compute=ts.tf32)
        assert torch.equal(L.gemm(a, eye, **options), rounded)
        assert torch.equal(L.gemm(eye, b, **options), rounded)


def test_strides_and_sizes_of_zero(torch: Any) -> None:
    a, b = random(torch, 300, 256), random(torch, 256, 200)
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


def test_the_weight_of_a_step_counts_in_every_call(torch: Any) -> None:
    @ts.function
    def twice(self: Any, x: Any, rows: Any, cols: Any, batch: Any) -> Any:
        return x + x

    a = random(torch, 2048, 2048, kind="bfloat16")
    elements: list[int] = []
    for weight in (0, 2, 0):
        L.gemm(a, a, epilogue=E.chain([E.step(twice, weight=weight)]))
        plan = L.gemm.explain()["plan"]
        elements.append(plan["block_m"] * plan["block_n"])
    assert elements[0] == elements[2] > elements[1]


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
        (2.0, random(torch, 1)),
        (random(torch, m), random(torch, n)),
        (random(torch, m, 8), random(torch, 8, 4)),
        (random(torch, 3, 8), random(torch, 8, n)),
        (None, random(torch, 8, 4)),
    ):
        scales = dict(trans_b=True, scale_a=scale_a, scale_b=scale_b)
        exact = torch.from_numpy(L.gemm.reference(a, b, **scales))
        # The matrix units add fp8 products with 14 bits, more terms with more error; promoted sums are of 128 terms.
        assert error(L.gemm(a, b, out_dtype=ts.f32, **scales).cpu(), exact) < 4e-3
        if scale_a is None or isinstance(scale_a, float) or scale_a.ndim == 1:
            promoted = L.gemm(a, b, out_dtype=ts.f32, promote=128, **scales)
            assert error(promoted.cpu(), exact) < 6e-4


def test_batches_groups_and_triangles(torch: Any) -> None:
    a, b = random(torch, 3, 200, 320, kind="bfloat16"), random(torch, 3, 320, 264, kind="bfloat16")
    exact = a.double() @ b.double()
    for got, wanted in (
        (L.matmul(a, b), exact),
        (L.matmul(a, b[1]), a.double() @ b[1].double()),
        (L.matmul(a[1], b), a[1].double() @ b.double()),
        (L.matmul(a[:, None], b), a.double()[:, None] @ b.double()),
    ):
        assert error(got, wanted) < BOUND["bfloat16"]
    for part, keep in (("lower", torch.tril), ("upper", torch.triu)):
        got = L.gemm(a[0], b[0], triangular_only=part, out_dtype=ts.f32)
        assert error(got, keep(exact[0])) < 4e-6
    offsets = torch.tensor([0, 70, 70, 200], dtype=torch.int32, device="cuda")
    got = L.gemm_grouped(a[0], b, offsets)
    wanted = torch.cat([a[0, :70].double() @ b[0].double(), a[0, 70:].double() @ b[2].double()])
    assert error(got, wanted) < BOUND["bfloat16"]


@pytest.mark.parametrize("block", [(64, 256, 64), (128, 128, 64), (64, 128, 64), (64, 64, 64)])
@pytest.mark.parametrize("shape", [(64, 256, 64), (1000, 776, 520), (3000, 2056, 136), (130, 264, 0), (1, 8, 8)])
def test_groups_of_consumers_that_take_tiles_in_turn(
    torch: Any, block: tuple[int, int, int], shape: tuple[int, int, int]
) -> None:
    m, n, k = shape
    a, b = random(torch, m, k, kind="bfloat16"), random(torch, k, n, kind="bfloat16")
    bias, rows = random(torch, n), torch.empty(m, device="cuda")
    out = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
    exact = a.double() @ b.double()
    assert error(L.gemm(a, b, out=out, block=block, ping_pong=True), exact) <= bound(out)
    out.fill_(float("nan"))
    chain = E.chain([E.bias(bias), E.gelu("tanh"), E.row_sum(rows)])
    L.gemm(a, b, out=out, block=block, ping_pong=True, epilogue=chain)
    wanted = torch.nn.functional.gelu(exact + bias.double(), approximate="tanh")
    assert error(out, wanted) <= bound(out)
    assert error(rows, wanted.sum(1)) < 1e-4
    first = out.clone()
    for _ in range(20):
        out.fill_(float("nan"))
        assert torch.equal(L.gemm(a, b, out=out, block=block, ping_pong=True, epilogue=chain), first)


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


def poisoned(torch: Any, m: int, n: int) -> Any:
    """Return a result whose elements are all wrong."""
    return torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)


ODD = [(1000, 777, 333), (129, 130, 131), (16, 255, 4095), (1, 65, 77), (300, 1, 129)]


@pytest.mark.parametrize("shape", ODD, ids=str)
@pytest.mark.parametrize("trans", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("pack", [None, False, True])
def test_operands_with_odd_rows(
    torch: Any, shape: tuple[int, int, int], trans: tuple[bool, bool], pack: bool | None
) -> None:
    m, n, k = shape
    a = random(torch, *((k, m) if trans[0] else (m, k)), kind="bfloat16")
    b = random(torch, *((n, k) if trans[1] else (k, n)), kind="bfloat16")
    left, right = (x.double().t() if turned else x.double() for x, turned in ((a, trans[0]), (b, trans[1])))
    for _ in range(4):  # the compiled entry serves later calls
        out = poisoned(torch, m, n)
        L.gemm(a, b, out=out, trans_a=trans[0], trans_b=trans[1], pack=pack)
        assert error(out, left @ right) < BOUND["bfloat16"]
    if pack is True and torch.cuda.get_device_capability() == (9, 0):
        assert L.gemm.explain()["plan"]["path"] == "wgmma"


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float8_e4m3fn", "int8"])
@pytest.mark.parametrize("pack", [None, True])
def test_views_that_begin_or_step_anywhere(torch: Any, kind: str, pack: bool | None) -> None:
    x, y = random(torch, 301, 402, kind=kind), random(torch, 402, 299, kind=kind)
    for a, b in (
        (x[:, 1:], y[1:]),
        (x[1:, :400], y[:400]),
        (x[::2, ::2], y[::2, ::3]),
        (x.t()[:300].t(), y[:300]),
        (x[:, 1:200], y[1:200]),
        (x[:1].expand(64, 402), y),
    ):
        got = L.gemm(a, b, pack=pack)
        assert error(got, a.double() @ b.double()) <= bound(got)


def test_an_array_times_itself_and_epilogues_after_copies(torch: Any) -> None:
    x, bias = random(torch, 333, 333, kind="bfloat16"), random(torch, 333, kind="bfloat16")
    assert error(L.gemm(x, x, pack=True), x.double() @ x.double()) < BOUND["bfloat16"]
    got = L.gemm(x, x, trans_b=True, pack=True)
    assert error(got, x.double() @ x.double().t()) < BOUND["bfloat16"]
    got = L.linear(x, x, bias, epilogue=E.chain([E.relu()]))
    assert error(got, (x.double() @ x.double().t() + bias).relu()) < BOUND["bfloat16"]
    a, b = random(torch, 5, 77, 129, kind="bfloat16"), random(torch, 129, 65, kind="bfloat16")
    for left, right in ((a, b.expand(5, 129, 65)), (a, random(torch, 5, 129, 65, kind="bfloat16"))):
        got = L.gemm_batched(left, right, pack=True)
        assert error(got, left.double() @ right.double()) < BOUND["bfloat16"]


def test_copies_in_a_graph_read_what_is_there_at_each_replay(torch: Any) -> None:
    a, b = random(torch, 1000, 333, kind="bfloat16"), random(torch, 333, 777, kind="bfloat16")
    out = poisoned(torch, 1000, 777)
    L.gemm(a, b, out=out, pack=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):
            L.gemm(a, b, out=out, pack=True)
    for _ in range(3):
        a.copy_(random(torch, 1000, 333, kind="bfloat16"))
        out.fill_(float("nan"))
        graph.replay()
        assert error(out, a.double() @ b.double()) < BOUND["bfloat16"]


def test_copies_on_two_streams_do_not_meet(torch: Any) -> None:
    streams = [torch.cuda.Stream() for _ in range(2)]
    sets = [(random(torch, 999, 777, kind="bfloat16"), random(torch, 777, 555, kind="bfloat16")) for _ in streams]
    outs: list[list[Any]] = [[], []]
    torch.cuda.synchronize()
    for _ in range(20):
        for stream, (a, b), found in zip(streams, sets, outs, strict=True):
            with torch.cuda.stream(stream):
                found.append(L.gemm(a, b, pack=True))
    torch.cuda.synchronize()
    for (a, b), found in zip(sets, outs, strict=True):
        assert all(error(got, a.double() @ b.double()) < BOUND["bfloat16"] for got in found)
    out = poisoned(torch, 999, 555)
    L.gemm(*sets[0], out=out, pack=True, stream=streams[1])
    streams[1].synchronize()
    assert error(out, sets[0][0].double() @ sets[0][1].double()) < BOUND["bfloat16"]


def test_device_arrays_are_copied_too(torch: Any) -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(shape, np.float32) for shape in ((300, 77), (77, 129)))
    a, b = (ts.asarray(array, device="cuda") for array in (x.astype(np.float16), y.astype(np.float16)))
    exact = x.astype(np.float16).astype(np.float64) @ y.astype(np.float16).astype(np.float64)
    for _ in range(4):
        got = L.gemm(a, b, pack=True).numpy().astype(np.float64)
        assert np.abs(got - exact).max() / np.abs(exact).max() < BOUND["float16"]
