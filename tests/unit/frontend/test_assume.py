"""`ts.assume`: what it tells the compiler, what it refuses, and what calls are refused."""

import re

import numpy as np
import pytest

import tessera as ts
from tests.unit.frontend.support import built, ops


def _infos(kernel):
    found = ops(built(kernel), "kernel")
    return {info.name: info for info in found[0].infos}


def test_divisors_and_bounds_reach_the_arguments():
    def kernel(x: ts.Tensor["M", "N", ts.f32], y: ts.Tensor["N", ts.f32], k: ts.i32, u: ts.u8, n: int):
        ts.assume(N % 48 == 0)
        ts.assume(N % 32 == 0 and k % 8 == 0)
        ts.assume(3 < k)
        ts.assume(k <= 70)
        ts.assume(u == 12)
        ts.assume(n >= -5)
        for i in ts.tile.grid((M, 1)):
            x[i, 0:8] = ts.tile.cast(k + u + n, ts.f32)

    infos = _infos(kernel)
    assert infos["x"].dim_div == (1, 96)
    assert infos["y"].dim_div == (96,)
    assert (infos["k"].multiple, infos["k"].low, infos["k"].high) == (8, 4, 70)
    assert (infos["u"].multiple, infos["u"].low, infos["u"].high) == (12, 12, 12)
    assert (infos["n"].multiple, infos["n"].low, infos["n"].high) == (1, -5, None)


def test_what_is_not_understood_is_only_checked():
    def kernel(x: ts.Tensor["M", "N", ts.f32], k: int, flag: ts.bool_):
        ts.assume(M * N % 16 == 0)
        ts.assume((k % 8 == 0) | flag)
        ts.assume(k < N)
        ts.assume(M != 3)
        for i in ts.tile.grid((M, 1)):
            x[i, 0:8] = 1.0

    infos = _infos(kernel)
    assert infos["x"].dim_div == (1, 1)
    assert (infos["k"].multiple, infos["k"].low, infos["k"].high) == (1, None, None)
    assert len(ops(built(kernel), "assume")) == 4


def _refused(kernel, code, text):
    with pytest.raises(ts.LanguageError, match=text) as caught:
        built(kernel, {"N": 16})
    assert caught.value.code == code
    assert caught.value.location is not None


def test_what_the_host_cannot_check_is_refused():
    def of_an_element(x: ts.Tensor["N", ts.i32]):
        for i in ts.tile.grid((N, 1)):
            ts.assume(x[i] == 0)

    def of_an_offset(x: ts.Tensor["N", ts.i32]):
        for i in ts.tile.grid((N, 1)):
            ts.assume(i < 8)
            x[i] = 1

    def of_a_float(x: ts.Tensor["N", ts.i32], f: ts.f32):
        ts.assume(f > 0)
        x[0:4] = 1

    def of_a_tile(x: ts.Tensor["N", ts.i32]):
        ts.assume(x[0:4] == 0)
        x[0:4] = 1

    for kernel in (of_an_element, of_an_offset, of_a_float):
        _refused(kernel, "bad-assumption", "what the host does not know")
    with pytest.raises(ts.TesseraError) as caught:
        built(of_a_tile)
    assert caught.value.code in ("bad-assumption", "shape-mismatch")


def test_conditions_are_said_of_the_whole_call():
    def in_a_loop(x: ts.Tensor["N", ts.i32], k: int):
        for i in ts.tile.grid((N, 1)):
            for _ in ts.tile.range(k):
                ts.assume(k > 0)
            x[i] = 1

    def in_a_branch(x: ts.Tensor["N", ts.i32], k: int):
        for i in ts.tile.grid((N, 1)):
            if k > 3:
                ts.assume(k % 2 == 0)
            x[i] = 1

    for kernel in (in_a_loop, in_a_branch):
        _refused(kernel, "bad-assumption", "inside a loop or a branch")

    def no_condition(x: ts.Tensor["N", ts.i32]):
        ts.assume(3)
        x[0:4] = 1

    _refused(no_condition, "bad-assumption", "which is not bool")


@ts.kernel
def shifted(x: ts.Tensor["M", "N", ts.f32], y: ts.Tensor["M", "N", ts.f32], k: ts.i32):
    for i, j in ts.tile.grid((M, 1), (N, 128)):
        ts.assume(N % 128 == 0)  # said of the call, wherever it stands
        ts.assume(0 <= k and k % 8 == 0)
        y[i, j : j + 128] = x[i, k + j : k + j + 128]


def _call(m: int, n: int, k: int, kernel=shifted) -> np.ndarray:
    x = np.random.default_rng(1).random((m, n), np.float32)
    y = np.zeros_like(x)
    kernel(x, y, k)
    wanted = np.zeros_like(x)
    wanted[:, : n - k] = x[:, k:]
    assert np.array_equal(y, wanted)
    return y


@pytest.mark.parametrize("interpreted", [False, True])
def test_calls_for_which_it_does_not_hold_run_nothing(monkeypatch, interpreted):
    monkeypatch.setenv("TESSERA_INTERPRET", str(int(interpreted)))
    for _ in range(3):  # compiled, from the variants, by the compiled entry
        _call(3, 256, 8)
        for n, k, said in ((250, 8, "N = 250"), (256, 9, "k = 9"), (256, -8, "k = -8")):
            y = np.full((3, n), 7, np.float32)
            with pytest.raises(ts.CallError, match=f"shifted assumes what does not hold for .*{said}") as caught:
                shifted(np.zeros((3, n), np.float32), y, k)
            assert caught.value.code == "assumption"
            assert "ts.assume(" in str(caught.value)
            assert (y == 7).all()
        _call(3, 384, 16)


def test_artefacts_check_it_too(tmp_path):
    artifact = ts.compile(shifted, target="cpu")
    artifact.save(tmp_path / "shifted.tsk")
    loaded = ts.load(tmp_path / "shifted.tsk")
    _call(2, 256, 16, loaded)
    for n, k in ((250, 8), (256, 9)):
        with pytest.raises(ts.CallError) as caught:
            loaded(np.zeros((3, n), np.float32), np.zeros((3, n), np.float32), k)
        assert caught.value.code in ("assumption", "artifact-guard")
    assert len(artifact.reflection["assumptions"]) == 2


def _accesses(kernel) -> set[str]:
    return set(re.findall(r"(?:ld|st)\.global\S*", ts.compile(kernel, target="sm_90a", dump=["ptx"]).dumps["ptx"]))


def test_accesses_are_wide_where_it_says_so():
    @ts.kernel
    def unknown(x: ts.Tensor["M", "N", ts.f32], y: ts.Tensor["M", "N", ts.f32], k: ts.i32):
        for i, j in ts.tile.grid((M, 1), (N, 128)):
            y[i, j : j + 128] = x[i, k + j : k + j + 128]

    assert not any("v4" in access for access in _accesses(unknown))
    assert {"ld.global.v4.b32", "st.global.v4.b32"} <= _accesses(shifted)


def test_constants_are_checked_when_it_is_compiled():
    @ts.kernel
    def kernel(x: ts.Tensor["N", ts.f32], block: ts.constexpr = 8):
        ts.assume(block % 4 == 0)
        for i in ts.tile.grid((N, block)):
            x[i : i + block] = 1.0

    x = np.zeros(20, np.float32)
    kernel(x)
    assert (x == 1).all()
    with pytest.raises(ts.CallError) as caught:
        kernel(x, block=6)
    assert caught.value.code == "assumption"
