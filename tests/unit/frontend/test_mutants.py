"""Mutated kernels: each builds to verified IR or is refused with a typed error; nothing else escapes."""

from __future__ import annotations

import ast
import copy
import importlib.util
import random
from pathlib import Path
from typing import Any

import pytest

import tessera as ts
from tests.unit.frontend.support import built

SEED_KERNELS = """
import math

import numpy as np

import tessera as ts

SCALE = 0.5
PAIR = (1, 2)
TABLE = {"a": 1}


@ts.function
def helper(x, y=2):
    z = x * y
    if y > 1:
        z = z + 1
    return z


def gemm(A: ts.Tensor["M", "K", ts.bf16], B: ts.Tensor["K", "N", ts.bf16], C: ts.Tensor["M", "N", ts.f32], s: ts.f32,
         i: int, flag: bool = True):
    ctx = ts.tile.context()
    for m, n in ts.tile.grid((M, ctx.BM), (N, 16)):
        acc = ts.tile.zeros((16, 16), ts.f32)
        best, count = -math.inf, 0
        for k in ts.tile.range(0, K, 16):
            a = A[m:m+16, k:k+16]
            acc = ts.tile.mma(a, B[k:k+16, n:n+16], acc)
            count += 1
            if count > i:
                best = ts.tile.maximum(best, s)
        if flag and i > 2:
            acc = helper(acc, y=3) * SCALE
        elif not flag:
            acc = acc - best
        t = ts.tile.row_max(acc)
        C[m:m+16, n:n+16] = ts.tile.where(acc > 0.5, acc, t[:, None]).to(ts.f32)
    return C


def linear(x: ts.Tensor["n", ts.i32], y: ts.Tensor["n", ts.f32], h: ts.Tensor[8, ts.i32], seed: int):
    i = ts.tile.linear_id()
    v = 1.0
    if i < n:
        u = x[i]
        if u > 3:
            v = y[i] * 2 - u
            ts.tile.atomic_add(h[u % 8], 1)
        else:
            v = ts.tile.exp(y[i]) ** 2
        y[i] = ts.tile.dropout(v, 0.5, seed, i)
    assert i >= 0, "negative"


def explicit(A: ts.Tensor["M", "K", ts.f16], C: ts.Tensor["M", 32, ts.f32]):
    ring = ts.tile.alloc_shared((2, 32, 32), ts.f16, swizzle="xor")
    stage = 0
    total = ts.tile.full((32, 32), 0.0)
    for k in ts.tile.static_range(3):
        ts.tile.cp_async(ring[stage], A[0:32, k * 32:(k + 1) * 32])
        ts.tile.barrier()
        total += ts.tile.sum(ring[stage].T * PAIR[0], 0)
        stage = (stage + 1) % 2
    while stage < 5 and stage != PAIR[1]:
        stage = stage + TABLE["a"]
    print(f"stage {stage}", total.shape)
    C[0:32] = ts.tile.transpose(total, (1, 0))
    return C
"""

EXPRESSIONS = """
0; 1; -1; 2.5; True; None; 'text'; (1, 2); (); ...; ts; ts.f32; ts.tile; math.pi; np.pi; int; 1 << 70; 1e400; b'x'
x; y; A; C; i; m; k; acc; n; M; K; v; ring; stage; ctx; nothing; SCALE; PAIR; helper; ts.tile.exp; print; len; np.exp
A[0:16, 0:16]; A[0]; y[:]; x[0:8]; y[i]; x[::2]; A.shape; acc.T; acc.to; acc > 0; M // 2; [1, 2]; {}; lambda: 0
ts.tile.zeros((16, 16)); ts.tile.arange(16); ts.tile.linear_id(); ts.tile.context(); ts.tile.grid((M, 16))
ts.tile.range(4); ts.tile.sum(acc); ts.tile.barrier(); ts.tile.philox(1, ts.tile.arange(4)); float('inf')
[j for j in (1, 2)]; f'{i}'; 1 if i else 2; i if acc else k; not i; i < 3; ts.Tensor['M', ts.f32]; ts.dims('M')
ts.tile.alloc_shared((32, 32), ts.f16); ts.tile.cast(i, ts.fp8_e4m3); ts.accum(ts.f32)
"""

STATEMENTS = """
pass; return; return C; break; x = y; y[0] = 1; acc += 1; i, j = 1, 2; del i; import os; C[0:16, 0:16] += 1
ts.tile.barrier(); ts.tile.commit_group(); assert acc > 0; print(acc)
for q in ts.tile.range(3): i = q
if i > 1: k = 2
while i < 3: i = i + 1
with ts: pass
"""

POOL: dict[type[ast.AST], list[Any]] = {
    ast.expr: [part.value for part in ast.parse(EXPRESSIONS).body if isinstance(part, ast.Expr)],
    ast.stmt: ast.parse(STATEMENTS).body,
}


def mutate(function: ast.FunctionDef, chance: random.Random) -> ast.FunctionDef:
    """Replace, swap or remove one or two parts of a function's body."""
    function = copy.deepcopy(function)
    for _ in range(chance.choice((1, 1, 2))):
        places = [
            (parent, name, index)
            for statement in function.body
            for parent in ast.walk(statement)
            for name, value in ast.iter_fields(parent)
            for index, item in enumerate(value if isinstance(value, list) else [value])
            if isinstance(item, ast.expr | ast.stmt) and not isinstance(getattr(item, "ctx", None), ast.Store)
        ]
        parent, name, index = chance.choice(places)
        value = getattr(parent, name)
        old = value[index] if isinstance(value, list) else value
        new: Any = copy.deepcopy(chance.choice(POOL[ast.expr if isinstance(old, ast.expr) else ast.stmt]))
        if isinstance(old, ast.expr) and chance.random() < 0.7:
            others = [n for s in function.body for n in ast.walk(s) if isinstance(n, ast.expr)]
            new = copy.deepcopy(chance.choice(others))
        if isinstance(new, ast.Slice | ast.FormattedValue | ast.Starred) or isinstance(old, ast.FormattedValue):
            continue
        if hasattr(new, "ctx"):
            new.ctx = ast.Load()
        if isinstance(value, list):
            value[index] = new
        else:
            setattr(parent, name, new)
    return function


def mutants(seed: int, count: int, path: Path) -> Any:
    """Write `count` mutated functions to a module and import it."""
    chance = random.Random(seed)
    tree = ast.parse(SEED_KERNELS)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name != "helper"]
    header = [node for node in tree.body if node not in functions]
    body: list[ast.stmt] = [*header]
    for number in range(count):
        while True:
            mutant = mutate(chance.choice(functions), chance)
            mutant.name = f"mutant_{number}"
            try:
                ast.parse(ast.unparse(ast.fix_missing_locations(mutant)))
                compile(ast.unparse(mutant), "mutant", "exec")
            except (SyntaxError, ValueError):
                continue
            break
        body.append(mutant)
    path.write_text(ast.unparse(ast.fix_missing_locations(ast.Module(body, []))))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def refusal(function: Any) -> ts.TesseraError | None:
    """Build a kernel and return the typed error that refuses it, if any."""
    try:
        built(function, dict(M=40, N=24, K=50, n=100), config=dict(BM=16), debug=True, linear_block=32)
    except ts.TesseraError as error:
        return error
    return None


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("seed", range(4))
def test_mutants_build_or_are_refused(seed, tmp_path):
    module = mutants(seed, 60, tmp_path / f"mutants_{seed}.py")
    errors = [refusal(getattr(module, f"mutant_{number}")) for number in range(60)]
    refusals = [error for error in errors if error is not None]
    assert 0 < len(refusals) < len(errors)
    for error in refusals:
        assert error.code != "compiler-fault"
        assert error.location is not None, error
        assert str(error)
