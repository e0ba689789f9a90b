"""Every example gives its float64 reference, on the CPU and on a GPU, and compiles for every GPU architecture."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attention_explicit
import bias_gelu
import dropout
import flash_attention
import gemm
import gemm_explicit
import layernorm
import mlp
import numpy as np
import pytest
import rmsnorm
import rope
import saxpy
import softmax
from harness import Case, Place, host

import tessera as ts

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

# Sizes that no block size divides, smaller and larger than one block.
CASES: dict[str, Callable[[Place], Case]] = {
    "saxpy-7": lambda place: saxpy.case(place, 7),
    "saxpy-10007": lambda place: saxpy.case(place, 10007),
    "softmax-3x17": lambda place: softmax.case(place, 3, 17),
    "softmax-65x1029": lambda place: softmax.case(place, 65, 1029),
    "rmsnorm-3x17": lambda place: rmsnorm.case(place, 3, 17),
    "rmsnorm-65x1029": lambda place: rmsnorm.case(place, 65, 1029),
    "layernorm-3x17": lambda place: layernorm.case(place, 3, 17),
    "layernorm-65x1029": lambda place: layernorm.case(place, 65, 1029),
    "rope-1x5x16": lambda place: rope.case(place, 1, 5, 16),
    "rope-3x77x96": lambda place: rope.case(place, 3, 77, 96),
    "bias-gelu-erf-5x9": lambda place: bias_gelu.case(place, 5, 9),
    "bias-gelu-erf-33x301": lambda place: bias_gelu.case(place, 33, 301),
    "bias-gelu-tanh-5x9": lambda place: bias_gelu.case(place, 5, 9, approximate=True),
    "bias-gelu-tanh-33x301": lambda place: bias_gelu.case(place, 33, 301, approximate=True),
    "dropout-13": lambda place: dropout.case(place, 13, 0.5),
    "dropout-5003": lambda place: dropout.case(place, 5003, 0.1, seed=-1),
    "gemm-17x9x33": lambda place: gemm.case(place, 17, 9, 33),
    "gemm-150x277x301": lambda place: gemm.case(place, 150, 277, 301),
    "gemm-explicit-17x9x33": lambda place: gemm_explicit.case(place, 17, 9, 33),
    "gemm-explicit-70x130x101": lambda place: gemm_explicit.case(place, 70, 130, 101),
    "gemm-ring-17x9x33": lambda place: gemm_explicit.case(place, 17, 9, 33, gemm_explicit.gemm_ring),
    "gemm-roles-17x9x33": lambda place: gemm_explicit.case(place, 17, 9, 33, gemm_explicit.gemm_roles),
    "gemm-roles-270x130x101": lambda place: gemm_explicit.case(place, 270, 130, 101, gemm_explicit.gemm_roles),
    "attention-explicit-17": lambda place: attention_explicit.case(place, 2, 17, 32),
    "attention-explicit-200": lambda place: attention_explicit.case(place, 2, 200, 64),
    "gemm-ring-70x130x101": lambda place: gemm_explicit.case(place, 70, 130, 101, gemm_explicit.gemm_ring),
    "mlp-5x7x9": lambda place: mlp.case(place, 5, 7, 9),
    "mlp-100x77x203": lambda place: mlp.case(place),
    "gated-70x77x130": lambda place: mlp.gated_case(place, 70, 77, 130),
    "flash-attention-1x7x16": lambda place: flash_attention.case(place, 1, 7, 16, is_causal=False),
    "flash-attention-2x203x48": lambda place: flash_attention.case(place, 2, 203, 48, is_causal=False),
    "flash-attention-causal-1x7x16": lambda place: flash_attention.case(place, 1, 7, 16),
    "flash-attention-causal-2x203x64": lambda place: flash_attention.case(place, 2, 203, 64),
}


def check(case: Case) -> None:
    """Run a case and compare."""
    error, _ = case.run()
    assert error <= case.tolerance, f"{case.name}: error {error:.2e}, allowed {case.tolerance:.1e}"


@pytest.mark.parametrize("dtype", [ts.f32, ts.bf16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_cpu(name: str, dtype: ts.DType) -> None:
    check(CASES[name](Place("cpu", dtype, seed=1)))


@pytest.mark.device
@pytest.mark.parametrize("dtype", [ts.f32, ts.f16, ts.bf16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_cuda(name: str, dtype: ts.DType) -> None:
    pytest.importorskip("torch")
    check(CASES[name](Place("cuda", dtype, seed=1)))


def test_dropout_statistics_on_the_cpu() -> None:
    assert dropout.statistics(Place("cpu")) == 0


@pytest.mark.device
def test_dropout_statistics_on_a_gpu() -> None:
    pytest.importorskip("torch")
    assert dropout.statistics(Place("cuda")) == 0


def test_philox_of_the_dropout_reference() -> None:
    # Known answers of Random123: counter and key all zero, and the counter 2**64 - 1 of an all-ones key.
    zero = dropout.philox(0, np.zeros(1, np.uint64))
    assert int(zero[0]) == 0x6627E8D5


def test_flash_attention_of_one_key_is_its_value() -> None:
    place = Place("cpu", seed=2)
    q, k, v, out = (
        place.normal(2, 1, 32),
        place.normal(2, 1, 32),
        place.normal(2, 1, 32),
        place.empty(2, 1, 32),
    )
    got = flash_attention.flash_attention_for(ts.f32)(q, k, v, out)
    np.testing.assert_allclose(host(got), host(v), rtol=1e-6)


ALIGNED = {"M": 4096, "N": 4096, "K": 4096}
"""With these sizes copies move 16 bytes at a time; without sizes every one is possible."""

COMPILED: dict[str, tuple[Callable[[], Any], dict[str, int], dict[str, Any]]] = {
    "saxpy": (lambda: saxpy.saxpy, {}, {}),
    "softmax": (lambda: softmax.softmax_for(ts.bf16), {"N": 1000}, {}),
    "rmsnorm": (lambda: rmsnorm.rmsnorm_for(ts.bf16), {"N": 4096}, {}),
    "layernorm": (lambda: layernorm.layernorm_for(ts.f16), {"N": 4096}, {}),
    "rope": (lambda: rope.rope_for(ts.bf16), {"R": 64}, {}),
    "bias-gelu-erf": (lambda: bias_gelu.bias_gelu_for(ts.bf16), {}, {}),
    "bias-gelu-tanh": (lambda: bias_gelu.bias_gelu_for(ts.bf16), {}, {"approximate": True}),
    "dropout": (lambda: dropout.dropout, {}, {}),
    "gemm-bf16": (lambda: gemm.gemm_for(ts.bf16, ts.bf16, "cuda"), ALIGNED, {}),
    "gemm-bf16-any-size": (lambda: gemm.gemm_for(ts.bf16, ts.bf16, "cuda"), {}, {}),
    "gemm-f16": (lambda: gemm.gemm_for(ts.f16, ts.f32, "cuda"), ALIGNED, {}),
    "gemm-f32": (lambda: gemm.gemm_for(ts.f32, ts.f32, "cuda"), ALIGNED, {}),
    "gemm-explicit": (lambda: gemm_explicit.gemm_explicit, {}, {}),
    "gemm-ring": (lambda: gemm_explicit.gemm_ring, {}, {}),
    "gemm-roles": (lambda: gemm_explicit.gemm_roles, {}, {}),
    "attention-explicit": (lambda: attention_explicit.attention_explicit_for(ts.bf16), {"D": 64}, {}),
    "flash-attention-64": (
        lambda: flash_attention.flash_attention_for(ts.bf16),
        {"D": 64},
        {"is_causal": False},
    ),
    "flash-attention-causal-128": (lambda: flash_attention.flash_attention_for(ts.bf16), {"D": 128}, {}),
}

TENSOR_CORES = {name for name in COMPILED if name.startswith(("gemm", "flash"))} - {"gemm-f32"}


@pytest.mark.every_case
@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize("name", COMPILED)
def test_compiles_without_spills(name: str, target: str) -> None:
    kernel, dims, constexprs = COMPILED[name]
    artifact = ts.compile(kernel(), target=target, dims=dims, **constexprs)
    assert artifact.code_kind == "cubin"
    assert artifact.code.startswith(b"\x7fELF")
    for facts in artifact.reflection["kernels"].values():
        assert facts["spill_store_bytes"] == facts["spill_load_bytes"] == 0
        assert 0 < facts["registers"] <= 255
    instructions = artifact.reflection["instructions"]
    products = sum(count for kind, count in instructions.items() if kind.startswith(("mma", "wgmma", "tcgen05")))
    # Turing's tensor cores take f16 but not bf16.
    if name in TENSOR_CORES and (target != "sm_75" or name == "gemm-f16"):
        assert products > 0


@pytest.mark.parametrize(("head", "keys"), [(64, 128), (128, 128), (256, 64)])
def test_attention_takes_the_most_keys_at_a_time_that_warp_roles_have_room_for(head: int, keys: int) -> None:
    kernel = flash_attention.flash_attention_for(ts.bf16)
    artifact = ts.compile(kernel, target="sm_90a", dump=["tirh"], dims={"D": head, "S": 4096})
    assert artifact.reflection["config"]["BLOCK_N"] == keys
    assert "tessera_tile.roles(" in artifact.dumps["tirh"]


@pytest.mark.parametrize("name", ["quickstart", "saxpy", "dropout"])
def test_runs_as_a_program(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WRONG" not in done.stdout
