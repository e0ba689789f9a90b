"""What a compilation read of the program decides its key: if two programs' keys agree, so does the IR built of them.

Programs are generated: a constant behind one to three of the ways in which Python can hold a value, carried into the
kernel by one of the ways in which code can get at it. The IR is the judge, and it has no part in the key.
"""

from __future__ import annotations

import itertools
import random
import sys
import textwrap
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from tessera.frontend import settled, tile
from tessera.frontend.build import build_kernel
from tessera.frontend.reads import Reads
from tessera.frontend.signature import Signature
from tessera.frontend.specialize import ArgFacts, Specialization
from tessera.ir.text import text_of
from tessera.numerics import dtypes

HEAD = """
    import enum
    import operator
    import types
    from dataclasses import dataclass
    from typing import Any, NamedTuple

    import numpy as np
    import tessera as ts
"""
# How a value is held: definitions (`$` is a new number, VALUE what is held), and the expression that gives it back.
HOLDERS = [
    ("G$ = VALUE", "G$"),
    ("class C$:\n    a = VALUE", "C$.a"),
    ("class Base$:\n    a = VALUE\nclass C$(Base$):\n    pass", "C$.a"),
    ("class Outer$:\n    class Inner:\n        a = VALUE", "Outer$.Inner.a"),
    ("N$ = types.SimpleNamespace(a=VALUE)", "N$.a"),
    ("@dataclass(frozen=True)\nclass D$:\n    a: Any\nI$ = D$(VALUE)", "I$.a"),
    ("class P$(NamedTuple):\n    a: Any\n    b: Any = 0\nI$ = P$(VALUE)", "I$.a"),
    ("class P$(NamedTuple):\n    a: Any\nI$ = P$(VALUE)", "I$[0]"),
    ("class E$(enum.Enum):\n    A = VALUE\n    B = 'other'", "E$.A.value"),
    ("class S$:\n    __slots__ = ('a',)\nI$ = S$()\nI$.a = VALUE", "I$.a"),
    ("class S$:\n    @property\n    def a(self):\n        return VALUE\nI$ = S$()", "I$.a"),
    ("class S$:\n    def __getattr__(self, name):\n        return VALUE\nI$ = S$()", "I$.a"),
    (
        "class M$(type):\n    @property\n    def a(cls):\n        return VALUE\nclass C$(metaclass=M$):\n    pass",
        "C$.a",
    ),
    ("D$ = {'a': VALUE, 'b': 1}", "D$['a']"),
    ("L$ = [0, VALUE]", "L$[1]"),
    ("T$ = (0, (VALUE, 2))", "T$[1][0]"),
    ("M$ = types.ModuleType('held')\nM$.a = VALUE", "M$.a"),
    ("def f$():\n    pass\nf$.a = VALUE", "f$.a"),
    ("@ts.function\ndef h$():\n    return VALUE", "h$()"),
    ("@ts.function\ndef h$(v=VALUE):\n    return v", "h$()"),
    ("@ts.function\ndef h$(*, v=VALUE):\n    return v", "h$()"),
    (
        "def make$(v):\n    @ts.function\n    def h():\n        return v\n    return h\nh$ = make$(VALUE)",
        "h$()",
    ),
    ("class K$:\n    @ts.function\n    def h():\n        return VALUE", "K$.h()"),
    ("class W$:\n    def __neg__(self):\n        return VALUE\nI$ = W$()", "-I$"),
    (
        "class W$:\n    def __getitem__(self, k):\n        return VALUE\nI$ = W$()",
        "(0 if I$ is None else VALUE)",
    ),
    ("class W$(float):\n    def __mul__(self, other):\n        return VALUE\nI$ = W$(1.0)", "(I$ * 2)"),
    ("class W$(tuple):\n    def __getitem__(self, k):\n        return VALUE\nI$ = W$((1, 2))", "I$[0]"),
    ("class W$(dict):\n    def __missing__(self, k):\n        return VALUE\nI$ = W$()", "I$['a']"),
    ("def abs(x):\n    return x\nG$ = VALUE", "G$"),
]
# How the kernel gets at an expression: definitions, statements of the kernel, and the expression there.
CARRIERS = [
    ("", "", "EXPR"),
    ("", "v = EXPR", "v"),
    ("", "v = (EXPR, 1)\nw = v", "w[0]"),
    ("@ts.function\ndef first(v, *, w=0):\n    return v", "", "first(EXPR)"),
    (
        "@ts.function\ndef inner(v):\n    return v\n@ts.function\ndef outer(v):\n    return inner(v)",
        "",
        "outer(EXPR)",
    ),
    ("", "", "(EXPR if len('ab') == 2 else 0)"),
    ("@ts.function\ndef by_name():\n    return EXPR", "", "by_name()"),
]
VALUES = [
    "2.0",
    "3.0",
    "2",
    "True",
    "0.0",
    "-0.0",
    "float('nan')",
    "np.float32(0.1)",
    "np.float64(0.1)",
    "1e300",
]
_numbers = itertools.count()


def program(source: random.Random) -> str:
    """Return a program with VALUE where its constant goes."""
    definitions, expression = [], "VALUE"
    for left in range(source.choice((1, 1, 2, 3)), 0, -1):
        # Helpers can be called in the kernel only, so they hold a value last.
        held, back = source.choice([one for one in HOLDERS if left == 1 or not one[1].endswith("()")])
        number = str(next(_numbers))
        definitions.append(held.replace("$", number).replace("VALUE", expression))
        expression = back.replace("$", number).replace("VALUE", expression)
    more, statements, reached = source.choice(CARRIERS)
    definitions.append(more.replace("EXPR", expression))
    body = textwrap.indent(f"{statements}\nx[0:4] = x[0:4] * {reached}".replace("EXPR", expression), "    ")
    kernel = f'def kernel(x: ts.Tensor["n", ts.f32]):\n{body}\n'
    return "\n".join([textwrap.dedent(HEAD), *definitions, kernel])


def around(held: str, expression: str) -> str:
    """Return a program with definitions and a kernel that multiplies by an expression."""
    kernel = f"def kernel(x: ts.Tensor['n', ts.f32]):\n    x[0:4] = x[0:4] * {expression}\n"
    return f"{textwrap.dedent(HEAD)}\n{held}\n{kernel}"


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Return a function that gives the kernel of a text; all texts look like one file that is edited."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path = tmp_path / "sample.py"

    def make(text: str):
        module = ModuleType("sample")
        monkeypatch.setitem(sys.modules, "sample", module)
        path.write_text(text)
        import linecache

        linecache.cache.pop(str(path), None)
        exec(compile(text, str(path), "exec"), module.__dict__)
        return Signature.of(module.kernel), module

    return make


SPEC = Specialization((ArgFacts("tensor", dtypes.f32, (8,)),))


def compiled(signature):
    """Return the IR of a kernel, and what building it read."""
    reads = Reads({"kernel": signature.function})
    return text_of(build_kernel(signature, SPEC, reads).module), reads


def again(signature, paths):
    """Return what stands at the same paths now."""
    reads = Reads({"kernel": signature.function})
    reads.follow(paths)
    return reads.roots + reads.digest()


@pytest.mark.parametrize("seed", range(12))
def test_equal_keys_mean_equal_code(load, seed):
    """The constant alone is changed; its holder and the source around may be in the key or not."""
    source = random.Random(seed)
    for _ in range(15):
        text = program(source)
        values = source.sample(VALUES, 3)
        made = []
        for value in values:
            signature, _ = load(text.replace("VALUE", value))
            try:
                code, reads = compiled(signature)
            except Exception as error:
                code, reads = str(error), None
            made.append((signature, code, reads))
        for (_, code, reads), (other, other_code, _) in itertools.permutations(made, 2):
            if reads is None or not reads.complete:
                continue
            key = reads.roots + reads.digest()
            if again(other, reads.paths) == key:
                assert code == other_code, text
        for signature, _, reads in made:
            if reads is not None and reads.complete:
                assert again(signature, reads.paths) == reads.roots + reads.digest(), "a warm start finds it"


def test_most_programs_can_be_kept(load):
    """Only those whose operators are Python code of the program, and their like, are compiled in each process."""
    kept = 0
    for held, back in HOLDERS:
        text = around(held, back).replace("$", "").replace("VALUE", "2.0")
        reads = compiled(load(text)[0])[1]
        kept += reads.complete
    assert kept >= len(HOLDERS) - 5


CHANGES = {
    "global": ("G = 2.0", "G", "m.G = 3.0"),
    "class attribute": ("class C:\n    a = 2.0", "C.a", "m.C.a = 3.0"),
    "another class of that name": ("class C:\n    a = 2.0\nD = C", "D.a", "m.D = type('C', (), {'a': 3.0})"),
    "a builtin is hidden": ("", "max(2.0, 1.0)", "m.max = m.ts.tile.maximum"),
    "helper": (
        "@ts.function\ndef f(v):\n    return v\n@ts.function\ndef g(v):\n    return 3.0",
        "f(2.0)",
        "m.f = m.g",
    ),
    "helper's default": ("@ts.function\ndef f(v=2.0):\n    return v", "f()", "m.f.function.__defaults__ = (3.0,)"),
    "list in a module": ("L = [2.0]", "L[0]", "m.L[0] = 3.0"),
    "dictionary's order": ("D = {1: 2.0, 2: 3.0}\nT = tuple(D.values())", "T[0]", "m.T = m.T[::-1]"),
    "condition": ("FLAG = None", "(2.0 if FLAG is None else 3.0)", "m.FLAG = 0"),
    "alias": ("class C:\n    a = 2.0\nD = C\nE = C", "(2.0 if D is E else 3.0)", "m.E = type('C', (), {'a': 2.0})"),
    "one of two": (
        "class C:\n    a = 2.0\nclass B:\n    a = 3.0\nD, E, F = C, B, C",
        "(D.a * E.a * F.a)",
        "m.F = m.B",
    ),
    "type of a number": ("G = 1", "(2.0 if str(G) == '1' else 3.0)", "m.G = True"),
    "text of an assertion": ("G = 'a'", "(2.0 if G == 'a' else 3.0)", "m.G = 'b'"),
    "function of math": ("import math\nf = math.floor", "f(2.5)", "m.f = m.math.ceil"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_while_the_program_runs_changes_the_key(load, change):
    held, expression, edit = CHANGES[change]
    signature, module = load(around(held, expression))
    first, reads = compiled(signature)
    key = reads.roots + reads.digest()
    assert reads.complete
    assert again(signature, reads.paths) == key
    exec(edit, {"m": module})
    try:
        second = compiled(signature)[0]
    except Exception as error:
        second = str(error)
    assert second != first
    assert again(signature, reads.paths) != key


def test_constants_of_calls_are_told_apart():
    values = [
        1,
        2,
        True,
        1.0,
        "1",
        0.0,
        -0.0,
        dtypes.f32,
        dtypes.f16,
        (1, 2),
        (2, 1),
        (1, (2.0,)),
        (1, (2,)),
        b"1",
    ]
    texts = {Reads({"c": value}).roots for value in values}
    assert len(texts) == len(values)
    assert all(Reads({"c": value}).complete for value in values)


def test_what_is_not_read_leaves_the_key(load):
    text = around("G, H = 2.0, 1.0", "G")
    signature, _ = load(text)
    reads = compiled(signature)[1]
    other, _ = load(text.replace("1.0", "7.0"))
    assert again(other, reads.paths) == reads.roots + reads.digest()
    moved, _ = load("\n" + text)  # messages of device asserts carry the line
    assert again(moved, reads.paths) != reads.roots + reads.digest()


KINDS = {
    "tuple": ("tuple", "({}, 8)"),
    "list": ("list", "[{}, 8]"),
    "dict": ("dict", "{{'a': {}}}"),
    "set": ("set", "{{{}}}"),
    "frozenset": ("frozenset", "{{{}}}"),
    "int": ("int", "{}"),
    "float": ("float", "{}"),
    "str": ("str", "'{}'"),
    "bytes": ("bytes", "b'{}'"),
    "named tuple": ("Named", "{}, 8"),
    "a tuple in a tuple": ("tuple", "(Base(({}, 8)), 1)"),
}
USED_DIRECTLY = ("tuple", "int", "float", "str", "bytes", "named tuple", "a tuple in a tuple")
BODIES = ("pass", "__slots__ = ()", "extra = 1.0", "def method(self):\n        return 1")


def held_by(name, content, body="pass", depth=2):
    """Return a value of a class of the program that is made from Python's own, some classes above it."""
    base, made = KINDS[name]
    scope: dict[str, Any] = {"NamedTuple": NamedTuple}
    exec("class Named(NamedTuple):\n    m: int\n    n: int\n", scope)
    exec(f"class Base({base}):\n    {body if depth == 1 else '__slots__ = ()'}\nKind = Base\n", scope)
    for level in range(1, depth):
        exec(f"class Kind(Kind):\n    {body if level + 1 == depth else '__slots__ = ()'}\n", scope)
    return eval(f"Kind({made.format(content)})", scope)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_contents_of_any_class_made_from_pythons_own_are_in_the_text(name, depth):
    for body in BODIES:
        first, again, other = (Reads({"c": held_by(name, content, body, depth)}) for content in (4, 4, 16))
        assert first.complete
        assert other.complete
        assert first.roots == again.roots != other.roots


@pytest.mark.parametrize("name", USED_DIRECTLY)
@pytest.mark.parametrize("operator", ["__iter__", "__len__", "__getitem__", "__index__", "__float__", "__eq__"])
def test_operators_of_the_program_on_what_kernels_take_as_it_is_keep_code_in_the_process(name, operator):
    body = f"def {operator}(self, *rest):\n        return NotImplemented"
    assert not Reads({"c": held_by(name, 4, body)}).complete


@pytest.mark.parametrize("base", ["Enum", "IntEnum", "StrEnum"])
def test_members_are_known_by_name_and_value(base):
    def member(value, name="A"):
        scope: dict[str, Any] = {}
        exec(f"import enum\nclass E(enum.{base}):\n    A = {value}\n    B = '9'\n", scope)
        return getattr(scope["E"], name)

    values = ("'1'", "'2'") if base == "StrEnum" else ("1", "2")
    texts = [Reads({"c": member(*given)}).roots for given in ((values[0],), (values[1],), (values[0], "B"))]
    assert len(set(texts)) == 3
    reads = Reads({"c": member(values[0])})
    reads.operands(member(values[0]), member(values[0], "B"))
    assert reads.complete, "what Python's own operators do with members is known"


def test_a_number_may_differ_from_the_value_of_its_member():
    def member(factor):
        scope: dict[str, Any] = {}
        new = f"obj = int.__new__(cls, value * {factor})\n        obj._value_ = value\n        return obj"
        exec(f"import enum\nclass E(int, enum.Enum):\n    def __new__(cls, value):\n        {new}\n    A = 1\n", scope)
        return scope["E"].A

    assert Reads({"c": member(2)}).roots != Reads({"c": member(3)}).roots


_NO_OPERATORS = {
    "__new__",
    "__init__",
    "__init_subclass__",
    "__subclasshook__",
    "__class_getitem__",
    "__class__",
    "__doc__",
    "__dir__",
    "__sizeof__",
    "__getattribute__",
    "__setattr__",
    "__delattr__",
    "__setitem__",
    "__delitem__",
    "__getstate__",
    "__reduce__",
    "__reduce_ex__",
    "__getnewargs__",
    "__getformat__",
    "__bytes__",
}
OPERATORS = sorted(
    name
    for name in {name for kind in (int, float, complex, str, tuple, list, dict, set) for name in dir(kind)}
    if name.startswith("__") and name not in _NO_OPERATORS and not name.startswith("__i")
)


@pytest.mark.parametrize("operator", [*OPERATORS, "__int__", "__index__", "__invert__", "__iter__", "__matmul__"])
@pytest.mark.parametrize("base", ["object", "tuple", "dict", "float", "enum.Enum"])
def test_an_operator_of_the_program_on_any_object_keeps_code_in_the_process(operator, base):
    scope: dict[str, Any] = {}
    members = "    A = 1\n" if base == "enum.Enum" else ""
    exec(f"import enum\nclass K({base}):\n    def {operator}(self, *rest):\n        return 1\n{members}", scope)
    value = scope["K"].A if members else object.__new__(scope["K"]) if base == "object" else scope["K"]()
    reads = Reads({"c": (value,)})
    reads.operands((value,), shown=operator in ("__str__", "__repr__", "__format__"))
    assert not reads.complete


def test_how_a_value_is_shown_counts_where_it_is_made_a_text():
    for value in (held_by("named tuple", 4), held_by("tuple", 4, "def __repr__(self):\n        return 'x'")):
        reads = Reads({"c": value})
        reads.operands(value)
        reads.item(value, 0, value[0])
        assert reads.complete
    reads.operands(value, shown=True)
    assert not reads.complete


def test_operators_on_objects_without_any_are_known():
    class Held:
        a = 1

    for value in (Held(), Held, [Held()], (None, {"a": (Held(), 2)}), range(3)):
        reads = Reads({"c": value})
        reads.operands(value)
        assert reads.complete


@pytest.mark.parametrize("kind", [dict, set, list])
def test_what_changes_while_it_is_read_is_read_again_or_not_known(kind, monkeypatch):
    """A set or dictionary is read whole at once; where Python still finds it changed, that is tried a few times."""
    tries = itertools.count()

    def changed_at_first(value):
        if next(tries) < limit:
            raise RuntimeError("changed size during iteration")
        return [(1, 2)] if kind is dict else [1, 2]

    for limit in (0, 1, 3, 1000):
        tries = itertools.count()
        monkeypatch.setattr(settled, "list", changed_at_first, raising=False)
        reads = Reads({"c": kind()})
        monkeypatch.undo()
        assert reads.complete == (limit < 1000)


def test_functions_of_the_language_are_told_apart():
    """One code serves them all, and kernels take them from closures, tables and arguments of helpers."""
    texts = {name: Reads({"kernel": function}).roots for name, function in tile.functions().items()}
    assert len(texts) > 150
    assert len(set(texts.values())) == len(texts)
