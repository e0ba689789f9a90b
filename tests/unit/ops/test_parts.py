"""Products of few tiles and many terms: programs do some terms each, a second launch adds up what they leave."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import ops as op
from tessera.ops.linalg.packing import sums_of
from tessera.ops.linalg.plan import Plan, plan, unshared
from tessera.ops.linalg.prepare import EMPTY, kernel_for
from tessera.ops.linalg.problem import Forced
from tessera.ops.linalg.scratch import Copies
from tessera.runtime import cuda
from tessera.runtime.device import Device
from tessera.target.registry import target_named
from tests.unit.ops.test_flash_attention import emulated
from tests.unit.ops.test_packing import Recorder, problem

E = op.epilogue
HOPPER = target_named("sm_90a")
DEEP = 64, 48, 20000


def of_parts(parts: int, block: tuple[int, int, int]) -> Plan:
    return Plan(*block, num_warps=4, path="wgmma", parts=parts)


@pytest.mark.parametrize(
    ("sizes", "trans", "parts", "block"),
    [
        ((70, 40, 200), (False, True), 3, (64, 64, 64)),  # the last part has no terms
        ((128, 72, 333 * 8), (True, False), 5, (128, 64, 64)),
        ((8, 200, 1024), (False, False), 40, (64, 128, 64)),  # more parts than steps
    ],
)
def test_parts_add_up_to_the_product(
    sizes: tuple[int, int, int], trans: tuple[bool, bool], parts: int, block: tuple[int, int, int]
) -> None:
    m, n, k = sizes
    rng = np.random.default_rng(m)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((m, k), (k, n)))
    exact = a.astype(np.float64) @ b
    given = problem(m, n, k, ts.f16, trans_a=trans[0], trans_b=trans[1])
    stored = [np.ascontiguousarray(x.T) if turned else x for x, turned in zip((a, b), trans, strict=True)]
    lines = sums_of(given, parts).lines
    sums = np.full(lines, np.nan, np.float32)
    out = np.full((m, n), np.nan, np.float16)
    kernel = kernel_for(given, of_parts(parts, block), EMPTY)
    sizes_of = {"M": m, "N": n, "K": k, "PARTS": parts, "PADDED": lines[-1]}
    emulated(kernel, "sm_90a", [*stored, sums, out], sizes_of, ())
    assert np.abs(out - exact).max() <= 2.0**-10 * np.abs(exact).max()
    assert np.isfinite(sums[:, :, :n]).all(), "parts without terms are zeros"


def test_plans_choose_parts_for_few_tiles_of_many_terms() -> None:
    found = plan(problem(*DEEP), HOPPER)
    assert found.parts > 8
    assert found.scratch_bytes == sums_of(problem(*DEEP), found.parts).bytes
    assert f"{found.parts} parts" in str(found)
    assert plan(problem(4096, 4096, 4096), HOPPER).parts == 1
    assert plan(problem(64, 48, 512), HOPPER).parts == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"batch": 2, "a_batched": True},
        {"triangular": "lower"},
        {"promote": 128},
        {"reduces": True},
        {"grouped": True},
        {"in_order": True},
    ],
)
def test_what_keeps_a_product_to_one_launch(changes: dict[str, Any]) -> None:
    assert plan(replace(problem(*DEEP), **changes), HOPPER).parts == 1


@pytest.mark.parametrize("forced", [{"split_k": 1}, {"split_k": 8}, {"stream_k": 1}, {"block": (64, 64, 64)}])
def test_a_given_schedule_has_no_parts(forced: dict[str, Any]) -> None:
    found = plan(problem(*DEEP), HOPPER, Forced(**forced))
    assert (found.parts, found.scratch_bytes) == (1, 0)


def made_for(parts: int, pack: str, alone: Any) -> Copies:
    given = problem(64, 40, 64)
    schedule = replace(of_parts(parts, (64, 64, 64)), pack_a=pack)
    found = Copies.of(given, schedule, Device("cuda", 0), alone)
    assert found is not None
    return found


def test_sums_lie_behind_copies_and_are_an_argument(monkeypatch: Any) -> None:
    record = Recorder(monkeypatch)
    made_for(3, "", None).run(record.kernel("product"), "a", "b", ("out",), None)
    sums = 3 * 64 * 64 * 4
    assert record.log == [
        ("allocate", sums, 7),
        ("product", "a", "b", (0x1000, (64 * 64, 64, 1)), "out", ("stream", 7)),
        ("free", 0x1000, 7),
    ]
    record = Recorder(monkeypatch)
    both = made_for(3, "k", None)
    both._kernel = record.kernel("copy")
    both.run(record.kernel("product"), "a", "b", ("out",), None)
    copy = 64 * 128
    assert record.log[0] == ("allocate", copy + sums, 7)
    assert record.log[2][1:4] == ((0x1000, (64, 1)), "b", (0x1000 + copy, (64 * 64, 64, 1)))


def test_without_memory_for_sums_one_launch_computes_the_product(monkeypatch: Any) -> None:
    record = Recorder(monkeypatch)

    def full(*_args: Any) -> int:
        raise ts.errors.DeviceError("cuda:0 has no 8192 bytes left", code="out-of-memory")

    monkeypatch.setattr(cuda, "allocate", full)
    got = made_for(3, "", record.kernel("alone")).run(record.kernel("product"), "a", "b", ("out",), None)
    assert got == "result"
    assert record.log == [("alone", "a", "b", "out", ("stream", 7))]
    assert unshared(problem(*DEEP), HOPPER).parts == 1


def test_an_epilogue_is_applied_to_the_whole_sums() -> None:
    m, n, k, parts = 20, 24, 512, 4
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((m, k), (n, k)))
    bias = rng.standard_normal(n).astype(np.float32)
    given = replace(problem(m, n, k, ts.f16, trans_b=True), work=2)
    kernel = kernel_for(given, of_parts(parts, (64, 64, 64)), E.chain([E.bias(bias), E.relu()]))
    lines = sums_of(given, parts).lines
    sums, out = np.full(lines, np.nan, np.float32), np.full((m, n), np.nan, np.float16)
    sizes = {"M": m, "N": n, "K": k, "PARTS": parts, "PADDED": lines[-1]}
    emulated(kernel, "sm_90a", [a, b, sums, out, bias], sizes, ())
    exact = np.maximum(a.astype(np.float64) @ b.T + bias, 0)
    assert np.abs(out - exact).max() <= 2.0**-10 * np.abs(exact).max()
