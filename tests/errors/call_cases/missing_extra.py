"""The CUDA packages are not installed."""

import sys

import tessera as ts
from tessera.runtime import cuda


def call():
    cuda.driver.cache_clear()  # forget the packages of this machine
    found = sys.modules.get("cuda.bindings.driver")
    sys.modules["cuda.bindings.driver"] = None  # only this: modules that the call imports have to stay
    try:
        ts.empty((4,), ts.f32, device="cuda")
    finally:
        del sys.modules["cuda.bindings.driver"]
        if found is not None:
            sys.modules["cuda.bindings.driver"] = found
