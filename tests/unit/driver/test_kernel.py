"""Calling kernels on the CPU and on the interpreter."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import warnings
import weakref

import ml_dtypes
import numpy as np
import pytest

import tessera as ts
from tessera.driver import variants
from tessera.driver.kernel import kernel as kernel_decorator
from tessera.driver.settings import settings
from tessera.errors import CallError, DeviceError, LanguageError, ResourceError
from tests.unit.foreign import Foreign

SAXPY = """
import numpy as np, sys
import tessera as ts

@ts.kernel
def saxpy(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], alpha: ts.f32 = 2.0):
    i = ts.tile.linear_id()
    if i < n:
        y[i] = alpha * x[i] + y[i]
    return y

if __name__ == "__main__":
    x, y = np.arange(1000, dtype=np.float32), np.ones(1000, np.float32)
    saxpy(x, y)
    assert np.array_equal(y, 2 * x + 1)
    print(saxpy.explain().origin, "xdsl" in sys.modules)
"""


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
    BM: ts.constexpr = 4,
):
    for m, k in ts.tile.grid((M, BM), (N, 8)):
        out[m : m + BM, k : k + 8] = x[m : m + BM, k : k + 8] * ts.tile.reshape(s[m : m + BM], (BM, 1))
    return out


@ts.kernel
def row_sum(x: ts.Tensor["M", "N", ts.f32], out: ts.Tensor["M", ts.f32]):
    for (m,) in ts.tile.grid((M, 1)):
        out[m : m + 1] = ts.tile.row_sum(x[m : m + 1, 0:N])
    return out


@ts.kernel
def swap(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    i = ts.tile.linear_id()
    if i < n:
        a = x[i]
        x[i] = y[i]
        y[i] = a
    return y, x


def arrays(count=1000):
    return np.arange(count, dtype=np.float32), np.ones(count, np.float32)


def code_of(call):
    with pytest.raises(CallError) as caught:
        call()
    return caught.value.code


def test_the_kernel_looks_like_its_function():
    assert saxpy.__name__ == "saxpy"
    assert saxpy.__doc__ == "Compute y = alpha * x + y."
    assert saxpy.__wrapped__.__name__ == "saxpy"


@pytest.mark.parametrize("count", [0, 1, 7, 1000, 4096, 100_003])
def test_a_call_computes_in_place_and_returns_the_callers_object(count):
    x, y = arrays(count)
    result = saxpy(x, y, 0.5)
    assert result is y
    np.testing.assert_array_equal(y, 0.5 * x + 1)


def test_several_results_come_back_in_order():
    x, y = arrays(10)
    first, second = swap(x, y)
    assert first is y
    assert second is x
    np.testing.assert_array_equal(y, np.arange(10))


def test_keywords_and_defaults():
    x, y = arrays()
    saxpy(y=y, x=x)
    np.testing.assert_array_equal(y, 2 * x + 1)


@pytest.mark.parametrize("view", [lambda a: a[::2], lambda a: a[::-1], lambda a: a[3:], lambda a: a[5:6]])
def test_strided_reversed_and_offset_views(view):
    x, y = arrays()
    wanted = y.copy()
    view(wanted)[...] = 3 * view(x) + 1
    saxpy(view(x), view(y), 3.0)
    np.testing.assert_array_equal(y, wanted)


def test_broadcast_inputs_are_fine():
    y = np.ones(100, np.float32)
    saxpy(np.broadcast_to(np.float32(2), 100), y, 1.0)
    np.testing.assert_array_equal(y, np.full(100, 3))


def test_transposed_and_padded_matrices():
    x = np.arange(60, dtype=np.float32).reshape(10, 6).T
    out = np.zeros((6, 16), np.float32)[:, 3:13]
    scales = np.arange(6, dtype=np.float32)
    scale_rows(x, scales, out)
    np.testing.assert_array_equal(out, x * scales[:, None])


def test_constexprs_make_variants():
    x, s = np.ones((9, 8), np.float32), np.arange(9, dtype=np.float32)
    for block in (1, 2, 4):
        out = np.zeros_like(x)
        scale_rows(x, s, out, block)
        np.testing.assert_array_equal(out, x * s[:, None])
    assert code_of(lambda: scale_rows(x, s, x.copy(), [4])) == "wrong-constexpr"


def test_a_size_needed_at_compile_time_makes_a_variant_per_size():
    for count in (5, 64, 5):
        x = np.random.default_rng(0).standard_normal((3, count)).astype(np.float32)
        out = row_sum(x, np.zeros(3, np.float32))
        np.testing.assert_allclose(out, x.astype(np.float64).sum(1), rtol=1e-5)
        assert row_sum.explain().fixed == {"N": count}


def test_calls_of_one_kind_share_a_variant_and_a_plan():
    x, y = arrays(48)
    saxpy(x, y)
    before = dict(saxpy._plans)
    saxpy(x.copy(), y.copy(), 7.0)
    assert dict(saxpy._plans) == before or len(saxpy._plans) - len(before) <= 1  # the copies may be aligned otherwise


def test_plans_do_not_grow_without_bound(monkeypatch):
    monkeypatch.setattr(sys.modules["tessera.driver.calls"], "_MAX_PLANS", 4)
    for count in range(1, 20):
        saxpy(*arrays(count))
    assert len(saxpy._plans) <= 4


def test_errors_name_code_and_place():
    x, y = arrays()
    assert code_of(lambda: saxpy(x)) == "argument-count"
    assert code_of(lambda: saxpy(x, y, 1.0, 2)) == "argument-count"
    assert code_of(lambda: saxpy(x, y, beta=1.0)) == "unknown-keyword"
    assert code_of(lambda: saxpy(x, y[:5])) == "wrong-shape"
    assert code_of(lambda: saxpy(x.astype(np.float64), y)) == "wrong-dtype"
    assert code_of(lambda: saxpy(x[None], y)) == "wrong-rank"
    assert code_of(lambda: saxpy([1.0], y)) == "not-an-array"
    assert code_of(lambda: saxpy(x, y, "a")) == "wrong-scalar"
    assert code_of(lambda: saxpy(x, np.broadcast_to(np.float32(0), 1000))) == "read-only"
    assert code_of(lambda: saxpy(x.astype(">f4"), y)) == "byte-order"
    with pytest.raises(CallError) as caught:
        saxpy(x, y[:5])
    assert caught.value.location.frame.file == __file__
    assert "'x'" in str(caught.value)
    assert "'y'" in str(caught.value)


def test_misaligned_elements_are_an_error():
    raw = np.zeros(41, np.uint8)
    assert code_of(lambda: saxpy(raw[1:].view(np.float32), np.zeros(10, np.float32))) == "misaligned"


def test_explain_tells_what_ran():
    @ts.kernel
    def fresh(x: ts.Tensor["n", ts.f32]):
        i = ts.tile.linear_id()
        if i < n:
            x[i] = x[i] + 1.0

    assert code_of(fresh.explain) == "never-run"
    assert fresh(np.zeros(8, np.float32)) is None
    ran = fresh.explain()
    assert (ran.kernel, ran.backend, ran.device, ran.profile) == ("fresh", "cpu", "cpu", "fast")
    assert ran.origin in ("compiled", "disk cache")
    assert "kernel fresh" in str(ran)


def test_profiles_make_variants():
    x, y = arrays(10)
    with ts.numerics.profile("strict"):
        saxpy(x, y)
        assert saxpy.explain().profile == "strict"
    saxpy(x, y)
    assert saxpy.explain().profile == "fast"


@pytest.mark.parametrize("interpret", [False, True])
def test_low_precision_arrays(interpret, monkeypatch):
    @ts.kernel
    def double(x: ts.Tensor["n", ts.bf16]):
        i = ts.tile.linear_id()
        if i < n:
            x[i] = x[i] * 2.0
        return x

    monkeypatch.setattr(settings(), "interpret", interpret)
    x = np.arange(50).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(double(x).astype(np.float32), 2 * np.arange(50))


def test_the_interpreter_runs_the_same_kernel(monkeypatch):
    monkeypatch.setattr(settings(), "interpret", True)
    kernel = kernel_decorator(saxpy.__wrapped__)
    x, y = arrays(100)
    assert kernel(x[::-1], y, 0.5) is y
    np.testing.assert_array_equal(y, 0.5 * x[::-1] + 1)
    assert kernel.explain().backend == "interp"


def test_dlpack_arrays_come_back_as_they_are():
    x, y = arrays(100)
    foreign = Foreign(y)
    assert saxpy(x, foreign) is foreign
    np.testing.assert_array_equal(y, 2 * x + 1)


def test_a_stream_of_any_device_may_be_named_on_the_host():
    class Stream:
        cuda_stream = 5

    x, y = arrays(8)
    for stream in (None, 0, 7, Stream()):
        saxpy(x, y, stream=stream)
    with pytest.raises(CallError) as caught:
        saxpy(x, y, stream="main")
    assert caught.value.code == "bad-stream"


def test_many_threads_call_one_kernel():
    failures = []

    def caller(seed):
        rng = np.random.default_rng(seed)
        for _ in range(30):
            count = int(rng.integers(1, 3000))
            x, y = rng.standard_normal((2, count)).astype(np.float32)
            wanted = np.float32(0.5) * x + y
            saxpy(x, y, 0.5)
            if not np.allclose(y, wanted, atol=1e-6):
                failures.append(count)

    threads = [threading.Thread(target=caller, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_device_assert_is_an_error(monkeypatch):
    monkeypatch.setattr(settings(), "debug", True)

    @ts.kernel
    def checked(x: ts.Tensor["n", ts.f32]):
        i = ts.tile.linear_id()
        if i < n:
            v = x[i]
            assert v >= 0.0, "negative input"
            x[i] = v

    checked(np.ones(100, np.float32))
    with pytest.raises(DeviceError) as caught:
        checked(np.full(100, -1, np.float32))
    assert caught.value.code == "device-assert"
    assert "negative input" in caught.value.message
    checked(np.ones(100, np.float32))


def test_autotune_takes_the_first_valid_point(monkeypatch):
    @ts.kernel.autotune(space=dict(BN=[16, 32], BM=[2, 4]), key=("M", "N"))
    def copy(x: ts.Tensor["M", "N", ts.f32], out: ts.Tensor["M", "N", ts.f32], BM: ts.constexpr):
        ctx = ts.tile.context()
        for m, k in ts.tile.grid((M, BM), (N, ctx.BN)):
            out[m : m + BM, k : k + ctx.BN] = x[m : m + BM, k : k + ctx.BN]
        return out

    tried = []
    real = variants.compile_point

    def choosy(signature, spec, point, *rest):
        tried.append(dict(point))
        if point["BN"] == 16:
            raise ResourceError("too much shared memory", code="shared-memory")
        return real(signature, spec, point, *rest)

    monkeypatch.setattr(variants, "compile_point", choosy)
    x = np.random.default_rng(1).standard_normal((5, 40)).astype(np.float32)
    np.testing.assert_array_equal(copy(x, np.zeros_like(x)), x)
    assert tried == [{"BN": 16, "BM": 2}, {"BN": 16, "BM": 4}, {"BN": 32, "BM": 2}]
    ran = copy.explain()
    assert ran.config == {"BN": 32, "BM": 2}
    assert len(ran.rejected) == 2
    np.testing.assert_array_equal(copy(x, np.zeros_like(x), 1), x)
    assert copy.explain().config["BN"] == 32

    def never(signature, spec, point, *rest):
        raise ResourceError("too much shared memory", code="shared-memory")

    monkeypatch.setattr(variants, "compile_point", never)
    with pytest.raises(ResourceError) as caught:
        copy(x, np.zeros_like(x), 3)
    assert caught.value.code == "no-valid-point"


def test_bad_autotune_arguments():
    with pytest.raises(LanguageError) as caught:
        ts.kernel.autotune(space=dict(BM=64))
    assert caught.value.code == "bad-space"
    with pytest.raises(LanguageError) as caught:
        ts.kernel.autotune(space=dict(BM=[64]), key=("Q",))(saxpy.__wrapped__)
    assert caught.value.code == "bad-key"


def run_script(path, **environment):
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_second_process_loads_from_the_cache_without_a_compiler(tmp_path):
    script = tmp_path / "sample.py"
    script.write_text(SAXPY)
    environment = {"TESSERA_CACHE_DIR": str(tmp_path / "cache")}
    assert run_script(script, **environment) == ["compiled", "True"]
    assert run_script(script, **environment) == ["disk", "cache", "False"]
    script.write_text(SAXPY.replace("alpha * x[i]", "x[i] * alpha"))
    assert run_script(script, **environment)[0] == "compiled"


NEEDLESS = """
_hashlib tempfile pathlib signal tessera.entry.tables tessera.frontend.flow tessera.driver.direct_records
""".split()
"""What a cached kernel can be run without; each takes as long to load as all that it is checked for."""


def test_a_cached_kernel_loads_little(tmp_path):
    script = tmp_path / "sample.py"
    script.write_text(
        SAXPY.replace("import numpy as np, sys\n", "import numpy as np, sys\nBEFORE = set(sys.modules)\n").replace(
            'print(saxpy.explain().origin, "xdsl" in sys.modules)',
            f"print(saxpy.explain().origin, *set({NEEDLESS}).intersection(sys.modules).difference(BEFORE))",
        )
    )
    environment = {"TESSERA_CACHE_DIR": str(tmp_path / "cache")}
    assert run_script(script, **environment)[0] == "compiled"
    assert run_script(script, **environment) == ["disk", "cache"]


def test_the_environment_switches_to_the_interpreter(tmp_path):
    script = tmp_path / "sample.py"
    script.write_text(SAXPY)
    assert run_script(script, TESSERA_INTERPRET="1") == ["interpreted", "True"]


def test_a_corrupt_cache_entry_is_compiled_again(tmp_path, monkeypatch):
    from tessera.driver import cache

    monkeypatch.setenv("TESSERA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_opened", {})
    x, y = arrays(10)
    kernel_decorator(saxpy.__wrapped__)(x, y)
    (entry,) = (tmp_path / "cache").rglob("*.art")
    entry.write_bytes(entry.read_bytes()[:100])
    again = kernel_decorator(saxpy.__wrapped__)
    with pytest.warns(ts.DiagnosticWarning, match="corrupt"):
        again(x, y)
    assert again.explain().origin == "compiled"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        third = kernel_decorator(saxpy.__wrapped__)
        third(x, y)
    assert third.explain().origin == "disk cache"


def test_a_loaded_kernel_explains_its_calls_and_plans_each_kind_once(tmp_path):
    @ts.kernel
    def double(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
        for i in ts.tile.grid((n, 16)):
            y[i : i + 16] = x[i : i + 16] * 2

    double.compile().save(tmp_path / "double.tessera")
    loaded = ts.load(tmp_path / "double.tessera")
    with pytest.raises(CallError) as caught:
        loaded.explain()
    assert caught.value.code == "never-run"
    x, y = np.arange(20, dtype=np.float32), np.zeros(20, np.float32)
    for _ in range(3):
        loaded(x, y)
    assert y.tolist() == (2 * x).tolist()
    assert loaded.explain().origin == "file"
    assert len(loaded._plans) == 1
    loaded(x[:7], y=y[:7])
    assert len(loaded._plans) == 2


_PROFILES = ("fast", "deterministic", "strict")


@pytest.mark.parametrize("own", _PROFILES)
def test_a_loaded_kernel_keeps_its_profile(own, tmp_path):
    with ts.numerics.profile(own):
        saxpy.compile().save(tmp_path / "saxpy.tessera")
    loaded = ts.load(tmp_path / "saxpy.tessera")
    x, y = arrays(40)

    def call(profile):
        with ts.numerics.profile(profile):
            loaded(x, y, 1.0)

    for _ in range(6):  # those after the first few take the compiled entry where there is one
        loaded(x, y, 1.0)
        assert loaded.explain().profile == own
        for chosen in _PROFILES:
            if chosen == own:
                call(chosen)
                assert loaded.explain().profile == own
            else:
                with pytest.raises(CallError, match=f"{own}, and is called under {chosen}") as caught:
                    call(chosen)
                assert caught.value.code == "wrong-profile"


def test_an_artefact_of_a_text_has_the_profile_of_the_text(tmp_path):
    with ts.numerics.profile("strict"):
        text = str(ts.compile(saxpy, target="cpu", dump=["tirh"]).dumps["tirh"])
    assert 'profile "strict"' in text
    assert ts.compile(text.replace('profile "strict"', 'profile "fast"')).profile == "fast"


def test_a_kernel_that_nobody_holds_is_freed():
    def made(factor: float) -> object:
        @ts.function
        def scaled(v):
            return v * factor

        @ts.kernel
        def scale(x: ts.Tensor["n", ts.f32]):
            for i in ts.tile.grid((n, 8)):
                x[i : i + 8] = scaled(x[i : i + 8])

        return scale

    kernel, x = made(3.0), np.ones(5, np.float32)
    kernel(x)
    assert (x == 3).all()
    freed = weakref.ref(kernel)
    del kernel
    gc.collect()
    assert freed() is None
