"""Accumulators of warpgroup products stay where they are until the product is waited for."""

from __future__ import annotations

import re

import pytest

import tessera as ts
from tessera.backends.nvidia.in_flight import check_products, used_in_flight
from tessera.errors import CompilerFault

START = "\t{ .reg .pred p; wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%r1, %r2}, %rd1, %rd2, p, 1, 1, 0, 0; }"
OTHER = START.replace("%r1, %r2", "%r5, %r6")
COMMIT, COPY = "\twgmma.commit_group.sync.aligned;", "\tmov.b32 \t%r3, %r1;"


def wait(pending: int) -> str:
    return f"\twgmma.wait_group.sync.aligned {pending};"


@pytest.mark.parametrize(
    "lines",
    [
        [START, COMMIT, COPY, wait(0)],
        [START, COPY, COMMIT, wait(0)],
        [START, COMMIT, wait(1), COPY],
        [OTHER, COMMIT, START, COMMIT, wait(1), COPY],
        [START, COMMIT, "\tmov.b32 \t%r2, 0;"],
    ],
)
def test_a_use_before_the_wait_is_a_fault(lines: list[str]) -> None:
    with pytest.raises(CompilerFault, match="while their product runs: mov") as caught:
        check_products("\n".join(lines))
    assert caught.value.code == "products-in-flight"


@pytest.mark.parametrize(
    "lines",
    [
        [START, COMMIT, wait(0), COPY],
        [START, COMMIT, START, COMMIT, wait(0), COPY],
        [START, COMMIT, OTHER, COMMIT, wait(1), COPY],
        [COPY, START, COMMIT, "\tmov.b32 \t%r4, %r7;", wait(0)],
        [START, COMMIT, wait(0), "$L__BB0_1:", COPY],
        [COPY],
    ],
)
def test_other_uses_are_none(lines: list[str]) -> None:
    check_products("\n".join(lines))


@pytest.mark.parametrize(
    ("lines", "used"),
    [
        ([START, COMMIT, "\t@%p1 bra \t$L2;", COPY, "$L2:", wait(0)], True),
        ([START, COMMIT, "\tbra.uni \t$L3;", "$L2:", wait(0), "\tret;", "$L3:", COPY, "\tbra.uni \t$L2;"], True),
        (["$L1:", COPY, START, COMMIT, "\t@%p1 bra \t$L1;", wait(0)], True),
        (["$L1:", START, COMMIT, wait(1), OTHER, COMMIT, "\t@%p1 bra \t$L1;", wait(0), COPY], False),
        ([START, COMMIT, "\t@%p1 bra \t$L2;", "$L2:", wait(0), COPY], False),
        ([START, COMMIT, "\tret;", "$L2:", COPY], False),
        ([START, COMMIT, "}", COPY], False),
    ],
)
def test_uses_are_found_on_every_path(lines: list[str], used: bool) -> None:
    text = "\n".join(lines)
    assert used_in_flight(text) == (COPY.strip() if used else "")
    check_products(text)  # no block shows it


@ts.kernel
def masked(a: ts.Tensor["M", 64, ts.bf16], b: ts.Tensor["S", 64, ts.bf16], c: ts.Tensor["M", 64, ts.f32]):
    """Sums that change places in steps of which some are masked: branches between products and waits."""
    for m in ts.tile.grid((M, 64)):
        query = a[m : m + 64, :]
        first = ts.tile.zeros((64, 64), ts.f32)
        second = first
        for k in ts.tile.range(0, S, 64):
            scores = ts.tile.mma(query, b[k : k + 64, :].T)
            seen = (m + ts.tile.arange(64))[:, None] >= (k + ts.tile.arange(64))[None, :]
            weights = ts.tile.clamp(ts.tile.where(seen, scores, 0.0), -2.0, 2.0)
            both = ts.tile.mma(ts.tile.cast(weights, ts.bf16), b[k : k + 64, :], first)
            first, second = second, both
        c[m : m + 64, :] = first + second * 2.0


@ts.kernel
def exchanged(a: ts.Tensor["M", 128, ts.f16], b: ts.Tensor[128, 64, ts.f16], c: ts.Tensor[2, "M", 64, ts.f32]):
    """Sums that change places in each step."""
    for m in ts.tile.grid((M, 64)):
        first, second = ts.tile.zeros((64, 64), ts.f32), ts.tile.full((64, 64), 1, ts.f32)
        for k in ts.tile.range(0, 128, 64):
            first = ts.tile.mma(a[m : m + 64, k : k + 64], b[k : k + 64, :], first)
            first, second = second, first
        c[0, m : m + 64] = first
        c[1, m : m + 64] = second


@ts.kernel
def in_place(a: ts.Tensor["M", 128, ts.f16], b: ts.Tensor[128, 64, ts.f16], c: ts.Tensor[2, "M", 64, ts.f32]):
    """A sum that stays where it is."""
    for m in ts.tile.grid((M, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, 128, 64):
            acc = ts.tile.mma(a[m : m + 64, k : k + 64], b[k : k + 64, :], acc)
        c[0, m : m + 64] = acc


COPIES = re.compile(
    r"wait_group\.sync\.aligned 0;\n\t// end inline asm\n\t// begin inline asm\n\tmov\.b32 %\w+, %\w+; mov"
)


@pytest.mark.parametrize(("kernel", "copies"), [(exchanged, True), (masked, True), (in_place, False)])
def test_sums_that_change_places_are_copied_behind_the_wait(kernel: ts.Kernel, copies: bool) -> None:
    ptx = ts.compile(kernel, target="sm_90a", dump=["ptx"]).dumps["ptx"]
    assert "wgmma.mma_async" in ptx
    assert (COPIES.search(ptx) is not None) == copies
    assert not used_in_flight(ptx)
