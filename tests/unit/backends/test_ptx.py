"""PTX of blocks with very many addresses."""

from __future__ import annotations

import time

import pytest

import tessera as ts
from tessera.backends.nvidia.assemble import resume_ptx, to_ptx
from tessera.backends.nvidia.ptx import MOST_ADDRESSES, has_very_many_addresses
from tessera.target.registry import target_named

TARGET = target_named("sm_90a")


def module_with(addresses: int) -> str:
    """Return a module that stores to so many addresses in one block, each some rows from the others."""
    lines = list[str]()
    for i in range(addresses):
        lines += [
            f"  %m{i} = mul nsw i64 %n, {i * i + 3}\n",
            f"  %a{i} = getelementptr inbounds float, ptr addrspace(1) %p, i64 %m{i}\n",
            f"  store float {i}.0, ptr addrspace(1) %a{i}\n",
        ]
    head = 'target triple = "nvptx64-nvidia-cuda"\ndefine ptx_kernel void @k(ptr addrspace(1) %p, i64 %n) {'
    return f"{head}\nentry:\n{''.join(lines)}  ret void\n}}\n"


@pytest.mark.parametrize("addresses", [10, MOST_ADDRESSES // 2 + 1])
def test_all_of_very_many_addresses_are_stored_to(addresses: int) -> None:
    optimised, text = to_ptx(module_with(addresses), TARGET)
    assert has_very_many_addresses(optimised) == (addresses > 10)
    assert text.count("st.global") == addresses


@ts.kernel.autotune(space={"num_warps": [1]})
def turned(x: ts.Tensor["p", "d", "m", ts.i64]):
    for i, j, k in ts.tile.grid((m, 130), (d, 130), (p, 1)):
        rows = j + ts.tile.arange(65) % 130
        x[k, j + 64 : j - 1 : -1, i : i + 130] = x[k, rows, i : i + 130] * -5


def test_a_large_tile_of_one_warp_compiles_in_time() -> None:
    """Without the worker LLVM takes minutes."""
    start = time.perf_counter()
    found = ts.compile(turned, target="sm_90a", dump=["ll"])
    took = time.perf_counter() - start
    text = found.dumps["ll"]
    assert isinstance(text, str)
    assert has_very_many_addresses(text)
    assert took < 60


def test_what_a_worker_makes_is_what_this_process_makes() -> None:
    optimised, text = to_ptx(module_with(10), TARGET)
    assert resume_ptx(optimised, TARGET) == text
