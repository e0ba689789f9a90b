"""The compiled entry's side in Python: what memory it reads, and the tables that tell it what to do.

The entry itself is machine code made by `backends/entry`. It serves every kernel: what differs between kernels
stands in tables of 8-byte words, described in `layout.py` and written by `tables.py`.
"""
