"""Native code of the runtime: what CPython calls for every kernel, the worker pool, and tables of launches."""

from tessera.entry.code.module import compile_entry, compile_ir, entry_ir
from tessera.entry.code.pool import compile_pool, pool_ir
from tessera.entry.code.walking import walk_ir

__all__ = ["compile_entry", "compile_ir", "compile_pool", "entry_ir", "pool_ir", "walk_ir"]
