"""Functions of whole arrays: `ts.jit` traces them to graphs, differentiates them, and runs them as few kernels."""

from tessera.graph.gradients import grad, jvp, stop_gradient, value_and_grad, vjp
from tessera.graph.jit import jit

__all__ = ["grad", "jit", "jvp", "stop_gradient", "value_and_grad", "vjp"]
