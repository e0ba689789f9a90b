"""The CPU backend: compiled kernels against NumPy, on this CPU and on the older ones it can stand in for."""

from __future__ import annotations

import ctypes
import mmap
import re
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tessera as ts
from tessera.backends.cpu import compile_cpu, host_target, load_object
from tessera.errors import CompilerFault, DeviceError
from tessera.lower.vector import lower_to_vector
from tessera.runtime.cpu import CpuLauncher
from tessera.runtime.host import architecture
from tessera.target.cpus import CPU_TARGETS
from tessera.target.registry import target_named
from tests.unit.lower.support import aligned, scheduled

RNG = np.random.default_rng(20)


def _runnable() -> list[str]:
    """Return the targets whose code this machine executes."""
    host = host_target()
    if architecture() != "x86_64":
        return ["cpu"]
    levels = {"x86-64": set(), "x86-64-v3": {"avx2", "fma", "f16c"}, "x86-64-v4": {"avx512f"}}
    return ["cpu", *(name for name, needed in levels.items() if needed <= host.features)]


def run(kernel: Any, args: Sequence[Any], target: str = "cpu", **constexprs: Any) -> Any:
    """Compile for `target` and run here; arrays are changed in place."""
    artifact = ts.compile(kernel, target=target, **constexprs)
    launcher = CpuLauncher(artifact, load_object)
    arrays = [a for a in args if isinstance(a, np.ndarray)]
    shapes = [(a.shape, tuple(s // a.itemsize for s in a.strides)) if isinstance(a, np.ndarray) else None for a in args]
    scalars = [a for a in args if not isinstance(a, np.ndarray)]
    launcher.prepare(shapes).launch([a.ctypes.data for a in arrays], scalars)
    return artifact


@ts.kernel
def gemm(a: ts.Tensor["m", "k", ts.f32], b: ts.Tensor["k", "n", ts.f32], c: ts.Tensor["m", "n", ts.f32]):
    for i, j in ts.tile.grid((m, 40), (n, 72)):
        acc = ts.tile.zeros((40, 72), ts.f32)
        for step in ts.tile.range(0, k, 24):
            acc = ts.tile.mma(a[i : i + 40, step : step + 24], b[step : step + 24, j : j + 72], acc)
        c[i : i + 40, j : j + 72] = acc


@ts.kernel
def attention(
    q: ts.Tensor["s", 48, ts.bf16],
    k: ts.Tensor["s", 48, ts.bf16],
    v: ts.Tensor["s", 48, ts.bf16],
    o: ts.Tensor["s", 48, ts.f32],
):
    for i in ts.tile.grid((s, 32)):
        acc = ts.tile.zeros((32, 48), ts.f32)
        top = ts.tile.full((32,), -1e30, ts.f32)
        total = ts.tile.zeros((32,), ts.f32)
        for j in ts.tile.range(0, s, 40):
            right = ts.tile.transpose(k[j : j + 40, :])
            score = ts.tile.mma(q[i : i + 32, :], right, ts.tile.zeros((32, 40), ts.f32)) * 0.14
            inside = (ts.tile.arange(40) + j)[None, :] < s
            score = ts.tile.where(inside, score, -1e30)
            new = ts.tile.maximum(top, ts.tile.row_max(score))
            p = ts.tile.exp(score - new[:, None])
            scale = ts.tile.exp(top - new)
            total = total * scale + ts.tile.row_sum(p)
            acc = ts.tile.mma(ts.tile.cast(p, ts.bf16), v[j : j + 40, :], acc * scale[:, None])
            top = new
        o[i : i + 32, :] = acc / total[:, None]


@pytest.mark.parametrize("target", _runnable())
def test_product_of_odd_sizes(target: str):
    a, b = RNG.standard_normal((97, 131), np.float32), RNG.standard_normal((131, 150), np.float32)
    c = np.full((97, 150), np.nan, np.float32)
    run(gemm, [a, b, c], target)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert np.abs(c - exact).max() < 131 * 2**-24 * (np.abs(a) @ np.abs(b)).max()


@pytest.mark.parametrize("target", _runnable())
def test_attention_with_carried_tiles(target: str):
    q, k, v = (RNG.standard_normal((100, 48)).astype(ml_dtypes.bfloat16) for _ in range(3))
    o = np.full((100, 48), np.nan, np.float32)
    run(attention, [q, k, v, o], target)
    score = q.astype(np.float64) @ k.astype(np.float64).T * 0.14
    p = np.exp(score - score.max(1, keepdims=True))
    exact = p / p.sum(1, keepdims=True) @ v.astype(np.float64)
    assert np.abs(o - exact).max() < 2**-7


NARROW = [
    (ts.f16, np.dtype(np.float16)),
    (ts.bf16, np.dtype(ml_dtypes.bfloat16)),
    (ts.fp8_e4m3, np.dtype(ml_dtypes.float8_e4m3fn)),
    (ts.fp8_e5m2, np.dtype(ml_dtypes.float8_e5m2)),
]


@pytest.mark.parametrize("target", _runnable())
@pytest.mark.parametrize(("dtype", "numpy"), NARROW, ids=[str(d) for d, _ in NARROW])
def test_narrow_floats_round_like_ml_dtypes(target: str, dtype: ts.DType, numpy: np.dtype):
    @ts.kernel
    def narrow(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", dtype], z: ts.Tensor["n", ts.f32]):
        for i in ts.tile.grid((n, 100)):
            y[i : i + 100] = ts.tile.cast(x[i : i + 100], dtype)
            z[i : i + 100] = ts.tile.cast(y[i : i + 100], ts.f32)

    bits = RNG.integers(0, 2**32, 3000, np.uint32)
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, 448, 464, 465, 65504, 65520, 1e-45, 2**-9], np.float32)
    x = np.concatenate([bits.view(np.float32), special])
    y, z = np.zeros(len(x), numpy), np.zeros(len(x), np.float32)
    run(narrow, [x, y, z], target)
    with np.errstate(all="ignore"):
        expected = x.astype(numpy)
    np.testing.assert_array_equal(y.astype(np.float32), expected.astype(np.float32))
    np.testing.assert_array_equal(z, expected.astype(np.float32))


@ts.kernel
def swap(x: ts.Tensor[6, 20, ts.f32], y: ts.Tensor[6, 20, ts.f32], times: ts.i32):
    for _i in ts.tile.grid((1, 1)):
        a = x[:, :]
        b = y[:, :]
        for _step in ts.tile.range(0, times, 1):
            c = a + b
            a = b
            b = c
        x[:, :] = a
        y[:, :] = b


@pytest.mark.parametrize("times", [0, 1, 5])
def test_tiles_exchanged_in_a_loop(times: int):
    x, y = (RNG.integers(0, 9, (6, 20)).astype(np.float32) for _ in range(2))
    a, b = x.copy(), y.copy()
    for _ in range(times):
        a, b = b, a + b
    run(swap, [x, y, times])
    np.testing.assert_array_equal(x, a)
    np.testing.assert_array_equal(y, b)


@ts.kernel
def turn(x: ts.Tensor[20, 20, ts.f32]):
    for _i in ts.tile.grid((1, 1)):
        a = x[:, :]
        b = a
        for _step in ts.tile.range(0, 3, 1):
            a, b = a + ts.tile.transpose(b), b - ts.tile.transpose(a)
        x[:, :] = a - b


def test_carried_tiles_that_read_each_other_transposed():
    x = RNG.integers(0, 9, (20, 20)).astype(np.float32)
    a = b = x.copy()
    for _ in range(3):
        a, b = a + b.T, b - a.T
    run(turn, [x])
    np.testing.assert_array_equal(x, a - b)


@ts.kernel
def branches(x: ts.Tensor[4, 20, ts.f32], y: ts.Tensor[4, 20, ts.f32]):
    for _i in ts.tile.grid((1, 1)):
        a = x[:, :]
        e = ts.tile.exp(a * 0.1)
        for step in ts.tile.range(0, 5, 1):
            if step % 2 == 0:
                a = a + e
            else:
                a = a * (e - 0.5)
        y[:, :] = a + e


def test_tile_chosen_by_a_branch_in_a_loop():
    x = RNG.standard_normal((4, 20)).astype(np.float32)
    y = np.zeros_like(x)
    run(branches, [x, y])
    a = x.astype(np.float64)
    e = np.exp(a * 0.1)
    for step in range(5):
        a = a + e if step % 2 == 0 else a * (e - 0.5)
    np.testing.assert_allclose(y, a + e, rtol=1e-5, atol=1e-5)


@ts.kernel
def overlap(x: ts.Tensor[40, ts.f32], y: ts.Tensor[20, ts.f32]):
    for _i in ts.tile.grid((1, 1)):
        a = x[0:20]
        b = x[1:21]
        product = a * b
        x[1:21] = a + b
        x[0:20] = product + a
        y[:] = a


def test_loads_are_not_moved_past_overlapping_stores():
    x, y = RNG.integers(0, 9, 40).astype(np.float32), np.zeros(20, np.float32)
    expected = x.copy()
    a, b = expected[:20].copy(), expected[1:21].copy()
    expected[1:21] = a + b
    expected[:20] = a * b + a
    run(overlap, [x, y])
    np.testing.assert_array_equal(x, expected)
    np.testing.assert_array_equal(y, a)


@ts.kernel
def shared(x: ts.Tensor["n", 24, ts.f32], y: ts.Tensor["n", 8, ts.f32]):
    for i in ts.tile.grid((n, 8)):
        buffer = ts.tile.alloc_shared((8, 24), ts.f32, swizzle="xor")
        ts.tile.cp_async(buffer, x[i : i + 8, :])
        ts.tile.commit_group()
        ts.tile.wait_group(0)
        ts.tile.barrier()
        y[i : i + 8, :] = ts.tile.mma(buffer, buffer.T, ts.tile.zeros((8, 8), ts.f32))


def test_shared_buffers_and_their_transposed_views():
    x, y = RNG.integers(-4, 5, (21, 24)).astype(np.float32), np.zeros((21, 8), np.float32)
    run(shared, [x, y])
    for i in range(0, 21, 8):
        rows = np.zeros((8, 24), np.float32)
        rows[: len(x[i : i + 8])] = x[i : i + 8]
        np.testing.assert_array_equal(y[i : i + 8], (rows @ rows.T)[: len(y[i : i + 8])])


@ts.kernel
def reversed_rows(x: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["n", "m", ts.f32]):
    for i, j in ts.tile.grid((m, 35), (n, 50)):
        y[j : j + 50, i : i + 35] = ts.tile.transpose(ts.tile.sqrt(x[i : i + 35, j : j + 50]))


def test_strided_arguments_and_a_transposed_store():
    whole = np.abs(RNG.standard_normal((90, 260))).astype(np.float32)
    x, y = whole[::2, ::2], np.zeros((130, 45), np.float32)
    reversed_rows(x, y)
    np.testing.assert_array_equal(y, np.sqrt(x).T)


@ts.kernel
def division(a: ts.Tensor["n", ts.i32], b: ts.Tensor["n", ts.i32], q: ts.Tensor["n", ts.i32]):
    for i in ts.tile.grid((n, 20)):
        q[i : i + 20] = a[i : i + 20] // b[i : i + 20]


@pytest.mark.parametrize("target", _runnable())
def test_no_integer_division_traps(target: str):
    low = np.iinfo(np.int32).min
    a = np.array([low, low, 7, -7, 7, -7, 5, 0], np.int32)
    b = np.array([-1, 0, 2, 2, -2, -2, 0, 0], np.int32)
    q = np.zeros(8, np.int32)
    run(division, [a, b, q], target)
    assert list(q[[0, 2, 3, 4, 5]]) == [low, 3, -4, -4, 3]


@ts.kernel
def two_phases(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    for i in ts.tile.grid((n, 64)):
        y[i : i + 64] = x[i : i + 64] + 1.0
    for i in ts.tile.grid((n, 32)):
        x[i : i + 32] = y[i : i + 32] * 2.0


def test_two_grids_are_two_launches_in_order():
    x, y = np.arange(100, dtype=np.float32), np.zeros(100, np.float32)
    artifact = run(two_phases, [x, y])
    assert [launch.entry for launch in artifact.launches] == ["two_phases_0", "two_phases_1"]
    np.testing.assert_array_equal(x, (np.arange(100) + 1) * 2)


def test_results_do_not_depend_on_how_programs_are_spread():
    x = RNG.standard_normal((64, 1000)).astype(np.float32)

    @ts.kernel
    def norms(x: ts.Tensor["m", 1000, ts.f32], y: ts.Tensor["m", ts.f32]):
        for i in ts.tile.grid((m, 4)):
            tile = x[i : i + 4, :]
            y[i : i + 4] = ts.tile.row_sum(tile * tile)

    artifact = ts.compile(norms, target="cpu")
    launcher = CpuLauncher(artifact, load_object)
    whole, parts = np.zeros(64, np.float32), np.zeros(64, np.float32)
    launcher.prepare([((64, 1000), (1000, 1)), ((64,), (1,))]).launch([x.ctypes.data, whole.ctypes.data], [])
    for i in range(0, 64, 4):
        rows = x[i : i + 4]
        plan = launcher.prepare([((4, 1000), (1000, 1)), ((4,), (1,))])
        plan.launch([rows.ctypes.data, parts[i : i + 4].ctypes.data], [])
    np.testing.assert_array_equal(whole, parts)


def test_print_writes_a_line_per_element(capfd: pytest.CaptureFixture[str]):
    @ts.kernel
    def show(x: ts.Tensor[3, ts.f32]):
        for i in ts.tile.grid((1, 1)):
            tile = x[:]
            print(f"{tile} at {i} (100%)")

    run(show, [np.array([1, 0.5, -2], np.float32)])
    assert capfd.readouterr().out == "1 at 0 (100%)\n0.5 at 0 (100%)\n-2 at 0 (100%)\n"


@pytest.mark.parametrize("name", CPU_TARGETS)
def test_object_code_for_every_cpu(name: str):
    target = target_named(name)
    code = compile_cpu(lower_to_vector(scheduled(aligned(attention.__wrapped__), target), target), target)
    machine = {"aarch64": 183}.get(name, 62)  # e_machine of the ELF header
    assert code.code[:4] == b"\x7fELF"
    assert int.from_bytes(code.code[18:20], "little") == machine
    assert code.code_kind == "object"
    assert "attention" in code.dumps["ll"]
    assert code.reflection["vector_bytes"] == target.vector_bytes
    counted = code.reflection["instructions"]
    if target.has("fma"):
        assert counted.get("fmla", 0) + counted.get("vfmadd231ps", 0) > 0
        assert code.reflection["spills"] == 0


@pytest.mark.parametrize("name", CPU_TARGETS)
def test_bits_of_comparisons_are_numbers_of_any_kind_on_every_cpu(name: str):
    """LLVM 22 ends the process where it has arithmetic of f16 and takes a comparison's bit for an f16."""

    def kernel(x: ts.Tensor["n", ts.f64], y: ts.Tensor["n", ts.i32], z: ts.Tensor["n", ts.f64]):
        for i in ts.tile.grid((n, 1)):
            halves = ts.tile.bitcast((x[i] > 0).to(ts.i16), ts.f16), ts.tile.bitcast((y[i] > 0).to(ts.i16), ts.bf16)
            wide = ts.tile.bitcast((x[i] < 1).to(ts.i32), ts.f32), ts.tile.bitcast((y[i] < 1).to(ts.i64), ts.f64)
            z[i] = halves[0] + halves[1] + ts.tile.bitcast(ts.tile.cast(x[i].to(ts.f16) > 3, ts.u16), ts.f16)
            z[i] += wide[0] + wide[1]

    assert ts.compile(ts.kernel(kernel), target=name).code


def test_code_for_another_cpu_is_made_in_a_worker(monkeypatch: pytest.MonkeyPatch):
    target = target_named("aarch64")
    module = lower_to_vector(scheduled(aligned(gemm.__wrapped__), target), target)
    monkeypatch.setattr("tessera.backends.cpu.compile.emit_llvm", lambda *_: ("not IR", {}))
    with pytest.raises(CompilerFault) as caught:
        compile_cpu(module, target)
    assert caught.value.code == "llvm-failed"
    assert "generic" in caught.value.message


def test_damaged_object_code_is_an_error():
    with pytest.raises(CompilerFault) as caught:
        load_object(b"no object")
    assert caught.value.code == "link-failed"


def test_unknown_function_is_an_error():
    target = host_target()
    code = compile_cpu(lower_to_vector(scheduled(aligned(gemm.__wrapped__), target), target), target, ())
    loaded = load_object(code.code)
    assert loaded.address("gemm") > 0
    with pytest.raises(CompilerFault):
        loaded.address("other")


def test_host_is_described():
    target = host_target()
    assert target.name == "cpu"
    assert target.vector_bytes in (16, 32, 64)
    assert target.triple
    assert ("avx512f" in target.features) <= (target.vector_bytes == 64)


def test_failed_assertion_names_itself():
    @ts.kernel
    def guarded(x: ts.Tensor["n", ts.f32]):
        for i in ts.tile.grid((n, 16)):
            tile = x[i : i + 16]
            assert ts.tile.all(tile < 4.0), "too large"
            x[i : i + 16] = tile + 1.0

    x = np.arange(40, dtype=np.float32)
    with pytest.raises(DeviceError, match="too large"):
        run_debug(guarded, x)


def run_debug(kernel: Any, x: np.ndarray) -> None:
    """Compile with device assertions on, and run."""
    from dataclasses import replace

    from tessera.driver.pipeline import compile_kernel
    from tessera.frontend.build import build_kernel
    from tessera.frontend.specialize import ArgFacts, Specialization

    facts = ArgFacts("tensor", ts.f32, (None,), (1,), 4, (1,), (1,))
    spec = replace(Specialization((facts,), (), (), "fast"), debug=True)
    artifact = compile_kernel(build_kernel(kernel.signature, spec), host_target(), (), {})
    launcher = CpuLauncher(artifact, load_object)
    launcher.prepare([(x.shape, (1,))]).launch([x.ctypes.data], [])


@ts.kernel
def half_outside(a: ts.Tensor[15, ts.u64], x: ts.Tensor[13, ts.f32]):
    for i in ts.tile.grid((13, 13)):
        outside = ts.tile.cast(ts.tile.load(a[14:27, None], fill=0), ts.f16)
        x[i : i + 13, None] = ts.tile.maximum(outside, ts.tile.cast(a[0:13, None], ts.f16))


@pytest.mark.parametrize("target", _runnable())
def test_masked_loads_of_several_registers(target: str) -> None:
    block = np.full(64, 2**63, np.uint64)
    a, x = block[8:23], np.zeros(13, np.float32)
    a[:] = np.arange(15)
    run(half_outside, [a, x], target)
    np.testing.assert_array_equal(x, [14, *range(1, 13)])


@ts.kernel
def rows_of_tiles(x: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["m", "n", ts.f32]):
    for i, j in ts.tile.grid((m, 4), (n, 64)):
        y[i : i + 4, j : j + 64] = x[i : i + 4, j : j + 64] * 2.0


@ts.kernel
def sums_of_rows(x: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["p", ts.f32]):
    for i in ts.tile.grid((m, 4)):
        total = ts.tile.zeros((4, 64), ts.f32)
        for j in ts.tile.range(0, n, 64):
            total = total + x[i : i + 4, j : j + 64]
        y[i // 4] = ts.tile.sum(ts.tile.sum(total, 1))


@pytest.mark.parametrize(("kernel", "count"), [(rows_of_tiles, 1), (sums_of_rows, 2)], ids=["lanes", "rows too"])
def test_accesses_outside_have_addresses_inside(kernel: Any, count: int):
    """A masked access of no lanes takes a hundred nanoseconds where its address is not mapped."""
    text = ts.compile(kernel, "x86-64-v4", dump=["ll"]).dumps["ll"]
    made = dict(re.findall(r"(%\S+) = (.*)", text))
    calls = [line for line in text.splitlines() if "call" in line and "@llvm.masked." in line and "16 x float" in line]
    masked = [re.search(r"ptr align \d+ (%\w+)", line)[1] for line in calls]
    assert masked

    def selects(name: str) -> int:
        line = made.get(name, "")
        own = line.startswith("select i1") and line.endswith(", i64 0")
        return own + sum(map(selects, {*re.findall(r"%\w+", line)} if not line.startswith("phi") else ()))

    assert min(map(selects, masked)) >= count


def at_the_end_of_memory(shape: tuple[int, int]) -> Any:
    """Return an array that ends where mapped memory does; the page before its first one is not mapped either."""
    page, size = mmap.PAGESIZE, 4 * shape[0] * shape[1]
    pages = -(-size // page)
    whole = mmap.mmap(-1, (pages + 2) * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(whole))
    for at in (0, pages + 1):
        assert not ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + at * page), page, 0)
    return np.frombuffer(whole, np.float32, size // 4, (pages + 1) * page - size).reshape(shape)


@pytest.mark.parametrize("target", _runnable())
@pytest.mark.parametrize("shape", [(5, 67), (1, 3), (9, 64), (4, 130)])
def test_rows_at_the_end_of_memory(target: str, shape: tuple[int, int]):
    """Pages before and behind are not mapped."""
    x, y = (at_the_end_of_memory(shape) for _ in range(2))
    x[:] = np.random.default_rng(1).standard_normal(shape, dtype=np.float32)
    run(rows_of_tiles, [x, y], target)
    np.testing.assert_array_equal(y, x * 2)


T = ts.dtype_var("T", ts.f32, ts.bf16)


@ts.kernel
def down_columns(x: ts.Tensor["m", "n", T], y: ts.Tensor["n", T], fn: ts.constexpr):
    for j in ts.tile.grid((n, 64)):
        block = ts.tile.load(x[0:64, j : j + 64], fill=0.0 if fn == "sum" else -float("inf"))
        y[j : j + 64] = ts.tile.reduce(block.to(ts.f32), 0, fn)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("fn", ["sum", "max"])
def test_columns_are_reduced_as_far_as_they_go(fn: str, dtype: Any) -> None:
    for m, n in [(1, 70), (3, 64), (41, 130), (63, 17), (64, 64), (66, 65)]:
        held = np.full((80, n), np.nan).astype(dtype)
        held[:m] = RNG.integers(-9, 9, (m, n)).astype(dtype)
        y = np.zeros(n, dtype)
        down_columns(held[:m], y, fn)
        exact = getattr(held[: min(m, 64)].astype(np.float64), fn)(0)
        np.testing.assert_array_equal(y, exact.astype(dtype))  # small integers: sums in f32 are exact


@ts.kernel
def running(x: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["m", "n", ts.f32], size: ts.constexpr, back: ts.constexpr):
    for i in ts.tile.grid((m, 1)):
        y[i, 0:size] = ts.tile.cumsum(x[i, 0:size], 0, reverse=back)


@pytest.mark.parametrize("back", [False, True])
def test_running_sums_of_rows_of_any_length(back: bool) -> None:
    order = slice(None, None, -1 if back else 1)
    for size in (1, 2, 7, 16, 17, 48, 89):
        x = RNG.integers(-9, 9, (3, size)).astype(np.float32)
        y = np.zeros_like(x)
        running(x, y, size, back)
        np.testing.assert_array_equal(y, x[:, order].cumsum(1)[:, order])  # small integers: sums are exact
