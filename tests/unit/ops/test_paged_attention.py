"""Attention to keys and values in pages: against the dense definition, in NumPy and float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tessera as ts
from tessera import ops as op
from tessera.errors import CallError
from tessera.ops.attn import paged_kernels as kernels
from tessera.ops.attn.join import join_rows
from tessera.ops.attn.paged_steps import blocks_of, parts_of, worth_of
from tessera.target.registry import target_named
from tests.unit.ops import library as lib
from tests.unit.ops.test_flash_attention import emulated

paged = op.paged_attention
B, H, G, D, E = 3, 4, 2, 16, 24
LENGTHS = np.array([70, 9, 133], np.int32)


def pages(rng, page, dtype=ts.f32, lengths=LENGTHS, groups=G, sizes=(D, E)):
    """Return pages of keys and values, and a table in which sequences own pages anywhere."""
    most = int(-(-lengths.max() // page)) + 1
    count = most * len(lengths) + 3
    table = rng.permutation(count)[: most * len(lengths)].reshape(len(lengths), most).astype(np.int32)
    return *(lib.normal(rng, count, page, groups, size, dtype=dtype) for size in sizes), table


FORMS = {
    "one query": (1, {}),
    "several": (5, {}),
    "not causal": (3, {"causal": False}),
    "window": (2, {"window": 40}),
    "cap": (2, {"softcap": 0.8}),
    "sinks": (2, {"sinks": np.array([0.5, -1.0, 3.0, 0.0], np.float32)}),
    "scales": (1, {"k_scale": np.array([0.5, 2.0], np.float32), "v_scale": 3.0}),
    "more queries than keys": (12, {"scale": 0.3}),
}


@pytest.mark.parametrize("page", [8, 16, 64])
@pytest.mark.parametrize("library", lib.LIBRARIES)
@pytest.mark.parametrize("form", FORMS)
def test_forms(form, library, page):
    queries, options = FORMS[form]
    rng = np.random.default_rng(0)
    k, v, table = pages(rng, page)
    q = lib.normal(rng, B, H, queries, D, dtype=ts.f32)
    exact = paged.reference(q, k, v, table, LENGTHS, **options)
    ours = [lib.of_library(library, one) for one in (q, k, v, table, LENGTHS)]
    given = {name: lib.of_library(library, x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
    lib.close(paged(*ours, **given), exact, ts.f32, 8)
    lib.close(paged(*ours, **given, max_length=133), exact, ts.f32, 8)


IN_GROUPS = np.array([70, 90, 133, 40, 64, 66], np.int32)
PREFIXES = np.array([50, 50, 50, 0, 64, 64], np.int32)
GROUPS = np.array([0, 3, 3, 4, 6], np.int32)
"""Groups of three sequences, none, one and two; the first shares three pages of 16 and two keys of no whole page."""


def in_groups(rng, dtype=ts.f32, sizes=(D, E)):
    """Return pages of sequences that share prefixes, a table for each alone, and one that only leaders have whole."""
    k, v, table = pages(rng, 16, dtype, IN_GROUPS, sizes=sizes)
    table[1, :3] = table[2, :3] = table[0, :3]
    table[5, :4] = table[4, :4]
    led = table.copy()
    led[1:3, :3] = led[5, :4] = -1
    return k, v, table, led


@pytest.mark.parametrize("library", lib.LIBRARIES)
@pytest.mark.parametrize("form", FORMS)
def test_prefixes_are_read_once_for_a_group(form, library):
    queries, options = FORMS[form]
    rng = np.random.default_rng(9)
    k, v, table, led = in_groups(rng)
    q = lib.normal(rng, 6, H, queries, D, dtype=ts.f32)
    exact = paged.reference(q, k, v, table, IN_GROUPS, **options)
    ours = [lib.of_library(library, one) for one in (q, k, v, led, IN_GROUPS)]
    given = {name: lib.of_library(library, x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
    given |= {"prefix_lengths": lib.of_library(library, PREFIXES), "prefix_groups": lib.of_library(library, GROUPS)}
    found, lse = paged(*ours, **given, return_lse=True)
    lib.close(found, exact, ts.f32, 8)
    whole = [lib.of_library(library, one) for one in (q, k, v, table, IN_GROUPS)]
    alone = {name: x for name, x in given.items() if not name.startswith("prefix")}
    lib.close(lse, np.asarray(paged(*whole, **alone, return_lse=True)[1], np.float64), ts.f32, 8)


@pytest.mark.parametrize(("heads", "queries"), [((1, 1), 1), ((12, 1), 1), ((4, 4), 70)], ids=str)
def test_one_prefix_of_all_in_many_parts(heads, queries):
    rng = np.random.default_rng(10)
    lengths, count = np.array([1777, 1500, 1601, 1499, 1490], np.int32), 40
    table = np.stack([rng.permutation(count) for _ in lengths]).astype(np.int32)[:, :30]
    table[:, :22] = table[0, :22]
    k, v = (lib.normal(rng, count, 64, heads[1], 32) for _ in range(2))
    q = lib.normal(rng, 5, heads[0], queries, 32)
    prefix = {"prefix_lengths": np.full(5, 22 * 64, np.int32), "prefix_groups": np.array([0, 5], np.int32)}
    lib.close(paged(q, k, v, table, lengths, **prefix), paged.reference(q, k, v, table, lengths), ts.f32, 8)
    none = {"prefix_lengths": np.zeros(0, np.int32), "prefix_groups": np.zeros(1, np.int32)}
    assert paged(q[:0], k, v, table[:0], lengths[:0], **none).shape == (0, *q.shape[1:])


@pytest.mark.parametrize("pages_of", ["fp8_e4m3", "fp8_e5m2", "f16"])
def test_pages_of_other_dtypes(pages_of):
    rng = np.random.default_rng(1)
    kind = {"fp8_e4m3": ml_dtypes.float8_e4m3fn, "fp8_e5m2": ml_dtypes.float8_e5m2, "f16": np.float16}[pages_of]
    k, v, table = pages(rng, 16)
    k, v = k.astype(kind), v.astype(kind)
    q = lib.normal(rng, B, H, 2, D, dtype=ts.f32)
    exact = paged.reference(q, k, v, table, LENGTHS, k_scale=0.7, v_scale=np.array([2.0, 0.5], np.float32))
    found = paged(q, k, v, table, LENGTHS, k_scale=0.7, v_scale=np.array([2.0, 0.5], np.float32))
    lib.close(found, exact, ts.f32, 8)


@pytest.mark.parametrize("queries", [1, 3])
def test_slots_past_the_end_may_hold_anything(queries):
    rng = np.random.default_rng(8)
    k, v, table = pages(rng, 16)
    q = lib.normal(rng, B, H, queries, D, dtype=ts.f32)
    exact = paged.reference(q, k, v, table, LENGTHS)
    for b, count in enumerate(LENGTHS):
        for place in range(count, 16 * table.shape[1]):
            k[table[b, place // 16], place % 16] = v[table[b, place // 16], place % 16] = np.nan
    lib.close(paged(q, k, v, table, LENGTHS), exact, ts.f32, 8)


def test_empty_sequences_and_layouts():
    rng = np.random.default_rng(2)
    k, v, table = pages(rng, 16)
    q = lib.normal(rng, B, 3, H, D, dtype=ts.f32)
    lengths = np.array([0, 2, 100], np.int32)
    found, lse = paged(q, k, v, table, lengths, layout="bshd", return_lse=True)
    exact = paged.reference(q.swapaxes(1, 2), k, v, table, lengths)
    lib.close(found, exact.swapaxes(1, 2), ts.f32, 8)
    assert np.array_equal(np.isneginf(lse), np.broadcast_to([[[1, 1, 1]], [[1, 0, 0]], [[0, 0, 0]]], lse.shape))
    assert not found[0].any()
    assert paged(q[:0], k, v, table[:0], lengths[:0], layout="bshd").shape == (0, 3, H, E)
    assert paged(q[:, :0], k, v, table, lengths, layout="bshd").shape == (B, 0, H, E)


def test_values_that_are_a_part_of_keys():
    rng = np.random.default_rng(3)
    k, _, table = pages(rng, 16, groups=1, sizes=(40, 8))
    q = lib.normal(rng, B, 20, 1, 40, dtype=ts.f32)
    lib.close(paged(q, k, k[..., :32], table, LENGTHS), paged.reference(q, k, k[..., :32], table, LENGTHS), ts.f32, 8)


def in_library(library, array):
    """Return an array of any dtype in a library."""
    if library == "numpy" or array.dtype != ml_dtypes.float8_e4m3fn:
        return lib.of_library(library, array)
    torch = pytest.importorskip("torch")
    return torch.from_numpy(array.view(np.uint8)).view(torch.float8_e4m3fn)


def host_bytes(array):
    """Return the bytes of an array of NumPy or PyTorch, whatever its dtype."""
    if isinstance(array, np.ndarray):
        return array.view(np.uint8)
    torch = pytest.importorskip("torch")
    return array.view(torch.uint8).numpy()


@pytest.mark.parametrize("library", lib.LIBRARIES)
@pytest.mark.parametrize("kind", [np.float32, ml_dtypes.float8_e4m3fn])
def test_what_is_appended(library, kind):
    rng = np.random.default_rng(4)
    k, v, table = pages(rng, 16)
    k, v = k.astype(kind), v.astype(kind)
    table[1, 0] = -1  # of no sequence
    new = [lib.normal(rng, B, 12, G, size, dtype=ts.f32) * 300 for size in (D, E)]
    wanted = [one.copy() for one in (k, v)]
    for b, i in np.ndindex(B, 12):
        place = LENGTHS[b] - 12 + i
        if place >= 0 and table[b, place // 16] >= 0:
            for one, fresh, scale in zip(wanted, new, (2.0, 0.5), strict=True):
                most = 448.0 if kind is not np.float32 else np.inf
                one[table[b, place // 16], place % 16] = np.clip(fresh[b, i] / np.float32(scale), -most, most).astype(
                    kind
                )
    ours = [in_library(library, one) for one in (*new, k, v, table, LENGTHS)]
    op.append_kv(*ours, k_scale=2.0, v_scale=0.5)
    for one, exact in zip(ours[2:4], wanted, strict=True):
        assert np.array_equal(host_bytes(one), exact.view(np.uint8))


@pytest.mark.parametrize("library", lib.LIBRARIES)
def test_merged_parts_are_the_whole(library):
    rng = np.random.default_rng(5)
    q, k, v = (lib.normal(rng, 2, H, count, D, dtype=ts.f32) for count in (30, 90, 90))
    parts = [op.flash_attention(q, k[:, :, a:b], v[:, :, a:b], return_lse=True) for a, b in ((0, 50), (50, 90))]
    hidden = np.full((2, H, 30, D), np.nan, np.float32), np.full((2, H, 30), -np.inf, np.float32)
    outs, lses = (np.stack([*one, more]) for one, more in zip(zip(*parts, strict=True), hidden, strict=True))
    found, sums = op.attn.merge(lib.of_library(library, outs), lib.of_library(library, lses))
    exact, whole = op.flash_attention.reference(q, k, v, return_lse=True)
    lib.close(found, exact, ts.f32, 8)
    lib.close(sums, whole, ts.f32, 8)


def test_as_an_operator_of_pytorch():
    torch = pytest.importorskip("torch")
    import tessera.torch  # noqa: F401

    rng = np.random.default_rng(6)
    k, v, table = map(torch.from_numpy, pages(rng, 16))
    q, lengths = torch.randn(B, H, 1, D), torch.from_numpy(LENGTHS)
    given = (q, k, v, table, lengths, None, None, None, 0.25, 0.0, 2**31 - 1, True, 160, None, None)
    torch.library.opcheck(torch.ops.tessera.paged_attention.default, given)
    compiled = torch.compile(lambda q: paged(q, k, v, table, lengths), backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(q), paged(q, k, v, table, lengths))
    with pytest.raises(CallError, match="no-gradient"):
        paged(q.requires_grad_(), k, v, table, lengths)


@pytest.mark.parametrize("heads", [(1, 1), (6, 2), (12, 1)], ids=str)
@pytest.mark.parametrize("kind", [ts.f32, ts.f16, ts.bf16, ts.fp8_e5m2], ids=str)
def test_long_sequences_in_many_parts(kind, heads):
    rng, length = np.random.default_rng(heads[0]), 1777
    wide = ts.bf16 if kind == ts.fp8_e5m2 else kind
    table = rng.permutation(30).astype(np.int32)[None]
    k, v = (lib.normal(rng, 30, 64, heads[1], 48, dtype=ts.f32).astype(kind.numpy()) for _ in range(2))
    q, lengths = lib.normal(rng, 1, heads[0], 1, 48, dtype=wide), np.array([length], np.int32)
    v[table[0, length // 64], length % 64 :] = np.nan
    lib.close(paged(q, k, v, table, lengths), paged.reference(q, k, v, table, lengths), wide, 4)


def test_parts_and_blocks_of_cpus_follow_from_sizes():
    target = target_named("x86-64-v3")
    assert [blocks_of(target, (ts.f32, ts.f32), rows, 64, (128, 128))["BM"] for rows in (1, 4, 5, 100)] == [1, 4, 8, 64]
    worth = {kind.name: worth_of(4, (128, 128), (ts.f32, kind)) for kind in (ts.f32, ts.bf16, ts.fp8_e4m3)}
    assert worth == {"f32": 200, "bf16": 400, "fp8_e4m3": 800}, "a part reads a hundred times what it writes"
    assert parts_of(target, 8, 32768, 64, worth["f32"]) == 163
    assert parts_of(target, 1, 8192, 64, worth_of(128, (576, 512), (ts.f32, ts.bf16))) == 32, "enough for many cores"
    assert parts_of(target, 1, 100, 64, 8) == 1


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("head", [(128, 128), (64, 64), (576, 512)], ids=str)
@pytest.mark.parametrize("kind", [ts.bf16, ts.fp8_e4m3, ts.f32], ids=str)
def test_code_for_gpus(kind, head, target):
    made = paged.compile(
        head[0], value_dim=head[1], pages=kind, target=target, dtype=ts.f32 if kind == ts.f32 else ts.bf16
    )
    most = 1024 if kind == ts.f32 and head[0] > 256 else 128
    assert max(one["spill_store_bytes"] for one in made.reflection["kernels"].values()) <= most
    assert parts_of(target_named(target), 8, 32768, 64) == 2 * target_named(target).machine.units // 8


def test_pages_of_8_bits_cost_no_exchange_between_warps():
    wide, narrow = (paged.compile(128, pages=kind, target="sm_90a").reflection for kind in (ts.bf16, ts.fp8_e4m3))
    assert narrow["instructions"]["shuffle"] == wide["instructions"]["shuffle"]
    assert narrow["kernels"]["paged_parts"]["spill_load_bytes"] == 0
    assert narrow["schedule"]["pipeline"] == 1


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(("kind", "size", "page", "each"), [(ts.f16, 32, 16, 80), (ts.fp8_e4m3, 64, 64, 128)], ids=str)
def test_what_gpus_would_compute(kind, size, page, each, target):
    rng = np.random.default_rng(7)
    k, v, table = pages(rng, page, ts.f16, sizes=(size, size))
    k, v = k.astype(kind.numpy()), v.astype(kind.numpy())
    q = lib.normal(rng, B, H, 2, size, dtype=ts.f16)
    exact = paged.reference(q, k, v, table, LENGTHS)
    some, sums = np.full((2, B, G, 4, size), np.nan, np.float32), np.full((2, B, G, 4), np.nan, np.float32)
    given = {"k_scale": None, "v_scale": None, "causal": True, "windowed": False, "caps": False, "plain": True}
    given |= {"acc": ts.f32, "page": page, "T": ts.f16, "C": kind, "S": ts.f32, "shared": None, "starts": None, "BB": 1}
    given |= blocks_of(target_named(target), (ts.f16, kind), 4, page, (size, size))
    sizes = {"B": B, "G": G, "R": 4, "P": 2, "MOST": table.shape[1]}
    sizes |= {"D": size, "E": size, "PAGES": k.shape[0], "SLOTS": page}
    arrays = [q.reshape(B, G, 4, size), k, v, table, LENGTHS, some, sums]
    emulated(kernels.paged_parts, target, arrays, sizes, (2, 2, each, size**-0.5, 1.0, 0), **given)
    out, lse = np.full((B * H * 2, size), np.nan, np.float16), np.full(B * H * 2, np.nan, np.float32)
    options = {"sinks": None, "acc": ts.f32, "BP": 2, "BE": size, "T": ts.f32, "U": ts.f16, "S": ts.f32}
    rows = B * H * 2
    emulated(
        *(join_rows, target, [some.reshape(2, rows, size), sums.reshape(2, rows), out, lse]),
        *({"P": 2, "K": rows, "E": size}, (2,)),
        **options,
    )
    lib.close(out.reshape(exact.shape), exact, ts.f16, 4)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_what_gpus_would_compute_of_prefixes(target):
    rng = np.random.default_rng(11)
    k, v, table, led = in_groups(rng, ts.f16, (32, 32))
    q = lib.normal(rng, 6, H, 2, 32, dtype=ts.f16)
    some, sums = np.full((4, 6, G, 4, 32), np.nan, np.float32), np.full((4, 6, G, 4), np.nan, np.float32)
    given = {"k_scale": None, "v_scale": None, "causal": True, "windowed": False, "caps": False, "plain": True}
    given |= {"acc": ts.f32, "page": 16, "T": ts.f16, "C": ts.f16, "S": ts.f32}
    given |= blocks_of(target_named(target), (ts.f16, ts.f16), 64, 16, (32, 32))
    sizes = {"B": 6, "G": G, "R": 4, "P": 4, "MOST": table.shape[1]}
    sizes |= {"D": 32, "E": 32, "PAGES": k.shape[0], "SLOTS": 16}
    for starts, block in ((None, {"BB": 1}), (GROUPS, {"BB": given["BM"] // 4, "BM": 4})):
        arrays = [q.reshape(6, G, 4, 32), k, v, led, IN_GROUPS, PREFIXES, starts, some, sums]
        options = given | block | ({"starts": None} if starts is None else {})
        dims = sizes if starts is None else {**sizes, "X": 4}
        emulated(kernels.paged_parts, target, arrays, dims, (2, 2, 48, 32**-0.5, 1.0, 0), **options)
    assert np.isfinite(some).all()
    weights = np.exp(sums - sums.max(0))
    found = ((weights / weights.sum(0))[..., None] * some).sum(0).reshape(q.shape)
    lib.close(found, paged.reference(q, k, v, table, IN_GROUPS), ts.f16, 4)


Q, K, V = np.zeros((B, H, 1, D), np.float32), np.zeros((9, 16, G, D), np.float32), np.zeros((9, 16, G, E), np.float32)
TABLE, ONE = np.zeros((B, 4), np.int32), np.zeros(1, np.int32)
WRONG = {
    "not-an-array": lambda: paged(3, K, V, TABLE, LENGTHS),
    "wrong-rank": lambda: paged(Q, K[0], V, TABLE, LENGTHS),
    "wrong-shape": lambda: paged(Q, K[..., :8], V, TABLE, LENGTHS),
    "wrong-shape of pages": lambda: paged(Q, K[:, :12], V[:, :12], TABLE, LENGTHS),
    "wrong-shape of the table": lambda: paged(Q, K, V, TABLE[:2], LENGTHS),
    "wrong-shape of heads": lambda: paged(Q[:, :3], K, V, TABLE, LENGTHS),
    "wrong-shape of scales": lambda: paged(Q, K, V, TABLE, LENGTHS, k_scale=np.ones(3, np.float32)),
    "wrong-dtype": lambda: paged(Q.astype(np.float64), K, V, TABLE, LENGTHS),
    "wrong-dtype of the table": lambda: paged(Q, K, V, TABLE.astype(np.int64), LENGTHS),
    "wrong-dtype of pages": lambda: paged(Q, K.astype(np.int8), V.astype(np.int8), TABLE, LENGTHS),
    "bad-argument": lambda: paged(Q, K, V, TABLE, LENGTHS, window=-1),
    "bad-argument of a length": lambda: paged(Q, K, V, TABLE, LENGTHS, max_length=-1),
    "bad-argument of a cap": lambda: paged(Q, K, V, TABLE, LENGTHS, softcap=0.0),
    "bad-argument of a prefix": lambda: paged(Q, K, V, TABLE, LENGTHS, prefix_lengths=LENGTHS),
    "bad-argument of groups": lambda: paged(Q, K, V, TABLE, LENGTHS, prefix_lengths=LENGTHS, prefix_groups=LENGTHS),
    "wrong-shape of prefixes": lambda: paged(Q, K, V, TABLE, LENGTHS, prefix_lengths=ONE, prefix_groups=ONE),
    "wrong-dtype of prefixes": lambda: paged(Q, K, V, TABLE, LENGTHS, prefix_lengths=Q[:, 0, 0, 0], prefix_groups=ONE),
    "wrong-rank of groups": lambda: paged(Q, K, V, TABLE, LENGTHS, prefix_lengths=LENGTHS, prefix_groups=TABLE),
    "wrong-shape of what is appended": lambda: op.append_kv(K[:B, :2], V[:B, :3], K, V, TABLE, LENGTHS),
    "wrong-rank of parts": lambda: op.attn.merge(Q, Q[..., 0]),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name):
    with pytest.raises(CallError) as error:
        WRONG[name]()
    assert error.value.code == name.split(" ")[0]
