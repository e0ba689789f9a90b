"""How long work takes at the least, by the numbers of its machine: what `explain()` of graphs predicts."""

from __future__ import annotations

from tessera.target.cpu_rates import CLOCK, CORE_MEMORY, LAUNCH, VECTOR_RATE
from tessera.target.machines import relative_rate
from tessera.target.records import TargetRecord


def seconds(target: TargetRecord, moved: int, operations: int = 0, products: int = 0, element_bytes: int = 4) -> float:
    """Return how long one kernel takes whose copies and arithmetic overlap.

    Args:
        target: the machine.
        moved: bytes read and written.
        operations: results of elementwise functions, in instructions.
        products: multiply-adds of products of matrices.
        element_bytes: of the elements of products.
    """
    if target.simt:
        machine = target.machine
        clock = machine.flops / (2 * machine.rates.products)
        arithmetic = operations / (machine.units * machine.rates.results * clock)
        products_s = 2 * products / (machine.units * machine.flops * relative_rate(element_bytes))
        return max(moved / machine.memory, arithmetic, products_s) + machine.launch
    lanes = max(target.vector_bytes, 16) / max(element_bytes, 4)
    rate = VECTOR_RATE * lanes * CLOCK * target.cores
    return max(moved / (CORE_MEMORY * target.cores), operations / rate, products / rate) + LAUNCH
