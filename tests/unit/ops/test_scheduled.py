"""What Hopper's schedule makes of the family, run on the interpreter: roles, rings, barriers and bounds included."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from xdsl.parser import Parser

import tessera as ts
from tessera import ops as op
from tessera.interp import interpret
from tessera.ir.collect import new_context
from tessera.ops.linalg.grouped import grouped_kernel
from tessera.ops.linalg.plan import plan
from tessera.ops.linalg.prepare import EMPTY, kernel_for, sized
from tessera.ops.linalg.problem import Forced, Options
from tessera.target.registry import target_named
from tests.unit.ops.support import error, random

E = op.epilogue
HOPPER = target_named("sm_90a")
SMALL = Forced(block=(64, 64, 64), stages=2)
M, N, K = 136, 144, 200


def run(kernel, dims, *args, roles=True, text=""):
    """Compile for Hopper, and run what its schedule made in a random order of copies and roles."""
    made = kernel.compile(target="sm_90a", dump=("tirh",), dims=dims).dumps["tirh"]
    assert ("tessera_tile.roles" in made) == roles
    assert text in made
    interpret(Parser(new_context(), made).parse_module(), list(args), order_seed=7)


def exact(a, b):
    return a.astype(np.float64) @ b.astype(np.float64)


def test_a_chain_on_a_triangle():
    a, b, bias, out = (
        random(M, K, dtype=ts.bf16),
        random(K, N, dtype=ts.bf16),
        random(N),
        np.zeros((M, N), np.float32),
    )
    chain = E.chain([E.bias(bias), E.silu()])
    problem = sized(M, N, K, ts.bf16, ts.bf16, Options(out_dtype=ts.f32, triangular_only="lower"))
    run(kernel_for(problem, plan(problem, HOPPER, SMALL), chain), dict(M=M, N=N, K=K), a, b, out, bias)
    assert error(out, np.tril(chain.reference(exact(a, b)))) < 3e-6


@pytest.mark.parametrize("m", [1, 8, 16, 20, 32])
@pytest.mark.parametrize("trans_b", [False, True])
def test_few_rows_are_columns_of_the_transposed_product(m, trans_b):
    a, b, bias, out = (
        random(m, K, dtype=ts.bf16),
        random(K, N, dtype=ts.bf16),
        random(N),
        np.zeros((m, N), np.float32),
    )
    given = np.ascontiguousarray(b.T) if trans_b else b
    chain = E.chain([E.bias(bias), E.gelu("tanh")])
    problem = sized(m, N, K, ts.bf16, ts.bf16, Options(out_dtype=ts.f32, trans_b=trans_b), chain)
    schedule = plan(replace(problem, a_lines=True, b_lines=True), HOPPER)
    assert schedule.turned
    run(kernel_for(problem, schedule, chain), dict(M=m, N=N, K=K), a, given, out, bias)
    assert error(out, chain.reference(exact(a, b))) < 3e-6


@pytest.mark.parametrize("kinds", [("row", "block"), ("block", "col"), ("", "block")])
def test_scales_of_blocks(kinds):
    k = 272
    a, b = random(M, k, dtype=ts.fp8_e4m3), random(N, k, dtype=ts.fp8_e5m2)
    scale_a = {"row": random(M, 3), "block": random(2, 3), "": np.ones((1, 1), np.float32)}[kinds[0]]
    scale_b = {"col": random(3, N), "block": random(3, 2)}[kinds[1]]
    base = sized(M, N, k, ts.fp8_e4m3, ts.fp8_e5m2, Options(trans_b=True, out_dtype=ts.f32))
    problem = replace(base, scale_a=kinds[0], scale_b=kinds[1], promote=128)
    out = np.zeros((M, N), np.float32)
    schedule = plan(problem, HOPPER, Forced(block=(64, 64, 128), stages=2))
    dims = dict(M=M, N=N, K=k, KA=3, KB=3, MA=2, NB=2)
    kernel = kernel_for(problem, schedule, EMPTY)
    dims = {name: size for name, size in dims.items() if name in kernel.signature.dim_names}
    run(kernel, dims, a, b, scale_a, scale_b, out)
    given = dict(scale_a=scale_a if kinds[0] else None, scale_b=scale_b)
    assert error(out, op.linalg.gemm.reference(a, b, trans_b=True, **given)) < 3e-6


def test_a_batch_with_one_matrix_and_reductions():
    a, b = random(2, M, K, dtype=ts.bf16), random(K, N, dtype=ts.bf16)
    out, partials = np.zeros((2, M, N), np.float32), np.full((N // 16, 2, M), np.nan, np.float32)
    chain = E.chain([E.row_sum(np.zeros((2, M), np.float32))])
    base = sized(M, N, K, ts.bf16, ts.bf16, Options(out_dtype=ts.f32))
    problem = replace(base, batch=2, a_batched=True)
    run(
        kernel_for(problem, plan(problem, HOPPER, SMALL), chain),
        dict(M=M, N=N, K=K, B=2),
        a,
        b,
        out,
        partials,
    )
    assert error(out, exact(a, b)) < 3e-6
    assert error(partials.sum(0), exact(a, b).sum(2)) < 3e-6


def test_groups_of_rows():
    a, b = random(M, K, dtype=ts.bf16), random(3, K, N, dtype=ts.bf16)
    offsets, out = np.array([0, 70, 70, M], np.int32), np.zeros((M, N), np.float32)
    base = sized(M, N, K, ts.bf16, ts.bf16, Options(out_dtype=ts.f32, mma_kind="mma_sync"))
    problem = replace(base, b_batched=True)
    kernel = grouped_kernel(problem, 3, plan(problem, HOPPER, SMALL), EMPTY)
    run(kernel, dict(M=M, N=N, K=K, G=3, OFFSETS=4), a, b, offsets, out, roles=False)
    assert error(out, op.linalg.gemm_grouped.reference(a, b, offsets)) < 3e-6


@pytest.mark.parametrize("block", [(64, 64, 64), (64, 128, 64)])
@pytest.mark.parametrize("size", [(M, N, K), (70, 520, 8), (40, 72, 0)])
def test_groups_take_tiles_in_turn(block, size):
    m, n, k = size
    a, b, bias = random(m, k, dtype=ts.bf16), random(k, n, dtype=ts.bf16), random(n)
    rows, out = np.full((-(-n // 16), 1, m), np.nan, np.float32), np.full((m, n), np.nan, np.float32)
    chain = E.chain([E.bias(bias), E.gelu("tanh"), E.row_sum(np.zeros(m, np.float32))])
    problem = sized(m, n, k, ts.bf16, ts.bf16, Options(out_dtype=ts.f32), chain)
    schedule = plan(problem, HOPPER, Forced(block=block, stages=2, ping_pong=True))
    run(kernel_for(problem, schedule, chain), dict(M=m, N=n, K=k), a, b, out, bias, rows, text="groups 2")
    expected = E.chain([E.bias(bias), E.gelu("tanh")]).reference(exact(a, b))
    assert error(out, expected) < 3e-6
    assert error(rows.sum((0, 1)), expected.sum(1)) < 3e-6


def test_programs_that_share_a_tile():
    a, b, bias = random(40, 600, dtype=ts.bf16), random(600, N, dtype=ts.bf16), random(N)
    rows, out = np.full((N // 16, 1, 40), np.nan, np.float32), np.zeros((40, N), np.float32)
    chain = E.chain([E.bias(bias), E.relu(), E.row_sum(np.zeros(40, np.float32))])
    problem = sized(40, N, 600, ts.bf16, ts.bf16, Options(out_dtype=ts.f32))
    schedule = plan(problem, HOPPER, Forced(block=(64, 64, 64), stages=2, split_k=4))
    run(kernel_for(problem, schedule, chain), dict(M=40, N=N, K=600), a, b, out, bias, rows)
    expected = np.maximum(exact(a, b) + bias, 0)
    assert error(out, expected) < 3e-6
    assert error(rows.sum((0, 1)), expected.sum(1)) < 3e-6


def rounded(x):
    """Round to tf32's 11 significant bits, ties to even, in float64."""
    mantissa, exponent = np.frexp(x.astype(np.float64))
    return np.ldexp(np.round(np.ldexp(mantissa, 11)), exponent - 11)


TRANSPOSES = [(False, False), (False, True), (True, False), (True, True)]


def tf32_operands(m, n, k, trans):
    """Return operands of a product as they are given, and their rounded product."""
    a, b = random(m, k), random(k, n)
    given = [np.ascontiguousarray(x.T) if turn else x for x, turn in zip((a, b), trans, strict=True)]
    return given, rounded(a) @ rounded(b)


@pytest.mark.parametrize("block", [(64, 64, 32), (128, 64, 32), (64, 128, 64), None], ids=str)
@pytest.mark.parametrize("trans", TRANSPOSES)
def test_tf32(trans, block):
    (a, b), product = tf32_operands(M, N, K, trans)
    bias, rest, out = random(N), random(M, N), np.full((M, N), np.nan, np.float32)
    chain = E.chain([E.bias(bias), E.gelu("tanh"), E.residual(rest)])
    options = Options(compute=ts.tf32, trans_a=trans[0], trans_b=trans[1])
    problem = sized(M, N, K, ts.f32, ts.f32, options, chain)
    schedule = plan(problem, HOPPER, Forced(block=block))
    assert schedule.path == "wgmma"
    run(kernel_for(problem, schedule, chain), dict(M=M, N=N, K=K), a, b, out, bias, rest)
    assert error(out, chain.reference(product)) < 3e-6


@pytest.mark.parametrize("trans", TRANSPOSES)
def test_tf32_of_few_rows(trans):
    (a, b), product = tf32_operands(12, N, K, trans)
    out = np.full((12, N), np.nan, np.float32)
    options = Options(compute=ts.tf32, trans_a=trans[0], trans_b=trans[1])
    problem = sized(12, N, K, ts.f32, ts.f32, options)
    run(kernel_for(problem, plan(problem, HOPPER), EMPTY), dict(M=12, N=N, K=K), a, b, out)
    assert error(out, product) < 3e-6


@pytest.mark.parametrize("shared", [{"split_k": 4}, {"stream_k": 1}], ids=str)
@pytest.mark.parametrize("trans", TRANSPOSES)
def test_tf32_in_programs_that_share_a_tile(trans, shared):
    (a, b), product = tf32_operands(40, N, 600, trans)
    bias, out = random(N), np.full((40, N), np.nan, np.float32)
    rows = np.full((N // 16, 1, 40), np.nan, np.float32)
    chain = E.chain([E.bias(bias), E.relu(), E.row_sum(np.zeros(40, np.float32))])
    options = Options(compute=ts.tf32, trans_a=trans[0], trans_b=trans[1])
    problem = sized(40, N, 600, ts.f32, ts.f32, options, chain)
    schedule = plan(problem, HOPPER, Forced(block=(64, 64, 64), **shared))
    run(kernel_for(problem, schedule, chain), dict(M=40, N=N, K=600), a, b, out, bias, rows)
    expected = np.maximum(product + bias, 0)
    assert error(out, expected) < 3e-6
    assert error(rows.sum((0, 1)), expected.sum(1)) < 3e-6


@pytest.mark.parametrize("m", [16, 136])
def test_tiles_that_are_shared_out_over_all_programs(m):
    a, b, bias = random(m, 600, dtype=ts.bf16), random(600, N, dtype=ts.bf16), random(N)
    out = np.full((m, N), np.nan, np.float32)
    chain = E.chain([E.bias(bias), E.relu()])
    problem = sized(m, N, 600, ts.bf16, ts.bf16, Options(out_dtype=ts.f32))
    forced = Forced(block=(64, 64, 64) if m > 64 else None, stages=2, stream_k=1)
    schedule = plan(replace(problem, a_lines=True, b_lines=True), HOPPER, forced)
    assert schedule.turned == (m <= 64)
    run(kernel_for(problem, schedule, chain), dict(M=m, N=N, K=600), a, b, out, bias)
    assert error(out, np.maximum(exact(a, b) + bias, 0)) < 3e-6
