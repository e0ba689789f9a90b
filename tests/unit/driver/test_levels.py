"""Dumps of every level, edited or not, are compiled further from where they are."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import pytest

import tessera as ts
from tessera.driver.levels import level_of
from tessera.driver.loaded import LoadedKernel
from tessera.driver.pipeline import CANONICALIZE, schedule_passes
from tessera.driver.settings import settings
from tessera.errors import CallError, CompilerFault, TesseraError, VerifyError
from tessera.platforms import PLATFORMS
from tessera.schedule.knobs import Knobs
from tessera.target.artifact import Artifact
from tessera.target.registry import register as register_platform
from tessera.target.registry import target_named, unregister
from tests.unit.platforms.wave64 import Wave64

TARGETS = ("cpu", "sm_80", "sm_90a")
LEVELS = ("tirh", "tirt", "ll", "ptx")


def levels(target: str) -> tuple[str, ...]:
    """Return the levels of a target that compilation can go on from."""
    return LEVELS if target.startswith("sm_") else LEVELS[:3]


@ts.kernel
def axpy(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], a: ts.f32):
    for i in ts.tile.grid((n, 256)):
        y[i : i + 256] = a * x[i : i + 256] + y[i : i + 256]
    return y


@ts.kernel
def row_sum(x: ts.Tensor["m", "n", ts.f32], out: ts.Tensor["m", ts.f32]):
    for i in ts.tile.grid((m, 16)):
        out[i : i + 16] = ts.tile.sum(x[i : i + 16, :], 1)
    return out


@ts.kernel.autotune(space={"stages": [2], "num_warps": [4]})
def gemm(a: ts.Tensor["m", "k", ts.bf16], b: ts.Tensor["k", "n", ts.bf16], c: ts.Tensor["m", "n", ts.f32]):
    for i, j in ts.tile.grid((m, 64), (n, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for s in ts.tile.range(0, k, 64):
            acc = ts.tile.mma(a[i : i + 64, s : s + 64], b[s : s + 64, j : j + 64], acc)
        c[i : i + 64, j : j + 64] = acc
    return c


@ts.kernel
def look_up(table: ts.Tensor["v", "d", ts.f32], rows: ts.Tensor["n", ts.i32], out: ts.Tensor["n", "d", ts.f32]):
    for i in ts.tile.grid((n, 8)):
        out[i : i + 8, :] = table[rows[i : i + 8], :]
    return out


@ts.kernel
def two_grids(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], z: ts.Tensor["n", ts.f32]):
    for i in ts.tile.grid((n, 128)):
        y[i : i + 128] = x[i : i + 128] + 1.0
    for i in ts.tile.grid((n, 64)):
        z[i : i + 64] = y[i : i + 64] * 2.0
    return y, z


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


def rounded(*shape: int) -> np.ndarray:
    """Return small integers: they are bf16 numbers, and their products sum up exactly in f32."""
    return np.random.default_rng(8).integers(-4, 5, shape).astype(np.float32)


ROWS = np.array([5, 0, 11, 3, 3, 8, 1, 2, 10, 7, 4], np.int32)
A, B = rounded(70, 130), rounded(130, 90)
X, TABLE = normal(1000), normal(12, 32)

KERNELS = {
    "axpy": (axpy, {}, (X, X.copy(), 2.0), [(2 * X.astype(np.float64) + X)]),
    "row_sum": (row_sum, {"n": 100}, (A[:, :100].copy(), np.zeros(70, np.float32)), [A[:, :100].sum(1, np.float64)]),
    "gemm": (gemm, {}, (A, B, np.zeros((70, 90), np.float32)), [A.astype(np.float64) @ B]),
    "look_up": (look_up, {"d": 32}, (TABLE, ROWS, np.zeros((11, 32), np.float32)), [TABLE[ROWS]]),
    "two_grids": (two_grids, {}, (X, X.copy(), X.copy()), [X + 1.0, (X + 1.0) * 2.0]),
}
"""Kernels with dims to compile for, arguments of a call, and what it returns."""

CACHE: dict[tuple[str, str], Artifact] = {}


def compiled(name: str, target: str) -> Artifact:
    """Return a kernel with the dumps of all levels."""
    if (name, target) not in CACHE:
        kernel, dims, *_ = KERNELS[name]
        if name == "gemm" and target == "sm_90a":
            dims = {"m": 512, "n": 512, "k": 512}  # so that it gets warp roles
        CACHE[name, target] = ts.compile(kernel, target=target, dims=dims, dump=levels(target))
    return CACHE[name, target]


def facts(artifact: Artifact) -> dict[str, object]:
    """Return all facts but times."""
    return {name: fact for name, fact in artifact.reflection.items() if name != "passes_ms"}


def arguments(name: str) -> list[object]:
    values = KERNELS[name][2]
    made = []
    for place, value in enumerate(values):
        if not isinstance(value, np.ndarray):
            made.append(value)
            continue
        dtype = ts.bf16 if name == "gemm" and place < 2 else {"f": ts.f32, "i": ts.i32}[value.dtype.kind]
        array = ts.empty(value.shape, dtype)
        array[...] = value
        made.append(array)
    return made


@ts.kernel
def asserting(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    for i in ts.tile.grid((n, 64)):
        t = x[i : i + 64]
        assert ts.tile.max(t) < 5.0, "too large"
        y[i : i + 64] = t


@pytest.mark.parametrize("target", ["cpu", "sm_80"])
def test_assertions_keep_their_place_in_the_source(target, monkeypatch):
    monkeypatch.setattr(settings(), "debug", True)
    straight = ts.compile(asserting, target=target, dump=levels(target))
    for level, text in straight.dumps.items():
        again = ts.compile(str(text))
        assert again.code == straight.code, level
        assert again.reflection.get("asserts") == straight.reflection.get("asserts")
    assert "test_levels.py" in str(straight.dumps["tirt"])


def test_kernels_have_all_levels_of_their_target():
    for target in TARGETS:
        wanted = ["tirh", "tirt", "ll", *(["ptx"] if target.startswith("sm") else [])]
        assert list(compiled("axpy", target).dumps) == wanted


@pytest.mark.parametrize(("name", "target"), [*product(KERNELS, TARGETS), ("axpy", "x86-64-v3")])
def test_each_level_gives_the_same_code(name, target):
    straight = compiled(name, target)
    for level, text in straight.dumps.items():
        later = [one for one in LEVELS[LEVELS.index(level) :] if one in straight.dumps]
        again = ts.compile(str(text), dump=later)
        assert again.code == straight.code, level
        assert (again.name, again.target, again.code_kind) == (straight.name, straight.target, straight.code_kind)
        assert again.launches == straight.launches
        assert (again.args, again.returns, again.requires) == (straight.args, straight.returns, straight.requires)
        assert facts(again) == facts(straight)
        assert again.dumps == {one: straight.dumps[one] for one in later}


@pytest.mark.parametrize("level", ["tirh", "tirt", "ll"])
@pytest.mark.parametrize("name", KERNELS)
def test_continued_kernels_run(name, level, tmp_path):
    path = tmp_path / f"kernel.{level}"
    path.write_text(str(compiled(name, "cpu").dumps[level]), encoding="utf-8")
    ts.compile(path).save(tmp_path / "kernel.tessera")
    got = ts.load(tmp_path / "kernel.tessera")(*arguments(name))
    wanted = KERNELS[name][3]
    for one, value in zip(got if isinstance(got, tuple) else (got,), wanted, strict=True):
        np.testing.assert_allclose(np.asarray(one), value, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize(
    ("level", "old", "new"),
    [
        ("tirh", "constant 2.000000e+00 : f32", "constant 3.0 : f32"),
        ("tirt", "constant 2.000000e+00 : f32", "constant 3.0 : f32"),
        ("ll", "splat (float 0x4000000000000000)", "splat (float 3.0)"),
    ],
)
def test_edits_count(level, old, new):
    text = str(compiled("two_grids", "cpu").dumps[level])
    assert old in text
    x, y, z = arguments("two_grids")
    LoadedKernel(ts.compile(text.replace(old, new)))(x, y, z)
    np.testing.assert_allclose(np.asarray(z), (X + 1.0) * 3.0, rtol=1e-6)


@pytest.mark.parametrize("target", ["cpu", "sm_80", "sm_90a"])
def test_the_dump_of_every_pass_is_continued(target, tmp_path, monkeypatch):
    monkeypatch.setenv("TESSERA_DUMP_DIR", str(tmp_path))
    straight = ts.compile(gemm, target=target, dims={"m": 512, "n": 512, "k": 512})
    monkeypatch.delenv("TESSERA_DUMP_DIR")
    paths = sorted(tmp_path.glob("*.mlir"))
    assert {path.name.split("-")[1] for path in paths} >= {"canonicalize", "lower"}
    for path in paths:
        assert ts.compile(path).code == straight.code, path.name


def test_passes_of_a_stage_have_names_of_their_own():
    """The name of the last pass is where a dump goes on."""
    for platform in PLATFORMS:
        for target in platform.targets:
            for passes in (CANONICALIZE, schedule_passes(target_named(target), Knobs())):
                names = [one.name for one in passes]
                assert len({*names}) == len(names)


def test_tiles_from_before_scheduling_go_to_any_target(tmp_path, monkeypatch):
    monkeypatch.setenv("TESSERA_DUMP_DIR", str(tmp_path))
    ts.compile(axpy, target="cpu")
    monkeypatch.delenv("TESSERA_DUMP_DIR")
    path = sorted(tmp_path.glob("*-canonicalize-*.mlir"))[-1]
    again = ts.compile(path, target="sm_80", dump=["ptx"])
    assert again.target == "sm_80"
    assert ".target sm_80" in again.dumps["ptx"]
    assert again.code == compiled("axpy", "sm_80").code


def test_texts_are_told_apart():
    assert [level_of(str(text)) for text in compiled("axpy", "sm_80").dumps.values()] == ["mlir", "mlir", "ll", "ptx"]
    assert level_of(ts.compile(axpy, target="cpu", dump=["asm"]).dumps["asm"]) == "asm"


EDITS = [
    ("cpu", "tirt", '"mul"(%', '"mux"(%', VerifyError, "no elementwise function mux"),
    ("cpu", "tirt", "tessera_target.program_id", "tessera_target.nobody", VerifyError, "not registered"),
    ("cpu", "tirt", 'kind = "pointer"', 'kind = "poynter"', VerifyError, "kind is 'poynter'"),
    ("cpu", "tirt", 'kind = "pointer", ', "", VerifyError, "KeyError: 'kind'"),
    ("cpu", "tirt", "arg = #builtin.int<1>", "arg = #builtin.int<7>", VerifyError, "argument 7, which is not a tensor"),
    ("cpu", "tirt", "22size", "22siz", VerifyError, "not a grid expression"),
    ("cpu", "tirt", 'dtype = "f32", dims', 'dtype = "f33", dims', VerifyError, "tessera.args[0].dtype is 'f33'"),
    ("cpu", "tirt", "tessera.args", "tessera.arx", VerifyError, "lacks 'args'"),
    ("cpu", "ll", "getelementptr", "getelementpointer", VerifyError, "expected instruction opcode"),
    ("cpu", "ll", "ret void", "%u = add i64 %w, 1\n  %w = add i64 1, %u\n  ret void", VerifyError, "dominate"),
    ("cpu", "ll", "@axpy(", "@other(", VerifyError, "the entry axpy"),
    ("cpu", "ll", '"name": "x"', '"name": x', VerifyError, "not JSON"),
    ("cpu", "ll", '["size", 0, 0]', '["size", 9, 0]', VerifyError, "argument 9, which is not a tensor"),
    ("sm_80", "ll", "getelementptr", "getelementpointer", VerifyError, "expected instruction opcode"),
    ("sm_80", "ll", "mov.b32 $0, 0;", "mov.b99 $0, 0;", CompilerFault, "'.b99'"),
    ("sm_80", "ptx", "fma.rn.f32", "fma.xx.f32", VerifyError, ".xx"),
    ("sm_80", "tirt", "num_warps = #builtin.int<8>", "num_warps = #builtin.int<0>", VerifyError, "one warp or more"),
    ("sm_80", "tirh", 'after = "schedule: ', 'after = "schedule: bed', VerifyError, "not a pass of the target"),
    ("sm_80", "tirh", 'after = "schedule: ', 'after = "sometime: ', VerifyError, "not a stage and pass"),
    ("sm_80", "tirh", "tessera.knobs = {", "tessera.knobs = {num_warps = 3 : i64", TesseraError, "one of 1, 2, 4"),
    ("sm_80", "tirh", "tessera.knobs = {", "tessera.knobs = {warp = 3 : i64", TesseraError, "no knob of the schedule"),
    ("sm_80", "tirh", "tessera.target", "tessera_target", CallError, "does not say its target"),
]


@pytest.mark.parametrize(("target", "level", "old", "new", "kind", "message"), EDITS)
def test_wrong_edits_are_typed_errors_with_the_line(target, level, old, new, kind, message, tmp_path):
    text = str(compiled("axpy", target).dumps[level])
    assert old in text
    path = tmp_path / f"axpy.{level}"
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(kind) as caught:
        ts.compile(path)
    assert message in caught.value.message
    if kind is VerifyError:
        location = caught.value.location
        assert location is not None
        assert location.frame.file == str(path)
        changed = next(n for n, line in enumerate(path.read_text().split("\n"), 1) if new.split("\n")[0] in line)
        of_the_whole = {1, 2, text[: text.find(".func")].count("\n") + 1}
        assert location.frame.line in {changed, changed + 1, *of_the_whole}


def test_a_fault_of_llvm_does_not_end_the_process():
    text = str(compiled("axpy", "cpu").dumps["ll"])
    call = "%alien = call i32 @llvm.amdgcn.workitem.id.x()\n  store volatile i32 %alien, ptr %params\n  ret void"
    edited = text.replace("ret void", call, 1) + "declare i32 @llvm.amdgcn.workitem.id.x()\n"
    with pytest.raises(VerifyError, match="Cannot select"):
        ts.compile(edited)


def test_edits_may_change_the_uses_of_values():
    text = str(compiled("gemm", "sm_90a").dumps["ll"])
    value = re.search(r"uselistorder i64 (%p\d+), ", text)
    assert value is not None
    edited = text.replace("entry:\n", f"entry:\n  %more = add i64 {value[1]}, 1\n", 1)
    assert ts.compile(edited).launches == compiled("gemm", "sm_90a").launches


def test_an_op_that_cannot_be_emitted_has_its_line(tmp_path):
    text = str(compiled("gemm", "sm_80").dumps["tirt"])
    path = tmp_path / "gemm.tirt"
    path.write_text(text.replace('"m16n8k16_bf16_bf16_f32"', '"m1n1k1"'))
    with pytest.raises(TesseraError) as caught:
        ts.compile(path)
    assert caught.value.location is not None
    line = path.read_text().split("\n")[caught.value.location.frame.line - 1]
    assert "m1n1k1" in line


@pytest.mark.parametrize(("level", "comment"), [("ll", ";"), ("ptx", "//")])
def test_code_without_its_comment_lines_is_refused(level, comment):
    text = str(compiled("axpy", "sm_80").dumps[level])
    bare = "".join(line for line in text.splitlines(True) if not line.startswith(f"{comment} tessera."))
    with pytest.raises(CallError, match="does not say what kernel") as caught:
        ts.compile(bare)
    assert caught.value.code == "no-record"
    assert "comment lines at its start" in (caught.value.help or "")


@pytest.mark.parametrize(
    ("level", "options", "code"),
    [
        ("tirh", {"target": "sm_90a"}, "wrong-target"),
        ("tirt", {"target": "sm_90a"}, "wrong-target"),
        ("ptx", {"target": "cpu"}, "wrong-target"),
        ("tirt", {"dump": ["tirh"]}, "no-such-level"),
        ("tirt", {"dump": ["asm"]}, "no-such-level"),
        ("ptx", {"dump": ["ptx", "ll"]}, "no-such-level"),
        ("tirt", {"dims": {"n": 3}}, "bad-argument"),
        ("tirt", {"BM": 3}, "bad-argument"),
    ],
)
def test_wrong_options(level, options, code):
    with pytest.raises(CallError) as caught:
        ts.compile(str(compiled("axpy", "sm_80").dumps[level]), **options)
    assert caught.value.code == code


def test_assembly_and_missing_files_are_refused(tmp_path):
    with pytest.raises(CallError, match="nothing is compiled further from asm"):
        ts.compile(ts.compile(axpy, target="cpu", dump=["asm"]).dumps["asm"])
    with pytest.raises(CallError) as caught:
        ts.compile(str(tmp_path / "none.tirt"))
    assert caught.value.code == "no-such-file"


def test_a_platform_that_continues_no_texts_of_code_continues_tir():
    register_platform(Wave64())
    try:
        straight = ts.compile(axpy, target="gfx90a", dump=["tirh", "tirt"])
        for text in straight.dumps.values():
            assert ts.compile(str(text)).code == straight.code
        with pytest.raises(CallError, match="gfx90a has no level 'ptx'") as caught:
            ts.compile(str(straight.dumps["tirt"]), dump=["ptx"])
        assert caught.value.help == "one of tirt, ll, asm"
    finally:
        unregister("wave64")
