"""`torch.compile(backend="tessera")` beside eager PyTorch: models both ways, any size, what is left to ATen."""

import gc
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

import tessera as ts  # noqa: E402 - only where PyTorch is
from tessera.driver import variants  # noqa: E402 - only where PyTorch is
from tessera.torch.compiled import backend as compiled  # noqa: E402 - only where PyTorch is
from tessera.torch.compiled import registry  # noqa: E402
from tessera.torch.compiled.running import Kind  # noqa: E402


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    compiled.reports.clear()
    torch.manual_seed(0)


def run(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return torch.compile(function, backend=compiled.backend, **options)(*args)


def check(function: Callable[..., Any], *args: Any, rtol: float = 1e-4, atol: float = 1e-5, **options: Any) -> None:
    whole = torch.compile(function, backend=compiled.backend, **options)
    for given in (args, [other(arg) for arg in args]):  # the second run starts launches together
        torch.testing.assert_close(whole(*given), function(*given), rtol=rtol, atol=atol, equal_nan=True)


def other(arg: Any) -> Any:
    """Return a tensor with other numbers in other memory, which lies as one does."""
    if not isinstance(arg, torch.Tensor) or not arg.is_floating_point():
        return arg
    return (arg.detach().clone() * 0.75).requires_grad_(arg.requires_grad)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.inner = torch.nn.LayerNorm(64), torch.nn.LayerNorm(64)
        self.attention = torch.nn.MultiheadAttention(64, 4, batch_first=True)
        self.up, self.down = torch.nn.Linear(64, 128), torch.nn.Linear(128, 64)

    def forward(self, x):
        h = self.norm(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.down(F.gelu(self.up(self.inner(x))))


class Pixels(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = (
            torch.nn.Conv2d(3, 8, 3, padding=1),
            torch.nn.BatchNorm2d(8),
            torch.nn.Linear(8, 10),
        )

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        return F.log_softmax(self.head(F.adaptive_avg_pool2d(x, 1).flatten(1)), -1)


class Words(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.norm = torch.nn.Embedding(50, 16), torch.nn.RMSNorm(16)
        self.project = torch.nn.Linear(16, 48, bias=False)

    def forward(self, words):
        x = self.norm(self.table(words))
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.project(x).chunk(3, -1))
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        gate, up = found.chunk(2, -1)
        return F.silu(gate) * up


MODELS = {
    "block": (Block, lambda n: torch.randn(n, 8, 64)),
    "pixels": (Pixels, lambda n: torch.randn(n, 3, 16, 16)),
    "words": (Words, lambda n: torch.randint(0, 50, (n, 12))),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_forwards_and_backwards(name):
    make, inputs = MODELS[name]
    model, x = make(), inputs(3)
    twin = make()
    twin.load_state_dict(model.state_dict())
    wanted = model(x)
    weights = torch.randn_like(wanted)
    (wanted * weights).sum().backward()
    got = torch.compile(twin, backend=compiled.backend)(x)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    (got * weights).sum().backward()
    for one, other in zip(twin.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4)
    for one, other in zip(twin.buffers(), model.buffers(), strict=True):
        torch.testing.assert_close(one, other)
    assert all(report.kernels and not report.reason for report in compiled.reports)


def chain(x, w, b):
    y = F.gelu(F.layer_norm(x, (x.shape[-1],), w, b)) + x.mean(0, keepdim=True)
    weights = torch.softmax(y.transpose(0, 1).reshape(x.shape[1] // 2, -1, 2), 1)
    return weights, y.sum(), (y > 0).any(1), torch.arange(x.shape[0])


def test_new_sizes_need_no_compilation():
    whole = torch.compile(chain, backend=compiled.backend, dynamic=True)
    for rows, columns in ((6, 8), (10, 16), (7, 32), (100, 200)):
        given = torch.randn(rows, columns), torch.randn(columns), torch.randn(columns)
        torch.testing.assert_close(whole(*given), chain(*given), rtol=1e-4, atol=1e-3)
    (report,) = compiled.reports
    assert not report.left


def test_new_sizes_need_no_kernels_of_groups(monkeypatch: pytest.MonkeyPatch):
    made: list[str] = []
    needed = variants.compile_built
    monkeypatch.setattr(variants, "compile_built", lambda *given: made.append("") or needed(*given))
    run = torch.compile(lambda x, w: F.gelu(F.layer_norm(x * w, (7,))), backend=compiled.backend, dynamic=True)
    counts: list[int] = []
    with torch.no_grad():
        for batch, length in ((2, 11), (3, 15), (4, 19), (6, 20), (8, 64), (16, 32), (5, 48)):
            run(torch.randn(batch, length, 7), torch.randn(length, 1))
            counts.append(len(made))
    assert counts[0]
    assert len({*counts[1:]}) == 1


def test_integers_that_no_tensor_has():
    def function(x, n):
        return x * n + torch.arange(n).sum() + n // 2, x.sum() * (n + 1)

    whole = torch.compile(function, backend=compiled.backend, dynamic=True)
    x = torch.randn(4, dtype=torch.float64)
    for n in (3, 4, 7, 4):
        torch.testing.assert_close(whole(x, n), function(x, n))


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_elementwise_and_rows(dtype):
    kind = getattr(torch, dtype)
    tolerance = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 2e-2, "float16": 2e-3}[dtype]

    def function(x, y):
        z = torch.where(x > y, x.tanh() * 3, y.clamp(-1, 1)) / (1 + x * x)
        return z.sigmoid(), z.amax(-1), z.var(0), z.sum((0, 2)), F.silu(z).to(torch.float32), 1 - z.pow(3), F.elu(z)

    check(function, torch.randn(5, 6, 33, dtype=kind), torch.randn(6, 1, dtype=kind), rtol=tolerance, atol=tolerance)


def test_integers_and_truth():
    def function(a, b):
        sums = a.sum(), (a > b).any(0), a.max(), a.float().mean()
        return a + b, a // b, a % b, a & b, ~a, torch.logical_xor(a, b), a / b, *sums

    check(function, torch.randint(1, 99, (7, 9)), torch.randint(1, 99, (7, 9)))


def test_inputs_that_lie_in_any_way_and_outputs_that_are_views():
    def function(x, y):
        return x + y.t(), y.t(), x[1:, ::2], (x * 2).t(), torch.cat([x, y.t()], 1).split(5, 1)

    base = torch.randn(40, 60)
    check(function, base[::2, 10:20], base[:10, 5:25])
    wanted, got = function(base[::2, 10:20], base[:10, 5:25]), run(function, base[::2, 10:20], base[:10, 5:25])
    assert wanted[1].stride() == got[1].stride()
    assert wanted[3].stride() == got[3].stride()


def test_mutation_and_random_numbers():
    def function(x):
        x.add_(1)
        return F.dropout(x, 0.5) * 2

    x = torch.ones(1000)
    got = run(function, x)
    assert torch.equal(x, torch.full((1000,), 2.0))
    assert set(got.unique().tolist()) == {0.0, 8.0}


def test_what_has_no_row_runs_as_aten_and_is_reported():
    def function(x):
        return torch.linalg.qr(x)[0].abs().sum() + torch.fft.fft(x).real.sum()

    check(lambda x: torch.linalg.matrix_exp(x.sin()) * 2, torch.randn(5, 5))
    assert compiled.reports[-1].left == {"aten.linalg_matrix_exp.default": 1}
    check(function, torch.randn(5, 5))
    assert compiled.reports[-1].left == {"aten.linalg_qr.default": 1, "aten._fft_r2c.default": 1}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_ops_of_the_library(dtype):
    kind = getattr(torch, dtype)

    def function(x, table, words):
        sums = torch.cumsum(x, 1), x.max(0), x.min(-1, keepdim=True), x.argmax(1), x.argmin()
        rows = F.embedding(words, table), torch.index_select(x, 0, words[0])
        return *sums, *rows, x.norm(dim=1), x.norm(1), x.repeat(2, 3), F.pad(x, (1, 2, 0, 3))

    given = torch.randn(9, 33, dtype=kind), torch.randn(20, 7, dtype=kind), torch.randint(0, 9, (4, 5))
    check(function, *given, rtol=2e-2 if dtype == "bfloat16" else 1e-4, atol=2e-2 if dtype == "bfloat16" else 1e-4)
    assert not compiled.reports[-1].left


def test_the_end_of_a_graph_is_its_last_op():
    def function(x):
        y = (x.exp() + 1).cumprod(0)
        return torch.flip(y, (1,)).clamp(-1, 1).sum(1)

    x = torch.randn(6, 7, requires_grad=True)
    function(x).sum().backward()
    wanted, x.grad = x.grad, None
    run(function, x).sum().backward()
    torch.testing.assert_close(x.grad, wanted)


def test_what_has_no_row_may_be_refused():
    with pytest.raises(Exception, match=r"no row for aten\.linalg_matrix_exp"):
        run(lambda x: torch.linalg.matrix_exp(x), torch.randn(5, 5), options={"fallback": "error"})


def test_the_backend_is_found_by_its_name():
    assert "tessera" in torch._dynamo.list_backends()
    x = torch.randn(5)
    assert torch.allclose(torch.compile(torch.sin, backend="tessera")(x), x.sin())


def test_gradients_are_not_lost_in_silence():
    x = torch.randn(4, requires_grad=True)
    with pytest.raises(ts.CallError, match="gradients do not go through"):
        ts.jit(lambda x: x * 2)(x)
    with torch.no_grad():
        assert torch.equal(ts.jit(lambda x: x * 2)(x), x * 2)


def test_every_row_is_of_an_op_that_there_is():
    for name in registry.names():
        *space, packet, overload = name.split(".")
        assert hasattr(getattr(getattr(torch.ops, *space or ["aten"]), packet), overload), name


class Cells(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gated, self.remembers = torch.nn.GRUCell(8, 16), torch.nn.LSTMCell(16, 8)
        self.bare = torch.nn.GRUCell(8, 8, bias=False)

    def forward(self, x):
        h, held = x.new_zeros(x.shape[0], 16), (x.new_zeros(x.shape[0], 8),) * 2
        for _ in range(2):
            h = self.gated(x, h)
            held = self.remembers(h, held)
            x = self.bare(x, held[0])
        return x + held[1] + torch.eye(8)[2] * torch.tensor(3.0).sqrt()


def test_cells_of_recurrent_networks():
    model, x = Cells().double(), torch.randn(5, 8, dtype=torch.float64, requires_grad=True)
    by = [x, *model.parameters()]
    results = [run(x) for run in (torch.compile(model, backend=compiled.backend), model)]
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*(torch.autograd.grad(one.sin().sum(), by) for one in results))
    assert not any(report.left or report.reason for report in compiled.reports)


def test_kinds_of_calls():
    given = [torch.zeros(4, 6), torch.zeros(3, dtype=torch.int64)]
    kind = Kind(given)
    assert kind.check(torch.ones(4, 6), torch.ones(3, dtype=torch.int64))
    others = torch.zeros(6, 4), torch.zeros(6, 4).t(), torch.zeros(4, 6, 1), torch.zeros(4, 6).double()
    assert not any(kind.check(other, given[1]) for other in others)


def test_results_are_the_callers():
    whole = torch.compile(lambda x: (torch.exp(torch.arange(3.0)), x + torch.hann_window(4)), backend=compiled.backend)
    for _ in range(3):
        table, total = whole(torch.ones(4))
        torch.testing.assert_close(table, torch.exp(torch.arange(3.0)))
        torch.testing.assert_close(total, 1 + torch.hann_window(4))
        table.zero_(), total.zero_()


@pytest.mark.parametrize("boolean", [False, True])
def test_attention_with_a_mask_that_is_causal_too(boolean):
    q, k, v = (torch.randn(2, 2, 5, 8, dtype=torch.float64) for _ in range(3))
    mask = torch.rand(5, 5) > 0.3 if boolean else torch.randn(5, 5, dtype=torch.float64)
    mask = mask | torch.eye(5, dtype=torch.bool) if boolean else mask

    def function(q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=True)

    earlier = torch.ones(5, 5, dtype=torch.bool).tril()
    both = mask & earlier if boolean else mask.masked_fill(~earlier, float("-inf"))
    torch.testing.assert_close(run(function, q, k, v, mask), F.scaled_dot_product_attention(q, k, v, both))


def test_the_attention_of_a_program_stays_in_its_place():
    theirs = F.scaled_dot_product_attention
    patched = lambda *given: theirs(*given)  # noqa: E731
    F.scaled_dot_product_attention = patched
    try:
        check(lambda x: x + 1, torch.ones(3))
        assert F.scaled_dot_product_attention is patched
    finally:
        F.scaled_dot_product_attention = theirs
    check(lambda x: x + 2, torch.ones(3))
    assert F.scaled_dot_product_attention is theirs


def test_powers_of_integers():
    x, y = torch.tensor([2, 0, 3, -1, -1, 1, 2]), torch.tensor([64, 64, 70, 65, 130, 99, 10])
    check(lambda x, y: x**y, x, y)
    check(lambda x, y: x**y, x.int(), y.int())


SAME = {
    "cat": lambda x: torch.cat([x]),
    "cat of a part": lambda x: torch.cat([x[1:3]]),
    "cat with nothing": lambda x: torch.cat([x, x[:0]]),
    "stack": lambda x: torch.stack([x]),
    "roll": lambda x: torch.roll(x, 0, 0),
    "flip": lambda x: torch.flip(x, ()),
    "pad": lambda x: torch.nn.functional.pad(x, (0, 0)),
    "repeat": lambda x: x.repeat(1, 1),
    "copy": lambda x: x.to(x.dtype, copy=True),
    "transposed": lambda x: torch.cat([x.t()]),
    "sum of one": lambda x: x[:, :1].sum(1),
    "pool": lambda x: torch.nn.functional.avg_pool2d(x[None], 1)[0],
    "resized": lambda x: torch.nn.functional.interpolate(x[None, None], scale_factor=1)[0, 0],
    "view": lambda x: x[1:].t(),
    "two": lambda x: (x + 1, torch.cat([x + 1])),
    "two of one": lambda x: [(y := x + 1), torch.cat([y]), y.t()],
}
"""Functions whose results have elements of their arguments, or of one another."""


def leaves(found):
    return list(found) if isinstance(found, list | tuple) else [found]


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize("changes", [False, True])
def test_results_share_memory_as_those_of_pytorch_do(name, changes):
    def function(x):
        found = SAME[name](x)
        if changes:
            x.mul_(2)
        return found

    x = torch.randn(5, 4)
    twin = x.clone()
    found, wanted = run(function, x), function(twin)
    for _ in range(2):
        for one, theirs in zip(leaves(found), leaves(wanted), strict=True):
            torch.testing.assert_close(one, theirs)
            one += 3
            theirs += 3
        torch.testing.assert_close(x, twin)


def test_the_collector_does_not_run_while_a_graph_is_traced_and_cut(monkeypatch: pytest.MonkeyPatch):
    """It would look through all of PyTorch's objects, for a fifth of a second."""
    paused: list[bool] = []
    real = compiled.compile_graph

    def noted(*given: Any) -> Any:
        paused.append(not gc.isenabled())
        return real(*given)

    monkeypatch.setattr(compiled, "compile_graph", noted)
    check(lambda x: (x * 2).tanh(), torch.randn(40, 30))
    assert paused == [True]
    assert gc.isenabled()
