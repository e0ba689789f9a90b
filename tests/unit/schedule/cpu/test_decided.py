"""What CPUs do is what is written on ops: forced by knobs it computes the same, and what is impossible is refused."""

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects import scf
from xdsl.ir import Operation

import tessera as ts
from tessera.driver.pipeline import CANONICALIZE
from tessera.errors import VerifyError
from tessera.ir import decisions
from tessera.ir.decisions import Decision
from tessera.ir.target.arithmetic import TransposeChunksOp, constant_value
from tessera.ir.target.memory import BufferStoreOp, PrefetchOp
from tessera.ir.target.memory import StoreOp as TargetStoreOp
from tessera.ir.target.product import ProductOp
from tessera.ir.target.types import BufferType, PointerType
from tessera.ir.tile.memory import LoadOp, StoreOp
from tessera.ir.tile.mma import MmaOp
from tessera.lower.vector import lower_to_vector
from tessera.schedule.knobs import Knobs
from tessera.target.registry import target_named
from tests.unit.lower.support import aligned, scheduled

RNG = np.random.default_rng(11)


def plain(a: ts.Tensor["m", "k", ts.f32], b: ts.Tensor["k", "n", ts.f32], c: ts.Tensor["m", "n", ts.f32]) -> None:
    for i, j in ts.tile.grid((m, 32), (n, 64)):
        acc = ts.tile.zeros((32, 64), ts.f32)
        for step in ts.tile.range(0, k, 32):
            acc = ts.tile.mma(a[i : i + 32, step : step + 32], b[step : step + 32, j : j + 64], acc)
        c[i : i + 32, j : j + 64] = acc


def few(a: ts.Tensor["m", "k", ts.f32], b: ts.Tensor["k", "n", ts.f32], c: ts.Tensor["m", "n", ts.f32]) -> None:
    for i, j in ts.tile.grid((m, 8), (n, 64)):
        acc = ts.tile.zeros((8, 64), ts.f32)
        for step in ts.tile.range(0, k, 32):
            acc = ts.tile.mma(a[i : i + 8, step : step + 32], b[step : step + 32, j : j + 64], acc)
        c[i : i + 8, j : j + 64] = acc


def narrow(a: ts.Tensor["m", "k", ts.f16], b: ts.Tensor["k", "n", ts.bf16], c: ts.Tensor["m", "n", ts.f32]) -> None:
    for i, j in ts.tile.grid((m, 4), (n, 64)):
        c[i : i + 4, j : j + 64] = ts.tile.mma(a[i : i + 4, :64], b[:64, j : j + 64].to(ts.f16))


def stationary(a: ts.Tensor["m", 64, ts.f32], b: ts.Tensor[64, "n", ts.f32], c: ts.Tensor["m", "n", ts.f32]) -> None:
    for j in ts.tile.grid((n, 64)):
        weights = b[:, j : j + 64]
        for i in ts.tile.range(0, m, 32):
            c[i : i + 32, j : j + 64] = ts.tile.mma(a[i : i + 32, :], weights)


def across(x: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["n", "m", ts.f32]) -> None:
    for i, j in ts.tile.grid((m, 32), (n, 32)):
        y[j : j + 32, i : i + 32] = x[i : i + 32, j : j + 32].transpose(1, 0)


def short(a: ts.Tensor[32, "k", ts.f32], b: ts.Tensor["k", 64, ts.f32], c: ts.Tensor[32, 64, ts.f32]) -> None:
    c[:, :] = ts.tile.mma(a[:, :64], b[:64, :])


def once(a: ts.Tensor[8, 64, ts.f32], b: ts.Tensor[64, 64, ts.f32], c: ts.Tensor[8, 64, ts.f32]) -> None:
    c[:, :] = ts.tile.mma(a[:, :], b[:, :])


def rows(x: ts.Tensor["m", 4096, ts.f32], y: ts.Tensor["m", 4096, ts.f32]) -> None:
    for i in ts.tile.grid((m, 1)):
        y[i, :] = x[i, :] * 0.5


def column(x: ts.Tensor["m", 4096, ts.f32], y: ts.Tensor["m", 4096, ts.f32]) -> None:
    for i in ts.tile.grid((m, 16)):
        y[i : i + 16, 0] = x[i : i + 16, 1]


def weighted(x: ts.Tensor["m", 64, ts.f32], w: ts.Tensor[64, 32, ts.f32], y: ts.Tensor["m", 32, ts.f32]) -> None:
    for i in ts.tile.grid((m, 32)):
        total = ts.tile.zeros((32, 32), ts.f32)
        for step in ts.tile.range(0, 64, 16):
            part = x[i : i + 32, step : step + 16]
            part = part - ts.tile.row_max(part)[:, None]
            total = ts.tile.mma(part, w[step : step + 16, :], total + ts.tile.row_sum(part)[:, None])
        y[i : i + 32, :] = total


def lowered(
    function: Callable[..., None],
    knobs: Knobs | None = None,
    edit: Callable[[Operation], None] | None = None,
) -> list[Operation]:
    """Return the ops of a kernel's TIR-T, which `edit` may have changed after its schedule."""
    record, module = target_named("x86-64-v3"), aligned(function)
    for step in CANONICALIZE:
        step.apply(module)
    scheduled(module, record, knobs)
    for op in module.walk() if edit is not None else ():
        edit(op)
    module.verify()
    made = lower_to_vector(module, record)
    made.verify()
    return list(made.walk())


def products(function: Callable[..., None], knobs: Knobs | None = None) -> list[ProductOp]:
    return [op for op in lowered(function, knobs) if isinstance(op, ProductOp)]


def test_operands_lie_where_the_schedule_says() -> None:
    assert all(isinstance(op.a.type, PointerType) for op in products(plain))
    assert all(isinstance(op.b.type, PointerType) for op in products(few))
    packed = [*products(plain, Knobs(in_place=0)), *products(few, Knobs(in_place=0))]
    assert not any(isinstance(value.type, PointerType) for op in packed for value in (op.a, op.b))


def test_what_is_prefetched_is_what_the_schedule_says() -> None:
    assert all(op.source is not None for op in products(plain))
    assert not any(op.source is not None for op in products(plain, Knobs(prefetch=0)))
    assert any(isinstance(op, PrefetchOp) for op in lowered(rows))
    assert not any(isinstance(op, PrefetchOp) for op in lowered(rows, Knobs(prefetch=0)))


def test_what_goes_past_the_caches_is_what_the_schedule_says() -> None:
    def streams(knobs: Knobs | None = None) -> bool:
        return any(isinstance(op, TargetStoreOp) and op.stream is not None for op in lowered(rows, knobs))

    assert streams()
    assert not streams(Knobs(stream=0))


def panel_of(op: ProductOp) -> int:
    assert isinstance(op.b.type, BufferType)
    return op.b.type.shape[-1]


def test_panels_are_as_wide_as_the_schedule_says() -> None:
    assert [panel_of(op) for op in products(plain)] == [16]
    assert [panel_of(op) for op in products(plain, Knobs(panel=8))] == [8]
    assert [panel_of(op) for op in products(plain, Knobs(panel=32))] == [16]  # more than registers hold


def test_what_comes_from_outside_of_a_loop_is_packed_where_the_schedule_says() -> None:
    def packed_in_the_loop(knobs: Knobs | None = None) -> bool:
        (product,) = products(stationary, knobs)
        loop = product.parent_op()
        assert isinstance(loop, scf.ForOp)
        return any(isinstance(op, BufferStoreOp) and op.buffer is product.b for op in loop.walk())

    assert not packed_in_the_loop()
    assert packed_in_the_loop(Knobs(pack_before=0, in_place=0))


def test_sums_begin_where_the_schedule_says() -> None:
    assert all(op.fresh is not None for op in products(stationary))
    assert not any(op.fresh is not None for op in products(stationary, Knobs(begin_sums=0)))


def test_tiles_are_transposed_in_squares_where_the_schedule_says() -> None:
    def turned(knobs: Knobs | None = None) -> bool:
        return any(isinstance(op, TransposeChunksOp) for op in lowered(across, knobs))

    assert turned()
    assert not turned(Knobs(squares=0))


@pytest.mark.parametrize("knobs", [{}, {"squares": 0}], ids=str)
def test_transposed_tiles_are_the_same(knobs: dict[str, int]) -> None:
    kernel = ts.kernel.autotune(space={name: [value] for name, value in knobs.items()})(across)
    x, y = RNG.standard_normal((45, 70)).astype(np.float32), np.zeros((70, 45), np.float32)
    kernel(x, y)
    np.testing.assert_array_equal(y, x.T)


@pytest.mark.parametrize(
    ("dtype", "shape", "blocks"),
    [
        ("f32", (5, 1, 70, 3), (16, 32)),
        ("f32", (3, 33, 2, 17), (24, 8)),
        ("f64", (37, 11, 4, 16), (2, 16)),
        ("bf16", (2, 66, 9, 5), (16, 32)),
        ("i8", (5, 33, 3, 17), (2, 16)),
    ],
)
def test_permuted_tiles_are_the_same(dtype: str, shape: tuple[int, ...], blocks: tuple[int, int]) -> None:
    element, (wide, long) = getattr(ts, dtype), blocks

    @ts.kernel
    def moved(x: ts.Tensor["a", "b", "c", "d", element], y: ts.Tensor["a", "b", "c", "d", element]):
        for i, j, k, h in ts.tile.grid((a, 4), (b, wide), (c, 2), (d, long)):
            y[i : i + 4, j : j + wide, k : k + 2, h : h + long] = x[i : i + 4, j : j + wide, k : k + 2, h : h + long]

    kept = {"f32": np.float32, "f64": np.float64, "bf16": ml_dtypes.bfloat16, "i8": np.int8}[dtype]
    source = RNG.integers(-99, 99, shape).astype(kept)
    for order in [(0, 3, 2, 1), (3, 1, 2, 0), (1, 0, 3, 2)]:
        turned = source.transpose(order)
        held = np.full((*turned.shape[:-1], turned.shape[-1] + 3), 77, kept)
        moved(turned, held[..., :-3])
        np.testing.assert_array_equal(held[..., :-3], turned)
        assert (held[..., -3:] == 77).all()


def test_rows_past_an_end_are_computed_where_the_schedule_says() -> None:
    def rows(knobs: Knobs | None = None) -> list[object]:
        return [constant_value(op.rows) for op in products(weighted, knobs)]

    assert rows() == [None]
    assert rows(Knobs(trim=0)) == [32]


@pytest.mark.parametrize("knobs", [{}, {"trim": 0}, {"in_place": 0}], ids=str)
@pytest.mark.parametrize("m", [1, 31, 32, 45, 64])
def test_trimmed_tiles_are_the_same(m: int, knobs: dict[str, int]) -> None:
    kernel = ts.kernel.autotune(space={name: [value] for name, value in knobs.items()})(weighted)
    x, w = (RNG.integers(-9, 9, shape).astype(np.float32) for shape in ((m, 64), (64, 32)))
    y = np.full((m, 32), 77, np.float32)
    kernel(x, w, y)
    parts = x.reshape(m, 4, 16).astype(np.float64)
    parts -= parts.max(2, keepdims=True)
    expected = parts.reshape(m, 64) @ w.astype(np.float64) + parts.sum((1, 2))[:, None]
    np.testing.assert_array_equal(y, expected)  # small integers: sums are exact


@pytest.mark.parametrize("knobs", [{}, {"pack_before": 0}, {"pack_before": 0, "in_place": 0}, {"panel": 8}], ids=str)
def test_weights_that_stay_compute_the_same(knobs: dict[str, int]) -> None:
    kernel = ts.kernel.autotune(space={name: [value] for name, value in knobs.items()})(stationary)
    a, b = (RNG.integers(-9, 9, shape).astype(np.float32) for shape in ((45, 64), (64, 130)))
    c = np.full((45, 130), 77, np.float32)
    kernel(a, b, c)
    np.testing.assert_array_equal(c, a @ b)  # small integers: sums are exact


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i8"])
@pytest.mark.parametrize("rows", [4, 8, 32])
@pytest.mark.parametrize(
    "knobs", [{}, {"in_place": 0}, {"prefetch": 0, "stream": 1}, {"in_place": 0, "panel": 16, "begin_sums": 0}], ids=str
)
def test_forced_schedules_compute_the_same(dtype: str, rows: int, knobs: dict[str, int]) -> None:
    element, total = getattr(ts, dtype), ts.i32 if dtype == "i8" else ts.f32

    @ts.kernel.autotune(space={name: [value] for name, value in knobs.items()})
    def product(a: ts.Tensor["m", "k", element], b: ts.Tensor["k", "n", element], c: ts.Tensor["m", "n", total]):
        for i, j in ts.tile.grid((m, rows), (n, 64)):
            acc = ts.tile.zeros((rows, 64), total)
            for step in ts.tile.range(0, k, 32):
                acc = ts.tile.mma(a[i : i + rows, step : step + 32], b[step : step + 32, j : j + 64], acc)
            c[i : i + rows, j : j + 64] = acc

    m, k, n = 45, 70, 130
    a, b = (RNG.integers(-9, 9, shape) for shape in ((m, k), (k, n)))
    numpy_dtype = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "i8": np.int8}[dtype]
    c = np.full((m, n), 77, np.int32 if dtype == "i8" else np.float32)
    product(a.astype(numpy_dtype), b.astype(numpy_dtype), c)
    np.testing.assert_array_equal(c, a @ b)  # small integers: sums are exact


def on(cls: type[Operation], *chosen: Decision) -> Callable[[Operation], None]:
    def edit(op: Operation) -> None:
        for decision in chosen if isinstance(op, cls) else ():
            decision.write(op)

    return edit


def instead(old: Decision, new: Decision, value: int = 1) -> Callable[[Operation], None]:
    def edit(op: Operation) -> None:
        if op.attributes.pop(old.key, None) is not None:
            new.write(op, value)

    return edit


PLACE = "is on a product whose operand does not lie in a tensor as the product reads it"
REFUSED: list[tuple[Callable[..., None], Callable[[Operation], None], str]] = [
    (few, on(MmaOp, decisions.MATRIX_UNIT), "that no matrix unit of the target computes"),
    (plain, on(MmaOp, decisions.MATRIX_UNIT), "matrix_unit and tessera_schedule.copies_rows are on one product"),
    (
        plain,
        on(MmaOp, decisions.RIGHT_IN_PLACE),
        "right_in_place and tessera_schedule.left_in_place are on one",
    ),
    (few, on(MmaOp, decisions.PREFETCH_OPERAND), "right_in_place and tessera_schedule.prefetch_operand are on one"),
    (narrow, on(MmaOp, decisions.LEFT_IN_PLACE), f"left_in_place {PLACE}"),
    (narrow, on(MmaOp, decisions.RIGHT_IN_PLACE), "right_in_place and tessera_schedule.panel are on one"),
    (narrow, instead(decisions.PANEL, decisions.RIGHT_IN_PLACE), f"right_in_place {PLACE}"),
    (plain, instead(decisions.PANEL, decisions.PANEL, 12), "panel is 12 on a product whose panels have 8 or 16 col"),
    (
        stationary,
        instead(decisions.LEFT_IN_PLACE, decisions.RIGHT_IN_PLACE),
        "right_in_place and tessera_schedule.right_packed_before are on one",
    ),
    (narrow, on(MmaOp, decisions.PREFETCH_OPERAND), f"prefetch_operand {PLACE}"),
    (short, on(MmaOp, decisions.BEGINS_SUMS), "begins_sums is on a product that may have no terms"),
    (once, on(MmaOp, decisions.BEGINS_SUMS), "right_in_place and tessera_schedule.begins_sums are on one"),
    (plain, on(LoadOp, decisions.PREFETCH_BOX), "prefetch_box is on a load of which it is not known what the next"),
    (column, on(StoreOp, decisions.STREAM), "stream is on a store that does not write rows of neighbours"),
]


@pytest.mark.parametrize(("function", "edit", "said"), REFUSED, ids=[said[:32] for _, _, said in REFUSED])
def test_what_cannot_be_obeyed_is_refused(
    function: Callable[..., None], edit: Callable[[Operation], None], said: str
) -> None:
    with pytest.raises(VerifyError) as caught:
        lowered(function, edit=edit)
    assert said in str(caught.value)
    assert caught.value.location is not None
