"""What functions around a call say of the schedules of its products; see `specialize`."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from tessera.data import dataclass


@dataclass(frozen=True)
class Rule:
    """What one `specialize` says.

    Args:
        when: what the device's capabilities have to be.
        use: options of products, by their place in `Options`.
    """

    when: tuple[tuple[str, Any], ...]
    use: tuple[tuple[int, Any], ...]


RULES: ContextVar[tuple[Rule, ...]] = ContextVar("tessera_specialize", default=())
"""Those of the functions that are running, the innermost last."""
