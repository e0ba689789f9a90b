"""Networks of points, graphs, tables and pairs, and the losses that people write for them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class KAN(nn.Module):
    """A layer of B-splines beside a linear one."""

    def __init__(self, ins: int, outs: int, knots: int = 5, order: int = 3):
        super().__init__()
        grid = torch.arange(-order, knots + order + 1) * (2 / knots) - 1.0
        self.register_buffer("grid", grid.expand(ins, -1).contiguous())
        self.base, self.order = nn.Parameter(torch.randn(outs, ins) * 0.3), order
        self.weight = nn.Parameter(torch.randn(outs, ins, knots + order) * 0.1)
        self.scale = nn.Parameter(torch.ones(outs, ins))

    def splines(self, x: Tensor) -> Tensor:
        """Return the basis (batch, ins, knots + order)."""
        x, grid = x.unsqueeze(-1), self.grid
        found = ((x >= grid[:, :-1]) & (x < grid[:, 1:])).to(x.dtype)
        for k in range(1, self.order + 1):
            left = (x - grid[:, : -(k + 1)]) / (grid[:, k:-1] - grid[:, : -(k + 1)])
            right = (grid[:, k + 1 :] - x) / (grid[:, k + 1 :] - grid[:, 1:-k])
            found = left * found[:, :, :-1] + right * found[:, :, 1:]
        return found

    def forward(self, x: Tensor) -> Tensor:
        weight = (self.weight * self.scale.unsqueeze(-1)).flatten(1)
        return F.linear(F.silu(x), self.base) + F.linear(self.splines(x).flatten(1), weight)


class Messages(nn.Module):
    """Message passing: gathered pairs, messages, sums at nodes."""

    def __init__(self, width: int):
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, width))
        self.update = nn.GRUCell(width, width)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        for _ in range(2):
            pairs = torch.cat([x.index_select(0, target), x.index_select(0, source)], -1)
            x = self.update(torch.zeros_like(x).index_add(0, target, self.message(pairs)), x)
        return x


class GraphConvolution(nn.Module):
    """GCN with degrees, then GraphSAGE by maxima and means."""

    def __init__(self, width: int):
        super().__init__()
        self.one, self.two, self.own = nn.Linear(width, width), nn.Linear(2 * width, width), nn.Linear(width, width)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        degree = torch.zeros(x.shape[0], device=x.device, dtype=x.dtype)
        degree = degree.scatter_add(0, target, torch.ones_like(target, dtype=x.dtype)) + 1
        scale = degree.rsqrt()
        messages = self.one(x)[source] * (scale[source] * scale[target])[:, None]
        x = F.relu(torch.zeros_like(x).index_add_(0, target, messages) + x)
        index = target[:, None].expand(-1, x.shape[1])
        most = torch.zeros_like(x).scatter_reduce(0, index, x[source], "amax", include_self=False)
        mean = torch.zeros_like(x).scatter_reduce(0, index, x[source], "mean", include_self=False)
        return F.normalize(self.own(x) + self.two(torch.cat([most, mean], 1)), dim=-1)


class GraphAttention(nn.Module):
    """GAT: a softmax over each node's edges."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads, self.lin = heads, nn.Linear(width, width, bias=False)
        self.left, self.right = (nn.Parameter(torch.randn(heads, width // heads) * 0.3) for _ in range(2))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges[0], edges[1]
        h = self.lin(x).view(x.shape[0], self.heads, -1)
        scores = (h * self.left).sum(-1)[source] + (h * self.right).sum(-1)[target]
        scores = F.leaky_relu(scores, 0.2)
        index = target[:, None].expand_as(scores)
        top = torch.full((x.shape[0], self.heads), -torch.inf, device=x.device, dtype=x.dtype)
        top = top.scatter_reduce(0, index, scores.detach(), "amax")
        powers = torch.exp(scores - top[target])
        total = torch.zeros_like(top).scatter_add(0, index, powers)
        shares = powers / (total[target] + 1e-16)
        out = torch.zeros_like(h)
        return F.elu(out.index_add(0, target, h[source] * shares[..., None]).flatten(1))


class DLRM(nn.Module):
    """Bags of embeddings, an MLP, and the products of all pairs."""

    def __init__(self, rows: int, width: int, tables: int, dense: int):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(dense, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(pairs + width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, dense: Tensor, sparse: Tensor, label: Tensor) -> Tensor:
        x = self.bottom(dense)
        found = [x] + [table(sparse[:, at]) for at, table in enumerate(self.tables)]
        all_ = torch.stack(found, dim=1)
        products = torch.bmm(all_, all_.transpose(1, 2))
        rows, columns = torch.triu_indices(all_.shape[1], all_.shape[1], 1, device=x.device)
        flat = products[:, rows, columns]
        score = self.top(torch.cat([x, flat], dim=1)).squeeze(1)
        return F.binary_cross_entropy_with_logits(score, label)


class FactorizationMachine(nn.Module):
    """Linear terms and pairs through sums of squares, and a deep part."""

    def __init__(self, rows: int, fields: int, width: int):
        super().__init__()
        self.table, self.linear = nn.Embedding(rows, width), nn.Embedding(rows, 1)
        self.bias = nn.Parameter(torch.zeros(1))
        self.deep = nn.Sequential(nn.Linear(fields * width, 16), nn.ReLU(), nn.BatchNorm1d(16), nn.Linear(16, 1))

    def forward(self, fields: Tensor) -> Tensor:
        e = self.table(fields)
        pairs = 0.5 * (e.sum(1).pow(2) - e.pow(2).sum(1)).sum(1)
        return torch.sigmoid(self.linear(fields).sum((1, 2)) + pairs + self.deep(e.flatten(1)).squeeze(-1) + self.bias)


class Factors(nn.Module):
    """Matrix factorisation with biases and Bayesian personalised ranking."""

    def __init__(self, users: int, items: int, width: int):
        super().__init__()
        self.users, self.items, self.bias = (
            nn.Embedding(users, width),
            nn.Embedding(items, width),
            nn.Embedding(items, 1),
        )

    def forward(self, user: Tensor, liked: Tensor, other: Tensor) -> Tensor:
        u = self.users(user)
        liked_score = (u * self.items(liked)).sum(-1) + self.bias(liked).squeeze(-1)
        other_score = (u * self.items(other)).sum(-1) + self.bias(other).squeeze(-1)
        return -F.logsigmoid(liked_score - other_score).mean() + 1e-3 * u.norm(p=2, dim=1).mean()


class NeRF(nn.Module):
    """Positional encoding, an MLP with a skip, and rendering along rays."""

    def __init__(self, width: int, levels: int = 4):
        super().__init__()
        self.levels = levels
        size = 3 + 6 * levels
        self.one = nn.Sequential(nn.Linear(size, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.two = nn.Sequential(nn.Linear(width + size, width), nn.ReLU(), nn.Linear(width, 4))

    def encode(self, x: Tensor) -> Tensor:
        """Return a place with sines and cosines of it."""
        rates = 2.0 ** torch.arange(self.levels, device=x.device, dtype=x.dtype) * math.pi
        angles = (x[..., None, :] * rates[:, None]).flatten(-2)
        return torch.cat([x, torch.sin(angles), torch.cos(angles)], -1)

    def forward(self, origins: Tensor, directions: Tensor) -> Tensor:
        depths = torch.linspace(0.5, 2.0, 8, device=origins.device, dtype=origins.dtype)
        points = origins[:, None] + directions[:, None] * depths[:, None]
        code = self.encode(points)
        found = self.two(torch.cat([self.one(code), code], -1))
        colour, density = torch.sigmoid(found[..., :3]), F.softplus(found[..., 3])
        gaps = torch.cat([depths[1:] - depths[:-1], torch.full_like(depths[:1], 1e2)])
        alpha = 1 - torch.exp(-density * gaps)
        left = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], -1), -1)[:, :-1]
        weights = alpha * left
        return torch.cat([(weights[..., None] * colour).sum(1), (weights * depths).sum(1, keepdim=True)], -1)


class Siren(nn.Module):
    """Sines as activations."""

    def __init__(self, width: int):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, width), nn.Linear(width, width)])
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        for at, layer in enumerate(self.layers):
            x = torch.sin((30.0 if at == 0 else 1.0) * layer(x))
        return self.head(x)


class PointNet(nn.Module):
    """A learned turn, features of points, their maximum, classes."""

    def __init__(self, width: int, classes: int = 10):
        super().__init__()
        self.turn, self.square = nn.Conv1d(3, width, 1), nn.Linear(width, 9)
        self.one, self.norm = nn.Conv1d(3, width, 1), nn.BatchNorm1d(width)
        self.two, self.head = nn.Conv1d(width, 2 * width, 1), nn.Linear(2 * width, classes)

    def forward(self, points: Tensor) -> Tensor:
        matrix = self.square(torch.max(F.relu(self.turn(points)), 2)[0]).view(-1, 3, 3) + torch.eye(3).to(points)
        x = torch.bmm(points.transpose(2, 1), matrix).transpose(2, 1)
        x = self.two(F.relu(self.norm(self.one(x))))
        return F.log_softmax(self.head(torch.max(x, 2, keepdim=True)[0].view(x.shape[0], -1)), dim=1)


class EdgeConvolution(nn.Module):
    """DGCNN: the nearest neighbours' differences, their maximum."""

    def __init__(self, width: int, count: int):
        super().__init__()
        self.count, self.mlp = count, nn.Linear(6, width)

    def forward(self, x: Tensor) -> Tensor:
        inner = -2 * x @ x.transpose(2, 1)
        square = (x**2).sum(-1, keepdim=True)
        near = (-square - inner - square.transpose(2, 1)).topk(self.count, dim=-1)[1]
        batch = torch.arange(x.shape[0], device=x.device)[:, None, None]
        others = x[batch, near]
        mine = x[:, :, None].expand_as(others)
        return F.leaky_relu(self.mlp(torch.cat([others - mine, mine], -1)), 0.2).max(dim=2).values


class DeepSets(nn.Module):
    """Sums, means and spreads over sets with a mask."""

    def __init__(self, ins: int, width: int):
        super().__init__()
        self.phi, self.rho = nn.Linear(ins, width), nn.Linear(3 * width, ins)

    def forward(self, x: Tensor, sizes: Tensor) -> Tensor:
        here = (torch.arange(x.shape[1], device=x.device)[None] < sizes[:, None])[..., None]
        h = F.silu(self.phi(x)) * here
        mean = h.sum(1) / sizes[:, None].clamp(min=1)
        spread = torch.sqrt((((h - mean[:, None]) * here) ** 2).sum(1) / sizes[:, None] + 1e-6)
        most = h.masked_fill(~here, -1e4).amax(1)
        return self.rho(torch.cat([mean, spread, most], -1))


class Spectral(nn.Module):
    """A layer of a Fourier neural operator, in real numbers after the transform."""

    def __init__(self, width: int, modes: int):
        super().__init__()
        self.modes, self.local = modes, nn.Conv1d(width, width, 1)
        self.real, self.imaginary = (nn.Parameter(torch.randn(width, width, modes) * 0.1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(x)
        weight = torch.complex(self.real, self.imaginary)
        out = torch.zeros_like(spectrum)
        out[:, :, : self.modes] = torch.einsum("bix,iox->box", spectrum[:, :, : self.modes], weight)
        return F.gelu(torch.fft.irfft(out, n=x.shape[-1]) + self.local(x))


class Coupling(nn.Module):
    """Affine couplings of a normalising flow, with the log of the determinant."""

    def __init__(self, size: int, width: int, layers: int):
        super().__init__()
        self.half, self.size = size // 2, size
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(self.half, width), nn.Tanh(), nn.Linear(width, 2 * (size - self.half)))
            for _ in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros(x.shape[0], device=x.device, dtype=x.dtype)
        for net in self.nets:
            left, right = x[:, : self.half], x[:, self.half :]
            scale, shift = net(left).chunk(2, -1)
            scale = 2 * torch.tanh(scale / 2)
            x = torch.cat([left, right * scale.exp() + shift], -1).flip(-1)
            total = total + scale.sum(-1)
        density = -0.5 * (x**2 + math.log(2 * math.pi)).sum(-1)
        return -(density + total).mean()


class MixtureDensity(nn.Module):
    """A mixture of normal distributions whose parameters a network gives."""

    def __init__(self, ins: int, parts: int, width: int):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(ins, width), nn.Softplus(), nn.Linear(width, 3 * parts))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        logits, mean, spread = self.body(x).chunk(3, dim=-1)
        normal = torch.distributions.Normal(mean, F.softplus(spread) + 1e-3, validate_args=False)
        return -torch.logsumexp(F.log_softmax(logits, -1) + normal.log_prob(y[:, None]), dim=-1).mean()


class AutoEncoder(nn.Module):
    """Sparse codes by the largest activations, untied and normalised."""

    def __init__(self, ins: int, width: int, kept: int):
        super().__init__()
        self.ins, self.out, self.kept = nn.Linear(ins, width), nn.Linear(width, ins), kept

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.ins(x - self.out.bias))
        values, places = torch.topk(h, self.kept, dim=-1)
        code = torch.zeros_like(h).scatter_(-1, places, values)
        y = self.out(code)
        return F.mse_loss(y, x) + 1e-2 * code.abs().sum(-1).mean()


class NeuralODE(nn.Module):
    """Steps of Runge and Kutta of a learned field."""

    def __init__(self, size: int, width: int, steps: int):
        super().__init__()
        self.steps, self.field = steps, nn.Sequential(nn.Linear(size + 1, width), nn.Tanh(), nn.Linear(width, size))

    def slope(self, t: float, x: Tensor) -> Tensor:
        """Return the field at a time and a place."""
        return self.field(torch.cat([x, x.new_full((x.shape[0], 1), t)], 1))

    def forward(self, x: Tensor) -> Tensor:
        h = 1.0 / self.steps
        for step in range(self.steps):
            t = step * h
            one = self.slope(t, x)
            two = self.slope(t + h / 2, x + h / 2 * one)
            three = self.slope(t + h / 2, x + h / 2 * two)
            x = x + h / 6 * (one + 2 * two + 2 * three + self.slope(t + h, x + h * three))
        return x


class Contrast(nn.Module):
    """Two towers and CLIP's loss, with triplet, cosine and ranking losses."""

    def __init__(self, ins: int, width: int):
        super().__init__()
        self.left, self.right = nn.Linear(ins, width), nn.Linear(ins, width)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x, y = F.normalize(self.left(x), dim=-1), self.right(y)
        y = y / y.norm(dim=-1, keepdim=True)
        logits = self.scale.exp().clamp(max=100) * x @ y.t()
        label = torch.arange(x.shape[0], device=x.device)
        loss = (F.cross_entropy(logits, label) + F.cross_entropy(logits.t(), label)) / 2
        other = y.roll(1, 0)
        loss = loss + F.triplet_margin_loss(x, y, other, margin=0.5)
        loss = loss + F.cosine_embedding_loss(x, other, -torch.ones_like(x[:, 0]), margin=0.1)
        return loss + F.margin_ranking_loss((x * y).sum(1), (x * other).sum(1), torch.ones_like(x[:, 0]), margin=0.2)


class ArcFace(nn.Module):
    """Angles with a margin, and centres."""

    def __init__(self, ins: int, classes: int):
        super().__init__()
        self.weight, self.classes = nn.Parameter(torch.randn(classes, ins)), classes

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        cosine = F.linear(F.normalize(x), F.normalize(self.weight)).clamp(-1 + 1e-6, 1 - 1e-6)
        hot = F.one_hot(label, self.classes)
        logits = torch.where(hot.bool(), torch.cos(torch.acos(cosine) + 0.5), cosine) * 16.0
        centre = (x - self.weight[label]).pow(2).sum(1).clamp(1e-12, 1e12).mean()
        return F.cross_entropy(logits, label) + 1e-3 * centre


class Detector(nn.Module):
    """A head of boxes with focal loss, generalised IoU and smooth L1."""

    def __init__(self, ins: int, classes: int):
        super().__init__()
        self.score, self.box = nn.Linear(ins, classes), nn.Linear(ins, 4)

    def forward(self, x: Tensor, label: Tensor, wanted: Tensor) -> Tensor:
        hot = F.one_hot(label, self.score.out_features).to(x.dtype)
        logits, box = self.score(x), self.box(x).sigmoid()
        p = torch.sigmoid(logits)
        entropy = F.binary_cross_entropy_with_logits(logits, hot, reduction="none")
        right = p * hot + (1 - p) * (1 - hot)
        focal = (0.25 * hot + 0.75 * (1 - hot)) * (1 - right) ** 2 * entropy
        first, last = box[..., :2] - box[..., 2:] / 2, box[..., :2] + box[..., 2:] / 2
        low, high = wanted[..., :2] - wanted[..., 2:] / 2, wanted[..., :2] + wanted[..., 2:] / 2
        inner = (torch.min(last, high) - torch.max(first, low)).clamp(min=0).prod(-1)
        union = box[..., 2:].prod(-1) + wanted[..., 2:].prod(-1) - inner
        hull = (torch.max(last, high) - torch.min(first, low)).clamp_(min=0).prod(-1)
        overlap = inner / (union + 1e-7) - (hull - union) / (hull + 1e-7)
        loss = focal.sum() / label.numel() + (1 - overlap).mean() + F.smooth_l1_loss(box, wanted, beta=0.1)
        return loss + F.huber_loss(box, wanted, delta=0.2) + F.l1_loss(box.log(), wanted.log())


class Policy(nn.Module):
    """PPO's losses: ratios that are clipped, values, entropies, advantages of a reversed sum."""

    def __init__(self, ins: int, actions: int):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(ins, 32), nn.Tanh())
        self.actions, self.value = nn.Linear(32, actions), nn.Linear(32, 1)

    def forward(self, x: Tensor, action: Tensor, reward: Tensor) -> Tensor:
        h = self.body(x)
        logs, value = F.log_softmax(self.actions(h), -1), self.value(h).squeeze(-1)
        returns = reward.flip(0).cumsum(0).flip(0)
        gain = (returns - value).detach()
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        chosen = logs.gather(-1, action.unsqueeze(-1)).squeeze(-1)
        ratio = torch.exp(chosen - chosen.detach() + 0.1 * gain.tanh())
        surrogate = torch.min(ratio * gain, torch.clamp(ratio, 0.8, 1.2) * gain)
        entropy = -(logs.exp() * logs).sum(-1)
        return -surrogate.mean() + 0.5 * (value - returns).pow(2).mean() - 0.01 * entropy.mean()


class Quantised(nn.Module):
    """Vector quantisation with a straight-through gradient, and distillation."""

    def __init__(self, ins: int, codes: int, width: int):
        super().__init__()
        self.ins, self.codes = nn.Linear(ins, width), nn.Parameter(torch.randn(codes, width))
        self.head = nn.Linear(width, ins)

    def forward(self, x: Tensor) -> Tensor:
        z = self.ins(x)
        apart = (z[:, None] - self.codes).pow(2).sum(-1)
        code = self.codes[apart.argmin(-1)]
        loss = F.mse_loss(code, z.detach()) + 0.25 * F.mse_loss(z, code.detach())
        y = self.head(z + (code - z).detach())
        kl = F.kl_div(F.log_softmax(y / 2, -1), F.softmax(x / 2, -1), reduction="batchmean") * 4
        return loss + kl + F.mse_loss(y, x)
