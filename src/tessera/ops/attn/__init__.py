"""What attention layers need: `flash_attention`, `flash_attention_fp8`, `rope`."""

from tessera.ops.attn.flash import flash_attention
from tessera.ops.attn.fp8 import flash_attention_fp8
from tessera.ops.attn.rope import rope

__all__ = ["flash_attention", "flash_attention_fp8", "rope"]
