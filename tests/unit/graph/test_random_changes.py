"""Random programs that change arrays and views of them in place: they do what they do without `ts.jit`."""

import random

import numpy as np
import pytest

import tessera as ts

PARTS = {
    2: [
        "{0}[1]",
        "{0}[:, 2]",
        "{0}.T",
        "{0}[::-1]",
        "{0}[1:3, ::-2]",
        "{0}.ravel()",
        "{0}.reshape({1}, {2})",
        "{0} * 2",
    ],
    1: ["{0}[::-1]", "{0}[1:]", "{0}[::2]", "{0}[None]", "{0}.reshape(1, -1)", "np.copy({0})"],
}
KEYS = {
    2: ["0", ":, 1", "...", "::-1", "1:", "[1, 0]", "-1, ::2", "{0} > 0"],
    1: ["::-1", "1:", "...", "1", "::3", "{0} > 0"],
}


class Writer:
    """Writes one program, and runs it beside so that it knows the shapes of what it names."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        numbers = np.random.default_rng(seed)
        self.given = numbers.standard_normal((4, 6)), numbers.standard_normal(6)
        self.known = dict(zip("ab", (one.copy() for one in self.given), strict=True)) | {"np": np}
        self.lines: list[str] = []

    def names(self) -> list[str]:
        return [name for name in self.known if isinstance(self.known[name], np.ndarray)]

    def operand(self, shape: tuple[int, ...]) -> str:
        """Return an expression that broadcasts to a shape."""
        found = ["0.5", "3"]
        for name in self.names():
            for text in (name, f"np.sin({name})", f"{name}[0]", f"{name}.sum(axis=0)"):
                size = np.shape(eval(text, self.known))
                if size == shape or (size and size == shape[1:]):
                    found.append(text)
        one, other = self.rng.choice(found), self.rng.choice(found)
        return f"{one} {self.rng.choice('+-*')} {other}" if self.rng.random() < 0.4 else one

    def line(self) -> str:
        """Return a statement."""
        rng, name = self.rng, self.rng.choice(self.names())
        array = self.known[name]
        if rng.random() < 0.35:
            part = rng.choice(PARTS[array.ndim]).format(name, *array.shape[::-1])
            return f"v{len(self.lines)} = {part}"
        if rng.random() < 0.4:
            return f"{name} {rng.choice(['+=', '-=', '*='])} {self.operand(array.shape)}"
        key = rng.choice(KEYS[array.ndim]).format(name)
        shape = eval(f"{name}[{key}]", self.known).shape
        value = rng.choice(["0.25", "2"]) if ">" in key or not shape else self.operand(shape)
        return f"{name}[{key}] {rng.choice(['=', '+=', '*='])} {value}"

    def write(self) -> str:
        """Return the source of the program, all of whose lines NumPy runs."""
        while len(self.lines) < 8:
            kept = {name: value.copy() for name, value in self.known.items() if isinstance(value, np.ndarray)}
            try:
                line = self.line()
                exec(line, self.known)
            except (IndexError, ValueError):
                continue
            if any(self.known[name].size < 2 or np.abs(self.known[name]).max() > 1e6 for name in self.names()):
                for name in self.names():
                    if name not in kept:
                        del self.known[name]
                    else:
                        self.known[name][...] = kept[name]
                continue
            self.lines.append(line)
        results = self.rng.sample(self.names(), 2)
        return "def f(a, b):\n    " + "\n    ".join([*self.lines, f"return {', '.join(results)}"])


@pytest.mark.parametrize("seed", range(24))
def test_changes_are_those_of_numpy(seed):
    writer = Writer(seed)
    names = {"np": np}
    exec(source := writer.write(), names)
    wanted, found = ([one.copy() for one in writer.given] for _ in range(2))
    results = names["f"](*wanted)
    try:
        made = ts.jit(names["f"])(*found)
    except ts.TesseraError as error:
        if error.code not in ("written-argument", "value-needed"):
            raise
        return
    for one, other in zip([*made, *found], [*results, *wanted], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10, err_msg=source)
