"""Sizes that random programs spell: the texts that hold programs keep them, and annotations say no 0."""

from __future__ import annotations

from tessera.tools.fuzz import tree
from tessera.tools.fuzz.generate import generate
from tessera.tools.fuzz.generate_scope import Options
from tessera.tools.fuzz.serial import dumps, loads


def test_spelled_sizes_are_kept_and_never_0() -> None:
    spelled = 0
    for seed in range(120):
        program = generate(seed, Options(small=1, dims=1, empty=0.5))
        dims = [dim for tensor in program.tensors for dim in tensor.dims]
        assert 0 not in dims, seed
        spelled += any(isinstance(dim, tree.Spelled) for dim in dims)
        assert loads(dumps(program)) == program
    assert spelled > 50
