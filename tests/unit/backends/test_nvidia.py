"""The NVIDIA backend without a GPU: instructions, assembly, placement of shared buffers."""

from __future__ import annotations

import re
from typing import Any

import pytest

import tessera as ts
from tessera.backends.nvidia import compile_nvidia
from tessera.backends.nvidia.assemble import instruction_counts, resources, to_cubin
from tessera.backends.nvidia.assembler_faults import respelled
from tessera.backends.nvidia.mnemonics import word
from tessera.backends.simt.placement import place_shared
from tessera.errors import ResourceError
from tessera.ir.target.memory import AllocOp, BarrierOp, BufferStoreOp
from tessera.schedule.knobs import Knobs
from tessera.target.nvidia import NVIDIA_TARGETS
from tessera.target.records import TargetRecord
from tessera.target.registry import target_named
from tests.unit.lower.support import lowered
from tests.unit.lower.test_simt import attention, product
from tests.unit.schedule.hopper.kernels import attention_of


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


def test_words_begin_where_pythons_boundaries_say() -> None:
    text = "or.b32 xor.b32;or.b32 %or.b32 nor.b32\tor.b32 _or.b32 4or.b32 mbarrier.sync bar.sync {barrier.cta.sync"
    for names in (["or"], ["bar", "barrier"], ["or", "bar"]):
        either = "|".join(names)
        found = [match.span() for match in re.finditer(word(*names) + r"\.\w+", text)]
        assert found == [match.span() for match in re.finditer(rf"\b(?:{either})\.\w+", text)] != []


def wide_extremes(x: ts.Tensor[4, 64, ts.f64], y: ts.Tensor[4, 64, ts.f64]) -> None:
    y[...] = ts.tile.minimum(ts.tile.maximum(x[...], y[...]), y[...])


def test_extremes_of_f64_rely_on_the_order_of_zeros_and_put_in_nan() -> None:
    ptx = compiled(wide_extremes, knobs=Knobs(num_warps=4)).dumps["ptx"]
    counts = [len(re.findall(text, ptx)) for text in (r"\bmax\.f64", r"\bmin\.f64", r"\bsetp\.nan\.f64", r"selp")]
    assert counts == [2, 2, 4, 4]
    assert "setp.eq" not in ptx


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


def narrow_extremes(x: ts.Tensor[4, 64, ts.i8], y: ts.Tensor[4, 64, ts.i8], z: ts.Tensor[4, 64, ts.u16]) -> None:
    y[...] = ts.tile.maximum(x[...], y[...])
    z[...] = ts.tile.minimum(z[...], 65535 - z[...])


@pytest.mark.parametrize(("target", "kept"), [("sm_89", True), ("sm_90", False), ("sm_100a", False), ("sm_120", True)])
def test_extremes_of_16_bits_are_those_of_32_where_assemblers_lose_comparisons(target: str, kept: bool) -> None:
    """CUDA 13.0 takes a comparison of VIMNMX.S16x2 from the wrong half (sm_90 to sm_103)."""
    ptx = compiled(narrow_extremes, target).dumps["ptx"]
    assert bool(re.search(r"\b(max|min)\.[su]16", ptx)) is kept
    for sign, name in (("s", "max"), ("u", "min")):
        assert (f"{name}.{sign}32 %tessera_wide0" in ptx) is not kept


def positive_numbers(
    x: ts.Tensor[4, 64, ts.i16], y: ts.Tensor[4, 64, ts.i32], z: ts.Tensor[4, 64, ts.i64], s: ts.Tensor[4, 64, ts.i32]
) -> None:
    s[...] = ts.tile.where((ts.tile.abs(x[...]) > 0) & (ts.tile.abs(y[...]) > 0) & (ts.tile.abs(z[...]) > 0), 1, 2)


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90a", "sm_120a"])
def test_absolute_values_wrap_before_they_are_compared(target: str) -> None:
    """CUDA 13.0 takes abs.s16 of -32768 for positive, and so on; see `assembler_faults.py`."""
    ptx = compiled(positive_numbers, target).dumps["ptx"]
    assert "abs.s" not in ptx
    for bits in (16, 32, 64):
        assert f"sub.s{bits} %r" in ptx


def negative_numbers(x: ts.Tensor[4, 64, ts.i32], y: ts.Tensor[4, 64, ts.i32]) -> None:
    y[...] = (x[...] | -2147483648) >> 1


def test_bits_above_that_are_set_are_set_by_a_truth_table() -> None:
    """CUDA 13.0 takes what is shifted for positive; see `assembler_faults.py`."""
    ptx = compiled(negative_numbers).dumps["ptx"]
    assert "or.b32" not in ptx
    assert re.search(r"lop3\.b32 \t%r\d+, %r\d+, -1073741824, 0, 0xfc;", ptx)


def limited_numbers(x: ts.Tensor[4, 64, ts.u32], y: ts.Tensor[4, 64, ts.u32], z: ts.Tensor[4, 64, ts.i32]) -> None:
    y[...] = ts.tile.maximum(x[...], 7)
    limited = ts.tile.minimum(ts.tile.cast(ts.tile.maximum(x[...], 1000), ts.i32), 65535)
    z[...] = limited & 65535


def test_unsigned_maxima_below_signed_minima_are_signed() -> None:
    """CUDA 13.0 takes such a number for one between the constants; see `assembler_faults.py`."""
    ptx = compiled(limited_numbers).dumps["ptx"]
    assert re.search(r"max\.u32 \t%r\d+, %r\d+, 7;", ptx)
    assert not re.search(r"max\.u32 \t%r\d+, %r\d+, 1000;", ptx)
    assert "max.s32 %r" in ptx


def bytes_to_halves(
    x: ts.Tensor["M", 32, ts.fp8_e4m3], n: int, y: ts.Tensor[32, 32, ts.f16], z: ts.Tensor[32, 32, ts.f16]
) -> None:
    for _ in ts.tile.grid((1, 1)):
        y[...] = x[n : n + 32, 0:32].to(ts.f16)
        z[...] = x[0:32, 0:32].to(ts.f16)


UPPER_HALF = re.compile(r"mov\.b32 \t\{_, (%rs\d+)\}")


def test_fp8_of_masked_loads_is_shifted_and_that_of_others_is_not() -> None:
    """CUDA 13.0 to 13.5 convert a wrong number where they find late that the word of a masked load is a constant."""
    ptx = compiled(bytes_to_halves).dumps["ptx"]
    upper = {half for half in UPPER_HALF.findall(ptx) if re.search(rf"e4m3x2 %r\d+, {half};", ptx)}
    assert not upper
    assert "shr.u32 %tessera_high" in ptx


def test_fp8_of_plain_loads_is_taken_from_its_half() -> None:
    text = """.visible .entry k() {
    ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r1, %r2}, [%r9];
    mov.b32 \t{_, %rs1}, %r1;
    mov.b32 \t{_, %rs2}, %r3;
    mov.b32 \t{%rs3, %rs4}, %r4;
    mov.b32 \t{_, %rs5}, %r5;
    ld.global.b32 %r11, [%rd1];
    mov.b32 \t{_, %rs6}, %r11;
    cvt.rn.f16x2.e4m3x2 %r12, %rs6;
    cvt.rn.f16x2.e4m3x2 %r6, %rs1;
    cvt.rn.f16x2.e4m3x2 %r7, %rs2;
    cvt.rn.f16x2.e5m2x2 %r8, %rs4;
}"""
    lines = respelled(text, target_named("sm_90a")).splitlines()
    assert lines[2] == "    mov.b32 \t{_, %rs1}, %r1;"
    high = "{ .reg .b32 %tessera_high; shr.u32 %tessera_high,"
    assert lines[3] == f"    {high} %r3, 16; cvt.u16.u32 %rs2, %tessera_high; }}"
    assert lines[4] == f"    {high} %r4, 16; cvt.u16.u32 %rs3, %r4; cvt.u16.u32 %rs4, %tessera_high; }}"
    assert lines[5] == "    mov.b32 \t{_, %rs5}, %r5;"
    assert lines[7] == "    mov.b32 \t{_, %rs6}, %r11;"


@pytest.mark.parametrize(
    ("target", "expected", "absent"),
    [
        ("sm_75", set[str](), {"mma", "cp.async"}),
        ("sm_80", {"mma.m16n8k16.row.col.f32.bf16.bf16.f32", "ldmatrix", "cp.async"}, {"wgmma"}),
        ("sm_90a", {"mma.m16n8k16.row.col.f32.bf16.bf16.f32", "ldmatrix", "cp.async"}, set[str]()),
    ],
)
def test_a_product_uses_the_instructions_of_its_target(target: str, expected: set[str], absent: set[str]) -> None:
    counts = compiled(product, target, sizes={"M": 64, "N": 64, "K": 64}).reflection["instructions"]
    assert expected <= counts.keys()
    assert not absent & counts.keys()


@pytest.mark.parametrize("turns", [0, 1])
def test_descriptors_of_a_warpgroup_product_get_their_upper_word_from_a_constant(turns: int) -> None:
    kernel = ts.kernel.autotune(space={"pipeline": [1], "ping_pong": [turns]})(attention_of(64, 128, 64, False))
    ptx = ts.compile(kernel, target="sm_90a", dims={"H": 64, "S": 1024}, dump=("ptx",)).dumps["ptx"]
    wide = set(re.findall(r"cvt\.u64\.u32\s+(%rd\d+), %r\d+;", ptx))
    joined = re.findall(r"(?:or\.b|add\.s)64\s+(%rd\d+), (%rd\d+), \d{19};", ptx)
    made = {result for result, lower in joined if lower in wide}
    issued = re.findall(r"wgmma\.mma_async\S* \{[^}]*\}, (?:(%rd\d+)|\{[^}]*\}), (%rd\d+), p", ptx)
    assert len(issued) > 8, "two products of four steps and more"
    assert {operand for pair in issued for operand in pair if operand} <= made


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
    with pytest.raises(ResourceError, match=r"wide needs 1048576 bytes of shared memory, sm_90a has 232448") as caught:
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
        "mma": 1,
        "ldmatrix": 1,
        "cp.async": 1,
        "mma.m16n8k16.row.col.f32.bf16.bf16.f32": 1,
    }


def test_no_stack_means_no_spills_where_the_report_names_none() -> None:
    report = (
        "info    : Function properties for 'k':\n"
        "info    : used 10 registers, used 1 barriers, 0 stack, 0 bytes smem, 552 bytes cmem[0], 0 bytes lmem\n"
        "info    : Function properties for 'deep':\n"
        "info    : used 255 registers, used 1 barriers, 48 stack, 0 bytes smem, 552 bytes cmem[0], 0 bytes lmem\n"
    )
    none = {"spill_store_bytes": 0, "spill_load_bytes": 0}
    assert resources(report) == {
        "k": {"registers": 10, "barriers": 1, "stack_bytes": 0, **none},
        "deep": {"registers": 255, "barriers": 1, "stack_bytes": 48},
    }
    order = ["stack_bytes", "spill_store_bytes", "spill_load_bytes", "registers", "barriers"]
    assert list(resources(report)["k"]) == order


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90a", "sm_120a"])
def test_negations_of_16_bits_are_sums(target: str) -> None:
    text = "\tneg.s16 \t%rs2, %rs1;\n\tsub.s16 \t%rs4, 0, %rs1;\n\tsub.s16 \t%rs5, %rs1, %rs2;\n\tneg.s32 \t%r2, %r1;\n"
    found = respelled(text, target_named(target))
    assert (found.count("not.b16"), found.count("add.s16")) == (3, 4)
    assert "neg.s16" not in found
    assert "sub.s16" not in found
    assert "neg.s32" in found


def test_products_of_numbers_from_one_address_are_rounded() -> None:
    text = """
	ld.shared.b32 	%r1, [%r9];
	ld.shared.b32 	%r2, [%r9];
	ld.shared.b32 	%r3, [%r8];
	mov.b32 	%r4, %r2;
	mul.f32 	%r5, %r1, %r4;
	mul.ftz.f32 	%r6, %r2, %r1;
	mul.f32 	%r7, %r1, %r3;
	mul.f32 	%r7, %r1, %r1;
"""
    products = [line.split("\t")[1].strip() for line in respelled(text, target_named("sm_80")).splitlines()[5:]]
    assert products == ["mul.rn.f32", "mul.rn.ftz.f32", "mul.f32", "mul.f32"]


def test_shifts_of_signed_numbers_take_bits() -> None:
    text = (
        "\tshr.s32 \t%r2, %r1, 4;\n\tshr.s32 \t%r3, %r1, 31;\n\tshr.s64 \t%rd3, %rd1, 4;\n\tshr.s32 \t%r3, %r1, %r2;\n"
    )
    found = respelled(text, target_named("sm_80")).splitlines()
    assert found == ["\tbfe.s32 \t%r2, %r1, 4, 28;", *text.splitlines()[1:]]


def test_upper_halves_that_become_wide_are_of_whole_products() -> None:
    text = """.visible .entry k() {
	mul.hi.u32 	%r2, %r1, -766435501;
	mul.hi.u32 	%r3, %r1, %r2;
	mul.hi.u32 	%r4, %r1, 7;
	cvt.u64.u32 	%rd1, %r2;
	mov.b64 	%rd2, {%r3, 0};
	sub.s64 	%rd3, %rd1, %rd2;
}"""
    lines = respelled(text, target_named("sm_80")).splitlines()
    assert "mul.wide.u32 %tessera_both, %r1, -766435501; mov.b64 {_, %r2}, %tessera_both;" in lines[1]
    assert "mul.wide.u32 %tessera_both, %r1, %r2; mov.b64 {_, %r3}, %tessera_both;" in lines[2]
    assert lines[3:] == text.splitlines()[3:]
    text = text.replace("sub.s64", "add.s64")
    assert respelled(text, target_named("sm_80")) == text


def _with_parameters(target: TargetRecord, size: int) -> str:
    """Return PTX of a kernel whose parameters take so many bytes."""
    version = f"{target.ptx_version // 10}.{target.ptx_version % 10}"
    head = f".version {version}\n.target {target.name}\n.address_size 64\n"
    return f"{head}.visible .entry k(.param .align 8 .b8 p[{size}])\n{{\n\tret;\n}}\n"


@pytest.mark.parametrize("name", ["sm_75", "sm_80", "sm_90a"])
def test_parameters_may_take_32764_bytes(name: str) -> None:
    target = target_named(name)
    assert to_cubin(_with_parameters(target, 32764), target)[0]
    with pytest.raises(ResourceError, match="40000 bytes, a launch passes 32764") as caught:
        to_cubin(_with_parameters(target, 40000), target)
    assert caught.value.code == "too-many-arguments"
