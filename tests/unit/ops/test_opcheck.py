"""Operators that `import tessera.torch` registers pass `torch.library.opcheck`: here those that no other test has."""

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import tessera.torch  # noqa: E402, F401 - only where PyTorch is
from tessera.ops.lookup import scatter_steps  # noqa: E402 - registers a step
from tessera.ops.running import logarithms  # noqa: E402 - and another one
from tessera.ops.steps import STEPS  # noqa: E402
from tessera.ops.torch_steps import operator_of  # noqa: E402

for step in (scatter_steps.SCATTER, logarithms.LOGCUMSUMEXP):
    operator_of(step)

QUICK = ("test_schema", "test_faketensor")


def cases():
    torch.manual_seed(0)
    x, w = torch.randn(5, 16), torch.rand(16)
    sorted_ = torch.tensor([3, 3, 5, 7, 7, 7])
    places = torch.ops.tessera.run_places(sorted_)
    return {
        "bincount": (torch.randint(0, 9, (40,)), 9),
        "histogram": (torch.rand(40), 8, 0.0, 1.0),
        "logcumsumexp": (x,),
        "merge_attention": (torch.randn(2, 1, 3, 4, 8), torch.randn(2, 1, 3, 4)),
        "norm_rows_quantised": (x, None, None, w, None, 1e-5, 0.0, 0, False, "fp8_e4m3", 8),
        "run_places": (sorted_,),
        "runs": (sorted_, places, 3),
        "scatter_rows": (x, torch.tensor([1, 4, 1]), torch.randn(3, 16), "sum", True),
        "wide_integers": (torch.randint(0, 9, (40,), dtype=torch.int32),),
    }


@pytest.mark.parametrize("name", cases())
def test_operators_that_have_no_gradient(name):
    torch.library.opcheck(getattr(torch.ops.tessera, name).default, cases()[name], test_utils=QUICK)


def test_every_operator_is_checked_somewhere():
    own = {step.gradient.step.name for step in STEPS if step.gradient is not None}
    texts = "\n".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    found = set(re.findall(r"(\w+)\.default\b", texts)) | cases().keys()
    assert {step.name for step in STEPS} - own <= found
