"""Products copy no operand: what they need beside the arrays fits the caches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tessera as ts
from tessera import ops as op
from tessera.driver.compile import target_record
from tessera.ops import arrays
from tessera.runtime.pool import thread_count
from tests.unit.foreign import Foreign

gemm = op.linalg.gemm
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
SLACK = 2 << 20
"""Bytes that Python itself may take meanwhile."""


@pytest.mark.parametrize("shape", [(1 << 50,), (1 << 40, 1 << 30)])
@pytest.mark.parametrize("library", ["numpy", "torch", "tessera"])
def test_a_result_without_memory_is_an_error(library, shape):
    like = ts.zeros(3)
    if library == "torch":
        like = pytest.importorskip("torch").from_numpy(like)
    elif library == "tessera":
        like = Foreign(like)
    with pytest.raises(ts.TesseraError) as caught:
        arrays.maker(like, shape, ts.f32)(like)
    own = library == "tessera" and len(shape) > 1  # Tessera counts the bytes itself, which are too many to count
    assert caught.value.code == ("bad-shape" if own else "out-of-memory")


def _status(name: str) -> int:
    """Return a line of the process's status in bytes."""
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith(name + ":"))
    return int(line.split()[1]) << 10


def _forget_peak() -> None:
    try:
        CLEAR.write_text("5")
    except OSError:
        pytest.skip("the peak of resident memory cannot be reset here")


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dtype", [ts.f32, ts.bf16])
def test_a_large_product_needs_no_more_than_its_packing_buffers(dtype, turned):
    m, n, k = 2048, 2048, 4096
    rng = np.random.default_rng(5)
    a, b = (
        rng.standard_normal(shape[::-1] if turned else shape, np.float32).astype(dtype.numpy())
        for shape in ((m, k), (k, n))
    )
    out = np.zeros((m, n), dtype.numpy())
    call = lambda x, y: gemm(x, y, out=out, trans_a=turned, trans_b=turned)  # noqa: E731
    record = target_record("cpu")
    buffers = 2 * thread_count() * record.l2_bytes + SLACK
    if buffers >= a.nbytes:
        pytest.skip("the buffers of so many threads are as large as the operands")
    for _ in range(2):  # the first compiles and starts the threads, the second may load the compiled entry
        call(a, b)
    for _ in range(2):
        _forget_peak()
        before = _status("VmRSS")
        call(a, b)
        assert _status("VmHWM") - before <= buffers
    rows = rng.integers(0, m, 4)
    left = (a[:, rows].T if turned else a[rows]).astype(np.float64)
    expected = left @ (b.T if turned else b).astype(np.float64)
    assert np.max(np.abs(out[rows].astype(np.float64) - expected)) <= 2e-2 * np.max(np.abs(expected))
    scratch = gemm.compile(m, n, k, dtype, dtype, trans_a=turned, trans_b=turned).reflection["kernels"]
    assert all(facts["scratch_bytes"] <= 2 * record.l2_bytes for facts in scratch.values())
