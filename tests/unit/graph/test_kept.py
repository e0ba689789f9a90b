"""Plans that are kept between processes: found again, told apart, and not trusted where they are damaged."""

import json
import subprocess
import sys
import threading

import numpy as np
import pytest

import tessera as ts
from tessera import ops
from tessera.driver import cache, variants
from tessera.errors import DiagnosticWarning
from tessera.graph.kept import as_data, cut, graph_of, key_of, plan_from
from tessera.graph.plan import plan_of
from tessera.graph.trees import flatten
from tessera.ir.text import parse_module, text_of
from tessera.ops import arrays
from tessera.schedule.fuse.groups import GroupPass

RNG = np.random.default_rng(7)


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("TESSERA_CACHE_DIR", str(tmp_path / "kept"))
    monkeypatch.setattr(cache, "_opened", {})
    return tmp_path / "kept"


def moves(x, w):
    y = np.concatenate([x[:, 1:], x[:, :1] * 2.0], axis=1)
    return np.stack([y, y + w], axis=1).reshape(-1, x.shape[1]), x.T.reshape(-1)[::2], np.take(x, np.array([1, 0]), 0)


def sums(x, w):
    return np.exp(x).sum(axis=0), ops.softmax(x, scale=0.5), x.min()


def rows(x, w):
    apart = x - np.mean(x, axis=-1, keepdims=True)
    return apart / np.sqrt(np.mean(apart * apart, axis=-1, keepdims=True) + 1e-5) * w


@pytest.mark.parametrize("function", [moves, sums, rows])
def test_a_plan_that_was_kept_runs_as_the_graph_does(function, root, monkeypatch):
    x, w = RNG.standard_normal((6, 10)), RNG.standard_normal(10)
    first = ts.jit(function)
    wanted = first(x, w)
    assert first.explain().origin == "compiled"
    second = ts.jit(function)
    with monkeypatch.context() as patch:
        patch.setattr(GroupPass, "apply", lambda *_: pytest.fail("the graph is cut again"))
        for one, other in zip(second(x, w), wanted, strict=True):
            assert np.array_equal(one, other)
    assert second._last[0].program.origin == "disk cache"
    kernels = [kernel.explanation for kernel in second._last[0].program._launched.values()]
    assert all(one.origin == "disk cache" for one in kernels)
    for size in (3, 17):  # a plan serves all sizes
        x, w = RNG.standard_normal((size, size + 4)), RNG.standard_normal(size + 4)
        for one, other in zip(second(x, w), first(x, w), strict=True):
            assert np.array_equal(one, other)


def test_plans_are_the_same_after_they_were_written():
    for function in (moves, sums, rows):
        traced = ts.jit(function)
        traced(np.ones((6, 10)), np.ones(10))
        module = traced._last[0].program.module
        plan = plan_of(graph_of(cut(module)), [True] * len(graph_of(module).body.block.args), {}, {}, {})
        assert plan_from(json.loads(json.dumps(as_data(plan)))) == plan


def keys_of(*functions):
    found = []
    for function, args in functions:
        traced = ts.jit(function)
        entry = traced._trace(*traced_arguments(traced, args))
        found.append(key_of("compiler", entry.program.module, [True] * 9, {}, {}, {}))
    return found


def traced_arguments(traced, args):
    leaves, outline = flatten((args, {}))
    places, whole, _ = traced._arrays(leaves)
    return leaves, outline, places, [arrays.view(whole[at], "an array") for at in places], whole[places[0]]


def test_graphs_that_differ_have_keys_that_differ():
    def made(body):
        exec(f"def f(x, y): return {body}", {"np": np}, space := {})
        return space["f"]

    x, y = np.ones((4, 8)), np.ones((4, 8))
    bodies = ["x - y", "y - x", "x + y", "x - y + 0.0", "x - y + -0.0", "x - y + 1.0", "x.sum(0)", "x.sum(1)"]
    bodies += ["x.max(1)", "x.T", "x[1:]", "x[:, 1:]", "x[::2]", "(x - y, x)", "(x, x - y)", "x * (2.0 + 2**-50)"]
    cases = [(made(body), (x, y)) for body in [*bodies, "x * 2.0"]]
    cases += [(made("x - y"), (x.astype(kind), y.astype(kind))) for kind in (np.float32, np.int32)]
    single = x.astype(np.float32)
    numbers = ["0.1", "0.10000000894069672", "1e-40", "2e-40", "np.inf", "-np.inf", "np.nan"]
    cases += [(made(f"x * {number}"), (single, single)) for number in numbers]
    cases += [(made("x - y"), (x[:1], y[:1])), (made("x - y"), (x, y[:, :1]))]
    found = keys_of(*cases)
    assert len({*found}) == len(found)
    assert keys_of(*cases) == found


def test_what_beside_the_graph_decides_is_in_the_key():
    traced = ts.jit(rows)
    traced(np.ones((4, 8)), np.ones(8))
    module = traced._last[0].program.module
    given = ["a", module, (True, True), {"s0": 4}, {}, {}]
    others = ["b", module, (True, False), {"s0": 5}, {"f": [True]}, {"g": 1}]
    keys = [key_of(*given)]
    for at, other in enumerate(others):
        keys.append(key_of(*given[:at], other, *given[at + 1 :]))
    assert len({*keys}) == len(keys) - 1  # the module is the same
    assert key_of(*given) == key_of("a", parse_module(text_of(module)), *given[2:])


def planned_once():
    traced = ts.jit(rows)
    traced(np.ones((4, 8)), np.ones(8))
    return traced._last[0].program.origin


def test_files_that_are_damaged_or_in_the_wrong_place_are_not_used(root):
    assert planned_once() == "compiled"
    assert planned_once() == "disk cache"
    (file,) = root.glob("graphs/*/*.plan")
    whole = file.read_bytes()
    for damaged in (whole[:-1], whole.replace(b"group", b"gruop"), b""):
        file.write_bytes(damaged)
        cache._opened.clear()
        with pytest.warns(DiagnosticWarning, match="checksum"):
            assert planned_once() == "compiled"
    ts.jit(lambda x: x + 1.0)(np.ones(3))
    (other,) = [path for path in root.glob("graphs/*/*.plan") if path != file]
    file.write_bytes(other.read_bytes())
    cache._opened.clear()
    with pytest.warns(DiagnosticWarning, match="checksum"):
        assert planned_once() == "compiled"
    file.chmod(0o622)
    cache._opened.clear()
    with pytest.warns(DiagnosticWarning, match="others may write"):
        assert planned_once() == "compiled"


def test_a_cache_that_cannot_be_written_is_a_warning(root, monkeypatch):
    def refuse(path, data):
        raise PermissionError("read-only")

    monkeypatch.setattr(cache, "_replace", refuse)
    with pytest.warns(DiagnosticWarning, match="cannot be written"):
        assert planned_once() == "compiled"


def test_without_a_cache(monkeypatch):
    monkeypatch.setenv("TESSERA_CACHE_SIZE_MB", "0")
    assert planned_once() == "compiled"


def test_clearing_the_cache_removes_plans(root):
    planned_once()
    cache.disk_cache().clear()
    assert not [*root.rglob("*.plan")]


PROCESS = """
import sys
import numpy as np
import tessera as ts
@ts.jit
def f(x):
    return np.exp(x - x.max(-1, keepdims=True)) + 1.0
print(f(np.ones((4, 8)))[0, 0], f._last[0].program.origin, "llvmlite" in sys.modules)
"""


def test_a_later_process_needs_no_compiler(root, monkeypatch):
    monkeypatch.setenv(
        "TESSERA_NUM_THREADS", "1"
    )  # a launch that takes long on a busy machine would want the pool's code
    runs = [subprocess.run([sys.executable, "-c", PROCESS], capture_output=True, text=True, check=True) for _ in "ab"]
    assert [run.stdout for run in runs] == ["2.0 compiled True\n", "2.0 disk cache False\n"]


def test_threads_that_call_first_at_the_same_time(root):
    traced = ts.jit(lambda x: np.tanh(x) * x.shape[0] + np.exp(x).sum(axis=-1, keepdims=True))
    x = RNG.standard_normal((5, 9))
    barrier, found = threading.Barrier(4), []

    def run():
        barrier.wait()
        found.append(traced(x))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wanted = np.tanh(x) * 5 + np.exp(x).sum(axis=-1, keepdims=True)
    assert len(found) == 4
    assert all(np.allclose(one, wanted, rtol=1e-12) for one in found)
    (kernel,) = traced._last[0].program._launched.values()
    assert [len(variants) for variants in kernel.variants._entries.values()] == [1]


def test_kernels_of_the_same_tiles_share_code_whatever_their_names(root, monkeypatch):
    made: list[str] = []
    real = variants.compile_built

    def counted(built, *rest):
        made.append(text_of(built.module))
        return real(built, *rest)

    monkeypatch.setattr(variants, "compile_built", counted)

    def first(x):
        return np.exp(x) * 2.0

    def other(x):
        return np.exp(x) * 2.0

    def unlike(x):
        return np.exp(x) * 3.0

    wide = RNG.standard_normal((6, 10))
    found = []
    for function, x in (
        (first, wide),
        (other, wide),
        (unlike, wide),
        (other, wide.astype(np.float32)),
        (other, wide.T),
    ):
        traced = ts.jit(function)
        np.testing.assert_allclose(traced(x), function(x), rtol=1e-6)
        (kernel,) = traced.explain().kernels
        found.append((kernel.kernel.kernel, kernel.kernel.origin, len(made)))
    names, origins, counts = zip(*found, strict=True)
    assert names == ("first_0", "other_0", "unlike_0", "other_0", "other_0")
    assert origins[:4] == ("compiled", "disk cache", "compiled", "compiled")
    assert counts[:4] == (1, 1, 2, 3)
    with monkeypatch.context() as patch:  # by a key of its own now
        patch.setattr(variants, "build_point", lambda *_: pytest.fail("the front end runs again"))
        assert np.array_equal(ts.jit(other)(wide), ts.jit(first)(wide))


def test_code_of_another_kernel_that_is_gone_is_compiled_again(root):
    def first(x):
        return np.tanh(x) + 1.0

    def other(x):
        return np.tanh(x) + 1.0

    x = RNG.standard_normal(40)
    ts.jit(first)(x)
    for entry in list(cache.disk_cache().entries()):
        entry.path.unlink()
    traced = ts.jit(other)
    np.testing.assert_allclose(traced(x), np.tanh(x) + 1.0, rtol=1e-12)
    assert traced.explain().kernels[0].kernel.origin == "compiled"
