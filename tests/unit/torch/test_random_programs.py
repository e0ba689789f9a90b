"""Random programs of PyTorch's ops, both ways and at two sizes, beside eager PyTorch in float64.

A program is a text: lines that each compute one array of others by a template, drawn so that every line runs at both
sizes. Nothing is decided by computed floats, whose last bit may be either: masks and places come from arguments.
"""

from __future__ import annotations

import random
import secrets
from dataclasses import dataclass
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from tessera.torch.compiled import backend as compiled  # noqa: E402 - only where PyTorch is

PROGRAMS = 5
"""Programs of one run."""
LARGEST, MOST = 30.0, 3000
"""The largest number, and elements, of an array that a program may make."""
SHAPES = (("n", 4), (3, "n"), ("n",), (2, "n", 3), ("n", "n"), ("n", 2, 5), (1, "n"), (2, 3, "n", 2))
"""Shapes of arguments: `n` changes from call to call."""
POINTS = (
    *(
        "{a}.tanh()",
        "{a}.relu()",
        "(-{a}.abs()).exp()",
        "torch.nn.functional.silu({a})",
        "{a} * 0.5 + 1",
        "{a}.clamp(-1, 0.5)",
    ),
    *(
        "{a} + {b}",
        "{a} * {b}",
        "{a} - {b}.sin()",
        "{a} / ({b}.abs() + 1)",
        "torch.maximum({a}, {b})",
        "{a}[..., None] - {b}",
    ),
    *(
        "torch.where({m}, {a}, {b})",
        "{a}.masked_fill({m}, 0.25)",
        "torch.where(torch.arange({a}.shape[-1]) % 3 == 1, {a}, 1)",
    ),
)
CASTS = (
    "{a}.to(torch.bfloat16)",
    "{a}.half()",
    "{a}.float()",
    "{a}.double()",
    "{m}.float()",
    "({k} % 7).to({a}.dtype)",
)
MOVES = (
    *(
        "{a}.transpose({d}, {e})",
        "{a}[1:]",
        "{a}[..., ::2]",
        "{a}[:, 1:-1]",
        "{a}.flip({d})",
        "{a}.roll(1, {d})",
        "{a}.flatten()",
    ),
    *(
        "{a}.unsqueeze({d})",
        "{a}.select({d}, -1)",
        "{a}.reshape(-1, 2)",
        "{a}.unfold({d}, 2, 1)",
        "{a}.diagonal()",
        "{a}.tril()",
    ),
    *(
        "{a}.repeat_interleave(2, {d})",
        "{a}.chunk(2, {d})[0]",
        "{a}.movedim({d}, {e}).contiguous()",
        "{a}.expand(2, *{a}.shape)",
    ),
    *(
        "torch.nn.functional.pad({a}, (1, 2))",
        "torch.nn.functional.pad({a}, (-1, 1), value=0.5)",
        "torch.diff({a}, dim={d})",
    ),
)
JOINS = (
    *(
        "torch.cat([{a}, {b}], {d})",
        "torch.stack([{a}, {b}], {d})",
        "torch.cat([{a}[1:], {a}[:1] * 2])",
        "torch.cat([{a}, -{a}, {b}], {d})",
    ),
    *("torch.cat([{a}[..., 1::2], {a}[..., ::2]], -1)", "torch.cat([{a}.sum({d}, keepdim=True), {b}], {d})"),
    *(
        "torch.stack([{a}, {a} * {a}], -1).flatten(-2)",
        "torch.cat([{a}.flatten(), {b}.flatten()])",
        "torch.cat([{a}, {a}.new_zeros({a}.shape)], {d})",
    ),
)
SUMS = (
    *(
        "{a}.sum({d})",
        "{a}.mean({d}, keepdim=True)",
        "{a}.amax({d})",
        "{a}.logsumexp({d})",
        "{a}.var({d}, correction=0)",
        "{a}.mean()",
    ),
    *(
        "{a} - {a}.mean({d}, keepdim=True)",
        "{a}.softmax({d})",
        "{a}.log_softmax({d})",
        "{a}.cumsum({d})",
        "{a}.flip({d}).cumsum({d}).flip({d})",
    ),
    *(
        "torch.nn.functional.layer_norm({a}, {a}.shape[-1:], eps=0.1)",
        "{a} * torch.rsqrt({a}.square().mean({d}, keepdim=True) + 0.1)",
    ),
    *(
        "{a} @ {b}.transpose(-2, -1)",
        "{a} @ {a}.transpose(-2, -1) * 0.3",
        "{a}.sum((0, -1))",
        "torch.einsum('...i,...j->...ij', {a}, {a})",
        "{m}.sum({d}) * {a}.mean()",
    ),
)
PLACES = (
    *(
        "{a}[{k} % {a}.shape[0]]",
        "{a}.index_select({d}, {k} % {a}.shape[{d}])",
        "{a}[..., {k} // 3 % {a}.shape[-1]]",
        "{a}.take({k} % {a}.numel())",
    ),
    *(
        "{a}.index_add(0, {k}[: {a}.shape[0]] % {a}.shape[0], {a}[: {k}.shape[0]])",
        "{a}[torch.arange({a}.shape[0]) * 3 % {a}.shape[0]]",
    ),
    *(
        "{a}.new_zeros(5, *{a}.shape[1:]).index_add(0, {k}[: {a}.shape[0]] % 5, {a}[: {k}.shape[0]])",
        "{a}.select_scatter({b}, {d}, 0)",
    ),
    *("torch.gather({a}, 0, ({k} % {a}.shape[0]).reshape(-1, *[1] * ({a}.ndim - 1)).expand(-1, *{a}.shape[1:]))",),
)
CHANGES = (
    *(
        "{v}[1:] += {a}",
        "{v}.mul_({b})",
        "{v}[..., 0] = {b}",
        "{v}.transpose(0, -1).add_(1)",
        "{v}[::2] *= 2",
        "{v}[..., :1].zero_()",
    ),
    *(
        "{v}[{k} % {v}.shape[0]] = {b}",
        "{v}[..., 1:] = {v}[..., :-1] + 1",
        "{v}.masked_fill_({m}, 0.5)",
        "{v}.select({d}, 0).tanh_()",
    ),
)
KINDS = (POINTS, POINTS, CASTS, MOVES, MOVES, JOINS, JOINS, SUMS, SUMS, PLACES, CHANGES)


@dataclass
class Program:
    """A program and arguments of two sizes.

    Args:
        lines: what it computes.
        given: its arguments, by their names, at each of the sizes.
        dims: those of each argument that change, by its name.
    """

    lines: list[str]
    given: list[dict[str, Any]]
    dims: dict[str, list[int]]

    @property
    def source(self) -> str:
        """The text of the function, which gives the arrays that no other line reads, three at most."""
        names = [line.split(" = ")[0] for line in self.lines if line[0] == "v" and line.split(" = ")[0].isalnum()]
        read = {name for name in names if sum(name in line.replace(".", " ").split() for line in self.lines) > 1}
        results = [name for name in names if name not in read][-3:] or names[-1:]
        body = "\n    ".join([*self.lines, f"return {', '.join(results)},"])
        return f"def program({', '.join(self.given[0])}):\n    {body}\n"

    def function(self, *, is_wide: bool = False) -> Any:
        """Return the function, in float64 throughout where it is to be exact."""
        source = self.source
        for narrow in (".to(torch.bfloat16)", ".half()", ".float()") if is_wide else ():
            source = source.replace(narrow, ".double()")
        held: dict[str, Any] = {"torch": torch}
        exec(source, held)
        return held["program"]


def drawn(seed: int) -> Program:
    """Return the program of a seed."""
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    shapes = {f"x{number}": shape for number, shape in enumerate(rng.sample(SHAPES, rng.randint(2, 3)))}
    given: list[dict[str, Any]] = []
    for size in rng.randint(4, 8), rng.randint(9, 15):
        exact = [[size if dim == "n" else dim for dim in shape] for shape in shapes.values()]
        floats = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in exact]
        arrays = dict(zip(shapes, floats, strict=True))
        given.append(arrays | {"k": torch.randint(0, 999, (size,), generator=generator), "m": floats[0] > 0.1})
    dims = {name: [at for at, dim in enumerate(shape) if dim == "n"] for name, shape in shapes.items()}
    program = Program([], given, dims | {"k": [0], "m": dims["x0"]})
    known = [dict(one) for one in given]
    wanted, draws = rng.randint(4, 10), 0
    while len(program.lines) < wanted and draws < 300:
        draws += 1
        added = _lines(rng, f"v{len(program.lines)}", known[0])
        ran = [_ran(added, one) for one in known]
        if all(one is not None for one in ran):
            known = ran
            program.lines += added
    return program


def _lines(rng: random.Random, name: str, known: dict[str, Any]) -> list[str]:
    """Return lines that make an array; nobody knows yet whether they run."""
    floats = [one for one, value in known.items() if value.is_floating_point()]
    a, b = rng.choices(floats, range(1, len(floats) + 1), k=2)
    rank = max(known[a].ndim, 1)
    dims = [rng.randrange(-rank, rank) for _ in range(2)]
    words = {"a": a, "b": b, "k": "k", "m": "m", "v": name, "d": dims[0], "e": dims[1]}
    kind = rng.choice(KINDS)
    line = rng.choice(kind).format(**words)
    return [f"{name} = {a} * 1", line] if kind is CHANGES else [f"{name} = {line}"]


def _ran(lines: list[str], known: dict[str, Any]) -> dict[str, Any] | None:
    """Return the arrays after some lines, None where those fail, or make an array that is too large or no float's."""
    after = dict(known)
    try:
        for line in lines:
            exec(line, {"torch": torch}, after)
    except (RuntimeError, IndexError, ValueError):
        return None
    made = after[lines[0].split(" = ")[0]]
    is_small = 0 < made.numel() <= MOST and made.is_floating_point() and bool(made.isfinite().all())
    return after if is_small and float(made.detach().abs().max()) <= LARGEST else None


def both_ways(function: Any, given: dict[str, Any], dtype: Any, program: Program) -> list[Any]:
    """Return results, and gradients of all floats; None where there is none."""
    own = {name: one.clone().to(dtype) if one.is_floating_point() else one.clone() for name, one in given.items()}
    floats = [one.requires_grad_() for one in own.values() if one.is_floating_point()]
    for name, one in own.items():
        for dim in program.dims[name]:
            torch._dynamo.maybe_mark_dynamic(one, dim)
    results = function(**own)
    smooth = [one for one in results if one.requires_grad]
    weights = [
        torch.linspace(0.5, 1, one.numel(), dtype=torch.float64).reshape(one.shape).to(one.dtype) for one in smooth
    ]
    grads = torch.autograd.grad(smooth, floats, weights, allow_unused=True) if smooth else []
    return [*results, *grads]


@pytest.mark.parametrize("_number", range(PROGRAMS))
def test_random_programs(_number: int) -> None:
    seed = secrets.randbelow(1 << 32)
    program = drawn(seed)
    said = f"seed {seed}, {program.source}"
    print(said)
    torch._dynamo.reset()
    run = torch.compile(program.function(), backend=compiled.backend, fullgraph=True)
    slack = 0.03 if "bfloat16" in program.source else 0.004 if "half" in program.source else 2e-5
    for given in program.given:
        exact = both_ways(program.function(is_wide=True), given, torch.float64, program)
        eager = both_ways(program.function(), given, torch.float32, program)
        found = both_ways(run, given, torch.float32, program)
        for one, own, got in zip(exact, eager, found, strict=True):
            if one is None or own is None:
                assert got is None or not got.any(), said
            elif one.isfinite().all():
                assert (got.dtype, got.shape) == (own.dtype, own.shape), said
                allowed = 2 * (own.double() - one).abs().max() + slack * (1 + one.abs().max())
                assert (got.double() - one).abs().max() <= allowed, said
