"""What is done to scores of attention by hand, as PyTorch's function takes it: a scale, and a mask or what is added.

A query that sees no key has zeros, where the softmax of nothing but -inf is NaN. Where scores are hidden by a number,
it has the mean of the values that are hidden by it, as the softmax of equal scores gives, and no gradient:

    scores.masked_fill(mask, -1e9)    →    blind = mask.all(-1, keepdim=True)
                                           query.masked_fill(blind, 0), attn_mask=mask == blind
"""

from __future__ import annotations

import operator
from importlib import import_module
from typing import Any

torch: Any = import_module("torch")


class Mask:
    """Gathers what is done to scores.

    Args:
        graph: where nodes are added.
        scale: what products are multiplied by.
        like: scores.
    """

    def __init__(self, graph: Any, scale: float, like: Any) -> None:
        self._graph, self.scale = graph, scale
        self._dtype = torch.promote_types(like.dtype, torch.float32)
        self._device = like.device
        self._bias: Any = None
        """What is added to the products, if anything is."""
        self._keeps: Any = None
        """Where scores are not -inf."""
        self._low: Any = None
        """Where scores are a low number."""
        self._fill = -torch.inf
        """That number."""

    def applied(self, query: Any) -> tuple[Any, Any]:
        """Return the queries and the mask as PyTorch's function takes them.

        Rows of nothing but the low number have equal weights: their queries are 0, and see what it hides.
        """
        if self._low is None:
            return query, self._masked(self._keeps)
        seen = self._both(self._keeps, self._call(torch.logical_not, self._low))
        if self._bias is not None:
            seen = self._both(seen, self._call(torch.gt, self._bias, self._fill))
        blind = self._call(torch.logical_not, self._graph.call_method("any", (seen, -1, True)))
        if self._bias is not None:
            self._bias = self._graph.call_method("masked_fill", (self._bias, blind, 0.0))
        keeps = self._both(self._keeps, self._call(torch.eq, self._low, blind))
        return self._graph.call_method("masked_fill", (query, blind, 0.0)), self._masked(keeps)

    def scaled(self, factor: float) -> None:
        """Multiply the scores."""
        self.scale *= factor
        self._fill *= factor
        if self._bias is not None:
            self._bias = self._call(operator.mul, self._bias, factor)

    def added(self, bias: Any) -> None:
        """Add something to the scores."""
        self._add(self._number(bias))

    def taken(self, bias: Any) -> None:
        """Subtract something from the scores."""
        self._add(self._call(operator.neg, self._number(bias)))

    def hidden(self, where: Any, score: float) -> None:
        """Let scores be one that is very low."""
        if score == -torch.inf:
            self._keeps = self._both(self._keeps, self._call(torch.logical_not, where))
            return
        self._fill = score
        self._low = where if self._low is None else self._call(torch.logical_or, self._low, where)
        if self._keeps is not None:
            self._keeps = self._call(torch.logical_or, self._keeps, where)

    def shown(self, where: Any, score: float) -> None:
        """Let scores be one that is very low everywhere else."""
        if score == -torch.inf:
            self._keeps = self._both(self._keeps, where)
        else:
            self.hidden(self._call(torch.logical_not, where), score)

    def kept(self) -> None:
        """Leave scores as they are: they are cast."""

    def _masked(self, keeps: Any) -> Any:
        """Return what is added to the products, -inf where they are not kept; where they are, if nothing is added."""
        if self._bias is None or keeps is None:
            return keeps if self._bias is None else self._bias
        lowest = self._graph.call_function(torch.full, ((), -torch.inf), {"dtype": self._dtype, "device": self._device})
        return self._call(torch.where, keeps, self._bias, lowest)

    def _add(self, bias: Any) -> None:
        self._bias = bias if self._bias is None else self._call(operator.add, self._bias, bias)

    def _number(self, bias: Any) -> Any:
        """Return what is added as a float: a truth value would be a mask."""
        is_float = bias.meta["example_value"].dtype.is_floating_point
        return bias if is_float else self._graph.call_method("to", (bias, self._dtype))

    def _both(self, one: Any, other: Any) -> Any:
        return other if one is None else self._call(torch.logical_and, one, other)

    def _call(self, function: Any, *args: Any) -> Any:
        return self._graph.call_function(function, args)
