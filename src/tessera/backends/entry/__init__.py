"""Native code of the runtime: the function that CPython calls for every kernel, and the worker pool."""

from tessera.backends.entry.module import compile_entry, entry_ir
from tessera.backends.entry.pool import compile_pool, pool_ir

__all__ = ["compile_entry", "compile_pool", "entry_ir", "pool_ir"]
