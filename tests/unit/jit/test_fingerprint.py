"""Identity of a kernel's source: it changes with everything that the compiled code depends on."""

from __future__ import annotations

import importlib.util
import sys
import textwrap
from dataclasses import replace

import pytest

from tessera.jit import fingerprint
from tessera.jit.fingerprint import source_fingerprint, value_fingerprint
from tessera.numerics import dtypes

BASE = """
    import tessera as ts
    from types import SimpleNamespace

    SCALE = 2.0
    TABLE = {"a": [1, 2]}
    x = object()

    @ts.function
    def inner(v):
        return v + 1

    @ts.function
    def helper(v):
        return inner(v) * SCALE

    def kernel(x: ts.Tensor["n", ts.f32], k=3):
        i = ts.tile.linear_id()
        if i < n:
            x[i] = helper(x[i]) + TABLE["a"][0]
"""


@pytest.fixture
def function_of(tmp_path):
    """Return a function that gives the `kernel` of a module's text."""
    made = []

    def make(text):
        name = f"fingerprint_sample_{len(made)}"
        path = tmp_path / f"{name}.py"
        path.write_text(textwrap.dedent(text))
        spec = importlib.util.spec_from_file_location("sample", path)
        module = importlib.util.module_from_spec(spec)
        made.append(name)
        spec.loader.exec_module(module)
        return module.kernel

    yield make
    for name in made:
        sys.modules.pop(name, None)


@pytest.fixture(autouse=True)
def _one_file_name(monkeypatch):
    """Let all samples look as if they were one file that is edited."""
    read = fingerprint.source_of
    monkeypatch.setattr(fingerprint, "source_of", lambda function: replace(read(function), file="sample.py"))


def digest(function_of, text):
    return source_fingerprint(function_of(text), ("n",))


def test_the_same_text_has_the_same_identity(function_of):
    assert digest(function_of, BASE) == digest(function_of, BASE)
    assert digest(function_of, BASE) is not None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("i < n", "i <= n"),
        ("SCALE = 2.0", "SCALE = 3.0"),
        ('"a": [1, 2]', '"a": [2, 2]'),
        ("return v + 1", "return v + 2"),
        ("inner(v) * SCALE", "inner(v) / SCALE"),
        ("k=3", "k=4"),
        ("ts.f32", "ts.f16"),
        (
            "import tessera as ts",
            "import tessera as ts\n",
        ),  # moves lines: messages of device asserts carry them
    ],
)
def test_what_the_code_depends_on_changes_it(function_of, before, after):
    assert digest(function_of, BASE) != digest(function_of, BASE.replace(before, after))


def test_what_it_does_not_read_leaves_it(function_of):
    assert digest(function_of, BASE) == digest(
        function_of, BASE.replace("import SimpleNamespace", "import MethodType")
    )


def test_locals_and_dims_hide_globals(function_of):
    hidden = BASE.replace("x = object()", "x = n = i = object()")
    assert digest(function_of, hidden) == digest(function_of, BASE)


def test_a_value_of_unknown_effect_has_no_identity(function_of):
    unknown = BASE.replace("SCALE = 2.0", "SCALE = SimpleNamespace(a=1)")
    assert digest(function_of, unknown) is None


def test_attributes_of_objects_are_followed(function_of):
    def text(value):
        return BASE.replace("SCALE = 2.0", f"CFG = SimpleNamespace(a={value})").replace("* SCALE", "* CFG.a")

    assert digest(function_of, text(1)) != digest(function_of, text(2))
    assert digest(function_of, text(1)) is not None


def test_recursive_helpers_end(function_of):
    text = BASE.replace("return v + 1", "return helper(v) if False else v")
    assert digest(function_of, text) is not None


@pytest.mark.parametrize(
    ("a", "b"),
    [(1, 2), (1, True), (1, 1.0), ("1", 1), (dtypes.f32, dtypes.f16), ((1, 2), (2, 1)), (0.0, -0.0)],
)
def test_values_are_told_apart(a, b):
    assert value_fingerprint("v", a) != value_fingerprint("v", b)
    assert value_fingerprint("v", a) == value_fingerprint("v", a)


def test_an_object_has_no_fingerprint():
    assert value_fingerprint("v", object()) is None
    assert value_fingerprint("v", (1, object())) is None


FACTORY = """
    import tessera as ts

    def make(size, policy):
        def kernel(x: ts.Tensor[size, policy]):
            x[0:4] = x[0:4]

        return kernel

    kernel = make({arguments})
"""


def test_annotations_from_an_enclosing_function_are_told_apart(function_of):
    given = ("4, ts.f16", "8, ts.f16", "4, ts.f16 @ ts.accum(ts.f16)", "4, ts.f16")
    made = [source_fingerprint(function_of(FACTORY.format(arguments=text))) for text in given]
    assert len(set(made)) == 3
    assert made[0] == made[3]


AUTOTUNED = """
    import tessera as ts

    SPACE = dict(B=[16])

    @ts.kernel.autotune(space=SPACE, key=("n",))
    def tuned(x: ts.Tensor["n", ts.f32]):
        ctx = ts.tile.context()
        for i in ts.tile.grid((n, ctx.B)):
            x[i : i + ctx.B] = x[i : i + ctx.B]

    kernel = tuned.signature.function
"""


def test_a_kernel_with_a_tuning_space_has_a_fingerprint(function_of):
    made = [
        source_fingerprint(function_of(text))
        for text in (AUTOTUNED, AUTOTUNED, AUTOTUNED.replace("[16]", "[32]"))
    ]
    assert made[0] is not None
    assert made[0] == made[1] != made[2]
