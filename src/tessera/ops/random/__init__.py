"""Ops that draw random numbers: `dropout`."""

from tessera.ops.random.dropout import dropout

__all__ = ["dropout"]
