"""Reductions along any dimensions: `sum`, `mean`, `var`, `norm`, `max`, `min`, `argmax`, `argmin`.

Dimensions that lie side by side are one. Those that lie apart are copied together first.
"""

from tessera.ops.reduce.extremes import argmax, argmin, max, min
from tessera.ops.reduce.sums import mean, norm, sum, var

__all__ = ["argmax", "argmin", "max", "mean", "min", "norm", "sum", "var"]
