"""Training steps cut in two: which ops become one before, beside PyTorch's own choice."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from functorch.compile import aot_function, make_boxed_func, nop  # noqa: E402 - only where PyTorch is
from torch._functorch.compile_utils import fx_graph_cse  # noqa: E402

from tessera.torch.compiled import backend as compiled  # noqa: E402
from tessera.torch.compiled.sharing import partition, share  # noqa: E402


def shared(function: Any, *args: Any) -> tuple[Any, Any]:
    """Return a traced training step as it is shared here and by PyTorch."""
    found: list[Any] = []

    def cut(joint: Any, inputs: Any, **facts: Any) -> Any:
        expected = fx_graph_cse(joint.graph)
        share(joint.graph)
        found.extend([joint.graph, expected])
        return torch._functorch.partitioners.default_partition(joint, inputs, **facts)

    aot_function(function, fw_compiler=nop, partition_fn=cut)(*args)
    return found[0], found[1]


def listed(graph: Any) -> list[Any]:
    graph.eliminate_dead_code()
    return [(str(node.target), [str(each) for each in node.all_input_nodes]) for node in graph.nodes]


def results(x: Any, y: Any) -> Any:
    return x * y, x * y, (x + 1.0).sum(), (x + 1.0).mean(), x.view(-1), x.view(-1)


def inside(x: Any, y: Any) -> Any:
    return (torch.sin(x) @ y + torch.sin(x) @ y).sum() + (x.transpose(0, 1) + x.transpose(0, 1)).sum()


def chance(x: Any, y: Any) -> Any:
    return (torch.rand_like(x) - torch.rand_like(x)) * x + torch.dropout(y, 0.5, True) + torch.dropout(y, 0.5, True)


@pytest.mark.parametrize("function", [results, inside, chance])
def test_ops_that_compute_the_same_become_one_where_pytorch_makes_them_one(function):
    args = [torch.randn(4, 4, requires_grad=True) for _ in range(2)]
    ours, expected = shared(function, *args)
    assert listed(ours) == listed(expected)


def test_constants_that_compare_equal_stay_apart():
    graph = torch.fx.symbolic_trace(lambda x: (x, x, x, x)).graph
    x = next(iter(graph.nodes))
    with graph.inserting_before(graph.output_node()):
        values = (0.0, -0.0, 0, False, 0.0, torch.float32, torch.device("cpu"), torch.device("cpu"))
        for value in values:
            graph.call_function(torch.ops.aten.mul.Tensor, (x, [value]))
    share(graph)
    assert len([node for node in graph.nodes if node.op == "call_function"]) == len(values) - 2


def test_a_write_keeps_what_is_read_before_and_after_apart():
    graph = torch.fx.symbolic_trace(lambda x: x).graph
    x = next(iter(graph.nodes))
    with graph.inserting_before(graph.output_node()):
        for target in ("sin", "sin", "zero_", "sin"):
            graph.call_function(getattr(torch.ops.aten, target).default, (x,))
    share(graph)
    assert [str(node.target) for node in graph.nodes][1:-1] == [
        f"aten.{name}.default" for name in ("sin", "zero_", "sin")
    ]


class Codes(torch.nn.Module):
    """Nearest codes, which move towards what they stand for."""

    def __init__(self):
        super().__init__()
        self.register_buffer("codes", torch.randn(6, 4))

    def forward(self, x):
        place = (x[:, None] - self.codes).pow(2).sum(-1).argmin(1)
        code = self.codes[place]
        with torch.no_grad():
            self.codes.lerp_(torch.nn.functional.one_hot(place, 6).to(x.dtype).t() @ x.detach(), 0.5)
        return ((x - code) ** 2).sum()


class Running(torch.nn.Module):
    """A norm by statistics that follow it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("var", torch.ones(4))

    def forward(self, x):
        y = (x - self.mean.clone()) * torch.rsqrt(self.var + 1e-5)
        with torch.no_grad():
            self.mean.lerp_(x.mean(0), 0.1)
            self.var.lerp_(x.var(0), 0.1)
        return y.tanh().sum()


class Doubled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("held", torch.randn(8, 4))

    def forward(self, x):
        old = self.held[:, :] * 2
        self.held.add_(1)
        return (x.sin() * old).sum()


@pytest.mark.parametrize("kind", [Codes, Running, Doubled])
def test_backward_computes_with_buffers_as_they_were(kind):
    torch.manual_seed(1)
    ours, theirs = kind(), kind()
    theirs.load_state_dict(ours.state_dict())
    run = torch.compile(ours, backend=compiled.backend)
    for _ in range(3):
        x = torch.randn(8, 4) * 3 + 1
        one, other = (x.clone().requires_grad_() for _ in range(2))
        found, wanted = run(one), theirs(other)
        found.backward()
        wanted.backward()
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(one.grad, other.grad)
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


PICKS = {
    "amax": lambda y: y.amax(1),
    "amin of columns": lambda y: y.amin(0),
    "max of all": lambda y: y.max() * y.sin(),
    "largest norm": lambda y: y.norm(p=float("inf"), dim=1),
    "k largest": lambda y: torch.where(y < y.topk(3, 1).values[:, -1:], torch.zeros_like(y), y),
    "k-th": lambda y: y * (y >= y.kthvalue(3, 1, keepdim=True).values),
    "equal ones": lambda y: y * (y.abs() == y.abs().amax(1, keepdim=True)),
    "largest of a place": lambda y: torch.zeros(3, 8).scatter_reduce(0, torch.zeros(4, 8).long(), y, "amax"),
}
COMPARED = [getattr(torch.ops.aten, name).Tensor for name in ("eq", "ne", "lt", "le", "gt", "ge")]


def before_picks(node: Any) -> set[Any]:
    """Return the nodes that compute: all others on the way move elements or choose among them."""
    computes = ("mul", "sub", "sin", "leaky_relu")
    if node.op == "placeholder" or any(f"aten.{name}." in str(node.target) for name in computes):
        return {node}
    return {each for one in node.all_input_nodes for each in before_picks(one)}


@pytest.mark.parametrize("pick", PICKS.values(), ids=PICKS)
def test_backward_compares_what_forward_computed(pick):
    graphs: list[Any] = []
    function = lambda x: pick(torch.nn.functional.leaky_relu(x * 1.5 - x.sin(), 0.2))  # noqa: E731 - a graph
    keep = lambda graph, _: graphs.append(graph) or make_boxed_func(graph)  # noqa: E731 - a compiler
    x = torch.randn(4, 8, requires_grad=True)
    run = aot_function(function, fw_compiler=nop, bw_compiler=keep, partition_fn=partition)
    found, wanted = run(x), function(x)
    weights = torch.randn_like(found)
    ours, theirs = (torch.autograd.grad(one, x, weights)[0] for one in (found, wanted))
    torch.testing.assert_close(ours, theirs)
    (graph,) = graphs
    compares = [node for node in graph.graph.nodes if node.target in COMPARED]
    masks = [one for one in graph.graph.nodes if one.op == "placeholder" and one.meta["val"].dtype == torch.bool]
    assert compares or masks
    assert all(one.op == "placeholder" for node in compares for one in before_picks(node))


@pytest.mark.parametrize("dims", [(2, 3), (1, 2, 3)])
def test_extremes_of_normalised_images_get_their_gradients(dims):
    def function(x, weight):
        image = torch.nn.functional.instance_norm(x, weight=weight, bias=weight)
        return torch.nn.functional.leaky_relu(image, 0.2).amax(dims)

    run = torch.compile(function, backend=compiled.backend, dynamic=True)
    x, weight = torch.randn(11, 6, 5, 5, requires_grad=True), torch.randn(6, requires_grad=True)
    found, wanted = run(x, weight), function(x, weight)
    upon = torch.randn_like(found)
    torch.testing.assert_close(found, wanted)
    pairs = zip(*(torch.autograd.grad(one, (x, weight), upon) for one in (found, wanted)), strict=True)
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
