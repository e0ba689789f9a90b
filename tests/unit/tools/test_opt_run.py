"""`tessera opt` and `tessera run`, as functions and as commands."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

from tessera.errors import CallError, VerifyError
from tessera.tools.opt import opt, opt_text
from tessera.tools.run import run, run_text

SAXPY = """
tessera_tile.kernel @saxpy profile "fast" (
    %x: !tessera_tile.tensor<?xf32> as "x" dims ["N"] strides [1] stride_div [1] dim_div [1],
    %y: !tessera_tile.tensor<?xf32> as "y" dims ["N"] strides [1] stride_div [1] dim_div [1] written,
    %a: f32 as "a") {
  %n = tessera_tile.dim %x[0] : !tessera_tile.tensor<?xf32>
  tessera_tile.grid(%n) by [4] {
  ^bb0(%i: index):
    %s = tessera_tile.splat %a : f32 -> !tessera_tile.tile<4xf32>
    %u = tessera_tile.load %x[%i] [4] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<4xf32>
    %v = tessera_tile.load %y[%i] [4] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<4xf32>
    %w = tessera_tile.elementwise "fma"(%s, %u, %v) : (!tessera_tile.tile<4xf32>, !tessera_tile.tile<4xf32>, !tessera_tile.tile<4xf32>) -> !tessera_tile.tile<4xf32>
    tessera_tile.store %w, %y[%i] [4] : !tessera_tile.tile<4xf32>, !tessera_tile.tensor<?xf32>
  }
  tessera_tile.return
}
"""  # noqa: E501
X, Y = np.arange(10, dtype=np.float32), np.ones(10, np.float32)


def test_numbers_of_another_type_are_not_read_as_bits(tmp_path: Path) -> None:
    source, x = tmp_path / "saxpy.mlir", tmp_path / "x.npy"
    source.write_text(SAXPY, encoding="utf-8")
    np.save(x, np.arange(10, dtype=np.uint32))
    done = CliRunner().invoke(run, [str(source), "-i", str(x), "-i", "zeros(10)", "-i", "3"])
    assert done.exit_code != 0
    assert "holds uint32" in str(done.exception) + done.output


def test_run_text_gives_what_is_stored() -> None:
    y = Y.copy()
    [result] = run_text(SAXPY, [X, y, 2.0])
    assert result is y
    assert np.array_equal(y, 2 * X + 1)


def test_opt_text_runs_passes_with_and_without_their_stage() -> None:
    text = "%0 = tessera_tile.constant 1 : i32"
    assert opt_text(text, ["dead-code"]) == opt_text(text, ["canonicalize-dead-code"]) == "builtin.module {\n}\n"


def test_an_unknown_pass_suggests_names() -> None:
    with pytest.raises(CallError, match="canonicalize-fold-constants") as caught:
        opt_text(SAXPY, ["fold-constant"])
    assert caught.value.code == "unknown-pass"


def test_malformed_text_has_a_place() -> None:
    with pytest.raises(VerifyError, match=r"x.mlir:2:"):
        run_text("\nfoo", [], file="x.mlir")


def test_the_commands(tmp_path: Path) -> None:
    source, x = tmp_path / "saxpy.mlir", tmp_path / "x.npy"
    source.write_text(SAXPY)
    np.save(x, X)
    done = CliRunner().invoke(
        run, [str(source), "-i", str(x), "-i", "zeros(10)", "-i", "3", "-o", str(tmp_path / "y.npy")]
    )
    assert done.exit_code == 0, done.output
    assert np.array_equal(np.load(tmp_path / "y.npy"), 3 * X)
    shown = CliRunner().invoke(run, [str(source), "-i", str(x), "-i", "zeros(10)", "-i", "1"])
    assert "[0. 1. 2. 3. 4. 5. 6. 7. 8. 9.]" in shown.output
    opted = CliRunner().invoke(opt, [str(source), "-p", "dead-code", "--dump", str(tmp_path / "dump")])
    assert opted.exit_code == 0, opted.output
    assert opted.output == opt_text(SAXPY, [])
    assert (tmp_path / "dump" / "00-canonicalize-dead-code.mlir").exists()
    listed = CliRunner().invoke(opt, ["--list"])
    assert "canonicalize-gather-to-slice" in listed.output


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (["zeros(4)"], "takes 3 inputs, got 1"),
        (["nowhere.npy", "zeros(4)", "1"], "cannot read nowhere.npy"),
        (["zeros(4)", "zeros(4)", "one"], "'one' is neither a file nor a number"),
        (["zeros(4)", "zeros(4)", "[1]"], "neither a file nor a number"),
        (["zeros(4)", "zeros(5)", "1"], "which makes N = 5"),
        (["zeros(4)", "zeros(2,2)", "1"], "has 2 dimensions"),
        (["zeros(4)", "zeros(4)", "1e300"], "which is no f32"),
    ],
)
def test_wrong_inputs(tmp_path: Path, inputs: list[str], message: str) -> None:
    source = tmp_path / "saxpy.mlir"
    source.write_text(SAXPY)
    arguments = [str(source), *(part for given in inputs for part in ("-i", given))]
    with pytest.raises(CallError, match=message):
        CliRunner().invoke(run, arguments, catch_exceptions=False)


def test_an_output_for_no_result(tmp_path: Path) -> None:
    source = tmp_path / "saxpy.mlir"
    source.write_text(SAXPY)
    given = [
        "-i",
        "zeros(4)",
        "-i",
        "zeros(4)",
        "-i",
        "1",
        "-o",
        str(tmp_path / "y.npy"),
        "-o",
        str(tmp_path / "z.npy"),
    ]
    with pytest.raises(CallError, match="2 --output options, and saxpy gives 1 arrays"):
        CliRunner().invoke(run, [str(source), *given], catch_exceptions=False)
    assert not (tmp_path / "y.npy").exists()


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    source, x = tmp_path / "saxpy.mlir", tmp_path / "x.npy"
    source.write_text(SAXPY)
    np.save(x, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(CallError, match="cannot read"):
        CliRunner().invoke(run, [str(source), "-i", str(x), "-i", "zeros(4)", "-i", "1"], catch_exceptions=False)


def test_bf16_travels_as_integers_of_its_width(tmp_path: Path) -> None:
    source, x = tmp_path / "k.mlir", tmp_path / "x.npy"
    source.write_text(SAXPY.replace("f32", "bf16"))
    np.save(x, X.astype(ml_dtypes.bfloat16).view(np.uint16))
    out = tmp_path / "y.npy"
    done = CliRunner().invoke(run, [str(source), "-i", str(x), "-i", "zeros(10)", "-i", "1", "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert np.array_equal(np.load(out).view(ml_dtypes.bfloat16).astype(np.float32), X)
