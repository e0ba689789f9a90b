"""Functions that kernels share: compiled once, and the same code wherever they come to lie."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.backends.cpu import codegen, compile_cpu, host_target, load_object, shared
from tessera.backends.llvm.text import ModuleText
from tessera.lower.vector import lower_to_vector
from tessera.runtime.cpu import CpuLauncher
from tessera.runtime.host import architecture
from tests.unit.backends.test_products import check
from tests.unit.lower.support import aligned, scheduled

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or architecture() != "x86_64", reason="code is shared on x86-64 under Linux"
)
RNG = np.random.default_rng(5)


def product(rows: int, factor: float) -> Any:
    """Return a function that multiplies tiles of so many rows, and the result by a number."""

    def multiply(a, b, c):
        for i, j in ts.tile.grid((c.shape[0], rows), (c.shape[1], 64)):
            acc = ts.tile.zeros((rows, 64), ts.f32)
            for k in ts.tile.range(0, a.shape[1], 64):
                acc = ts.tile.mma(a[i : i + rows, k : k + 64], b[k : k + 64, j : j + 64], acc)
            c[i : i + rows, j : j + 64] = acc * factor

    F32 = ts.f32
    multiply.__annotations__ = {"a": ts.Tensor["m", "k", F32], "b": ts.Tensor["k", "n", F32]}
    multiply.__annotations__["c"] = ts.Tensor["m", "n", F32]
    return ts.kernel(multiply)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what is kept, and nothing that is kept already."""
    found: list[str] = []

    def keep(name: str, make: Callable[[], bytes]) -> bytes:
        found.append(name)
        return make()

    monkeypatch.setattr(shared, "kept", keep)
    monkeypatch.setattr(shared, "_codes", {})
    return found


def run(kernel: Any, sizes: tuple[int, int, int], factor: float) -> None:
    """Compile a product, run it, and compare it with float64."""
    m, n, k = sizes
    artifact = ts.compile(kernel, target="cpu")
    a, b, c = RNG.standard_normal((m, k), np.float32), RNG.standard_normal((k, n), np.float32), np.zeros((m, n), "f4")
    launcher = CpuLauncher(artifact, load_object)
    shapes = [(x.shape, tuple(s // x.itemsize for s in x.strides)) for x in (a, b, c)]
    launcher.prepare(shapes).launch([x.ctypes.data for x in (a, b, c)], [])
    np.testing.assert_allclose(c, factor * (a.astype("f8") @ b), rtol=1e-5, atol=1e-4)


def test_products_of_a_kind_share_their_functions(asked: list[str]):
    made: list[int] = []
    for rows, factor in ((48, 2.0), (48, 3.0), (96, 2.0)):
        run(product(rows, factor), (rows + 5, 70, 130), factor)
        made.append(len(asked))
        asked.clear()
    first, second, third = made
    assert first > 3  # the product's, and those of blocks of rows
    assert second == 0  # its epilogue is its own
    assert 0 < third < first


@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16", "i8", "u8"])
def test_shared_code_equals_products(dtype: str, turned: tuple[bool, bool]):
    """Constants among the code, rows in place or copied, and tails: 37 rows in blocks, 75 columns, an odd depth."""
    check(dtype, (37, 75, 131), (32, 64, 64), turned)


def test_facts_are_those_of_one_module():
    module = lower_to_vector(scheduled(aligned(product(48, 2.0).__wrapped__), host_target()), host_target())
    apart, whole = (compile_cpu(module, host_target(), dump) for dump in ((), ("ll",)))
    assert apart.reflection == whole.reflection
    assert "module asm" not in whole.dumps["ll"]


def test_what_needs_something_outside_is_not_shared():
    target = host_target()
    module = ModuleText(triple=target.triple, shares=True)
    text = "define internal void @outer(ptr %p) {{\n  call void @{0}(ptr %p)\n  ret void\n}}"

    def write(called: str, where: ModuleText) -> str:
        where.declare(f"declare void @{called}(ptr)")
        return text.format(called)

    shared.shared_function(module, target, "outer", "a call outside", partial(write, "free"))
    facts: Any = {"triple": target.triple, "cpu": target.cpu, "features": target.llvm_features}

    def compile_(ir: str) -> bytes:
        return codegen.compile_ir(ir, **facts, avx512=False, native=True, assembly=False)[0]

    assert shared.linked(module, compile_) is None


def test_other_targets_share_nothing():
    assert shared.can_share(host_target())
    assert not shared.can_share(replace(host_target(), name="x86-64-v3"))
