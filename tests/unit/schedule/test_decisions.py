"""What passes decide is declared: who writes it, which ops carry it, and what the verifier refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from xdsl.dialects.builtin import IntAttr, ModuleOp, StringAttr
from xdsl.utils.exceptions import VerifyException

import tessera as ts
from tessera.canonicalize.stages import CANONICALIZE
from tessera.driver.pipeline import schedule_passes
from tessera.errors import CompilerFault, VerifyError
from tessera.ir.decisions import DECISIONS, PREFIX, check_decisions
from tessera.ir.passes import Pass, PassRunner
from tessera.ir.text import parse_module
from tessera.ir.tile.roles import BarrierArriveOp, BarrierWaitOp, RolesOp
from tessera.ir.tile.structure import GridOp
from tessera.schedule.knobs import Knobs
from tessera.target.registry import target_named
from tessera.tools.opt import registered_passes
from tests.unit.lower.support import aligned
from tests.unit.schedule.hopper.kernels import attention_of, gemm, gemm_wide
from tests.unit.schedule.hopper.prologues import scaled_left
from tests.unit.schedule.hopper.test_rounding import tn
from tests.unit.schedule.hopper.test_whole_stores import SIZES, packed


def few_rows(a: ts.Tensor[8, 64, ts.f32], b: ts.Tensor[64, "n", ts.f32], c: ts.Tensor[8, "n", ts.f32]) -> None:
    for j in ts.tile.grid((n, 32)):
        c[:, j : j + 32] = ts.tile.mma(a[:, :], b[:, j : j + 32])


def f32_rows(a: ts.Tensor["m", 64, ts.f32], b: ts.Tensor[64, 64, ts.f32], c: ts.Tensor["m", 64, ts.f32]) -> None:
    for i in ts.tile.grid((m, 32)):
        c[i : i + 32, :] = ts.tile.mma(a[i : i + 32, :], b[:, :])


def f32_terms(a: ts.Tensor["m", "k", ts.f32], b: ts.Tensor["k", 64, ts.f32], c: ts.Tensor["m", 64, ts.f32]) -> None:
    for i in ts.tile.grid((m, 64)):
        total = ts.tile.zeros((64, 64), ts.f32)
        for j in ts.tile.range(0, k, 16):
            total = ts.tile.mma(a[i : i + 64, j : j + 16], b[j : j + 16, :], total)
        c[i : i + 64, :] = total


def staying(a: ts.Tensor[32, 64, ts.f32], b: ts.Tensor[64, 64, ts.f32], c: ts.Tensor["m", 64, ts.f32]) -> None:
    left, right = a[:, :], b[:, :]
    for i in ts.tile.range(0, m, 32):
        c[i : i + 32, :] = ts.tile.mma(left, right, c[i : i + 32, :])


def across(x: ts.Tensor["m", 64, ts.f32], y: ts.Tensor[64, "m", ts.f32]) -> None:
    for i in ts.tile.grid((m, 32)):
        y[:, i : i + 32] = x[i : i + 32, :].transpose(1, 0)


def halved(x: ts.Tensor["m", 4096, ts.f32], y: ts.Tensor["m", 4096, ts.f32]) -> None:
    for i in ts.tile.grid((m, 1)):
        y[i, :] = x[i, :] * 0.5


def summed(x: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["n", ts.f32]) -> None:
    for j in ts.tile.grid((n, 32)):
        total = ts.tile.zeros((32,), ts.f32)
        for i in ts.tile.range(m):
            total = total + x[i, j : j + 32]
        y[j : j + 32] = total


def doubled_rows(x: ts.Tensor["m", 50001, ts.f32], y: ts.Tensor["m", 50001, ts.f32]):
    for i in ts.tile.grid((m, 1)):
        y[i, :] = x[i, :] * 2


def largest(x: ts.Tensor["m", 5001, ts.f32], y: ts.Tensor["m", ts.f32]):
    for i in ts.tile.grid((m, 1)):
        y[i] = ts.tile.max(x[i, :])


def centred(x: ts.Tensor["m", 16384, ts.f32], y: ts.Tensor["m", 16384, ts.f32]):
    for i in ts.tile.grid((m, 1)):
        row = x[i, :]
        y[i, :] = row - ts.tile.min(row)


def scaled_pairs(
    x: ts.Tensor["m", 16384, ts.bf16], g: ts.Tensor["m", 16384, ts.bf16], y: ts.Tensor["m", 16384, ts.bf16]
):
    for i in ts.tile.grid((m, 1)):
        row, other = x[i, :].to(ts.f32), g[i, :].to(ts.f32)
        y[i, :] = other - row * ts.tile.sum(row * other)


def long_softmax(x: ts.Tensor["m", 65536, ts.f32], y: ts.Tensor["m", 65536, ts.f32]):
    for i in ts.tile.grid((m, 1)):
        row = x[i, :]
        powers = ts.tile.exp(row - ts.tile.max(row))
        y[i, :] = powers / ts.tile.sum(powers)


def odd_softmax(x: ts.Tensor["m", 81645, ts.bf16], y: ts.Tensor["m", 81645, ts.bf16]) -> None:
    for i in ts.tile.grid((m, 1)):
        row = x[i, :].to(ts.f32)
        powers = ts.tile.exp(row - ts.tile.max(row))
        y[i, :] = powers / ts.tile.sum(powers)


HEADS = {"H": 2, "S": 256}
CUBE = {"M": 256, "N": 256, "K": 256}


def running_sums(x: ts.Tensor["m", 20000, ts.f32], y: ts.Tensor["m", 20000, ts.f32]) -> None:
    for i in ts.tile.grid((m, 1)):
        y[i, :] = ts.tile.cumsum(x[i, :], 0)


def short_boxes(x: ts.Tensor["m", 5, 3, ts.f32], y: ts.Tensor["m", 5, 3, ts.f32]) -> None:
    for i, j, k in ts.tile.grid((m, 64), (5, 8), (3, 4)):
        y[i : i + 64, j : j + 8, k : k + 4] = x[i : i + 64, j : j + 8, k : k + 4]


SCHEDULES: list[tuple[Callable[..., None], dict[str, int], str, Knobs]] = [
    (gemm, CUBE, "sm_80", Knobs()),
    (gemm, CUBE, "sm_90a", Knobs()),
    (gemm, CUBE, "sm_80", Knobs(mma_kind="fma")),
    (gemm, CUBE, "sm_90a", Knobs(split_k=2)),
    (gemm, CUBE, "sm_90a", Knobs(stream_k=1)),
    (gemm, CUBE, "sm_90a", Knobs(cluster=2)),
    (gemm_wide, CUBE, "sm_90a", Knobs(ping_pong=1)),
    (tn, CUBE, "sm_90a", Knobs()),
    (scaled_left, CUBE | {"S": 2}, "sm_90a", Knobs()),
    (attention_of(64, 64, 64, True), HEADS, "sm_90a", Knobs(pipeline=1)),
    (attention_of(64, 128, 64, False), HEADS, "sm_90a", Knobs(pipeline=1, ping_pong=1)),
    (attention_of(64, 192, 64, False), HEADS, "sm_90a", Knobs()),
    (gemm, CUBE | {"K": 250}, "sm_90a", Knobs()),
    (packed, SIZES, "sm_90a", Knobs()),
    (f32_terms, {"m": 64, "k": 250}, "sm_90a", Knobs()),
    (summed, {}, "sm_90a", Knobs()),
    (doubled_rows, {}, "sm_90a", Knobs()),
    (largest, {}, "sm_90a", Knobs()),
    (centred, {}, "sm_90a", Knobs()),
    (scaled_pairs, {}, "sm_90a", Knobs()),
    (long_softmax, {}, "sm_90a", Knobs()),
    (odd_softmax, {}, "sm_90a", Knobs()),
    (running_sums, {}, "sm_90a", Knobs()),
    (gemm, CUBE, "sapphirerapids", Knobs()),
    (f32_rows, {"m": 64}, "x86-64-v3", Knobs()),
    (few_rows, {"n": 64}, "x86-64-v3", Knobs()),
    (halved, {}, "x86-64-v3", Knobs()),
    (staying, {}, "x86-64-v3", Knobs()),
    (across, {}, "x86-64-v3", Knobs()),
]
CANONICAL = [
    (gemm, CUBE, "sm_90a", Knobs()),
    (short_boxes, {}, "sm_90a", Knobs()),
    (gemm, CUBE, "x86-64-v3", Knobs()),
    (f32_terms, {"m": 64, "k": 250}, "x86-64-v3", Knobs()),
]
STRIDES = {short_boxes: {"x": (15, 1, 5)}}
GRID = """
tessera_tile.kernel @k profile "fast" () {{
  %n = tessera_tile.constant 4 : index
  tessera_tile.grid(%n) by [2] {{
  ^bb0(%i: index):
  }} {{{attributes}}}
  tessera_tile.return
}}
"""


def carried(module: ModuleOp) -> set[str]:
    """Return the keys that ops of a module carry, and check them."""
    for op in module.walk():
        check_decisions(op)
    return {key for op in module.walk() for key in op.attributes if key.startswith("tessera_schedule.")}


def test_each_decision_is_written_by_the_passes_that_it_names() -> None:
    found: dict[str, set[str]] = {}
    schedules = [((), one) for one in SCHEDULES] + [(CANONICALIZE, one) for one in CANONICAL]
    for first, (kernel, sizes, target, knobs) in schedules:
        module = aligned(kernel, sizes, STRIDES.get(kernel))
        for step in first:
            step.apply(module)
        before = carried(module)
        assert before == set()
        for step in schedule_passes(target_named(target), knobs):
            step.apply(module)
            after = carried(module)
            for key in after - before:
                found.setdefault(key, set()).add(step.name)
            before = after
    assert found == {decision.key: set(decision.writers) for decision in DECISIONS.values()}
    assert set().union(*found.values()) <= {cls.name for cls in registered_passes().values()}


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ("tessera_schedule.num_warp = #builtin.int<4>", "tessera_schedule.num_warp is not a decision of a schedule"),
        (
            "tessera_schedule.stages = #builtin.int<2>",
            "tessera_schedule.stages belongs on scf.for, not tessera_tile.grid",
        ),
        ('tessera_schedule.num_warps = "4"', 'is an integer (#builtin.int) from 1 to 32, got "4"'),
        ("tessera_schedule.num_warps = 4 : i32", "is an integer (#builtin.int) from 1 to 32, got 4 : i32"),
        ("tessera_schedule.num_warps = #builtin.int<0>", "from 1 to 32"),
        ("tessera_schedule.num_warps = #builtin.int<64>", "from 1 to 32"),
        ("tessera_schedule.persistent = #builtin.int<2>", "from 0 to 1"),
        ("tessera_schedule.group = #builtin.int<0>", "from 1 on"),
        ("tessera_schedule.split_k", "from 1 to 8"),
    ],
)
def test_what_is_no_decision_is_refused(attributes: str, said: str) -> None:
    with pytest.raises(VerifyError) as caught:
        parse_module(GRID.format(attributes=attributes), "k.mlir")
    assert said in str(caught.value)
    assert caught.value.location is not None
    assert (caught.value.location.frame.file, caught.value.location.frame.line) == ("k.mlir", 4)


LOAD = """
tessera_tile.kernel @k profile "fast" (
    %a: !tessera_tile.tensor<?xf32> as "a" dims ["N"] strides [1] stride_div [1] dim_div [64] align 16) {
  %n = tessera_tile.constant 64 : index
  tessera_tile.grid(%n) by [64] {
  ^bb0(%i: index):
    %x = tessera_tile.load %a[%i] [64] {tessera_schedule.ahead = #builtin.int<VALUE>}
      : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<64xf32>
  }
  tessera_tile.return
}
"""


def test_what_the_ops_around_contradict_is_refused() -> None:
    parse_module(LOAD.replace("VALUE", "0"))
    with pytest.raises(VerifyError, match=r"tessera_schedule\.ahead: no loop carries what is loaded"):
        parse_module(LOAD.replace("VALUE", "1"))


def test_turns_belong_to_groups_of_consumers() -> None:
    module = aligned(gemm_wide, CUBE)
    for step in schedule_passes(target_named("sm_90a"), Knobs(ping_pong=1)):
        step.apply(module)
    (roles,) = [op for op in module.walk() if isinstance(op, RolesOp)]
    turns = [op for op in roles.consumer.walk() if DECISIONS["group_turn"].on(op)]
    assert [type(op) for op in turns] == [BarrierWaitOp, BarrierArriveOp]
    roles.groups = IntAttr(1)
    for op in turns:
        with pytest.raises(VerifyException, match="not one of a group of consumers among several"):
            check_decisions(op)


def test_decisions_and_attributes_of_others_are_read_back() -> None:
    module = parse_module(GRID.format(attributes='tessera_schedule.num_warps = #builtin.int<4>, mine = "x"'))
    (grid,) = [op for op in module.walk() if isinstance(op, GridOp)]
    assert DECISIONS["num_warps"].of(grid) == 4
    assert DECISIONS["group"].of(grid) is None
    assert not DECISIONS["persistent"].on(grid)


@dataclass(frozen=True)
class _GuessingPass(Pass):
    """Writes a key that nobody has declared."""

    name = "guessing"

    def apply(self, module: ModuleOp) -> None:
        next(op for op in module.walk() if isinstance(op, GridOp)).attributes[f"{PREFIX}guess"] = StringAttr("so")


def test_a_pass_that_writes_another_key_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(CompilerFault, match=r"pass guessing of stage test left invalid IR: tessera_schedule\.guess"):
        PassRunner(tmp_path).run(parse_module(GRID.format(attributes="")), "test", [_GuessingPass()])


def test_the_pages_tell_all_decisions() -> None:
    docs = Path(__file__).resolve().parents[3] / "docs"
    pages = {name: (docs / name).read_text(encoding="utf-8") for name in ("cpu.md", "gpu-schedules.md")}
    written = {cls.name: cls.__module__ for cls in registered_passes().values()}
    for decision in DECISIONS.values():
        ops = ", ".join(f"`{cls.name.removeprefix('tessera_tile.')}`" for cls in decision.ops)
        passes = ", ".join(f"`{name}`" for name in decision.writers)
        row = f"| `{decision.name}` | {ops} | {passes} | {decision.meaning} |\n"
        cpu = all(written[name].startswith("tessera.schedule.cpu.") for name in decision.writers)
        page = "cpu.md" if cpu else "gpu-schedules.md"
        assert row in pages[page], f"docs/{page} lacks the row {row}"
