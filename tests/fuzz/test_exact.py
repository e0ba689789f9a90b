"""Random programs under `strict` are compared with the interpreter's bits, not with the bounds of their meaning."""

from pathlib import Path

import numpy as np

from tessera.tools.fuzz import tree
from tessera.tools.fuzz.arrays import contents
from tessera.tools.fuzz.exact import wanted
from tessera.tools.fuzz.generate import generate
from tessera.tools.fuzz.generate_scope import Options
from tessera.tools.fuzz.meaning import meaning
from tessera.tools.fuzz.meaning_values import Undetermined, Val
from tessera.tools.fuzz.run import differs


def inexact(options: Options) -> tuple[tree.Program, dict[str, np.ndarray], dict[str, Val], str]:
    """Return the first program that stores f32 numbers that have bounds, what it does, and where."""
    for seed in range(1500):
        program = generate(seed, options)
        values = {tensor.name: contents(tensor, seed) for tensor in program.tensors}
        try:
            meant, _ = meaning(program, values)
        except Undetermined:
            continue
        for name, value in meant.items():
            if value.dtype == "f32" and value.err is not None and (value.err > 1e-7).all():
                return program, values, meant, name
    raise AssertionError("no program has inexact results")


def test_bounds_give_way_to_bits(tmp_path: Path) -> None:
    program, values, meant, name = inexact(Options(strict=1, plans=0.5, approximate=0.8))
    assert program.profile == "strict"
    exact = wanted(program, values, tmp_path)[0][name]
    assert not exact.errors()[meant[name].mask()].any()
    result = exact.data.astype(np.float32)
    nudged = np.nextafter(result, np.float32(np.inf))
    assert not differs(result, exact).any()
    assert differs(nudged, exact)[exact.mask()].all()
    assert not differs(nudged, meant[name]).all()


def test_other_profiles_keep_their_bounds(tmp_path: Path) -> None:
    program, values, meant, _ = inexact(Options(profiles=0, approximate=0.8))
    found, _ = wanted(program, values, tmp_path)
    for name, value in meant.items():
        np.testing.assert_array_equal(found[name].errors(), value.errors())
