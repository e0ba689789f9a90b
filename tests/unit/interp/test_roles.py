"""Roles side by side: right programs equal float64 in any interleaving, wrong ones race or lock up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import IntAttr, ModuleOp
from xdsl.dialects.scf import ForOp
from xdsl.ir import Block, Operation

from tessera.errors import DeviceError, Frame, Location
from tessera.interp import interpret
from tessera.ir.locations import to_loc
from tessera.ir.tile import memory, roles, shared
from tessera.ir.tile.elementwise import ConstantOp, ElementwiseOp
from tessera.ir.tile.types import TensorType
from tests.unit.interp.kernels import tensor_kernel
from tests.unit.ir.samples import F32, At
from tests.unit.schedule.hopper.kernels import (
    attention,
    gemm,
    gemm_transposed,
    gemm_wide,
    has_roles,
    random,
    scheduled,
    specialized,
)

SEEDS = [None, 0, 1, 2, 3]
Change = Callable[[ModuleOp], None]


def product_of(module: ModuleOp, m: int, n: int, k: int, **options: Any) -> None:
    """Run a product and compare it with float64."""
    a, b, c = random(m, k), random(k, n), np.full((m, n), np.nan, np.float32)
    interpret(module, [a, b, c], **options)
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-5, atol=1e-5 * (k + 1))


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("size", [(64, 64, 64), (77, 72, 200), (1, 8, 8), (65, 136, 328), (130, 64, 520), (3, 8, 648)])
def test_a_product_equals_float64(stages: int, size: tuple[int, int, int]) -> None:
    m, n, k = size
    module = specialized(gemm, {"M": m, "N": n, "K": k}, stages=stages)
    assert has_roles(module)
    product_of(module, m, n, k)


@pytest.mark.parametrize("seed", range(12))
def test_any_interleaving_gives_the_product(seed: int) -> None:
    product_of(specialized(gemm, {"M": 70, "N": 72, "K": 328}, stages=2), 70, 72, 328, order_seed=seed)


@pytest.mark.parametrize("checks", [False, True])
def test_a_transposed_operand(checks: bool) -> None:
    a, b, c = random(70, 200), random(72, 200), np.full((70, 72), np.nan, np.float32)
    interpret(scheduled(gemm_transposed, {"M": 70, "N": 72, "K": 200}), [a, b, c], checks=checks)
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64).T, rtol=1e-5, atol=1e-3)


def each(kind: type[Any], change: Callable[[Any], None]) -> Change:
    def apply(module: ModuleOp) -> None:
        for op in [op for op in module.walk() if isinstance(op, kind)]:
            change(op)

    return apply


@pytest.mark.parametrize("buffers", [2, 4])
@pytest.mark.parametrize("size", [(64, 128, 64), (77, 264, 72), (1, 8, 8), (130, 392, 136)])
def test_bulk_stores_write_what_lies_inside(
    size: tuple[int, int, int], buffers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tessera.schedule.hopper.stores.MOST_BUFFERS", buffers)
    m, n, k = size
    module = scheduled(gemm_wide, {"M": m, "N": n, "K": k})
    stores = [op for op in module.walk() if isinstance(op, roles.BulkStoreOp)]
    assert [len(stores), len({op.buffer for op in stores})] == [4, buffers]
    product_of(module, m, n, k)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (roles.BulkWaitOp, lambda op: op.detach()),
        (roles.BulkWaitOp, lambda op: op.properties.update(pending=IntAttr(op.pending.data + 1))),
    ],
    ids=["no wait", "one too few"],
)
def test_a_buffer_written_before_its_store_has_read_it_is_a_race(
    kind: type[Any], change: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tessera.schedule.hopper.stores.MOST_BUFFERS", 2)
    module = scheduled(gemm_wide, {"M": 64, "N": 128, "K": 64})
    each(kind, change)(module)
    with pytest.raises(DeviceError, match="writes a shared buffer that a bulk store still reads") as caught:
        product_of(module, 64, 128, 64)
    assert caught.value.code == "race"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("stages", "size"), [(2, 200), (3, 333), (4, 64), (2, 1)])
def test_attention_equals_float64(stages: int, size: int, seed: int | None) -> None:
    module = scheduled(attention, {"H": 2, "S": size}, stages=stages)
    assert has_roles(module)
    q, k, v = (random(2, size, 64) + i for i in range(3))
    out = np.full((2, size, 64), np.nan, np.float32)
    interpret(module, [q, k, v, out], order_seed=seed)
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = np.where(np.tri(size, dtype=bool), q @ k.transpose(0, 2, 1) / 8, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    np.testing.assert_allclose(out, p @ v / p.sum(-1, keepdims=True), rtol=1e-2, atol=1e-2)


def test_a_loop_of_no_iterations() -> None:
    product_of(specialized(gemm, {"M": 5, "N": 8, "K": 0}), 5, 8, 0)


def waits(module: ModuleOp, role: str) -> list[roles.BarrierWaitOp]:
    (op,) = [op for op in module.walk() if isinstance(op, roles.RolesOp)]
    return [wait for wait in getattr(op, role).walk() if isinstance(wait, roles.BarrierWaitOp)]


def drop_wait(role: str) -> Change:
    def change(module: ModuleOp) -> None:
        for wait in waits(module, role):
            wait.detach()

    return change


def drop(kind: type[Operation]) -> Change:
    def change(module: ModuleOp) -> None:
        for op in [op for op in module.walk() if isinstance(op, kind)]:
            op.detach()

    return change


def expect(factor: float) -> Change:
    def change(module: ModuleOp) -> None:
        for op in module.walk():
            if isinstance(op, roles.BarrierExpectOp):
                op.properties["bytes"] = IntAttr(int(op.bytes.data * factor))

    return change


def other_parity(role: str) -> Change:
    def change(module: ModuleOp) -> None:
        (wait,) = waits(module, role)
        block = wait.parent
        assert block is not None
        one = ConstantOp(1, wait.parity.type)
        flipped = ElementwiseOp("sub", [one.result, wait.parity])
        block.insert_ops_before([one, flipped], wait)
        wait.operands[2] = flipped.result

    return change


def arrive_before_reading(module: ModuleOp) -> None:
    (arrive,) = [op for op in module.walk() if isinstance(op, roles.BarrierArriveOp)]
    (wait,) = waits(module, "consumer")
    arrive.detach()
    block = wait.parent
    assert block is not None
    block.insert_op_after(arrive, wait)


def fixed_slot(module: ModuleOp) -> None:
    """Copy to the first buffer of the rings whatever the stage is."""
    (op,) = [op for op in module.walk() if isinstance(op, roles.RolesOp)]
    for view in op.producer.walk():
        if isinstance(view, shared.SharedViewOp):
            zero = ConstantOp(0, view.index.type)
            block = view.parent
            assert block is not None
            block.insert_op_before(zero, view)
            view.operands[1] = zero.result


def one_more_iteration(module: ModuleOp) -> None:
    """Let the consumer take more steps than the producer."""
    (op,) = [op for op in module.walk() if isinstance(op, roles.RolesOp)]
    (loop,) = [op for op in op.consumer.walk() if isinstance(op, ForOp)]
    block = loop.parent
    assert block is not None
    more = ElementwiseOp("add", [loop.ub, loop.step])
    block.insert_op_before(more, loop)
    loop.operands[1] = more.result


def changed(change: Change) -> ModuleOp:
    module = specialized(gemm, {"M": 64, "N": 64, "K": 640}, stages=3)
    change(module)
    module.verify()
    return module


EARLY = {"uninitialized-read"}  # the consumer may come first, and finds nothing


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("change", "code", "also"),
    [
        pytest.param(drop_wait("consumer"), "race", EARLY, id="no full wait"),
        pytest.param(drop_wait("producer"), "race", set(), id="no empty wait"),
        pytest.param(arrive_before_reading, "race", set(), id="early arrival"),
        pytest.param(fixed_slot, "race", EARLY, id="one slot"),
        pytest.param(expect(2), "deadlock", set(), id="twice the bytes"),
        pytest.param(expect(0.75), "deadlock", set(), id="fewer bytes"),
        pytest.param(expect(0.5), "race", EARLY, id="bytes of one copy"),
        pytest.param(expect(0), "race", EARLY, id="no bytes"),
        pytest.param(drop(roles.BarrierArriveOp), "deadlock", set(), id="no arrival"),
        pytest.param(drop(roles.BarrierExpectOp), "deadlock", set(), id="no expectation"),
        pytest.param(drop(roles.BulkCopyOp), "deadlock", set(), id="no copies"),
        pytest.param(other_parity("producer"), "deadlock", set(), id="parity of empty"),
        pytest.param(other_parity("consumer"), "race", EARLY, id="parity of full"),
        pytest.param(one_more_iteration, "deadlock", set(), id="one step more"),
    ],
)
def test_what_is_wrong_is_reported(change: Change, code: str, also: set[str], seed: int | None) -> None:
    threads = threading.active_count()
    module = changed(change)
    with pytest.raises(DeviceError) as caught:
        product_of(module, 64, 64, 640, order_seed=seed)
    assert caught.value.code in ({code} if seed is None else {code} | also)
    assert threading.active_count() == threads


@pytest.mark.parametrize("change", [drop_wait("consumer"), drop_wait("producer")])
def test_a_race_names_both_lines(change: Change) -> None:
    with pytest.raises(DeviceError, match=r"by bulk_copy at .*kernels\.py|the last at .*kernels\.py") as caught:
        product_of(changed(change), 64, 64, 640)
    assert caught.value.location is not None
    assert caught.value.location.frame.file.endswith("kernels.py")


MATRIX = TensorType.of([-1, -1], F32)


def located(op: Operation, line: int) -> Operation:
    op.location = to_loc(Location(Frame("gemm.py", line, 9)))
    return op


class Two:
    """A producer and a consumer with one buffer, two barriers and the constants 0 and 1."""

    def __init__(self, at: At, source: Any, target: Any) -> None:
        self.source, self.target = source, target
        self.zero, self.one = at.const(0), at.const(1)
        self.buffer = at(shared.AllocSharedOp([4, 8], F32))
        self.full, self.empty = at(roles.AllocBarriersOp(1, 1)), at(roles.AllocBarriersOp(1, 1))
        producer, consumer = Block(), Block()
        self.ahead, self.behind = At(producer), At(consumer)
        self.blocks = (producer, consumer)

    def fill(self, size: int = 128) -> None:
        self.ahead.do(roles.BarrierExpectOp(self.full, self.zero, size))
        copy = roles.BulkCopyOp(self.buffer, self.source, self.full, self.zero, [self.zero, self.zero], [4, 8])
        self.ahead.do(located(copy, 7))

    def wait(self, at: At, barriers: Any, parity: Any, line: int) -> None:
        at.do(located(roles.BarrierWaitOp(barriers, self.zero, parity), line))

    def read(self, at: At) -> None:
        tile = shared.SharedLoadOp(self.buffer)
        at.do(located(tile, 12))
        at.do(memory.StoreOp(tile.result, self.target, [self.zero, self.zero], [4, 8]))


def run_two(build: Callable[[Two], None], **options: Any) -> np.ndarray[Any, Any]:
    def body(at: At, source: Any, target: Any) -> None:
        two = Two(at, source, target)
        build(two)
        for block in two.blocks:
            At(block).do(roles.RoleEndOp())
        at.do(roles.RolesOp(*two.blocks, 56, 240))

    source, target = np.arange(32, dtype=np.float32).reshape(4, 8), np.zeros((4, 8), np.float32)
    interpret(tensor_kernel([MATRIX, MATRIX], body, [1]), [source, target], **options)
    assert np.array_equal(target, source)
    return target


def fails(build: Callable[[Two], None], code: str, *messages: str, **options: Any) -> None:
    with pytest.raises(DeviceError) as caught:
        run_two(build, **options)
    assert caught.value.code == code
    for message in messages:
        assert message in str(caught.value)


def test_a_fresh_barrier_is_past_phase_one_and_in_phase_zero() -> None:
    def build(two: Two) -> None:
        two.wait(two.ahead, two.empty, two.one, 3)  # passes
        two.fill()
        two.wait(two.behind, two.full, two.zero, 11)
        two.read(two.behind)

    run_two(build)


def test_a_deadlock_names_who_waits_for_what() -> None:
    def build(two: Two) -> None:
        two.wait(two.ahead, two.empty, two.zero, 3)
        two.fill()
        two.wait(two.behind, two.full, two.zero, 11)

    fails(
        build,
        "deadlock",
        "the producer waits at gemm.py:3:9 for the end of phase 0 (parity 0) of barrier 0",
        "the consumer waits at gemm.py:11:9 for the end of phase 0 (parity 0) of barrier 0",
        "1 more arrival",
    )


def test_a_deadlock_says_which_bytes_are_missing_and_who_has_finished() -> None:
    def build(two: Two) -> None:
        two.fill(size=192)
        two.wait(two.behind, two.full, two.zero, 11)

    fails(build, "deadlock", "64 bytes more", "the producer has finished")


def test_an_early_read_names_the_copy() -> None:
    def build(two: Two) -> None:
        two.fill()
        two.read(two.behind)

    fails(build, "race", "under way, by bulk_copy at gemm.py:7:9", "consumer", "gemm.py:12:9")


def test_who_did_not_wait_sees_no_delivery_to_others() -> None:
    def build(two: Two) -> None:
        two.fill()
        two.wait(two.ahead, two.full, two.zero, 8)  # the copy has arrived, for the producer
        two.read(two.behind)

    fails(build, "race", "without having waited", "bulk_copy at gemm.py:7:9")


def test_an_arrival_hands_on_what_the_role_has_waited_for() -> None:
    def build(two: Two) -> None:
        two.fill()
        two.wait(two.ahead, two.full, two.zero, 8)
        two.ahead.do(roles.BarrierArriveOp(two.empty, two.zero))
        two.wait(two.behind, two.empty, two.zero, 10)
        two.read(two.behind)

    for seed in SEEDS:
        run_two(build, order_seed=seed)


def test_a_copy_over_what_the_other_role_reads() -> None:
    def build(two: Two) -> None:
        two.fill()
        two.wait(two.behind, two.full, two.zero, 11)
        two.read(two.behind)
        two.wait(two.ahead, two.full, two.zero, 8)  # knows that the first copy arrived, not that it was read
        two.fill()

    for seed in SEEDS:
        with pytest.raises(DeviceError) as caught:
            run_two(build, order_seed=seed)
        assert caught.value.code == "race"


def test_a_barrier_of_the_consumers_does_not_tell_the_producer() -> None:
    def build(two: Two) -> None:
        two.wait(two.behind, two.full, two.zero, 11)
        two.read(two.behind)
        two.behind.do(shared.BarrierOp())
        two.behind.do(roles.BarrierArriveOp(two.empty, two.zero))
        two.fill()
        two.wait(two.ahead, two.full, two.zero, 8)
        two.fill()

    for seed in SEEDS:
        with pytest.raises(DeviceError) as caught:
            run_two(build, order_seed=seed)
        assert caught.value.code == "race"


def test_two_rounds_through_one_buffer() -> None:
    def build(two: Two) -> None:
        for parity, other in ((two.zero, two.one), (two.one, two.zero)):
            two.wait(two.ahead, two.empty, other, 3)
            two.fill()
            two.wait(two.behind, two.full, parity, 11)
            two.read(two.behind)
            two.behind.do(roles.BarrierArriveOp(two.empty, two.zero))

    for seed in SEEDS:
        run_two(build, order_seed=seed)


def test_an_arrival_too_many() -> None:
    def build(two: Two) -> None:
        two.fill()
        two.fill()

    fails(build, "race", "phase 0 has all its arrivals already")


@pytest.mark.parametrize(("at", "parity"), [(1, 0), (-1, 0), (0, 2)])
def test_barriers_and_parities_that_do_not_exist(at: int, parity: int) -> None:
    def build(two: Two) -> None:
        wait = roles.BarrierWaitOp(two.full, two.ahead.const(at), two.ahead.const(parity))
        two.ahead.do(wait)

    fails(build, "out-of-bounds")


def test_an_error_in_one_role_ends_the_other_that_waits() -> None:
    def build(two: Two) -> None:
        two.wait(two.behind, two.full, two.zero, 11)
        two.ahead(shared.SharedLoadOp(two.buffer))

    threads = threading.active_count()
    fails(build, "uninitialized-read", "producer")
    assert threading.active_count() == threads


def test_a_program_of_one_role_uses_barriers_too() -> None:
    def body(at: At, source: Any, target: Any) -> None:
        two = Two(at, source, target)
        two.ahead = two.behind = at
        two.fill()
        two.wait(at, two.full, two.zero, 9)
        two.read(at)
        two.wait(at, two.full, two.one, 10)

    source, target = np.arange(32, dtype=np.float32).reshape(4, 8), np.zeros((4, 8), np.float32)
    with pytest.raises(DeviceError, match=r"the program waits at gemm\.py:10:9 for the end of phase 1") as caught:
        interpret(tensor_kernel([MATRIX, MATRIX], body, [1]), [source, target])
    assert caught.value.code == "deadlock"
    assert np.array_equal(target, source)
