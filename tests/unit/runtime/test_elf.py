"""runtime/elf.py: objects that need functions at most run without LLVM's linker, all others are left to it."""

from __future__ import annotations

import ctypes
import json
import os
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import tessera as ts
from tessera.backends.cpu import host_target, missing_features
from tessera.backends.cpu.codegen import compile_ir
from tessera.entry import code as native
from tessera.entry.layout import POOL_RUN, POOL_STOP
from tessera.errors import CompilerFault
from tessera.runtime import elf, host
from tessera.runtime.cpu import CpuLauncher
from tessera.runtime.elf import map_object

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or host.architecture() != "x86_64",
    reason="other objects are LLVM's",
)
READER = """
@environ = external global ptr
define ptr @got() nounwind {
  %p = load ptr, ptr @environ
  ret ptr %p
}
"""


@ts.kernel
def waves(x: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["m", "n", ts.f32]):
    for i in ts.tile.grid((m, 1)):
        row = x[i, 0:256]
        y[i, 0:256] = ts.tile.sin(row) / ts.tile.sum(ts.tile.exp(row))


CALLER = """
declare double @pow(double, double)
define double @cubed(double %x) nounwind {
  %y = call double @pow(double %x, double 3.0)
  ret double %y
}
"""


def test_code_with_constants_computes():
    artifact = ts.compile(waves, target="cpu")
    launcher = CpuLauncher(artifact, lambda code: map_object(code) or pytest.fail("the object was refused"))
    x = np.linspace(-2, 2, 512, dtype=np.float32).reshape(2, 256)
    y = np.zeros_like(x)
    launcher.prepare([(x.shape, (256, 1)), (y.shape, (256, 1))]).launch([x.ctypes.data, y.ctypes.data], [])
    exact = x.astype(np.float64)
    np.testing.assert_allclose(y, np.sin(exact) / np.exp(exact).sum(axis=1, keepdims=True), rtol=1e-5, atol=1e-8)


def called(text: str) -> bytes:
    target = host_target()
    told = target.triple, target.cpu, target.llvm_features
    return compile_ir(text, *told, avx512=target.has("avx512f"), native=True, assembly=False)[0]


def test_functions_of_libraries_are_called_wherever_they_are():
    found = map_object(called(CALLER))
    assert found is not None
    cubed = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(found.address("cubed"))
    assert [cubed(1.5), cubed(-2.0)] == [3.375, -8.0]


def test_functions_that_the_process_lacks_and_data_of_libraries_are_left_to_llvm():
    assert map_object(called(CALLER.replace("@pow", "@no_such_function"))) is None
    assert map_object(called(READER)) is None


def test_tables_for_unwinding_are_left_out():
    pool = bytes(native.compile_pool())
    assert b".eh_frame" in pool
    found = map_object(pool)
    assert found is not None
    assert all(found.address(name) for name in (POOL_RUN, POOL_STOP))
    cubed = map_object(called(CALLER.replace(" nounwind", "")))
    assert cubed is not None
    assert ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(cubed.address("cubed"))(2.0) == 8.0


@pytest.mark.parametrize("length", [0, 3, 40, 70, 900])
def test_the_start_of_an_object_is_left_to_llvm(length: int):
    assert map_object(ts.compile(waves, target="cpu").code[:length]) is None


def test_objects_of_other_machines_are_left_to_llvm():
    code = bytearray(ts.compile(waves, target="cpu").code)
    struct.pack_into("<H", code, 0x12, 183)  # EM_AARCH64
    assert map_object(bytes(code)) is None


def test_a_system_that_forbids_new_code_is_left_to_llvm(monkeypatch: pytest.MonkeyPatch):
    class Forbidding:
        @staticmethod
        def mprotect(*_: object) -> int:
            return -1

    monkeypatch.setattr(elf.ctypes, "CDLL", lambda *_, **__: Forbidding)
    assert map_object(ts.compile(waves, target="cpu").code) is None


def test_an_unknown_function_is_an_error():
    found = map_object(ts.compile(waves, target="cpu").code)
    assert found is not None
    with pytest.raises(CompilerFault, match="no function other") as caught:
        found.address("other")
    assert caught.value.code == "link-failed"


def test_what_linux_lists_llvm_finds_too():
    flags = host._listed()
    names = {*flags, *host._LINUX_NAMES, "sse4.1", "sse4.2", "avx512bf16", "amx-bf16", "amx-tile", "avxvnni", "cx16"}
    listed = [name for name in sorted(names) if host.surely_has(["x86_64", name])]
    assert "sse2" in listed
    ours = [name for name in listed if name not in flags or name in ("avx", "avx2", "fma", "f16c", "sse2")]
    assert missing_features(["x86_64", *ours]) == []


@pytest.mark.parametrize("required", [["aarch64"], ["x86_64", "no-such-feature"], ["x86_64", "sse2", "tbm9"]])
def test_what_linux_does_not_list_llvm_is_asked_for(required: list[str]):
    assert not host.surely_has(required)


def test_a_name_for_features_is_those_features(monkeypatch: pytest.MonkeyPatch):
    parts = ("f", "cd", "bw", "dq", "vl", "vbmi", "vbmi2", "ifma", "vnni", "bf16", "bitalg", "vpopcntdq", "fp16")
    listed = frozenset(f"avx512{part}" for part in parts)
    monkeypatch.setattr(host, "_listed", lambda: listed)
    assert host.surely_has(["x86_64", "avx10.1"])
    monkeypatch.setattr(host, "_listed", lambda: listed - {"avx512fp16"})
    assert not host.surely_has(["x86_64", "avx10.1"])


def test_matrix_units_need_leave(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(host, "_listed", lambda: frozenset({"amxtile", "avx2"}))
    monkeypatch.setattr(host, "matrix_unit_granted", lambda: False)
    assert not host.surely_has(["x86_64", "amx-tile"])
    assert host.surely_has(["x86_64", "avx2"])


def test_a_kernel_from_the_cache_runs_without_the_compiler(tmp_path: Path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        import json, sys
        import numpy as np
        import tessera as ts

        @ts.kernel
        def add(a: ts.Tensor["n", ts.f32], b: ts.Tensor["n", ts.f32]):
            i = ts.tile.linear_id()
            if i < n:
                a[i] = a[i] + b[i]

        a, b = np.ones(64, np.float32), np.full(64, 3.0, np.float32)
        add(a, b)
        heavy = sorted({name.split(".")[0] for name in sys.modules} & {"xdsl", "llvmlite", "ml_dtypes"})
        print(json.dumps([add.explain().origin, heavy, a.tolist()]))
        """)
    )
    command = [sys.executable, str(program)]
    environment = {**os.environ, "TESSERA_CACHE_DIR": str(tmp_path / "cache")}
    runs = [
        json.loads(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
        for _ in range(2)
    ]
    assert runs[0][0] == "compiled"
    assert runs[1] == ["disk cache", [], [4.0] * 64]
