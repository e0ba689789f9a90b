"""A platform from outside compiles kernels once it is registered, and no shared code knows platforms by name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tessera as ts
from tessera.runtime.platforms import platforms
from tessera.target.registry import families, known_targets, register, unregister
from tests.unit.platforms.wave64 import Wave64

SOURCES = Path(ts.__file__).parent
OWN = ("platforms", "backends/cpu", "backends/nvidia", "runtime/cuda", "runtime/device.py")
"""Where a platform's own code is, and the name of the host."""


@pytest.fixture
def wave64() -> Iterator[None]:
    register(Wave64())
    yield
    unregister("wave64")


@ts.kernel
def saxpy(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], a: ts.f32):
    for i in ts.tile.grid((n, 1024)):
        y[i : i + 1024] = a * x[i : i + 1024] + y[i : i + 1024]


@ts.kernel
def row_sum(x: ts.Tensor["m", "n", ts.bf16], out: ts.Tensor["m", ts.f32]):
    for i in ts.tile.grid((m, 16)):
        out[i : i + 16] = ts.tile.sum(ts.tile.cast(x[i : i + 16, :], ts.f32), 1)


@ts.kernel
def gemm(a: ts.Tensor["m", "k", ts.f16], b: ts.Tensor["k", "n", ts.f16], c: ts.Tensor["m", "n", ts.f32]):
    for i, j in ts.tile.grid((m, 64), (n, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for s in ts.tile.range(0, k, 32):
            acc = ts.tile.mma(a[i : i + 64, s : s + 32], b[s : s + 32, j : j + 64], acc)
        c[i : i + 64, j : j + 64] = acc


@ts.kernel
def gemm_f32(a: ts.Tensor["m", "k", ts.f32], b: ts.Tensor["k", "n", ts.f32], c: ts.Tensor["m", "n", ts.f32]):
    for i, j in ts.tile.grid((m, 32), (n, 32)):
        acc = ts.tile.zeros((32, 32), ts.f32)
        for s in ts.tile.range(0, k, 32):
            acc = ts.tile.mma(a[i : i + 32, s : s + 32], b[s : s + 32, j : j + 32], acc)
        c[i : i + 32, j : j + 32] = acc


@pytest.mark.usefixtures("wave64")
@pytest.mark.parametrize(
    ("kernel", "dims", "wanted"),
    [
        (saxpy, {}, ("v_fma", "global_load", "global_store")),
        (row_sum, {"n": 1000}, ("ds_bpermute_b32", "v_add_f32")),
        (gemm, {}, ("v_mfma_f32_", "ds_read", "ds_write", "s_barrier")),
        (gemm_f32, {}, ("v_fma", "ds_read", "ds_write", "s_barrier")),
    ],
    ids=["saxpy", "row_sum", "gemm", "gemm_f32"],
)
def test_compiles(kernel, dims, wanted):
    artifact = ts.compile(kernel, target="gfx90a", dims=dims, dump=("tirt", "asm"))
    assert artifact.backend == "wave64"
    assert artifact.code.startswith(b"\x7fELF")
    (launch,) = artifact.launches
    assert launch.threads % 64 == 0
    for text in wanted:
        assert text in artifact.dumps["asm"], text


@pytest.mark.usefixtures("wave64")
def test_artefact_is_read_back(tmp_path):
    artifact = ts.compile(saxpy, target="gfx90a")
    artifact.save(tmp_path / "saxpy.art")
    assert ts.load(tmp_path / "saxpy.art").artifact == artifact


@pytest.mark.usefixtures("wave64")
def test_it_is_listed_but_has_no_devices():
    assert "gfx90a" in known_targets()
    assert all(info.backend != "wave64" for info in ts.runtime.devices())
    with pytest.raises(ts.TargetError) as caught:
        ts.runtime.select_backend("wave64")
    assert caught.value.code == "unknown-backend"


def test_a_target_that_the_assembler_does_not_know_is_read_back(tmp_path):
    artifact = ts.compile(saxpy, target="sm_70")
    assert artifact.code_kind == "ptx"
    artifact.save(tmp_path / "saxpy.art")
    assert ts.load(tmp_path / "saxpy.art").artifact == artifact


def _names_compared(tree: ast.AST, names: set[str]) -> list[int]:
    lines: list[int] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            texts = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}
            if texts & names:
                lines.append(node.lineno)
    return lines


def _shared(words: set[str]) -> Iterator[tuple[str, ast.AST]]:
    """Yield the files that have one of some words and are no platform's own code, as trees."""
    for path in SOURCES.rglob("*.py"):
        where = path.relative_to(SOURCES).as_posix()
        if not where.startswith((*OWN, "tools/")):
            text = path.read_text(encoding="utf-8")
            if any(word in text for word in words):
                yield where, ast.parse(text)


def test_no_other_code_compares_names_of_platforms():
    names = {one.name for one in families()} | {one.device_kind for one in families()}
    assert not [f"{where}:{line}" for where, tree in _shared(names) for line in _names_compared(tree, names)]


def _uses(tree: ast.AST, protocols: set[str]) -> Iterator[int]:
    """Yield the lines that import a platform's own runtime, or name a protocol of its arrays."""
    for node in ast.walk(tree):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom | ast.Import):
            names += [f"{name}.{alias.name}" for name in names or [""] for alias in node.names]
            if any(name.lstrip(".").startswith("tessera.runtime.cuda") for name in names):
                yield node.lineno
        elif isinstance(node, ast.Attribute) and node.attr in protocols:
            yield node.lineno
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not protocols.isdisjoint([node.value]):
            yield node.lineno


def test_no_other_code_knows_a_platforms_arrays():
    protocols = {one.array_protocol for one in platforms() if one.array_protocol}
    assert protocols
    own = ("runtime/tensor_maps.py", "runtime/workspaces.py")
    files = _shared({*protocols, "cuda"})
    assert not [f"{where}:{line}" for where, tree in files if where not in own for line in _uses(tree, protocols)]
