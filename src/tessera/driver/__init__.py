"""Kernels as Python objects: call path, specialisation, caches. `pipeline.py` knows the order of stages."""

from tessera.driver.compile import compile
from tessera.driver.kernel import Kernel, kernel
from tessera.driver.loaded import LoadedKernel, load

__all__ = ["Kernel", "LoadedKernel", "compile", "kernel", "load"]
