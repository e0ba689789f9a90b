"""What each NVIDIA target gets, without a device: cubins, expected instructions, no spills."""

from typing import Any

import pytest

import tessera as ts
from tessera.numerics.dtypes import accumulator_of
from tests.conformance.harness import dtype
from tests.conformance.test_control import masked, phases
from tests.conformance.test_memory import atomics, gathered
from tests.conformance.test_mma import looped
from tests.conformance.test_programs import (
    attention,
    bias_gelu,
    layernorm,
    mlp,
    online_softmax,
    rope,
    saxpy,
    softmax,
)
from tests.conformance.test_reductions import scans
from tests.conformance.test_shared import gemm_barriers, gemm_ring

TARGETS = ("sm_70", "sm_75", "sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a")

BLOCKS = {"BM": 64, "BN": 64, "BK": 32}
SQUARE = {"M": 256, "N": 256, "K": 256}


def gemm(name: str, turned: str = "b") -> Any:
    """Return a GEMM over a dtype; B is stored transposed, as the instructions of 8-bit types want it."""
    return looped(dtype(name), accumulator_of(dtype(name).storage), turned)


# Kernel, sizes, constants
KERNELS: dict[str, tuple[Any, dict[str, int], dict[str, Any]]] = {
    "saxpy": (saxpy, {"n": 4096}, {}),
    "softmax": (softmax, {"M": 64, "N": 1024}, {}),
    "online-softmax": (online_softmax, {"M": 64, "N": 5000}, {"BN": 512}),
    "layernorm": (layernorm(ts.bf16), {"M": 64, "N": 768}, {}),
    "rope": (rope, {"S": 64, "H": 4, "D": 64}, {}),
    "bias-gelu": (bias_gelu, {"M": 64, "N": 96}, {}),
    "attention": (attention(ts.bf16), {"S": 128, "T": 128, "D": 64}, {"causal": True, "BM": 64, "BN": 64}),
    "attention-f16": (attention(ts.f16), {"S": 100, "T": 90, "D": 32}, {"causal": False, "BM": 64, "BN": 32}),
    "mlp": (mlp, {"M": 64, "H": 128}, {}),
    "gemm-barriers": (gemm_barriers(ts.bf16), SQUARE, {}),
    "gemm-ring": (gemm_ring(ts.f16, 3), SQUARE, {}),
    "atomics": (atomics(ts.f32), {"n": 1000}, {}),
    "gather": (gathered(ts.bf16), {"m": 19, "n": 13, "k": 24}, {}),
    "scan": (scans(("sum",), (4, 100), ts.f32, ts.f32, 1), {}, {}),
    "masked": (masked, {"m": 17, "n": 50}, {}),
    "phases": (phases, {"m": 10, "n": 33}, {}),
    **{
        f"gemm-{name}": (gemm(name), SQUARE, BLOCKS)
        for name in ("f32", "tf32", "f16", "bf16", "fp8_e4m3", "i8", "u8", "f64")
    },
}


def compiled(label: str, target: str) -> ts.Artifact:
    """Compile one of the kernels."""
    kernel, sizes, constants = KERNELS[label]
    return ts.compile(ts.kernel(kernel), target=target, dims=sizes, **constants)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("label", KERNELS)
def test_every_target_compiles_every_kernel(label, target):
    artifact = compiled(label, target)
    assert artifact.code_kind == ("ptx" if target == "sm_70" else "cubin")
    assert artifact.target == target
    if artifact.code_kind == "cubin":
        assert artifact.code[:4] == b"\x7fELF"
        for name, facts in artifact.reflection["kernels"].items():
            assert facts["spill_store_bytes"] == facts["spill_load_bytes"] == 0, f"{name}: {facts}"


def notes(label: str, target: str) -> list[str]:
    """Return what `explain()` tells of a kernel's products: emulated, or computed in another dtype."""
    facts = compiled(label, target).reflection
    return [*facts.get("emulations", ()), *facts.get("fallbacks", ())]


def instructions(label: str, target: str) -> dict[str, int]:
    """Return how often each instruction stands in a kernel's code."""
    return compiled(label, target).reflection["instructions"]


# The first target that has the instruction, and what older ones do instead (None: fused multiply-adds).
MATRIX = {
    "f16": (
        ("sm_70", "m8n8k4.row.col.f32.f16.f16.f32"),
        ("sm_75", "m16n8k8.row.col.f32.f16.f16.f32"),
        ("sm_80", "m16n8k16.row.col.f32.f16.f16.f32"),
    ),
    "bf16": (("sm_70", None), ("sm_80", "m16n8k16.row.col.f32.bf16.bf16.f32")),
    "tf32": (("sm_70", None), ("sm_80", "m16n8k8.row.col.f32.tf32.tf32.f32")),
    "f32": (("sm_70", None),),
    "i8": (
        ("sm_70", None),
        ("sm_75", "m8n8k16.row.col.s32.s8.s8.s32"),
        ("sm_80", "m16n8k32.row.col.s32.s8.s8.s32"),
    ),
    "u8": (
        ("sm_70", None),
        ("sm_75", "m8n8k16.row.col.s32.u8.u8.s32"),
        ("sm_80", "m16n8k32.row.col.s32.u8.u8.s32"),
    ),
    "fp8_e4m3": (
        ("sm_70", "m8n8k4.row.col.f32.f16.f16.f32"),
        ("sm_75", "m16n8k8.row.col.f32.f16.f16.f32"),
        ("sm_80", "m16n8k16.row.col.f32.f16.f16.f32"),
        ("sm_89", "m16n8k32.row.col.f32.e4m3.e4m3.f32"),
    ),
    "f64": (
        ("sm_70", None),
        ("sm_80", "m8n8k4.row.col.f64.f64.f64.f64"),
        ("sm_90", "m16n8k16.row.col.f64.f64.f64.f64"),
    ),
}


def number(target: str) -> int:
    """Return a target's compute capability."""
    return int("".join(c for c in target if c.isdigit()))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", MATRIX)
def test_products_use_the_best_instruction_of_the_target(name, target):
    wanted = next(kind for since, kind in reversed(MATRIX[name]) if number(since) <= number(target))
    counts = instructions(f"gemm-{name}", target)
    kinds = {key.removeprefix("mma.") for key in counts if key.startswith("mma.")}
    if "wgmma" in counts:
        assert target == "sm_90a"
        return
    assert kinds == (set() if wanted is None else {wanted})
    if wanted is None:
        assert any("fma" in note for note in notes(f"gemm-{name}", target))


@pytest.mark.parametrize("label", ["gemm-f16", "gemm-barriers", "gemm-ring", "attention-f16"])
@pytest.mark.parametrize("target", TARGETS)
def test_operands_come_through_shared_memory(label, target):
    counts = instructions(label, target)
    if "wgmma" in counts:
        assert counts["tma"] > 0
        return
    assert ("cp.async" in counts) == (number(target) >= 80)
    matrix = any(key.startswith("mma.") for key in counts)
    assert ("ldmatrix" in counts) == (matrix and number(target) >= 75)


@pytest.mark.parametrize("target", TARGETS[1:])
def test_row_kernels_need_no_shared_memory(target):
    facts = compiled("softmax", target).reflection["kernels"]["softmax"]
    assert facts["shared_bytes"] == 0
    assert "shuffle" in instructions("softmax", target)


def test_fp8_of_older_targets_is_recorded():
    assert any("through f16" in note for note in notes("gemm-fp8_e4m3", "sm_80"))
