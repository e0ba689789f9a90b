"""The quantile function of the normal distribution."""

from __future__ import annotations

import math
from typing import Any

from tessera.numerics.dtypes import f64
from tessera.torch.compiled.convert import Converter, F
from tessera.torch.compiled.registry import row
from tessera.torch.compiled.rows.points import polynomial

_CENTRE = (
    (
        *(2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457),
        *(13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.3871328727963666080),
    ),
    (
        *(5226.4952788528545610, 28729.085735721942674, 39307.895800092710610, 21213.794301586595867),
        *(5394.1960214247511077, 687.18700749205790830, 42.313330701600911252, 1.0),
    ),
)
_NEAR = (
    (
        *(7.74545014278341407640e-4, 0.0227238449892691845833, 0.241780725177450611770, 1.27045825245236838258),
        *(3.64784832476320460504, 5.76949722146069140550, 4.63033784615654529590, 1.42343711074968357734),
    ),
    (
        *(1.05075007164441684324e-9, 5.47593808499534494600e-4, 0.0151986665636164571966, 0.148103976427480074590),
        *(0.689767334985100004550, 1.67638483018380384940, 2.05319162663775882187, 1.0),
    ),
)
_FAR = (
    (
        *(2.01033439929228813265e-7, 2.71155556874348757815e-5, 0.00124266094738807843860, 0.0265321895265761230930),
        *(0.296560571828504891230, 1.78482653991729133580, 5.46378491116411436990, 6.65790464350110377720),
    ),
    (
        *(2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5),
        *(7.86869131145613259100e-4, 0.0148753612908506148525, 0.136929880922735805310, 0.599832206555887937690, 1.0),
    ),
)
"""Numerators and denominators, from the highest power down."""


@row("special_ndtri.default")
def _quantile(c: Converter, x: Any) -> Any:
    """Write the quantile function of the normal distribution, in f64.

    Source: Wichura, Algorithm AS 241: the percentage points of the normal distribution, 1988.
    """

    def formula(f: F, x: Any) -> Any:
        from_middle = f("sub", x, 0.5)
        near_end = f("minimum", x, f("sub", 1.0, x))
        depth = f("sqrt", f("neg", f("log", near_end)))
        inner = _ratio(f, f("sub", 0.180625, f("mul", from_middle, from_middle)), _CENTRE)
        near, far = (_ratio(f, f("sub", depth, start), parts) for start, parts in ((1.6, _NEAR), (5.0, _FAR)))
        tail = f("copysign", f("select", f("le", depth, 5.0), near, far), from_middle)
        found = f("select", f("le", f("abs", from_middle), 0.425), f("mul", from_middle, inner), tail)
        at_end = f("eq", near_end, 0.0)
        return f("select", at_end, f("copysign", math.inf, from_middle), found)

    return c.w.cast(c.elementwise(formula, (c.w.cast(x, f64),), "INT_TO_FLOAT"), c.result_dtype())


def _ratio(f: F, x: Any, parts: tuple[tuple[float, ...], tuple[float, ...]]) -> Any:
    above, below = (polynomial(f, x, part) for part in parts)
    return f("div", above, below)
