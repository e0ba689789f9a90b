"""Graphs whose images lie channels last, beside eager PyTorch in float64: results, gradients, strides."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
nn: Any = torch.nn
F: Any = torch.nn.functional

from tessera.torch.compiled import backend as compiled  # noqa: E402 - only where PyTorch is
from tessera.torch.compiled import channels_last  # noqa: E402
from tessera.torch.compiled.sizes import Unknown  # noqa: E402


@pytest.fixture(autouse=True)
def _last() -> Iterator[None]:
    torch._dynamo.reset()
    compiled.reports.clear()
    torch.manual_seed(0)
    token = channels_last.WANTED.set(True)
    yield
    channels_last.WANTED.reset(token)


def step(run: Callable[..., Any], given: list[Any], by: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return results, and gradients by weights of a seed."""
    found = run(*given)
    results = [*found] if isinstance(found, tuple) else [found]
    torch.manual_seed(1)
    weights = [torch.randn(one.shape, dtype=torch.float64).to(one) for one in results]
    return [one.detach() for one in results], [*torch.autograd.grad(results, by, weights)] if by else []


def check(function: Any, *given: Any, run: Callable[..., Any] | None = None) -> None:
    """Compare both ways with eager, in float64."""
    run = run or torch.compile(function, backend=compiled.backend)
    floats = [one.detach().requires_grad_() for one in given]
    by = [*floats, *(function.parameters() if isinstance(function, nn.Module) else ())]
    for got, wanted in zip(step(run, floats, by), step(function, floats, by), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)
        assert [one.stride() for one in got] == [one.stride() for one in wanted]


def wide(*shape: int) -> Any:
    return torch.randn(shape, dtype=torch.float64)


def test_forms_of_convolutions() -> None:
    def forms(x: Any, deep: Any, half: Any, b: Any, up: Any) -> Any:
        y = F.conv2d(x, deep, groups=4, dilation=2, padding=(2, 1))
        return F.conv_transpose2d(F.conv2d(y, half, b, (2, 1), groups=2), up, b[:3], (2, 3), 1, (1, 2))

    shapes = (3, 4, 9, 7), (4, 1, 3, 3), (6, 2, 3, 1), (6,), (6, 3, 2, 3)
    check(forms, *(wide(*shape) for shape in shapes))


class Net(nn.Module):
    """Norms and parts between convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 4, 3), nn.Conv2d(8, 4, 1, bias=False)
        self.norm, self.groups = nn.BatchNorm2d(4), nn.GroupNorm(2, 4)
        self.double()

    def forward(self, x: Any) -> Any:
        y = self.norm(self.one(x)).tanh()
        z = self.groups(self.two(torch.cat([y, y * y.mean((2, 3), True)], 1)))
        return z.mean((2, 3)), z.flatten(1)


def test_a_network_both_ways() -> None:
    check(Net(), wide(4, 3, 8, 7))
    forward, backward = compiled.reports
    assert {*forward.left, *backward.left} == {"aten.convolution.default", "aten.convolution_backward.default"}


def test_pools_and_sizes() -> None:
    def function(x: Any, w: Any) -> Any:
        y = F.conv2d(x, w)
        small = F.max_pool2d(y, 3, 2, 1)
        large = F.interpolate(small, scale_factor=2.0, mode="nearest")[:, :, 1:-1]
        return F.pad(large, (1, 0)), F.avg_pool2d(y, 2), F.pixel_shuffle(y, 2), y.permute(0, 2, 3, 1).softmax(-1)

    x, w = wide(2, 3, 9, 7), wide(4, 3, 2, 2)
    for got, wanted in zip(torch.compile(function, backend=compiled.backend)(x, w), function(x, w), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)
        assert got.stride() == wanted.stride()


def test_volumes_and_single_channels() -> None:
    check(lambda x, w: F.conv3d(F.conv3d(x, w, padding=1), w), wide(1, 2, 5, 4, 6), wide(2, 2, 3, 3, 3))
    check(lambda x, w: F.conv2d(F.conv2d(x, w), w).sin(), wide(1, 1, 6, 5), wide(1, 1, 3, 3))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_images_given_channels_last(place: int) -> None:
    def function(x: Any, w: Any, y: Any) -> Any:
        z = F.conv2d(x, w, padding=1)
        return z, z.sin(), (z + y).contiguous(), z.reshape(-1)

    given = [wide(2, 3, 4, 4), wide(4, 3, 3, 3), wide(2, 4, 4, 4)]
    given[place] = given[place].to(memory_format=torch.channels_last)
    got, wanted = torch.compile(function, backend=compiled.backend)(*given), function(*given)
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)
    assert [one.stride() for one in got] == [one.stride() for one in wanted]
    assert got[2].view(2, 64).shape == (2, 64)


def test_batches_of_any_size() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Conv2d(4, 4, 1)).double()
    run = torch.compile(net, backend=compiled.backend, dynamic=True)
    for batch in (2, 5, 3):
        check(net, wide(batch, 3, 6, 5), run=run)
    assert len(compiled.reports) == 2
    torch._dynamo.reset()
    check(net[0], wide(0, 3, 6, 5))


def test_what_is_saved_is_taken_as_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.SiLU(), nn.Conv2d(4, 4, 3), nn.Tanh()).double()
    made: list[Any] = []
    monkeypatch.setattr(compiled, "Compiled", lambda converted: made.append(converted) or _compiled(converted))
    check(net, wide(3, 3, 6, 5))
    turned = [order for _, order in made[1].turned]
    assert turned == [(0, 2, 3, 1)] * len(turned)
    assert len(turned) == 3  # both convolutions' results, and the image of the second one


_compiled = compiled.Compiled


def test_a_backward_graph_that_runs_as_it_was_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_forward(traced: Any, layout: Any, *shown: Any) -> Any:
        if layout.visible is None:
            raise Unknown("nothing")
        return converter(traced, layout, *shown)

    converter = compiled.Converter
    monkeypatch.setattr(compiled, "Converter", only_forward)
    check(lambda x, w: F.conv2d(F.conv2d(x, w).tanh(), w).flatten(1), wide(2, 3, 6, 8), wide(3, 3, 3, 3))
    assert [report.reason for report in compiled.reports] == ["", "nothing"]


def test_moments_of_many_rows() -> None:
    def function(x: Any, w: Any) -> Any:
        y = F.conv2d(x, w) + 100
        return *torch.var_mean(y, (0, 2, 3), correction=0), y.var((2, 3)), F.instance_norm(y[:, :2, :3, :3])

    x, w = wide(3, 2, 48, 25), wide(5, 2, 1, 1)
    volumes = torch.compile(lambda x, w: F.conv3d(x, w).var((2, 3)), backend=compiled.backend)
    x3, w3 = x[:, :, None, :6], w[..., None]
    torch.testing.assert_close(volumes(x3, w3), F.conv3d(x3, w3).var((2, 3)), rtol=1e-9, atol=0)
    for one, other in zip(torch.compile(function, backend=compiled.backend)(x, w), function(x, w), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    got = torch.compile(lambda *given: function(*given)[:2], backend=compiled.backend)(x.float(), w.float())
    for one, other in zip(got, function(x, w)[:2], strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=0)


def test_counters_and_statistics_are_changed_together() -> None:
    net = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)).double()
    other, x = copy.deepcopy(net), wide(3, 2, 4, 5)
    with torch.no_grad():
        torch.compile(net, backend=compiled.backend)(x)
        other(x)
    torch.testing.assert_close(net.state_dict(), other.state_dict())


def test_rounding_is_no_worse_than_eager() -> None:
    net = nn.Sequential(nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU())
    exact, net = copy.deepcopy(net).double(), net.bfloat16()
    exact.load_state_dict(net.state_dict())
    x = torch.randn(4, 8, 9, 11).bfloat16()
    with torch.no_grad():
        wanted, eager, got = exact(x.double()), net(x), torch.compile(net, backend=compiled.backend)(x)
    assert float((got.double() - wanted).norm()) <= 2 * float((eager.double() - wanted).norm())


@pytest.mark.parametrize(
    ("device", "dtype", "ins", "groups", "wanted"),
    [
        ("cuda", "bfloat16", 64, 1, True),
        ("cuda", "float16", 64, 64, True),
        ("cuda", "bfloat16", 64, 4, False),
        ("cuda", "bfloat16", 3, 1, False),
        ("cuda", "float64", 64, 1, False),
        ("cpu", "bfloat16", 64, 1, False),
    ],
)
def test_the_rule(device: str, dtype: str, ins: int, groups: int, wanted: bool) -> None:
    one = channels_last._Convolution(device, getattr(torch, dtype), ins // groups, 64 // groups, groups, 1)
    assert channels_last._pays([one]) == wanted


def test_views_among_results_of_dynamic_sizes() -> None:
    """PyTorch makes such results anew from their strides."""

    def function(x: Any, w: Any) -> Any:
        y = F.conv2d(x, w, padding=1).relu()
        return y.flatten(0, 1), y[:, :, 1 : x.shape[2] - 1], x[:, :, 1:3]

    run = torch.compile(function, backend=compiled.backend, dynamic=True)
    for height in (6, 8):
        check(function, wide(2, 3, height, 8), wide(4, 3, 3, 3), run=run)


def test_norms_of_rounded_numbers() -> None:
    def function(x: Any, w: Any) -> Any:
        z = (F.conv2d(x, w) * 1e-3 + 1).float().bfloat16().float()
        return F.batch_norm(z, None, None, training=True)

    x, w = wide(2, 3, 6, 8), wide(4, 3, 3, 3)
    found = torch.compile(function, backend=compiled.backend)(x, w)
    torch.testing.assert_close(found, function(x, w), rtol=1e-3, atol=1e-3)


def test_sizes_that_only_a_call_can_tell() -> None:
    def function(x: Any, w: Any, m: Any) -> Any:
        return F.conv2d(x[m.nonzero().squeeze(1)], w).relu()

    x, w, m = wide(3, 3, 6, 8), wide(4, 3, 3, 3), torch.tensor([True, False, True])
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        found = torch.compile(function, backend=compiled.backend)(x, w, m)
    torch.testing.assert_close(found, function(x, w, m), rtol=1e-9, atol=1e-9)
