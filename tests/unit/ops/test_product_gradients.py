"""Products of PyTorch tensors: gradients by autograd, and in `torch.compile`."""

import pytest

import tessera as ts
from tessera import ops as op

torch = pytest.importorskip("torch")

import tessera.torch  # noqa: E402 - only where PyTorch is

E, L = op.epilogue, op.linalg
SHAPES = [
    ((5, 7), (7, 3)),
    ((7,), (7, 3)),
    ((7,), (7,)),
    ((2, 5, 7), (7,)),
    ((2, 5, 7), (7, 3)),
    ((5, 7), (2, 7, 3)),
    ((4, 1, 5, 7), (2, 7, 3)),
    ((0, 5, 7), (7, 3)),
    ((2, 5, 0), (0, 3)),
]


def both(f, g, shapes, dtype, tolerance):
    """Compare two functions, and their gradients."""
    torch.manual_seed(0)
    given = [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]
    found, wanted = f(*given), g(*given)
    back = torch.randn_like(wanted)
    slopes = [torch.autograd.grad(one, given, back) for one in (found, wanted)]
    for one, other in zip((found, *slopes[0]), (wanted, *slopes[1]), strict=True):
        assert one.dtype == other.dtype
        assert one.is_contiguous()
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_products(shapes):
    both(op.matmul, torch.matmul, shapes, torch.float32, 1e-5)


@pytest.mark.parametrize("shapes", [((7,), (5, 7), (5,)), ((2, 3, 7), (5, 7)), ((4, 7), (5, 7), (5,))], ids=str)
def test_layers(shapes):
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.05)):
        both(L.linear, torch.nn.functional.linear, shapes, dtype, tolerance)
    whole = torch.compile(lambda *given: L.linear(*given).relu(), backend="tessera", fullgraph=True)
    both(whole, lambda *given: torch.nn.functional.linear(*given).relu(), shapes, torch.float32, 1e-5)


def test_turned_operands_and_wider_results():
    a, b = torch.randn(7, 5, dtype=torch.float64, requires_grad=True), torch.randn(3, 7, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda a: L.gemm(a, b, trans_a=True, trans_b=True), (a,))
    x = torch.randn(4, 6).bfloat16().requires_grad_()
    found = L.gemm_batched(x[None], torch.ones(1, 6, 2).bfloat16(), out_dtype=ts.f32)
    assert found.dtype == torch.float32
    (slope,) = torch.autograd.grad(found.sum(), x)
    assert slope.dtype == x.dtype
    assert (slope == 2).all()


def test_what_has_no_gradient_says_so():
    a, b = torch.randn(4, 5, requires_grad=True), torch.randn(5, 6)
    chain = E.chain([E.relu()])
    for call in (
        lambda: L.gemm(a, b, alpha=2.0),
        lambda: L.gemm(a, b, torch.zeros(4, 6), beta=1.0),
        lambda: L.gemm(a, b, epilogue=chain),
        lambda: L.linear(a, b.t(), epilogue=chain),
        lambda: L.gemm_grouped(a, b[None], torch.tensor([0, 4], dtype=torch.int32)),
    ):
        with pytest.raises(ts.errors.CallError, match="no-gradient"):
            call()
        with torch.no_grad():
            call()
    with pytest.raises(ts.errors.CallError, match="out-needs-no-gradient"):
        op.matmul(a, b, out=torch.empty(4, 6))


def test_operators():
    a, b, bias = (torch.randn(*size, requires_grad=True) for size in ((2, 3, 4), (4, 5), (5,)))
    torch.library.opcheck(torch.ops.tessera.product.default, (a, b, bias, None))


class Named(torch.Tensor):
    """A tensor of another class."""


def test_tensors_of_other_classes():
    a, b = torch.randn(3, 5), torch.randn(5, 4)
    named, out, wanted = a.as_subclass(Named), torch.zeros(3, 4), a @ b
    leaf = named.detach().requires_grad_()
    op.matmul(leaf, b).sum().backward()
    for found in (
        op.matmul(named, b),
        L.gemm(named, b),
        L.gemm(named, b, alpha=2.0) / 2,
        L.linear(named, b.T.contiguous()),
        op.matmul(named[None], b)[0],
        L.gemm(named, b, out=out),
        out,
    ):
        torch.testing.assert_close(found.as_subclass(torch.Tensor), wanted)
    torch.testing.assert_close(leaf.grad.as_subclass(torch.Tensor), b.sum(1).expand(3, 5))


@pytest.mark.parametrize(
    "write",
    [
        lambda x, h: L.gemm(x[0], torch.ones(2, 5), out=h[0]),
        lambda x, h: L.gemm(x[0], torch.ones(2, 5), alpha=2.0, out=h[0]),
        lambda x, h: op.matmul(x, torch.ones(2, 5), out=h),
        lambda x, h: L.linear(x, torch.ones(5, 2), out=h),
        lambda x, h: L.gemm_grouped(x[0], torch.ones(1, 2, 5), torch.tensor([0, 3], dtype=torch.int32), out=h[0]),
    ],
)
def test_results_that_a_gradient_needs_are_not_overwritten_silently(write):
    h, w = torch.randn(2, 3, 5), torch.randn(5, 4, requires_grad=True)
    found = op.matmul(h, w)
    write(torch.randn(2, 3, 2), h)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        found.sum().backward()


def test_results_that_need_gradients_are_refused():
    out = torch.zeros(3, 4, requires_grad=True)
    for run in (op.matmul, L.gemm):
        with pytest.raises(ts.CallError, match="out-needs-no-gradient"):
            run(torch.randn(3, 5), torch.randn(5, 4), out=out)
