"""The compiled entry on the CPU: what it serves, what it leaves to the Python path, and that both agree.

`Kernel.__call__` is the Python path; a call of the kernel goes through the entry once a record holds for it.
"""

import copy
import gc
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

import tessera as ts
from tessera.driver import direct_calls, direct_records
from tessera.driver.kernel import Kernel
from tessera.driver.settings import settings
from tessera.entry import host
from tessera.errors import CallError, DeviceError, TesseraError
from tessera.runtime import backend, cpu
from tessera.runtime.pool import shared_pool

pytestmark = pytest.mark.skipif(bool(host.why_not()), reason=host.why_not())


@ts.kernel
def saxpy(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], alpha: ts.f32 = 2.0):
    """Compute y = alpha * x + y."""
    i = ts.tile.linear_id()
    if i < n:
        y[i] = alpha * x[i] + y[i]
    return y


@ts.kernel
def scale_rows(
    x: ts.Tensor["M", "N", ts.f32],
    s: ts.Tensor["M", ts.f32],
    out: ts.Tensor["M", "N", ts.f32],
    block: ts.constexpr[int] = 2,
):
    """Compute out = x * s[:, None]."""
    for m, k in ts.tile.grid((M, block), (N, 16)):
        out[m : m + block, k : k + 16] = x[m : m + block, k : k + 16] * s[m : m + block, None]
    return out


@ts.kernel
def row_sum(x: ts.Tensor["M", "N", ts.f32], out: ts.Tensor["M", ts.f32]):
    """Sum rows; the size of a row is compiled in."""
    for m in ts.tile.grid((M, 4)):
        out[m : m + 4] = ts.tile.sum(x[m : m + 4, 0:N], axis=1)
    return out


@ts.kernel
def folded(x: ts.Tensor["B*H", "D", ts.f32], w: ts.Tensor["B", "H", ts.f32], out: ts.Tensor["B*H", 4, ts.f32]):
    """Work on a dimension that is a product of two others."""
    for r in ts.tile.grid((B * H, 4)):
        out[r : r + 4, 0:4] = x[r : r + 4, 0:4] + x[r : r + 4, 0:4]
    return out


@ts.kernel
def swap(a: ts.Tensor["n", ts.i32], b: ts.Tensor["n", ts.i32]):
    """Exchange two arrays."""
    i = ts.tile.linear_id()
    if i < n:
        old = a[i]
        a[i] = b[i]
        b[i] = old
    return b, a


def served(kernel: Kernel) -> bool:
    """Return whether the entry served the last call."""
    return kernel._direct.last() is not None


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    """Return normal numbers, 64-byte aligned as `ts.empty` gives them."""
    made = ts.empty(shape, ts.f32)
    made[...] = np.random.default_rng(seed).standard_normal(shape)
    return made


def warm(kernel: Kernel, *args, **kwargs) -> None:
    """Call until the entry serves such calls."""
    for _ in range(4):
        kernel(*args, **kwargs)
    assert served(kernel)


def test_the_third_call_is_served_and_explained():
    @ts.kernel
    def fresh(x: ts.Tensor["n", ts.f32]):
        i = ts.tile.linear_id()
        if i < n:
            x[i] = x[i] + 1.0

    x, before = numbers(40), numbers(40)
    seen = []
    for _ in range(5):
        assert fresh(x) is None
        seen.append(served(fresh))
    assert seen == [False, False, True, True, True]
    np.testing.assert_allclose(x, before + 5, rtol=1e-6)
    assert fresh.explain().target == "cpu"


@pytest.mark.parametrize("count", [0, 1, 7, 16, 17, 1000, 4096, 300_000])
def test_results_of_any_size(count):
    warm(saxpy, numbers(33), numbers(33), 0.5)
    for alpha in (1.5, 2, -0.25):
        x, y = numbers(count), numbers(count, seed=1)
        wanted = np.float64(alpha) * x + y
        for _ in range(2):
            again = y.copy()
            assert saxpy(x, again, alpha) is again
            np.testing.assert_allclose(again, wanted, rtol=1e-6, atol=1e-6)


def test_sizes_of_one_class_share_a_record():
    @ts.kernel
    def fresh(x: ts.Tensor["M", "N", ts.f32]):
        for m, k in ts.tile.grid((M, 8), (N, 16)):
            x[m : m + 8, k : k + 16] = x[m : m + 8, k : k + 16] + 1.0

    warm(fresh, numbers(16, 32))
    count = fresh._direct.count
    for shape in ((32, 16), (160, 48), (16, 16)):
        x = numbers(*shape)
        wanted = x + np.float32(1)
        fresh(x)
        assert served(fresh)
        np.testing.assert_array_equal(x, wanted)
    assert fresh._direct.count == count
    x = numbers(17, 32)  # of another class: another variant
    wanted = x + np.float32(1)
    fresh(x)
    assert not served(fresh)
    np.testing.assert_array_equal(x, wanted)


def test_calls_that_an_assumption_excludes_are_left_to_python():
    @ts.kernel
    def fresh(x: ts.Tensor["N", ts.f32], k: ts.i32):
        ts.assume(N % 48 == 0)
        ts.assume((k == 3) | (k > N // 16))
        for i in ts.tile.grid((N, 16)):
            x[i : i + 16] = x[i : i + 16] + ts.tile.cast(k, ts.f32)

    warm(fresh, numbers(96), 3)
    for size, k in ((96, 3), (48, 3), (96, 7), (48, 4), (144, 10)):
        x = numbers(size)
        wanted = x + np.float32(k)
        fresh(x, k)
        assert served(fresh)
        np.testing.assert_array_equal(x, wanted)
    for size, k in ((64, 3), (96, 6), (144, 9), (48, -1)):  # of one class with those before
        x = numbers(size)
        before = x.copy()
        with pytest.raises(ts.CallError) as caught:
            fresh(x, k)
        assert caught.value.code == "assumption"
        np.testing.assert_array_equal(x, before)


def test_orders_of_strides_have_variants_and_sizes_of_their_own():
    @ts.kernel
    def fresh(x: ts.Tensor["A", "B", "C", ts.f32], y: ts.Tensor["A", "B", "C", ts.f32]):
        for a, b, c in ts.tile.grid((A, 4), (B, 4), (C, 4)):
            y[a : a + 4, b : b + 4, c : c + 4] = x[a : a + 4, b : b + 4, c : c + 4]

    def call(shape, order):
        x = numbers(*shape).transpose(order)
        y = np.empty(x.shape, np.float32)
        fresh(x, y)
        np.testing.assert_array_equal(y, x)

    for _ in range(4):
        call((8, 16, 32), (2, 1, 0))
    assert served(fresh)
    assert fresh._last.origin.spec.args[0].order == (2, 1, 0)
    call((8, 48, 32), (2, 1, 0))  # of the same class
    assert not served(fresh)
    other = (8, 32, 16), (1, 2, 0)
    call(*other)
    assert fresh._last.origin.spec.args[0].order == (2, 0, 1)


def test_the_variant_is_that_of_the_python_path():
    rng = np.random.default_rng(3)
    for _ in range(40):
        rows, columns, pad = (int(rng.integers(1, 40)) for _ in range(3))
        whole = numbers(rows, columns + pad)
        x = whole[:, :columns]
        out, s = numbers(rows, columns), numbers(rows)
        Kernel.__call__(scale_rows, x, s, out)
        slow = scale_rows._last.origin.variant
        scale_rows(x, s, out)
        if served(scale_rows):
            assert scale_rows._direct.last().origin.variant is slow
        np.testing.assert_array_equal(out, x * s[:, None])


WRONG = {
    "dtype": (lambda x, y: saxpy(x.astype(np.float64), y), "wrong-dtype"),
    "dtype of the same width": (lambda x, y: saxpy(x.view(np.int32), y), "wrong-dtype"),
    "rank": (lambda x, y: saxpy(x[None], y), "wrong-rank"),
    "sizes": (lambda x, y: saxpy(x[:16], y), "wrong-shape"),
    "read-only": (lambda x, y: saxpy(x, frozen(y)), "read-only"),
    "broadcast": (lambda x, y: saxpy(x, writable_broadcast(len(x))), "overlapping"),
    "byte order": (lambda x, y: saxpy(x.astype(">f4"), y), "byte-order"),
    "masked": (lambda x, y: saxpy(np.ma.masked_array(x), y), "not-an-array"),
    "list": (lambda x, y: saxpy([1.0], y), "not-an-array"),
    "None": (lambda x, y: saxpy(None, y), "not-an-array"),
    "misaligned": (lambda x, y: saxpy(misaligned(x), y), "misaligned"),
    "text for a number": (lambda x, y: saxpy(x, y, "a"), "wrong-scalar"),
    "too large a number": (lambda x, y: saxpy(x, y, 1e39), "wrong-scalar"),
    "too large an integer": (lambda x, y: saxpy(x, y, 10**400), "wrong-scalar"),
    "too few": (lambda x, y: saxpy(x), "argument-count"),
    "too many": (lambda x, y: saxpy(x, y, 1.0, 2), "argument-count"),
    "unknown name": (lambda x, y: saxpy(x, y, beta=1.0), "unknown-keyword"),
    "twice": (lambda x, y: saxpy(x, y, x=x), "argument-count"),
}


def frozen(array: np.ndarray) -> np.ndarray:
    """Return a read-only view."""
    view = array.view()
    view.flags.writeable = False
    return view


def writable_broadcast(count: int) -> np.ndarray:
    """Return an array whose elements share an address and that says it is writable."""
    return np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (count,), (0,))


def misaligned(array: np.ndarray) -> np.ndarray:
    """Return a copy at an odd address."""
    memory = np.zeros(array.nbytes + 1, np.uint8)
    view = memory[1:].view(np.float32)
    view[:] = array
    return view


@pytest.mark.parametrize("name", WRONG)
def test_every_guard_leads_to_the_typed_error_and_back(name):
    call, code = WRONG[name]
    x, y = numbers(32), numbers(32, seed=1)
    warm(saxpy, x, y.copy())
    warm(saxpy, x, y.copy(), 2.0)
    for _ in range(3):
        with pytest.raises(CallError) as caught:
            call(x, y.copy())
        assert caught.value.code == code
        assert "test_direct_calls.py" in str(caught.value.location)
        assert sys.exc_info() == (None, None, None)
    again = y.copy()
    saxpy(x, again, 2.0)
    assert served(saxpy)
    np.testing.assert_allclose(again, np.float64(2) * x + y, rtol=1e-6)


class Subclass(np.ndarray):
    """An array of another type."""


RIGHT = {
    "subclass": lambda x: x.copy().view(Subclass),
    "reversed": lambda x: x.copy()[::-1],
    "every third": lambda x: np.repeat(x, 3)[::3],
    "4-byte aligned": lambda x: np.concatenate([x[:1], x])[1:],
    "column": lambda x: np.asfortranarray(np.stack([x, x])).T[:, 1],
    "Fortran": lambda x: np.asfortranarray(x[:, None])[:, 0],
    "buffer": lambda x: np.frombuffer(bytearray(x.tobytes()), np.float32),
    "field": lambda x: np.rec.fromarrays([x.copy(), x.copy()], names="a,b")["b"],
}


@pytest.mark.parametrize("name", RIGHT)
def test_arrays_of_every_kind_give_the_right_result(name):
    x = numbers(37)
    warm(saxpy, x, numbers(37))
    for _ in range(6):
        y = RIGHT[name](numbers(37, seed=2))
        wanted = np.float64(2) * x + y
        assert saxpy(x, y) is y
        np.testing.assert_allclose(np.asarray(y), wanted, rtol=1e-6, atol=1e-6)
        x2 = RIGHT[name](x)
        y = numbers(37, seed=2)
        wanted = np.float64(2) * np.asarray(x2) + y
        np.testing.assert_allclose(saxpy(x2, y), wanted, rtol=1e-6, atol=1e-6)


def test_dimensions_of_one_element_may_have_any_stride():
    warm(scale_rows, numbers(1, 32), numbers(1), numbers(1, 32))
    for stride in (4, 400, 132):
        x = np.lib.stride_tricks.as_strided(numbers(200), (1, 32), (stride, 4))
        out = scale_rows(x, np.float32([3]), numbers(1, 32))
        np.testing.assert_array_equal(out, x * np.float32(3))


def test_a_size_that_is_compiled_in_is_guarded():
    for count in (64, 5, 64, 5, 64, 5, 64, 5, 7, 64):
        x = numbers(3, count)
        out = row_sum(x, np.zeros(3, np.float32))
        np.testing.assert_allclose(out, x.astype(np.float64).sum(1), rtol=1e-4, atol=1e-5)
        assert row_sum.explain().fixed == {"N": count}
    assert served(row_sum)


def test_products_of_dimensions_are_guarded():
    for b, h in [(2, 3)] * 4 + [(3, 2), (2, 6), (6, 2), (2, 3)]:
        x = numbers(b * h, 8)
        out = folded(x, numbers(b, h), numbers(b * h, 4))
        np.testing.assert_array_equal(out, 2 * x[:, :4])
    assert served(folded)
    for wrong in ((2, 4), (1, 3), (3, 3)):
        with pytest.raises(CallError) as caught:
            folded(numbers(6, 8), numbers(*wrong), numbers(6, 4))
        assert caught.value.code == "wrong-shape"
    with pytest.raises(CallError):
        folded(numbers(6, 8), numbers(2, 3), numbers(6, 5))


def test_keywords_defaults_and_constants():
    x, s = numbers(9, 8), numbers(9)
    wanted = x * s[:, None]
    for _ in range(5):
        for call in (
            lambda out: scale_rows(x, s, out),
            lambda out: scale_rows(x, s, out, 1),
            lambda out: scale_rows(x, s, out, block=1),
            lambda out: scale_rows(x, s, block=4, out=out),
            lambda out: scale_rows(out=out, s=s, x=x),
        ):
            out = numbers(9, 8)
            assert call(out) is out
            np.testing.assert_array_equal(out, wanted)
    call(numbers(9, 8))
    assert served(scale_rows)
    for call in (lambda: scale_rows(x, s, s, block=1), lambda: scale_rows(x, s, out=s)):
        with pytest.raises(CallError) as caught:
            call()
        assert caught.value.code == "wrong-rank"
    with pytest.raises(CallError) as caught:
        scale_rows(x, s, x.copy(), True)
    assert caught.value.code == "wrong-constexpr"


def test_parameters_by_position_or_by_name_alone():
    @ts.kernel
    def scaled(x: ts.Tensor["n", ts.f32], /, y: ts.Tensor["n", ts.f32], *, by: ts.f32):
        for i in ts.tile.grid((n, 16)):
            y[i : i + 16] = x[i : i + 16] * by

    x, y = np.arange(20, dtype=np.float32), np.empty(20, np.float32)
    for by in (2.0, 3.0, 4.0, 5.0):
        scaled(x, y, by=by)
        np.testing.assert_array_equal(y, x * by)
        with pytest.raises(ts.CallError, match="2 arguments by position, got 3"):
            scaled(x, y, by)
        with pytest.raises(ts.CallError, match="'x' by position only"):
            scaled(x=x, y=y, by=by)
        with pytest.raises(ts.CallError, match="needs the argument 'by'"):
            scaled(x, y)


def test_constants_are_told_apart():
    @ts.kernel
    def scaled(x: ts.Tensor["n", ts.f32], by: ts.constexpr, out: ts.Tensor["n", ts.f32]):
        i = ts.tile.linear_id()
        if i < n:
            out[i] = x[i] * by

    x, out = numbers(20), numbers(20)
    for by in (2, 3, 1000, 2.0, 0.5, True, 1000, 3) * 4:
        scaled(x, by, out)
        np.testing.assert_array_equal(out, x * np.float32(by))


def test_one_several_and_no_results():
    a, b = np.arange(50, dtype=np.int32), np.arange(50, 100, dtype=np.int32)
    warm(swap, a.copy(), b.copy())
    first, second = a.copy(), b.copy()
    given = swap(first, second)
    assert served(swap)
    assert type(given) is tuple
    assert given[0] is second
    assert given[1] is first
    np.testing.assert_array_equal(first, b)
    np.testing.assert_array_equal(second, a)


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        (f"{kind}{bits}", *limits)
        for bits in (8, 16, 32, 64)
        for kind, limits in (("i", (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)), ("u", (0, 2**bits - 1)))
    ],
)
def test_integers_and_their_ranges(dtype, low, high):
    element = getattr(ts, dtype)

    @ts.kernel
    def put(out: ts.Tensor["n", element], value: element):
        i = ts.tile.linear_id()
        if i < n:
            out[i] = value

    out = np.zeros(3, dtype.replace("i", "int").replace("u", "uint").replace("uintint", "uint"))
    for value in (1, 0, True, low, high, 1, high // 2, np.int64(5), low, high) * 2:
        put(out, value)
        assert out.tolist() == [int(value)] * 3
    for wrong in (low - 1, high + 1, 2**70, -(2**70), 1.5, None, "1"):
        with pytest.raises(CallError) as caught:
            put(out, wrong)
        assert caught.value.code == "wrong-scalar"


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16", "bool_"])
def test_floats_have_the_bits_of_the_python_path(dtype):
    element = getattr(ts, dtype)

    @ts.kernel
    def put(out: ts.Tensor["n", element], value: element):
        i = ts.tile.linear_id()
        if i < n:
            out[i] = value

    rng = np.random.default_rng(8)
    wide = [float(value) for value in rng.standard_normal(300) * 10.0 ** rng.integers(-12, 5, 300)]
    ties = [1 + k / 512 for k in range(16)] + [1 + k / 4096 for k in range(16)]
    odd = [0.0, -0.0, 1, 0, -7, 65504.0, 6e-8, float("inf"), float("-inf"), float("nan"), np.float64(0.1)]
    values = [True, False] if dtype == "bool_" else [*wide, *ties, *odd, np.float32(0.7)]
    direct, slow = ts.empty((3,), element), ts.empty((3,), element)
    for value in values:
        put(direct, value)
        Kernel.__call__(put, slow, value)
        assert direct.tobytes() == slow.tobytes(), value
    put(direct, values[0])
    assert served(put)


def test_a_profile_has_its_own_code():
    x, y = numbers(30), numbers(30)
    warm(saxpy, x, y)
    with ts.numerics.profile("strict"):
        saxpy(x, y)
        assert saxpy.explain().profile == "strict"
        warm(saxpy, x, y)
        assert saxpy.explain().profile == "strict"
    saxpy(x, y)
    assert served(saxpy)
    assert saxpy.explain().profile == "fast"


def test_another_backend_makes_records_void(monkeypatch):
    x, y = numbers(30), numbers(30)
    warm(saxpy, x, y)
    monkeypatch.setattr(backend._choice, "name", "ptx")
    with pytest.raises(CallError) as caught:
        saxpy(x, y)
    assert caught.value.code == "wrong-device"
    monkeypatch.setattr(backend._choice, "name", None)
    warm(saxpy, x, y)


def test_an_assertion_that_fails_is_the_error_of_the_call(monkeypatch):
    monkeypatch.setattr(settings(), "debug", True)

    @ts.kernel
    def checked(x: ts.Tensor["n", ts.f32], most: ts.f32):
        i = ts.tile.linear_id()
        if i < n:
            v = x[i]
            assert v < most, "too large"
            x[i] = v + 1.0

    x = np.zeros(32, np.float32)
    warm(checked, x, 1000.0)
    for _ in range(3):
        with pytest.raises(DeviceError, match="too large") as caught:
            checked(x, -5.0)
        assert caught.value.code == "device-assert"
    checked(x, 1000.0)
    assert served(checked)


def test_large_work_goes_to_the_pool(monkeypatch):
    monkeypatch.setenv("TESSERA_NUM_THREADS", "3")

    @ts.kernel
    def heavy(x: ts.Tensor["M", "N", ts.f32], out: ts.Tensor["M", "N", ts.f32]):
        for m, k in ts.tile.grid((M, 8), (N, 64)):
            out[m : m + 8, k : k + 64] = ts.tile.exp(x[m : m + 8, k : k + 64])
        return out

    x = numbers(1024, 1024)
    for _ in range(8):
        out = heavy(x, ts.zeros(x.shape))
        np.testing.assert_allclose(out, np.exp(x.astype(np.float64)), rtol=1e-5)
    assert served(heavy)
    assert cpu.shared_pool().started >= 2


def test_a_pool_that_cannot_be_made_is_an_error_and_is_asked_for_again(monkeypatch):
    made = []

    def broken():
        made.append(1)
        if len(made) == 1:
            raise DeviceError("on purpose", code="no-device")
        return shared_pool()

    @ts.kernel
    def heavy(x: ts.Tensor["n", ts.f32]):
        for i in ts.tile.grid((n, 64)):
            x[i : i + 64] = ts.tile.exp(ts.tile.sin(x[i : i + 64]))

    monkeypatch.setattr(cpu, "shared_pool", broken)
    warm(heavy, numbers(64))
    shared_pool()
    words, kept = cpu.words, list(cpu.words)
    words[0] = 0
    try:
        with pytest.raises(DeviceError, match="on purpose"):
            heavy(numbers(1 << 20))
    finally:
        words[0] = kept[0]
    x = numbers(1 << 20)
    expected = np.exp(np.sin(x.astype(np.float64)))
    heavy(x)
    np.testing.assert_allclose(x, expected, rtol=1e-5)


def test_reference_counts_and_memory_stay_as_they_are():
    x, y = numbers(16), numbers(16)
    a, b = np.arange(4, dtype=np.int32), np.arange(4, dtype=np.int32)
    out, s = numbers(16, 16), numbers(16)
    warm(saxpy, x, y, 1.0)
    warm(swap, a, b)
    warm(scale_rows, out, s, out, block=2)
    block, alpha = 10**6 + 2, 0.0
    objects = [x, y, a, b, out, s, saxpy, swap, saxpy._direct._table, alpha]
    shared = [Kernel, np.ndarray, "block"]  # other tests' objects may die meanwhile; a leak is one a call

    def rounds(count):
        for _ in range(count):
            saxpy(x, y, alpha)
            swap(a, b)
            scale_rows(out, s, out, block=2)
            with pytest.raises(CallError):
                scale_rows(out, s, s)

    rounds(20)
    gc.collect()
    before = list(map(sys.getrefcount, objects)), list(map(sys.getrefcount, shared)), sys.getallocatedblocks()
    rounds(300)
    for _ in range(100_000):
        saxpy(x, y, alpha)
        swap(a, b)
    gc.collect()
    after = list(map(sys.getrefcount, objects)), list(map(sys.getrefcount, shared)), sys.getallocatedblocks()
    assert after[0] == before[0]
    assert np.abs(np.subtract(after[1], before[1])).max() < 100
    assert after[2] - before[2] < 500  # what other tests left may go meanwhile
    assert block


def test_threads_share_kernels():
    failures = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(300):
            count = int(rng.integers(0, 200))
            x, y = numbers(count, seed=seed), numbers(count, seed=seed + 1)
            wanted = np.float64(seed) * x + y
            if not np.allclose(saxpy(x, y, float(seed)), wanted, rtol=1e-5, atol=1e-5):
                failures.append((seed, count))
            if seed % 2:
                with ts.numerics.profile("deterministic"):
                    saxpy(x, y, 0.0)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_forked_process_goes_on(recwarn):
    x, y = numbers(32), numbers(32)
    warm(saxpy, x, y)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            fresh = numbers(32)
            wanted = np.float64(3) * x + fresh
            good = np.allclose(saxpy(x, fresh, 3.0), wanted, rtol=1e-5, atol=1e-5)
            status = 0 if good and served(saxpy) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_kernels_are_freed_copied_and_pickled():
    def make(by):
        @ts.kernel
        def short(x: ts.Tensor["n", ts.f32]):
            i = ts.tile.linear_id()
            if i < n:
                x[i] = x[i] * by

        return short

    x = np.ones(8, np.float32)
    kernel = make(1.0)
    warm(kernel, x)
    seen = weakref.ref(kernel)
    del kernel
    gc.collect()
    assert seen() is None
    assert copy.deepcopy(saxpy) is saxpy
    assert copy.copy(saxpy) is saxpy
    assert saxpy.__reduce__() == "saxpy"  # what pickle stores of a function, too
    assert isinstance(saxpy, Kernel)
    assert saxpy.__name__ == "saxpy"
    assert callable(saxpy)


def test_a_kernel_from_a_file_is_served(tmp_path):
    ts.compile(scale_rows, target="cpu").save(tmp_path / "rows.art")
    loaded = ts.load(tmp_path / "rows.art")
    for rows, columns in ((9, 8), (9, 8), (9, 8), (9, 8), (4, 32), (16, 16), (9, 8)):
        x, s = numbers(rows, columns), numbers(rows)
        out = loaded(x, s, out=numbers(rows, columns))
        np.testing.assert_array_equal(out, x * s[:, None])
    assert loaded._direct.last() is not None
    with pytest.raises(CallError) as caught:
        loaded(x, s, out=s)
    assert caught.value.code == "wrong-rank"
    with pytest.raises(CallError) as caught:
        loaded(np.asfortranarray(x), s, out=x)
    assert caught.value.code == "artifact-guard"

    ts.compile(row_sum, target="cpu", dims={"N": 24}).save(tmp_path / "sum.art")
    loaded = ts.load(tmp_path / "sum.art")
    for _ in range(5):
        x = numbers(7, 24)
        out = loaded(x, numbers(7))
        np.testing.assert_allclose(out, x.astype(np.float64).sum(1), rtol=1e-4, atol=1e-5)
    assert loaded._direct.last() is not None
    with pytest.raises(CallError) as caught:
        loaded(numbers(7, 40), numbers(7))
    assert caught.value.code == "artifact-guard"


def test_a_tuned_kernel_is_served():
    @ts.kernel.autotune(space=dict(block=[4, 2]), key=("M",))
    def tuned(x: ts.Tensor["M", "N", ts.f32], block: ts.constexpr[int]):
        for m in ts.tile.grid((M, block)):
            x[m : m + block, 0:N] = x[m : m + block, 0:N] + 1.0

    x, wanted = numbers(8, 16), numbers(8, 16)
    warm(tuned, x)
    np.testing.assert_allclose(x, wanted + 4, rtol=1e-5)
    assert tuned.explain().config == {"block": 4}
    warm(tuned, x, 2)
    np.testing.assert_allclose(x, wanted + 8, rtol=1e-5)


def test_a_call_left_to_python_for_the_moment_makes_no_second_record():
    x, y = numbers(32), numbers(32)
    warm(saxpy, x, y)
    count = saxpy._direct.count
    for _ in range(6):
        Kernel.__call__(saxpy, x, y)
    assert saxpy._direct.count == count
    saxpy(x, y)
    assert served(saxpy)


def test_the_number_of_records_is_bounded(monkeypatch):
    monkeypatch.setattr(direct_calls, "_RECORDS", 3)
    monkeypatch.setattr(direct_calls, "_PLANS_KEPT", 8)

    @ts.kernel
    def total(x: ts.Tensor["N", ts.f32], out: ts.Tensor["one", ts.f32]):
        for _ in ts.tile.grid((one, 1)):
            out[0] = ts.tile.sum(x[0:N])

    for _ in range(3):
        for count in range(1, 9):
            x, out = numbers(count), numbers(1)
            for _ in range(3):
                total(x, out)
            assert total.explain().fixed == {"N": count}
            np.testing.assert_allclose(out[0], x.astype(np.float64).sum(), rtol=1e-4, atol=1e-5)
            assert total._direct.count <= 3
            assert len(total._direct._made) <= 8


def test_calls_that_never_repeat_make_few_records(monkeypatch):
    made = []
    plain = direct_records.make_record
    monkeypatch.setattr(direct_records, "make_record", lambda *args: made.append(1) or plain(*args))

    @ts.kernel.autotune(space=dict(block=[4]), key=("M",))
    def tuned(x: ts.Tensor["M", "N", ts.f32], block: ts.constexpr[int]):
        for m in ts.tile.grid((M, block)):
            x[m : m + block, 0:N] = x[m : m + block, 0:N] + 1.0

    for rows in range(1, 200, 2):
        tuned(numbers(rows, 16))
    assert len(made) == direct_calls._EAGER_RECORDS
    for _ in range(4):
        tuned(numbers(201, 16))
    assert served(tuned)


def test_without_an_entry_the_python_path_serves_all(monkeypatch):
    monkeypatch.setattr(settings(), "entry", False)

    @ts.kernel
    def plain(x: ts.Tensor["n", ts.f32]):
        i = ts.tile.linear_id()
        if i < n:
            x[i] = x[i] + 1.0

    x = np.zeros(5, np.float32)
    for _ in range(6):
        plain(x)
        assert not served(plain)
    assert x.tolist() == [6.0] * 5
    monkeypatch.setattr(settings(), "entry", True)
    monkeypatch.setattr(host, "why_not", lambda: "no reason")
    for _ in range(6):
        plain(x)
    assert plain._direct.count == 0
    assert plain.explain().target == "cpu"


def test_the_entry_is_kept_on_disk(monkeypatch, tmp_path):
    monkeypatch.setenv("TESSERA_CACHE_DIR", str(tmp_path / "cache"))
    made = []
    from tessera.entry import code

    monkeypatch.setattr(code, "compile_entry", lambda: made.append(1) or plain())
    from tessera.entry.code.module import compile_entry as plain

    in_use = direct_calls._load_entry()  # by other kernels of this process
    for _ in range(2):
        direct_calls._load_entry.cache_clear()
        assert direct_calls._load_entry()[1] != 0
    assert made == [1]
    direct_calls._load_entry._made[()] = in_use
    assert issubclass(TesseraError, Exception)


_THREADS = """
import sys, threading
import numpy as np
import tessera as ts
from tests.unit.driver.test_direct_calls import kernel_of
def work(kernel, value):
    for _ in range(4000):
        y = np.zeros(100, np.float32)
        assert kernel(y)[0] == value
threads = [threading.Thread(target=work, args=(kernel_of(v), v)) for v in (1.0, 2.0, 3.0)]
sys.setswitchinterval(1e-5)
for t in threads: t.start()
for t in threads: t.join()
print("done")
"""


def kernel_of(value):
    """Return a kernel of its own."""

    @ts.kernel
    def fill(y: ts.Tensor["n", ts.f32]):
        for i in ts.tile.grid((n, 64)):
            y[i : i + 64] = ts.tile.full((64,), value, ts.f32)
        return y

    return fill


def test_threads_load_one_entry(tmp_path):
    environment = os.environ | {"TESSERA_CACHE_DIR": str(tmp_path / "cache")}
    root = Path(__file__).resolve().parents[3]
    command = [sys.executable, "-c", _THREADS]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"
