"""The README's promises: its first kernel runs, its links lead somewhere, `import tessera` stays light."""

from __future__ import annotations

import importlib.metadata
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tessera

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"xdsl", "llvmlite", "cuda", "torch"}


def run_python(*args: str) -> str:
    """Run a fresh interpreter with warnings as errors and return what it prints."""
    done = subprocess.run([sys.executable, "-W", "error", *args], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_first_kernel_of_the_readme_runs(tmp_path: Path) -> None:
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    program = tmp_path / "first_kernel.py"
    program.write_text(block[1], encoding="utf-8")
    assert "saxpy" in run_python(str(program))


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_lead_to_files(page: str) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text(encoding="utf-8"))
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_import_loads_no_compiler() -> None:
    listed = run_python("-c", "import sys, tessera; print(*{name.split('.')[0] for name in sys.modules})")
    assert HEAVY.isdisjoint(listed.split())


def test_import_takes_at_most_300_ms() -> None:
    measure = "import time; t = time.perf_counter(); import tessera; print(time.perf_counter() - t)"
    # The best of some runs: the budget is about what the import does, not about what else the machine does.
    assert min(float(run_python("-c", measure)) for _ in range(5)) <= 0.3


def test_no_module_hides_a_function() -> None:
    # The first import of `tessera.x` binds `tessera.x`: a function of that name would be gone. `autodiff` is bound
    # after that import, which the package does itself.
    modules = {module.name for module in pkgutil.iter_modules(tessera.__path__)}
    functions = {name for name in tessera.__all__ if callable(getattr(tessera, name))}
    assert modules & functions == {"autodiff"}
    told = run_python("-c", "import tessera, tessera.autodiff.sweeps; print(callable(tessera.autodiff))")
    assert told.split() == ["True"]


def test_version_is_the_installed_one() -> None:
    try:
        installed = importlib.metadata.version("tessera")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("tessera is on the path but not installed")
    assert tessera.__version__ == installed
