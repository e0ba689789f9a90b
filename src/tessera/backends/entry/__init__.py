"""The compiled entry: one function that CPython calls in the place of every kernel's `__call__`."""

from tessera.backends.entry.module import compile_entry, entry_ir

__all__ = ["compile_entry", "entry_ir"]
