"""The compiled entry: one machine function that CPython calls for every kernel, and the pool of threads it runs on.

What differs between kernels stands in tables of 8-byte words. `layout.py` is their schema, the one place that says
what stands where: `tables.py` writes them, the LLVM IR of `code/` reads them, and both take every offset from it.
`host.py` is what the entry needs of this Python, `exchange.py` how it reads PyTorch tensors. Which calls it serves is
decided in `driver/direct_calls.py`.
"""
