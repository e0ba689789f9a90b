"""What artefacts say on every target, which knobs have no effect, and that `mma_kind` is obeyed or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.target.registry import target_named

TARGETS = ["sm_75", "sm_80", "sm_90a", "x86-64-v3", "aarch64"]


def product(a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["M", "N", ts.f32]) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 64):
            acc = ts.tile.mma(a[m : m + 64, k : k + 64], b[k : k + 64, n : n + 64], acc)
        c[m : m + 64, n : n + 64] = acc


def compiled(target: str, **knobs: Any) -> ts.Artifact:
    kernel = ts.kernel.autotune(space={name: [value] for name, value in knobs.items()})(product)
    return kernel.compile(target=target, dims={"M": 512, "N": 512, "K": 512})


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_tells_shapes_grid_and_features(target: str) -> None:
    facts = ts.kernel(product).compile(target=target).reflection
    assert facts["target"] == target
    assert facts["features"] == sorted(target_named(target).features)
    assert facts["shapes"] == {"a": ["M", "K"], "b": ["K", "N"], "c": ["M", "N"]}
    assert facts["grid"] == {"product": [["M", 64], ["N", 64]]}


@pytest.mark.parametrize(
    ("target", "kind", "instruction"),
    [
        ("sm_80", "mma_sync", "mma.m16n8k16.row.col.f32.bf16.bf16.f32"),
        ("sm_90a", "mma_sync", "mma.m16n8k16.row.col.f32.bf16.bf16.f32"),
        ("sm_90a", "wgmma", "wgmma"),
        ("sm_80", "fma", "fma"),
        ("sm_90a", "fma", "fma"),
    ],
)
def test_products_are_computed_by_what_was_asked_for(target: str, kind: str, instruction: str) -> None:
    used = compiled(target, mma_kind=kind).reflection["instructions"]
    assert any(name.startswith(instruction) for name in used)
    others = {"mma", "wgmma"} - {instruction.partition(".")[0]}
    assert not any(name.partition(".")[0] in others for name in used)


def few_rows(q: ts.Tensor["H", 8, 64, ts.bf16], k: ts.Tensor["H", "S", 64, ts.bf16], s: ts.Tensor["H", 8, "S", ts.f32]):
    for h, n in ts.tile.grid((H, 1), (S, 64)):
        s[h, :, n : n + 64] = ts.tile.mma(q[h, :, :], k[h, n : n + 64, :].T)


def narrow(a: ts.Tensor[64, 64, ts.fp8_e4m3], c: ts.Tensor[64, 64, ts.f32]):
    c[:, :] = ts.tile.mma(a[:, :], a[:, :].T)


def cut(a: ts.Tensor[64, 64, ts.tf32], c: ts.Tensor[64, 64, ts.f32]):
    c[:, :] = ts.tile.mma(a[:, :], a[:, :].T)


def staged(a: ts.Tensor[64, ts.f32], c: ts.Tensor[64, ts.f32]):
    buffer = ts.tile.alloc_shared((64,), ts.f32)
    ts.tile.cp_async(buffer, a[:])
    ts.tile.barrier()
    c[:] = ts.tile.exp(ts.tile.load(buffer)) + ts.tile.load(buffer)


@pytest.mark.parametrize(
    ("function", "target", "kind", "text"),
    [
        (few_rows, "sm_90a", "emulations", "bf16 mma of 8x64x64 emulated with fma: no matrix unit is used"),
        (few_rows, "sm_80", "emulations", "take tiles of 16x8x16 and more"),
        (product, "sm_75", "emulations", "sm_75 has no instruction for it"),
        (product, "x86-64-v3", "fallbacks", "bf16 mma through f32 (exact)"),
        (narrow, "x86-64-v3", "fallbacks", "fp8_e4m3 mma through f32 (exact)"),
        (narrow, "sapphirerapids", "fallbacks", "fp8_e4m3 mma through bf16 (exact)"),
        (cut, "aarch64", "fallbacks", "tf32 mma computed in f32"),
        (staged, "x86-64-v3", "copies", "asynchronous copies"),
        (product, "sapphirerapids", "fallbacks", None),
        (product, "sm_80", "emulations", None),
    ],
)
def test_what_is_computed_otherwise_is_told(function: Any, target: str, kind: str, text: str | None) -> None:
    notes = ts.kernel(function).compile(target=target).reflection.get(kind, [])
    assert (text is None and not notes) or any(text is not None and text in note for note in notes)


@pytest.mark.parametrize(("target", "kind"), [("sm_75", "mma_sync"), ("sm_80", "wgmma"), ("sm_75", "wgmma")])
def test_what_a_target_has_not_is_refused(target: str, kind: str) -> None:
    with pytest.raises(ts.ResourceError) as caught:
        compiled(target, mma_kind=kind)
    assert caught.value.code == "no-instruction"
    assert f"mma_kind={kind} does not compute this product of 64x64x64" in str(caught.value)


def test_knobs_without_effect_are_told() -> None:
    facts = compiled("x86-64-v3", mma_kind="wgmma", num_warps=8, panel=16).reflection
    assert facts["knobs"] == ["num_warps=8 has no effect on x86-64-v3", "mma_kind=wgmma has no effect on x86-64-v3"]
    assert "knobs" not in compiled("sm_80", num_warps=8).reflection
    assert compiled("sm_80", panel=16).reflection["knobs"] == ["panel=16 has no effect on sm_80"]


def test_dtypes_go_by_the_names_of_others() -> None:
    names = {"fp16": ts.f16, "float32": ts.f32, "fp64": ts.f64, "bfloat16": ts.bf16, "int8": ts.i8, "uint64": ts.u64}
    assert {name: getattr(ts, name) for name in names} == names
    for name in (
        "float16",
        "float32",
        "float64",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
    ):
        bits = getattr(ts, name)
        assert np.dtype(name).itemsize == bits.bytes


def test_operations_go_by_a_short_name() -> None:
    from tessera import op, runtime

    assert op is ts.ops
    assert runtime is ts.runtime
