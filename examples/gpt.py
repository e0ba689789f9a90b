"""Train a small GPT on the letters of this documentation: model, loss, gradient and AdamW in one `ts.jit`.

`python examples/gpt.py` takes about two minutes on two cores, `--device cuda` computes with PyTorch tensors on a GPU,
and `--compare torch` trains the same model from the same weights and batches by PyTorch, too.
"""

import argparse
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tessera as ts
from tessera import ops as op

Tree = Any
"""Arrays in dictionaries and lists."""


@dataclass(frozen=True)
class Config:
    """What is trained, and how.

    Args:
        layers: blocks of attention and MLP.
        heads: heads of an attention.
        width: elements of a token.
        context: tokens of a sequence.
        batch: sequences of a step.
        rate: the largest learning rate; it rises for a tenth of the steps, and falls as a cosine.
        steps: steps of training.
        seed: of weights, batches and the sample.
    """

    layers: int = 3
    heads: int = 4
    width: int = 128
    context: int = 64
    batch: int = 16
    rate: float = 3e-3
    steps: int = 600
    seed: int = 0

    def rate_at(self, step: int) -> float:
        """Return the learning rate of a step, from 1."""
        warm = max(1, self.steps // 10)
        gone = min(1.0, max(0, step - warm) / max(1, self.steps - warm))
        return self.rate * min(1.0, step / warm) * (0.55 + 0.45 * math.cos(math.pi * gone))


class Text:
    """The text, as numbers of its letters.

    Args:
        text: what is learnt.
    """

    def __init__(self, text: str) -> None:
        self.letters = sorted(set(text))
        self.numbers = {letter: number for number, letter in enumerate(self.letters)}
        self.tokens = np.array([self.numbers[letter] for letter in text], np.int64)

    def batches(self, config: Config) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield tokens, and those that follow each, `(batch, context)`."""
        rng = np.random.default_rng(config.seed)
        while True:
            starts = rng.integers(0, len(self.tokens) - config.context, (config.batch, 1))
            places = starts + np.arange(config.context)
            yield self.tokens[places], self.tokens[places + 1]


def documentation() -> str:
    """Return the pages of the documentation, without letters other than ASCII."""
    pages = sorted((Path(__file__).resolve().parents[1] / "docs").glob("*.md"))
    return "\n".join(page.read_text() for page in pages).encode("ascii", "ignore").decode()


def initial(config: Config, letters: int, dtype: Any = np.float32) -> Tree:
    """Return weights as GPT-2 draws them."""
    rng = np.random.default_rng(config.seed + 1)
    width = config.width

    def normal(*shape: int, scale: float = 0.02) -> Any:
        return (rng.standard_normal(shape) * scale).astype(dtype)

    def norm() -> Tree:
        return {"weight": np.ones(width, dtype), "bias": np.zeros(width, dtype)}

    def linear(inputs: int, outputs: int, scale: float = 0.02) -> Tree:
        return {"weight": normal(inputs, outputs, scale=scale), "bias": np.zeros(outputs, dtype)}

    last = 0.02 / math.sqrt(2 * config.layers)
    blocks = [
        {
            "before_attention": norm(),
            "queries_keys_values": linear(width, 3 * width),
            "attended": linear(width, width, last),
            "before_mlp": norm(),
            "up": linear(width, 4 * width),
            "down": linear(4 * width, width, last),
        }
        for _ in range(config.layers)
    ]
    tables = {"tokens": normal(letters, width), "places": normal(config.context, width)}
    return {**tables, "blocks": blocks, "before_head": norm(), "head": normal(width, letters)}


def mapped(function: Callable[[Any], Any], tree: Tree) -> Tree:
    """Return a function of each array of a tree."""
    if isinstance(tree, dict):
        return {key: mapped(function, part) for key, part in tree.items()}
    return [mapped(function, part) for part in tree] if isinstance(tree, list) else function(tree)


def arrays_of(tree: Tree) -> Iterator[Any]:
    """Yield the arrays of a tree."""
    if isinstance(tree, dict | list):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from arrays_of(part)
    else:
        yield tree


def normed(x: Any, norm: Tree) -> Any:
    """Return a layer norm over the last dimension."""
    return op.norm.ln(x, x.shape[-1], norm["weight"], norm["bias"])


def linear(x: Any, layer: Tree) -> Any:
    """Return a linear layer."""
    return x @ layer["weight"] + layer["bias"]


def gelu(x: Any) -> Any:
    """Return GELU by its approximation with tanh."""
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


def logits(params: Tree, x: Any, heads: int) -> Any:
    """Return what is predicted after each token: `(batch, context, letters)`."""
    batch, context = x.shape
    h = params["tokens"][x] + params["places"]
    for block in params["blocks"]:
        found = linear(normed(h, block["before_attention"]), block["queries_keys_values"])
        q, k, v = found.reshape(batch, context, 3, heads, -1).transpose(2, 0, 3, 1, 4)
        seen = op.flash_attention(q, k, v, causal=True)
        h = h + linear(seen.transpose(0, 2, 1, 3).reshape(batch, context, -1), block["attended"])
        h = h + linear(gelu(linear(normed(h, block["before_mlp"]), block["up"])), block["down"])
    return normed(h, params["before_head"]) @ params["head"]


def loss(params: Tree, x: Any, y: Any, heads: int) -> Any:
    """Return the mean cross entropy of the tokens that follow."""
    found = logits(params, x, heads)
    return op.loss.cross_entropy(found.reshape(-1, found.shape[-1]), y.reshape(-1))


BETAS, DECAY = (0.9, 0.95), 0.1


@ts.jit
def train_step(params: Tree, means: Tree, squares: Tree, x: Any, y: Any, step: float, rate: float, heads: int) -> Any:
    """Return the loss, and change parameters and the states of AdamW in place."""
    value, gradients = ts.value_and_grad(loss)(params, x, y, heads)
    op.optim.adamw_(params, gradients, means, squares, step, lr=rate, betas=BETAS, weight_decay=DECAY)
    return value


predict = ts.jit(logits)

Step = Callable[[Any, Any, int, float], Any]
"""Makes a step of training with a batch, by its number and learning rate; returns the loss."""


class Tessera:
    """A model that Tessera trains.

    Args:
        config: the model.
        params: its weights; they change.
    """

    def __init__(self, config: Config, params: Tree) -> None:
        self.config, self.params = config, params
        self._means = mapped(lambda array: array * 0, params)
        self._squares = mapped(lambda array: array * 0, params)

    def __call__(self, x: Any, y: Any, step: int, rate: float) -> Any:
        """Make a step; see `Step`."""
        return train_step(
            self.params, self._means, self._squares, x, y, float(step), rate=rate, heads=self.config.heads
        )

    def sample(self, text: Text, place: Callable[[Any], Any], start: str, letters: int) -> str:
        """Return how a text goes on, by letters drawn as the model predicts them."""
        rng = np.random.default_rng(self.config.seed)
        tokens = [text.numbers[letter] for letter in start]
        for _ in range(letters):
            last = tokens[-self.config.context :]
            x = np.zeros((1, self.config.context), np.int64)
            x[0, : len(last)] = last
            found = predict(self.params, place(x), self.config.heads)[0, len(last) - 1]
            scores = np.asarray(found.cpu() if hasattr(found, "cpu") else found, np.float64)
            chances = np.exp((scores - scores.max()) / 0.8)
            tokens.append(int(rng.choice(len(chances), p=chances / chances.sum())))
        return "".join(text.letters[token] for token in tokens)


def torch_step(config: Config, params: Tree, compiled: bool = False) -> Step:
    """Return steps of the same model by PyTorch.

    Args:
        config: the model.
        params: its weights as tensors, which are copied.
        compiled: whether `torch.compile` compiles the loss.
    """
    import torch
    from torch.nn import functional as F

    weights = mapped(lambda tensor: tensor.clone().requires_grad_(), params)
    optimizer = torch.optim.AdamW([*arrays_of(weights)], betas=BETAS, weight_decay=DECAY)

    def normed(x: Any, norm: Tree) -> Any:
        return F.layer_norm(x, x.shape[-1:], norm["weight"], norm["bias"])

    def of_batch(x: Any, y: Any) -> Any:
        batch, context = x.shape
        h = weights["tokens"][x] + weights["places"]
        for block in weights["blocks"]:
            found = linear(normed(h, block["before_attention"]), block["queries_keys_values"])
            q, k, v = found.reshape(batch, context, 3, config.heads, -1).permute(2, 0, 3, 1, 4)
            seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            h = h + linear(seen.transpose(1, 2).reshape(batch, context, -1), block["attended"])
            up = F.gelu(linear(normed(h, block["before_mlp"]), block["up"]), approximate="tanh")
            h = h + linear(up, block["down"])
        found = normed(h, weights["before_head"]) @ weights["head"]
        return F.cross_entropy(found.reshape(-1, found.shape[-1]), y.reshape(-1))

    run = torch.compile(of_batch) if compiled else of_batch

    def step(x: Any, y: Any, number: int, rate: float) -> Any:
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        value = run(x, y)
        value.backward()
        optimizer.step()
        return value.detach()

    return step


def placed(device: str, tensors: bool) -> Callable[[Any], Any]:
    """Return what puts an array where it is computed with: as it is, or as a PyTorch tensor of its own."""
    if not tensors and device == "cpu":
        return lambda array: array
    import torch

    return lambda array: torch.from_numpy(np.array(array)).to(device)


def curve(step: Step, text: Text, config: Config, place: Callable[[Any], Any], every: int, name: str) -> list[float]:
    """Train, and print and return the loss of each step."""
    losses: list[float] = []
    batches = text.batches(config)
    start = time.perf_counter()
    for number in range(1, config.steps + 1):
        x, y = map(place, next(batches))
        losses.append(float(step(x, y, number, config.rate_at(number))))
        if every and (number % every == 0 or number == 1):
            gone = time.perf_counter() - start
            print(f"{name} step {number:5d}: loss {losses[-1]:.4f}, {gone:6.1f} s", flush=True)
    return losses


def main() -> None:
    """Train, and compare where it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--compare", choices=("torch",), help="train by PyTorch, too, from the same weights")
    parser.add_argument("--every", type=int, default=50, help="steps from one line to the next")
    parser.add_argument("--letters", type=int, default=300, help="length of the sample")
    for name in ("steps", "layers", "heads", "width", "context", "batch", "seed"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Config, name))
    args = parser.parse_args()
    config = Config(args.layers, args.heads, args.width, args.context, args.batch, steps=args.steps, seed=args.seed)
    text = Text(documentation())
    weights = initial(config, len(text.letters))
    count = sum(array.size for array in arrays_of(weights))
    print(f"{len(text.tokens)} letters, {len(text.letters)} of them different; {count} parameters")
    theirs = torch_step(config, mapped(placed(args.device, True), weights)) if args.compare else None
    place = placed(args.device, False)
    model = Tessera(config, mapped(place, weights))
    found = curve(model, text, config, place, args.every, "tessera")
    if theirs is not None:
        wanted = curve(theirs, text, config, placed(args.device, True), args.every, "pytorch")
        apart = max(abs(one - other) for one, other in zip(found, wanted, strict=True))
        print(f"largest difference of the losses: {apart:.2e}")
    print(model.sample(text, place, "Tessera ", args.letters))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("\nstopped")
        raise SystemExit(130) from None
