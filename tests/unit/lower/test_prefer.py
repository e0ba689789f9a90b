"""What is loaded or drawn for rows is where the threads are that have the rows: nothing goes through shared memory."""

import re

import pytest

import tessera as ts

M, N = ts.dims("M N")


@ts.kernel
def by_rows(x: ts.Tensor[M, N, ts.bf16], s: ts.Tensor[M, ts.f32], t: ts.Tensor[M, ts.i64], y: ts.Tensor[M, N, ts.bf16]):
    for m, n in ts.tile.grid((M, 8), (N, 256)):
        at = n + ts.tile.arange(256, dtype=ts.i64)[None, :]
        scaled = x[m : m + 8, n : n + 256].to(ts.f32) * (s[m : m + 8] * 2.0)[:, None]
        y[m : m + 8, n : n + 256] = ts.tile.where(at == t[m : m + 8][:, None], 0.0, scaled)


@ts.kernel
def by_columns(x: ts.Tensor[M, N, ts.bf16], b: ts.Tensor[N, ts.bf16], y: ts.Tensor[M, N, ts.bf16]):
    for m, n in ts.tile.grid((M, 8), (N, 256)):
        y[m : m + 8, n : n + 256] = ts.tile.relu(x[m : m + 8, n : n + 256] + b[n : n + 256][None, :])


@ts.kernel
def noisy(x: ts.Tensor[M, N, ts.bf16], y: ts.Tensor[M, N, ts.bf16], seed: ts.i64):
    for m, n in ts.tile.grid((M, 8), (N, 256)):
        ids = (m + ts.tile.arange(8, dtype=ts.i64))[:, None] * N + (n + ts.tile.arange(256, dtype=ts.i64))[None, :]
        block = x[m : m + 8, n : n + 256]
        y[m : m + 8, n : n + 256] = ts.tile.dropout(block, 0.5, seed, ids)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("kernel", [by_rows, by_columns, noisy], ids=str)
def test_nothing_goes_through_shared_memory(kernel, target):
    made = ts.compile(kernel, target, ["tirt"], {"N": 1024})
    text = made.dumps["tirt"]
    assert "tessera_target.load" in text
    assert not re.findall(r"tessera_target\.(?:buffer\w*|barrier)", text)
    assert [launch.shared_bytes for launch in made.launches] == [0]


@ts.function
def zeros():
    return ts.tile.zeros((8192,), ts.f32)


@ts.kernel
def running(x: ts.Tensor[M, 8192, ts.bf16], y: ts.Tensor[M, 8192, ts.bf16], sums: ts.Tensor[3, 8192, ts.f32]):
    for _ in ts.tile.grid((1, 1)):
        one, two, three = zeros(), zeros(), zeros()
        for m in ts.tile.range(M):
            a, b = x[m, :].to(ts.f32), y[m, :].to(ts.f32)
            scale = ts.tile.sum(a * b)
            one, two, three = one + a * scale, two + b * scale, three + a * b
        sums[0, :] = one
        sums[1, :] = two
        sums[2, :] = three


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_tiles_that_live_together_have_enough_threads(target):
    made = ts.compile(running, target, ["tirt"])
    assert [launch.threads for launch in made.launches] >= [256]
    assert sum(one["spill_store_bytes"] for one in made.reflection["kernels"].values()) == 0
