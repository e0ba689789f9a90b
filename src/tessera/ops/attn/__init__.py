"""What attention layers need: `flash_attention`, `rope`."""

from tessera.ops.attn.flash import flash_attention
from tessera.ops.attn.rope import rope

__all__ = ["flash_attention", "rope"]
