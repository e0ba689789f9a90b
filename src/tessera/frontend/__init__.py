"""Python to TIR-H: the language surface, which needs no IR, and the compiler of kernels' source."""
