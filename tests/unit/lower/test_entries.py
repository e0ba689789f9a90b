"""Kernels may have any name of Python, and any that a program gives them."""

import subprocess
import sys
from types import FunctionType

import numpy as np
import pytest

import tessera as ts
from tessera.lower.entries import entry_name

NAMES = ("_", "__", "é", "Ω2", "名前", "WARP_SZ", "fmaf", "vprintf", "gemm[64, bf16]", "2nd", "a-b", "", "<k>")
DECLARED = """
import tessera as ts

@ts.kernel
def {name}(ξ: ts.Tensor["größe", ts.f32], y: ts.Tensor["größe", ts.f32]):
    for i in ts.tile.grid((größe, 16)):
        y[i : i + 16] = ts.tile.fma(ξ[i : i + 16], ξ[i : i + 16], 1.0)
"""


def plain(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    for i in ts.tile.grid((n, 16)):
        y[i : i + 16] = ts.tile.fma(x[i : i + 16], x[i : i + 16], 1.0)


def called(name):
    """Return the kernel under another name."""
    copy = FunctionType(plain.__code__, plain.__globals__, name)
    copy.__annotations__ = plain.__annotations__
    return ts.kernel(copy)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_compiles_and_runs(name):
    kernel, x = called(name), np.arange(40, dtype=np.float32)
    y = np.zeros_like(x)
    kernel(x, y)
    assert np.array_equal(y, x * x + 1)
    artifact = ts.compile(kernel, "sm_80", dump=("tirh", "ptx", "cubin"))
    assert artifact.name == name
    assert ts.compile(artifact.dumps["tirh"], "sm_80", dump=("ptx",)).dumps["ptx"].count(".entry") == 1


def test_names_stay_apart_and_stay_themselves():
    made = [entry_name(name) for name in (*NAMES, "gemm", "gemm_64", "exp_of")]
    assert len(set(made)) == len(made)
    assert made[-3:] == ["gemm", "gemm_64", "exp_of"]


@pytest.mark.parametrize("name", ["fmaf", "größer"])
def test_a_kernel_is_not_what_its_code_calls(name, tmp_path):
    """In a process of its own, as a kernel called `fmaf` would call itself until the stack ends."""
    program = tmp_path / "named.py"
    call = (
        f"import numpy as np\nx, y = np.arange(40, dtype=np.float32), np.zeros(40, np.float32)\n"
        f"ts.compile({name}, 'x86-64').save('named.tsr')\nts.load('named.tsr')(x, y)\n"
        "assert np.array_equal(y, x * x + 1)\n"
    )
    program.write_text(DECLARED.format(name=name) + call, encoding="utf-8")
    subprocess.run([sys.executable, str(program)], cwd=tmp_path, check=True, timeout=120)
