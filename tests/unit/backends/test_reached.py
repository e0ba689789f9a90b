"""Accesses of boxes whose sizes are known: what no thread reaches is left out."""

import re

import pytest

import tessera as ts

ACCESS = re.compile(r"(ld|st)\.global\S*?(?:\.v([24]))?\.\w?32")


@pytest.mark.parametrize("width", [520, 600, 768, 1000, 1024])
def test_what_lies_outside_for_every_thread_is_not_accessed(width: int) -> None:
    def doubled(x: ts.Tensor["m", width, ts.f32], y: ts.Tensor["m", width, ts.f32]):
        for i in ts.tile.grid((m, 8)):
            y[i : i + 8, :] = x[i : i + 8, :] * 2.0

    made = ts.compile(ts.kernel(doubled), target="sm_90a", dims={"m": 99999}, dump=["ptx"])
    (measured,) = made.reflection["kernels"].values()
    moved = {"ld": 0, "st": 0}
    for kind, count in ACCESS.findall(str(made.dumps["ptx"])):
        moved[kind] += int(count or 1) * measured["threads"]
    for elements in moved.values():
        assert 8 * width <= elements < 8 * (width + 128)  # a warp moves 128 elements of a row at once
