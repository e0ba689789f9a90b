"""Sets a work of `sweep.py` up: its tensors, Tessera's call, PyTorch's calls, and the result in float64."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sweep_kernels as kernels
from sweep_works import Work, blocks, merged_strides, power_of_two

from tessera.ops import linalg

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

import flash_attention

import tessera as ts

Call = Callable[[], Any]
DTYPES = {"bf16": ts.bf16, "f16": ts.f16, "f32": ts.f32}
TOLERANCES = {"bf16": 4e-3, "f16": 6e-4, "f32": 2e-5}
"""Of the relative error in the Euclidean norm, for one rounding to the dtype."""


@dataclass(frozen=True)
class Setup:
    """A work that is ready to run.

    Args:
        ours: writes `out`.
        out: what it writes.
        expected: gives the result in float64, before it is rounded to the dtype of `out`.
        peers: by name; each returns its result.
        written: what torch.compile is given, and its arguments.
        tolerance: relative error in the Euclidean norm; 0 where every bit counts.
        roundings: to the dtype on the way of our result.
        compared: the part of a result that is compared.
        compared_peer: the same of a peer's.
    """

    ours: Call
    out: Any
    expected: Call
    peers: dict[str, Call]
    written: tuple[Callable[..., Any], tuple[Any, ...]]
    tolerance: float
    roundings: int = 1
    compared: Callable[[Any], Any] = field(default=lambda out: out)
    compared_peer: Callable[[Any], Any] | None = None


class Maker:
    """Makes the tensors of a work.

    Args:
        torch: PyTorch.
        work: the work.
        device: `cpu` or `cuda`.
    """

    def __init__(self, torch: Any, work: Work, device: str):
        """Take the dtype and the placement of the work."""
        self.torch, self.work, self.device = torch, work, device
        names = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
        self.dtype = names[work.dtype]
        self.tolerance = TOLERANCES[work.dtype]

    def placed(self, shape: Sequence[int], offset: int, pad: int) -> Any:
        """Return a tensor with nothing in it, `offset` elements off, with `pad` between its rows."""
        *outer, width = shape
        pad = pad if outer else 0
        buffer = self.torch.empty(math.prod(outer) * (width + pad) + offset, device=self.device, dtype=self.dtype)
        return buffer[offset:].view(*outer, width + pad)[..., :width]

    def normal(self, *shape: int) -> Any:
        """Return random numbers, placed as the work says."""
        return self.placed(shape, self.work.offset, self.work.pad).normal_()

    def plain(self, *shape: int) -> Any:
        """Return random numbers one after the other, where the work says."""
        return self.placed(shape, self.work.offset, 0).normal_()

    def result(self, *shape: int) -> Any:
        """Return a tensor for a result."""
        both = self.work.results_too
        return self.placed(shape, self.work.offset * both, self.work.pad * both)

    def stored(self, batch: Sequence[int], rows: int, columns: int, layout: str) -> Any:
        """Return matrices that are stored by rows or by columns."""
        if layout == "T":
            return self.normal(*batch, columns, rows).transpose(-1, -2)
        return self.normal(*batch, rows, columns)


# Products


def product(make: Maker) -> Setup:
    """A product or a batch of them, by the library or by tile code."""
    torch, work = make.torch, make.work
    *batch, m, n, k = work.shape
    layout = work.options["layout"]
    a, b = make.stored(batch, m, k, layout[0]), make.stored(batch, k, n, layout[1])
    out = make.result(*batch, m, n)
    multiply = torch.bmm if batch else torch.mm
    calls: dict[str, Call] = {
        "gemm": lambda: linalg.gemm(a, b, out=out),
        "bmm": lambda: linalg.gemm_batched(a, b, out=out),
        "tiles": lambda: kernels.product(a, b, out, *work.options["block"]),
    }
    return Setup(
        ours=calls[work.kind],
        out=out,
        expected=lambda: a.double() @ b.double(),
        peers={multiply.__name__: lambda: multiply(a, b, out=out)},
        written=(lambda a, b: a @ b, (a, b)),
        tolerance=make.tolerance,
    )


# Rows


def rows(make: Maker) -> Setup:
    """Norms, softmax, sums, places of maxima and running sums of rows."""
    torch, nn, work = make.torch, make.torch.nn.functional, make.work
    x = make.normal(*work.shape)
    count, n = work.shape
    if work.kind == "argmax":
        return _argmax(make, x)
    weights = [make.plain(n) for _ in range({"rms_norm": 1, "layer_norm": 2}.get(work.kind, 0))]
    out = make.result(*((count,) if work.kind == "row_sum" else work.shape))
    kernel = getattr(kernels, work.kind)
    written: Callable[..., Any] = {
        "rms_norm": lambda x, w: nn.rms_norm(x, (n,), w, kernels.EPS),
        "layer_norm": lambda x, w, b: nn.layer_norm(x, (n,), w, b, kernels.EPS),
        "softmax": lambda x: torch.softmax(x, 1),
        "row_sum": lambda x: torch.sum(x, 1),
        "cumsum": lambda x: torch.cumsum(x, 1),
    }[work.kind]
    return Setup(
        ours=lambda: kernel(x, *weights, out),
        out=out,
        expected=lambda: written(x.double(), *(w.double() for w in weights)),
        peers={work.kind: lambda: written(x, *weights)},
        written=(written, (x, *weights)),
        tolerance=make.tolerance,
    )


def _argmax(make: Maker, x: Any) -> Setup:
    torch, n = make.torch, x.shape[1]
    out = torch.empty(len(x), device=make.device, dtype=torch.int32)

    def expected() -> Any:  # of equal ones the first
        places = torch.arange(n, device=make.device, dtype=torch.int32)
        return torch.where(x == x.amax(1, keepdim=True), places, n).amin(1).double()

    def place_of_equal(found: Any) -> Any:  # PyTorch promises none of equal ones
        right = x.gather(1, found[:, None]) == x.amax(1, keepdim=True)
        return torch.where(right[:, 0], expected(), -1.0)

    return Setup(
        ours=lambda: kernels.argmax(x, out),
        out=out,
        expected=expected,
        peers={"argmax": lambda: torch.argmax(x, 1)},
        written=(lambda x: torch.argmax(x, 1), (x,)),
        tolerance=0.0,
        compared_peer=place_of_equal,
    )


# Reductions and elementwise functions


def reductions(make: Maker) -> Setup:
    """A sum or a maximum along any axis or axes."""
    torch, work = make.torch, make.work
    axes, pattern, sizes = (work.options[name] for name in ("axes", "pattern", "sizes"))
    # Sums lie apart from 0, or an error relative to one would mean nothing, and within the range of f16.
    count = math.prod(work.shape[axis] for axis in axes)
    x = make.normal(*work.shape).add_(min(3 / math.sqrt(count), 3e4 / count))
    kept = [size for place, size in enumerate(work.shape) if place not in axes]
    out = make.placed(kept or [1], work.offset * work.results_too, 0)
    viewed = out.view([size for letter, size in zip(pattern, sizes, strict=True) if letter == "k"] or [1])
    kernel, arguments = kernels.REDUCTIONS[pattern], [x.view(sizes), viewed, work.kind]
    if pattern == "r":
        block = 8192
        part = torch.empty(-(-sizes[0] // block), device=make.device, dtype=torch.float32)
        arguments = [x.view(sizes), part, viewed, work.kind, block]
    elif pattern[-1] == "k":
        last = len(sizes) - 1
        arguments += blocks(sizes, [(last, 128), (last - 1, 8192)], 8192)[-2:]
    reduce = torch.sum if work.kind == "sum" else torch.amax
    return Setup(
        ours=lambda: kernel(*arguments),
        out=out,
        expected=lambda: reduce(x.double(), axes).view(out.shape),
        peers={reduce.__name__: lambda: reduce(x, axes).view(out.shape)},
        written=(lambda x: reduce(x, axes).view(out.shape), (x,)),
        tolerance=make.tolerance if work.kind == "sum" else 0.0,
    )


def elementwise(make: Maker) -> Setup:
    """A function of two operands with broadcasts."""
    torch, nn, work = make.torch, make.torch.nn.functional, make.work
    other, pattern, sizes = (work.options[name] for name in ("other", "pattern", "sizes"))
    x, b, out = make.normal(*work.shape), make.plain(*other), make.result(*work.shape)
    kernel = kernels.ELEMENTWISE[pattern]
    given = b.view([size for letter, size in zip(pattern, sizes, strict=True) if letter == "f"] or [1])
    last = len(sizes) - 1
    block = blocks(sizes, [(last, 1024), (last - 1, 2048)] if last else [(0, 2048)], 2048)[-2:]
    merged = (x.view(sizes), given, out.view(sizes))
    written: Callable[..., Any] = {
        "add": lambda x, b: x + b,
        "mul": lambda x, b: x * b,
        "swiglu": lambda x, b: nn.silu(x) * b,
        "gelu": lambda x, b: nn.gelu(x + b, approximate="tanh"),
    }[work.kind]
    peers: dict[str, Call] = {"eager": lambda: written(x, b)}
    if work.kind in ("add", "mul"):
        function = getattr(torch, work.kind)
        peers["out="] = lambda: function(x, b, out=out)
    return Setup(
        ours=lambda: kernel(*merged, work.kind, *block),
        out=out,
        expected=lambda: written(x.double(), b.double()),
        peers=peers,
        written=(written, (x, b)),
        tolerance=make.tolerance,
    )


# Moving


def permutes(make: Maker) -> Setup:
    """A copy with its dimensions in another order."""
    work = make.work
    x, order = make.normal(*work.shape), work.options["order"]
    turned = x.permute(order)
    out = make.result(*turned.shape)
    sizes, (given, written) = merged_strides(turned.shape, turned.stride(), out.stride())
    source = turned.as_strided(sizes, given, turned.storage_offset())
    target = out.as_strided(sizes, written, out.storage_offset())
    block = _transposing(sizes, given)
    if len(sizes) == 2:
        source, block = source.T, block[::-1]
    kernel = kernels.PERMUTES[len(sizes)]
    return Setup(
        ours=lambda: kernel(source, target, *block),
        out=out,
        expected=turned.double,
        peers={"copy_": lambda: out.copy_(turned)},
        written=(lambda x: x.permute(order).contiguous(), (x,)),
        tolerance=0.0,
    )


def _transposing(sizes: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Return blocks of 4096 elements, 2048 of small tensors: 64 that lie together where they are written, and read."""
    total = 4096 if math.prod(sizes) >= 1 << 22 else 2048
    written = list(reversed(range(len(sizes))))
    read = sorted(written, key=lambda place: strides[place])
    rest = [(place, total) for place in written]
    return blocks(sizes, [*_together(sizes, written), *_together(sizes, read), *rest], total)


def _together(sizes: Sequence[int], order: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield dimensions in an order, each with how far a block of 64 elements reaches along it."""
    left = 64
    for place in order:
        most = min(power_of_two(sizes[place]), power_of_two(left))
        yield place, most
        left = -(-left // min(sizes[place], most))


def gathers(make: Maker) -> Setup:
    """Rows from places, or to places."""
    torch, work = make.torch, make.work
    (count, width), others = work.shape, work.options["others"]
    if work.kind == "gather":
        x, out = make.normal(others, width), make.result(count, width)
        far = torch.randint(others, (count,), device=make.device)
        near = far.int()
        return Setup(
            ours=lambda: kernels.gather(x, near, out),
            out=out,
            expected=lambda: x[far].double(),
            peers={"index_select": lambda: torch.index_select(x, 0, far), "x[places]": lambda: x[far]},
            written=(lambda x, far: x[far], (x, far)),
            tolerance=0.0,
        )
    x, out = make.normal(count, width), make.result(others, width)
    far = torch.randperm(others, device=make.device)[:count]
    near = far.int()
    return Setup(
        ours=lambda: kernels.scatter(x, near, out),
        out=out,
        expected=x.double,
        peers={"index_copy_": lambda: out.index_copy_(0, far, x), "index_put_": lambda: out.index_put_((far,), x)},
        written=(lambda out, far, x: out.index_copy_(0, far, x), (out, far, x)),
        tolerance=0.0,
        compared=lambda out: out[far],
        compared_peer=lambda out: out[far],
    )


# Attention


def attention(make: Maker) -> Setup:
    """Attention of heads that share nothing, by the natural source of `examples/flash_attention.py`."""
    torch, work = make.torch, make.work
    causal = work.kind == "causal"
    q, k, v = (make.normal(*work.shape) for _ in range(3))
    out = make.result(*work.shape)
    kernel = flash_attention.flash_attention_for(DTYPES[work.dtype], make.device)
    # A few heads are checked: the scores of one take half a gigabyte in float64.
    some = sorted({0, work.shape[0] // 2, work.shape[0] - 1})
    scaled = torch.nn.functional.scaled_dot_product_attention
    # Fused kernels load 16 bytes at a time. What does not lie so is copied first, as a caller of PyTorch would do.
    misplaced = bool(work.offset or work.pad)

    def written(*operands: Any) -> Any:
        given = (x.clone(memory_format=torch.contiguous_format) if misplaced else x for x in operands)
        return scaled(*(x[None] for x in given), is_causal=causal)[0]

    def expected() -> Any:
        return torch.stack([_attended(torch, q[head], k[head], v[head], causal) for head in some])

    def compared(found: Any) -> Any:  # what was not written makes its head's neighbours wrong
        return found[some] + 0.0 * found.sum(dtype=torch.float32)

    return Setup(
        ours=lambda: kernel(q, k, v, out, causal),
        out=out,
        expected=expected,
        peers=_backends(make.device, lambda: written(q, k, v)),
        written=(written, (q, k, v)),
        tolerance=make.tolerance,
        roundings=2,
        compared=compared,
        compared_peer=compared,
    )


def _attended(torch: Any, q: Any, k: Any, v: Any, causal: bool) -> Any:
    scores = (q.double() @ k.double().T) / math.sqrt(q.shape[-1])
    if causal:
        scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu_(1), -math.inf)
    return torch.softmax(scores, -1) @ v.double()


def _backends(device: str, call: Call) -> dict[str, Call]:
    """Return PyTorch's attention by each of its backends; which of them take a work is seen when they run."""
    if device == "cpu":
        return {"sdpa": call}
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def through(backend: Any) -> Call:
        def run() -> Any:
            with sdpa_kernel(backend):
                return call()

        return run

    names = {"cuDNN": "CUDNN_ATTENTION", "FlashAttention": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION"}
    return {name: through(getattr(SDPBackend, backend)) for name, backend in names.items()} | {"sdpa": call}


SETUPS: dict[str, Callable[[Maker], Setup]] = {
    "gemm": product,
    "batched": product,
    "tiles": product,
    "rows": rows,
    "reductions": reductions,
    "elementwise": elementwise,
    "permutes": permutes,
    "gathers": gathers,
    "attention": attention,
}
