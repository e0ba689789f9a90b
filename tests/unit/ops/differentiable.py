"""Calls of all library ops with each of their arrays, for tests of gradients: small, in float64 where ops take it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from tessera import op
from tessera.ops import MODULES

E = op.epilogue
NO_TENSORS = {
    "grad_scale",
    "out",
    "stream",
    "like",
    "when",
    "use",
    "function",
    "mask_mod",
    "score_mod",
    "tensors",
    "fields",
    "rope",
}
"""Arguments annotated as arrays that are none, results, or of ops that give nothing."""


class Case(NamedTuple):
    """A call.

    Args:
        name: the op's, with its family.
        arrays: its arrays, by the names of its arguments.
        options: its other arguments.
        call: runs it; by default the op with all of these.
    """

    name: str
    arrays: dict[str, Any]
    options: Mapping[str, Any] = MappingProxyType({})
    call: Callable[..., Any] | None = None

    def run(self, arrays: dict[str, Any] | None = None) -> Any:
        """Return the results that are tensors."""
        given = self.arrays if arrays is None else arrays
        family, _, name = self.name.partition(".")
        function = self.call or getattr(import_module(f"tessera.ops.{family}"), name)
        found = function(**given, **self.options)
        return found if isinstance(found, tuple) else (found,)


def normal(*shape: int, dtype: Any = torch.float64) -> Any:
    """Return normally distributed numbers."""
    return torch.randn(*shape, dtype=torch.float64).to(dtype)


def positive(*shape: int) -> Any:
    """Return numbers between 0.2 and 0.8."""
    return torch.rand(*shape, dtype=torch.float64) * 0.6 + 0.2


def whole(limit: int, *shape: int) -> Any:
    """Return whole numbers from 0 on."""
    return torch.randint(0, limit, shape)


def turned(q: Any, k: Any, v: Any, cos: Any, sin: Any) -> Any:
    """Return attention of queries and keys that tables turn."""
    return op.flash_attention(q, k, v, rope=(cos, sin))


def cases() -> dict[str, Case]:
    """Return calls of all ops."""
    torch.manual_seed(7)
    heads = {name: normal(1, 2, 5, 8) for name in "qkv"}
    packed = {name: normal(7, 2, 8) for name in "qkv"}
    starts = torch.tensor([0, 3, 7], dtype=torch.int32)
    single = torch.float32
    sequence = {name: normal(1, 6, 2, 16, dtype=single) for name in "qkv"}
    gates, state = -positive(1, 6, 2).float(), normal(1, 2, 16, 16, dtype=single)
    eights = {name: normal(1, 2, 16, 16, dtype=torch.float8_e4m3fn) for name in "qkv"}
    factors = {f"{name}_scale": positive(2).float() for name in "kv"}
    paged = {
        **{f"{name}_pages": normal(3, 8, 2, 8, dtype=single) for name in "kv"},
        "page_table": torch.tensor([[0, 1]], dtype=torch.int32),
        "lengths": torch.tensor([5], dtype=torch.int32),
    }
    shared = {
        f"prefix_{name}": torch.tensor(one, dtype=torch.int32) for name, one in (("lengths", [0]), ("groups", [0, 1]))
    }
    rows, other = normal(5, 6), normal(5, 6)
    vectors = {"weight": normal(6), "bias": normal(6)}
    a, b, c = normal(4, 5), normal(5, 3), normal(4, 3)
    pairs = {"input": normal(5, 6), "target": normal(5, 6)}
    rates = {"input": positive(5, 6), "target": positive(5, 6)}
    given: list[Case] = [
        *(Case(f"activation.{name}", {"gate": rows, "up": other}) for name in ("swiglu", "geglu", "reglu")),
        Case("attn.flash_attention", {**heads, "bias": normal(1, 2, 5, 5), "sinks": normal(2)}),
        Case("attn.flash_attention", {**heads, "alibi_slopes": positive(2)}, {"causal": True, "return_lse": True}),
        Case("attn.flash_attention", {**heads, "seed": torch.tensor([3])}, {"dropout_p": 0.3}),
        Case("attn.flash_attention", {**heads, "cos": normal(5, 4), "sin": normal(5, 4)}, call=turned),
        Case("attn.flash_attention_fp8", {**eights, **{f"{name}_scale": positive(1, 2).float() for name in "qkv"}}),
        Case(
            "attn.paged_attention",
            {**paged, **factors, "q": normal(1, 2, 1, 8, dtype=single), "sinks": normal(2, dtype=single)},
        ),
        Case("attn.paged_attention", {**paged, **shared, "q": normal(1, 2, 1, 8, dtype=single)}),
        Case("attn.append_kv", {**{name: normal(1, 1, 2, 8, dtype=single) for name in "kv"}, **paged, **factors}),
        Case(
            "attn.flash_attention_varlen",
            {**packed, "cu_seqlens_q": starts, "cu_seqlens_k": starts, "alibi_slopes": positive(2), "sinks": normal(2)},
            {"max_seqlen_q": 4, "max_seqlen_k": 4},
        ),
        Case(
            "attn.flash_attention_varlen",
            {**packed, "cu_seqlens_q": starts, "seed": torch.tensor([3])},
            {"max_seqlen_q": 4, "dropout_p": 0.3},
        ),
        Case("attn.rope", {"q": heads["q"], "k": heads["k"], "positions": whole(5, 5)}),
        Case("attn.rope", {"q": heads["q"], "k": heads["k"], "cos": normal(5, 4), "sin": normal(5, 4)}),
        Case("attn.merge", {"outs": normal(2, 1, 2, 5, 8), "lses": normal(2, 1, 2, 5)}),
        Case("counting.bincount", {"input": whole(4, 9), "weights": normal(9)}),
        Case("counting.histogram", {"input": normal(9)}, {"bins": 3}),
        Case("counting.unique_consecutive", {"input": normal(9)}),
        Case("lookup.embedding", {"input": whole(9, 5), "weight": normal(9, 4)}),
        Case("loss.bce", {**rates, "weight": positive(5, 6)}),
        Case("loss.bce_with_logits", {**pairs, "weight": positive(5, 6), "pos_weight": positive(6)}),
        *(
            Case("loss.cosine_embedding", {"input1": rows, "input2": other, "target": one})
            for one in (torch.tensor([1, -1, 1, -1, 1]), torch.tensor([1.0, -1, 1, -1, 1], dtype=torch.float64))
        ),
        Case("loss.cross_entropy", {"input": rows, "target": whole(6, 5), "weight": positive(6)}),
        Case("loss.cross_entropy", {"input": rows, "target": positive(5, 6), "weight": positive(6)}),
        *(Case(f"loss.{name}", pairs) for name in ("huber", "l1", "mse", "smooth_l1")),
        *(Case(f"loss.{name}", {**pairs, "weight": positive(5, 6)}) for name in ("huber", "l1", "mse")),
        Case("loss.js", {name: one.log() for name, one in rates.items()}),
        Case("loss.kl_div", {"input": rates["input"].log(), "target": rates["target"]}),
        Case("loss.linear_cross_entropy", {"x": rows, "weight": normal(7, 6), "target": whole(7, 5)}),
        Case("loss.triplet_margin", {"anchor": rows, "positive": other, "negative": normal(5, 6)}),
        Case("loss.triplet_margin", {"anchor": rows, "positive": other, "negative": normal(5, 6)}, {"swap": True}),
        Case("norm.group", {"input": normal(2, 6, 3), **vectors}, {"num_groups": 2}),
        Case("norm.l2", {"input": rows}),
        *(
            Case(
                f"norm.{name}",
                {"input": rows, **vectors, "residual": other, "input_bias": normal(6)},
                {"normalized_shape": 6},
            )
            for name in ("ln", "rms")
        ),
        Case("ordering.sort", {"input": rows}),
        Case("ordering.topk", {"input": rows}, {"k": 3}),
        Case("random.dropout", {"input": rows}, {"p": 0.5, "seed": 3}),
        Case("recurrent.linear_attention", {**sequence, "g": gates, "initial_state": state}),
        Case("recurrent.gated_delta_rule", {**sequence, "g": gates, "beta": -gates, "initial_state": state}),
        Case(
            "recurrent.ssd",
            {
                "x": normal(1, 6, 2, 16, dtype=single),
                "dt": positive(1, 6, 2).float(),
                "a": -positive(2).float(),
                "b": normal(1, 6, 1, 16, dtype=single),
                "c": normal(1, 6, 1, 16, dtype=single),
                "d": normal(2, dtype=single),
                "initial_state": state,
            },
        ),
        *(Case(f"reduce.{name}", {"input": rows}) for name in ("argmax", "argmin", "mean", "norm", "sum", "var")),
        *(Case(f"reduce.{name}", {"input": rows}, {"dim": 1}) for name in ("max", "min", "sum", "norm", "var")),
        *(Case(f"running.{name}", {"input": rows}, {"dim": 1}) for name in ("cummax", "cummin", "cumprod", "cumsum")),
        Case("sequence.conv1d", {"x": normal(2, 3, 9), "weight": normal(3, 4), "bias": normal(3)}),
        Case("sequence.scan", {"gate": positive(2, 5, 3), "x": normal(2, 5, 3)}),
        *(Case(f"softmaxes.{name}", {"input": rows, "mask": other}) for name in ("softmax", "log_softmax")),
        *(Case(f"softmaxes.{name}", {"input": rows}) for name in ("softmax", "log_softmax")),
        Case("softmaxes.logsumexp", {"input": rows}, {"dim": 1}),
        Case("transforms.hadamard", {"x": normal(3, 8), "signs": torch.tensor([1.0, -1] * 4, dtype=torch.float64)}),
        Case("linalg.matmul", {"a": a, "b": b}),
        Case("linalg.linear", {"x": a, "w": normal(3, 5), "bias": normal(3)}),
        Case("linalg.gemm", {"a": a, "b": b}),
        Case("linalg.gemm", {"a": a, "b": b, "c": c}, {"beta": 1.0}),
        Case("linalg.gemm", {"a": a, "b": b, "scale_a": positive(1), "scale_b": positive(1)}),
        Case("linalg.gemm_batched", {"a": a[None], "b": b[None], "c": c[None]}, {"beta": 1.0}),
        Case("linalg.gemm_batched", {"a": a[None], "b": b[None], "scale_a": positive(1), "scale_b": positive(1)}),
        Case("linalg.gemm_grouped", {"a": a, "b": normal(2, 5, 3), "offsets": starts.new_tensor([0, 1, 4])}),
        *(
            Case(
                f"epilogue.{name}",
                {"a": a, "b": b, argument: one},
                call=lambda a, b, name=name, argument=argument, **more: op.linalg.gemm(
                    a, b, epilogue=E.chain([getattr(E, name)(more[argument])])
                ),
            )
            for name, argument, one in (
                ("bias", "values", normal(3)),
                ("residual", "values", c),
                ("scale", "factor", positive(3)),
                ("dequant", "factor", positive(3)),
            )
        ),
    ]
    numbers: dict[str, int] = {}
    found: dict[str, Case] = {}
    for one in given:
        number = numbers[one.name] = numbers.get(one.name, 0) + 1
        found[one.name if number == 1 else f"{one.name} {number}"] = one
    return found


def parameters() -> dict[str, list[str]]:
    """Return the arguments of all ops that are arrays."""
    found: dict[str, list[str]] = {}
    for module in MODULES:
        family = import_module(f"tessera.ops.{module}")
        for name in family.__all__:
            value: Any = getattr(family, name)
            if inspect.isclass(value) or inspect.ismodule(value):
                continue
            call = value if inspect.isfunction(value) else type(value).__call__
            arrays = [
                one.name
                for one in inspect.signature(call).parameters.values()
                if str(one.annotation).startswith("Any") and one.name not in NO_TENSORS
            ]
            found[f"{module}.{name}"] = arrays
    return found
