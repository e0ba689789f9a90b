"""Passes over TIR-H that keep its meaning and never make it worse: one file per pass.

`tests/filetests/canonicalize/<pass>.mlir` shows each; `driver/pipeline.py` orders them.
"""
