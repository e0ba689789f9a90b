"""`ts.compile` and `ts.load`."""

from __future__ import annotations

import builtins
import json
import linecache
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tessera as ts
from tessera.errors import CallError, LanguageError, TargetError
from tessera.target.schema import ArtifactError


@ts.kernel
def saxpy(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], alpha: ts.f32):
    i = ts.tile.linear_id()
    if i < n:
        y[i] = alpha * x[i] + y[i]
    return y


@ts.kernel
def scale(x: ts.Tensor["M", "N", ts.f32], out: ts.Tensor["M", "N", ts.f32], by: ts.f32, BM: ts.constexpr):
    for m, k in ts.tile.grid((M, BM), (N, 8)):
        out[m : m + BM, k : k + 8] = x[m : m + BM, k : k + 8] * by
    return out


@ts.kernel
def whole_rows(x: ts.Tensor["M", "N", ts.f32], out: ts.Tensor["M", ts.f32]):
    for (m,) in ts.tile.grid((M, 1)):
        out[m : m + 1] = ts.tile.row_sum(x[m : m + 1, 0:N])
    return out


@pytest.fixture
def saved(tmp_path):
    """Return a function that compiles for this CPU, saves and loads."""

    def make(kernel, **options):
        path = tmp_path / "kernel.tessera"
        ts.compile(kernel, target="cpu", **options).save(path)
        return ts.load(path)

    return make


@pytest.mark.parametrize(
    ("target", "names"),
    [("sm_90a", ["tirh", "tirt", "ll", "ptx", "cubin"]), ("cpu", ["tirh", "tirt", "ll", "asm"])],
)
def test_dumps_of_every_stage(target, names):
    artifact = ts.compile(saxpy, target=target, dump=names)
    assert sorted(artifact.dumps) == sorted(names)
    assert "tessera_tile.kernel" in artifact.dumps["tirh"]
    assert "tessera_target.func" in artifact.dumps["tirt"]
    assert artifact.code
    json.dumps(artifact.reflection)


@pytest.mark.parametrize(
    ("target", "missing", "there"),
    [
        ("cpu", "ptx", "tirh, tirt, ll, asm"),
        ("aarch64", "cubin", "tirh, tirt, ll, asm"),
        ("sm_90a", "asm", "tirh, tirt, ll, ptx, cubin"),
        ("sm_70", "cubin", "tirh, tirt, ll, ptx"),
    ],
)
def test_a_dump_that_the_target_lacks_is_an_error(target, missing, there):
    with pytest.raises(CallError, match=f"{target} has no level '{missing}'") as caught:
        ts.compile(saxpy, target=target, dump=["tirh", missing])
    assert (caught.value.code, caught.value.help) == ("no-such-level", f"one of {there}")


def test_a_target_without_assembler_gives_ptx():
    artifact = ts.compile(saxpy, target="sm_70", dump=["ptx"])
    assert ".target sm_70" in artifact.dumps["ptx"]


def test_the_default_target_is_this_machine():
    assert ts.compile(saxpy).backend == "cpu"
    assert saxpy.compile(target="sm_80").target == "sm_80"


def test_what_is_assumed_is_recorded():
    x = ts.compile(scale, target="sm_90a", BM=4, dims={"N": 64}).args[0]
    assert (x.align, x.strides[-1], x.stride_div[0], x.dim_div) == (16, 1, 16, (1, 16))


def test_mistakes():
    with pytest.raises(CallError) as caught:
        ts.compile(saxpy, dump=["sass"])
    assert caught.value.code == "unknown-dump"
    with pytest.raises(CallError) as caught:
        ts.compile(saxpy, dims={"m": 3})
    assert caught.value.code == "unknown-dim"
    with pytest.raises(TargetError) as wrong:
        ts.compile(saxpy, target="sm_42")
    assert wrong.value.code == "unknown-target"
    with pytest.raises(CallError) as caught:
        ts.compile(scale)
    assert caught.value.code == "argument-count"
    with pytest.raises(CallError) as caught:
        ts.compile(saxpy, BM=3)
    assert caught.value.code == "unknown-keyword"
    with pytest.raises(LanguageError) as unknown:
        ts.compile(whole_rows)
    assert unknown.value.code == "dim-not-static"


def test_an_artefact_runs_from_a_file(saved):
    kernel = saved(saxpy)
    x, y = np.arange(1000, dtype=np.float32), np.ones(1000, np.float32)
    assert kernel(x, y, 3.0) is y
    np.testing.assert_array_equal(y, 3 * x + 1)
    kernel(x, alpha=-3.0, y=y)
    np.testing.assert_allclose(y, 1)


def test_an_artefact_guards_what_it_was_compiled_for(saved):
    kernel = saved(scale, BM=4, dims={"N": 64})
    x = np.ones((3, 64), np.float32)
    np.testing.assert_array_equal(kernel(x, np.zeros_like(x), 2.0), 2 * x)

    def code(*args):
        with pytest.raises(CallError) as caught:
            kernel(*args)
        return caught.value.code

    odd = np.ones((3, 63), np.float32)
    assert code(odd, odd.copy(), 2.0) == "artifact-guard"
    assert code(np.ones((64, 3), np.float32).T, x.copy(), 2.0) == "artifact-guard"
    shifted = np.ones(3 * 64 + 4, np.float32)
    offset = next(o for o in range(4) if (shifted.ctypes.data + 4 * o) % 16)
    assert code(shifted[offset : offset + 192].reshape(3, 64), x.copy(), 2.0) == "artifact-guard"
    assert code(x, x[:2].copy(), 2.0) == "wrong-shape"
    assert code(x.astype(np.float64), x.copy(), 2.0) == "wrong-dtype"
    assert code(x) == "argument-count"
    assert code(x, np.broadcast_to(x[0], x.shape), 2.0) in ("read-only", "artifact-guard")
    for steps in ((4, 12), (36, 8), (-12, 0)):
        empty = np.lib.stride_tricks.as_strided(np.ones((9, 9), np.float32), (0, 64), steps)
        assert kernel(empty, empty, 2.0) is empty


def test_a_fixed_size_is_guarded(saved):
    kernel = saved(whole_rows, dims={"N": 48})
    x = np.random.default_rng(0).standard_normal((5, 48)).astype(np.float32)
    np.testing.assert_allclose(kernel(x, np.zeros(5, np.float32)), x.astype(np.float64).sum(1), rtol=1e-5)
    with pytest.raises(CallError, match="size 48 in dimension 1"):
        kernel(x[:, :32].copy(), np.zeros(5, np.float32))


def test_a_gpu_artefact_refuses_host_arrays(tmp_path):
    path = tmp_path / "gpu.tessera"
    ts.compile(saxpy, target="sm_90a").save(path)
    x = np.zeros(4, np.float32)
    with pytest.raises(CallError) as caught:
        ts.load(path)(x, x.copy(), 1.0)
    assert caught.value.code == "wrong-device"


def test_threads_save_one_file_whole(tmp_path):
    short, long = ts.compile(saxpy, target="cpu"), ts.compile(saxpy, target="cpu", dump=["tirt", "ll", "asm"])
    path, sizes = tmp_path / "saxpy.tessera", {len(short.to_bytes()), len(long.to_bytes())}
    short.save(path)

    def save(artifact):
        for _ in range(50):
            artifact.save(path)
            assert len(path.read_bytes()) in sizes
            ts.load(path)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(save, artifact) for artifact in (short, long) * 2]:
            done.result()
    assert [file.name for file in tmp_path.iterdir()] == ["saxpy.tessera"]


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")
def test_a_saved_file_has_the_usual_permissions(tmp_path):
    ts.compile(saxpy, target="cpu").save(tmp_path / "saxpy.tessera")
    (tmp_path / "usual").write_bytes(b"")
    assert (tmp_path / "saxpy.tessera").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_files_that_are_no_artefacts(tmp_path):
    with pytest.raises(CallError) as caught:
        ts.load(tmp_path / "none")
    assert caught.value.code == "no-such-file"
    (tmp_path / "bad").write_bytes(b"not an artefact")
    with pytest.raises(ArtifactError) as bad:
        ts.load(tmp_path / "bad")
    assert bad.value.code == "bad-artifact"


def kernels_with(name):
    """Return kernels that take something by a name: a tensor, a scalar, a constexpr, a dtype, a tensor or None."""
    texts = [
        f'(x: ts.Tensor["m", ts.f32], {name}: ts.constexpr = 2)',
        f'(x: ts.Tensor["m", ts.f32], {name}: ts.f32 = 2)',
        f'({name}: ts.Tensor["m", ts.f32], x: ts.Tensor["m", ts.f32])',
        f'(x: ts.Tensor["m", ts.f32], {name}: ts.Tensor["m", ts.f32] | None)',
    ]
    for number, text in enumerate(texts):
        source = f"@ts.kernel\ndef k{text}:\n    i = ts.tile.linear_id()\n    if i < m:\n        x[i] = x[i] + 1.0\n"
        file = f"<{name}{number}>"
        linecache.cache[file] = (len(source), None, source.splitlines(True), file)
        names = {"ts": ts}
        exec(builtins.compile(source, file, "exec"), names)
        yield names["k"]


NAMES = ("self", "kernel", "target", "dump", "dims", "strides", "stream", "args", "kwargs", "function", "name")


@pytest.mark.parametrize("name", NAMES)
def test_parameters_of_any_name(name):
    x = np.zeros(3, np.float32)
    constant, scalar, tensor, optional = kernels_with(name)
    for call in range(1, 5):
        constant(x, **{name: 2})
        scalar(x, **{name: 2.0})
        tensor(x=x, **{name: np.ones(3, np.float32)})
        optional(x, **{name: None})
        assert x.tolist() == [4.0 * call] * 3
    ts.compile(scalar)
    ts.compile(tensor)
    for kernel, value in ((constant, 5), (optional, None)):
        if name in ("target", "dump", "dims", "strides"):
            for given in ({name: value}, {}):
                with pytest.raises(CallError) as caught:
                    ts.compile(kernel, **given)
                assert caught.value.code == "reserved-name"
        else:
            ts.compile(kernel, **{name: value})
            kernel.compile(**{name: value})
