"""Calls on copies of arrays that lie where the copy engine cannot fetch them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tessera.driver import realign
from tessera.driver.binding import tensor_facts
from tessera.driver.kernel import Kernel
from tessera.driver.realign import Copy, on_copies
from tessera.driver.variants import Variant
from tessera.errors import DeviceError
from tessera.frontend.specialize import Specialization
from tessera.numerics import dtypes
from tessera.ops import epilogue
from tessera.ops.linalg.plan import plan
from tessera.ops.linalg.prepare import kernel_for, sized
from tessera.ops.linalg.problem import Options
from tessera.runtime.device import Device
from tessera.runtime.views import ArrayView
from tessera.target.registry import target_named
from tests.unit.schedule.hopper.kernels import attention, product_of

CUDA = Device("cuda", 0)
HEADS = 3


def view_of(shape: tuple[int, ...], strides: tuple[int, ...], dtype: dtypes.DType = dtypes.bf16) -> ArrayView:
    return ArrayView(shape, strides, dtype, CUDA, readonly=True)


@pytest.mark.parametrize(
    ("shape", "strides", "dtype", "made", "source", "size"),
    [
        ((3, 5, 88), (440, 88, 1), dtypes.bf16, (440, 88, 1), ((1, 1320), (1320, 1)), 2816),
        ((3, 5, 80), (465, 93, 1), dtypes.bf16, (400, 80, 1), ((15, 80), (93, 1)), 2560),
        ((3, 5, 83), (415, 83, 1), dtypes.bf16, (440, 88, 1), ((15, 83), (83, 1)), 2816),
        ((5, 3, 80), (93, 465, 1), dtypes.bf16, (80, 400, 1), ((15, 80), (93, 1)), 2560),
        ((3, 83, 5), (415, 1, 83), dtypes.bf16, (440, 1, 88), ((15, 83), (83, 1)), 2816),
        ((6, 3), (3, 1), dtypes.f32, (4, 1), ((6, 3), (3, 1)), 256),
        ((100,), (1,), dtypes.f16, (1,), ((1, 100), (100, 1)), 256),
    ],
)
def test_copies_keep_the_order_in_memory_and_begin_their_rows_at_multiples_of_16_bytes(
    shape, strides, dtype, made, source, size
) -> None:
    copy = Copy.of(4, view_of(shape, strides, dtype), strides)
    assert copy is not None
    assert (copy.place, copy.view.shape, copy.view.strides, copy.view.dtype) == (4, shape, made, dtype)
    assert (copy.source.shape, copy.source.strides, copy.bytes) == (*source, size)
    assert copy.source.dtype.bytes == dtype.bytes
    # What the two matrices say is what the two views say.
    width = dtype.bytes
    given = np.random.default_rng(0).integers(256, size=(4096, width), dtype=np.uint8)
    copied = np.zeros((copy.bytes // width, width), np.uint8)
    over = np.lib.stride_tricks.as_strided
    steps = [(*(step * width for step in one.strides), 1) for one in (copy.source, copy.target, copy.view)]
    over(copied, (*copy.target.shape, width), steps[1])[:] = over(given, (*copy.source.shape, width), steps[0])
    mine = over(given, (*shape, width), (*(step * width for step in strides), 1))
    np.testing.assert_array_equal(over(copied, (*shape, width), steps[2]), mine)


@pytest.mark.parametrize(
    ("shape", "strides", "dtype"),
    [
        ((3, 5, 80), (1000, 93, 1), dtypes.bf16),
        ((3, 5, 80), (930, 186, 2), dtypes.bf16),
        ((3, 80), (0, 1), dtypes.bf16),
        ((3, 80), (-80, 1), dtypes.bf16),
    ],
)
def test_what_is_no_matrix_of_rows_is_not_copied(shape, strides, dtype) -> None:
    assert Copy.of(0, view_of(shape, strides, dtype), strides) is None


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("shape", [(1, 20000), (131, 93), (3, 300), (50, 8)])
def test_the_kernels_of_copies_copy(shape: tuple[int, int], count: int) -> None:
    rng = np.random.default_rng(1)
    wide = rng.integers(1 << 16, size=(count, shape[0], shape[1] + 5), dtype=np.uint16)
    sources, targets = [one[:, 3:-2] for one in wide], [np.zeros(shape, np.uint16) for _ in wide]
    view = ArrayView(shape, (1, 1), dtypes.u16, CUDA, readonly=True)
    kernel = realign._mover([Copy(place, view, view, view, 0) for place in range(count)])
    kernel(*(array for pair in zip(sources, targets, strict=True) for array in pair))
    for source, target in zip(sources, targets, strict=True):
        np.testing.assert_array_equal(target, source)


class Recorded:
    """Stands for a GPU: remembers what runs, and how its memory is used."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, full: bool = False):
        self.events: list[tuple[Any, ...]] = []
        self.full = full
        monkeypatch.setattr(realign, "launcher_for", lambda variant, _: self.launcher(variant.artifact.name))
        monkeypatch.setattr(realign, "stream_memory", lambda _: self)
        monkeypatch.setattr(Kernel, "variant_for", lambda *given: self.variant_for(*given))
        monkeypatch.setattr(Kernel, "loaded", self.loaded)

    def launcher(self, name: str) -> Any:
        def launch(pointers: Any, scalars: Any, _keep: Any, stream: int) -> None:
            self.events.append((name, list(pointers), tuple(scalars), stream))

        return SimpleNamespace(prepare=lambda _shapes: SimpleNamespace(launch=launch))

    def loaded(self, pointers: list[int], views: list[ArrayView], _device: Device) -> Any:
        assert len(set(pointers)) == len(pointers) == len(views), "copies are no aliases"
        assert [pointer % 16 for pointer in pointers[1::2]] == [0] * (len(pointers) // 2)
        return self.launcher("copy").prepare(None).launch

    def variant_for(self, kernel: Kernel[..., Any], spec: Specialization, _views: Any, _device: Any) -> Variant:
        return kernel.variants._compile(spec, target_named("sm_90a"), kernel.variants._reads(spec))

    def allocate(self, _device: Device, size: int, stream: int) -> int:
        if self.full:
            raise DeviceError("no memory", code="out-of-memory")
        self.events.append(("allocate", size, stream))
        return 1 << 20

    def free(self, _device: Device, pointer: int, stream: int) -> None:
        self.events.append(("free", pointer, stream))


def planned(gpu: Recorded, positions: int, pointers: list[int], pitch: int = 64) -> Any:
    """Return attention on copies; its last argument is what it writes."""
    kernel = Kernel[..., Any](attention)
    views = [view_of((HEADS, positions, 64), (positions * pitch, pitch, 1)) for _ in pointers]
    facts = [
        tensor_facts(name, pointer, view, view.strides)
        for name, pointer, view in zip(("Q", "K", "V", "out"), pointers, views, strict=True)
    ]
    spec = Specialization(tuple(facts))
    variant = gpu.variant_for(kernel, spec, views, CUDA)
    plain = gpu.launcher("plain").prepare(None).launch
    return on_copies(kernel, spec, variant, pointers, views, CUDA, plain)


def test_a_call_copies_what_is_misplaced_and_runs_on_that(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Recorded(monkeypatch)
    found = planned(gpu, 2048, [0x10002, 0x20002, 0x30000, 0x40000])
    assert found.names == ("Q", "K")
    assert found.variant.artifact.reflection["schedule"]["persistent"] == 1
    found.launch([0x50002, 0x60002, 0x70000, 0x80000], (), (), 9)
    size, scratch = HEADS * 2048 * 64 * 2, 1 << 20
    assert gpu.events == [
        ("allocate", 2 * size, 9),
        ("copy", [0x50002, scratch, 0x60002, scratch + size], (), 9),
        ("attention", [scratch, scratch + size, 0x70000, 0x80000], (), 9),
        ("free", scratch, 9),
    ]


def test_a_call_without_memory_runs_on_the_arrays_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Recorded(monkeypatch, full=True)
    pointers = [0x50002, 0x60002, 0x70000, 0x80000]
    planned(gpu, 2048, [0x10002, 0x20002, 0x30000, 0x40000]).launch(pointers, (), (), 9)
    assert gpu.events == [("plain", pointers, (), 9)]


@pytest.mark.parametrize(
    ("positions", "pointers", "pitch"),
    [
        (448, [0x10002, 0x20002, 0x30002, 0x40000], 640),  # few programs read each key
        (1024, [0x10002, 0x20002, 0x30000, 0x40000], 64),  # each program reads little
        (2048, [0x10002, 0x20000, 0x30000, 0x40000], 64),  # queries are read once
        (2048, [0x10000, 0x20000, 0x30000, 0x40000], 64),
    ],
)
def test_calls_that_copies_do_not_pay_for_run_as_they_are(monkeypatch, positions, pointers, pitch) -> None:
    assert planned(Recorded(monkeypatch), positions, pointers, pitch) is None


@pytest.mark.parametrize(
    ("rows", "columns", "terms", "copied"),
    [
        (4096, 400, 4096, True),
        (4096, 400, 256, False),
        (4096, 400, 0, False),
        (7951, 291, 5013, True),
        (291, 7951, 5013, True),
    ],
)
def test_of_launches_by_sizes_the_one_that_has_programs_decides(monkeypatch, rows, columns, terms, copied) -> None:
    """Blocks of 144 x 112 are computed as several others: each call runs one launch of them.

    Each operand counts as often as it is read: the larger one 3 times, the smaller one 63 times.
    """
    gpu, kernel = Recorded(monkeypatch), Kernel[..., Any](product_of(144, 112, 64))
    a, b = view_of((rows, terms), (terms, 1)), view_of((terms, columns), (columns, 1))
    bias, out = view_of((columns,), (1,)), view_of((rows, columns), (columns, 1))
    views, pointers = [a, b, bias, out], [0x10002, 0x20002, 0x30000, 0x40000]
    names = ("a", "b", "bias", "c")
    facts = [tensor_facts(n, p, view, view.strides) for n, p, view in zip(names, pointers, views, strict=True)]
    spec = Specialization(tuple(facts))
    variant = gpu.variant_for(kernel, spec, views, CUDA)
    assert len(variant.artifact.launches) > 1
    found = on_copies(kernel, spec, variant, pointers, views, CUDA, gpu.launcher("plain").prepare(None).launch)
    assert (found is not None) == copied
    assert found is None or found.names == ("a", "b")


def test_launches_that_want_different_copies_take_arrays_as_they_are() -> None:
    """A schedule says in a list what it decides differently for its launches."""
    artifact = SimpleNamespace(reflection={"schedule": {"misplaced": [1, 2], "rereads": [4, 1]}})
    spec = SimpleNamespace(has_aliases=False, debug=False, args=())
    nothing: Any = None
    given: Any = SimpleNamespace(artifact=artifact)
    assert on_copies(nothing, cast(Any, spec), given, (), (), CUDA, nothing) is None


def test_products_of_the_library_are_copied_where_their_plan_says_so() -> None:
    problem = sized(301, 303, 64, dtypes.bf16, dtypes.bf16, Options())
    schedule = plan(problem, target_named("sm_90a"))
    assert not kernel_for(problem, schedule, epilogue.chain([])).may_copy
