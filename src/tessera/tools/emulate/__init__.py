"""Runs the PTX of a kernel on a CPU, all threads of its programs in step, so that no GPU is needed to test it.

Source: PTX ISA 9.2. What is not known raises `errors.Unknown`; what a GPU would not do raises `errors.Fault`.
"""
