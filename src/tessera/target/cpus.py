"""The CPUs that code is generated for by name; the CPU backend makes the record of this machine's own."""

from __future__ import annotations

from tessera.target.records import TargetRecord

WITHOUT = "-prefer-256-bit", "-avx512fp16"
"""What LLVM is to do without on CPUs with vectors of 64 bytes: shorter vectors, and arithmetic of f16, which is that of
f32 here. LLVM 22 cannot select the bits of a comparison as an f16 with it ("Cannot select: f16 = bitcast")."""


def _sapphire_rapids(name: str, *more: str) -> TargetRecord:
    """Return a server CPU with a matrix unit (AMX), under its LLVM name."""
    features = {
        "avx2",
        "fma",
        "f16c",
        "avx512f",
        "avx512bf16",
        "avx512vnni",
        "amx-tile",
        "amx-bf16",
        "amx-int8",
        *more,
    }
    return TargetRecord(
        name,
        "cpu",
        frozenset(features),
        vector_bytes=64,
        l1_bytes=48 << 10,
        l2_bytes=2 << 20,
        triple="x86_64-unknown-linux-gnu",
        cpu=name,
        llvm_features=",".join(WITHOUT),
    )


CPUS: dict[str, TargetRecord] = {
    record.name: record
    for record in (
        TargetRecord(
            "x86-64", "cpu", frozenset({"sse2"}), vector_bytes=16, triple="x86_64-unknown-linux-gnu", cpu="x86-64"
        ),
        TargetRecord(
            "x86-64-v3",
            "cpu",
            frozenset({"avx2", "fma", "f16c"}),
            vector_bytes=32,
            triple="x86_64-unknown-linux-gnu",
            cpu="x86-64-v3",
        ),
        TargetRecord(
            "x86-64-v4",
            "cpu",
            frozenset({"avx2", "fma", "f16c", "avx512f"}),
            vector_bytes=64,
            triple="x86_64-unknown-linux-gnu",
            cpu="x86-64-v4",
            llvm_features="-prefer-256-bit",
        ),
        _sapphire_rapids("sapphirerapids"),
        _sapphire_rapids("graniterapids", "amx-fp16"),
        TargetRecord(
            "aarch64",
            "cpu",
            frozenset({"neon", "fma", "f16c"}),
            vector_bytes=16,
            triple="aarch64-unknown-linux-gnu",
            cpu="generic",
        ),
    )
}
CPU_TARGETS = tuple(CPUS)
