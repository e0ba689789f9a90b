"""The kernel that `tessera doctor` compiles and runs."""

from tessera.driver.kernel import kernel
from tessera.frontend import tile
from tessera.frontend.annotations import Tensor, dims
from tessera.numerics.dtypes import f32

n = dims("n")


@kernel
def saxpy(x: Tensor[n, f32], y: Tensor[n, f32], alpha: f32) -> Tensor[n, f32]:  # pyright: ignore
    """Compute y = alpha * x + y."""
    i = tile.linear_id()
    if i < n:
        y[i] = alpha * x[i] + y[i]  # pyright: ignore
    return y
