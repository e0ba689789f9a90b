"""Public functions take what they say or refuse it by a typed error, whatever the argument."""

import inspect
import random
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.ops import epilogue, linalg

CALLS = 8
VALUES = [
    None,
    0,
    1,
    -1,
    7,
    2**70,
    0.5,
    float("nan"),
    1j,
    True,
    "x",
    "",
    b"b",
    (),
    (1, 2),
    (1, 2, 3),
    [1],
    [],
    {},
    {"a": 1},
    set(),
    object(),
    object,
    len,
    ...,
    slice(1),
    range(3),
    lambda x: x,
    np.float32(2),
    np.int64(3),
    np.zeros(3),
    np.zeros((4, 4), np.float32),
    np.zeros((2, 2), object),
    np.array("x"),
    ts.f32,
    ts.fp8_e4m3,
    ts.constexpr,
    ts.tile,
    epilogue.chain([]),
]
MATRICES = [np.ones((4, 4), np.float32)] * 2


def functions() -> Iterator[tuple[str, Callable[..., Any], list[Any]]]:
    """Yield public functions and methods, with arguments that are right."""
    for module in (ts, ts.tile, epilogue, linalg):
        for name in (name for name in dir(module) if not name.startswith("_")):
            value = getattr(module, name)
            public = getattr(value, "__module__", "").startswith("tessera.")
            if callable(value) and public and not (isinstance(value, type) and issubclass(value, Exception)):
                right = MATRICES if module is linalg and not isinstance(value, type) else []
                yield f"{module.__name__}.{name}", value, right
                methods = ("plan", "space", "compile", "flops", "bytes", "reference") if right else ()
                for method in (method for method in methods if hasattr(value, method)):
                    right = MATRICES if method == "reference" else [16, 16, 16]
                    yield f"{module.__name__}.{name}.{method}", getattr(value, method), right


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("function", "right"), [pytest.param(f, right, id=name) for name, f, right in functions()])
def test_a_public_function_takes_its_arguments_or_refuses_them(
    function: Callable[..., Any], right: list[Any], request: pytest.FixtureRequest
) -> None:
    rng = random.Random(zlib.crc32(request.node.name.encode()))
    parameters = list(inspect.signature(function).parameters.values())
    by_place = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = sum(p.default is p.empty for p in by_place)
    for call in range(CALLS):
        args = [rng.choice(VALUES) for _ in range(rng.randint(needed, len(by_place)))]
        if right and call % 2:
            args = right[: len(by_place)]
        rest = [
            p for p in parameters if p not in by_place[: len(args)] and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
        named = {p.name: rng.choice(VALUES) for p in rest if p.default is p.empty or rng.random() < 0.3}
        with suppress(ts.TesseraError):
            function(*args, **named)


@pytest.mark.parametrize("kind", [ValueError, TypeError, KeyError, AssertionError])
def test_a_fault_of_the_compiler_is_no_refusal(kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: object) -> None:
        raise kind("a fault")

    monkeypatch.setattr(sys.modules["tessera.driver.kernel"], "check_tensors", broken)
    with pytest.raises(kind, match="a fault"):
        linalg.gemm(np.ones((5, 3), np.float32), np.ones((3, 9), np.float32))
    with pytest.raises(kind, match="a fault"):
        linalg.matmul(np.ones((5, 3), np.float32), np.ones((3, 9), np.float32))


def test_a_wrong_argument_is_a_refusal_although_the_compiler_met_it_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: object) -> None:
        raise TypeError("a fault")

    monkeypatch.setattr(sys.modules["tessera.driver.kernel"], "check_tensors", broken)
    with pytest.raises(ts.CallError) as caught:
        linalg.gemm(np.ones((5, 3), np.float32), np.ones((3, 9), np.float32), triangular_only="yes")
    assert caught.value.code == "bad-argument"
