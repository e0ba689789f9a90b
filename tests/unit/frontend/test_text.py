"""A kernel's text is that of its import, whatever happens to the file afterwards; if it was lost, that is an error."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import itertools
import linecache
import os
import runpy
import subprocess
import sys
import textwrap
from importlib.machinery import SourceFileLoader

import numpy as np
import pytest

import tessera as ts
from tessera.errors import LanguageError
from tessera.frontend.text import keep_text, text_of

FORMS = {
    "module": """
        @ts.kernel
        def value(x: ts.Tensor["n", ts.f32]):
            x[0:4] = x[0:4] * 2.0 - 1.0
    """,
    "helper": """
        @ts.function
        def helper(v):
            return v * 2.0 - 1.0

        @ts.kernel
        def value(x: ts.Tensor["n", ts.f32]):
            x[0:4] = helper(x[0:4])
    """,
    "closure": """
        def make(two, dtype):
            one = 1.0

            @ts.kernel
            def value(x: ts.Tensor["n", dtype]):
                x[0:4] = x[0:4] * two - one + 0.0
            return value

        value = make(2.0, ts.f32)
    """,
    "class": """
        class Kernels:
            __one = 1.0

            @ts.kernel
            def value(x: ts.Tensor["n", ts.f32]):
                '''A docstring
            at the margin.'''
                x[0:4] = x[0:4] * 2.0 - 1.0

        value = Kernels.value
    """,
    "class in a function": """
        def make(two):
            class Kernels:
                @ts.kernel
                def value(x: ts.Tensor["n", ts.f32]):
                    x[0:4] = x[0:4] * two - 1.0
            return Kernels

        value = make(2.0).value
    """,
    "late": """
        def plain(x: ts.Tensor["n", ts.f32]):
            x[0:4] = x[0:4] * 2.0 - 1.0

        value = None
    """,
}
EDITS = {
    "constant": lambda text: text.replace("1.0", "3.0"),
    "operator": lambda text: text.replace(" - ", " + "),
    "sign of zero": lambda text: text.replace("+ 0.0", "+ -0.0"),
    "type of a constant": lambda text: text.replace("2.0", "2").replace("1.0", "1"),
    "lines above": lambda text: "# one more\n" * 3 + text,
    "a line removed above": lambda text: text.replace("import tessera as ts\n", "", 1),
    "another statement": lambda text: text.replace("- 1.0", "- 1.0\n" + " " * 8 + "x[0:2] = x[0:2]", 1),
    "all removed": lambda text: "",
    "half removed": lambda text: text[: len(text) // 2],
    "a syntax error": lambda text: text.replace("x[0:4] =", "x[0:4] =="),
}
_numbers = itertools.count()


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """Return a function that imports a text, and gives the module and its file."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(text):
        name = f"text_sample_{next(_numbers)}"
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        importlib.invalidate_caches()
        return importlib.import_module(name), path

    return load


def text_in(form):
    return "import tessera as ts\n\n" + textwrap.dedent(FORMS[form]).strip() + "\n"


def outcome(kernel):
    x = np.array([1, 2, 3, 4], np.float32)
    kernel(x)
    return x.tolist()


@pytest.mark.parametrize("form", FORMS)
def test_an_edit_between_import_and_call_changes_nothing(imported, form):
    for edit in EDITS.values():
        module, path = imported(text_in(form))
        kept = module.value.__wrapped__ if module.value else module.plain
        helpers = [module.helper.function] if form == "helper" else []
        if form == "late":
            keep_text(kept)
        path.write_text(edit(text_in(form)))
        for function in (kept, *helpers):
            assert "x[0:4]" in text_of(function).text or "return v" in text_of(function).text
            assert "3.0" not in text_of(function).text
    assert outcome(module.value or ts.kernel(module.plain)) == [1, 3, 5, 7]


@pytest.mark.parametrize("edit", EDITS)
def test_a_kernel_decorated_after_an_edit_is_right_or_refused(imported, edit):
    before = text_in("late")
    module, path = imported(before)
    after = EDITS[edit](before)
    path.write_text(after)
    if after == before:
        assert outcome(ts.kernel(module.plain)) == [1, 3, 5, 7]
        return
    with pytest.raises(LanguageError) as caught:
        outcome(ts.kernel(module.plain))
    assert caught.value.code in ("source-changed", "no-source")


class Adding(SourceFileLoader):
    """Compiles as tools do that rewrite assertions and check what is assigned."""

    def source_to_code(self, data, path, **_):
        tree = ast.parse(data)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                node.body = [new for old in node.body for new in self._added(old)]
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)

    @staticmethod
    def _added(node):
        if isinstance(node, ast.Assert):
            yield from ast.parse("held = 1 + len('ab') - 1\nif not held: raise AssertionError").body
        else:
            yield from (*ast.parse("seen = len(str(5.0 + 7.0))").body, node)


def by_import(path):
    return vars(importlib.import_module(path.stem))


def by_hand(path):
    scope = {"__name__": path.stem}
    exec(compile(path.read_text(), str(path), "exec", dont_inherit=True), scope)
    return scope


def by_tool(path):
    spec = importlib.util.spec_from_file_location(path.stem, path, loader=Adding(path.stem, str(path)))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return vars(module)


WAYS = [by_import, by_hand, by_tool, lambda path: runpy.run_path(str(path))]
LATE = """
def plain(x: ts.Tensor["n", ts.f32]):
    assert x.shape[0] == 4, "four"
    x[0:4] = x[0:4] * 2.0 - 1.0
    y = ts.tile.exp(x[0:4])
    x[0:4] = ts.tile.log(y) + 3.0
"""
LATE_EDITS = {
    "operator": ("- 1.0", "+ 1.0"),
    "other operator": ("* 2.0", "** 2.0"),
    "number": ("- 1.0", "- 1.5"),
    "type of a number": ("- 1.0", "- 1"),
    "numbers change places": ("* 2.0 - 1.0", "* 1.0 - 2.0"),
    "operators change places": ("* 2.0 - 1.0", "- 2.0 + 1.0"),
    "function": ("tile.exp", "tile.abs"),
    "one more": ("+ 3.0", "+ 3.0 + 3.0"),
    "statement": ("    y = ", "    x[0:2] = x[2:4]\n    y = "),
    "sign": ("+ 3.0", "+ -3.0"),
}


@pytest.fixture
def late(tmp_path, monkeypatch):
    """Return a function that loads a text in some way, and then writes another one over it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(way, text, edited):
        path = tmp_path / f"late_sample_{next(_numbers)}.py"
        path.write_text(text)
        importlib.invalidate_caches()
        scope = way(path)
        path.write_text(edited)
        return scope["plain"]

    return load


@pytest.mark.parametrize("way", WAYS)
def test_an_edit_is_found_however_the_file_was_loaded(way, late):
    before = f"import tessera as ts\n{LATE}"
    assert text_of(late(way, before, before)).text.strip() == LATE.strip()
    for old, new in LATE_EDITS.values():
        with pytest.raises(LanguageError) as caught:
            text_of(late(way, before, before.replace(old, new)))
        assert caught.value.code == "source-changed", new


def test_a_tool_that_adds_to_code_is_no_edit():
    """Pytest rewrites this file's asserts."""

    @ts.kernel
    def checked(x: ts.Tensor["n", ts.f32]):
        for i in ts.tile.grid((n, 4)):
            assert x.shape[0] > 0, "there is something"
            x[i : i + 4] = x[i : i + 4] * 2.0 - 1.0

    assert outcome(checked) == [1, 3, 5, 7]


def test_to_decorate_kernels_reads_a_file_once(imported, monkeypatch):
    body = textwrap.dedent(FORMS["module"]).strip()
    read: list[str] = []
    update = linecache.updatecache
    monkeypatch.setattr(linecache, "updatecache", lambda name, *rest: read.append(name) or update(name, *rest))
    module, path = imported(
        "import tessera as ts\n" + "".join(body.replace("value", f"k{n}") + "\n\n" for n in range(20))
    )
    assert read.count(str(path)) == 1
    for number in range(20):
        assert f"def k{number}(" in text_of(getattr(module, f"k{number}").__wrapped__).text
    assert read.count(str(path)) == 1


PLACES = [b"plain", "é☃".encode(), b"\xff\xfe", "\U0001f600".encode(), b"two words"]
PROGRAM = """
import numpy as np
import tessera as ts

@ts.kernel
def checked(x: ts.Tensor["n", ts.f32]):
    for i in ts.tile.grid((n, 4)):
        assert ts.tile.sum(x[i : i + 4]) > 0.0
        x[i : i + 4] = x[i : i + 4] * 2.0

x = np.ones(4, np.float32)
checked(x)
print(x[0])
"""


@pytest.mark.parametrize("place", PLACES, ids=ascii)
@pytest.mark.parametrize("asserts", ["0", "1"])
def test_a_file_may_have_any_name(place, asserts, tmp_path):
    """Also one that the system's encoding does not have."""
    folder = os.path.join(os.fsencode(tmp_path), place)
    os.mkdir(folder)
    file = os.path.join(folder, place + b".py")
    with open(file, "w") as stream:
        stream.write(PROGRAM)
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    own = {"TESSERA_CACHE_DIR": str(tmp_path / "cache"), "TESSERA_DEBUG": asserts}
    done = subprocess.run([sys.executable, file], env={**os.environ, **plain, **own}, capture_output=True, check=False)
    assert done.stdout.split() == [b"2.0"], done.stderr
