"""Sizes that annotations spell as expressions of a dimension's name: `N+3`, `2*N-1`, `(N+5)//2`."""

from __future__ import annotations

import random
from dataclasses import replace

from tessera.tools.fuzz import tree


def spelled(program: tree.Program, random: random.Random) -> tree.Program:
    """Return a program in which some sizes are spelled by expressions; arrays and results stay as they are.

    Args:
        program: the program.
        random: what decides which.
    """
    for tensor in program.tensors:
        for axis, dim in enumerate(tensor.dims):
            sizes = program.dims
            if isinstance(dim, int) and sizes and random.random() < 0.5:
                name = random.choice(list(sizes))
                program = _with_dim(program, tensor.name, axis, _spelling(name, sizes[name], dim, random))
    # A name that stands nowhere alone any more is solved for.
    for name in program.dims:
        lines = [dim for tensor in program.tensors for dim in tensor.dims if _decides(dim, name)]
        if lines and random.random() < 0.4:
            for tensor in program.tensors:
                for axis, dim in enumerate(tensor.dims):
                    if dim == name and tensor.shape[axis]:  # no annotation says 0
                        program = _with_dim(program, tensor.name, axis, tensor.shape[axis])
    return program


def _decides(dim: str | int | tree.Spelled, name: str) -> bool:
    return isinstance(dim, tree.Spelled) and dim.name == name and dim.divisor == 1


def _spelling(name: str, size: int, wanted: int, random: random.Random) -> tree.Spelled:
    """Return an expression of a name of a size that has a value."""
    factor, divisor = random.choice((1, 1, 2, 3)), random.choice((1, 1, 2, 16))
    left = random.randrange(divisor)
    return tree.Spelled(name, size, factor, wanted * divisor + left - factor * size, divisor)


def _with_dim(program: tree.Program, name: str, axis: int, dim: int | tree.Spelled) -> tree.Program:
    params = [
        replace(param, dims=(*param.dims[:axis], dim, *param.dims[axis + 1 :]))
        if isinstance(param, tree.Tensor) and param.name == name
        else param
        for param in program.params
    ]
    return replace(program, params=tuple(params))
