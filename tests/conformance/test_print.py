"""What kernels print, of tiles that threads hold in different ways."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tessera as ts
from tests.unit.frontend.support import built

SCRIPT = """
import sys
import numpy as np
import tessera as ts

@ts.kernel
def show(x: ts.Tensor["M", 5, ts.f32], y: ts.Tensor[5, ts.i32]):
    for m in ts.tile.grid((M, 6)):
        rows = ts.tile.sum(x[m : m + 6, :], axis=1)
        print("row", m, rows, ts.tile.max(x[m : m + 6, :], axis=1))
        print(f"all {x[m : m + 6, :]} {y[:]}", rows[:, None])

x, y = np.arange(30, dtype=np.float32).reshape(6, 5), np.arange(5, dtype=np.int32)
if sys.argv[1] == "cuda":
    import torch
    show(torch.from_numpy(x).cuda(), torch.from_numpy(y).cuda())
    torch.cuda.synchronize()
else:
    show(x, y)
"""


@pytest.mark.parametrize("device", ["cpu", "interp", pytest.param("cuda", marks=pytest.mark.device)])
def test_a_line_for_each_element(tmp_path: Path, device: str) -> None:
    script = tmp_path / "show.py"
    script.write_text(SCRIPT, encoding="utf-8")
    environment = os.environ | {"TESSERA_INTERPRET": str(int(device == "interp"))}
    command = [sys.executable, str(script), device]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    x = np.arange(30).reshape(6, 5)
    rows = [f"row 0 {row.sum()} {row.max()}" for row in x]
    every = [f"all {x[i, j]} {j} {x[i].sum()}" for i in range(6) for j in range(5)]
    assert sorted(ran.stdout.splitlines()) == sorted(rows + every)


def unequal(x: ts.Tensor[8, ts.f32], y: ts.Tensor[6, ts.f32]):
    for _ in ts.tile.grid((1, 1)):
        print(x[:], y[:])


def test_tiles_that_do_not_broadcast_are_refused() -> None:
    with pytest.raises(ts.TypeMismatchError, match=r"print: .* do not broadcast") as caught:
        built(unequal)
    assert caught.value.code == "shape-mismatch"
