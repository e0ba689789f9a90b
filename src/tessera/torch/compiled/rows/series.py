"""Functions that are sums of Chebyshev polynomials: Bessel's of the first kind, and scaled tails of the normal law."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tessera.numerics.functions import rough
from tessera.torch.compiled.convert import Converter, F
from tessera.torch.compiled.registry import row
from tessera.torch.compiled.rows.points import polynomial

_NEAR_0 = (
    *(-4.4153416464793395e-18, 3.3307945188222384e-17, -2.431279846547955e-16, 1.715391285555133e-15),
    *(-1.1685332877993451e-14, 7.676185498604936e-14, -4.856446783111929e-13, 2.95505266312964e-12),
    *(-1.726826291441556e-11, 9.675809035373237e-11, -5.189795601635263e-10, 2.6598237246823866e-09),
    *(-1.300025009986248e-08, 6.046995022541919e-08, -2.670793853940612e-07, 1.1173875391201037e-06),
    *(-4.4167383584587505e-06, 1.6448448070728896e-05, -5.754195010082104e-05, 0.00018850288509584165),
    *(-0.0005763755745385824, 0.0016394756169413357, -0.004324309995050576, 0.010546460394594998),
    *(-0.02373741480589947, 0.04930528423967071, -0.09490109704804764, 0.17162090152220877, -0.3046826723431984),
    *(0.6767952744094761,),
)
"""Of `exp(-x) I0(x)` for `x / 2 - 2`, up to 8; the term of the highest degree first."""
_FAR_0 = (
    *(-7.233180487874754e-18, -4.830504485944182e-18, 4.46562142029676e-17, 3.461222867697461e-17),
    *(-2.8276239805165836e-16, -3.425485619677219e-16, 1.7725601330565263e-15, 3.8116806693526224e-15),
    *(-9.554846698828307e-15, -4.150569347287222e-14, 1.54008621752141e-14, 3.8527783827421426e-13),
    *(7.180124451383666e-13, -1.7941785315068062e-12, -1.3215811840447713e-11, -3.1499165279632416e-11),
    *(1.1889147107846439e-11, 4.94060238822497e-10, 3.3962320257083865e-09, 2.266668990498178e-08),
    *(2.0489185894690638e-07, 2.8913705208347567e-06, 6.889758346916825e-05, 0.0033691164782556943),
    *(0.8044904110141088,),
)
"""Of `exp(-x) sqrt(x) I0(x)` for `32 / x - 2`, from 8."""
_NEAR_1 = (
    *(2.7779141127610464e-18, -2.111421214358166e-17, 1.5536319577362005e-16, -1.1055969477353862e-15),
    *(7.600684294735408e-15, -5.042185504727912e-14, 3.223793365945575e-13, -1.9839743977649436e-12),
    *(1.1736186298890901e-11, -6.663489723502027e-11, 3.625590281552117e-10, -1.8872497517228294e-09),
    *(9.381537386495773e-09, -4.445059128796328e-08, 2.0032947535521353e-07, -8.568720264695455e-07),
    *(3.4702513081376785e-06, -1.3273163656039436e-05, 4.781565107550054e-05, -0.00016176081582589674),
    *(0.0005122859561685758, -0.0015135724506312532, 0.004156422944312888, -0.010564084894626197),
    *(0.024726449030626516, -0.05294598120809499, 0.1026436586898471, -0.17641651835783406, 0.25258718644363365),
)
"""Of `exp(-x) I1(x) / x`, as those before."""
_FAR_1 = (
    *(7.517296310842105e-18, 4.414348323071708e-18, -4.6503053684893586e-17, -3.209525921993424e-17),
    *(2.96262899764595e-16, 3.3082023109209285e-16, -1.8803547755107825e-15, -3.8144030724370075e-15),
    *(1.0420276984128802e-14, 4.272440016711951e-14, -2.1015418427726643e-14, -4.0835511110921974e-13),
    *(-7.198551776245908e-13, 2.0356285441470896e-12, 1.4125807436613782e-11, 3.2526035830154884e-11),
    *(-1.8974958123505413e-11, -5.589743462196584e-10, -3.835380385964237e-09, -2.6314688468895196e-08),
    *(-2.512236237870209e-07, -3.882564808877691e-06, -0.00011058893876262371, -0.009761097491361469),
    *(0.7785762350182801,),
)
_TAIL = (
    *(-8.209007775790423e-18, -3.1719829363276153e-17, 2.2199508191131246e-16, 7.504465389303791e-16),
    *(-6.6686873413174225e-15, -1.471658599198698e-14, 2.1454507330912887e-13, 9.16795756250895e-14),
    *(-6.9011083268455895e-12, 1.4088717637462948e-11, 1.909835517217459e-10, -1.1717889351894724e-09),
    *(-2.105786951380067e-09, 5.576570939570629e-08, -2.426139944244908e-07, -7.158364623450284e-07),
    *(1.7183861600300944e-05, -0.0001369696503010054, 0.0007456494372536184, -0.003136927294554264),
    *(0.01059566336347286, -0.02875393558027666, 0.06009212804122225, -0.081265123236185, -0.0072607966203019),
    *(2.3549664010748974,),
)
"""Of `(1 + 2 x) exp(x * x) erfc(x)` for `2 (x - 4) / (x + 4)`, from 0; fitted in 60 digits."""
_EDGE = 8.0
_LEAST = 2.0**-32
"""Terms that are less change no f32."""


def _series(f: F, x: Any, terms: Sequence[float]) -> Any:
    """Return a sum of Chebyshev polynomials of `x / 2`.

    Source: Clenshaw, A note on the summation of Chebyshev series, 1955.
    """
    last, before, more = f("add", f("mul", x, terms[0]), terms[1]), terms[0], 0.0
    for term in terms[2:]:
        more, before, last = before, last, f("add", f("sub", f("mul", x, last), before), term)
    return f("mul", f("sub", last, more), 0.5)


def _terms(c: Converter, terms: Sequence[float]) -> Sequence[float]:
    if c.result_dtype().name == "f64":
        return terms
    first = next(at for at, term in enumerate(terms) if abs(term) > _LEAST)
    return terms[first:]


_ROUGH_EDGE = 4.0
_ROUGH_NEAR = (
    (9.13983769e-08, 6.39080417e-06, 0.000436842267, 0.0156163843, 0.250008881, 0.999998689),
    (9.20764649e-07, 5.1044095e-05, 0.00262047723, 0.0624728575, 0.500006557),
)
"""Of I0(x) and of I1(x) / x in powers of x^2 from the last down, up to 4, within 2^-16."""
_ROUGH_FAR = (
    (0.0906536952, 0.0163485482, 0.0504924916, 0.398937225),
    (-0.1186717, -0.0316767544, -0.150429115, 0.398949206),
)
"""Of `exp(-x) sqrt(x) I0(x)` and that of I1 in powers of 1 / x from the third down, from 4, within 2^-15."""


@row("i0.default", "special_i0e.default", "special_i1.default", "special_i1e.default")
def _bessel(c: Converter, x: Any) -> Any:
    """Write a modified Bessel function of the first kind.

    Source: Moshier, Methods and programs for mathematical functions, 1989.
    """
    name = str(c.node.target)
    is_first, is_scaled = "i1" in name, name.endswith("e.default")
    parts = _rough_parts(is_first) if c.result_dtype().bits <= 16 else _parts(c, is_first)

    def formula(f: F, x: Any) -> Any:
        size = f("abs", x)
        found = parts(f, size, is_scaled)
        return f("copysign", found, x) if is_first else found

    return c.elementwise(formula, (x,), "INT_TO_FLOAT")


def _parts(c: Converter, is_first: bool) -> Callable[[F, Any, bool], Any]:
    near, far = (_terms(c, one) for one in ((_NEAR_1, _FAR_1) if is_first else (_NEAR_0, _FAR_0)))

    def write(f: F, size: Any, is_scaled: bool) -> Any:
        inner = _series(f, f("sub", f("mul", f("minimum", size, _EDGE), 0.5), 2.0), near)
        outer = _series(f, f("sub", f("div", 32.0, f("maximum", size, _EDGE)), 2.0), far)
        inner = f("mul", inner, size) if is_first else inner
        found = f("select", f("le", size, _EDGE), inner, f("div", outer, f("sqrt", size)))
        return found if is_scaled else _grown(f, found, f("exp", f("mul", size, 0.5)))

    return write


def _grown(f: F, x: Any, root: Any) -> Any:
    """Return what is multiplied with a power, by its root: the power itself may have no finite value."""
    return f("mul", f("mul", x, root), root)


def _rough_parts(is_first: bool) -> Callable[[F, Any, bool], Any]:
    """Return what writes such a function for results that are 16-bit floats: polynomials of fewer terms."""

    def write(f: F, size: Any, is_scaled: bool) -> Any:
        inner = polynomial(f, f("mul", size, size), _ROUGH_NEAR[is_first])
        inner = f("mul", inner, size) if is_first else inner
        root = f("rsqrt", f("maximum", size, _ROUGH_EDGE))
        outer = f("mul", polynomial(f, f("mul", root, root), _ROUGH_FAR[is_first]), root)
        if is_scaled:
            inner = f("mul", inner, f(rough("exp"), f("neg", size)))
        else:
            outer = _grown(f, outer, f(rough("exp"), f("mul", size, 0.5)))
        return f("select", f("le", size, _ROUGH_EDGE), inner, outer)

    return write


def _scaled_tail(c: Converter, f: F, x: Any) -> Any:
    """Return `exp(x * x) erfc(x)` of what is not negative."""
    place = f("div", f("sub", x, 4.0), f("add", x, 4.0))
    place = f("select", f("eq", x, math.inf), 1.0, place)
    return f("div", _series(f, f("mul", place, 2.0), _terms(c, _TAIL)), f("add", f("mul", x, 2.0), 1.0))


@row("special_erfcx.default")
def _erfcx(c: Converter, x: Any) -> Any:
    def formula(f: F, x: Any) -> Any:
        found = _scaled_tail(c, f, f("abs", x))
        mirrored = f("sub", f("mul", f("exp", f("mul", x, x)), 2.0), found)
        return f("select", f("lt", x, 0.0), mirrored, found)

    return c.elementwise(formula, (x,), "INT_TO_FLOAT")


@row("special_log_ndtr.default")
def _log_ndtr(c: Converter, x: Any) -> Any:
    """Write the logarithm of the normal law's distribution function: of its scaled tail, where it is small."""

    def formula(f: F, x: Any) -> Any:
        part = f("mul", x, math.sqrt(0.5))
        tail = f("mul", _scaled_tail(c, f, f("abs", part)), 0.5)
        low = f("sub", f("log", tail), f("mul", part, part))
        high = f("log1p", f("mul", f("erfc", part), -0.5))
        return f("select", f("lt", x, -1.0), low, high)

    return c.elementwise(formula, (x,), "INT_TO_FLOAT")
