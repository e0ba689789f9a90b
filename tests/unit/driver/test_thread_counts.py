"""The same bits for any number of threads: products, attention, norms, softmax, GELU, RoPE, dropout, sums.

So under the default profile and under `deterministic`: programs never share a sum, and blocks do not depend on how many
threads run them.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import hashlib, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import tessera as ts
import bias_gelu, flash_attention, layernorm, rmsnorm, rope, softmax
from tessera import ops as op

E, gemm = op.epilogue, op.linalg.gemm

def normal(*shape, dtype=ts.f32):
    return np.random.default_rng(len(shape)).standard_normal(shape, np.float32).astype(dtype.numpy())

def dropped(dtype):
    @ts.kernel
    def drop(X: ts.Tensor["M", "N", dtype], Y: ts.Tensor["M", "N", dtype], seed: ts.i64):
        for m in ts.tile.grid((M, 1)):
            Y[m, :] = ts.tile.dropout(X[m, :], 0.3, seed, ts.tile.arange(N) + m * N)
        return Y

    return drop

def results(dtype):
    for m, n, k in ((500, 300, 400), (1, 1000, 777), (16, 640, 512), (130, 1100, 65)):
        yield f"gemm {m}x{n}x{k}", gemm(normal(m, k, dtype=dtype), normal(k, n, dtype=dtype))
    rows, cols = np.empty(500, np.float32), np.empty(300, np.float32)
    chain = E.chain([E.row_sum(rows), E.col_sum(cols), E.gelu()])
    gemm(normal(500, 400, dtype=dtype), normal(400, 300, dtype=dtype), epilogue=chain)
    yield "sums of rows", rows
    yield "sums of columns", cols
    x, w, y = normal(777, 1001, dtype=dtype), normal(1001, dtype=dtype), lambda: np.empty((777, 1001), dtype.numpy())
    yield "softmax", softmax.softmax_for(dtype)(x, y())
    yield "RMSNorm", rmsnorm.rmsnorm_for(dtype)(x, w, y(), 1e-5)
    yield "LayerNorm", layernorm.layernorm_for(dtype)(x, w, w, y(), 1e-5)
    yield "GELU by erf", bias_gelu.bias_gelu_for(dtype)(x, w, y(), False)
    yield "GELU by tanh", bias_gelu.bias_gelu_for(dtype)(x, w, y(), True)
    yield "dropout", dropped(dtype)(x, y(), 9)
    q, out = normal(3, 333, 64, dtype=dtype), np.empty((3, 333, 64), dtype.numpy())
    angle = rope.angles(333, 32)
    turned = rope.rope_for(dtype)(q, np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32), out)
    yield "RoPE", turned.copy()
    for causal in (False, True):
        flash_attention.flash_attention_for(dtype)(q, q, q, out, causal)
        yield f"attention, causal {causal}", out

for profile in ("fast", "deterministic"):
    with ts.numerics.profile(profile):
        for dtype in (ts.f32, ts.bf16):
            for name, result in results(dtype):
                assert np.isfinite(result.astype(np.float32)).all(), name
                print(f"{profile}, {dtype}, {name}: {hashlib.sha256(result.tobytes()).hexdigest()}")
"""


@pytest.mark.timeout(600)
def test_every_library_kernel_gives_the_same_bits_on_any_number_of_threads(tmp_path):
    program, found = tmp_path / "program.py", []
    program.write_text(PROGRAM)
    for threads in ("1", "2", "5"):
        done = subprocess.run(
            [sys.executable, program, ROOT / "examples"],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "TESSERA_NUM_THREADS": threads},
            cwd=ROOT,
        )
        assert done.returncode == 0, done.stderr
        found.append(done.stdout.splitlines())
    assert len(found[0]) == 2 * 2 * 15
    assert found[1] == found[0]
    assert found[2] == found[0]
