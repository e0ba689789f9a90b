"""Atomics of GPUs, all functions on all dtypes, on the emulated GPU; no thread leaves its warp for them."""

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.numerics.dtypes import BY_NAME, DType
from tessera.tools.emulate import machine
from tessera.tools.emulate.launch import Emulation, Limits
from tessera.tools.emulate.memory import Device

M, N = 6, 11
"""Less than the tile, so that some threads of each warp take no part."""

WHOLE = ("bool", "u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64")
REAL = ("fp8_e4m3", "fp8_e5m2", "bf16", "f16", "f32", "f64")
COMBINE = {
    "add": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "exchange": lambda _old, new: new,
}
CASES = [
    *((fn, name) for fn in ("add", "max", "min", "and", "or", "xor") for name in WHOLE[1:]),
    *((fn, name) for fn in ("add", "max", "min") for name in REAL),
    *((fn, name) for fn in ("exchange", "compare_exchange") for name in (*WHOLE[1:], *REAL)),
]


def _kernel(fn: str, dtype: DType) -> Any:
    swap = ts.tile.atomic_compare_exchange
    update = None if fn == "compare_exchange" else getattr(ts.tile, f"atomic_{fn}")

    @ts.kernel.autotune(space={"num_warps": [2]})
    def kernel(
        k: int,
        into: ts.Tensor["M", "N", dtype],
        x: ts.Tensor["M", "N", dtype],
        wanted: ts.Tensor["M", "N", dtype],
        old: ts.Tensor["M", "N", dtype],
        sums: ts.Tensor["N", ts.f32],
    ):
        for _ in ts.tile.grid((M, 8)):
            tile = x[0:8, 0:16]
            if k > 3:
                if update is None:
                    old[0:8, 0:16] = swap(into[0:8, 0:16], wanted[0:8, 0:16], tile)
                else:
                    old[0:8, 0:16] = update(into[0:8, 0:16], tile)
            else:
                old[0:8, 0:16] = tile
            sums[0:16] = ts.tile.sum(tile.to(ts.f32), axis=0)

    return kernel


@pytest.mark.parametrize(
    ("fn", "name", "target"),
    [
        (fn, name, target)
        for number, (fn, name) in enumerate(CASES)
        for part, target in enumerate(("sm_70", "sm_90a"))
        if name in REAL or number % 2 == part
    ],
)
def test_updates(fn: str, name: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dtype, rng = BY_NAME[name], np.random.default_rng(len(fn) * 100 + len(name))
    low = 0 if dtype.kind == "uint" else -3
    into, x, wanted = (rng.integers(low, 4, (M, N)).astype(dtype.numpy()) for _ in range(3))
    old, sums = np.zeros_like(into), np.zeros(N, np.float32)
    if fn == "compare_exchange":
        after = np.where(into == wanted, x, into)
    else:
        after = COMBINE[fn](into, x).astype(into.dtype)
    expected = (after, x, wanted, into.copy(), x.astype(np.float32).sum(0))
    parted: list[int] = []
    monkeypatch.setattr(machine, "check_meetings", lambda _code, places: parted.extend(places))
    device, arrays = Device(), (into, x, wanted, old, sums)
    pointers = [device.add(array.reshape(-1).view(np.uint8), np.ones(array.nbytes, bool)) for array in arrays]
    artifact = ts.compile(_kernel(fn, dtype), target=target, dims={"M": M, "N": N}, dump=["ptx"])
    layouts = (None, *[((M, N), (N, 1))] * 4, ((N,), (1,)))
    Emulation(artifact).run(device, pointers, layouts, [5], Limits(10**8, None))
    for number, (given, array) in enumerate(zip(arrays, expected, strict=True)):
        np.testing.assert_array_equal(device.back(number).view(given.dtype).reshape(given.shape), array)
    assert not parted
