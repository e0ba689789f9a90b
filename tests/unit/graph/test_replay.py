"""Runs of a graph after the first, whose launches are started together."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.driver.together import ALIGNED, packed
from tessera.graph.recorded import Launches, Other, View
from tessera.numerics import profiles
from tessera.runtime import recording


@pytest.mark.parametrize("seed", range(20))
def test_what_lives_at_once_lies_apart(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 40))
    sizes = {key: int(rng.integers(0, 5000)) for key in range(count)}
    begins = rng.integers(0, 30, count)
    lives = {key: range(int(at), int(at + rng.integers(1, 12))) for key, at in enumerate(begins)}
    starts, whole = packed(sizes, lives)
    assert starts.keys() == sizes.keys()
    for one in sizes:
        assert starts[one] % ALIGNED == 0
        assert starts[one] + sizes[one] <= whole
        for other in range(one):
            if set(lives[one]) & set(lives[other]):
                assert starts[one] + sizes[one] <= starts[other] or starts[other] + sizes[other] <= starts[one]
    busiest = max(sum(sizes[key] for key in sizes if at in lives[key]) for at in range(45))
    assert whole <= 2 * busiest + ALIGNED * count


def layers(x: Any, w: Any, v: Any) -> Any:
    h = np.tanh(x @ w)
    h = (h - np.mean(h, axis=-1, keepdims=True)) @ w.T
    return (h @ v).T + 1, np.sum(h, axis=0), h[:, ::2]


def given(seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for shape in ((6, 8), (8, 8), (8, 3))]


def replay_of(function: Any) -> Any:
    (bound,) = function._last[0].program._bound.values()
    return bound.replay


def test_launches_are_started_together() -> None:
    traced = ts.jit(layers)
    for seed in range(4):
        for got, wanted in zip(traced(*given(seed)), layers(*given(seed)), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12)
    replay = replay_of(traced)
    kinds = [type(item) for item in replay.items]
    assert kinds.count(Launches) >= 5
    assert View in kinds
    assert Other not in kinds
    assert replay.text.count("launch_") == 1


def test_a_run_leaves_the_results_of_others_alone() -> None:
    traced = ts.jit(layers)
    runs = [traced(*given(seed)) for seed in range(3)]
    for seed, run in enumerate(runs):
        for got, wanted in zip(run, layers(*given(seed)), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12)


def test_one_array_for_two_arguments_means_nothing_for_later_calls() -> None:
    def function(x: Any, y: Any) -> Any:
        return np.exp(x) - y, x @ y, x @ y.T, y @ y

    traced = ts.jit(function)
    x, y, z = (np.random.default_rng(seed).standard_normal((5, 5)) for seed in range(3))
    for pair in ((x, x), (y, y), (x, y), (y, z), (z, z), (z, x)):
        for got, wanted in zip(traced(*pair), function(*pair), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12)


def test_parts_of_one_array_lie_in_it() -> None:
    def function(x: Any) -> Any:
        y = np.exp(x)
        return y[:, :4] @ y[:, 2:6].T, (x[:, 3:] @ x[:, :5].T)[1:]

    traced = ts.jit(function)
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((6, 8))
        for got, wanted in zip(traced(x), function(x), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12)
    assert not any(isinstance(item, Other) for item in replay_of(traced).items)


def test_threads_run_one_graph_at_once() -> None:
    traced = ts.jit(layers)
    traced(*given(0))
    failed: list[int] = []

    def work(seed: int) -> None:
        arrays = given(seed)
        wanted = layers(*arrays)
        for _ in range(30):
            pairs = zip(traced(*arrays), wanted, strict=True)
            if not all(np.allclose(got, one, rtol=1e-11, atol=1e-11) for got, one in pairs):
                failed.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not failed


def test_profiles_have_runs_of_their_own() -> None:
    traced = ts.jit(layers)
    for name in ("fast", "strict", "fast", "strict"):
        with ts.numerics.profile(name):
            traced(*given(0))
    kept = [key[1] for key in traced._last[0].program._bound]
    assert kept == ["fast", "strict"]


@ts.kernel
def double(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]) -> ts.Tensor["n", ts.f32]:
    i = ts.tile.linear_id()
    if i < n:
        y[i] = x[i] * 2.0
    return y


def test_the_entry_leaves_recorded_calls_to_python() -> None:
    x, y = np.ones(4, np.float32), np.zeros(4, np.float32)
    for _ in range(5):
        double(x, y)
    start = x.ctypes.data
    known = [recording.Range((name, 0), at, at, at + 16) for name, at in (("x", start), ("y", y.ctypes.data))]
    with recording.recording(known) as made:
        double(x, y)
    assert [one.places for one in made.launches] == [(("x", 0), ("y", 0))]
    assert not made.refused
    assert recording.current() is None
    assert profiles.chosen_profile() is None


@pytest.mark.parametrize(
    ("ranges", "reason"), [([], "elsewhere"), ([("x", 0), ("z", 0)], "share"), ([("x", 0), ("z", 8)], "share")]
)
def test_what_is_not_known_is_refused(ranges: list[tuple[str, int]], reason: str) -> None:
    recorder = recording.Recorder([recording.Range((name, 0), 64 + at, 64 + at, 128 + at) for name, at in ranges])
    assert recorder.place_of(80) == recording.NOWHERE
    assert reason in recorder.refused


def test_pytorch_ops_between_launches_are_steps_of_their_own() -> None:
    torch = pytest.importorskip("torch")
    compiled = pytest.importorskip("tessera.torch.compiled.backend")
    running = pytest.importorskip("tessera.torch.compiled.running")

    def function(x: Any) -> Any:
        return torch.conv1d(torch.tanh(x)[None], x.exp()[None, :, :3])[0].relu() @ x[:2], x.T.exp()

    seen = list[Any]()
    program: Any = running.Program

    def kept(*made: Any, **named: Any) -> Any:
        seen.append(program(*made, **named))
        return seen[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "Program", kept)
        torch._dynamo.reset()
        whole: Callable[..., Any] = torch.compile(function, backend=compiled.backend)
        for seed in range(3):
            torch.manual_seed(seed)
            x = torch.randn(4, 4, dtype=torch.float64)
            torch.testing.assert_close(whole(x), function(x))
    ((bound,),) = (one._bound.values() for one in seen)
    kinds = [type(item) for item in bound.replay.items]
    assert kinds.count(Other) == 1
    assert kinds.count(Launches) >= 3


@pytest.mark.parametrize("seed", range(12))
def test_which_addresses_may_be_elements(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = rng.integers(1, 4, rng.integers(1, 4))
    strides = rng.integers(1, 9, len(shape)) * 4
    axes = [(int(size), int(stride)) for size, stride in zip(shape, strides, strict=True) if size > 1]
    offsets = {0}
    for size, stride in [*axes, (4, 1)]:
        offsets = {at + number * stride for at in offsets for number in range(size)}
    one = recording.Range(("x", 0), 64, 64, 65 + max(offsets), (*axes, (4, 1)))
    held = {at for at in range(max(offsets) + 9) if one.may_hold(64 + at)}
    assert held >= offsets
    nested, below = True, 3
    for size, stride in sorted(axes, key=lambda axis: axis[1]):
        nested, below = nested and stride > below, below + (size - 1) * stride
    assert held == offsets or not nested
