"""PyTorch tensors in, PyTorch tensors out, on the CPU."""

from __future__ import annotations

import pytest

import tessera as ts
from tessera import ops as op
from tessera.ops import arrays
from tessera.platforms.nvidia import NvidiaPlatform
from tessera.runtime import cuda
from tessera.runtime.device import CPU
from tessera.runtime.views import ArrayView

torch = pytest.importorskip("torch")
E, L = op.epilogue, op.linalg


def test_results_are_tensors_of_the_operands_kind():
    torch.manual_seed(0)
    a, b, bias = torch.randn(65, 77).bfloat16(), torch.randn(77, 33).bfloat16(), torch.randn(33)
    got = L.gemm(a, b, epilogue=E.chain([E.bias(bias), E.relu()]))
    assert got.dtype == torch.bfloat16
    assert torch.allclose(got.float(), torch.relu(a.float() @ b.float() + bias), rtol=1e-2, atol=0.1)
    got = L.gemm(a.to(torch.float8_e4m3fn), b.to(torch.float8_e5m2), scale_b=torch.tensor(2.0), out_dtype=ts.f32)
    exact = 2 * a.to(torch.float8_e4m3fn).double() @ b.to(torch.float8_e5m2).double()
    assert torch.allclose(got.double(), exact, rtol=1e-4, atol=1e-3)


def test_layers_and_batches():
    x, w, bias = torch.randn(2, 3, 77), torch.randn(40, 77), torch.randn(40)
    assert torch.allclose(L.linear(x, w, bias), torch.nn.functional.linear(x, w, bias), atol=1e-4)
    y = x.expand(4, 2, 3, 77)
    assert torch.allclose(L.matmul(y, w.t()), y @ w.t(), atol=1e-4)
    got = L.gemm_grouped(x[0], torch.stack([w.t(), 2 * w.t()]), torch.tensor([0, 1, 3], dtype=torch.int32))
    assert torch.allclose(got, torch.cat([x[0, :1] @ w.t(), 2 * x[0, 1:] @ w.t()]), atol=1e-4)


def test_reductions_and_triangles():
    a, b, rows = torch.randn(50, 60), torch.randn(60, 50), torch.empty(50)
    L.gemm(a, b, epilogue=E.chain([E.row_sum(rows)]))
    assert torch.allclose(rows, (a @ b).sum(1), atol=1e-3)
    assert torch.allclose(L.gemm(a, b, triangular_only="upper"), torch.triu(a @ b), atol=1e-4)


@pytest.mark.parametrize("name", ["bf16", "fp8_e4m3", "i8", "f32"])
def test_scratch_memory_is_seen_as_tensors(name, monkeypatch):
    monkeypatch.setattr(cuda, "cuda_device", lambda _index: None)
    dtype = getattr(ts, name)
    memory = torch.arange(64 * dtype.bytes * 5, dtype=torch.uint8)
    view = ArrayView((5, 7), (64, 1), dtype, CPU, readonly=False)
    got = arrays.over_scratch(memory, memory.data_ptr(), view, 3, NvidiaPlatform())
    assert str(got.dtype) == str(arrays.torch_dtypes()[name])
    expected = memory.view(5, -1)[:, : 7 * dtype.bytes]
    assert torch.equal(got.contiguous().view(torch.uint8), expected)
