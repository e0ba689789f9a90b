"""Kernels on many threads: the same bits for any number of them, and a failure leaves the pool usable."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import hashlib
import numpy as np
import tessera as ts
from tessera.errors import DeviceError

@ts.kernel
def work(X: ts.Tensor["M", "N", ts.f32], W: ts.Tensor["N", "K", ts.f32], Y: ts.Tensor["M", "K", ts.f32],
         S: ts.Tensor["M", ts.f32], seed: ts.i64):
    for m in ts.tile.grid((M, 8)):
        x = X[m : m + 8, :]
        e = ts.tile.exp(x - ts.tile.row_max(x)[:, None])
        p = e / ts.tile.row_sum(e)[:, None]
        Y[m : m + 8, :] = ts.tile.mma(p, W[:, :], ts.tile.zeros((8, 40), ts.f32))
        S[m : m + 8] = ts.tile.row_sum(ts.tile.dropout(x, 0.3, seed, ts.tile.arange(777) + m * 777))

@ts.kernel
def checked(x: ts.Tensor["n", ts.f32]):
    for i in ts.tile.grid((n, 64)):
        v = x[i : i + 64]
        assert v < 100.0, "too large"
        x[i : i + 64] = ts.tile.exp(ts.tile.sin(v))

rng = np.random.default_rng(5)
x, w = rng.standard_normal((1003, 777), np.float32), rng.standard_normal((777, 40), np.float32)
for _ in range(4):
    y, s = np.zeros((1003, 40), np.float32), np.zeros(1003, np.float32)
    with ts.numerics.profile("deterministic"):
        work(x, w, y, s, 9)
    print(hashlib.sha256(y.tobytes() + s.tobytes()).hexdigest())
e = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
np.testing.assert_allclose(y, e / e.sum(axis=1, keepdims=True) @ w, atol=2e-6)

z = np.ones(1 << 20, np.float32)
checked(z)
for _ in range(3):
    z[:] = 1
    z[777_777] = 1000
    try:
        checked(z)
    except DeviceError as error:
        print(error.code)
z[:] = 1
checked(z)
np.testing.assert_allclose(z, np.exp(np.sin(1.0)), rtol=1e-6)
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    program = tmp_path_factory.mktemp("threads") / "work.py"
    program.write_text(PROGRAM)
    found = {}
    for threads in ("1", "2", "3", "7"):
        done = subprocess.run(
            [sys.executable, program],
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
            env={**os.environ, "TESSERA_NUM_THREADS": threads, "TESSERA_DEBUG": "1"},
        )
        assert done.returncode == 0, done.stderr
        found[threads] = done.stdout.split()
    return found


def test_results_are_equal_for_any_number_of_threads(outcomes):
    assert len({line for lines in outcomes.values() for line in lines[:4]}) == 1


def test_a_kernel_that_fails_leaves_the_pool_usable(outcomes):
    assert all(lines[4:] == ["device-assert"] * 3 for lines in outcomes.values())
