"""Kernels as Python objects: call path, specialisation, caches. `pipeline.py` knows the order of stages."""

from tessera.jit.compile import LoadedKernel, compile, load
from tessera.jit.kernel import Kernel, kernel

__all__ = ["Kernel", "LoadedKernel", "compile", "kernel", "load"]
