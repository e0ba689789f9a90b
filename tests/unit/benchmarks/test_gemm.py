"""benchmarks/gemm.py without a GPU: options, works, operands, references, checks, and the arithmetic of its report."""

from __future__ import annotations

import csv
import importlib.util
import io
import re
import statistics
from pathlib import Path
from typing import Any

import gemm_report as report
import gemm_works as works
import numpy as np
import pytest
from gemm_timing import MOST_LAUNCHES, MOST_SETS, REPLAY_S, Seconds, launches_for, sets_for
from rich.console import Console

# By its path: the examples have a `gemm` of their own, which comes first.
SPEC = importlib.util.spec_from_file_location("benchmark_of_gemm", Path(works.__file__).with_name("gemm.py"))
assert SPEC is not None
assert SPEC.loader is not None
gemm = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(gemm)


def row(ratio: float, section: str = "bf16", peer: str = "cuBLAS", captured: bool = True) -> report.Row:
    """Return a row in which the peer takes `ratio` milliseconds and Tessera one; flushed, both take twice that."""
    work = works.works([section])[0]
    ours, theirs = (Seconds(s if captured else None, 2 * s) for s in (1e-3, ratio * 1e-3))
    return report.Row(work, peer, ours, theirs)


def test_a_whole_run_covers_ten_shapes_in_four_layouts() -> None:
    args = gemm.parsed([])
    bf16 = [work for work in works.works(args.only, args.shapes, args.layouts) if work.section == "bf16"]
    assert len(bf16) == len(set(bf16)) == 40
    assert (args.turns, args.peers) == (3, ("cublas", "triton"))


def test_quick_takes_one_layout_but_every_section() -> None:
    args = gemm.parsed(["--quick"])
    chosen = works.works(args.only, args.shapes, args.layouts)
    assert {work.section for work in chosen} == set(works.SECTIONS)
    assert {work.layout for work in chosen if work.section in ("bf16", "f16", "tf32")} == {"NN"}
    assert {work.layout for work in chosen if work.section in ("fp8", "int8")} == {"NT"}


def test_options_choose_works() -> None:
    args = gemm.parsed(["--only", "bf16", "fp8", "--shapes", "4096", "16x4096x4096", "--layouts", "TT", "NT"])
    names = [work.name for work in works.works(args.only, args.shapes, args.layouts)]
    assert names == [
        "bf16 NT 4096x4096x4096",
        "bf16 TT 4096x4096x4096",
        "bf16 NT 16x4096x4096",
        "bf16 TT 16x4096x4096",
        "fp8 NT 4096x4096x4096",
    ]


@pytest.mark.parametrize("text", ["1x2", "0", "4096x0x1", "big", "1x2x3x4"])
def test_shapes_that_are_none(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        gemm.parsed(["--shapes", text])
    assert text in capsys.readouterr().err


def test_torch_compile_is_tried_on_works_that_exist() -> None:
    assert set(works.COMPILED) <= {(work.section, work.shape) for work in works.works(layouts=["NN"])}


def test_no_such_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert gemm.main(["--shapes", "5x6x7"]) == 1
    assert "no work" in capsys.readouterr().err


def test_rotated_operands_exceed_the_cache_three_times() -> None:
    cache = 60 << 20
    for size in (1 << 22, 1 << 25, 3 * cache - 1):
        assert sets_for(size, cache) * size >= 3 * cache > (sets_for(size, cache) - 1) * size
    assert sets_for(3 * cache, cache) == 1
    assert sets_for(1, cache) == MOST_SETS


@pytest.mark.parametrize(("seconds", "sets"), [(3e-3, 1), (2e-5, 8), (1e-6, 64), (1e-2, 4)])
def test_a_graph_holds_whole_rounds(seconds: float, sets: int) -> None:
    launches = launches_for(seconds, sets)
    assert launches % sets == 0
    assert launches == sets or abs(launches - min(REPLAY_S / seconds, MOST_LAUNCHES)) <= sets / 2


def test_geometric_mean() -> None:
    ratios = np.random.default_rng(0).uniform(0.5, 2.0, 40).tolist()
    assert report.geometric_mean(ratios) == pytest.approx(statistics.geometric_mean(ratios))


def test_ratio_is_of_flushed_calls_and_replays_stand_beside_it() -> None:
    captured, not_captured = row(1.5), row(1.5, captured=False)
    assert captured.seconds == not_captured.seconds == (2e-3, 3e-3)
    assert captured.ratio == captured.replayed_ratio == pytest.approx(1.5)
    assert not_captured.replayed_ratio is None
    assert captured.tflops[0] == pytest.approx(2e-12 * 2048**3 / 2e-3)


@pytest.mark.parametrize(
    ("ratios", "passed"),
    [((1.2, 1.0), True), ((1.04, 1.05), False), ((1.5, 0.94), False), ((0.95, 1.2), True)],
)
def test_bf16_passes_by_its_mean_and_its_least(ratios: tuple[float, ...], passed: bool) -> None:
    (summary,) = report.summaries([row(ratio) for ratio in ratios])
    assert summary.mean == pytest.approx(statistics.geometric_mean(ratios))
    assert summary.least == pytest.approx(min(ratios))
    assert (summary.rows, summary.of) == (2, 40)
    assert summary.passed is passed


@pytest.mark.parametrize(
    ("section", "peer", "least"),
    [
        ("fp8", "cuBLAS", 1.0),
        ("linear", "cuBLASLt", 1.05),
        ("gated", "2 cuBLAS + elementwise", 1.1),
        ("dequant", "cuBLAS in bf16", 0.7),
    ],
)
def test_bars_of_the_other_sections(section: str, peer: str, least: float) -> None:
    for ratio, passed in ((least + 0.001, True), (least - 0.001, False)):
        (summary,) = report.summaries([row(ratio, section, peer)])
        assert summary.passed is passed


def test_peers_without_a_bar_have_no_verdict() -> None:
    summaries = report.summaries([row(1.2), row(0.5, peer="Triton")])
    assert [(s.peer, s.passed) for s in summaries] == [("cuBLAS", True), ("Triton", None)]


def test_the_rate_of_fp8() -> None:
    work = works.Work("fp8", "NT", (8192, 8192, 8192))
    seconds = Seconds(1.0, work.flops / 1.3e15)
    ((rate, value),) = report.rates([report.Row(work, "cuBLAS", seconds, seconds), row(1.0)])
    assert (rate.tflops, value) == (1200.0, pytest.approx(1300))


def test_tables_show_ratios_and_verdicts() -> None:
    console = Console(width=160, record=True, file=io.StringIO())
    rows = [row(1.234), row(0.5, captured=False)]
    console.print(report.table_of(rows), report.summary_table(rows))
    text = console.export_text()
    assert re.search(r"bf16 NN 2048x2048x2048 .* 1\.234 .* 1\.234", text)
    assert "2 of 40" in text
    assert "fail, of these" in text


def test_csv_has_every_row(tmp_path: Path) -> None:
    report.write_csv([row(1.5), row(0.5, captured=False)], tmp_path / "results.csv")
    written = (tmp_path / "results.csv").read_text(encoding="utf-8")
    first, second = csv.DictReader(io.StringIO(written))
    assert (first["section"], first["m"], first["peer"]) == ("bf16", "2048", "cuBLAS")
    assert float(first["ratio"]) == pytest.approx(float(first["peer_flushed"]) / float(first["tessera_flushed"]))
    assert second["tessera_replayed"] == ""


# With PyTorch


SMALL = (33, 40, 48)
CASES = [works.Work(section, layout, SMALL) for section in works.SECTIONS for layout in works.SPACE[section][1]]


def float64(tensor: Any) -> np.ndarray:
    """Return a tensor as NumPy's own."""
    return tensor.double().numpy()


def expected(work: works.Work, of: works.Operands) -> np.ndarray:
    """Return the result by NumPy."""
    product = float64(of.a) @ float64(of.b)
    if work.section == "linear":
        x = product + float64(of.more[0])
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    if work.section == "residual":
        return product + float64(of.more[0])
    if work.section == "gated":
        return product / (1 + np.exp(-product)) * (float64(of.a) @ float64(of.more[0]))
    return product * float64(of.more[0])[:, None] if work.section == "dequant" else product


@pytest.mark.parametrize("work", CASES, ids=lambda work: work.name)
def test_operands_and_reference(work: works.Work) -> None:
    torch = pytest.importorskip("torch")
    of = works.operands(torch, work, "cpu")
    m, n, k = work.shape
    assert (tuple(of.a.shape), tuple(of.b.shape), tuple(of.out.shape)) == ((m, k), (k, n), (m, n))
    assert [x.stride(0 if layout == "T" else 1) for x, layout in zip((of.a, of.b), work.layout, strict=True)] == [1, 1]
    np.testing.assert_allclose(works.reference(torch, work, of).numpy(), expected(work, of), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("work", CASES, ids=lambda work: work.name)
def test_kernels_are_right_on_the_cpu(work: works.Work) -> None:
    torch = pytest.importorskip("torch")
    of = works.operands(torch, work, "cpu")
    reference = works.reference(torch, work, of)
    works.check(torch, work.name, works.ours(work)(of), of, reference, work.tolerance)


def test_a_check_finds_one_wrong_element() -> None:
    torch = pytest.importorskip("torch")
    work = works.Work("bf16", "NN", (256, 512, 64))
    of = works.operands(torch, work, "cpu")
    reference = works.reference(torch, work, of)

    def almost() -> Any:
        of.out.copy_(reference)
        of.out[3, 7] += 1.0
        return of.out

    works.check(torch, "right", lambda: of.out.copy_(reference), of, reference, work.tolerance)
    with pytest.raises(works.WrongResult, match="1 of 131072 elements wrong"):
        works.check(torch, "almost", almost, of, reference, work.tolerance)


@pytest.mark.parametrize("section", ["bf16", "int8"])
def test_a_check_finds_what_was_not_written(section: str) -> None:
    torch = pytest.importorskip("torch")
    work = works.Work(section, "NT", SMALL)
    of = works.operands(torch, work, "cpu")
    with pytest.raises(works.WrongResult, match="elements wrong"):
        works.check(torch, "nothing", lambda: of.out, of, works.reference(torch, work, of), work.tolerance)
