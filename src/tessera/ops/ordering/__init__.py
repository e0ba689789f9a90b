"""Ops that put elements in order: `sort`, `topk`."""

from tessera.ops.ordering.sort import sort, topk

__all__ = ["sort", "topk"]
