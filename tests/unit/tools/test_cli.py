"""The command line."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

import tessera as ts
from tessera.driver import cache
from tessera.errors import CallError
from tessera.runtime.host_cache import limit_bytes
from tessera.runtime.pool import thread_count
from tessera.tools.cli import main
from tessera.tools.loading import import_file

KERNEL = '''
import tessera as ts

@ts.kernel
def scale(x: ts.Tensor["n", ts.f32], by: ts.f32, K: ts.constexpr = 1):
    """Multiply."""
    i = ts.tile.linear_id()
    if i < n:
        x[i] = x[i] * by * K
    return x
'''


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "scale.py"
    path.write_text(KERNEL)
    return path


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("TESSERA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_opened", {})
    monkeypatch.setattr(sys, "path", list(sys.path))

    def invoke(*args):
        return CliRunner().invoke(main, [str(arg) for arg in args], env={"COLUMNS": "200"})

    return invoke


def test_help_lists_the_commands(run):
    result = run("--help")
    assert result.exit_code == 0
    for name in ("doctor", "compile", "opt", "run", "cache"):
        assert name in result.output
    for name in ("doctor", "compile", "cache"):
        assert run(name, "--help").exit_code == 0
    assert ts.__version__ in run("--version").output


def test_an_unknown_command_is_a_usage_error(run):
    result = run("compil")
    assert result.exit_code == 2
    assert "compil" in result.output


def test_compile_prints_text_dumps(run, file):
    result = run("compile", f"{file}:scale", "--target", "sm_80", "--dump", "tirh,ptx")
    assert result.exit_code == 0, result.output
    assert "tessera_tile.kernel @scale" in result.stdout
    assert ".target sm_80" in result.stdout
    assert "scale for sm_80" in result.stderr


def test_compile_takes_dtypes_and_what_is_missing(run, tmp_path):
    path = tmp_path / "added.py"
    path.write_text("""
import tessera as ts

T = ts.dtype_var("T", ts.f16, ts.f32)

@ts.kernel
def added(x: ts.Tensor["n", T], bias: ts.Tensor["n", T] | None = None):
    for i in ts.tile.grid((n, 64)):
        x[i : i + 64] = x[i : i + 64] + 1 if bias is None else x[i : i + 64] + bias[i : i + 64]
""")
    options = ("-t", "sm_80", "--dump", "tirh")
    assert run("compile", f"{path}:added", "-c", "T=f16", *options).stdout.count("tensor<?xf16>") >= 2
    alone = run("compile", path, "-c", "T=f32,bias=None", *options)
    assert "tensor<?xf32>" in alone.stdout
    assert '"bias"' not in alone.stdout
    refused = run("compile", path, "-c", "T=i8", *options)
    assert refused.exit_code != 0
    assert "T is i8, T is one of f16, f32" in str(refused.output) + str(refused.exception)


def test_compile_writes_a_folder(run, file, tmp_path):
    out = tmp_path / "out"
    options = ["--dims", "n=64", "--const", "K=3", "--dump", "ll", "--dump", "asm", "-o", out]
    result = run("compile", file, "-t", "cpu", *options)
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in out.iterdir()) == [
        "scale.asm",
        "scale.json",
        "scale.ll",
        "scale.tessera",
    ]
    assert "kernels" in json.loads((out / "scale.json").read_text())
    x = ts.empty(64)
    x[...] = 1
    np.testing.assert_array_equal(ts.load(out / "scale.tessera")(x, 2.0), np.full(64, 6))


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["{file}:scale", "--target", "sm_1"], "unknown-target"),
        (["{file}:other"], "no-such-kernel"),
        (["{folder}/none.py:scale"], "no-such-file"),
        (["{file}:scale", "--dims", "n"], "bad-option"),
        (["{file}:scale", "--dims", "n=x"], "bad-option"),
        (["{file}:scale", "--dims", "q=3"], "unknown-dim"),
        (["{file}:scale", "--const", "Q=3"], "unknown-keyword"),
        (["{file}:scale", "--dump", "sass"], "unknown-dump"),
        (["{file}:scale", "-t", "cpu", "--dump", "ll,ptx"], "no-such-level"),
        (["{file}:scale", "-t", "sm_80", "--dump", "cubin"], "bad-option"),
        (["{folder}/broken.py:scale"], "bad-file"),
        (["{folder}/syntax.py:scale"], "bad-file"),
    ],
)
def test_errors_are_printed_as_text_with_exit_code_one(run, file, tmp_path, args, code):
    (tmp_path / "broken.py").write_text("x = 1\nraise ValueError('oh no')\n")
    (tmp_path / "syntax.py").write_text("def f(:\n")
    result = run("compile", *(arg.format(file=file, folder=tmp_path) for arg in args))
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error[{code}]: ")
    assert "Traceback" not in result.output


def test_compile_goes_on_from_a_dump(run, file, tmp_path):
    out = tmp_path / "out"
    run("compile", f"{file}:scale", "-t", "cpu", "--const", "K=3", "--dump", "tirh,tirt,ll", "-o", out)
    straight = (out / "scale.json").read_text()
    for level in ("tirh", "tirt", "ll"):
        again = tmp_path / level
        result = run("compile", out / f"scale.{level}", "-o", again)
        assert result.exit_code == 0, result.output
        kernels = [json.loads(text)["kernels"] for text in ((again / "scale.json").read_text(), straight)]
        assert kernels[0] == kernels[1]
        x = ts.empty(64)
        x[...] = 1
        np.testing.assert_array_equal(ts.load(again / "scale.tessera")(x, 2.0), np.full(64, 6))


def test_a_single_dump_is_printed_as_it_is(run, file, tmp_path):
    result = run("compile", f"{file}:scale", "-t", "sm_80", "--dump", "ll")
    assert result.stdout.startswith("; tessera.name")
    path = tmp_path / "scale.ll"
    path.write_text(result.stdout)
    assert ".target sm_80" in run("compile", path, "--dump", "ptx").stdout


@pytest.mark.parametrize(
    ("level", "target", "wanted"),
    [
        ("tirh", "sm_80", "tessera_schedule.num_warps"),
        ("tirt", "sm_80", "tessera_target.func"),
        ("tirt", "cpu", "tessera_target.func"),
        ("ll", "sm_80", "nvptx64"),
        ("ll", "x86-64-v3", "x86_64"),
        ("ptx", "sm_90a", ".target sm_90a"),
        ("asm", "aarch64", ".globl"),
    ],
)
def test_opt_goes_on_to_a_level(run, file, tmp_path, level, target, wanted):
    from tessera.driver.pipeline import CANONICALIZE

    canonical = tmp_path / "scale.mlir"
    env = {"TESSERA_DUMP_DIR": str(tmp_path / "dumps")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(*next(iter(env.items())))
        run("compile", f"{file}:scale", "-t", "cpu")
    first = sorted((tmp_path / "dumps").glob("*-canonicalize-*.mlir"))[0]
    canonical.write_text(first.read_text())
    passes = [part for one in CANONICALIZE for part in ("--pass", one.name)]
    result = run("opt", canonical, *passes, "--to", level, "--target", target)
    assert result.exit_code == 0, result.output
    assert wanted in result.stdout
    if level in ("tirh", "tirt"):  # it goes on from there by what it says itself
        (tmp_path / "next.mlir").write_text(result.stdout)
        assert (
            run("opt", tmp_path / "next.mlir", "--to", "ll").stdout
            == run("opt", canonical, "--to", "ll", "--target", target).stdout
        )


@pytest.mark.parametrize(("level", "levels"), [("asm", "tirh, tirt, ll, ptx"), ("sass", "tirh, tirt, ll, ptx")])
def test_opt_lists_the_levels_of_a_target(run, tmp_path, file, level, levels):
    run("compile", f"{file}:scale", "-t", "sm_80", "--dump", "tirh", "-o", tmp_path)
    result = run("opt", tmp_path / "scale.tirh", "--to", level)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error[no-such-level]: sm_80 has no level '{level}'")
    assert f"one of {levels}" in result.stderr


def test_opt_needs_a_target(run, tmp_path):
    path = tmp_path / "k.mlir"
    path.write_text('tessera_tile.kernel @k profile "fast" (%x: f32 as "x") {\n  tessera_tile.return\n}\n')
    result = run("opt", path, "--to", "tirt")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error[no-target]: {path} does not say its target")
    assert run("opt", path, "--to", "tirt", "-t", "cpu").exit_code == 0


def test_a_fault_of_the_file_points_at_its_line(run, tmp_path):
    (tmp_path / "broken.py").write_text("x = 1\nraise ValueError('oh no')\n")
    result = run("compile", f"{tmp_path}/broken.py:scale")
    assert "ValueError: oh no" in result.stderr
    assert "broken.py:2" in result.stderr


def test_cache_commands(run, file, tmp_path):
    assert run("cache", "path").output.strip() == str(tmp_path / "cache")
    assert "0 kernels" in run("cache").output
    from tessera.tools.loading import find_kernel

    find_kernel(f"{file}:scale")(np.ones(5, np.float32), 2.0)
    assert "1 kernels" in run("cache").output
    assert int(run("cache", "size").output) > 0
    listed = run("cache", "list").output
    assert "scale" in listed
    assert "cpu" in listed
    assert run("cache", "clear").output == "removed 1 kernels\n"
    assert "0 kernels" in run("cache").output


def test_a_cache_that_is_turned_off_is_an_error(run, monkeypatch):
    monkeypatch.setenv("TESSERA_CACHE_SIZE_MB", "0")
    result = run("cache", "size")
    assert result.exit_code == 1
    assert "error[no-cache]" in result.stderr


def test_doctor_runs_a_kernel_and_says_what_is_missing(run, monkeypatch):
    result = run("doctor")
    assert result.exit_code == 0, result.output
    for part in ("Python", "packages", "kernel cache", "CPU", "saxpy is right", "GPU"):
        assert part in result.output


def test_doctor_prints_the_line_that_mends(run, monkeypatch):
    from tessera.runtime import cuda

    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    cuda.driver.cache_clear()
    try:
        result = run("doctor")
    finally:
        cuda.driver.cache_clear()
    assert result.exit_code == 0
    assert 'pip install "tessera[gpu-cuda]"' in result.output


def test_the_module_runs():
    done = subprocess.run(
        [sys.executable, "-m", "tessera.tools.cli", "cache", "path"],
        capture_output=True,
        text=True,
        env=os.environ,
    )
    assert (done.returncode, done.stdout.strip()) == (0, os.environ["TESSERA_CACHE_DIR"])


@pytest.mark.parametrize("command", [["--help"], ["compile", "--help"]])
def test_help_shows_its_examples_a_line_each(command):
    text = CliRunner().invoke(main, command).output
    assert "\\b" not in text
    assert any(line.strip().startswith("tessera compile gemm.py:gemm") for line in text.splitlines())


@pytest.mark.parametrize(
    "args",
    [
        ("opt", "{garbage}"),
        ("run", "{garbage}"),
        ("run", "{tile}", "-i", "{several}", "-i", "1.0"),
        ("run", "{tile}", "-i", "zeros(99999999999,99999999999)", "-i", "1.0"),
        ("run", "{tile}", "-i", "zeros(-1)", "-i", "1.0"),
        ("run", "{tile}", "-i", "zeros(4)", "-i", "1.0", "-o", "{nowhere}"),
        ("fuzz", "--replay", "{garbage}"),
        ("fuzz", "--replay", "{other}"),
        ("fuzz", "--programs", "1", "--jobs", "1", "--report", "{nowhere}"),
    ],
)
def test_files_that_cannot_be_used_are_errors_without_a_traceback(run, file, tmp_path, args):
    names = {"garbage": tmp_path / "garbage", "several": tmp_path / "several.npz", "other": tmp_path / "other.json"}
    names |= {"tile": tmp_path / "scale.tirh", "nowhere": tmp_path / "no" / "where.npy"}
    names["garbage"].write_bytes(bytes(range(128, 256)))
    np.savez(names["several"], a=np.zeros(4), b=np.zeros(4))
    names["other"].write_text('{"node": "Nothing"}')
    names["tile"].write_text(run("compile", f"{file}:scale", "--target", "cpu", "--dump", "tirh").output)
    done = run(*(arg.format_map(names) for arg in args))
    assert done.exit_code in (1, 2)
    assert isinstance(done.exception, SystemExit)
    assert "rror" in done.output


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("--target", "sm_42"), "unknown-target"),
        (("--compile-only", "sm_42"), "unknown-target"),
        (("--device", "ptx", "--target", "x86-64-v9"), "unknown-target"),
        (("--device", "passes", "--target", "sm_42"), "unknown-target"),
        (("--device", "cpu", "--target", "sm_80"), "wrong-target"),
        (("--device", "ptx", "--target", "x86-64-v3"), "wrong-target"),
        (("--device", "threads", "--target", "cpu"), "wrong-target"),
        (("--device", "races", "--target", "aarch64"), "wrong-target"),
        (("--device", "interp", "--target", "x86-64-v3"), "wrong-target"),
        (("--device", "cuda", "--target", "sm_90a"), "wrong-target"),
    ],
)
def test_fuzz_refuses_a_target_before_the_first_program(run, args, code):
    done = run("fuzz", "--programs", "1", *args)
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"error[{code}]" in done.stderr


@pytest.mark.parametrize("command", ["run", "opt"])
def test_a_python_file_in_place_of_a_text_is_told_how_to_get_one(run, file, command):
    done = run(command, str(file))
    assert done.exit_code == 1
    assert f"tessera compile {file}:KERNEL --dump tirh" in done.stderr


@pytest.mark.parametrize(
    "name",
    [
        "json",
        "ast",
        "types",
        "re",
        "random",
        "numpy",
        "inspect",
        "time",
        "math",
        "platform",
        "xdsl",
        "llvmlite",
        "tessera",
    ],
)
def test_a_file_may_be_called_as_a_module_is(name, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / f"{name}.py").write_text(KERNEL)
    done = tessera(tmp_path, "compile", f"sub/{name}.py:scale", "--target", "cpu", "--dump", "tirh")
    assert done.returncode == 0, done.stderr
    assert "tessera_tile.kernel @scale" in done.stdout


def tessera(folder, *args, shell="", **environment):
    """Run a command line in a process of its own, with what a shell does to its files."""
    known = {**os.environ, "TESSERA_CACHE_DIR": str(folder / "cache"), **environment}
    command = shlex.join([sys.executable, "-m", "tessera.tools.cli", *args])
    return subprocess.run(f"{command} {shell}", shell=True, cwd=folder, env=known, capture_output=True, text=True)


def test_a_file_imports_its_neighbours_and_leaves_no_path_behind(file):
    (file.parent / "near.py").write_text("FACTOR = 2")
    file.write_text("import near\n" + KERNEL)
    before = list(sys.path)
    assert import_file(file).near.FACTOR == 2
    assert sys.path == before
    del sys.modules["near"]


LONG = "9" * 5000


@pytest.mark.parametrize(
    ("args", "code"),
    [
        *((["--const", f"{name}=1"], "reserved-name") for name in ("target", "dump", "dims", "strides")),
        (["--const", "kernel=1"], "unknown-keyword"),
        (["--const", "self=1"], "unknown-keyword"),
        (["--dims", f"n={LONG}"], "bad-option"),
        (["--const", f"K={LONG}"], "bad-option"),
        (["--const", f"K={'[' * 5000}"], "wrong-constexpr"),
    ],
)
def test_assignments_of_any_name_and_value(run, file, args, code):
    file.write_text(KERNEL.replace("ts.constexpr", "ts.constexpr[int]"))
    result = run("compile", f"{file}:scale", "--target", "cpu", *args)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error[{code}]: ")
    assert len(result.stderr) < 1000


@pytest.mark.parametrize("variable", ["TESSERA_CACHE_SIZE_MB", "TESSERA_NUM_THREADS", "TESSERA_CPU_CACHE_MB"])
def test_long_numbers_in_the_environment(variable, monkeypatch):
    read = {
        "TESSERA_CACHE_SIZE_MB": cache.size_limit,
        "TESSERA_NUM_THREADS": thread_count,
        "TESSERA_CPU_CACHE_MB": limit_bytes,
    }
    for text in (LONG, "x", "-1", "1.5"):
        monkeypatch.setenv(variable, text)
        with pytest.raises(CallError, match=variable) as caught:
            read[variable]()
        assert caught.value.code == "bad-environment"
    monkeypatch.setenv(variable, "3")
    assert read[variable]() in (3, 3 << 20)


@pytest.mark.parametrize("number", ["-" * 5000 + "1", LONG, "(" * 5000, "1e999j"])
def test_numbers_of_any_text(run, file, tmp_path, number):
    (tmp_path / "scale.tirh").write_text(run("compile", f"{file}:scale", "--target", "cpu", "--dump", "tirh").stdout)
    for given in (("-i", "zeros(4)", "-i", number), ("-i", f"zeros({number})", "-i", "1")):
        result = run("run", str(tmp_path / "scale.tirh"), *given)
        assert result.exit_code == 1
        assert result.stderr.startswith("error[bad-input]: ")


def test_an_output_that_lacks_letters(tmp_path, file):
    ascii_only = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    for args in (("doctor",), ("cache", "list")):
        done = tessera(tmp_path, *args, **ascii_only)
        assert done.returncode == 0, done.stderr
        assert "kernel" in done.stdout
    file.write_text(KERNEL.replace("    i = ts", "    ts.tile.assert_(n > 0, 'n … 0')\n    i = ts"))
    done = tessera(tmp_path, "compile", f"{file}:scale", "--target", "cpu", "--dump", "tirh", **ascii_only)
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.name != "posix", reason="a POSIX shell closes the files")
@pytest.mark.parametrize("shell", [">&-", ">/dev/full"])
@pytest.mark.parametrize(
    "args", [("--help",), ("compile", "--help"), ("opt", "--list"), ("doctor",), ("cache", "path")]
)
def test_an_output_that_takes_nothing(tmp_path, shell, args):
    if shell == ">/dev/full" and not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    done = tessera(tmp_path, *args, shell=shell)
    assert done.returncode == 1
    assert done.stderr.startswith("error[file]: ")
    assert done.stderr.count("\n") == 1
