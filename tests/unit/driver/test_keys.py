"""The disk cache as a program sees it: what a kernel finds there was compiled from what it reads now."""

from __future__ import annotations

import enum
import itertools
import linecache
import math
import sys
import threading
from collections import defaultdict
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import pytest

import tessera as ts
from tessera.driver import cache
from tessera.driver.variants import Variants, destination_of, without_sizes
from tessera.frontend.specialize import ArgFacts, Specialization
from tessera.numerics import dtypes
from tessera.runtime.device import CPU


class Config:
    scale = 2.0


SCALE = 2.0
TABLE = {"a": [1.0, 2.0]}


@ts.function
def scaled(x: Any, config: Any) -> Any:
    return x * config.scale


@ts.kernel
def by_global(x: ts.Tensor["n", ts.f32]):
    x[0:4] = SCALE


@ts.kernel
def by_helper(x: ts.Tensor["n", ts.f32]):
    x[0:4] = scaled(x[0:4], Config)


@ts.kernel
def by_constant(x: ts.Tensor["n", ts.f32], config: ts.constexpr):
    x[0:4] = x[0:4] * config.scale


@ts.kernel
def computed(x: ts.Tensor["n", ts.f32], config: ts.constexpr):
    x[0:4] = x[0:4] * (config * 2)


class Doubled:
    def __init__(self, value):
        self.value = value

    def __mul__(self, other):
        return self.value * other


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TESSERA_CACHE_DIR", str(tmp_path / "kernels"))
    monkeypatch.setattr(cache, "_opened", {})


def fresh(kernel):
    """Return the kernel as a new process would have it."""
    return ts.kernel(kernel.__wrapped__)


def ran(kernel, *args, shift=False):
    """Return what a call stores, and where its code came from."""
    x = np.ones(5, np.float32)[1:] if shift else np.ones(4, np.float32)
    kernel(x, *args)
    return float(x[0]), kernel.explain().origin


def test_a_global_that_changes_between_two_kinds_of_calls_poisons_nothing(monkeypatch):
    kernel = fresh(by_global)
    assert ran(kernel) == (2.0, "compiled")
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    assert ran(kernel) == (2.0, "compiled"), "code that there is stays as it was compiled"
    with pytest.raises(ts.LanguageError, match=r"SCALE was 2\.0 when .* and is 5\.0 now") as caught:
        ran(kernel, shift=True)  # other code of the same kernel with another value in it
    assert caught.value.code == "changed-constant"
    assert ran(kernel) == (2.0, "compiled")
    assert ran(fresh(by_global), shift=True) == (5.0, "disk cache"), "a kernel that is made now sees the new value"
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    for number in range(2):
        again = fresh(by_global)
        assert ran(again) == (2.0, "disk cache")
        assert ran(again, shift=True) == (2.0, "disk cache" if number else "compiled")
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    assert ran(fresh(by_global), shift=True) == (5.0, "disk cache")
    for value in (5, True, -0.0, 0.0, math.inf):
        monkeypatch.setitem(globals(), "SCALE", value)
        stored, origin = ran(fresh(by_global))
        assert (stored, math.copysign(1, stored), origin) == (value, math.copysign(1, value), "compiled")


def test_a_class_given_to_a_helper_is_looked_at_again(monkeypatch):
    assert ran(fresh(by_helper)) == (2.0, "compiled")
    assert ran(fresh(by_helper)) == (2.0, "disk cache")
    monkeypatch.setattr(Config, "scale", 3.0)
    assert ran(fresh(by_helper)) == (3.0, "compiled")
    assert ran(fresh(by_helper)) == (3.0, "disk cache")


def test_an_object_given_as_a_constant_is_known_by_what_is_read_of_it():
    def config(scale):
        made = Config()
        made.scale = scale
        return made

    assert ran(fresh(by_constant), config(2.0)) == (2.0, "compiled")
    assert ran(fresh(by_constant), config(2.0)) == (2.0, "disk cache")
    assert ran(fresh(by_constant), config(3.0)) == (3.0, "compiled")


def test_code_that_operators_of_the_program_decide_stays_in_the_process():
    assert ran(fresh(computed), Doubled(2.0)) == (4.0, "compiled")
    assert ran(fresh(computed), Doubled(3.0)) == (6.0, "compiled")
    assert ran(fresh(computed), 1.5) == (3.0, "compiled")
    assert ran(fresh(computed), 1.5) == (3.0, "disk cache")


class Sizes(NamedTuple):
    m: int
    n: int


class Shape(Sizes):
    __slots__ = ()


class Mode(enum.Enum):
    LOW = 1
    HIGH = 2


SHAPE = Shape(4, 8)
MODE = Mode.LOW


@ts.kernel
def by_shape(x: ts.Tensor["n", ts.f32]):
    x[0:4] = ts.tile.sum(ts.tile.full(SHAPE, 1.0))


@ts.kernel
def by_mode(x: ts.Tensor["n", ts.f32]):
    x[0:4] = 2.0 if MODE == Mode.LOW else 3.0


def test_sizes_of_a_class_of_the_program_are_looked_at_again(monkeypatch):
    assert ran(fresh(by_shape)) == (32.0, "compiled")
    assert ran(fresh(by_shape)) == (32.0, "disk cache")
    monkeypatch.setitem(globals(), "SHAPE", Shape(16, 8))
    assert ran(fresh(by_shape)) == (128.0, "compiled")


def test_members_that_are_compared_are_looked_at_again(monkeypatch):
    assert ran(fresh(by_mode)) == (2.0, "compiled")
    assert ran(fresh(by_mode)) == (2.0, "disk cache")
    monkeypatch.setitem(globals(), "MODE", Mode.HIGH)
    assert ran(fresh(by_mode)) == (3.0, "compiled")


def test_an_entry_of_another_kernel_is_not_run(monkeypatch):
    """Even when its key and checksum say that it fits."""
    kernel = fresh(by_global)
    assert ran(kernel) == (2.0, "compiled")
    find = cache.DiskCache.find
    ran(fresh(by_helper))
    other = ts.compile(by_helper)
    monkeypatch.setattr(cache.DiskCache, "find", lambda *_: ({}, other))
    assert ran(fresh(by_global)) == (2.0, "compiled")
    monkeypatch.setattr(cache.DiskCache, "find", find)
    assert ran(fresh(by_global)) == (2.0, "disk cache")


def test_code_that_this_process_may_not_run_is_compiled_again(monkeypatch):
    """Another process on this machine may have had the system's leave to use more of the CPU."""
    assert ran(fresh(by_global)) == (2.0, "compiled")
    store = cache.DiskCache.find

    def of_more(self, key, sizes):
        found = store(self, key, sizes)
        return found and (found[0], replace(found[1], requires=(*found[1].requires, "amx-of-the-future")))

    monkeypatch.setattr(cache.DiskCache, "find", of_more)
    assert ran(fresh(by_global)) == (2.0, "compiled")


FACT = ArgFacts("tensor", dtypes.f32, (4,), (1,), 16, (1,), (4,))
SPEC = Specialization((FACT,), (("c", 1),), (("BM", 1),))
OTHERS = {str: "strict", int: 7, bool: True, tuple: (("c", True),), dtypes.DType: dtypes.f16}


@pytest.mark.parametrize("field", [one.name for kind in (Specialization, ArgFacts) for one in fields(kind)])
def test_every_fact_of_a_call_but_its_sizes_decides_the_key(field):
    """Whatever facts are added later."""
    if field == "args":
        changed = replace(SPEC, args=(FACT, FACT))
    elif hasattr(SPEC, field):
        changed = replace(SPEC, **{field: OTHERS[type(getattr(SPEC, field))]})
    else:
        changed = replace(SPEC, args=(replace(FACT, **{field: OTHERS[type(getattr(FACT, field))]}),))
    variants = Variants(by_global.signature, ())

    def key(spec):
        return variants._key(spec, destination_of(CPU), "", variants._reads(spec).roots)

    assert (key(changed) == key(SPEC)) == (field == "sizes")
    assert (without_sizes(changed) == without_sizes(SPEC)) == (field == "sizes")


class Held(NamedTuple):
    a: Any


class Owner:
    def __init__(self, a):
        self.a = a


class Scale(enum.Enum):
    LOW = 2.0
    HIGH = 3.0


def helper_of(factor):
    @ts.function
    def helper():
        return factor

    return helper


@ts.function
def two():
    return 2.0


@ts.function
def three():
    return 3.0


# The value that a kernel finds in G, another one, and how it is read.
HELD = {
    "number": (2.0, 3.0, "G"),
    "text": ("a", "b", "2.0 if G == 'a' else 3.0"),
    "dtype": (ts.f32, ts.f16, "2.0 if G == ts.f32 else 3.0"),
    "tuple": ((2.0,), (3.0,), "G[0]"),
    "tuple in a tuple": (((2.0,),), ((3.0,),), "G[0][0]"),
    "list": ([2.0], [3.0], "G[0]"),
    "list, from its end": ([1.0, 2.0], [1.0, 3.0], "G[-1]"),
    "dictionary": ({"a": 2.0}, {"a": 3.0}, "G['a']"),
    "dictionary by a number": ({1: 2.0}, {1: 3.0}, "G[1]"),
    "dictionary by a tuple": ({(1, 2): 2.0}, {(1, 2): 3.0}, "G[1, 2]"),
    "default dictionary": (defaultdict(float, a=2.0), defaultdict(float, a=3.0), "G['a']"),
    "dictionary in a list": ([{"a": 2.0}], [{"a": 3.0}], "G[0]['a']"),
    "dictionary in a tuple": (({"a": 2.0},), ({"a": 3.0},), "G[0]['a']"),
    "list in a dictionary": ({"a": [2.0]}, {"a": [3.0]}, "G['a'][0]"),
    "list in an object": (Owner([2.0]), Owner([3.0]), "G.a[0]"),
    "named tuple": (Held(2.0), Held(3.0), "G[0]"),
    "field of a named tuple": (Held(2.0), Held(3.0), "G.a"),
    "largest": (Held(2.0), Held(3.0), "max(G)"),
    "length of a list": ([1, 1], [1, 1, 1], "1.0 * len(G)"),
    "length of a set": ({1, 2}, {1, 2, 3}, "1.0 * len(G)"),
    "key of a dictionary": ({"a": 1}, {"b": 1}, "2.0 if 'a' in G else 3.0"),
    "member of a set": ({2.0}, {3.0}, "2.0 if 2.0 in G else 3.0"),
    "set in a tuple": (({2.0},), ({3.0},), "2.0 if 2.0 in G[0] else 3.0"),
    "enumeration": (Scale.LOW, Scale.HIGH, "2.0 if G is Scale.LOW else 3.0"),
    "value of a member": (Scale.LOW, Scale.HIGH, "G.value"),
    "attribute": (Owner(2.0), Owner(3.0), "G.a"),
    "numpy number": (np.float32(2.0), np.float32(3.0), "G"),
    "helper": (two, three, "G()"),
    "closure of a helper": (helper_of(2.0), helper_of(3.0), "G()"),
    "helper in a list": ([two], [three], "G[0]()"),
    "helper in a dictionary": ({"a": two}, {"a": three}, "G['a']()"),
    "function of math": (math.floor, math.ceil, "1.0 * G(2.5)"),
}


def kernel_that_reads(held, expression, dtype="ts.f32", optional=""):
    """Return a kernel that stores an expression over a global G, and its globals."""
    scope = {**globals(), "G": held, "T": ts.dtype_var("T")}
    body = f"x[0:4] = ts.tile.full((4,), {expression}, ts.f32).astype(x.dtype)"
    text = f"def kernel(x: ts.Tensor['n', {dtype}]{optional}):\n    {body}\n"
    file = f"<kernel {next(_numbers)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    exec(compile(text, file, "exec"), scope)
    return ts.kernel(scope["kernel"]), scope


_numbers = itertools.count()


def stored(kernel, *args, dtype=np.float32, shift=False):
    x = np.ones(5, dtype)[1:] if shift else np.ones(4, dtype)
    kernel(x, *args)
    return float(x[0])


@pytest.mark.parametrize("name", HELD)
@pytest.mark.parametrize("cached", [False, True])
def test_whatever_changes_between_two_kinds_of_calls_is_refused(name, cached):
    """Also where the code of either comes from the disk cache."""
    first, second, expression = HELD[name]
    if cached:
        for value in (first, second):
            for shift in (False, True):
                assert stored(kernel_that_reads(value, expression)[0], shift=shift) == (2.0 if value is first else 3.0)
    kernel, scope = kernel_that_reads(first, expression)
    assert stored(kernel) == 2.0
    scope["G"] = second
    with pytest.raises(ts.LanguageError, match="G") as caught:
        stored(kernel, shift=True)
    assert caught.value.code == "changed-constant"
    assert stored(kernel) == 2.0
    scope["G"] = first
    assert stored(kernel, shift=True) == 2.0


def test_a_container_that_is_changed_itself_is_refused():
    for held, change in (({"a": 2.0}, ("a", 3.0)), ([2.0], (0, 3.0)), (([2.0],), None)):
        expression = {dict: "G['a']", list: "G[0]", tuple: "G[0][0]"}[type(held)]
        kernel, _ = kernel_that_reads(held, expression)
        assert stored(kernel) == 2.0
        owner, (key, value) = (held[0], (0, 3.0)) if change is None else (held, change)
        owner[key] = value
        with pytest.raises(ts.LanguageError, match=r"has|was 2\.0 when .* and is 3\.0 now"):
            stored(kernel, shift=True)


def test_a_container_inside_another_is_known_by_its_key():
    held = {"y": {"b": 2.0}}
    kernel, _ = kernel_that_reads(held, "G['y']['b']")
    assert stored(kernel) == 2.0
    held.clear()
    held.update(w={"b": 7.0}, y={"b": 2.0})
    assert stored(kernel, shift=True) == 2.0
    kernel, _ = kernel_that_reads(held, "G['y']['b']")
    assert stored(kernel) == 2.0
    held.clear()
    held.update(w={}, y={"b": 3.0})
    with pytest.raises(ts.LanguageError, match=r"G\['y'\]\['b'\] was 2\.0 when .* and is 3\.0 now"):
        stored(kernel, shift=True)


def test_a_container_that_the_kernel_puts_into_another_is_refused():
    held = [1.0]
    kernel, _ = kernel_that_reads(held, "2.0 if (G, 1) == ([1.0], 1) else 3.0")
    assert stored(kernel) == 2.0
    held.append(9.0)
    with pytest.raises(ts.LanguageError, match="G has changed"):
        stored(kernel, shift=True)


@pytest.mark.parametrize("base", [dict, list])
def test_items_of_classes_made_from_containers_are_found_in_the_cache(base):
    made = type("Made", (base,), {})
    held = made({"a": 2.0}) if base is dict else made([2.0])
    kernel, _ = kernel_that_reads(held, "G['a']" if base is dict else "G[0]")
    for origin in ("compiled", "disk cache"):
        assert stored(kernel) == 2.0
        assert kernel.explain().origin == origin
        kernel = fresh(kernel)


def test_what_a_kernel_does_not_read_may_change():
    for held, expression, change in (
        ({"a": 2.0}, "G['a']", lambda held: held.update(b=3.0)),
        ([2.0], "G[0]", lambda held: held.append(3.0)),
        ([{"a": 2.0}], "G[0]['a']", lambda held: held[0].update(b=3.0)),
        (Owner(2.0), "G.a", lambda held: setattr(held, "b", 3.0)),
        (defaultdict(float, a=2.0), "G['a']", lambda held: held["b"]),
    ):
        kernel, _ = kernel_that_reads(held, expression)
        assert stored(kernel) == 2.0
        change(held)
        assert stored(kernel, shift=True) == 2.0


def test_a_helper_that_is_made_again_from_the_same_text_is_the_same():
    kernel, scope = kernel_that_reads(helper_of(2.0), "G()")
    assert stored(kernel) == 2.0
    scope["G"] = helper_of(2.0)
    assert stored(kernel, shift=True) == 2.0


def test_kernels_of_other_dtypes_and_tensors_have_the_same_values():
    optional = ", y: ts.Tensor['n', ts.f32] | None = None"
    for change in ({"dtype": np.float16}, {"shift": True}, {"args": (np.ones(4, np.float32),)}):
        kernel, scope = kernel_that_reads(2.0, "G", "T", optional)
        assert stored(kernel) == 2.0
        scope["G"] = 3.0
        with pytest.raises(ts.LanguageError, match=r"G was 2\.0") as caught:
            stored(kernel, *change.pop("args", ()), **change)
        assert caught.value.code == "changed-constant"


FACTOR = 2.0


@ts.function
def times(self: Any, x: Any, rows: Any, cols: Any, batch: Any) -> Any:
    return x * FACTOR


def test_what_a_step_of_an_epilogue_reads_is_the_same_in_all_kernels(monkeypatch):
    from tessera import op

    def product(rows):
        a = np.ones((rows, 16), np.float32)
        chain = op.epilogue.chain([op.epilogue.step(times)])
        return float(op.linalg.gemm(a, np.ones((16, 16), np.float32), epilogue=chain)[0, 0])

    assert product(16) == 32.0
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    for rows in (1, 300):
        with pytest.raises(ts.LanguageError, match="FACTOR") as caught:
            product(rows)
        assert caught.value.code == "changed-constant"


class OwnError(Exception):
    """What only the program knows."""


class Raising:
    """Raises by whatever way a kernel reads it, once `error` is set."""

    error: Any = None

    def _give(self, *_):
        if Raising.error is not None:
            raise Raising.error
        return 2.0

    scale = property(_give)
    __neg__ = __mul__ = __float__ = __eq__ = _give
    __hash__ = None


class RaisingAttributes:
    __getattr__ = Raising._give


class RaisingItems(dict):
    __missing__ = Raising._give


class RaisingModule:
    """Stands for a module in what may be the call of `ts.tile.grid`."""

    error = None

    def __getattr__(self, name):
        if name == "tile" and Raising.error is not None:
            raise Raising.error
        return getattr(ts, name)


ERRORS = [
    ValueError("a\nb"),
    KeyError("k"),
    AssertionError("x"),
    StopIteration(),
    OwnError(),
    ImportError(),
    EOFError(),
]
RAISING = {
    "property": (Raising(), "G.scale"),
    "missing attribute": (RaisingAttributes(), "G.other"),
    "operator": (Raising(), "-G"),
    "comparison": (Raising(), "2.0 if G == 1 else 3.0"),
    "conversion": (Raising(), "float(G)"),
    "missing item": (RaisingItems(), "G['a']"),
    "module": (RaisingModule(), "2.0 if G.tile.max is not None else 3.0"),
}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("name", RAISING)
def test_what_the_program_raises_is_a_typed_error(name, error, monkeypatch):
    """Compiled at once, and where a cache has what the program gave before."""
    held, expression = RAISING[name]
    held = type(held)()
    kernel, scope = kernel_that_reads(held, expression)
    assert stored(kernel) == 2.0
    monkeypatch.setattr(Raising, "error", error)
    for made in (ts.kernel(kernel.__wrapped__), kernel_that_reads(held, expression)[0]):
        with pytest.raises(ts.LanguageError):
            stored(made)
    scope["G"] = type(held)()
    with pytest.raises(ts.LanguageError):
        stored(ts.kernel(kernel.__wrapped__))


class RaisingShown:
    def __str__(self):
        raise OwnError

    __bool__ = __str__


@pytest.mark.parametrize("expression", ["str(G)", "f'{G}'", "2.0 if G else 3.0", "not G", "G and 2.0", "print(G)"])
def test_what_is_raised_by_what_stands_alone_is_a_typed_error(expression):
    with pytest.raises(ts.LanguageError, match="OwnError"):
        stored(kernel_that_reads(RaisingShown(), expression)[0])


@ts.kernel
def asserting(x: ts.Tensor["n", ts.f32], config: ts.constexpr):
    assert config
    x[0:4] = 2.0


def test_what_an_assertion_raises_is_a_typed_error():
    with pytest.raises(ts.LanguageError, match="OwnError"):
        stored(asserting, RaisingShown())


def test_a_call_that_raises_while_the_grid_is_looked_for_is_a_typed_error(monkeypatch):
    monkeypatch.setattr(Raising, "error", KeyError("tile"))
    kernel, _ = kernel_that_reads(RaisingModule(), "G.tile.max(x)")
    with pytest.raises(ts.LanguageError):
        stored(kernel)


def nested(kind, levels):
    made = 2.0
    for _ in range(levels):
        made = kind(made)
    return made


def holding_itself(kind):
    made = kind()
    if kind is list:
        made += [2.0, made]
    else:
        made.update(a=2.0, b=made)
    return made


class Hostile:
    def __getattribute__(self, name):
        raise OwnError


NESTED = {
    "tuple": ((nested(lambda part: (part,), 5000), 2.0), "G[1]"),
    "list": ([nested(lambda part: [part], 5000), 2.0], "G[1]"),
    "dictionary": ({"b": nested(lambda part: {"a": part}, 5000), "a": 2.0}, "G['a']"),
    "list that holds itself": (holding_itself(list), "G[0]"),
    "dictionary that holds itself": (holding_itself(dict), "G['a']"),
    "its length": (holding_itself(list), "1.0 * len(G)"),
    "its items": (holding_itself(list), "2.0 if 2.0 in G else 3.0"),
    "in a tuple": ((2.0, holding_itself(list)), "G[0]"),
    "beside what raises": ([2.0, Hostile()], "G[0]"),
}


@pytest.mark.parametrize("name", NESTED)
def test_values_of_any_depth_can_be_read(name):
    held, expression = NESTED[name]
    kernel, _ = kernel_that_reads(held, expression)
    assert stored(kernel) == 2.0
    assert stored(kernel, shift=True) == 2.0


@dataclass(frozen=True, eq=False)
class Circle:
    scale: float = 2.0
    other: Any = None


def test_constants_that_hold_themselves_are_refused():
    circle = Circle()
    object.__setattr__(circle, "other", circle)
    for value in (circle, (circle,), nested(lambda part: (part,), 5000)):
        with pytest.raises(ts.LanguageError) as caught:
            ran(fresh(by_constant), value)
        assert caught.value.code == "nesting-depth"


def test_a_dictionary_that_another_thread_changes_can_be_read():
    held, stop = {"a": 2.0}, threading.Event()

    def change():
        number = 0
        while not stop.is_set():
            number += 1
            held[number % 5000] = number
            held.pop(number * 7 % 5000, None)

    thread, interval = threading.Thread(target=change), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        for _ in range(5):
            assert stored(kernel_that_reads(held, "G['a']")[0]) == 2.0
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)
