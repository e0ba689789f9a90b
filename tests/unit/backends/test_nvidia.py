"""The NVIDIA backend without a GPU: instructions, assembly, placement of shared buffers."""

from __future__ import annotations

import re
from typing import Any

import pytest

import tessera as ts
from tessera.backends.nvidia import compile_nvidia
from tessera.backends.nvidia.assemble import instruction_counts, resources
from tessera.backends.simt.placement import place_shared
from tessera.errors import ResourceError
from tessera.ir.target.memory import AllocOp, BarrierOp, BufferStoreOp
from tessera.target.nvidia import NVIDIA_TARGETS
from tessera.target.registry import target_named
from tests.unit.lower.support import lowered
from tests.unit.lower.test_simt import attention, product


def compiled(function: Any, target: str = "sm_90a", **options: Any) -> Any:
    func = lowered(function, target, **options)
    module = func.parent_op()
    assert module is not None
    return compile_nvidia(module, target_named(target))  # pyright: ignore[reportArgumentType]


def softmax(x: ts.Tensor["M", 256, ts.bf16], y: ts.Tensor["M", 256, ts.bf16]) -> None:
    for m in ts.tile.grid((M, 4)):
        row = ts.tile.cast(x[m : m + 4, :], ts.f32)
        e = ts.tile.exp(row - ts.tile.row_max(row)[:, None])
        y[m : m + 4, :] = e / ts.tile.row_sum(e)[:, None]


@pytest.mark.parametrize("target", NVIDIA_TARGETS)
def test_every_target_gets_ptx_and_from_sm_75_a_cubin(target: str) -> None:
    code = compiled(softmax, target)
    assert f".target {target}" in code.dumps["ptx"]
    assert code.code_kind == ("ptx" if target == "sm_70" else "cubin")
    if code.code_kind == "cubin":
        assert code.code[:4] == b"\x7fELF"
        assert code.reflection["kernels"]["softmax"]["spill_store_bytes"] == 0


def largest_negated(x: ts.Tensor[4, 64, ts.i32], y: ts.Tensor[4, ts.i32], low: ts.Tensor[4, ts.i32]) -> None:
    y[:] = ts.tile.row_max(-x[...])
    low[:] = -ts.tile.row_max(x[...])


@pytest.mark.parametrize(
    ("target", "kept"), [("sm_89", True), ("sm_90a", False), ("sm_100a", False), ("sm_120a", True)]
)
def test_negations_beside_maxima_are_spelled_out_where_assemblers_lose_them(target: str, kept: bool) -> None:
    """CUDA 13.0 to 13.3 drop the negation of the second operand of VIMNMX3 (sm_90 to sm_103)."""
    ptx = compiled(largest_negated, target).dumps["ptx"]
    assert "max.s32" in ptx
    assert bool(re.search(r"\bneg\.s", ptx)) is kept
    assert bool(re.search(r"not\.b32 \t(%r\d+), %r\d+; add\.s32 \t\1, \1, 1;", ptx)) is not kept


@pytest.mark.parametrize(
    ("target", "expected", "absent"),
    [
        ("sm_75", set[str](), {"mma", "cp.async"}),
        ("sm_80", {"mma.m16n8k16.row.col.f32.bf16.bf16.f32", "ldmatrix", "cp.async"}, {"wgmma"}),
        ("sm_90a", {"mma.m16n8k16.row.col.f32.bf16.bf16.f32", "ldmatrix", "cp.async"}, set[str]()),
    ],
)
def test_a_product_uses_the_instructions_of_its_target(
    target: str, expected: set[str], absent: set[str]
) -> None:
    counts = compiled(product, target, sizes={"M": 64, "N": 64, "K": 64}).reflection["instructions"]
    assert expected <= counts.keys()
    assert not absent & counts.keys()


def test_wide_rows_move_sixteen_bytes_at_a_time() -> None:
    ptx = compiled(softmax, sizes={"M": 64}).dumps["ptx"]
    assert "ld.global.v4.b32" in ptx
    assert "st.global.v4.b32" in ptx
    assert not re.search(r"ld\.global\.(b16|u16)", ptx)


def test_a_short_kernel_spills_nothing_and_attention_neither() -> None:
    for function in (softmax, product, attention):
        for facts in compiled(function).reflection["kernels"].values():
            assert facts["spill_store_bytes"] == facts["spill_load_bytes"] == facts["stack_bytes"] == 0
            assert 0 < facts["registers"] <= 255


def test_buffers_in_use_together_do_not_overlap() -> None:
    func = lowered(attention)
    needed, buffers = place_shared(func)
    spans = [(op.offset.data, op.offset.data + op.result.type.size_bytes) for op in buffers]
    assert max(end for _, end in spans) == needed
    rings = [span for span, op in zip(spans, buffers, strict=True) if op.transient is None]
    for i, (start, end) in enumerate(rings):
        assert start % 128 == 0
        assert all(end <= s or e <= start for s, e in rings[:i])


def test_a_barrier_stands_before_every_store_to_a_transient_buffer() -> None:
    func = lowered(softmax, sizes={"M": 64})
    for alloc in [op for op in func.walk() if isinstance(op, AllocOp) and op.transient is not None]:
        block = list(alloc.parent_block().ops)  # pyright: ignore[reportOptionalMemberAccess]
        store = next(op for op in block if isinstance(op, BufferStoreOp) and op.buffer is alloc.result)
        between = block[block.index(alloc) : block.index(store)]
        assert any(isinstance(op, BarrierOp) for op in between)


def wide(x: ts.Tensor[512, 512, ts.f32], y: ts.Tensor[512, 512, ts.f32]) -> None:
    for m in ts.tile.grid((512, 512)):
        buffer = ts.tile.alloc_shared((512, 512), ts.f32)
        ts.tile.cp_async(buffer, x[m : m + 512, :])
        ts.tile.barrier()
        y[m : m + 512, :] = buffer[:, :]


def test_a_buffer_too_large_for_the_target_is_an_error_with_sizes() -> None:
    with pytest.raises(
        ResourceError, match=r"wide needs 1048576 bytes of shared memory, sm_90a has 232448"
    ) as caught:
        compiled(wide)
    assert caught.value.code == "shared-memory"
    assert "512x512 f32: 1048576" in str(caught.value)


def test_the_assembler_report_is_read_per_kernel() -> None:
    report = (
        "ptxas info : Compiling entry function 'a' for 'sm_90a'\n"
        "    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n"
        "ptxas info : Used 40 registers, used 1 barriers\n"
        "ptxas info : Compiling entry function 'b' for 'sm_90a'\n"
        "ptxas info : Used 7 registers\n"
    )
    assert resources(report) == {
        "a": {
            "stack_bytes": 8,
            "spill_store_bytes": 4,
            "spill_load_bytes": 12,
            "registers": 40,
            "barriers": 1,
        },
        "b": {"registers": 7},
    }


def test_instruction_counts_name_the_kind_of_product() -> None:
    product = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1};"
    text = f"{product}\nldmatrix.sync.x4 \ncp.async.cg.shared.global [%r1]"
    assert instruction_counts(text) == {
        "mma": 1, "ldmatrix": 1, "cp.async": 1, "mma.m16n8k16.row.col.f32.bf16.bf16.f32": 1,
    }  # fmt: skip
