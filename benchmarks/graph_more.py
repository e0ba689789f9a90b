"""More operators that `graph.py` measures, beside those of `graph_ops.py`: families that programs call less often."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from graph_ops import IMAGE, ODD, ROWS, WIDE, wrapped

Shape = tuple[int, ...]


class Drawn(NamedTuple):
    """An operand that is not of normal numbers.

    Args:
        shape: its shape.
        kind: `unit` for numbers between 0 and 1, `places` for integers below a limit, `mask` for truth values.
        limit: of places.
    """

    shape: Shape
    kind: str
    limit: int = 0


class Sizes(NamedTuple):
    """Shapes of operands: those that are measured, or others that a check takes."""

    wide: Shape = WIDE
    odd: Shape = ODD
    image: Shape = IMAGE
    rows: Shape = ROWS
    signal: Shape = (32, 64, 8192)
    volume: Shape = (8, 16, 32, 32, 32)
    heads: Shape = (8, 16, 1024, 64)
    square: Shape = (64, 256, 256)
    table: Shape = (32000, 512)
    points: Shape = (2048, 64)


Work = tuple[Callable[..., Any], tuple[Any, ...], bool]
"""A function, its operands, and whether it is differentiated."""
Add = Callable[..., None]


def adding_to(found: dict[str, Work], kind: str) -> Add:
    """Return what adds a work of a kind, and where it says so its form that is differentiated."""

    def add(name: str, function: Callable[..., Any], *operands: Any, both: bool = False) -> None:
        found[f"{kind}: {name}"] = (wrapped(function), operands, False)
        if both:
            found[f"{kind}: {name}, both ways"] = (wrapped(function), operands, True)

    return add


def more_ops(torch: Any, sizes: Sizes | None = None) -> dict[str, Work]:
    """Return single operators."""
    found: dict[str, Work] = {}
    for family in (_points, _pairs, _reductions, _orders, _images, _places, _movements, _products, _losses, _norms):
        family(torch, sizes or Sizes(), adding_to(found, "op"))
    return found


def _points(torch: Any, s: Sizes, add: Add) -> None:
    """Add functions of single elements."""
    f = torch.nn.functional
    for name in ("acos", "asin", "atanh", "erfinv", "logit", "log2", "log10", "log1p", "lgamma", "digamma"):
        add(name, getattr(torch, name), Drawn(s.wide, "unit"))
    for name in ("sinh", "cosh", "asinh", "exp2", "expm1", "sinc", "erfc", "frac", "sign", "round", "nan_to_num"):
        add(name, getattr(torch, name), s.wide)
    for name in (
        "selu",
        "celu",
        "hardtanh",
        "logsigmoid",
        "softsign",
        "tanhshrink",
        "hardshrink",
        "softshrink",
        "relu6",
    ):
        add(name, getattr(f, name), s.wide)
    add("acosh", lambda x: (x + 1.5).acosh(), Drawn(s.odd, "unit"))
    add("tan", lambda x: x.tan(), Drawn(s.odd, "unit"))
    add("threshold", lambda x: f.threshold(x, 0.1, -1.0), s.odd)
    add("glu", lambda x: f.glu(x, -1), s.wide, both=True)
    add("prelu", f.prelu, s.image, (s.image[1],), both=True)
    add("dropout, eval", lambda x: f.dropout(x, 0.1, training=False) * 2, s.wide)
    add("casts", lambda x: x.half().float().to(torch.int32), s.wide)
    add("bitwise", lambda x: (x ^ 21) & 15 | x << 2, Drawn(s.wide, "places", 1000))
    add("whole quotients", lambda x: x // 7 + x % 7, Drawn(s.wide, "places", 1000))
    add("i0", torch.special.i0, s.odd)


def _pairs(torch: Any, s: Sizes, add: Add) -> None:
    """Add functions of two elements and more."""
    for name in ("atan2", "hypot", "maximum", "logaddexp", "copysign"):
        add(name, getattr(torch, name), s.wide, s.wide, both=name != "copysign")
    for name in ("fmod", "remainder", "floor_divide"):
        add(name, partial(_shifted, getattr(torch, name)), s.wide, Drawn(s.wide, "unit"))
    add("xlogy", torch.xlogy, s.wide, Drawn(s.wide, "unit"), both=True)
    add("pow of two", torch.pow, Drawn(s.wide, "unit"), s.wide, both=True)
    add("heaviside", torch.heaviside, s.wide, s.wide)
    add("isclose", torch.isclose, s.wide, s.wide)
    add("clamp by tensors", lambda x, a: torch.clamp(x, a - 1, a + 1), s.wide, (s.wide[-1],), both=True)
    add("addcdiv", lambda x, y, z: torch.addcdiv(x, y, z + 1, value=0.5), s.wide, s.wide, Drawn(s.wide, "unit"))
    add("lerp by a tensor", torch.lerp, s.wide, s.wide, Drawn((s.wide[0], 1), "unit"), both=True)
    add("where with a number", lambda x: torch.where(x > 0.5, x, -1.0), s.wide)
    add("masked fill", lambda x, m: x.masked_fill(m, float("-inf")), s.wide, Drawn(s.wide, "mask"))
    add("outer", torch.outer, (s.wide[0],), (s.wide[1],), both=True)


def _shifted(function: Any, x: Any, y: Any) -> Any:
    return function(x, y + 0.25)


def _reductions(torch: Any, s: Sizes, add: Add) -> None:
    """Add reductions and scans."""
    for name in ("cumprod", "logcumsumexp", "prod", "std", "aminmax", "argmin", "count_nonzero", "nansum"):
        add(f"{name} of rows", partial(getattr(torch, name), dim=-1), s.rows, both=name in ("cumprod", "prod", "std"))
        add(f"{name} of columns", partial(getattr(torch, name), dim=0), s.rows)
    for name in ("cummax", "cummin", "min"):
        add(f"{name} of rows", partial(getattr(torch, name), dim=-1), s.rows)
    add("cumsum of columns", lambda x: x.cumsum(0), s.rows, both=True)
    add("cumsum, backwards", lambda x: x.flip(-1).cumsum(-1).flip(-1), s.rows)
    add("diff", lambda x: x.diff(dim=-1), s.rows, both=True)
    add("var and mean", lambda x: torch.var_mean(x, -1), s.rows)
    add("any and all", lambda x: ((x > 3).any(-1), (x > -3).all(-1)), s.rows)
    add("largest norm", lambda x: torch.linalg.vector_norm(x, float("inf"), -1), s.rows)
    add("L1 norm", lambda x: x.norm(1, -1), s.rows, both=True)
    add("L3 norm", lambda x: x.norm(3, -1), s.rows, both=True)
    add("norm of all", lambda x: x.norm(), s.wide, both=True)
    add("renorm", lambda x: torch.renorm(x, 2, 0, 5.0), s.rows)
    add("trace", torch.trace, s.wide)
    add("covariance", torch.cov, s.points)
    add("correlation", torch.corrcoef, s.points)


def _orders(torch: Any, s: Sizes, add: Add) -> None:
    """Add sorts and what follows from them."""
    rows = (s.rows[0] // 4, s.rows[1])
    add("sort", lambda x: x.sort(-1).values, rows, both=True)
    add("argsort", lambda x: x.argsort(stable=True, dim=-1), rows)
    add("top 8", lambda x: x.topk(8, -1).values, rows, both=True)
    add("median", lambda x: x.median(-1).values, rows)
    add("k-th value", lambda x: x.kthvalue(5, -1).values, rows)
    add("mode", lambda x: (x == x.mode(-1, True).values).sum(-1), Drawn(rows, "places", 50))
    add("quantile", lambda x: x.float().quantile(0.3, -1), rows)
    add("searchsorted", lambda x, y: torch.searchsorted(y.sort().values, x), rows, (256,))
    add("bucketize", lambda x: torch.bucketize(x, torch.linspace(-3, 3, 64, device=x.device, dtype=x.dtype)), s.rows)
    add("histogram", lambda x: torch.histc(x.float(), 64, -4, 4), s.rows)


def _images(torch: Any, s: Sizes, add: Add) -> None:
    """Add operators of images, signals and volumes."""
    f = torch.nn.functional
    for mode in ("bilinear", "bicubic"):
        for name, align, scale in (("up", False, 2), ("corners", True, 2), ("down", False, 0.5)):
            function = partial(f.interpolate, scale_factor=scale, mode=mode, align_corners=align)
            add(f"{mode}, {name}", function, s.image, both=(mode, name) == ("bilinear", "up"))
    add("nearest, down", lambda x: f.interpolate(x, scale_factor=0.5), s.image)
    add("pixel shuffle", lambda x: f.pixel_shuffle(x, 2), s.image, both=True)
    add("pixel unshuffle", lambda x: f.pixel_unshuffle(x, 2), s.image)
    add("unfold", lambda x: f.unfold(x, 3, padding=1), (s.image[0] // 2, *s.image[1:]), both=True)
    add("fold", lambda x: f.fold(f.unfold(x, 2, stride=2), x.shape[-2:], 2, stride=2), s.image)
    for size in (1, 7):
        add(f"adaptive pool to {size}", partial(f.adaptive_avg_pool2d, output_size=size), s.image, both=True)
    add("max pool, 3 by 3", lambda x: f.max_pool2d(x, 3, 2, 1), s.image, both=True)
    add("max pool of signals", lambda x: f.max_pool1d(x, 3, 2), s.signal)
    add("max pool of volumes", lambda x: f.max_pool3d(x, 2), s.volume)
    add("average pool of volumes", lambda x: f.avg_pool3d(x, 2), s.volume)
    add("power pool", lambda x: f.lp_pool2d(x, 2, 2), s.image)
    for mode in ("reflect", "replicate", "circular"):
        add(f"{mode} pad", partial(f.pad, pad=(3, 3, 2, 2), mode=mode), s.image, both=True)
    add("grid sample", _sampled(torch), s.image, (s.image[0], 2, 3))
    add("channel shuffle", lambda x: f.channel_shuffle(x, 4), s.image)
    add("local response", lambda x: f.local_response_norm(x, 5), s.image)


def _sampled(torch: Any) -> Callable[..., Any]:
    f = torch.nn.functional

    def sampled(x: Any, theta: Any) -> Any:
        return f.grid_sample(x, f.affine_grid(theta, list(x.shape), align_corners=False), align_corners=False)

    return sampled


def _places(torch: Any, s: Sizes, add: Add) -> None:
    """Add operators that take from places, or put there."""
    f = torch.nn.functional
    count = s.table[0]
    words, places = Drawn((s.rows[0],), "places", count), Drawn(s.rows, "places", s.rows[1])
    some = Drawn((s.rows[0],), "places", s.rows[0])
    add("embedding", lambda i, w: f.embedding(i, w), words, s.table, both=True)
    bags = Drawn((s.rows[0] // 8, 8), "places", count)
    add("embedding bag", lambda i, w: f.embedding_bag(i, w, mode="mean"), bags, s.table, both=True)
    add("one hot", lambda i: f.one_hot(i, 512).float(), words if count <= 512 else Drawn(words.shape, "places", 512))
    add("index select", lambda x, i: x.index_select(0, i), s.rows, some, both=True)
    add("index add", lambda x, i, y: x.index_add(0, i, y), s.rows, some, s.rows)
    add(
        "index copy", lambda x, y: x.index_copy(0, torch.arange(len(x) - 1, -1, -1, device=x.device), y), s.rows, s.rows
    )
    add("index put", lambda x, i, y: x.index_put((i,), y, accumulate=True), s.rows, some, s.rows)
    add(
        "scatter",
        lambda x, y: x.scatter(1, torch.arange(7, device=x.device).expand(len(x), 7), y[:, :7]),
        s.rows,
        s.rows,
    )
    add("scatter add", lambda x, i, y: x.scatter_add(1, i, y), s.rows, places, s.rows, both=True)
    add("scatter, largest", lambda x, i, y: x.scatter_reduce(1, i, y, "amax"), s.rows, places, s.rows)
    add("gather, random", lambda x, i: x.gather(1, i), s.rows, places, both=True)
    add("take along", lambda x: x.take_along_dim(x.argsort(stable=True, dim=-1), -1), (s.rows[0] // 4, s.rows[1]))
    add("rows by a list", lambda x, i: x[i], s.rows, some)
    add("masked scatter", lambda x, m, y: x.masked_scatter(m, y), s.rows, Drawn(s.rows, "mask"), s.rows)


def _movements(torch: Any, s: Sizes, add: Add) -> None:
    """Add operators that move elements."""
    d = s.heads[-1]
    add("rotated by 90 degrees", lambda x: x.rot90(1, (2, 3)).contiguous(), s.image)
    add("mesh", lambda x, y: torch.stack(torch.meshgrid(x, y, indexing="ij")), (s.wide[0],), (s.wide[1],))
    add("repeated elements", lambda x: x.repeat_interleave(3, 0), s.rows, both=True)
    add("tile", lambda x: x.tile(1, 3), s.rows, both=True)
    add("roll of images", lambda x: x.roll((3, -2), (2, 3)), s.image)
    add("moved dimension", lambda x: x.movedim(1, -1).contiguous(), s.heads)
    add("split and cat", lambda x: torch.cat(x.split(d // 2, -1)[::-1], -1), s.heads, both=True)
    add("expand", lambda x: x[:, None].expand(-1, 4, -1).reshape(4 * len(x), -1), s.rows, both=True)
    add("strided slice", lambda x: x[:, ::2, 1::2].contiguous(), s.heads, both=True)
    add("diagonal", lambda x: x.diagonal(dim1=-2, dim2=-1).contiguous(), s.square)
    add("diagonal matrices", torch.diag_embed, (s.square[0] * 4, s.square[1]))
    add("triu", lambda x: x.triu(1), s.square, both=True)
    add("block diagonal", lambda x, y: torch.block_diag(x, y), s.points, s.points)
    add("windows of signals", lambda x: x.unfold(-1, 16, 8).contiguous(), s.signal, both=True)


def _products(torch: Any, s: Sizes, add: Add) -> None:
    """Add products."""
    n, k = s.wide[0] // 2, s.wide[1] // 2
    batch, m, d = s.square
    add("matrix by vector", torch.mv, s.wide, (s.wide[1],), both=True)
    add("dot", torch.dot, (s.wide[0] * 64,), (s.wide[0] * 64,))
    add("kron", torch.kron, s.points, (32, 16))
    add("distances", torch.cdist, s.points, s.points, both=True)
    add("cross product", lambda x, y: torch.linalg.cross(x, y, dim=1), (s.wide[0] * 64, 3), (s.wide[0] * 64, 3))
    add("addmm", torch.addmm, (k,), (n, k), (k, k), both=True)
    add("baddbmm", lambda x, y, z: torch.baddbmm(x, y, z, beta=0.5), s.square, (batch, m, d), (batch, d, d))
    add("tensordot", lambda x, y: torch.tensordot(x, y, ([1, 2], [0, 1])), s.square, (m, d, 64))
    add("einsum of heads", lambda x, y: torch.einsum("bhnd,bhmd->bhnm", x, y), s.heads, s.heads)
    add("einsum with a turn", lambda x, y: torch.einsum("bij,kj->ibk", x, y), s.square, (128, d), both=True)
    add("bilinear", lambda x, y, w: torch.nn.functional.bilinear(x, y, w), s.points, s.points, (8, *[s.points[1]] * 2))
    add("matrix power", lambda x: torch.linalg.matrix_power(x * 0.05, 3), s.square)
    add("products of vectors", lambda x, y: torch.linalg.vecdot(x, y), s.rows, s.rows, both=True)


def _losses(torch: Any, s: Sizes, add: Add) -> None:
    """Add losses."""
    f = torch.nn.functional
    unit, many = Drawn(s.wide, "unit"), (s.rows[0] // 4, s.rows[1] * 4)
    classes = Drawn((many[0],), "places", many[1])
    signs = Drawn((s.rows[0],), "places", 2)
    add("bce", f.binary_cross_entropy, unit, unit, both=True)
    add("bce with logits", f.binary_cross_entropy_with_logits, s.wide, unit, both=True)
    add("kl_div", lambda x, y: f.kl_div(x, y, reduction="batchmean"), s.wide, unit)
    add("nll", f.nll_loss, many, classes)
    add("huber", f.huber_loss, s.wide, s.wide, both=True)
    add("poisson nll", f.poisson_nll_loss, s.wide, unit)
    add("gaussian nll", f.gaussian_nll_loss, s.wide, s.wide, unit, both=True)
    add("soft margin", lambda x, y: f.soft_margin_loss(x, y.sign()), s.wide, s.wide)
    add("multilabel soft margin", lambda x, y: f.multilabel_soft_margin_loss(x, y), s.rows, Drawn(s.rows, "unit"))
    add("hinge embedding", lambda x, i: f.hinge_embedding_loss(x, i * 2 - 1), s.rows, Drawn(s.rows, "places", 2))
    add("margin ranking", lambda x, y: f.margin_ranking_loss(x, y, (x - y).sign(), 0.1), s.wide, s.wide)
    add("triplet", f.triplet_margin_loss, s.rows, s.rows, s.rows, both=True)
    add("cosine embedding", lambda x, y, i: f.cosine_embedding_loss(x, y, i * 2 - 1), s.rows, s.rows, signs)
    add("multi margin", f.multi_margin_loss, many, classes)
    smooth = partial(f.cross_entropy, label_smoothing=0.1)
    add("cross entropy, smoothed", smooth, many, classes, both=True)
    add("cross entropy, weighted", lambda x, i, w: f.cross_entropy(x, i, w), many, classes, Drawn((many[1],), "unit"))
    add("cross entropy, soft", lambda x, y: f.cross_entropy(x, y.softmax(-1)), many, many, both=True)
    ignored = Drawn((s.image[0], *s.image[2:]), "places", s.image[1])
    add("cross entropy of images", partial(f.cross_entropy, ignore_index=3), s.image, ignored, both=True)


def _norms(torch: Any, s: Sizes, add: Add) -> None:
    """Add norms."""
    f = torch.nn.functional
    channels = (s.image[1],)
    variances = Drawn(channels, "unit")
    add("instance norm", lambda x, w, b: f.instance_norm(x, None, None, w, b), s.image, channels, channels, both=True)
    add("batch norm, eval", lambda x, m, v: f.batch_norm(x, m, v), s.image, channels, variances)
    add("weight norm", lambda x, g: torch._weight_norm(x, g, 0), s.rows, (s.rows[0], 1), both=True)
    add("norm of images", lambda x: f.layer_norm(x, x.shape[1:]), s.image, both=True)
    add("softmin", lambda x: f.softmin(x, -1), s.rows, both=True)
    add("softmax of images", lambda x: x.softmax(1), s.image, both=True)
