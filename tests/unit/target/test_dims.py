"""Texts of dimensions: what they are worth, how they print, and the sizes of names that they decide."""

from __future__ import annotations

import random

import pytest

from tessera.errors import LanguageError
from tessera.target.dims import Dim, solved


def drawn(random: random.Random, depth: int = 3) -> str:
    """Return an expression as Python has it, whose divisors are positive numbers."""
    if not depth or random.random() < 0.2:
        return random.choice(("n", "m", "k", str(random.randint(1, 9))))
    left, right = drawn(random, depth - 1), drawn(random, depth - 1)
    match random.choice("+-*/"):
        case "/":
            return f"({left})//{random.randint(1, 7)}"
        case sign:
            return f"({left}) {sign} ({right})" if random.random() < 0.5 else f"{left}{sign}({right})"


def test_expressions_are_worth_what_python_says():
    source = random.Random(3)
    for _ in range(400):
        text, sizes = drawn(source), {name: source.randint(0, 20) for name in "nmk"}
        try:
            dim = Dim.parse(text)
        except LanguageError:
            # Only what is a number below 1 whatever the names are is refused.
            assert len({eval(text, dict(zip("nmk", (p, p * p, 3 * p), strict=True))) for p in range(5, 9)}) == 1
            continue
        assert dim.value(sizes) == eval(text, dict(sizes)), text
        assert Dim.parse(str(dim)) == dim, text
        assert set(dim.names) <= {name for name in "nmk" if name in text}


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("1 + n", "n+1"),
        ("n - 1", "n-1"),
        ("8-n", "-n+8"),
        ("2*(n+1)", "2*n+2"),
        ("n//2*2", "2*(n//2)"),
        ("(n+15)//16", "(n+15)//16"),
        ("n//(2*m)", "n//(2*m)"),
        ("n//1", "n"),
        ("n+n", "2*n"),
        ("7//2", "3"),
        ("1 + größe//höhe", "größe//höhe+1"),
    ],
)
def test_expressions_print_in_one_way(text, printed):
    assert str(Dim.parse(text)) == printed


@pytest.mark.parametrize(
    "text", ["n+", "(n", "n)", "n//0", "n-n", "1-2", "n^2", "n m", "n%2", "n/2", "-3", "0", "", "*n", "9n"]
)
def test_what_is_no_dimension(text):
    with pytest.raises(LanguageError) as caught:
        Dim.parse(text)
    assert caught.value.code == "bad-annotation"


@pytest.mark.parametrize(
    "text",
    ["(" * 500 + "n" + ")" * 500, "-" * 500 + "n", "n*" * 9999 + "n", "*".join(f"(a{i}+b{i})" for i in range(9))],
)
def test_texts_that_would_exhaust_the_reader_are_refused(text):
    with pytest.raises(LanguageError):
        Dim.parse(text)


def test_names_are_solved_for():
    known = {"n+1": 9, "m*n": 24, "3*k-m": 9, "j//2": 4, "b*b": 16}
    assert solved((Dim.parse(text), size) for text, size in known.items()) == {"n": 8, "m": 3, "k": 4}
