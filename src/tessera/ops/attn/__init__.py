"""What attention layers need: `flash_attention`, packed sequences, pages, 8 bits, a user's own functions, `rope`."""

from tessera.ops.attn.block_mask import block_mask
from tessera.ops.attn.flash import flash_attention
from tessera.ops.attn.fp8 import flash_attention_fp8
from tessera.ops.attn.mods import mod
from tessera.ops.attn.paged import append_kv, merge, paged_attention
from tessera.ops.attn.rope import rope
from tessera.ops.attn.varlen import flash_attention_varlen

__all__ = [
    "append_kv",
    "block_mask",
    "flash_attention",
    "flash_attention_fp8",
    "flash_attention_varlen",
    "merge",
    "mod",
    "paged_attention",
    "rope",
]
