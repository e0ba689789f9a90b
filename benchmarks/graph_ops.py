"""Operators and chains of operators that `graph.py` measures: what programs call, at the sizes that they call it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

Work = tuple[Callable[..., Any], tuple[tuple[int, ...], ...], bool]
"""A function, the shapes of its operands, and whether it is differentiated."""

WIDE, ODD, IMAGE, ROWS = (4096, 4096), (2000, 3001), (32, 64, 56, 56), (16384, 1024)


def single(torch: Any) -> dict[str, Work]:
    """Return single operators."""
    f = torch.nn.functional
    found: dict[str, Work] = {}

    def add(name: str, function: Callable[..., Any], *shapes: tuple[int, ...]) -> None:
        found[f"op: {name}"] = (wrapped(function), shapes, False)

    for name in ("relu", "gelu", "silu", "mish", "elu", "softplus", "hardswish", "leaky_relu", "sigmoid", "tanh"):
        add(name, getattr(f, name) if hasattr(f, name) else getattr(torch, name), WIDE)
    for name in ("exp", "sin", "erf", "abs", "atan"):
        add(name, getattr(torch, name), ODD)
    add("rsqrt", lambda x: x.abs().rsqrt(), ODD)
    add("add", torch.add, WIDE, WIDE)
    add("add a row", torch.add, WIDE, (4096,))
    add("add a column", torch.add, WIDE, (4096, 1))
    add("pow", lambda x: x.abs() ** 2.5, WIDE)
    add("where", lambda x, y: torch.where(x > 0, x, y), WIDE, WIDE)
    add("clamp", lambda x: x.clamp(-1, 1), IMAGE)
    add("addcmul", lambda x, y, z: torch.addcmul(x, y, z), WIDE, WIDE, WIDE)
    add("lerp", lambda x, y: torch.lerp(x, y, 0.3), WIDE, WIDE)
    for name in ("sum", "mean", "amax", "var", "logsumexp"):
        add(f"{name} of rows", partial(getattr(torch, name), dim=-1), ROWS)
        add(f"{name} of columns", partial(getattr(torch, name), dim=0), ROWS)
    add("sum of all", torch.sum, WIDE)
    add("mean of images", lambda x: x.mean((2, 3)), IMAGE)
    add("argmax", lambda x: x.argmax(-1), ROWS)
    add("max", lambda x: x.max(-1).values, ROWS)
    add("norm", lambda x: torch.linalg.vector_norm(x, dim=-1), ROWS)
    add("cumsum", lambda x: x.cumsum(-1), ROWS)
    add("softmax", lambda x: x.softmax(-1), ROWS)
    add("softmax of columns", lambda x: x.softmax(1), (64, 256, 1024))
    add("log softmax", lambda x: x.log_softmax(-1), (2048, 50257))
    add("layer norm", lambda x, w, b: f.layer_norm(x, (1024,), w, b), ROWS, (1024,), (1024,))
    add("rms norm", lambda x, w: f.rms_norm(x, (1024,), w), ROWS, (1024,))
    add("group norm", lambda x, w, b: f.group_norm(x, 8, w, b), IMAGE, (64,), (64,))
    add("batch norm", lambda x, w, b: f.batch_norm(x, None, None, w, b, True), IMAGE, (64,), (64,))
    add("normalize", lambda x: f.normalize(x, dim=-1), ROWS)
    add("transpose", lambda x: x.t().contiguous(), WIDE)
    add("permute", lambda x: x.permute(0, 2, 1, 3).contiguous(), (16, 512, 16, 64))
    add("to channels last", lambda x: x.permute(0, 2, 3, 1).contiguous(), IMAGE)
    add("cat", lambda x, y: torch.cat((x, y), 1), WIDE, WIDE)
    add("stack", lambda x, y: torch.stack((x, y), 1), WIDE, WIDE)
    add("slice", lambda x: x[:, 64:-64].contiguous(), WIDE)
    add("flip", lambda x: x.flip(-1), WIDE)
    add("roll", lambda x: x.roll(3, -1), WIDE)
    add("pad", lambda x: f.pad(x, (1, 1, 1, 1)), IMAGE)
    add("repeat", lambda x: x.repeat(2, 2), (2048, 2048))
    add("tril", torch.tril, WIDE)
    add("gather", lambda x: x.gather(1, (x * 0).long() + 5), ROWS)
    add("max pool", lambda x: f.max_pool2d(x, 2), IMAGE)
    add("average pool", lambda x: f.avg_pool2d(x, 2), IMAGE)
    add("upsample", lambda x: f.interpolate(x, scale_factor=2), IMAGE)
    add("mse", lambda x, y: f.mse_loss(x, y), WIDE, WIDE)
    add("smooth L1", lambda x, y: f.smooth_l1_loss(x, y), WIDE, WIDE)
    add("cosine", lambda x, y: f.cosine_similarity(x, y), ROWS, ROWS)
    add("matmul", torch.matmul, (2048, 2048), (2048, 2048))
    add("linear", lambda x, w, b: f.linear(x, w, b), (4096, 1024), (1024, 1024), (1024,))
    add("bmm", torch.bmm, (64, 512, 64), (64, 64, 512))
    add("attention", lambda q, k, v: f.scaled_dot_product_attention(q, k, v), *[(8, 16, 1024, 64)] * 3)
    add("causal attention", lambda q: f.scaled_dot_product_attention(q, q, q, is_causal=True), (8, 16, 1024, 64))
    for name in ("gelu", "softmax", "layer norm", "batch norm", "group norm", "attention", "linear", "sum of columns"):
        function, shapes, _ = found[f"op: {name}"]
        found[f"op: {name}, both ways"] = (function, shapes, True)
    return found


def chains(torch: Any) -> dict[str, Work]:
    """Return chains of operators."""
    f = torch.nn.functional
    found: dict[str, Work] = {}

    def add(name: str, function: Callable[..., Any], *shapes: tuple[int, ...]) -> None:
        found[f"chain: {name}"] = (wrapped(function), shapes, False)

    add("points", lambda x, y: (x * y + 1).sigmoid() * x.tanh() - y.relu(), WIDE, WIDE)
    add("points, odd", lambda x, y: (x * y).exp().clamp(max=5) / (1 + x.abs()), ODD, ODD)
    add("points to a sum", lambda x, y: ((x - y) ** 2).sum(-1), ROWS, ROWS)
    add("points to all", lambda x, y: ((x - y).abs() * 0.5).mean(), WIDE, WIDE)
    add("images", lambda x, w, b: (x * w[:, None, None] + b[:, None, None]).relu(), IMAGE, (64,), (64,))
    add("softmax, scaled", lambda x, b: (x * 0.125 + b).softmax(-1) * 2, ROWS, (1024,))
    add("centred rows", lambda x: (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5), ROWS)
    add("centred columns", lambda x: (x - x.mean(0)) / (x.std(0) + 1e-5), ROWS)
    add("residual norm", lambda x, y, w: f.rms_norm(x + y, (1024,), w) * 0.5, ROWS, ROWS, (1024,))
    add("norm of channels", lambda x: (x / (x.norm(dim=1, keepdim=True) + 1e-6)).relu(), IMAGE)
    add("turned sum", lambda x, y: (x.t() + y).relu(), WIDE, WIDE)
    add("turned, softmax", lambda x: x.t().softmax(-1), WIDE)
    add("heads", lambda x: x.view(16, 512, 16, 64).transpose(1, 2).contiguous() * 0.125, (16, 512, 1024))
    add("halves", lambda x: f.silu(x[:, :2048]) * x[:, 2048:], WIDE)
    add("rotary", _rotary(torch), (8, 16, 1024, 64), (1024, 32), (1024, 32))
    add("linear, gelu", lambda x, w, b: f.gelu(f.linear(x, w, b)), (4096, 1024), (2048, 1024), (2048,))
    add("linear, relu, sum", lambda x, w: (x @ w).relu().sum(-1), (4096, 1024), (1024, 2048))
    add("two linears", lambda x, w, v: (x @ w).relu() @ v, (2048, 1024), (1024, 2048), (2048, 1024))
    add("bmm, softmax", lambda q, k: (q @ k.transpose(1, 2) * 0.125).softmax(-1), (64, 512, 64), (64, 512, 64))
    add("linear, norm", lambda x, w, g: f.rms_norm(x @ w, (1024,), g) + x, (4096, 1024), (1024, 1024), (1024,))
    add("cross entropy", lambda x: f.cross_entropy(x, torch.arange(2048, device=x.device)), (2048, 32000))
    add("pool, relu", lambda x: f.avg_pool2d(x.relu(), 2) * 2, IMAGE)
    add("many small", lambda x: ((x + 1) * 2 - 3).tanh().sum(), (64, 64))
    for name in ("points", "softmax, scaled", "residual norm", "images", "halves", "linear, gelu", "cross entropy"):
        function, shapes, _ = found[f"chain: {name}"]
        found[f"chain: {name}, both ways"] = (function, shapes, True)
    return found


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that `torch.compile` takes."""

    def run(*given: Any) -> Any:
        return function(*given)

    return run


def _rotary(torch: Any) -> Callable[..., Any]:
    def rotary(x: Any, cos: Any, sin: Any) -> Any:
        left, right = x.chunk(2, -1)
        return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)

    return rotary
