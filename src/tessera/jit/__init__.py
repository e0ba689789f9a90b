"""Kernels as Python objects: call path, specialisation, caches. `pipeline.py` knows the order of stages."""

from tessera.jit.compile import compile
from tessera.jit.kernel import Kernel, kernel
from tessera.jit.loaded import LoadedKernel, load

__all__ = ["Kernel", "LoadedKernel", "compile", "kernel", "load"]
