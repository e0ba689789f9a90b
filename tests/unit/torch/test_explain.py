"""`tessera.torch.explain`, exported programs, and threads: beside eager PyTorch."""

import threading

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

import tessera as ts  # noqa: E402 - only where PyTorch is
import tessera.torch  # noqa: E402
from tessera.torch.compiled import backend as compiled  # noqa: E402


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    compiled.reports.clear()
    torch.manual_seed(0)


class Part(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up = torch.nn.LayerNorm(24), torch.nn.Linear(24, 16)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        return torch.softmax(F.gelu(self.up(self.norm(x))), -1)


@pytest.mark.parametrize("function", [torch.fft.fft, lambda x: torch.polar(x, x), lambda x: torch.complex(x, x) * 2])
def test_graphs_of_complex_numbers(function):
    x = torch.randn(4, 6, requires_grad=True)
    whole = torch.compile(function, backend=compiled.backend)
    found = ts.torch.explain(lambda: whole(x).abs().sum().backward())
    assert len(found.graphs) == 2


def test_graphs_both_ways_with_what_runs_as_aten():
    x = torch.randn(5, 5, requires_grad=True)
    whole = torch.compile(lambda x: torch.linalg.matrix_exp(x.sin()) * 2, backend=compiled.backend)
    found = ts.torch.explain(lambda: whole(x).sum().backward())
    forward, backward = found.graphs
    size = x.numel() * 4
    assert [(part.kind, part.read, part.written) for part in forward.parts if part.is_work] == [
        ("kernel", size, size),
        ("aten", size, size),
        ("kernel", size, size),
    ]
    assert forward.left == {"aten.linalg_matrix_exp.default": (1, 2 * size)}
    assert found.left["aten.linalg_matrix_exp.default"][0] == 1 + backward.left["aten.linalg_matrix_exp.default"][0]
    assert "runs as ATen: aten.linalg_matrix_exp.default" in str(found)
    assert found.html().count("<svg") == 4
    assert not compiled.watching


def test_what_is_not_tesseras():
    with pytest.raises(ts.CallError, match="ran nothing"):
        ts.torch.explain(torch.sin, torch.ones(3))

    def several(x, y):
        return x + 1, y + 1

    several = torch.compile(several, backend=compiled.backend)
    found = ts.torch.explain(several, torch.ones(4, 3), torch.ones(4, device="meta"))
    assert not found.graphs
    assert "several devices" in found.as_traced[0]
    assert "runs as PyTorch traced it" in str(found)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # of PyTorch's own code
@pytest.mark.parametrize("sizes", [(4,), (4, 7, 9)])
def test_exported_programs(sizes):
    module = Part()
    dims = None if len(sizes) == 1 else {"x": {0: torch.export.Dim("batch")}}
    program = torch.export.export(module, (torch.randn(4, 24),), dynamic_shapes=dims)
    for exported in (program, program.run_decompositions()):
        torch._dynamo.reset()
        compiled.reports.clear()
        whole = torch.compile(exported.module(), backend=compiled.backend)
        for size in sizes:
            x = torch.randn(size, 24)
            before = whole.calls.clone()
            found = whole(x)
            assert whole.calls == before + 1
            torch.testing.assert_close(found, module(x), rtol=1e-4, atol=1e-6)
        assert all(report.kernels and not report.reason for report in compiled.reports)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_gradients_of_exported_programs():
    module, x = Part(), torch.randn(6, 24)
    whole = torch.compile(torch.export.export(module, (x,)).module(), backend=compiled.backend)
    weights = torch.randn(6, 16)
    (whole(x) * weights).sum().backward()
    (module(x) * weights).sum().backward()
    for name, own in module.named_parameters():
        torch.testing.assert_close(whole.get_parameter(f"_orig_mod.{name}").grad, own.grad, rtol=1e-4, atol=1e-5)


def test_threads_that_call_first_at_the_same_time():
    module = Part()
    whole = torch.compile(module, backend=compiled.backend)
    xs = [torch.randn(6, 24) for _ in range(3)]
    wanted = [torch.softmax(F.gelu(module.up(module.norm(x))), -1) for x in xs]
    found, barrier = {}, threading.Barrier(len(xs))

    def run(number):
        barrier.wait()
        found[number] = whole(xs[number])

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(xs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, one in enumerate(wanted):
        torch.testing.assert_close(found[number], one, rtol=1e-4, atol=1e-6)
