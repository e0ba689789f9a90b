"""Elementary functions, each one sequence of IEEE operations: what every target and the interpreter compute.

`GENERATORS` writes a function in the operations of a `Writer`. Under `fast`, and where a CPU has AVX-512, sequences may
take instructions of its own; those of AVX-512 give the same bits, NaN apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tessera.data import dataclass
from tessera.numerics.elementary import exponential as exponentials
from tessera.numerics.elementary import gamma, roots, trigonometry
from tessera.numerics.elementary import inverse as inverses
from tessera.numerics.elementary import logarithm as logarithms
from tessera.numerics.elementary import power as powers
from tessera.numerics.elementary import rough as roughs
from tessera.numerics.elementary.writer import UNIT, Value, Writer
from tessera.numerics.functions import ROUGH, rough


@dataclass(frozen=True)
class Options:
    """What a generator may use: relaxed results, and CPU features by LLVM's names."""

    fast: bool
    features: frozenset[str]


Generator = Callable[[Writer, tuple[Value, ...], Options], Value]


def _pow(w: Writer, xs: tuple[Value, ...], options: Options) -> Value:
    if xs[0].kind == "f64":
        return powers.pow_f64(w, xs[0], xs[1], options.features)
    make = powers.pow_fast if options.fast else powers.pow_f32
    return make(w, xs[0], xs[1], options.features)


GENERATORS: Final[dict[str, Generator]] = {
    "exp": lambda w, xs, o: exponentials.exp(w, xs[0], o.features, o.fast),
    "exp2": lambda w, xs, o: exponentials.exp2(w, xs[0], o.features, o.fast),
    "expm1": lambda w, xs, _: exponentials.expm1(w, xs[0]),
    "tanh": lambda w, xs, o: exponentials.tanh(w, xs[0], o.features, o.fast),
    "sigmoid": lambda w, xs, o: exponentials.sigmoid(w, xs[0], o.features, o.fast),
    "erf": lambda w, xs, o: exponentials.erf(w, xs[0], o.features),
    "log": lambda w, xs, o: logarithms.log(w, xs[0], o.features),
    "log2": lambda w, xs, o: logarithms.log2(w, xs[0], o.features),
    "log1p": lambda w, xs, o: logarithms.log1p(w, xs[0], o.features),
    "sin": lambda w, xs, _: trigonometry.sin(w, xs[0]),
    "cos": lambda w, xs, _: trigonometry.cos(w, xs[0]),
    "log10": lambda w, xs, o: logarithms.log10(w, xs[0], o.features),
    "tan": lambda w, xs, _: trigonometry.tan(w, xs[0]),
    "atan": lambda w, xs, _: inverses.atan(w, xs[0]),
    "atan2": lambda w, xs, _: inverses.atan2(w, xs[0], xs[1]),
    "asin": lambda w, xs, _: inverses.asin(w, xs[0]),
    "acos": lambda w, xs, _: inverses.acos(w, xs[0]),
    "cbrt": lambda w, xs, _: roots.cbrt(w, xs[0]),
    "hypot": lambda w, xs, _: roots.hypot(w, xs[0], xs[1]),
    "erfc": lambda w, xs, o: gamma.erfc(w, xs[0], o.features),
    "lgamma": lambda w, xs, o: gamma.lgamma(
        w, xs[0], gamma.Parts(lambda x: logarithms.log(w, x, o.features), lambda x: 1.0 / x)
    ),
    "pow": _pow,
}


def _rough(name: str) -> Generator:
    """Return the generator of a rough form: by a GPU's special function unit, elsewhere as the function itself."""
    of_unit = roughs.OF_UNIT[name]
    exact: Generator = GENERATORS.get(name) or (lambda w, xs, _: w.intrinsic(name, *xs))

    def generate(w: Writer, xs: tuple[Value, ...], options: Options) -> Value:
        return of_unit(w, *xs) if UNIT in options.features else exact(w, xs, options)

    return generate


GENERATORS.update({rough(name): _rough(name) for name in ROUGH})
