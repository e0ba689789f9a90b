"""Ops along time: `conv1d` and `scan`."""

from tessera.ops.sequence.conv1d import conv1d
from tessera.ops.sequence.scan import scan

__all__ = ["conv1d", "scan"]
