"""More chains of operators that `graph.py` measures: steps of models, losses and numerics as people write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graph_more import Add, Drawn, Sizes, Work, adding_to


def more_chains(torch: Any, sizes: Sizes | None = None) -> dict[str, Work]:
    """Return chains of operators."""
    found: dict[str, Work] = {}
    for family in (_layers, _attentions, _training, _vision, _sets, _numbers):
        family(torch, sizes or Sizes(), adding_to(found, "chain"))
    return found


def _layers(torch: Any, s: Sizes, add: Add) -> None:
    """Add parts of layers."""
    f = torch.nn.functional
    m, k = s.rows[0] // 8, s.rows[1]
    row, weight = (k,), (k, k)
    add("SwiGLU", lambda x, w, v: f.silu(x @ w) * (x @ v), (m, k), weight, weight, both=True)
    add("GEGLU", lambda x: (lambda a, b: a * f.gelu(b))(*x.chunk(2, -1)), s.wide, both=True)
    add("linear, bias, residual", lambda x, w, b, y: f.linear(x, w, b) + y, (m, k), weight, row, (m, k), both=True)
    add("layer scale", lambda x, y, g: x + f.gelu(y) * g, s.rows, s.rows, row, both=True)
    add("norm, scale, shift", _modulated(torch), s.rows, row, row, both=True)
    add("squeeze and excite", _squeezed(torch), s.image, (s.image[1] // 4, s.image[1]), (s.image[1], s.image[1] // 4))
    add("batch norm, relu, add", _batch_normed(torch), s.image, s.image, (s.image[1],), (s.image[1],), both=True)
    add(
        "RMS norm by hand",
        lambda x, w: x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * w,
        s.rows,
        row,
        both=True,
    )
    add("group-wise softmax", lambda x: x.unflatten(-1, (8, -1)).softmax(-1).flatten(-2) * 2, s.rows, both=True)
    add("L2 norm of q and k", lambda q, k: f.normalize(q, dim=-1) * f.normalize(k, dim=-1), s.heads, s.heads, both=True)
    add("time embedding", _times(torch), Drawn((s.rows[0],), "unit"))
    add(
        "token and place",
        lambda i, w, p: f.embedding(i, w) + p[: len(i)],
        Drawn((m,), "places", s.table[0]),
        s.table,
        (m, s.table[1]),
        both=True,
    )


def _modulated(torch: Any) -> Callable[..., Any]:
    def modulated(x: Any, scale: Any, shift: Any) -> Any:
        return torch.nn.functional.layer_norm(x, x.shape[-1:]) * (1 + scale) + shift

    return modulated


def _squeezed(torch: Any) -> Callable[..., Any]:
    def squeezed(x: Any, w: Any, v: Any) -> Any:
        gates = ((x.mean((2, 3)) @ w.t()).relu() @ v.t()).sigmoid()
        return x * gates[:, :, None, None]

    return squeezed


def _batch_normed(torch: Any) -> Callable[..., Any]:
    def normed(x: Any, y: Any, w: Any, b: Any) -> Any:
        return (torch.nn.functional.batch_norm(x, None, None, w, b, True) + y).relu()

    return normed


def _times(torch: Any) -> Callable[..., Any]:
    def times(t: Any) -> Any:
        rates = torch.exp(torch.arange(128, device=t.device) * (-9.21 / 128))
        angles = 1000 * t[:, None].float() * rates
        return torch.cat((angles.cos(), angles.sin()), -1).to(t.dtype)

    return times


def _attentions(torch: Any, s: Sizes, add: Add) -> None:
    """Add parts of attention."""
    b, h, n, d = s.heads
    scores, half = (b, h, n, n), (n, d // 2)
    mask = Drawn((b, 1, 1, n), "mask")
    add("rotary, interleaved", _interleaved(torch), s.heads, half, half, both=True)
    add("rotary, rotated halves", _rotated(torch), s.heads, (n, d), (n, d), both=True)
    add("rotary and cache", _cached(torch), s.heads, (n, d), (b, h, 2 * n, d))
    add("masked softmax", lambda x, m: (x * 0.125).masked_fill(m, float("-inf")).softmax(-1), scores, mask, both=True)
    add("causal softmax", lambda x: (x * 0.125 + x.new_full((n, n), float("-inf")).triu(1)).softmax(-1), scores)
    add("ALiBi softmax", _alibi(torch), scores, both=True)
    add("attention by hand", _by_hand(torch), (b, h, n // 2, d), (b, h, n // 2, d), (b, h, n // 2, d), both=True)
    add("linear attention", _linear(torch), s.heads, s.heads, s.heads, both=True)
    add(
        "heads of one product",
        lambda x: x.unflatten(-1, (3, h, -1)).permute(2, 0, 3, 1, 4).contiguous() * 0.5,
        (b, n, 3 * h * d),
    )
    add("capped softmax", lambda x: (30 * torch.tanh(x / 30)).softmax(-1), scores, both=True)


def _interleaved(torch: Any) -> Callable[..., Any]:
    def interleaved(x: Any, cos: Any, sin: Any) -> Any:
        even, odd = x[..., ::2], x[..., 1::2]
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)

    return interleaved


def _rotated(torch: Any) -> Callable[..., Any]:
    def rotated(x: Any, cos: Any, sin: Any) -> Any:
        left, right = x.chunk(2, -1)
        return x * cos + torch.cat((-right, left), -1) * sin

    return rotated


def _cached(torch: Any) -> Callable[..., Any]:
    turn = _rotated(torch)

    def cached(x: Any, cos: Any, cache: Any) -> Any:
        return torch.cat((cache[:, :, : x.shape[2]], turn(x, cos, cos)), 2)

    return cached


def _alibi(torch: Any) -> Callable[..., Any]:
    def alibi(x: Any) -> Any:
        at = torch.arange(x.shape[-1], device=x.device)
        slopes = torch.exp2(-0.5 * torch.arange(1, x.shape[1] + 1, device=x.device)).to(x.dtype)
        return (x + slopes[:, None, None] * (at[None] - at[:, None])).softmax(-1)

    return alibi


def _by_hand(torch: Any) -> Callable[..., Any]:
    def attention(q: Any, k: Any, v: Any) -> Any:
        hidden = torch.ones(q.shape[-2], k.shape[-2], device=q.device, dtype=torch.bool).triu(1)
        weights = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).masked_fill(hidden, float("-inf")).softmax(-1)
        return torch.nn.functional.dropout(weights, 0.1, False) @ v

    return attention


def _linear(torch: Any) -> Callable[..., Any]:
    def linear(q: Any, k: Any, v: Any) -> Any:
        q, k = torch.nn.functional.elu(q) + 1, torch.nn.functional.elu(k) + 1
        norm = (q * k.sum(-2, keepdim=True)).sum(-1, keepdim=True)
        return q @ (k.transpose(-1, -2) @ v) / (norm + 1e-6)

    return linear


def _training(torch: Any, s: Sizes, add: Add) -> None:
    """Add losses by hand, and steps of training."""
    f = torch.nn.functional
    many = (s.rows[0] // 4, s.rows[1] * 4)
    classes = Drawn((many[0],), "places", many[1])
    add("focal loss", _focal(torch), s.wide, Drawn(s.wide, "mask"), both=True)
    add("dice loss", _dice(torch), s.image, Drawn(s.image, "mask"), both=True)
    add("contrast", _contrast(torch), (s.rows[1], s.rows[1] // 2), (s.rows[1], s.rows[1] // 2), both=True)
    add("distillation", _distilled(torch), many, many, both=True)
    add("smoothed labels by hand", _smoothed(torch), many, classes, both=True)
    add("z-loss", lambda x: x.logsumexp(-1).square().mean() * 1e-4, many, both=True)
    add(
        "huber by hand",
        lambda x, y: torch.where((x - y).abs() < 1, 0.5 * (x - y) ** 2, (x - y).abs() - 0.5).mean(),
        s.wide,
        s.wide,
        both=True,
    )
    add(
        "bce by hand",
        lambda x, y: (x.clamp(min=0) - x * y + torch.log1p(torch.exp(-x.abs()))).mean(),
        s.wide,
        Drawn(s.wide, "unit"),
        both=True,
    )
    add("KL of normals", lambda m, v: -0.5 * (1 + v - m * m - v.exp()).sum(-1).mean(), s.rows, s.rows, both=True)
    add("EMA", lambda x, y: x * 0.999 + y * 0.001, s.wide, s.wide)
    add("Adam by hand", _adam(torch), s.wide, s.wide, s.wide, Drawn(s.wide, "unit"))
    add(
        "clipped gradient",
        lambda x, y: (lambda n: (x / n, y / n))((x.norm().square() + y.norm().square()).sqrt().clamp(min=1)),
        s.wide,
        s.rows,
    )
    add("int8 and back", _quantised(torch), s.wide)
    add(
        "masked mean",
        lambda x, m: (x * m[..., None]).sum(1) / m.sum(1, keepdim=True).clamp(min=1),
        s.square,
        Drawn(s.square[:2], "mask"),
        both=True,
    )
    add("accuracy", lambda x, i: (x.argmax(-1) == i).float().mean(), many, classes)
    add("loss and perplexity", lambda x, i: f.cross_entropy(x, i).exp(), many, classes, both=True)


def _focal(torch: Any) -> Callable[..., Any]:
    def focal(x: Any, is_one: Any) -> Any:
        loss = torch.nn.functional.binary_cross_entropy_with_logits(x, is_one.to(x.dtype), reduction="none")
        right = torch.where(is_one, x.sigmoid(), 1 - x.sigmoid())
        return (0.25 * (1 - right) ** 2 * loss).mean()

    return focal


def _dice(torch: Any) -> Callable[..., Any]:
    def dice(x: Any, is_one: Any) -> Any:
        p, y = x.sigmoid().flatten(1), is_one.flatten(1).to(x.dtype)
        return (1 - (2 * (p * y).sum(1) + 1) / (p.sum(1) + y.sum(1) + 1)).mean()

    return dice


def _contrast(torch: Any) -> Callable[..., Any]:
    f = torch.nn.functional

    def contrast(x: Any, y: Any) -> Any:
        alike = f.normalize(x, dim=-1) @ f.normalize(y, dim=-1).t() / 0.07
        at = torch.arange(len(x), device=x.device)
        return (f.cross_entropy(alike, at) + f.cross_entropy(alike.t(), at)) / 2

    return contrast


def _distilled(torch: Any) -> Callable[..., Any]:
    f = torch.nn.functional

    def distilled(x: Any, y: Any) -> Any:
        return f.kl_div((x / 2).log_softmax(-1), (y / 2).log_softmax(-1), reduction="batchmean", log_target=True) * 4

    return distilled


def _smoothed(torch: Any) -> Callable[..., Any]:
    def smoothed(x: Any, classes: Any) -> Any:
        log = x.log_softmax(-1)
        return (-0.9 * log.gather(1, classes[:, None]).squeeze(1) - 0.1 * log.mean(-1)).mean()

    return smoothed


def _adam(torch: Any) -> Callable[..., Any]:
    def adam(x: Any, slope: Any, mean: Any, square: Any) -> Any:
        mean = 0.9 * mean + 0.1 * slope
        square = 0.999 * square + 0.001 * slope * slope
        return x * (1 - 1e-5) - 1e-3 * (mean / 0.1) / ((square / 0.001).sqrt() + 1e-8), mean, square

    return adam


def _quantised(torch: Any) -> Callable[..., Any]:
    def quantised(x: Any) -> Any:
        scale = x.abs().amax(-1, keepdim=True) / 127
        return (x / scale).round().clamp(-128, 127).to(torch.int8).to(x.dtype) * scale

    return quantised


def _vision(torch: Any, s: Sizes, add: Add) -> None:
    """Add steps of work on images and boxes."""
    f = torch.nn.functional
    channels, boxes = (s.image[1],), Drawn((s.points[0], 4), "unit")
    add("gaussian blur", _blur(torch), s.image, both=True)
    add("normalised image, pool", _normalised(torch), s.image, channels, Drawn(channels, "unit"))
    add("patches", _patches(torch), s.image, both=True)
    add("windows and back", _windows(torch), s.image, both=True)
    add("shuffle, relu", lambda x: x.unflatten(1, (4, -1)).transpose(1, 2).flatten(1, 2).relu(), s.image, both=True)
    add("IoU of boxes", _overlaps(torch), boxes, boxes)
    add("total variation", lambda x: x.diff(dim=2).abs().mean() + x.diff(dim=3).abs().mean(), s.image, both=True)
    add(
        "grey, contrast",
        lambda x: (lambda g: (g - g.mean((1, 2), True)) * 1.3 + 0.5)(x[:, :3].mean(1)).clamp(0, 1),
        s.image,
    )
    add("up and sum", lambda x: f.interpolate(f.avg_pool2d(x, 2), scale_factor=2, mode="bilinear") + x, s.image)
    add("soft places", _soft_places(torch), s.image, both=True)


def _blur(torch: Any) -> Callable[..., Any]:
    def blur(x: Any) -> Any:
        x = torch.nn.functional.pad(x, (1, 1, 1, 1), mode="reflect")
        x = (x[:, :, :-2] + 2 * x[:, :, 1:-1] + x[:, :, 2:]) / 4
        return (x[..., :-2] + 2 * x[..., 1:-1] + x[..., 2:]) / 4

    return blur


def _windows(torch: Any) -> Callable[..., Any]:
    def windows(x: Any) -> Any:
        b, c, h, w = x.shape
        apart = x.view(b, c, h // 7, 7, w // 7, 7).permute(0, 2, 4, 3, 5, 1).reshape(-1, 49, c)
        apart = apart.roll(3, 1) * apart.softmax(-1)
        return apart.view(b, h // 7, w // 7, 7, 7, c).permute(0, 5, 1, 3, 2, 4).reshape(b, c, h, w)

    return windows


def _overlaps(torch: Any) -> Callable[..., Any]:
    def overlaps(a: Any, b: Any) -> Any:
        a, b = (torch.cat((one[:, :2], one[:, :2] + one[:, 2:]), 1) for one in (a, b))
        low, high = torch.maximum(a[:, None, :2], b[None, :, :2]), torch.minimum(a[:, None, 2:], b[None, :, 2:])
        common = (high - low).clamp(min=0).prod(-1)
        areas = [(one[:, 2:] - one[:, :2]).prod(-1) for one in (a, b)]
        return common / (areas[0][:, None] + areas[1][None] - common)

    return overlaps


def _soft_places(torch: Any) -> Callable[..., Any]:
    def places(x: Any) -> Any:
        weights = x.flatten(2).softmax(-1).view_as(x)
        across, down = (torch.linspace(-1, 1, size, device=x.device).to(x.dtype) for size in x.shape[:1:-1])
        return torch.stack(((weights.sum(2) * across).sum(-1), (weights.sum(3) * down).sum(-1)), -1)

    return places


def _sets(torch: Any, s: Sizes, add: Add) -> None:
    """Add work on sets, graphs and mixtures of experts."""
    f = torch.nn.functional
    to = Drawn((s.rows[0],), "places", s.rows[0] // 8)
    gates, biases = (s.rows[0] * 4, 64), (64,)
    add("sums of segments", lambda x, i: x.new_zeros(len(x) // 8, x.shape[1]).index_add(0, i, x), s.rows, to, both=True)
    add("means of segments", _segment_means(torch), s.rows, to, both=True)
    add(
        "messages of a graph", lambda x, i, j: torch.zeros_like(x).index_add(0, i, (x[j] - x[i]).relu()), s.rows, to, to
    )
    add("gates of experts", _gated(torch), gates, biases, both=True)
    add(
        "cosines of all pairs",
        lambda x, y: f.normalize(x, dim=-1) @ f.normalize(y, dim=-1).t(),
        s.points,
        s.points,
        both=True,
    )
    add("softmax of distances", lambda x, y: (-torch.cdist(x, y)).softmax(-1), s.points, s.points, both=True)
    add("RBF kernel", _radial(torch), s.points, s.points, both=True)
    add("nearest centre", lambda x, y: torch.cdist(x, y).argmin(-1), s.points, (128, s.points[1]))
    add("triplets, hardest", _hardest(torch), s.points)


def _segment_means(torch: Any) -> Callable[..., Any]:
    def means(x: Any, to: Any) -> Any:
        sums = x.new_zeros(len(x) // 8, x.shape[1]).index_add(0, to, x)
        counts = x.new_zeros(len(x) // 8).index_add(0, to, x.new_ones(len(x)))
        return sums / counts.clamp(min=1)[:, None]

    return means


def _gated(torch: Any) -> Callable[..., Any]:
    def gated(x: Any, bias: Any) -> Any:
        scores = (x.float() + 1.2345 * bias.float()).softmax(-1)  # of which no two are equal, but by rounding
        best, at = scores.topk(2, -1)
        parts = torch.zeros_like(scores).scatter(-1, at, best / best.sum(-1, keepdim=True))
        return parts.square().to(x.dtype)  # the sum of the parts is 1, which has no gradient

    return gated


def _numbers(torch: Any, s: Sizes, add: Add) -> None:
    """Add numerical recipes."""
    add("log of a sum by hand", _log_sum(torch), s.rows, both=True)
    add(
        "polynomial by Horner",
        lambda x: ((((x * 0.1 + 0.2) * x - 0.3) * x + 0.4) * x - 0.5) * x + 0.6,
        s.wide,
        both=True,
    )
    add("powers of features", lambda x: torch.cat((x, x**2, x**3), -1), s.rows, both=True)
    add("standard columns", lambda x: (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt(), s.rows, both=True)
    add("cumulative softmax", lambda x: (lambda e: e / e.cumsum(-1))((x - x.amax(-1, True)).exp()), s.rows, both=True)
    add("smoothed series", _smoothed_series(torch), (s.rows[0], 256))
    add("discounted returns", lambda x: x.flip(-1).cumsum(-1).flip(-1).mul(0.99).tanh(), s.rows, both=True)
    add(
        "two moments",
        lambda x: (lambda m: ((x - m).square().mean(-1), (x - m).pow(3).mean(-1)))(x.mean(-1, True)),
        s.rows,
    )
    add(
        "z scores, clipped",
        lambda x: ((x - x.mean(-1, True)) / x.std(-1, keepdim=True)).clamp(-3, 3),
        s.rows,
        both=True,
    )
    add("scaled to unit range", lambda x: (lambda a, b: (x - a) / (b - a))(x.amin(-1, True), x.amax(-1, True)), s.rows)
    add("entropy of a softmax", lambda x: torch.special.entr(x.softmax(-1)).sum(-1), s.rows, both=True)
    add("top quarter only", lambda x: x * (x >= x.kthvalue(3 * x.shape[-1] // 4, -1, True).values), s.rows)
    add("places as sines", _sines(torch), s.rows)
    add(
        "polar and back",
        lambda x, y: (lambda r, a: r * (a + 0.1).cos())(torch.hypot(x, y), torch.atan2(y, x)),
        s.wide,
        s.wide,
        both=True,
    )
    add("GELU by hand", lambda x: 0.5 * x * (1 + torch.tanh(0.7978846 * (x + 0.044715 * x**3))), s.wide, both=True)
    add("mixture of normals", _mixed(torch), (s.rows[0], 64), (32,), Drawn((32,), "unit"), both=True)


def _log_sum(torch: Any) -> Callable[..., Any]:
    def log_sum(x: Any) -> Any:
        most = x.amax(-1, keepdim=True).detach()
        return ((x - most).exp().sum(-1, keepdim=True).log() + most).squeeze(-1)

    return log_sum


def _smoothed_series(torch: Any) -> Callable[..., Any]:
    def smoothed(x: Any) -> Any:
        weights = 0.95 ** torch.arange(x.shape[-1], device=x.device, dtype=x.dtype)
        return 0.05 * (x / weights).cumsum(-1) * weights

    return smoothed


def _sines(torch: Any) -> Callable[..., Any]:
    def sines(x: Any) -> Any:
        n, width = x.shape
        rates = torch.exp(torch.arange(0, width, 2, device=x.device) * (-9.21 / width))
        angles = torch.arange(n, device=x.device)[:, None] * rates
        return x + torch.stack((angles.sin(), angles.cos()), -1).flatten(1).to(x.dtype)

    return sines


def _normalised(torch: Any) -> Callable[..., Any]:
    def normalised(x: Any, mean: Any, deviation: Any) -> Any:
        x = (x - mean[:, None, None]) / (deviation[:, None, None] + 1)
        return torch.nn.functional.max_pool2d(x.relu(), 2)

    return normalised


def _patches(torch: Any) -> Callable[..., Any]:
    def patches(x: Any) -> Any:
        b, c, h, w = x.shape
        apart = x.view(b, c, h // 7, 7, w // 7, 7).permute(0, 2, 4, 1, 3, 5)
        return apart.reshape(b, h * w // 49, 49 * c) * 2

    return patches


def _radial(torch: Any) -> Callable[..., Any]:
    def radial(x: Any, y: Any) -> Any:
        apart = (x * x).sum(-1)[:, None] + (y * y).sum(-1) - 2 * x @ y.t()
        return torch.exp(-0.05 * apart)

    return radial


def _hardest(torch: Any) -> Callable[..., Any]:
    def hardest(x: Any) -> Any:
        far, near = torch.cdist(x, x).amax(1), torch.cdist(x, x.roll(1, 0)).amin(1)
        return (far - near + 0.2).relu().mean()

    return hardest


def _mixed(torch: Any) -> Callable[..., Any]:
    def mixed(x: Any, means: Any, rest: Any) -> Any:
        deviations = rest + 0.5
        return (-0.5 * ((x[..., None] - means) / deviations) ** 2 - deviations.log()).logsumexp(-1)

    return mixed
