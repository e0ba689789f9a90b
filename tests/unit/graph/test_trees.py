"""What functions of arrays are called with and give: trees, objects, floats, and arrays of functions around."""

import gc
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

import tessera as ts

RNG = np.random.default_rng(5)

Pair = namedtuple("Pair", "w b")


@dataclass
class Plain:
    w: object
    b: object


@dataclass(frozen=True, slots=True)
class Frozen:
    w: object
    b: object


class Slotted:
    __slots__ = ("b", "w")

    def __init__(self, w, b):
        self.w, self.b = w, b


class Open:
    def __init__(self, w, b):
        self.w, self.b = w, b

    def __call__(self, x):
        return x * self.w + self.b


class Attributes(dict):
    __getattr__ = dict.__getitem__


class Items(list):
    @property
    def w(self):
        return self[0]

    @property
    def b(self):
        return self[1]


MAKERS = {
    "namedtuple": Pair,
    "dataclass": Plain,
    "frozen dataclass": Frozen,
    "object with slots": Slotted,
    "object": Open,
    "namespace": lambda w, b: SimpleNamespace(w=w, b=b),
    "dictionary with attributes": lambda w, b: Attributes(w=w, b=b),
    "list of a class": lambda w, b: Items([w, b]),
    "object in an object": lambda w, b: Open(SimpleNamespace(inner=[w]), b),
}


def first(p):
    return p.w.inner[0] if isinstance(p.w, SimpleNamespace) else p.w


@pytest.mark.parametrize("name", MAKERS)
def test_trees_of_all_kinds(name):
    make, x = MAKERS[name], RNG.standard_normal(5)
    f = ts.jit(lambda p, x: first(p) * x + p.b)
    for _ in range(2):
        w, b = RNG.standard_normal((2, 5))
        assert np.allclose(f(make(w, b), x), w * x + b)
    slope = ts.grad(lambda p, x: np.sum(first(p) ** 2 * x + p.b))(make(w, b), x)
    assert type(slope) is type(make(w, b))
    assert np.allclose(first(slope), 2 * w * x)
    assert np.allclose(slope.b, 1.0)
    made = ts.jit(lambda w, b: make(w * 2, b))(w, b)
    assert type(made) is type(make(w, b))
    assert np.allclose(first(made), w * 2)


@pytest.mark.parametrize("kind", ["argument", "method", "part of a method's object"])
def test_what_objects_hold_is_read_at_each_call(kind):
    class Net:
        def __init__(self, part):
            self.part = part

        @ts.jit
        def own(self, x):
            return self.part * x

        @ts.jit
        def inner(self, x):
            return self.part(x)

    x, part = RNG.standard_normal(4), Open(RNG.standard_normal(4), 0.5)
    net = Net(part if kind == "part of a method's object" else part.w)
    f = {"argument": ts.jit(lambda part, x: part(x)), "method": None, "part of a method's object": None}[kind]
    part.around = part  # what holds itself is no tree without an end
    for count in range(3):
        part.w, part.b = part.w * 2, float(count)
        if kind == "method":
            net.part = part.w
            assert np.allclose(net.own(x), part.w * x)
        else:
            assert np.allclose(net.inner(x) if f is None else f(part, x), part.w * x + part.b)


def test_objects_without_arrays_are_as_they_are():
    shared = Open(1, None)
    for _ in range(50):
        shared = Open(shared, shared)
    chain = None
    for _ in range(500):
        chain = Open(1, chain)
    x = np.ones(3)
    assert ts.jit(lambda one, other, x: x * (one is shared) * (other is chain))(shared, chain, x).all()


MAPPINGS = {
    "dict": dict,
    "OrderedDict": OrderedDict,
    "defaultdict": lambda **items: defaultdict(list, items),
    "a class of dictionaries": Attributes,
}


@pytest.mark.parametrize("name", MAPPINGS)
def test_the_order_of_keys_does_not_matter(name):
    make, (a, b) = MAPPINGS[name], RNG.standard_normal((2, 3))
    given, other = make(a=a, b=b), make(b=b, a=a)
    slope = ts.grad(lambda p: np.sum(p["a"] * p["b"] ** 2))(given)
    assert type(slope) is type(given)
    assert np.allclose(slope["a"], b * b)
    _, pull = ts.vjp(lambda p: make(y=p["a"] * 2, z=p["b"]), given)
    (back,) = pull(make(z=b, y=a))
    assert np.allclose(back["a"], 2 * a)
    assert np.allclose(back["b"], b)
    _, along = ts.jvp(lambda p: p["a"] * p["b"], (given,), (other,))
    assert np.allclose(along, 2 * a * b)

    @ts.custom_vjp
    def first(p):
        return p["a"] * p["b"]

    first.defvjp(lambda p: (p["a"] * p["b"], p), lambda p, back: (make(b=back * p["a"], a=back * p["b"]),))
    found = ts.grad(lambda p: np.sum(first(p)))(given)
    assert np.allclose(found["a"], b)
    assert np.allclose(found["b"], a)


def test_none_and_options_have_no_gradients():
    x = RNG.standard_normal(4)
    p = {"w": x, "bias": None, "kind": "square", "layers": 2, "rate": 0.5}
    slope = ts.grad(lambda p: np.sum(sum(p["w"] ** 2 for _ in range(p["layers"]))) * p["rate"])(p)
    assert np.allclose(slope["w"], 2 * x)
    assert abs(slope["rate"] - 2 * np.sum(x * x)) < 1e-12
    assert [slope[name] for name in ("bias", "kind", "layers")] == [None] * 3
    result, pull = ts.vjp(lambda x, times, kind: (x * times, None), x, 3, "any")
    assert result[1] is None
    assert np.allclose(pull((x, None))[0], 3 * x)
    assert pull((x, None))[1:] == (None, None)


def changes_dictionary(p, x):
    p["w"] = p["w"] * x
    return p["w"]


def changes_list(p, x):
    p["list"].append(x)
    return x


def changes_object(p, x):
    p["object"].w = x
    return x


CHANGES = [changes_dictionary, changes_list, changes_object]


@pytest.mark.parametrize("function", CHANGES)
def test_changes_that_would_be_lost_are_refused(function):
    p = {"w": np.ones(3), "list": [], "object": Open(np.ones(3), None)}
    with pytest.raises(ts.LanguageError) as caught:
        ts.jit(function)(p, np.ones(3))
    assert caught.value.code == "not-traceable"
    assert "test_trees.py" in str(caught.value)


def test_elements_of_dictionaries_are_changed_in_place():
    def step(p, x):
        p["w"] += x
        return p["w"] * 2

    p, x = {"w": np.ones(3)}, np.arange(3.0)
    assert np.allclose(ts.jit(step)(p, x), 2 + 2 * x)
    assert np.allclose(p["w"], 1 + x)


FLOATS = [float, np.float64, np.float32, np.float16, ml_dtypes.bfloat16]


@pytest.mark.parametrize("kind", FLOATS)
def test_floats_differ_from_call_to_call(kind):
    traces = []
    f = ts.jit(lambda x, rate: (traces.append(1), x * rate * 2 + rate**2)[1])
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
        x = RNG.standard_normal(5).astype(dtype)
        traces.clear()
        for rate in (kind(0.5), kind(1.5), kind(2.25)):
            found = f(x, rate)
            wanted = x * rate * 2 + rate**2
            # Python's floats, of which np.float64 is one, take the arrays' dtype; beside bf16 NumPy's give f32.
            assert found.dtype == (dtype if isinstance(rate, float) else wanted.dtype)
            near = 16 * float(ml_dtypes.finfo(dtype).eps)  # sums of numbers up to 16 may be small
            assert np.allclose(found.astype(float), wanted.astype(float), rtol=2e-2, atol=near)
        assert len(traces) == 1
    assert all(
        ts.jit(lambda x, rate: x if rate > 1 else -x)(np.ones(3), kind(value))[0] == value - 1 for value in (0, 2)
    )


@pytest.mark.parametrize("kind", FLOATS[1:])
def test_scalars_have_the_methods_of_arrays(kind):
    found = ts.jit(lambda x, rate: (rate.reshape(1, 1) * x, rate.astype(np.int32), rate.ndim))(np.ones(3), kind(2.5))
    assert np.array_equal(found[0], [[2.5] * 3])
    assert found[1] == 2
    assert found[2] == 0


@pytest.mark.parametrize("kind", [float, np.float64, np.float32])
def test_derivatives_of_functions_of_numbers(kind):
    def f(x):
        return np.sin(x) * x**2

    x = kind(0.75)
    slope = 2 * 0.75 * np.sin(0.75) + 0.75**2 * np.cos(0.75)
    tolerance = 1e-12 if isinstance(x, float) else 1e-6
    found = ts.grad(f)(x)
    assert found.dtype == (np.float64 if isinstance(x, float) else np.float32)
    assert abs(found - slope) < tolerance
    assert abs(ts.jit(ts.grad(f))(x) - slope) < tolerance
    assert abs(ts.vjp(f, x)[1](1.0)[0] - slope) < tolerance
    assert abs(ts.jvp(f, (x,), (kind(1),))[1] - slope) < tolerance
    assert abs(ts.linearize(f, x)[1](kind(1)) - slope) < tolerance
    assert abs(ts.grad(ts.grad(lambda x: x**3))(x) - 6 * 0.75) < tolerance * 10
    assert abs(ts.jit(f)(x) - f(0.75)) < tolerance


ENCLOSED = {
    "jit": lambda x, one: ts.jit(lambda y: y * x)(one),
    "grad": lambda x, one: ts.grad(lambda y: np.sum(x * y * y))(one) / 2,
    "vjp": lambda x, one: ts.vjp(lambda y: y * x, one)[0],
    "pull": lambda x, one: ts.vjp(lambda y: y * x, one)[1](one)[0],
    "jvp": lambda x, one: ts.jvp(lambda y: y * x, (one,), (one,))[1],
    "linearize": lambda x, one: ts.linearize(lambda y: y * x, one)[1](one),
    "checkpoint": lambda x, one: ts.checkpoint(lambda y: y * x)(one),
    "two deep": lambda x, one: ts.jit(lambda y: ts.jit(lambda z: z * x)(one) * y)(one),
    "both around": lambda x, one: ts.jit(lambda y: ts.jit(lambda z: z * x * y)(one))(one),
}


@pytest.mark.parametrize("name", ENCLOSED)
def test_functions_of_known_arrays_read_traced_ones_around_them(name):
    x, one = RNG.standard_normal(4), np.ones(4)
    assert np.allclose(ts.jit(lambda x: ENCLOSED[name](x, one))(x), x)
    assert np.allclose(ts.grad(lambda x: np.sum(ENCLOSED[name](x, one) * x))(x), 2 * x)


def test_known_arrays_are_not_changed_by_what_is_traced():
    known = np.ones(3)

    def outer(x):
        def inner(y):
            y += x
            return y * 2

        return ts.jit(inner)(known)

    with pytest.raises(ts.CallError) as caught:
        ts.jit(outer)(np.ones(3))
    assert caught.value.code == "written-argument"
    assert np.array_equal(known, np.ones(3))


def test_arrays_that_outlive_their_function_are_refused():
    kept = []
    ts.jit(lambda x: (kept.append(x * 2), x + 1)[1])(np.ones(3))
    uses = {
        "operator": lambda: kept[0] + 1,
        "function": lambda: np.sin(kept[0]),
        "other function": lambda: ts.jit(lambda x: x * kept[0])(np.ones(3)),
        "result": lambda: ts.jit(lambda x: kept[0])(np.ones(3)),
        "gradient": lambda: ts.grad(lambda x: np.sum(x * kept[0]))(np.ones(3)),
        "argument": lambda: ts.jit(lambda x: x * 2)(kept[0]),
    }
    for use in uses.values():
        with pytest.raises(ts.LanguageError) as caught:
            use()
        assert caught.value.code == "leaked-array"
        assert "test_trees.py" in str(caught.value)
    gc.collect()


MISTAKES = {
    "integers": (lambda: ts.grad(lambda x: np.sum(x * 1.0))(np.arange(3)), "not-a-number"),
    "truth values": (lambda: ts.grad(lambda x: np.sum(x * 1.0))(np.ones(3) > 0), "not-a-number"),
    "integers in a tree": (
        lambda: ts.grad(lambda p: np.sum(p["w"]))({"w": np.ones(3), "n": np.arange(3)}),
        "not-a-number",
    ),
    "no array": (lambda: ts.grad(lambda p, x: np.sum(x))({"kind": "a"}, np.ones(3)), "not-a-number"),
    "no pair": (lambda: ts.grad(np.sum, has_aux=True)(np.ones(3)), "bad-argument"),
    "other keys": (lambda: ts.jvp(lambda p: p["a"], ({"a": np.ones(3)},), ({"b": np.ones(3)},)), "wrong-tree"),
    "other results": (lambda: ts.vjp(lambda x: (x, x), np.ones(3))[1]([np.ones(3)]), "wrong-tree"),
    "a view": (lambda: ts.jit(lambda x: x.view(np.int64))(np.ones(3)), "not-traceable"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_name_their_line(name):
    call, code = MISTAKES[name]
    with pytest.raises(ts.TesseraError) as caught:
        call()
    assert caught.value.code == code
    assert "test_trees.py" in str(caught.value)
