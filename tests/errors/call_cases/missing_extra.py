"""The CUDA packages are not installed."""

import sys
import unittest.mock

import tessera as ts
from tessera.runtime import cuda


def call():
    cuda.driver.cache_clear()  # forget the packages of this machine
    with unittest.mock.patch.dict(sys.modules, {"cuda.bindings.driver": None}):
        ts.empty((4,), ts.f32, device="cuda")
