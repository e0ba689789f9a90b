"""Boxes of products that are cut at a tensor's end: which are, and that nobody needs what they leave out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.canonicalize.stages import CANONICALIZE
from tessera.interp import interpret
from tessera.ir.tile.roles import BulkCopyOp
from tessera.schedule.knobs import Knobs
from tessera.target.registry import target_named
from tests.unit.lower import support
from tests.unit.ops.test_flash_attention import emulated
from tests.unit.schedule.hopper.test_ping_pong import ops

SIZES = {"M": 152, "N": 328, "K": 72}


def scheduled(function: Any, sizes: dict[str, int], **knobs: int | str) -> Any:
    """Return a kernel after the passes for Hopper."""
    module = support.aligned(function, sizes)
    for step in CANONICALIZE:
        step.apply(module)
    return support.scheduled(module, target_named("sm_90a"), Knobs.of(knobs))


def product(bm: int, bn: int, turned: str = "", end: str = "") -> Any:
    """Return a product of a size of tiles; `turned` names operands that are stored by columns, `end` what follows."""

    def kernel(
        a: ts.Tensor["M", "K", ts.f16],
        b: ts.Tensor["K", "N", ts.f16],
        at: ts.Tensor["K", "M", ts.f16],
        bt: ts.Tensor["N", "K", ts.f16],
        c: ts.Tensor["M", "N", ts.f32],
    ) -> None:
        for m, n in ts.tile.grid((M, bm), (N, bn)):
            acc = ts.tile.zeros((bm, bn), ts.f32)
            for k in ts.tile.range(0, K, 64):
                left = at[k : k + 64, m : m + bm].T if "a" in turned else a[m : m + bm, k : k + 64]
                right = bt[n : n + bn, k : k + 64].T if "b" in turned else b[k : k + 64, n : n + bn]
                acc = ts.tile.mma(left, right, acc)
            if end == "columns":
                acc = acc + ts.tile.max(acc, 0)[None, :]
            c[m : m + bm, n : n + bn] = acc

    return kernel


def loose(module: Any) -> list[tuple[str, int | None]]:
    """Return which tensor each copy fetches from, and its loose dimension."""
    arguments = list(ops(module, BulkCopyOp)[0].tensor.owner.args)
    names = ["a", "b", "at", "bt", "c"]
    return [
        (names[arguments.index(op.tensor)], None if op.loose is None else op.loose.data)
        for op in ops(module, BulkCopyOp)
    ]


@pytest.mark.parametrize(
    ("turned", "end", "expected"),
    [
        ("", "", {("a", 0), ("b", 1)}),
        ("ab", "", {("at", 1), ("bt", 0)}),
        ("", "columns", {("a", None), ("b", 1)}),  # the largest of a column is that of all rows
    ],
)
def test_rows_and_columns_past_the_end_are_left_out_where_nobody_needs_them(
    turned: str, end: str, expected: set[tuple[str, int | None]]
) -> None:
    assert set(loose(scheduled(product(128, 128, turned, end), SIZES))) == expected


def longer(a: ts.Tensor["P", "K", ts.f16], b: ts.Tensor["K", "N", ts.f16], c: ts.Tensor["M", "N", ts.f32]) -> None:
    """The results have rows past the end of A: sums of its zeros."""
    for m, n in ts.tile.grid((M, 128), (N, 128)):
        acc = ts.tile.zeros((128, 128), ts.f32)
        for k in ts.tile.range(0, K, 64):
            acc = ts.tile.mma(a[m : m + 128, k : k + 64], b[k : k + 64, n : n + 128], acc)
        c[m : m + 128, n : n + 128] = acc


def test_zeros_that_are_stored_are_kept() -> None:
    sizes = {"P": 40, "M": 152, "N": 136, "K": 72}
    module = scheduled(longer, sizes)
    assert {place for _, place in loose(module)} == {None, 1}
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((40, 72), (72, 136)))
    c = np.full((152, 136), np.nan, np.float32)
    interpret(module, [a, b, c])
    np.testing.assert_allclose(c[:40], a.astype(np.float64) @ b.astype(np.float64), atol=1e-3)
    assert not c[40:].any()


def operands(rng: Any, inf: bool) -> tuple[list[Any], Any]:
    """Return the arguments of `product`, and the result in float64; the first columns of B may be infinite."""
    m, n, k = SIZES["M"], SIZES["N"], SIZES["K"]
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((m, k), (k, n)))
    if inf:
        b[:, :8] = np.inf
    with np.errstate(invalid="ignore"):
        exact = a.astype(np.float64) @ b.astype(np.float64)
    return [a, b, np.ascontiguousarray(a.T), np.ascontiguousarray(b.T), np.full((m, n), np.nan, np.float32)], exact


@pytest.mark.parametrize("turned", ["", "a", "b", "ab"])
@pytest.mark.parametrize("size", [(128, 256), (64, 192), (192, 128), (128, 128)], ids=str)
def test_products_of_cut_boxes(turned: str, size: tuple[int, int]) -> None:
    """What is left out is overwritten by the interpreter; on an emulated GPU the last tile's infinities stand there."""
    rng = np.random.default_rng(4)
    given, exact = operands(rng, False)
    module = scheduled(product(*size, turned), SIZES, fit_blocks=0)
    assert {place for _, place in loose(module)} == {0 if "a" not in turned else 1, 1 if "b" not in turned else 0}
    interpret(module, given)
    np.testing.assert_allclose(given[-1], exact, atol=1e-3)
    given, exact = operands(rng, True)
    emulated(ts.kernel.autotune({"fit_blocks": [0]})(product(*size, turned)), "sm_90a", given, SIZES, ())
    np.testing.assert_allclose(given[-1], exact, atol=1e-3)
