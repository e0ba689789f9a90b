"""Gradients of library ops: each argument has one or is refused, and repeats give what ops as written give."""

import threading

import pytest

import tessera as ts
from tessera import op
from tessera.errors import CallError

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint  # noqa: E402

from tessera.ops.steps import STEPS, Gradient, Step, like  # noqa: E402
from tests.unit.ops import differentiable  # noqa: E402

CASES = differentiable.cases()
ARGUMENTS = [(name, one) for name, case in CASES.items() for one, of in case.arrays.items() if of.is_floating_point()]
REFUSED = {"no-gradient", "mask-needs-no-gradient", "out-needs-no-gradient"}
STEP = {torch.float64: 1e-6, torch.float32: 1e-2}
TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-2}


def test_each_array_of_an_op_is_in_a_call():
    known: dict[str, set[str]] = {}
    for case in CASES.values():
        known.setdefault(case.name, set()).update(case.arrays)
    wanted = differentiable.parameters()
    assert {name: set(arrays) - known.get(name, set()) for name, arrays in wanted.items()} == {
        name: set() for name in wanted
    }


def _floats(results):
    return [one for one in results if isinstance(one, torch.Tensor) and one.is_floating_point()]


@pytest.mark.parametrize(("name", "argument"), ARGUMENTS, ids=lambda one: str(one))
def test_an_argument_has_a_gradient_or_is_refused(name, argument):
    torch.manual_seed(3)
    case = CASES[name]
    leaf = case.arrays[argument].clone().requires_grad_()
    given = {**case.arrays, argument: leaf}
    with torch.no_grad():
        wanted = _floats(case.run(given))
    if _refusal(lambda: case.run(given)) is not None:
        return
    found = _floats(case.run(given))
    assert any(one.requires_grad for one in found) or not wanted
    if not wanted:
        return
    backs = [torch.randn_like(one) for one in found]
    slopes = []
    for _ in range(4):  # as written, twice to learn the forward and the backward pass, repeated
        found = _floats(case.run(given))
        followed = [(one, back) for one, back in zip(found, backs, strict=True) if one.requires_grad]
        slopes.append(_slope(followed, leaf))
        for one, other in zip(found, wanted, strict=True):
            assert torch.equal(one, other)
    assert all(torch.equal(one, slopes[0]) for one in slopes)
    along = torch.randn_like(leaf)
    step, ends = STEP[leaf.dtype], []
    for sign in (1, -1):
        with torch.no_grad():
            moved = _floats(case.run({**case.arrays, argument: leaf + sign * step * along}))
        ends.append(sum(float((one.double() * back.double()).sum()) for one, back in zip(moved, backs, strict=True)))
    expected = (ends[0] - ends[1]) / (2 * step)
    size = float((slopes[0].double() * along.double()).abs().sum())
    assert abs(float((slopes[0].double() * along.double()).sum()) - expected) <= TOLERANCE[leaf.dtype] * (size + 1)


def _refusal(call):
    """Return the code of the error that a call without gradient raises, None where it raises none."""
    try:
        call()
    except CallError as error:
        if error.code in REFUSED:
            return error.code
        raise
    return None


def _slope(followed, leaf):
    results, backs = zip(*followed, strict=True)
    return torch.autograd.grad(results, leaf, backs)[0]


def _normal(*shape):
    return torch.randn(*shape)


CALLS = {
    "rms": lambda x, y, w: op.norm.rms(x, 8, w, residual=y),
    "ln": lambda x, y, w: op.norm.ln(x * y, 8, w),
    "softmax": lambda x, y, w: op.softmax(x * y * w),
    "softmax of columns": lambda x, y, w: op.softmax(x + y * w, 0),
    "swiglu": lambda x, y, w: op.activation.swiglu(x, y * w),
    "sum": lambda x, y, w: op.reduce.sum(x * y * w, -1),
    "max": lambda x, y, w: op.reduce.max(x * y * w, -1),
    "cross entropy": lambda x, y, w: op.loss.cross_entropy(x * y * w, torch.arange(5)),
    "attention": lambda x, y, w: op.flash_attention(x[None, None], y[None, None], (x * w)[None, None], causal=True),
    "attention of one tensor": lambda x, y, w: op.flash_attention(*[(x * y * w)[None, None]] * 3),
    "dropout": lambda x, y, w: op.dropout(x * y * w, 0.5, seed=4),
    "scan": lambda x, y, w: op.scan((x * w).sigmoid()[None], y[None]),
}
USES = {
    "backward of all": lambda results, leaves: torch.autograd.grad(_total(results), leaves),
    "of one input alone": lambda results, leaves: torch.autograd.grad(_total(results), leaves[:1]),
    "expanded": lambda results, leaves: torch.autograd.grad([one.sum() for one in results], leaves),
    "not contiguous": lambda results, leaves: torch.autograd.grad(
        results, leaves, [torch.arange(one.numel() * 2.0).view(*one.shape, 2)[..., 0] for one in results]
    ),
    "kept and again": lambda results, leaves: (
        *torch.autograd.grad(_total(results), leaves, retain_graph=True),
        *torch.autograd.grad(_total(results), leaves),
    ),
    "of the first result": lambda results, leaves: torch.autograd.grad(results[0].cos().sum(), leaves),
    "with a hook": lambda results, leaves: (
        results[0].register_hook(lambda grad: grad * 2),
        _backward(results, leaves),
    )[1],
}


def _total(results):
    return sum((one * torch.linspace(-1, 2, one.numel()).view(one.shape)).sum() for one in results)


def _backward(results, leaves):
    _total(results).backward()
    return [one.grad for one in leaves]


def _leaves(dtype=torch.float32):
    torch.manual_seed(5)
    return [torch.randn(*shape, dtype=dtype).requires_grad_() for shape in ((5, 8), (5, 8), (8,))]


def _results(found):
    return _floats(found if isinstance(found, tuple) else (found,))


def _written(call, leaves, use):
    """Return what a use gives of ops as they are written: hooks of saved tensors keep PyTorch from one node a call."""
    with torch.autograd.graph.saved_tensors_hooks(lambda one: one, lambda one: one):
        results = _results(call(*leaves))
    assert "tessera" in str(results[0].grad_fn) or results[0].grad_fn.next_functions
    return use(results, leaves)


def _warm(call, times=4):
    for _ in range(times):
        leaves = _leaves()
        _backward(_results(call(*leaves)), leaves)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", CALLS)
def test_gradients_are_those_of_the_op_as_written(name, use):
    call = CALLS[name]
    wanted = _written(call, _leaves(), lambda results, leaves: USES[use](results, leaves))
    for _ in range(4):
        leaves = _leaves()
        found = USES[use](_results(call(*leaves)), leaves)
        for one, other in zip(found, wanted, strict=True):
            assert torch.equal(one, other)
            assert one.stride() == other.stride()


def _second(results, leaves):
    first = torch.autograd.grad(_total(results), leaves, create_graph=True)
    found = []
    code = _refusal(lambda: found.extend(torch.autograd.grad(sum(one.square().sum() for one in first), leaves)))
    return code, found


@pytest.mark.parametrize("name", CALLS)
def test_gradients_of_gradients_are_there_or_refused(name):
    _warm(CALLS[name])
    leaves = _leaves()
    code, found = _second(_results(CALLS[name](*leaves)), leaves)
    wanted_code, wanted = _written(CALLS[name], _leaves(), _second)
    assert code == wanted_code
    assert (code is None) == (name in ("sum", "max", "dropout"))  # linear: what they give needs no gradient again
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_compute_repeats_again(name, reentrant):
    call, leaves = CALLS[name], _leaves()
    _warm(call)
    wanted = _backward(_results(call(*leaves)), leaves)
    for _ in range(3):
        again = _leaves()
        found = _backward(_results(checkpoint(call, *again, use_reentrant=reentrant)), again)
        assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("name", CALLS)
def test_calls_without_gradients_have_none_and_the_same_results(name):
    call, leaves = CALLS[name], _leaves()
    _warm(call)
    wanted = _results(call(*leaves))
    for mode in (torch.no_grad, torch.inference_mode):
        for _ in range(4):
            with mode():
                found = _results(call(*leaves))
            assert not any(one.requires_grad for one in found)
            assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    with torch.autocast("cpu", torch.bfloat16):
        found = _results(call(*leaves))
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_what_a_gradient_needs_is_not_changed_silently():
    for call, place in (
        (lambda x, w: op.norm.rms(x, 8, w), 0),
        (lambda x, w: op.norm.rms(x, 8, w), 1),
        (lambda x, w: op.softmax(x), None),
        (lambda x, w: op.activation.swiglu(x, w.expand(5, 8).contiguous()), 0),
    ):
        for _ in range(4):
            given = [torch.randn(5, 8, requires_grad=True) * 1, torch.randn(8, requires_grad=True) * 1]
            found = call(*given)
            with torch.no_grad():
                (found if place is None else given[place]).add_(1)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                found.sum().backward()


def test_what_no_gradient_needs_may_change():
    for _ in range(4):
        x = torch.randn(5, 8, requires_grad=True)
        y = x * 1
        found = op.softmax(y)
        y.zero_()
        (grad,) = torch.autograd.grad(found[:, 0].sum(), x)
        assert torch.equal(grad, torch.autograd.grad(torch.softmax(x, -1)[:, 0].sum(), x)[0]) or grad.abs().max() > 0


def test_graphs_that_are_gone_are_refused():
    for _ in range(4):
        x = torch.randn(5, 8, requires_grad=True)
        found = op.softmax(x)
        found.sum().backward()
        with pytest.raises(RuntimeError, match="second time"):
            found.sum().backward()


def test_tensors_that_get_other_memory_are_read_there():
    for _ in range(5):
        x, w = torch.randn(5, 8, requires_grad=True), torch.nn.Parameter(torch.randn(8))
        found = op.norm.rms(x, 8, w)
        w.data = torch.cat([torch.zeros(1), w.detach()])[1:]
        found.backward(torch.ones(5, 8))
        leaves = [one.detach().clone().requires_grad_() for one in (x, w)]
        torch.nn.functional.rms_norm(leaves[0], (8,), leaves[1]).sum().backward()
        torch.testing.assert_close(x.grad, leaves[0].grad)
        torch.testing.assert_close(w.grad, leaves[1].grad)


def test_views_of_parameters_and_columns():
    for _ in range(4):
        base = torch.randn(9, 8, requires_grad=True)
        op.softmax(base[1:6]).square().sum().backward()
        op.softmax(base.t()[:, 2:]).square().sum().backward()
        other = base.detach().clone().requires_grad_()
        torch.softmax(other[1:6], -1).square().sum().backward()
        torch.softmax(other.t()[:, 2:], -1).square().sum().backward()
        torch.testing.assert_close(base.grad, other.grad)


def test_threads_compute_gradients_at_once():
    call = CALLS["rms"]
    _warm(call)
    wanted = _backward(_results(call(*_leaves())), [])
    leaves = _leaves()
    wanted = _backward(_results(call(*leaves)), leaves)
    wrong = []

    def run():
        for _ in range(50):
            made = [one.detach().clone().requires_grad_() for one in leaves]
            found = _backward(_results(call(*made)), made)
            wrong.extend([1] * (not all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not wrong


FUNCTIONAL = {
    "softmax": (lambda x: op.softmax(x), lambda x: torch.softmax(x, -1)),
    "rms": (lambda x: op.norm.rms(x, 8, x[0]), lambda x: torch.nn.functional.rms_norm(x, (8,), x[0])),
    "max": (lambda x: op.reduce.max(x, -1)[0], lambda x: x.max(-1)[0]),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.parametrize("name", FUNCTIONAL)
def test_functional_transforms_give_pytorchs_results_or_an_error(name):
    ours, theirs = ((lambda x, f=f: f(x).square().sum()) for f in FUNCTIONAL[name])
    torch.manual_seed(6)
    x = torch.randn(3, 5, 8)
    for _ in range(4):
        ours(x[0].clone().requires_grad_()).backward()
    for transform in (
        lambda f: torch.func.grad(f)(x[0]),
        lambda f: torch.func.vjp(f, x[0])[1](torch.tensor(2.0))[0],
        lambda f: torch.func.vmap(torch.func.grad(f))(x),
    ):
        torch.testing.assert_close(transform(ours), transform(theirs))
    for transform in (
        lambda f: torch.func.vmap(f)(x),
        lambda f: torch.func.jvp(f, (x[0],), (torch.ones_like(x[0]),)),
    ):
        with pytest.raises(CallError):
            transform(ours)
    with torch.autograd.forward_ad.dual_level(), pytest.raises(CallError, match="no-gradient"):
        ours(torch.autograd.forward_ad.make_dual(x[0], torch.ones_like(x[0])))


@pytest.mark.filterwarnings("ignore:Converting a tensor")
def test_numbers_that_are_tensors_with_gradients_are_refused():
    x, scale = torch.randn(4, 8, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    a, b = torch.randn(4, 5), torch.randn(5, 3)
    for call in (
        lambda: op.softmax(x, scale=scale),
        lambda: op.norm.rms(x, 8, eps=scale),
        lambda: op.linalg.gemm(a, b, alpha=scale),
        lambda: op.linalg.gemm(a, b, torch.ones(4, 3), beta=scale),
        lambda: op.linalg.linear(a, b.T, epilogue=op.epilogue.chain([op.epilogue.bias(scale.expand(3))])),
        lambda: op.linalg.gemm_grouped(
            a,
            b[None],
            torch.tensor([0, 4], dtype=torch.int32),
            epilogue=op.epilogue.chain([op.epilogue.bias(scale.expand(3))]),
        ),
    ):
        with pytest.raises(ts.CallError, match="no-gradient"):
            call()
        with torch.no_grad():
            call()


def test_results_in_given_arrays_have_no_gradients():
    x, w = torch.randn(4, 8, requires_grad=True), torch.randn(8)
    a, b, one = torch.randn(4, 5), torch.randn(5, 3), torch.ones(1, requires_grad=True)
    for call in (
        lambda: op.softmax(x, out=torch.empty(4, 8)),
        lambda: op.norm.rms(x, 8, w, out=torch.empty(4, 8)),
        lambda: op.reduce.sum(x, 1, out=torch.empty(4)),
        lambda: op.linalg.gemm(a, b, scale_a=one, out=torch.empty(4, 3)),
    ):
        with pytest.raises(ts.CallError, match="out-needs-no-gradient"):
            call()


def test_a_first_call_of_an_op_may_be_in_a_compiled_function():
    def launch(results, x):
        results[0].copy_(2 * x)

    def of(name, gradient=None):
        return Step(name, "(Tensor x) -> Tensor", lambda x: (like(x, x.shape),), launch, gradient)

    back = of("first_compiled_backward")
    step = of(
        "first_compiled", Gradient(back, lambda given, _: given, lambda _, grads, __: (grads[0],), lambda _: (0,))
    )
    try:
        x = torch.arange(6.0, requires_grad=True)
        made = torch.compile(lambda x: step(x)[0] + 1, backend="aot_eager", fullgraph=True)(x)
        made.backward(torch.arange(6.0))
    finally:
        STEPS.remove(step)
        STEPS.remove(back)
    assert made.tolist() == [1, 3, 5, 7, 9, 11]
    assert x.grad.tolist() == [0, 2, 4, 6, 8, 10]
