"""Functions of whole arrays: `ts.jit` traces them to graphs, differentiates them, and runs them as few kernels."""

from tessera.graph.checkpoints import checkpoint
from tessera.graph.custom import custom_jvp, custom_vjp
from tessera.graph.gradients import grad, jvp, linearize, stop_gradient, value_and_grad, vjp
from tessera.graph.jit import jit

__all__ = [
    "checkpoint",
    "custom_jvp",
    "custom_vjp",
    "grad",
    "jit",
    "jvp",
    "linearize",
    "stop_gradient",
    "value_and_grad",
    "vjp",
]
