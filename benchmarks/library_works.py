"""The works of `library.py`: a library op, what PyTorch writes for the same, and the bytes both have to move."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from tessera import ops as op


@dataclass(frozen=True)
class Work:
    """An op on rows.

    Args:
        ours: the library's.
        eager: the same of PyTorch, which `torch.compile` takes too.
        inputs: what both are called with; the first ones have a row each.
        forward_bytes: read and written by a call.
        backward_bytes: read and written by the gradients; 0 where none are measured.
        others: more contestants by name, called like the first ones.
        is_random: whether results cannot be compared.
        is_slow: whether what PyTorch writes is no contestant: it only says what is right.
    """

    ours: Callable[..., Any]
    eager: Callable[..., Any]
    inputs: Sequence[Any]
    forward_bytes: int
    backward_bytes: int
    others: Mapping[str, Callable[..., Any]] = field(default_factory=dict[str, Callable[..., Any]])
    is_random: bool = False
    is_slow: bool = False


def liger(module: str, name: str, call: Callable[[Any], Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Return a contestant of Liger-Kernel, where that is installed.

    Args:
        module: of `liger_kernel.ops`.
        name: the function of autograd in it.
        call: makes what is called from its `apply`.
    """
    try:
        return {"liger": call(getattr(import_module(f"liger_kernel.ops.{module}"), name).apply)}
    except ImportError:
        return {}


@dataclass
class Place:
    """Where arrays of works are made.

    Args:
        device: `cuda` or `cpu`.
        kind: name of their dtype in PyTorch.
    """

    device: str = "cuda"
    kind: str = "bfloat16"


PLACE = Place()


def random_rows(torch: Any, *shape: int) -> Any:
    """Return normal numbers that need a gradient."""
    return torch.randn(shape, device=PLACE.device, dtype=getattr(torch, PLACE.kind)).requires_grad_()


def rms(torch: Any, rows: int, width: int) -> Work:
    """RMSNorm with weights."""
    x, w = random_rows(torch, rows, width), random_rows(torch, width)
    f = torch.nn.functional
    return Work(
        lambda x, w: op.norm.rms(x, width, w, 1e-6),
        lambda x, w: f.rms_norm(x, (width,), w, 1e-6),
        (x, w),
        2 * x.nbytes,
        3 * x.nbytes,
        liger("rms_norm", "LigerRMSNormFunction", lambda call: lambda x, w: call(x, w, 1e-6, 0.0, "llama", False)),
    )


def ln(torch: Any, rows: int, width: int) -> Work:
    """LayerNorm with weights and bias."""
    x, w, b = random_rows(torch, rows, width), random_rows(torch, width), random_rows(torch, width)
    f = torch.nn.functional
    return Work(
        lambda x, w, b: op.norm.ln(x, width, w, b, 1e-5),
        lambda x, w, b: f.layer_norm(x, (width,), w, b, 1e-5),
        (x, w, b),
        2 * x.nbytes,
        3 * x.nbytes,
        liger("layer_norm", "LigerLayerNormFunction", lambda call: lambda x, w, b: call(x, w, b, 1e-5)),
    )


def added_rms(torch: Any, rows: int, width: int) -> Work:
    """RMSNorm of a sum with a residual."""
    x, residual, w = random_rows(torch, rows, width), random_rows(torch, rows, width), random_rows(torch, width)
    f = torch.nn.functional

    def theirs(x: Any, residual: Any, w: Any) -> Any:
        whole = x + residual
        return f.rms_norm(whole, (width,), w, 1e-6), whole

    return Work(
        lambda x, residual, w: op.norm.rms(x, width, w, 1e-6, residual=residual),
        theirs,
        (x, residual, w),
        4 * x.nbytes,
        4 * x.nbytes,
    )


def softmax(torch: Any, rows: int, width: int) -> Work:
    """Softmax of rows."""
    x = random_rows(torch, rows, width)
    theirs = liger("softmax", "LigerSoftmaxFunction", lambda call: call)
    return Work(lambda x: op.softmax(x, 1), lambda x: torch.softmax(x, 1), (x,), 2 * x.nbytes, 3 * x.nbytes, theirs)


def cross_entropy(torch: Any, rows: int, width: int) -> Work:
    """Cross-entropy of rows of logits, a loss for each."""
    x, target = random_rows(torch, rows, width), torch.randint(0, width, (rows,), device=PLACE.device)
    f = torch.nn.functional
    return Work(
        lambda x, target: op.loss.cross_entropy(x, target, reduction="none"),
        lambda x, target: f.cross_entropy(x, target, reduction="none"),
        (x, target),
        x.nbytes,
        2 * x.nbytes,
    )


def swiglu(torch: Any, rows: int, width: int) -> Work:
    """SwiGLU of a gate and a value."""
    x, y = random_rows(torch, rows, width), random_rows(torch, rows, width)
    f = torch.nn.functional
    theirs = liger("swiglu", "LigerSiLUMulFunction", lambda call: call)
    return Work(op.activation.swiglu, lambda x, y: f.silu(x) * y, (x, y), 3 * x.nbytes, 5 * x.nbytes, theirs)


def mse(torch: Any, rows: int, width: int) -> Work:
    """Mean of squared differences."""
    x, y = random_rows(torch, rows, width), random_rows(torch, rows, width)
    return Work(op.mse, torch.nn.functional.mse_loss, (x, y), 2 * x.nbytes, 4 * x.nbytes)


def total(torch: Any, rows: int, width: int) -> Work:
    """Sums of rows."""
    x = random_rows(torch, rows, width)
    return Work(lambda x: op.reduce.sum(x, 1), lambda x: x.sum(1), (x,), x.nbytes, 0)  # gradients are views


def running(torch: Any, rows: int, width: int) -> Work:
    """Running sums of rows."""
    x = random_rows(torch, rows, width)
    return Work(lambda x: op.cumsum(x, 1), lambda x: x.cumsum(1), (x,), 2 * x.nbytes, 2 * x.nbytes)


def dropout(torch: Any, rows: int, width: int) -> Work:
    """Dropout of a tenth of the elements."""
    x = random_rows(torch, rows, width)
    theirs = torch.nn.functional.dropout
    calls = lambda x: op.dropout(x, 0.1, seed=7), lambda x: theirs(x, 0.1)
    return Work(*calls, (x,), 2 * x.nbytes, 2 * x.nbytes, is_random=True)


def embedding(torch: Any, rows: int, width: int) -> Work:
    """As many rows as there are of a table of a fourth of them."""
    table, index = random_rows(torch, rows // 4, width), torch.randint(0, rows // 4, (rows,), device=PLACE.device)
    read = rows * width * table.element_size()
    theirs = torch.nn.functional.embedding
    return Work(lambda i, w: op.embedding(i, w), theirs, (index, table), 2 * read, read + table.nbytes)


def conv1d(torch: Any, rows: int, width: int) -> Work:
    """Causal depthwise convolution of four steps with SiLU, as Mamba has it, of sequences of rows of 4096 channels."""
    channels = min(4096, rows)
    x = random_rows(torch, rows // channels, channels, width)
    w, b = random_rows(torch, channels, 4), random_rows(torch, channels)
    f = torch.nn.functional

    def theirs(x: Any, w: Any, b: Any) -> Any:
        return f.silu(f.conv1d(x, w[:, None], b, padding=3, groups=channels)[..., :width])

    return Work(lambda x, w, b: op.conv1d(x, w, b, "silu"), theirs, (x, w, b), 2 * x.nbytes, 3 * x.nbytes)


def rope(torch: Any, rows: int, width: int) -> Work:
    """Rotary embedding of 32 heads of 128 elements, as many positions as fill the rows."""
    positions = max(rows * width // (128 * 32), 1)
    x = torch.randn(1, 32, positions, 128, device=PLACE.device, dtype=getattr(torch, PLACE.kind)).requires_grad_()
    angle = torch.arange(positions, device=PLACE.device)[:, None] * 10000.0 ** (
        -torch.arange(64, device=PLACE.device) / 64
    )
    cos, sin = angle.cos(), angle.sin()

    def theirs(x: Any) -> Any:
        low, high = x.chunk(2, -1)
        turn = (cos.to(x.dtype), sin.to(x.dtype))
        return torch.cat([low * turn[0] - high * turn[1], high * turn[0] + low * turn[1]], -1)

    size = 2 * x.nbytes + cos.nbytes + sin.nbytes
    return Work(lambda x: op.attn.rope(x, cos=cos, sin=sin), theirs, (x,), size, size)


def geglu(torch: Any, rows: int, width: int) -> Work:
    """GeGLU of a gate and a value."""
    x, y = random_rows(torch, rows, width), random_rows(torch, rows, width)
    f = torch.nn.functional
    return Work(op.activation.geglu, lambda x, y: f.gelu(x) * y, (x, y), 3 * x.nbytes, 5 * x.nbytes)


def geglu_tanh(torch: Any, rows: int, width: int) -> Work:
    """GeGLU by the formula with tanh."""
    x, y = random_rows(torch, rows, width), random_rows(torch, rows, width)
    f = torch.nn.functional
    return Work(
        lambda x, y: op.activation.geglu(x, y, "tanh"),
        lambda x, y: f.gelu(x, approximate="tanh") * y,
        (x, y),
        3 * x.nbytes,
        5 * x.nbytes,
        liger("geglu", "LigerGELUMulFunction", lambda call: call),
    )


def log_softmax(torch: Any, rows: int, width: int) -> Work:
    """Logarithm of softmax of rows."""
    x = random_rows(torch, rows, width)
    theirs = torch.log_softmax
    return Work(lambda x: op.log_softmax(x, 1), lambda x: theirs(x, 1), (x,), 2 * x.nbytes, 3 * x.nbytes)


def logsumexp(torch: Any, rows: int, width: int) -> Work:
    """Logarithms of sums of powers of e."""
    x = random_rows(torch, rows, width)
    theirs = torch.logsumexp
    return Work(lambda x: op.logsumexp(x, 1), lambda x: theirs(x, 1), (x,), x.nbytes, 2 * x.nbytes)


def l2(torch: Any, rows: int, width: int) -> Work:
    """Rows divided by their lengths."""
    x = random_rows(torch, rows, width)
    theirs = torch.nn.functional.normalize
    return Work(lambda x: op.norm.l2(x, 1), lambda x: theirs(x, dim=1), (x,), 2 * x.nbytes, 3 * x.nbytes)


def group(torch: Any, rows: int, width: int) -> Work:
    """GroupNorm of 24 groups of four channels, of `width` elements each."""
    channels, groups = 96, 24
    x = random_rows(torch, max(rows // channels, 1), channels, width)
    w, b = random_rows(torch, channels), random_rows(torch, channels)
    theirs = torch.nn.functional.group_norm
    return Work(
        lambda x, w, b: op.norm.group(x, groups, w, b),
        lambda x, w, b: theirs(x, groups, w, b),
        (x, w, b),
        2 * x.nbytes,
        3 * x.nbytes,
    )


def scan(torch: Any, rows: int, width: int) -> Work:
    """Gated linear recurrence over `width` times, of 4096 channels."""
    channels = min(4096, rows)
    shape = rows // channels, width, channels
    gate, x = random_rows(torch, *shape).detach().sigmoid().requires_grad_(), random_rows(torch, *shape)

    def theirs(gate: Any, x: Any) -> Any:
        states = [x[:, 0]]
        for t in range(1, x.shape[1]):
            states.append(gate[:, t] * states[-1] + x[:, t])
        return torch.stack(states, 1)

    return Work(op.scan, theirs, (gate, x), 3 * x.nbytes, 5 * x.nbytes, is_slow=True)


WORKS: dict[str, Callable[[Any, int, int], Work]] = {
    "rms": rms,
    "ln": ln,
    "added_rms": added_rms,
    "softmax": softmax,
    "cross_entropy": cross_entropy,
    "swiglu": swiglu,
    "mse": mse,
    "sum": total,
    "cumsum": running,
    "rope": rope,
    "dropout": dropout,
    "embedding": embedding,
    "conv1d": conv1d,
    "geglu": geglu,
    "geglu_tanh": geglu_tanh,
    "log_softmax": log_softmax,
    "logsumexp": logsumexp,
    "l2": l2,
    "group": group,
    "scan": scan,
}
"""By name."""
