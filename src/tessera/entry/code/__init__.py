"""Native code of the runtime: the function that CPython calls for every kernel, and the worker pool."""

from tessera.entry.code.module import compile_entry, compile_ir, entry_ir
from tessera.entry.code.pool import compile_pool, pool_ir

__all__ = ["compile_entry", "compile_ir", "compile_pool", "entry_ir", "pool_ir"]
