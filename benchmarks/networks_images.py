"""Networks of images, written as people write them: convolutions, norms, pools, gates and skips."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def conv_norm(
    ins: int, outs: int, size: int = 3, stride: int = 1, groups: int = 1, act: Callable[[], nn.Module] = nn.ReLU
) -> nn.Sequential:
    """Return a convolution without bias, a batch norm and an activation."""
    conv = nn.Conv2d(ins, outs, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outs), act())


class Residual(nn.Module):
    """A bottleneck of ResNet or, with groups, of ResNeXt."""

    def __init__(self, ins: int, outs: int, stride: int = 1, groups: int = 1):
        super().__init__()
        inner = outs // 2
        self.body = nn.Sequential(
            conv_norm(ins, inner, 1),
            conv_norm(inner, inner, 3, stride, groups),
            conv_norm(inner, outs, 1, act=nn.Identity),
        )
        alike = stride == 1 and ins == outs
        self.skip = nn.Identity() if alike else conv_norm(ins, outs, 1, stride, act=nn.Identity)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.skip(x))


class ResNet(nn.Module):
    """Stem, pool, stages of bottlenecks, classes."""

    def __init__(self, width: int, depth: int, groups: int = 1, classes: int = 10):
        super().__init__()
        self.stem = nn.Sequential(conv_norm(3, width, 7, 2), nn.MaxPool2d(3, 2, 1))
        stages: list[nn.Module] = []
        ins = width
        for stage in range(depth):
            outs = 2 * width << stage
            stages += [Residual(ins, outs, 1 + (stage > 0), groups), Residual(outs, outs, 1, groups)]
            ins = outs
        self.stages, self.head = nn.Sequential(*stages), nn.Linear(ins, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages(self.stem(x))
        return self.head(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class SqueezeExcite(nn.Module):
    """Gates channels by their means."""

    def __init__(self, channels: int, inner: int, gate: Callable[[Tensor], Tensor]):
        super().__init__()
        self.down, self.up, self.gate = nn.Conv2d(channels, inner, 1), nn.Conv2d(inner, channels, 1), gate

    def forward(self, x: Tensor) -> Tensor:
        means = x.mean((2, 3), keepdim=True)
        return x * self.gate(self.up(F.relu(self.down(means))))


class Inverted(nn.Module):
    """A block of MobileNetV3 or EfficientNet: wide, depthwise, gated, narrow, with stochastic depth."""

    def __init__(
        self, ins: int, outs: int, stride: int, act: Callable[[], nn.Module], gate: Callable[[Tensor], Tensor]
    ):
        super().__init__()
        wide = ins * 4
        self.body = nn.Sequential(
            conv_norm(ins, wide, 1, act=act),
            conv_norm(wide, wide, 5, stride, wide, act=act),
            SqueezeExcite(wide, ins, gate),
            conv_norm(wide, outs, 1, act=nn.Identity),
        )
        self.is_residual = stride == 1 and ins == outs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.is_residual else self.body(x)


class Mobile(nn.Module):
    """MobileNetV3 (hard swish) or EfficientNet (swish)."""

    def __init__(self, width: int, act: Callable[[], nn.Module], gate: Callable[[Tensor], Tensor], classes: int = 10):
        super().__init__()
        block = partial(Inverted, act=act, gate=gate)
        self.body = nn.Sequential(
            conv_norm(3, width, 3, 2, act=act),
            block(width, width, 1),
            block(width, 2 * width, 2),
            block(2 * width, 2 * width, 1),
            conv_norm(2 * width, 4 * width, 1, act=act),
        )
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class ConvNeXtBlock(nn.Module):
    """Depthwise convolution, layer norm of channels, an MLP and a scale."""

    def __init__(self, width: int):
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width, eps=1e-6)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(F.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


class ChannelNorm(nn.Module):
    """Layer norm along channels that lie first."""

    def __init__(self, width: int):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        var = (x - mean).pow(2).mean(1, keepdim=True)
        return self.weight[:, None, None] * ((x - mean) / torch.sqrt(var + 1e-6)) + self.bias[:, None, None]


class ConvNeXt(nn.Module):
    """Patches, two stages, classes."""

    def __init__(self, width: int, classes: int = 10):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 4, 4), ChannelNorm(width))
        down = nn.Sequential(ChannelNorm(width), nn.Conv2d(width, 2 * width, 2, 2))
        self.body = nn.Sequential(ConvNeXtBlock(width), ConvNeXtBlock(width), down, ConvNeXtBlock(2 * width))
        self.norm, self.head = nn.LayerNorm(2 * width), nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.body(self.stem(x)).mean([-2, -1])))


class DenseNet(nn.Module):
    """Each layer reads all that came before."""

    def __init__(self, width: int, growth: int, layers: int, classes: int = 10):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.layers = nn.ModuleList()
        for _ in range(layers):
            norm, inner = nn.BatchNorm2d(width), nn.Conv2d(width, growth, 3, padding=1, bias=False)
            self.layers.append(nn.Sequential(norm, nn.ReLU(inplace=True), inner))
            width += growth
        conv = nn.Conv2d(width, width // 2, 1, bias=False)
        self.down = nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), conv, nn.AvgPool2d(2, 2))
        self.head = nn.Linear(width // 2, classes)

    def forward(self, x: Tensor) -> Tensor:
        found = [self.stem(x)]
        for layer in self.layers:
            found.append(layer(torch.cat(found, 1)))
        return self.head(self.down(torch.cat(found, 1)).mean((2, 3)))


def time_embedding(t: Tensor, width: int) -> Tensor:
    """Return sines and cosines of a time."""
    rates = torch.exp(-torch.log(torch.tensor(10000.0)) * torch.arange(width // 2, device=t.device) / (width // 2))
    angles = t.float()[:, None] * rates[None]
    return torch.cat([angles.cos(), angles.sin()], -1)


class TimedBlock(nn.Module):
    """Group norm, swish, convolution, a time's shift, dropout, twice, with a skip."""

    def __init__(self, ins: int, outs: int, time: int):
        super().__init__()
        self.first, self.second = nn.GroupNorm(4, ins), nn.GroupNorm(4, outs)
        self.conv, self.last = nn.Conv2d(ins, outs, 3, padding=1), nn.Conv2d(outs, outs, 3, padding=1)
        self.shift, self.skip = nn.Linear(time, 2 * outs), nn.Conv2d(ins, outs, 1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = self.conv(F.silu(self.first(x)))
        scale, shift = self.shift(F.silu(t))[:, :, None, None].chunk(2, dim=1)
        h = self.second(h) * (1 + scale) + shift
        return self.last(F.silu(h)) + self.skip(x)


class UNet(nn.Module):
    """A diffusion model's network: down, middle with attention, up with skips."""

    def __init__(self, width: int):
        super().__init__()
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, 4 * width))
        self.stem, self.head = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        block = partial(TimedBlock, time=4 * width)
        self.one, self.down = block(width, width), nn.Conv2d(width, width, 3, 2, 1)
        self.two, self.middle = block(width, 2 * width), block(2 * width, 2 * width)
        self.norm, self.qkv = nn.GroupNorm(4, 2 * width), nn.Conv2d(2 * width, 6 * width, 1)
        self.three, self.up = block(4 * width, width), nn.Conv2d(width, width, 3, padding=1)
        self.four, self.last = block(2 * width, width), nn.GroupNorm(4, width)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        t = self.time(time_embedding(t, self.width).to(x.dtype))
        one = self.one(self.stem(x), t)
        two = self.two(self.down(one), t)
        y = self.middle(two, t)
        q, k, v = self.qkv(self.norm(y)).flatten(2).chunk(3, 1)
        weights = torch.softmax(torch.einsum("bci,bcj->bij", q, k) * q.shape[1] ** -0.5, -1)
        y = y + torch.einsum("bij,bcj->bci", weights, v).view_as(y)
        y = self.three(torch.cat([y, two], 1), t)
        y = self.up(F.interpolate(y, scale_factor=2.0, mode="nearest"))
        y = self.four(torch.cat([y, one], 1), t)
        return self.head(F.silu(self.last(y)))


class Segmenter(nn.Module):
    """A UNet of transposed convolutions and bilinear sizes, with the dice loss."""

    def __init__(self, width: int):
        super().__init__()
        self.one, self.two = conv_norm(3, width), conv_norm(width, 2 * width)
        self.up, self.three = nn.ConvTranspose2d(2 * width, width, 2, 2), conv_norm(2 * width, width)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        one = self.one(x)
        two = self.two(F.max_pool2d(one, 2))
        y = self.head(self.three(torch.cat((self.up(two), one), dim=1)))
        half = F.interpolate(y, scale_factor=0.5, mode="bilinear", align_corners=False)
        p = torch.sigmoid(y).flatten(1)
        both = (p * mask.flatten(1)).sum(1)
        dice = 1 - (2 * both + 1) / (p.sum(1) + mask.flatten(1).sum(1) + 1)
        return dice.mean() + 0.1 * half.abs().mean()


class Pyramid(nn.Module):
    """Spatial pyramid pooling, bilinear sizes and pixel shuffle (super-resolution)."""

    def __init__(self, width: int):
        super().__init__()
        self.stem, self.act = nn.Conv2d(3, width, 3, padding=1, padding_mode="reflect"), nn.PReLU()
        self.parts = nn.ModuleList(nn.Conv2d(width, width // 2, 1) for _ in range(3))
        self.head = nn.Conv2d(width + 3 * (width // 2), 12, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.stem(x))
        found = [y]
        for size, part in zip((1, 2, 4), self.parts, strict=True):
            small = F.leaky_relu(part(F.adaptive_avg_pool2d(y, size)), 0.2)
            found.append(F.interpolate(small, size=y.shape[2:], mode="bilinear", align_corners=False))
        wide = F.pixel_shuffle(self.head(torch.cat(found, 1)), 2)
        return wide + F.interpolate(x, scale_factor=2, mode="bicubic", align_corners=False)


class VAE(nn.Module):
    """Encoder, reparametrisation, decoder; gives the evidence's lower bound."""

    def __init__(self, width: int, latent: int):
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv2d(1, width, 3, 2, 1), nn.ELU(), nn.Conv2d(width, width, 3, 2, 1), nn.ELU(), nn.Flatten()
        )
        self.mean, self.spread = nn.LazyLinear(latent), nn.LazyLinear(latent)
        self.grow = nn.Linear(latent, width * 16)
        self.decode = nn.Sequential(
            nn.Unflatten(1, (width, 4, 4)),
            nn.ConvTranspose2d(width, width, 4, 2, 1),
            nn.ELU(),
            nn.ConvTranspose2d(width, 1, 4, 2, 1),
        )

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        h = self.encode(x)
        mean, spread = self.mean(h), self.spread(h)
        z = mean + noise * torch.exp(0.5 * spread)
        y = self.decode(F.elu(self.grow(z)))
        likelihood = F.binary_cross_entropy_with_logits(y, x.sigmoid(), reduction="none").sum((1, 2, 3))
        divergence = -0.5 * torch.sum(1 + spread - mean.pow(2) - spread.exp(), dim=1)
        return (likelihood + divergence).mean()


class Generator(nn.Module):
    """DCGAN's generator."""

    def __init__(self, latent: int, width: int):
        super().__init__()
        layers: list[nn.Module] = []
        sizes: Sequence[tuple[int, int, int, int]] = (
            (latent, 4 * width, 1, 0),
            (4 * width, 2 * width, 2, 1),
            (2 * width, width, 2, 1),
        )
        for ins, outs, stride, padding in sizes:
            conv = nn.ConvTranspose2d(ins, outs, 4, stride, padding, bias=False)
            layers += [conv, nn.BatchNorm2d(outs), nn.ReLU(True)]
        self.body = nn.Sequential(*layers, nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh())

    def forward(self, z: Tensor) -> Tensor:
        return self.body(z[:, :, None, None])


class Discriminator(nn.Module):
    """Instance norms and leaky activations; gives hinge and gradient-free losses."""

    def __init__(self, width: int):
        super().__init__()
        self.one, self.two = nn.Conv2d(3, width, 4, 2, 1), nn.Conv2d(width, 2 * width, 4, 2, 1)
        self.norm, self.head = nn.InstanceNorm2d(2 * width, affine=True), nn.Conv2d(2 * width, 1, 3, padding=1)

    def forward(self, real: Tensor, fake: Tensor) -> Tensor:
        scores = []
        for x in (real, fake):
            y = F.leaky_relu(self.one(x), 0.2, inplace=True)
            scores.append(self.head(F.leaky_relu(self.norm(self.two(y)), 0.2)))
        return F.relu(1.0 - scores[0]).mean() + F.relu(1.0 + scores[1]).mean() + F.softplus(-scores[1]).mean()


class Capsules(nn.Module):
    """Capsules with routing by agreement."""

    def __init__(self, capsules: int, classes: int, rounds: int = 3):
        super().__init__()
        self.conv, self.rounds = nn.Conv2d(1, capsules * 8, 5, 4), rounds
        self.weight = nn.Parameter(torch.randn(classes, capsules * 9, 8, 4) * 0.1)

    def squash(self, x: Tensor) -> Tensor:
        """Return vectors whose lengths are below 1."""
        square = x.square().sum(-1, keepdim=True)
        return square / (1 + square) * x / torch.sqrt(square + 1e-8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        y = self.squash(y.view(y.shape[0], -1, 8))
        votes = torch.einsum("bni,cnio->bcno", y, self.weight)
        logits = torch.zeros_like(votes[..., 0])
        out = votes.mean(2)
        for turn in range(self.rounds):
            shares = torch.softmax(logits, dim=1)
            out = self.squash((shares[..., None] * votes).sum(2))
            if turn + 1 < self.rounds:
                logits = logits + (votes * out[:, :, None]).sum(-1)
        return out.norm(dim=-1)


class Spatial(nn.Module):
    """A spatial transformer: an affine grid samples the image."""

    def __init__(self, width: int):
        super().__init__()
        self.where = nn.Sequential(nn.Conv2d(1, width, 5, 2), nn.ReLU(), nn.AdaptiveMaxPool2d(2), nn.Flatten())
        self.theta = nn.Linear(4 * width, 6)
        self.head = nn.Conv2d(1, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        theta = self.theta(self.where(x)).view(-1, 2, 3) * 0.1 + torch.eye(2, 3, device=x.device, dtype=x.dtype)
        grid = F.affine_grid(theta, x.shape, align_corners=False)
        return self.head(F.grid_sample(x, grid, align_corners=False)).mean((2, 3))
