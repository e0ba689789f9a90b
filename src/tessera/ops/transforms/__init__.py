"""Transforms along a dimension: `hadamard`."""

from tessera.ops.transforms.hadamard import hadamard

__all__ = ["hadamard"]
