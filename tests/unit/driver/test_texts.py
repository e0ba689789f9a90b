"""Names, messages and paths of any letters come through every textual level."""

import importlib.util
import re

import numpy as np
import pytest

import tessera as ts
from tessera.driver.settings import settings

LETTERS = ("größe", "名前", "e\u0301", "ℵ0", "plain")
MARKS = ("é", "\\", '"é"', "%d é", "\té\n", "\x01\x7fé", "名\\22", "\\C3\\A9", "ü\u2028", "plain")
SOURCE = """
import tessera as ts

def kernel({name}: ts.Tensor["{name}1", ts.f32], y: ts.Tensor["{name}1", ts.f32], {name}2: ts.f32):
    for i in ts.tile.grid(({name}1, 16)):
        assert {name}2 < 3.0, {text!r}
        print({text!r}, {name}2)
        y[i : i + 16] = {name}[i : i + 16] * {name}2
"""


def declared(folder, name, text):
    """Return a kernel from a file whose path has the text's letters, too."""
    folder = folder / text.replace("/", "")
    folder.mkdir()
    path = folder / f"{name}.py"
    path.write_text(SOURCE.format(name=name, text=text), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("declared", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return ts.kernel(module.kernel)


def without_numbers(code):
    """Return code without the numbers that LLVM gives to calls, which go on from module to module."""
    return re.sub(r"callseq \d+", "callseq", code)


@pytest.mark.parametrize("target", ["cpu", "sm_80"])
@pytest.mark.parametrize("at", range(len(MARKS)))
def test_levels_are_continued_whatever_letters_they_hold(at, target, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(settings(), "debug", True)
    name, text = LETTERS[(at + at // len(LETTERS)) % len(LETTERS)], MARKS[at]
    kernel = declared(tmp_path, name, text)
    last = "ll" if target == "cpu" else "ptx"
    whole = ts.compile(kernel, target, dump=("tirh", "tirt", last))
    for level in ("tirh", "tirt"):
        again = ts.compile(whole.dumps[level], dump=(last,))
        assert without_numbers(again.dumps[last]) == without_numbers(whole.dumps[last])
        assert [arg.name for arg in again.args] == [arg.name for arg in whole.args]
    if target == "cpu":
        again.save(tmp_path / "again.tsr")
        loaded = ts.load(tmp_path / "again.tsr")
        x, y = np.arange(5, dtype=np.float32), np.zeros(5, np.float32)
        loaded(x, y, 2.0)
        assert np.array_equal(y, 2 * x)
        assert text in capfd.readouterr().out
        with pytest.raises(ts.TesseraError) as caught:
            loaded(x, y, 4.0)
        assert text.strip() in str(caught.value)
