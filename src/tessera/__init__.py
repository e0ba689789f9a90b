"""Tessera: tile-first kernels in Python, compiled to CPUs and GPUs."""

__version__ = "0.1.0"
