"""Ops that take rows of tables: `embedding`."""

from tessera.ops.lookup.embedding import embedding

__all__ = ["embedding"]
