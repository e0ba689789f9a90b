"""What PyTorch's trees of CUDA graphs are asked for; recording itself needs a GPU (`tests/device/test_graphs.py`)."""

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tessera.torch.compiled import backend as compiled  # noqa: E402 - only where PyTorch is
from tessera.torch.compiled import cuda_graphs  # noqa: E402


class Trees:
    """Stands for the trees: a run is recorded once for each set of integers, and replayed with their first results."""

    def __init__(self):
        self.static: list[list[int]] = []
        self.kinds: list[bool] = []

    def cudagraphify_impl(self, run: Any, inputs: Any, static: Any, *, is_backward: bool, **_facts: Any) -> Any:
        integers = [at for at, one in enumerate(inputs) if isinstance(one, int)]
        recorded: dict[Any, Any] = {}
        self.static.append([*static])
        self.kinds.append(is_backward)

        def replay(given: list[Any]) -> Any:
            key = tuple(given[at] for at in integers)
            if key not in recorded:
                recorded[key] = run(list(given))
            return recorded[key]

        return replay

    def get_manager(self, _device: int, create_if_none_exists: bool) -> None:
        return None


@pytest.fixture
def trees(monkeypatch):
    torch._dynamo.reset()
    trees, part = Trees(), cuda_graphs._part
    checks = SimpleNamespace(
        check_for_skip=lambda *_: None,
        get_device_index=lambda _: 0,
        get_stack_traces=lambda _: [],
        find_input_mutations=lambda _: set(),
    )
    stubs = {"_inductor.cudagraph_trees": trees, "_dynamo.backends.cudagraphs": checks}
    monkeypatch.setattr(cuda_graphs, "_part", lambda name: stubs.get(name) or part(name))
    return trees


def compiled_graph(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend=compiled.backend, mode="reduce-overhead", **options)


def test_each_integer_has_graphs_of_its_own(trees):
    x = torch.ones(3)
    run = compiled_graph(lambda x, k: x * k + 1, dynamic=True)
    for k in (2, 3, 5, 7):
        torch.testing.assert_close(run(x, k), x * k + 1)
    mean = compiled_graph(lambda x: x.sum(0) / x.shape[0], dynamic=True)
    for rows in (4, 5, 6, 7):
        torch.testing.assert_close(mean(torch.ones(rows, 2)), torch.ones(2))
    assert trees.static


def test_parameters_are_where_they_were(trees):
    module = torch.nn.Linear(4, 5)
    compiled_graph(module)(torch.randn(3, 4)).sum().backward()
    assert trees.kinds == [False, True]
    assert len(trees.static[0]) >= 2  # the weight and the bias


def test_a_backward_graph_that_is_not_recorded(trees, monkeypatch):
    facts = cuda_graphs._Facts
    reasons = iter([None, "skipped"])

    class Facts(facts):
        def __init__(self, traced: Any, fixed: Any) -> None:
            super().__init__(traced, fixed)
            self.reason = next(reasons, "skipped")

    monkeypatch.setattr(cuda_graphs, "_Facts", Facts)
    x = torch.randn(3, 4, requires_grad=True)
    compiled_graph(lambda x: x.sin().sum(), dynamic=True)(x).backward()
    torch.testing.assert_close(x.grad, x.detach().cos())


def test_a_mode_that_there_is_not():
    torch._dynamo.reset()
    with pytest.raises(Exception, match="mode is 'fast'"):
        torch.compile(lambda x: x + 1, backend=compiled.backend, mode="fast")(torch.ones(2))
