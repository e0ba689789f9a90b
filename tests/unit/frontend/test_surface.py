"""The public names: signatures, annotations, stubs, import cost."""

from __future__ import annotations

import inspect
import subprocess
import sys
from operator import attrgetter

import pytest

import tessera as ts
from tessera.frontend import registry, tile
from tessera.frontend.annotations import Dim
from tessera.frontend.signature import ConstexprParam, ScalarParam, Signature, TensorParam

M, K = ts.dims("M K")


def strings(x: ts.Tensor["M", "B*H", 128, "bf16 @accum(f32)"], n: int = 3, BM: ts.constexpr[int] = 64, on: bool = True):
    pass


def symbols(x: ts.Tensor[M, 2 * K, ts.bf16 @ ts.accum(ts.f32)], a: float, b: ts.i8) -> ts.Tensor[M, 2 * K, ts.bf16]:
    return x


def test_signatures():
    signature = Signature.of(strings)
    tensor, n, block, on = signature.params
    assert tensor == TensorParam("x", (Dim(("M",)), Dim(("B", "H")), Dim((), 128)), ts.bf16 @ ts.accum(ts.f32))
    assert n == ScalarParam("n", ts.i64, 3)
    assert block == ConstexprParam("BM", int, 64)
    assert on == ConstexprParam("on", bool, True)
    assert signature.dim_names == ("M", "B", "H")
    assert [p.name for p in signature.runtime_params] == ["x", "n"]

    signature = Signature.of(symbols)
    assert signature.tensors[0].dims == (Dim(("M",)), Dim(("K",), 2))
    assert [p.dtype for p in signature.params[1:]] == [ts.f32, ts.i8]
    assert signature.returns is not None
    assert str(signature.returns[0]) == "Tensor[M, 2*K, bf16]"


def test_string_annotations_mean_the_same():
    assert all(isinstance(text, str) for text in strings.__annotations__.values())


@pytest.mark.parametrize("text", ["M", "B*H", "2*N", "128", "4*B*H"])
def test_dimensions_print_as_they_are_read(text):
    assert str(Dim.parse(text)) == text
    assert Dim.parse(str(Dim.parse(text))) == Dim.parse(text)


def test_every_tile_function_is_compiled_documented_and_exported():
    assert registry.missing() == ()
    for name, function in tile.functions().items():
        assert attrgetter(name)(ts.tile) is function
        documentation = inspect.getdoc(function) or ""
        assert documentation.splitlines()[0].endswith((".", ":")), name
        parameters = inspect.signature(function).parameters
        if parameters:
            assert "Args:" in documentation, name
        for parameter in parameters:
            assert f"{parameter}:" in documentation, (name, parameter)
        returns = inspect.signature(function).return_annotation
        assert ("Returns:" in documentation) == (returns != "None"), name


def test_stubs_refuse_to_run():
    for call in (lambda: ts.tile.zeros(4), ts.tile.Tile, ts.tile.Context):
        with pytest.raises(ts.LanguageError) as caught:
            call()
        assert caught.value.code == "outside-kernel"


def test_exports():
    for name in set(ts.__all__) - set(ts._LAZY):
        assert hasattr(ts, name)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = ts.no_such_name
    assert {"kernel", "compile", "zeros"} <= set(dir(ts))


def test_importing_and_decorating_needs_no_compiler():
    program = """
import sys
import tessera as ts
from tessera.frontend.signature import Signature
def f(x: ts.Tensor["M", ts.f32], s: ts.f32): x[0] = s
Signature.of(f)
heavy = {"xdsl", "llvmlite", "cuda", "numpy", "ml_dtypes"} & {name.split(".")[0] for name in sys.modules}
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_functions_without_source_are_refused():
    namespace = {"ts": ts}
    exec("def kernel(x: ts.Tensor['M', ts.f32]):\n    x[0] = 1.0", namespace)
    from tests.unit.frontend.support import built

    with pytest.raises(ts.LanguageError) as caught:
        built(namespace["kernel"])
    assert caught.value.code == "no-source"
    assert caught.value.location is not None
