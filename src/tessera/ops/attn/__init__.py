"""What attention layers need: `rope`."""

from tessera.ops.attn.rope import rope

__all__ = ["rope"]
