"""What `gemm.py` measures: works, their operands and references, Tessera's kernels for them, and PyTorch's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import gemm_kernels as kernels

import tessera as ts
from tessera.ops import epilogue, linalg

Call = Callable[[], Any]
"""Queues the work and returns the tensor that holds the result."""

Shape = tuple[int, int, int]
"""M, N and K."""

LARGE: tuple[Shape, ...] = ((2048,) * 3, (4096,) * 3, (8192,) * 3, (8192, 28672, 4096))
SHAPES: tuple[Shape, ...] = (
    *LARGE,
    (8192, 8192, 1024),
    (4096, 14336, 4096),
    (16, 4096, 4096),
    (128, 8192, 8192),
    (1000, 777, 333),
    (4096, 4096, 64),
)
SINGLE: tuple[Shape, ...] = (
    (4096,) * 3,
    (4095, 4095, 1023),
    (512, 10560, 1024),
    (19264, 128, 1024),
    (2247, 24809, 17),
    (64, 24, 4864),
    (1000, 777, 333),
)
LAYOUTS = ("NN", "NT", "TN", "TT")
"""How A and B are stored: N by rows, T by columns, as BLAS says for row-major matrices."""

SPACE: dict[str, tuple[tuple[Shape, ...], tuple[str, ...]]] = {
    "bf16": (SHAPES, LAYOUTS),
    "fp8": (LARGE, ("NT",)),  # cuBLAS takes no other layout of 8-bit operands
    "f16": (((4096,) * 3,), ("NN", "NT")),
    "tf32": (((4096,) * 3,), LAYOUTS),
    "f32": (SINGLE, LAYOUTS),
    "int8": (((4096,) * 3,), ("NT",)),
    "linear": (((8192, 16384, 4096),), ("NN",)),
    "residual": (((4096,) * 3, (8192, 8192, 1024)), ("NN",)),
    "gated": (((4096, 11008, 4096),), ("NN",)),
    "dequant": (((4096,) * 3,), ("NN",)),
}
SECTIONS = tuple(SPACE)

DTYPES = {
    "fp8": ("float8_e4m3fn", "bfloat16"),
    "f16": ("float16", "float16"),
    "tf32": ("float32", "float32"),
    "f32": ("float32", "float32"),
    "int8": ("int8", "int32"),
}
"""Element types of A and B, and of the output, in PyTorch's words; bf16 where nothing is said."""

PRODUCTS = ("bf16", *DTYPES)
"""Sections that measure a product alone."""

TOLERANCES = {"f16": 5e-4, "tf32": 1.5e-3, "f32": 5e-6, "int8": 0.0}
"""Of the relative error in the Euclidean norm. The rounding of a bf16 result alone is 1.7e-3 in the mean."""


@dataclass(frozen=True)
class Work:
    """One product, or what is made of it.

    Args:
        section: what is computed, and in which types.
        layout: how A and B are stored.
        shape: M, N and K.
    """

    section: str
    layout: str
    shape: Shape

    @property
    def name(self) -> str:
        """The work in words."""
        return f"{self.section} {self.layout} {'x'.join(map(str, self.shape))}"

    @property
    def flops(self) -> int:
        """Multiplications and additions of the products."""
        return (4 if self.section == "gated" else 2) * math.prod(self.shape)

    @property
    def tolerance(self) -> float:
        """Relative error in the Euclidean norm that Tessera's result may have."""
        return TOLERANCES.get(self.section, 4e-3)


def works(
    sections: Sequence[str] = SECTIONS,
    shapes: Sequence[Shape] | None = None,
    layouts: Sequence[str] = LAYOUTS,
) -> list[Work]:
    """Return the works of some sections.

    Args:
        sections: the sections.
        shapes: only these; None for all.
        layouts: only these, in sections that have several.
    """
    return [
        Work(section, layout, shape)
        for section in sections
        for shape in SPACE[section][0]
        if shapes is None or shape in shapes
        for layout in SPACE[section][1]
        if len(SPACE[section][1]) == 1 or layout in layouts
    ]


@dataclass(frozen=True)
class Operands:
    """The tensors of one work.

    Args:
        a: (M, K).
        b: (K, N).
        out: (M, N).
        more: bias (N,), scale (M,), residual (M, N) or the second right operand (K, N), where the work has one.
    """

    a: Any
    b: Any
    out: Any
    more: tuple[Any, ...] = field(default=())

    @property
    def bytes(self) -> int:
        """Bytes of all of them."""
        return sum(x.numel() * x.element_size() for x in (self.a, self.b, self.out, *self.more))


def operands(torch: Any, work: Work, device: str) -> Operands:
    """Return random operands and an output that holds nothing."""
    m, n, k = work.shape
    dtype, out_dtype = (getattr(torch, name) for name in DTYPES.get(work.section, ("bfloat16", "bfloat16")))

    def stored(rows: int, columns: int, layout: str, dtype: Any, spread: float = 1.0) -> Any:
        shape = (columns, rows) if layout == "T" else (rows, columns)
        if dtype == torch.int8:
            made = torch.randint(-127, 128, shape, device=device, dtype=dtype)
        else:
            made = torch.randn(shape, device=device).mul_(spread).to(dtype)
        return made.T if layout == "T" else made

    # What goes through an activation should lie where it bends, and what a residual adds should count.
    spread = 1 / math.sqrt(k) if work.section in ("linear", "residual", "gated") else 1.0
    a = stored(m, k, work.layout[0], torch.int8 if work.section == "dequant" else dtype)
    b = stored(k, n, work.layout[1], dtype, spread)
    more: tuple[Any, ...] = ()
    if work.section == "linear":
        more = (torch.randn(n, device=device).to(dtype),)
    elif work.section == "residual":
        more = (stored(m, n, "N", dtype),)
    elif work.section == "gated":
        more = (stored(k, n, "N", dtype, spread),)
    elif work.section == "dequant":
        more = (torch.rand(m, device=device) / 127,)
    return Operands(a, b, torch.empty(m, n, device=device, dtype=out_dtype), more)


def reference(torch: Any, work: Work, of: Operands) -> Any:
    """Return the result in float64."""
    activations = torch.nn.functional
    product = of.a.double() @ of.b.double()
    if work.section == "linear":
        return activations.gelu(product + of.more[0].double(), approximate="tanh")
    if work.section == "residual":
        return product + of.more[0].double()
    if work.section == "gated":
        return activations.silu(product) * (of.a.double() @ of.more[0].double())
    if work.section == "dequant":
        return product * of.more[0].double()[:, None]
    return product


class WrongResult(Exception):
    """A result differs from the reference."""


def check(torch: Any, what: str, call: Call, of: Operands, expected: Any, tolerance: float, roundings: int = 1) -> None:
    """Run a call on a poisoned output and compare.

    The norm finds what is a little off everywhere; the largest difference finds the one element that is wrong. A call
    that rounds several times on its way is allowed that many times as much.

    Raises:
        WrongResult: it is not the reference.
    """
    of.out.fill_(float("nan") if of.out.is_floating_point() else -(2**31) + 1)
    difference = call().double().sub_(expected)
    error = (difference.norm() / expected.norm()).item()
    tolerance *= roundings
    allowed = expected.abs().mul_(2**-7).add_(0.03 * expected.square().mean().sqrt()).mul_(roundings)
    wrong = int((~(difference.abs() <= allowed)).sum()) if tolerance else int((difference != 0).sum())
    if not error <= tolerance or wrong:
        raise WrongResult(f"{what}: relative error {error:.2e}, {wrong} of {expected.numel()} elements wrong")


Contestant = Callable[[Operands], Call]
"""Binds a way of computing a work to operands."""


def ours(work: Work) -> Contestant:
    """Return Tessera's way; the one place that names what is measured."""
    if work.section in PRODUCTS:
        options = {"compute": ts.tf32} if work.section == "tf32" else {}
        return _returning_output(lambda of: linalg.gemm(of.a, of.b, out=of.out, **options))
    if work.section == "linear":
        return _with(lambda of: [epilogue.bias(*of.more), epilogue.gelu("tanh")])
    if work.section == "residual":
        return _with(lambda of: [epilogue.residual(*of.more)])
    if work.section == "gated":
        return _returning_output(lambda of: kernels.gated(of.a, of.b, *of.more, of.out))
    return _returning_output(lambda of: kernels.dequantised(of.a, *of.more, of.b, of.out))


def _with(steps: Callable[[Operands], list[epilogue.Step]]) -> Contestant:
    """Return the library's product with a chain of its own steps."""

    def bound(of: Operands) -> Call:
        chain = epilogue.chain(steps(of))
        return lambda: linalg.gemm(of.a, of.b, out=of.out, epilogue=chain)

    return bound


def _returning_output(run: Callable[[Operands], Any]) -> Contestant:
    def bound(of: Operands) -> Call:
        def call() -> Any:
            run(of)
            return of.out

        return call

    return bound


def library(torch: Any, work: Work) -> dict[str, Contestant]:
    """Return PyTorch's ways through cuBLAS; they write to the output too, where PyTorch lets them.

    fp8 sums stay in the matrix unit in Tessera, so the cuBLAS that does the same (`use_fast_accum`) is the peer that
    counts; the one that adds up partial sums in f32 stands beside it.
    """
    if work.section == "fp8":
        one = torch.ones((), device="cuda")

        def scaled(fast: bool) -> Contestant:
            return lambda of: (
                lambda: torch._scaled_mm(of.a, of.b, one, one, out_dtype=of.out.dtype, use_fast_accum=fast, out=of.out)
            )

        return {"cuBLAS": scaled(True), "cuBLAS, f32 sums": scaled(False)}
    if work.section == "int8":
        return {"cuBLAS": lambda of: lambda: torch._int_mm(of.a, of.b, out=of.out)}
    if work.section == "linear":
        return {"cuBLASLt": lambda of: lambda: torch._addmm_activation(*of.more, of.a, of.b, use_gelu=True, out=of.out)}
    if work.section == "residual":
        return {"cuBLAS addmm": lambda of: lambda: torch.addmm(*of.more, of.a, of.b, out=of.out)}
    if work.section == "gated":
        silu = torch.nn.functional.silu
        return {"2 cuBLAS + elementwise": lambda of: lambda: silu(of.a @ of.b) * (of.a @ of.more[0])}
    if work.section == "dequant":
        return {"cuBLAS in bf16": lambda of: _of_dequantised(torch, of)}
    return {"cuBLAS": lambda of: lambda: torch.mm(of.a, of.b, out=of.out)}


def _of_dequantised(torch: Any, of: Operands) -> Call:
    a = (of.a * of.more[0][:, None]).to(of.b.dtype)  # ahead of time: the peer multiplies only
    return lambda: torch.mm(a, of.b, out=of.out)


COMPILED: Iterable[tuple[str, Shape]] = (
    ("bf16", (4096,) * 3),
    ("bf16", (8192,) * 3),
    *((s, SPACE[s][0][0]) for s in ("linear", "gated", "dequant")),
)
"""Works that torch.compile is tried on: it takes tens of seconds for each."""


def compiled(torch: Any, work: Work) -> dict[str, Contestant]:
    """Return torch.compile's way; nothing for works outside `COMPILED`, or stored other than by rows."""
    if work.layout != "NN" or (work.section, work.shape) not in COMPILED:
        return {}
    activations = torch.nn.functional
    written: Callable[..., Any] = {
        "bf16": lambda a, b: a @ b,
        "linear": lambda a, b, bias: activations.gelu(torch.addmm(bias, a, b), approximate="tanh"),
        "gated": lambda a, b, up: activations.silu(a @ b) * (a @ up),
        "dequant": lambda a, b, scale: ((a.to(b.dtype) @ b) * scale[:, None]).to(b.dtype),
    }[work.section]
    program = torch.compile(written, mode="max-autotune-no-cudagraphs", dynamic=False)
    return {"torch.compile": lambda of: lambda: program(of.a, of.b, *of.more)}
