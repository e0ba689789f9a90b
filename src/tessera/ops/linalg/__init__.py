"""Matrix products: `gemm` and what is built on it."""

from tessera.ops.linalg.gemm import gemm, gemm_batched
from tessera.ops.linalg.grouped import gemm_grouped
from tessera.ops.linalg.matmul import linear, matmul
from tessera.ops.linalg.plan import Plan, plan
from tessera.ops.linalg.preferences import specialize

__all__ = ["Plan", "gemm", "gemm_batched", "gemm_grouped", "linear", "matmul", "plan", "specialize"]
