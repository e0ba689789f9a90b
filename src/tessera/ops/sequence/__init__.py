"""Ops along time: `conv1d`."""

from tessera.ops.sequence.conv1d import conv1d

__all__ = ["conv1d"]
