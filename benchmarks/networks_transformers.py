"""Transformers as people write them in plain PyTorch, for `networks.py`: small ones for tests, and real sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from network import Network, Scale
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Sizes:
    """Sizes of a network.

    Args:
        width: features of a token.
        heads: of queries.
        groups: heads of keys and values.
        inner: features between the two products of an MLP.
        words: rows of the embedding.
        layers: blocks.
        length: tokens of a sequence.
        batch: sequences.
    """

    width: int = 32
    heads: int = 4
    groups: int = 2
    inner: int = 48
    words: int = 61
    layers: int = 1
    length: int = 10
    batch: int = 2


FULL = Sizes(1024, 16, 4, 4096, 32000, 4, 1024, 8)


def _sizes(scale: Scale, **full: int) -> Sizes:
    return replace(FULL, **full) if scale == "full" else Sizes()


def _words(scale: Scale, more: int) -> tuple[Tensor, ...]:
    s = _sizes(scale)
    return (torch.randint(0, s.words, (s.batch + more, s.length + more)),)


def _tokens(scale: Scale, more: int) -> tuple[Tensor, ...]:
    s = _sizes(scale)
    return (torch.randn(s.batch + more, s.length + more, s.width),)


# Llama: RMS norms, rotary embeddings, shared keys, gated MLP


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = x if dtype == torch.float64 else x.float()
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * x.to(dtype)


def angles(length: int, size: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of rotary embeddings, `(length, size / 2)`."""
    rates = 10000.0 ** (-torch.arange(0, size, 2, device=like.device, dtype=torch.float64) / size)
    found = torch.arange(length, device=like.device)[:, None] * rates
    return found.cos().to(like.dtype), found.sin().to(like.dtype)


def turn_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    cos, sin = torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def turn_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


def turn_complex(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    pairs = torch.view_as_complex((x if x.dtype == torch.float64 else x.float()).unflatten(-1, (-1, 2)))
    wide = cos.to(pairs.real.dtype), sin.to(pairs.real.dtype)
    return torch.view_as_real(pairs * torch.complex(*wide)).flatten(-2).type_as(x)


def repeat_kv(x: Tensor, times: int) -> Tensor:
    batch, groups, length, size = x.shape
    return x[:, :, None].expand(batch, groups, times, length, size).reshape(batch, groups * times, length, size)


class LlamaAttention(nn.Module):
    def __init__(self, s: Sizes, turn: Callable[..., Tensor], share: str):
        super().__init__()
        self.s, self.turn, self.share = s, turn, share
        size = s.width // s.heads
        self.q = nn.Linear(s.width, s.width, bias=False)
        self.k = nn.Linear(s.width, s.groups * size, bias=False)
        self.v = nn.Linear(s.width, s.groups * size, bias=False)
        self.o = nn.Linear(s.width, s.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, width = x.shape
        q = self.q(x).view(batch, length, self.s.heads, -1).transpose(1, 2)
        k = self.k(x).view(batch, length, self.s.groups, -1).transpose(1, 2)
        v = self.v(x).view(batch, length, self.s.groups, -1).transpose(1, 2)
        q, k = self.turn(q, cos, sin), self.turn(k, cos, sin)
        times = self.s.heads // self.s.groups
        if self.share == "expand":
            k, v = repeat_kv(k, times), repeat_kv(v, times)
        elif self.share == "repeat":
            k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
        shared = self.share == "shared"
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=shared)
        return self.o(found.transpose(1, 2).reshape(batch, length, width))


class SwiGLU(nn.Module):
    def __init__(self, width: int, inner: int):
        super().__init__()
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class LlamaBlock(nn.Module):
    def __init__(self, s: Sizes, turn: Callable[..., Tensor], share: str):
        super().__init__()
        self.attention, self.mlp = LlamaAttention(s, turn, share), SwiGLU(s.width, s.inner)
        self.first, self.second = RMSNorm(s.width), RMSNorm(s.width)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.first(x), cos, sin)
        return x + self.mlp(self.second(x))


class Llama(nn.Module):
    def __init__(self, s: Sizes, turn: Callable[..., Tensor] = turn_halves, share: str = "expand"):
        super().__init__()
        self.s = s
        self.embed = nn.Embedding(s.words, s.width)
        self.blocks = nn.ModuleList(LlamaBlock(s, turn, share) for _ in range(s.layers))
        self.norm, self.head = RMSNorm(s.width), nn.Linear(s.width, s.words, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embed(words)
        cos, sin = angles(words.shape[1], self.s.width // self.s.heads, x)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


class LlamaStep(nn.Module):
    """One token of a sequence whose keys and values are in a cache, of which it is a place."""

    def __init__(self, s: Sizes):
        super().__init__()
        self.block, self.s = LlamaBlock(s, turn_halves, "expand"), s

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, place: Tensor) -> tuple[Tensor, ...]:
        a, s = self.block.attention, self.s
        h = self.block.first(x)
        q = a.q(h).view(x.shape[0], 1, s.heads, -1).transpose(1, 2)
        k = a.k(h).view(x.shape[0], 1, s.groups, -1).transpose(1, 2)
        v = a.v(h).view(x.shape[0], 1, s.groups, -1).transpose(1, 2)
        cos, sin = (one[place] for one in angles(keys.shape[2], q.shape[-1], x))
        q, k = turn_halves(q, cos, sin), turn_halves(k, cos, sin)
        keys, values = keys.index_copy(2, place, k), values.index_copy(2, place, v)
        mask = (torch.arange(keys.shape[2], device=x.device) <= place)[None, None, None]
        times = s.heads // s.groups
        found = F.scaled_dot_product_attention(q, repeat_kv(keys, times), repeat_kv(values, times), attn_mask=mask)
        x = x + a.o(found.transpose(1, 2).reshape(x.shape))
        return x + self.block.mlp(self.block.second(x)), keys, values


def _step_inputs(scale: Scale, more: int) -> tuple[Tensor, ...]:
    s = _sizes(scale)
    cache = (s.batch + more, s.groups, s.length + more, s.width // s.heads)
    return torch.randn(s.batch + more, 1, s.width), torch.randn(cache), torch.randn(cache), torch.tensor([5])


class Gemma(nn.Module):
    """Norms of queries and keys, a soft cap, a sliding window, an embedding that is scaled and tied."""

    def __init__(self, s: Sizes):
        super().__init__()
        self.s, size = s, s.width // s.heads
        self.embed = nn.Embedding(s.words, s.width)
        self.qkv = nn.Linear(s.width, (s.heads + 2 * s.groups) * size, bias=False)
        self.out = nn.Linear(s.width, s.width, bias=False)
        self.norm, self.q_norm, self.k_norm = RMSNorm(s.width), nn.RMSNorm(size), nn.RMSNorm(size)
        self.up, self.down = nn.Linear(s.width, 2 * s.inner, bias=False), nn.Linear(s.inner, s.width, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        s = self.s
        x = self.embed(words) * s.width**0.5
        batch, length, _ = x.shape
        size = s.width // s.heads
        q, k, v = self.qkv(self.norm(x)).split([s.width, s.groups * size, s.groups * size], -1)
        q = self.q_norm(q.view(batch, length, s.heads, size)).transpose(1, 2)
        k = self.k_norm(k.view(batch, length, s.groups, size)).transpose(1, 2)
        v = v.view(batch, length, s.groups, size).transpose(1, 2)
        cos, sin = angles(length, size, x)
        q, k = turn_halves(q, cos, sin), turn_halves(k, cos, sin)
        k, v = (one.repeat_interleave(s.heads // s.groups, dim=1) for one in (k, v))
        scores = torch.tanh(q @ k.transpose(-2, -1) * size**-0.5 / 50.0) * 50.0
        place = torch.arange(length, device=x.device)
        apart = place[:, None] - place
        scores = scores.masked_fill((apart < 0) | (apart >= 4), float("-inf"))
        found = scores.softmax(-1) @ v
        x = x + self.out(found.transpose(1, 2).reshape(x.shape))
        gate, up = self.up(self.norm(x)).chunk(2, -1)
        x = x + self.down(F.gelu(gate, approximate="tanh") * up)
        return 30.0 * torch.tanh(F.linear(x, self.embed.weight) / 30.0)


class Latent(nn.Module):
    """Latent attention of DeepSeek: keys and values from one small projection, a rotary part that heads share."""

    def __init__(self, s: Sizes):
        super().__init__()
        self.s, self.rope, self.size = s, 4 if s.width < 64 else 64, s.width // s.heads
        rank = s.width // 2
        self.q = nn.Linear(s.width, s.heads * (self.size + self.rope), bias=False)
        self.down, self.norm = nn.Linear(s.width, rank + self.rope, bias=False), RMSNorm(rank)
        self.up, self.out = nn.Linear(rank, 2 * s.width, bias=False), nn.Linear(s.width, s.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q = self.q(x).view(batch, length, self.s.heads, -1).transpose(1, 2)
        q, q_rope = q.split([self.size, self.rope], -1)
        latent, k_rope = self.down(x).split([self.down.out_features - self.rope, self.rope], -1)
        k, v = self.up(self.norm(latent)).view(batch, length, self.s.heads, -1).transpose(1, 2).chunk(2, -1)
        cos, sin = angles(length, self.rope, x)
        q_rope, k_rope = turn_pairs(q_rope, cos, sin), turn_pairs(k_rope[:, None], cos, sin)
        q = torch.cat((q, q_rope), -1)
        k = torch.cat((k, k_rope.expand(-1, self.s.heads, -1, -1)), -1)
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(found.transpose(1, 2).flatten(-2))


# GPT-2 and its kin


class GPTBlock(nn.Module):
    def __init__(self, s: Sizes, rate: float):
        super().__init__()
        self.heads, self.rate = s.heads, rate
        self.first, self.second = nn.LayerNorm(s.width), nn.LayerNorm(s.width)
        self.qkv, self.out = nn.Linear(s.width, 3 * s.width), nn.Linear(s.width, s.width)
        self.up, self.down = nn.Linear(s.width, s.inner), nn.Linear(s.inner, s.width)
        self.drop = nn.Dropout(rate)
        self.register_buffer("mask", torch.tril(torch.ones(2 * s.length, 2 * s.length)).view(1, 1, *[2 * s.length] * 2))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.size()
        q, k, v = self.qkv(self.first(x)).split(width, 2)
        q, k, v = (one.view(batch, length, self.heads, -1).transpose(1, 2) for one in (q, k, v))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf"))
        found = self.drop(F.softmax(scores, -1)) @ v
        x = x + self.drop(self.out(found.transpose(1, 2).contiguous().view(batch, length, width)))
        return x + self.drop(self.down(F.gelu(self.up(self.second(x)), approximate="tanh")))


class GPT(nn.Module):
    """GPT-2, with the loss of the next word where it is asked for; the head is the embedding."""

    def __init__(self, s: Sizes, rate: float = 0.0, loss: bool = False):
        super().__init__()
        self.embed, self.places = nn.Embedding(s.words, s.width), nn.Embedding(2 * s.length, s.width)
        self.blocks = nn.ModuleList(GPTBlock(s, rate) for _ in range(s.layers))
        self.norm, self.head = nn.LayerNorm(s.width), nn.Linear(s.width, s.words, bias=False)
        self.head.weight = self.embed.weight
        self.drop, self.loss = nn.Dropout(rate), loss

    def forward(self, words: Tensor) -> Any:
        place = torch.arange(words.shape[1], device=words.device)
        x = self.drop(self.embed(words) + self.places(place))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if not self.loss:
            return logits
        wanted = torch.where(words[:, 1:] % 5 == 0, -100, words[:, 1:])
        return F.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), wanted.reshape(-1), label_smoothing=0.1)


class Alibi(nn.Module):
    """Attention of Bloom: biases by the distance of places, an MLP beside it as in GPT-J."""

    def __init__(self, s: Sizes):
        super().__init__()
        self.heads, self.norm = s.heads, nn.LayerNorm(s.width)
        self.qkv, self.out = nn.Linear(s.width, 3 * s.width), nn.Linear(s.width, s.width)
        self.mlp = nn.Sequential(nn.Linear(s.width, s.inner), nn.GELU(), nn.Linear(s.inner, s.width))
        self.register_buffer("slopes", torch.tensor([2.0 ** (-8 * (i + 1) / s.heads) for i in range(s.heads)]))

    def forward(self, x: Tensor) -> Tensor:
        length, h = x.shape[1], self.norm(x)
        q, k, v = self.qkv(h).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        place = torch.arange(length, device=x.device)
        bias = -(place[:, None] - place).abs() * self.slopes[:, None, None]
        bias = bias + torch.full((length, length), float("-inf"), device=x.device, dtype=x.dtype).triu(1)
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(x.dtype))
        return x + self.out(found.transpose(1, 2).flatten(-2)) + self.mlp(h)


# Encoders, and decoders that look at them


class Bert(nn.Module):
    def __init__(self, s: Sizes):
        super().__init__()
        self.s = s
        self.embed = nn.Embedding(s.words, s.width, padding_idx=0)
        self.places, self.kinds = nn.Embedding(2 * s.length, s.width), nn.Embedding(2, s.width)
        self.norms = nn.ModuleList(nn.LayerNorm(s.width, eps=1e-12) for _ in range(3))
        self.q, self.k, self.v, self.o, self.pool = (nn.Linear(s.width, s.width) for _ in range(5))
        self.up, self.down = nn.Linear(s.width, s.inner), nn.Linear(s.inner, s.width)

    def heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.s.heads, -1).permute(0, 2, 1, 3)

    def forward(self, words: Tensor) -> tuple[Tensor, Tensor]:
        keep = (words % 7 != 0) | (torch.arange(words.shape[1], device=words.device) == 0)
        kinds = torch.zeros_like(words)
        place = torch.arange(words.size(1), device=words.device).unsqueeze(0)
        x = self.norms[0](self.embed(words) + self.kinds(kinds) + self.places(place))
        mask = (1.0 - keep[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        q, k, v = self.heads(self.q(x)), self.heads(self.k(x)), self.heads(self.v(x))
        weights = nn.functional.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + mask, dim=-1)
        found = (weights @ v).permute(0, 2, 1, 3).contiguous().flatten(-2)
        x = self.norms[1](self.o(found) + x)
        x = self.norms[2](self.down(F.gelu(self.up(x))) + x)
        return x, torch.tanh(self.pool(x[:, 0]))


class T5Attention(nn.Module):
    def __init__(self, s: Sizes, biased: bool):
        super().__init__()
        self.s, self.biased = s, biased
        self.q, self.k, self.v, self.o = (nn.Linear(s.width, s.width, bias=False) for _ in range(4))
        self.table = nn.Embedding(32, s.heads) if biased else None

    def bias(self, length: int, device: Any) -> Tensor:
        place = torch.arange(length, device=device)
        apart = place[None, :] - place[:, None]
        found = (apart > 0).to(torch.long) * 16
        apart = apart.abs()
        far = 8 + (torch.log(apart.float() / 8) / math.log(128 / 8) * 8).to(torch.long)
        found = found + torch.where(apart < 8, apart, torch.min(far, torch.full_like(far, 15)))
        return self.table(found).permute(2, 0, 1).unsqueeze(0)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        q, k, v = (
            one.view(*one.shape[:2], self.s.heads, -1).transpose(1, 2)
            for one in (self.q(x), self.k(other), self.v(other))
        )
        scores = torch.matmul(q, k.transpose(3, 2))
        if self.biased:
            scores = scores + self.bias(x.shape[1], x.device)
        wide = scores if scores.dtype == torch.float64 else scores.float()
        weights = F.softmax(wide, dim=-1).type_as(scores)
        return self.o(torch.matmul(weights, v).transpose(1, 2).contiguous().view(*x.shape[:2], -1))


class T5(nn.Module):
    def __init__(self, s: Sizes):
        super().__init__()
        self.embed = nn.Embedding(s.words, s.width)
        self.encode, self.cross = T5Attention(s, True), T5Attention(s, False)
        self.norms = nn.ModuleList(RMSNorm(s.width) for _ in range(4))
        self.gate, self.up = nn.Linear(s.width, s.inner, bias=False), nn.Linear(s.width, s.inner, bias=False)
        self.down = nn.Linear(s.inner, s.width, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embed(words)
        h = self.norms[0](x)
        x = x + self.encode(h, h)
        h = self.norms[1](x)
        x = x + self.down(F.gelu(self.gate(h), approximate="tanh") * self.up(h))
        y = self.embed(words.roll(1, 1))
        y = y + self.cross(self.norms[2](y), self.norms[3](x))
        return y @ self.embed.weight.t() * self.embed.weight.shape[1] ** -0.5


class Whisper(nn.Module):
    """Convolutions over a spectrogram, an encoder block, and a decoder block that looks at it."""

    def __init__(self, s: Sizes):
        super().__init__()
        self.s = s
        self.first = nn.Conv1d(16, s.width, 3, padding=1)
        self.second = nn.Conv1d(s.width, s.width, 3, stride=2, padding=1)
        self.embed = nn.Embedding(s.words, s.width)
        self.attention, self.own, self.cross = (
            nn.MultiheadAttention(s.width, s.heads, batch_first=True) for _ in "abc"
        )
        self.norms = nn.ModuleList(nn.LayerNorm(s.width) for _ in range(5))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(s.width, s.inner), nn.GELU(), nn.Linear(s.inner, s.width)) for _ in range(2)
        )

    def forward(self, sound: Tensor, words: Tensor) -> Tensor:
        x = F.gelu(self.second(F.gelu(self.first(sound)))).permute(0, 2, 1)
        rates = torch.exp(-math.log(10000) / (self.s.width // 2 - 1) * torch.arange(self.s.width // 2, device=x.device))
        times = torch.arange(x.shape[1], device=x.device)[:, None] * rates[None, :]
        x = x + torch.cat([torch.sin(times), torch.cos(times)], dim=1).to(x.dtype)
        h = self.norms[0](x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        x = x + self.mlps[0](self.norms[1](x))
        y = self.embed(words)
        h = self.norms[2](y)
        mask = torch.full((words.shape[1], words.shape[1]), float("-inf"), device=x.device, dtype=y.dtype).triu_(1)
        y = y + self.own(h, h, h, attn_mask=mask, need_weights=False)[0]
        y = y + self.cross(self.norms[3](y), x, x, need_weights=False)[0]
        y = y + self.mlps[1](self.norms[4](y))
        return y @ self.embed.weight.t()


def _sound(scale: Scale, more: int) -> tuple[Tensor, ...]:
    s = _sizes(scale)
    words = torch.randint(0, s.words, (s.batch + more, s.length // 2 + more))
    return torch.randn(s.batch + more, 16, 2 * s.length + 2 * more), words


class Perceiver(nn.Module):
    """Learned queries over a long input."""

    def __init__(self, s: Sizes):
        super().__init__()
        self.s = s
        self.latents = nn.Parameter(torch.randn(6, s.width) * 0.5)
        self.q, self.kv, self.o = (
            nn.Linear(s.width, s.width),
            nn.Linear(s.width, 2 * s.width),
            nn.Linear(s.width, s.width),
        )
        self.before, self.context, self.after = (nn.LayerNorm(s.width) for _ in "abc")
        self.mlp = nn.Sequential(nn.Linear(s.width, s.inner), nn.GELU(), nn.Linear(s.inner, s.width))

    def forward(self, x: Tensor) -> Tensor:
        z = self.latents.unsqueeze(0).repeat(x.shape[0], 1, 1)
        q = self.q(self.before(z))
        k, v = self.kv(self.context(x)).chunk(2, dim=-1)
        q, k, v = (one.reshape(*one.shape[:2], self.s.heads, -1).transpose(1, 2) for one in (q, k, v))
        weights = torch.einsum("bhid,bhjd->bhij", q, k * q.shape[-1] ** -0.5).softmax(dim=-1)
        found = torch.einsum("bhij,bhjd->bhid", weights, v).transpose(1, 2).flatten(-2)
        z = z + self.o(found)
        return (z + self.mlp(self.after(z))).mean(1)


# Images


class ViT(nn.Module):
    def __init__(self, s: Sizes):
        super().__init__()
        self.s, patch = s, 4 if s.width < 64 else 16
        self.patches = nn.Conv2d(3, s.width, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, s.width))
        self.places = nn.Parameter(torch.randn(1, 17 if s.width < 64 else 197, s.width) * 0.02)
        self.norms = nn.ModuleList(nn.LayerNorm(s.width) for _ in range(3))
        self.qkv, self.out = nn.Linear(s.width, 3 * s.width), nn.Linear(s.width, s.width)
        self.mlp = nn.Sequential(nn.Linear(s.width, s.inner), nn.GELU(), nn.Linear(s.inner, s.width))
        self.scale, self.head = nn.Parameter(torch.full((s.width,), 0.1)), nn.Linear(s.width, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), 1) + self.places
        q, k, v = self.qkv(self.norms[0](x)).reshape(*x.shape[:2], 3, self.s.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        found = F.scaled_dot_product_attention(q, k, v)
        x = x + self.scale * self.out(found.transpose(1, 2).reshape(x.shape))
        x = x + self.mlp(self.norms[1](x))
        return self.head(self.norms[2](x)[:, 0])


def _image(scale: Scale, more: int) -> tuple[Tensor, ...]:
    size = 224 if scale == "full" else 16
    return (torch.randn((32 if scale == "full" else 2) + more, 3, size, size),)


class SwinBlock(nn.Module):
    """Attention in windows of an image, shifted by half a window, with a bias for each distance; patches merge."""

    def __init__(self, s: Sizes, side: int, window: int, shift: int):
        super().__init__()
        self.s, self.side, self.window, self.shift = s, side, window, shift
        self.qkv, self.out = nn.Linear(s.width, 3 * s.width), nn.Linear(s.width, s.width)
        self.first, self.second, self.last = nn.LayerNorm(s.width), nn.LayerNorm(s.width), nn.LayerNorm(4 * s.width)
        self.mlp = nn.Sequential(nn.Linear(s.width, s.inner), nn.GELU(), nn.Linear(s.inner, s.width))
        self.merge = nn.Linear(4 * s.width, 2 * s.width, bias=False)
        self.table = nn.Parameter(torch.randn((2 * window - 1) ** 2, s.heads) * 0.1)
        place = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        apart = (place[:, :, None] - place[:, None, :]).permute(1, 2, 0) + window - 1
        self.register_buffer("index", apart[..., 0] * (2 * window - 1) + apart[..., 1])
        kinds = torch.zeros(1, side, side, 1)
        parts = (slice(0, -window), slice(-window, -shift), slice(-shift, None))
        for number, (rows, columns) in enumerate((a, b) for a in parts for b in parts):
            kinds[:, rows, columns] = number
        kinds = self.cut(kinds).squeeze(-1)
        self.register_buffer("mask", ((kinds[:, None] - kinds[:, :, None]) != 0).float() * -100.0)

    def cut(self, x: Tensor) -> Tensor:
        batch, height, width, size = x.shape
        w = self.window
        x = x.view(batch, height // w, w, width // w, w, size)
        return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, w * w, size)

    def joined(self, x: Tensor) -> Tensor:
        w, side = self.window, self.side
        x = x.view(-1, side // w, side // w, w, w, x.shape[-1])
        return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, side, side, x.shape[-1])

    def forward(self, x: Tensor) -> Tensor:
        windows = self.cut(torch.roll(self.first(x), shifts=(-self.shift, -self.shift), dims=(1, 2)))
        many, places, width = windows.shape
        q, k, v = self.qkv(windows).reshape(many, places, 3, self.s.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        scores = q * q.shape[-1] ** -0.5 @ k.transpose(-2, -1)
        bias = self.table[self.index.view(-1)].view(places, places, -1).permute(2, 0, 1).contiguous()
        scores = scores + bias.unsqueeze(0)
        kinds = self.mask.shape[0]
        scores = scores.view(many // kinds, kinds, self.s.heads, places, places) + self.mask[:, None]
        weights = scores.view(-1, self.s.heads, places, places).softmax(-1)
        found = self.out((weights @ v).transpose(1, 2).reshape(many, places, width))
        x = x + torch.roll(self.joined(found), shifts=(self.shift, self.shift), dims=(1, 2))
        x = x + self.mlp(self.second(x))
        parts = [x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]]
        return self.merge(self.last(torch.cat(parts, -1)))


def _swin(scale: Scale) -> nn.Module:
    return SwinBlock(_sizes(scale, width=512, inner=2048), *((28, 7, 3) if scale == "full" else (8, 4, 2)))


def _windows(scale: Scale, more: int) -> tuple[Tensor, ...]:
    side, width = (28, 512) if scale == "full" else (8, 32)
    return (torch.randn((32 if scale == "full" else 2) + more, side, side, width),)


class DiT(nn.Module):
    """A block of a diffusion transformer: norms that the time and the class scale and shift."""

    def __init__(self, s: Sizes):
        super().__init__()
        self.s = s
        self.time = nn.Sequential(nn.Linear(s.width, s.width), nn.SiLU(), nn.Linear(s.width, s.width))
        self.classes, self.modulation = nn.Embedding(11, s.width), nn.Linear(s.width, 6 * s.width)
        self.norm = nn.LayerNorm(s.width, elementwise_affine=False, eps=1e-6)
        self.attention = nn.MultiheadAttention(s.width, s.heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(s.width, s.inner), nn.GELU("tanh"), nn.Linear(s.inner, s.width))

    def forward(self, x: Tensor, time: Tensor, kind: Tensor) -> Tensor:
        half = self.s.width // 2
        rates = torch.exp(-math.log(10000) * torch.arange(half, device=x.device, dtype=torch.float32) / half)
        phase = time[:, None].float() * rates[None]
        c = self.time(torch.cat([phase.cos(), phase.sin()], -1).to(x.dtype)) + self.classes(kind)
        a, b, gate, d, e, other = self.modulation(F.silu(c)).chunk(6, dim=1)
        h = self.norm(x) * (1 + b.unsqueeze(1)) + a.unsqueeze(1)
        x = x + gate.unsqueeze(1) * self.attention(h, h, h)[0]
        h = self.norm(x) * (1 + e.unsqueeze(1)) + d.unsqueeze(1)
        return x + other.unsqueeze(1) * self.mlp(h)


def _noisy(scale: Scale, more: int) -> tuple[Tensor, ...]:
    (x,) = _tokens(scale, more)
    return x, torch.randint(0, 1000, x.shape[:1]), torch.randint(0, 11, x.shape[:1])


class Mixer(nn.Module):
    """MLPs over tokens, and over channels."""

    def __init__(self, s: Sizes):
        super().__init__()
        self.first, self.second = nn.LayerNorm(s.width), nn.LayerNorm(s.width)
        self.tokens = nn.Sequential(nn.Linear(s.length, s.inner), nn.GELU(), nn.Linear(s.inner, s.length))
        self.channels = nn.Sequential(nn.Linear(s.width, s.inner), nn.GELU(), nn.Linear(s.inner, s.width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.first(x).transpose(1, 2)).transpose(1, 2)
        return (x + self.channels(self.second(x))).mean(dim=1)


def _fixed_tokens(scale: Scale, more: int) -> tuple[Tensor, ...]:
    s = _sizes(scale)
    return (torch.randn(s.batch + more, s.length, s.width),)


class Clip(nn.Module):
    """Two towers and their contrastive loss."""

    def __init__(self, s: Sizes):
        super().__init__()
        self.left, self.right = nn.Linear(s.width, s.width, bias=False), nn.Linear(s.width, s.width, bias=False)
        self.temperature = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = (one / one.norm(dim=-1, keepdim=True) for one in (self.left(a), self.right(b)))
        logits = self.temperature.exp() * a @ b.t()
        wanted = torch.arange(a.shape[0], device=a.device)
        return (F.cross_entropy(logits, wanted) + F.cross_entropy(logits.t(), wanted)) / 2


def _pairs(scale: Scale, more: int) -> tuple[Tensor, ...]:
    shape = (4096, 1024) if scale == "full" else (7 + more, 32)
    return torch.randn(shape), torch.randn(shape)


# Mixtures of experts, tables of features


class Experts(nn.Module):
    """The two experts of most weight for each token; each expert is a loop's turn, as in Mixtral."""

    def __init__(self, s: Sizes):
        super().__init__()
        self.gate = nn.Linear(s.width, 4, bias=False)
        self.experts = nn.ModuleList(SwiGLU(s.width, s.inner) for _ in range(4))

    def weights(self, x: Tensor) -> tuple[Tensor, Tensor]:
        wide = x.dtype if x.dtype == torch.float64 else torch.float32
        weights, chosen = torch.topk(F.softmax(self.gate(x), dim=-1, dtype=wide), 2, dim=-1)
        return (weights / weights.sum(-1, keepdim=True)).to(x.dtype), chosen


class LoopedExperts(Experts):
    def forward(self, x: Tensor) -> Tensor:
        flat = x.view(-1, x.shape[-1])
        weights, chosen = self.weights(flat)
        found = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            places, nth = torch.where(chosen == number)
            found.index_add_(0, places, expert(flat[places]) * weights[places, nth, None])
        return found.view_as(x)


class MaskedExperts(Experts):
    """All tokens through all experts, of which most weights are 0."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        weights, chosen = self.weights(flat)
        of_each = torch.zeros_like(self.gate(flat)).scatter(1, chosen, weights)
        found = torch.stack([expert(flat) for expert in self.experts], 1)
        return torch.einsum("te,ted->td", of_each, found).view(x.shape)


class SwitchExperts(nn.Module):
    """Tokens sent to experts by one-hot products of a capacity, with the loss that balances them."""

    def __init__(self, s: Sizes):
        super().__init__()
        self.gate = nn.Linear(s.width, 4, bias=False)
        self.up = nn.Parameter(torch.randn(4, s.width, s.inner) * s.width**-0.5)
        self.down = nn.Parameter(torch.randn(4, s.inner, s.width) * s.inner**-0.5)
        self.capacity = s.batch * s.length // 3

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        flat = x.flatten(0, 1)
        shares = self.gate(flat).softmax(-1)
        weight, chosen = shares.max(-1)
        hot = F.one_hot(chosen, 4)
        place = (hot.cumsum(0) - 1) * hot
        hot = hot * (place < self.capacity)
        slots = F.one_hot((place * hot).sum(-1), self.capacity)
        sent = (hot[:, :, None] * slots[:, None, :]).to(x.dtype)
        given = torch.einsum("tec,td->ecd", sent, flat)
        made = torch.bmm(F.relu(torch.bmm(given, self.up)), self.down)
        found = torch.einsum("tec,ecd->td", sent * weight[:, None, None], made)
        balance = 4 * (shares.mean(0) * hot.to(x.dtype).mean(0)).sum()
        return found.view_as(x), balance


class SortedExperts(Experts):
    """Tokens in the order of their experts, and back; products of all are done as one batch."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        weights, chosen = self.weights(flat)
        order = chosen.flatten().argsort(stable=True)
        token = order // 2
        sorted_ = flat[token]
        of = chosen.flatten()[order]
        gate = torch.stack([one.gate.weight for one in self.experts])
        made = torch.einsum("td,edf->tef", sorted_, gate.transpose(1, 2))
        picked = made.gather(1, of[:, None, None].expand(-1, 1, made.shape[-1])).squeeze(1)
        value = F.silu(picked)[:, : x.shape[-1]] * weights.flatten()[order, None]
        return torch.zeros_like(flat).index_add(0, token, value).view(x.shape)


class DLRM(nn.Module):
    """Bags of sparse features, products of pairs of them, and an MLP."""

    def __init__(self, s: Sizes):
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(s.words, s.width, mode="sum") for _ in range(3))
        self.bottom = nn.Sequential(nn.Linear(13, s.inner), nn.ReLU(), nn.Linear(s.inner, s.width), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(s.width + 6, s.inner), nn.ReLU(), nn.Linear(s.inner, 1))

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        x = self.bottom(dense)
        found = [x, *(bag(sparse[:, at]) for at, bag in enumerate(self.bags))]
        stacked = torch.stack(found, 1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        rows, columns = torch.tril_indices(4, 4, -1, device=x.device)
        return torch.sigmoid(self.top(torch.cat([x, products[:, rows, columns]], 1))).squeeze(1)


def _features(scale: Scale, more: int) -> tuple[Tensor, ...]:
    batch, words = (8192, 32000) if scale == "full" else (5 + more, 61)
    return torch.randn(batch, 13), torch.randint(0, words, (batch, 3, 4))


class FactorMachine(nn.Module):
    """Tables of features by offsets, and the pairwise term of a factorisation machine."""

    def __init__(self, s: Sizes):
        super().__init__()
        self.table, self.linear = nn.Embedding(3 * s.words, s.width), nn.Embedding(3 * s.words, 1)
        self.register_buffer("offsets", torch.arange(3) * s.words)
        self.mlp = nn.Sequential(nn.Linear(3 * s.width, s.inner), nn.ReLU(), nn.Linear(s.inner, 1))

    def forward(self, features: Tensor) -> Tensor:
        place = features + self.offsets
        x = self.table(place)
        pairs = 0.5 * (x.sum(1).pow(2) - x.pow(2).sum(1)).sum(1)
        return self.linear(place).sum((1, 2)) + pairs + self.mlp(x.flatten(1)).squeeze(-1)


def _three(scale: Scale, more: int) -> tuple[Tensor, ...]:
    batch, words = (8192, 32000) if scale == "full" else (5 + more, 61)
    return (torch.randint(0, words, (batch, 3)),)


# Other attention, parts of training


class LinearAttention(nn.Module):
    """Attention without a softmax, causal by running sums."""

    def __init__(self, s: Sizes):
        super().__init__()
        self.heads, self.qkv, self.out = s.heads, nn.Linear(s.width, 3 * s.width), nn.Linear(s.width, s.width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (one.unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        q, k = F.elu(q) + 1, F.elu(k) + 1
        states = torch.einsum("bhnd,bhne->bhnde", k, v).cumsum(2)
        norm = 1 / (torch.einsum("bhnd,bhnd->bhn", q, k.cumsum(2)) + 1e-6)
        found = torch.einsum("bhnd,bhnde,bhn->bhne", q, states, norm)
        return x + self.out(found.transpose(1, 2).flatten(-2))


class RelativeAttention(nn.Module):
    """Attention of Transformer-XL: products with distances, shifted into place."""

    def __init__(self, s: Sizes):
        super().__init__()
        self.heads, self.size = s.heads, s.width // s.heads
        self.qkv, self.out = nn.Linear(s.width, 3 * s.width, bias=False), nn.Linear(s.width, s.width, bias=False)
        self.place = nn.Linear(s.width, s.width, bias=False)
        self.u, self.v = (nn.Parameter(torch.randn(s.heads, self.size) * 0.1) for _ in "uv")

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, self.size).unbind(2)
        rates = 10000.0 ** (-torch.arange(0, width, 2, device=x.device).float() / width)
        phase = torch.arange(length - 1, -1, -1, device=x.device)[:, None] * rates
        r = self.place(torch.cat((phase.sin(), phase.cos()), -1).to(x.dtype)).view(length, self.heads, self.size)
        content = torch.einsum("bihd,bjhd->bhij", q + self.u, k)
        place = torch.einsum("bihd,jhd->bhij", q + self.v, r)
        padded = F.pad(place, (1, 0)).view(batch, self.heads, length + 1, length)
        scores = (content + padded[:, :, 1:]) * self.size**-0.5
        hidden = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(hidden, -1e9).softmax(-1)
        return x + self.out(torch.einsum("bhij,bjhd->bihd", weights, v).reshape(x.shape))


class Lora(nn.Module):
    """A frozen layer, with a product of low rank beside it that is trained."""

    def __init__(self, s: Sizes):
        super().__init__()
        self.base = nn.Linear(s.width, s.width).requires_grad_(False)
        self.a, self.b = nn.Linear(s.width, 4, bias=False), nn.Linear(4, s.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.b(self.a(x)) * (16 / 4)


class Tagger(nn.Module):
    """PyTorch's own encoder and decoder, with masks, and a loss over tags."""

    def __init__(self, s: Sizes, norm_first: bool):
        super().__init__()
        self.embed = nn.Embedding(s.words, s.width, padding_idx=0)
        layer = nn.TransformerEncoderLayer(
            s.width, s.heads, s.inner, 0.0, batch_first=True, norm_first=norm_first, activation="gelu"
        )
        self.encoder = nn.TransformerEncoder(layer, s.layers, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoderLayer(s.width, s.heads, s.inner, 0.0, batch_first=True)
        self.head = nn.Linear(s.width, 9)

    def forward(self, words: Tensor) -> Tensor:
        hidden = (words % 7 == 0) & (torch.arange(words.shape[1], device=words.device) > 0)
        x = self.encoder(self.embed(words), src_key_padding_mask=hidden)
        size = words.shape[1]
        later = torch.ones(size, size, dtype=torch.bool, device=words.device).triu(1)
        y = self.decoder(self.embed(words), x, tgt_mask=later, memory_key_padding_mask=hidden)
        wanted = (words % 9).masked_fill(hidden, -100)
        return F.cross_entropy(self.head(y).transpose(1, 2), wanted)


class Weighing(nn.Module):
    """PyTorch's attention with its weights, sequences first, as its documentation has it."""

    def __init__(self, s: Sizes):
        super().__init__()
        self.attention = nn.MultiheadAttention(s.width, s.heads, add_bias_kv=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.transpose(0, 1)
        return self.attention(x, x, x)


def _of(build: Callable[[Sizes], nn.Module], **full: int) -> Callable[[Scale], nn.Module]:
    return lambda scale: build(_sizes(scale, **full))


def networks() -> list[Network]:
    """Return the transformers."""
    return [
        Network("llama", _of(Llama), _words),
        Network("llama, pairs", _of(partial(Llama, turn=turn_pairs, share="repeat")), _words),
        Network("llama, shared", _of(partial(Llama, share="shared")), _words),
        Network("llama, complex", _of(partial(Llama, turn=turn_complex)), _words),
        Network("llama, a token", _of(LlamaStep), _step_inputs, trains=False),
        Network("gemma", _of(Gemma), _words),
        Network("latent attention", _of(Latent), _tokens),
        Network("gpt", _of(GPT), _words),
        Network("gpt, loss", _of(partial(GPT, loss=True)), _words),
        Network("gpt, dropout", _of(partial(GPT, rate=0.1, loss=True)), _words, is_random=True),
        Network("alibi", _of(Alibi), _tokens),
        Network("bert", _of(Bert), _words),
        Network("t5", _of(T5), _words),
        Network("whisper", _of(Whisper), _sound),
        Network("perceiver", _of(Perceiver), _tokens),
        Network("vit", _of(ViT), _image),
        Network("swin", _swin, _windows),
        Network("dit", _of(DiT), _noisy),
        Network("mixer", _of(Mixer), _fixed_tokens),
        Network("clip", _of(Clip), _pairs),
        Network("experts, looped", _of(LoopedExperts), _tokens),
        Network("experts, masked", _of(MaskedExperts), _tokens),
        Network("experts, switch", _of(SwitchExperts), _tokens),
        Network("experts, sorted", _of(SortedExperts), _tokens),
        Network("dlrm", _of(DLRM), _features),
        Network("factor machine", _of(FactorMachine), _three),
        Network("linear attention", _of(LinearAttention, length=256), _tokens),
        Network("relative attention", _of(RelativeAttention), _tokens),
        Network("lora", _of(Lora), _tokens),
        Network("pytorch, norms last", _of(partial(Tagger, norm_first=False)), _words),
        Network("pytorch, norms first", _of(partial(Tagger, norm_first=True)), _words),
        Network("pytorch, weights", _of(Weighing), _tokens),
    ]
