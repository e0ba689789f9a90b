"""Gradients through tile kernels, TIR-H to TIR-H: `adjoint.adjoint_of` is the entry."""
