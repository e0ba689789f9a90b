"""What PTX calls the matrix instructions of `target.fragments`, up to their operands, and how names are looked for."""

from __future__ import annotations

from tessera.target.fragments import MmaInstruction, WgmmaInstruction

_TYPES = {"i8": "s8", "i32": "s32", "fp8_e4m3": "e4m3", "fp8_e5m2": "e5m2"}


def mma_mnemonic(instruction: MmaInstruction) -> str:
    """Return `mma.sync` with its shape and types."""
    shape = instruction.name.partition("_")[0]
    a, b, acc = (_TYPES.get(x, x) for x in (instruction.a_dtype, instruction.b_dtype, instruction.acc_dtype))
    return f"mma.sync.aligned.{shape}.row.col.{acc}.{a}.{b}.{acc}"


def warpgroup_mnemonic(instruction: WgmmaInstruction) -> str:
    """Return `wgmma.mma_async` with its shape and types."""
    kinds = (instruction.acc_dtype, instruction.a_dtype, instruction.b_dtype)
    types = ".".join(_TYPES.get(kind, kind) for kind in kinds)
    return f"wgmma.mma_async.sync.aligned.m64n{instruction.n}k{instruction.k}.{types}"


def word(*names: str) -> str:
    r"""Return the pattern of a text that begins a word of PTX: one of some names.

    It begins with the name, which Python finds many times faster than the `\b` that it looks for behind it.
    """
    ways = [rf"{name}(?<!\w{name})" for name in names]
    return ways[0] if len(ways) == 1 else f"(?:{'|'.join(ways)})"
