"""Networks of sequences other than transformers: recurrences, state spaces, convolutions and mixers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class LSTMByHand(nn.Module):
    """An LSTM written as a loop over steps."""

    def __init__(self, ins: int, hidden: int):
        super().__init__()
        self.gates, self.again = nn.Linear(ins, 4 * hidden), nn.Linear(hidden, 4 * hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], self.again.in_features)
        c = torch.zeros_like(h)
        found = []
        for step in range(x.shape[1]):
            i, f, g, o = (self.gates(x[:, step]) + self.again(h)).chunk(4, 1)
            c = torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            found.append(h)
        return torch.stack(found, 1)


class GRUCells(nn.Module):
    """`nn.GRUCell` and `nn.LSTMCell` in a loop."""

    def __init__(self, ins: int, hidden: int):
        super().__init__()
        self.gru, self.lstm, self.head = nn.GRUCell(ins, hidden), nn.LSTMCell(hidden, hidden), nn.Linear(hidden, ins)

    def forward(self, x: Tensor) -> Tensor:
        h, c, g = (x.new_zeros(x.shape[0], self.gru.hidden_size) for _ in range(3))
        for step in x.unbind(1):
            g = self.gru(step, g)
            h, c = self.lstm(g, (h, c))
        return self.head(h)


class Recurrent(nn.Module):
    """`nn.LSTM` or `nn.GRU` of two layers, in both directions."""

    def __init__(self, kind: str, ins: int, hidden: int):
        super().__init__()
        self.body = getattr(nn, kind)(ins, hidden, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden, ins)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)[0])


def segsum(x: Tensor) -> Tensor:
    """Return sums of segments: element (i, j) sums x from j + 1 to i, and is -inf above the diagonal."""
    size = x.size(-1)
    x = x[..., None].expand(*x.shape, size)
    x = x.masked_fill(~torch.tril(torch.ones(size, size, device=x.device, dtype=torch.bool), -1), 0)
    mask = torch.tril(torch.ones(size, size, device=x.device, dtype=torch.bool), 0)
    return torch.cumsum(x, dim=-2).masked_fill(~mask, -torch.inf)


class Mamba2(nn.Module):
    """A block of Mamba-2 with its scan in chunks, in plain PyTorch."""

    def __init__(self, width: int, heads: int, state: int, chunk: int):
        super().__init__()
        self.heads, self.state, self.chunk, self.inner = heads, state, chunk, 2 * width
        self.ins = nn.Linear(width, 2 * self.inner + 2 * state + heads, bias=False)
        wide = self.inner + 2 * state
        self.conv = nn.Conv1d(wide, wide, 4, padding=3, groups=wide)
        self.rate, self.bias = nn.Parameter(torch.zeros(heads)), nn.Parameter(torch.zeros(heads))
        self.skip, self.weight = nn.Parameter(torch.ones(heads)), nn.Parameter(torch.ones(self.inner))
        self.out = nn.Linear(self.inner, width, bias=False)

    def scan(self, x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """Return the recurrence's outputs (batch, length, heads, features)."""
        x, b, c = (each.unflatten(1, (-1, self.chunk)) for each in (x, b, c))
        a = a.unflatten(1, (-1, self.chunk)).permute(0, 3, 1, 2)
        sums = torch.cumsum(a, dim=-1)
        inside = torch.einsum("bcln,bcsn,bhcls,bcshp->bclhp", c, b, torch.exp(segsum(a)), x)
        states = torch.einsum("bcln,bhcl,bclhp->bchpn", b, torch.exp(sums[..., -1:] - sums), x)
        states = torch.cat([torch.zeros_like(states[:, :1]), states], dim=1)
        decay = torch.exp(segsum(F.pad(sums[..., -1], (1, 0))))
        states = torch.einsum("bhzc,bchpn->bzhpn", decay, states)[:, :-1]
        across = torch.einsum("bcln,bchpn,bhcl->bclhp", c, states, torch.exp(sums))
        return (inside + across).flatten(1, 2)

    def forward(self, u: Tensor) -> Tensor:
        z, xbc, dt = torch.split(self.ins(u), [self.inner, self.inner + 2 * self.state, self.heads], dim=-1)
        xbc = F.silu(self.conv(xbc.transpose(1, 2)).transpose(1, 2)[:, : u.shape[1]])
        x, b, c = torch.split(xbc, [self.inner, self.state, self.state], dim=-1)
        x, dt = x.unflatten(-1, (self.heads, -1)), F.softplus(dt + self.bias)
        y = self.scan(x * dt[..., None], -torch.exp(self.rate) * dt, b, c) + x * self.skip[:, None]
        y = y.flatten(2) * F.silu(z)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight
        return self.out(y)


class Mamba1(nn.Module):
    """A block of Mamba with its selective scan as a loop."""

    def __init__(self, width: int, state: int, rank: int):
        super().__init__()
        self.rank, self.state = rank, state
        inner = 2 * width
        self.ins, self.out = nn.Linear(width, 2 * inner, bias=False), nn.Linear(inner, width, bias=False)
        self.conv = nn.Conv1d(inner, inner, 4, padding=3, groups=inner)
        self.select, self.step = nn.Linear(inner, rank + 2 * state, bias=False), nn.Linear(rank, inner)
        self.rates = nn.Parameter(torch.log(torch.arange(1.0, state + 1).repeat(inner, 1)))
        self.skip = nn.Parameter(torch.ones(inner))

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        x, gate = self.ins(x).chunk(2, dim=-1)
        x = F.silu(self.conv(x.transpose(1, 2))[:, :, :length].transpose(1, 2))
        step, b, c = self.select(x).split([self.rank, self.state, self.state], dim=-1)
        step = F.softplus(self.step(step))
        a = torch.exp(step[..., None] * -torch.exp(self.rates.to(x.dtype)))
        bx = (step * x)[..., None] * b[:, :, None]
        h = torch.zeros_like(bx[:, 0])
        found = []
        for at in range(length):
            h = a[:, at] * h + bx[:, at]
            found.append((h * c[:, at, None]).sum(-1))
        y = torch.stack(found, dim=1) + x * self.skip
        return self.out(y * F.silu(gate))


class RWKV(nn.Module):
    """Time mixing of RWKV-4 (a running softmax) and its channel mixing."""

    def __init__(self, width: int):
        super().__init__()
        self.decay, self.first = nn.Parameter(torch.linspace(-3, 1, width)), nn.Parameter(torch.zeros(width))
        self.mix = nn.Parameter(torch.rand(4, width))
        self.key, self.value, self.gate, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.norm, self.last = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 3 * width, bias=False), nn.Linear(3 * width, width, bias=False)
        self.shift = nn.ZeroPad2d((0, 0, 1, -1))

    def time(self, x: Tensor) -> Tensor:
        """Return the mixed steps."""
        before = self.shift(x)
        k, v, r = (x * m + before * (1 - m) for m in self.mix[:3])
        k, v, r = self.key(k), self.value(v), torch.sigmoid(self.gate(r))
        rate = -torch.exp(self.decay)
        above, below = torch.zeros_like(k[:, 0]), torch.zeros_like(k[:, 0])
        top = torch.full_like(above, -1e38)
        found = []
        for step in range(x.shape[1]):
            key, value = k[:, step], v[:, step]
            most = torch.maximum(top, self.first + key)
            old, new = torch.exp(top - most), torch.exp(self.first + key - most)
            found.append((old * above + new * value) / (old * below + new))
            most = torch.maximum(top + rate, key)
            old, new = torch.exp(top + rate - most), torch.exp(key - most)
            above, below, top = old * above + new * value, old * below + new, most
        return self.out(r * torch.stack(found, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.time(self.norm(x))
        y = self.last(x)
        k = torch.lerp(self.shift(y), y, self.mix[3])
        return x + self.down(torch.square(torch.relu(self.up(k))))


class Retention(nn.Module):
    """Linear attention with a decay, as a matrix of powers of it."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm = nn.GroupNorm(heads, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        place = torch.arange(x.shape[1], device=x.device)
        rates = 1 - torch.exp2(-5.0 - torch.arange(self.heads, device=x.device))
        apart = (place[:, None] - place[None]).float()
        decay = torch.where(apart >= 0, rates[:, None, None] ** apart.clamp(min=0), 0.0).to(x.dtype)
        y = ((F.elu(q) + 1) @ (F.elu(k) + 1).transpose(-1, -2) * decay / q.shape[-1] ** 0.5) @ v
        y = self.norm(y.transpose(1, 2).reshape(-1, x.shape[-1])).view_as(x)
        return self.out(y)


class TCN(nn.Module):
    """Causal convolutions with gaps, weight norm and skips."""

    def __init__(self, ins: int, width: int):
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.convs = nn.ModuleList(
            norm(nn.Conv1d(width if at else ins, width, 3, padding=2 << at, dilation=1 << at)) for at in range(3)
        )
        self.skip, self.head = nn.Conv1d(ins, width, 1), nn.Linear(width, ins)

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for at, conv in enumerate(self.convs):
            z = F.relu(conv(y)[..., : -(2 << at)])
            y = F.relu(z + (y if at else self.skip(y)))
        return self.head(y[:, :, -1])


class WaveNet(nn.Module):
    """Gated convolutions with gaps, residuals and sums of skips."""

    def __init__(self, levels: int, width: int, layers: int):
        super().__init__()
        self.table = nn.Embedding(levels, width)
        self.gates = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=1 << at) for at in range(layers))
        self.outs = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(layers))
        self.head = nn.Conv1d(width, levels, 1)

    def forward(self, words: Tensor) -> Tensor:
        x = self.table(words).transpose(1, 2)
        total = torch.zeros_like(x)
        for at, (gate, out) in enumerate(zip(self.gates, self.outs, strict=True)):
            left, right = gate(F.pad(x, (1 << at, 0))).chunk(2, 1)
            both, skip = out(torch.tanh(left) * torch.sigmoid(right)).chunk(2, 1)
            x, total = x + both, total + skip
        return F.cross_entropy(self.head(F.relu(total))[..., :-1], words[:, 1:])


class Mixer(nn.Module):
    """MLP-Mixer: MLPs along places, then along channels."""

    def __init__(self, places: int, width: int):
        super().__init__()
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.along = nn.Sequential(nn.Linear(places, 2 * places), nn.GELU(), nn.Linear(2 * places, places))
        self.across = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.along(self.one(x).transpose(1, 2)).transpose(1, 2)
        return x + self.across(self.two(x))


class GatedMLP(nn.Module):
    """gMLP with its spatial gate."""

    def __init__(self, places: int, width: int):
        super().__init__()
        self.norm, self.ins = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.inner, self.places = nn.LayerNorm(2 * width), nn.Conv1d(places, places, 1)
        self.out = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        u, v = F.gelu(self.ins(self.norm(x))).chunk(2, dim=-1)
        return x + self.out(u * self.places(self.inner(v)))


class Hyena(nn.Module):
    """Long convolutions through the Fourier transform, with gates."""

    def __init__(self, width: int, length: int):
        super().__init__()
        self.ins, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.short = nn.Conv1d(3 * width, 3 * width, 3, padding=2, groups=3 * width)
        self.filter, self.bias = nn.Parameter(torch.randn(width, length) * 0.1), nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        q, k, v = self.short(self.ins(x).transpose(1, 2))[..., :length].chunk(3, 1)
        y = k * v
        size = 2 * length
        spectrum = torch.fft.rfft(y.float(), n=size) * torch.fft.rfft(self.filter[:, :length].float(), n=size)
        y = torch.fft.irfft(spectrum, n=size)[..., :length].to(x.dtype) + y * self.bias[:, None]
        return self.out((q * y).transpose(1, 2))
