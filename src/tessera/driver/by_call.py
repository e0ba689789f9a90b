"""What kernels share of which each call chooses a concrete one: by structures, dtypes, and tensors that are missing."""

from __future__ import annotations

import functools
from types import FunctionType
from typing import Any, NoReturn, cast

from tessera.driver.agreement import Agreement
from tessera.driver.binding import grid_at_call
from tessera.driver.explain import Explanation
from tessera.driver.traced import HasGradient
from tessera.errors import CallError
from tessera.frontend.text import keep_text


class ByCall(HasGradient):
    """A kernel that is several.

    Args:
        function: the Python function.
        agreement: what other kernels of the same function have read of the program.
    """

    def __init__(self, function: FunctionType, agreement: Agreement | None = None) -> None:
        keep_text(function)
        functools.update_wrapper(cast(Any, self), function)
        self._function = function
        self._last: Any = None
        self._agreement = agreement or Agreement()

    def explain(self) -> Explanation:
        """Return what the last call really ran.

        Raises:
            CallError: `never-run` before the first call.
        """
        if self._last is None:
            raise CallError(
                f"{self._function.__name__} has not run yet",
                code="never-run",
                help="call it first; explain() reports that call",
            )
        return self._last.explain()

    def __getitem__(self, grid: object) -> NoReturn:
        """Refuse a launch in the manner of others, `kernel[grid](x)`.

        Raises:
            CallError: `grid-at-call`.
        """
        raise grid_at_call(self._function.__name__, grid)

    def __reduce__(self) -> str:
        """A kernel is copied and pickled by its name, as a function is."""
        return self._function.__qualname__

    def __repr__(self) -> str:
        return f"<ts.kernel {self._function.__name__}>"
