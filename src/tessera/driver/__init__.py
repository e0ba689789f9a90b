"""Kernels as Python objects: call path, specialisation, caches. `pipeline.py` knows the order of stages."""
