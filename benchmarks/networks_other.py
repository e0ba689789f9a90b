"""Networks that are no transformers: how each is built, and what it takes, in a small size and as people train it."""

from __future__ import annotations

from collections.abc import Callable

import networks_images as images
import networks_sequences as sequences
import networks_sets as sets
import torch
from network import Network, Scale
from torch import Tensor, nn
from torch.nn import functional as F


def _network(
    name: str, build: Callable[[bool], nn.Module], inputs: Callable[[bool, int], tuple[Tensor, ...]], batch: int = 64
) -> Network:
    """Return a network.

    Args:
        name: what it is called.
        build: gives the module, in full size if so asked.
        inputs: gives what it takes: in full size or not, and for so many examples.
        batch: how many examples a full step takes.
    """

    def given(scale: Scale, more: int) -> tuple[Tensor, ...]:
        is_full = scale == "full"
        return inputs(is_full, (batch if is_full else 4) + more)

    return Network(name, lambda scale: build(scale == "full"), given)


def _given(small: tuple[int, ...], full: tuple[int, ...]) -> Callable[[bool, int], tuple[Tensor, ...]]:
    return lambda is_full, batch: (torch.randn(batch, *(full if is_full else small)),)


def _graph(is_full: bool, batch: int) -> tuple[Tensor, ...]:
    nodes = batch * (256 if is_full else 3)
    return torch.randn(nodes, 64 if is_full else 8), torch.randint(0, nodes, (2, 8 * nodes))


def _recommended(is_full: bool, batch: int) -> tuple[Tensor, ...]:
    rows, tables, dense = (100_000, 8, 13) if is_full else (20, 3, 5)
    return torch.randn(batch, dense), torch.randint(0, rows, (batch, tables, 4)), torch.rand(batch).round()


def _detected(is_full: bool, batch: int) -> tuple[Tensor, ...]:
    size, classes, anchors = (256, 80, 1000) if is_full else (8, 5, 6)
    boxes = torch.rand(batch, anchors, 4) * 0.5 + 0.2
    return torch.randn(batch, anchors, size), torch.randint(0, classes, (batch, anchors)), boxes


def _timed(is_full: bool, batch: int) -> tuple[Tensor, ...]:
    size = 64 if is_full else 8
    return torch.randn(batch, 3, size, size), torch.randint(0, 1000, (batch,))


def _masked(is_full: bool, batch: int) -> tuple[Tensor, ...]:
    size = 128 if is_full else 8
    return torch.randn(batch, 3, size, size), torch.rand(batch, 1, size, size).round()


def _varied(is_full: bool, batch: int) -> tuple[Tensor, ...]:
    return torch.rand(batch, 1, 16, 16), torch.randn(batch, 32 if is_full else 4)


def _vae(is_full: bool) -> nn.Module:
    model = images.VAE(64 if is_full else 4, 32 if is_full else 4)
    model(*_varied(is_full, 2))  # sizes of the lazy layers
    return model


def _integers(
    small: tuple[int, ...], full: tuple[int, ...], values: tuple[int, int]
) -> Callable[[bool, int], tuple[Tensor, ...]]:
    def make(is_full: bool, batch: int) -> tuple[Tensor, ...]:
        return (torch.randint(0, values[is_full], (batch, *(full if is_full else small))),)

    return make


def _ranked(is_full: bool, batch: int) -> tuple[Tensor, ...]:
    count = 50_000 if is_full else 11
    return tuple(torch.randint(0, count, (batch,)) for _ in range(3))


def _played(is_full: bool, batch: int) -> tuple[Tensor, ...]:
    size, actions = (64, 18) if is_full else (5, 4)
    return torch.randn(batch, size), torch.randint(0, actions, (batch,)), torch.randn(batch)


_NETWORKS = (
    _network(
        "resnet",
        lambda full: images.ResNet(64 if full else 4, 4 if full else 2),
        _given((3, 16, 16), (3, 224, 224)),
        32,
    ),
    _network(
        "resnext",
        lambda full: images.ResNet(64 if full else 8, 3 if full else 1, 4),
        _given((3, 16, 16), (3, 224, 224)),
        32,
    ),
    _network(
        "mobilenet",
        lambda full: images.Mobile(32 if full else 4, nn.Hardswish, F.hardsigmoid),
        _given((3, 12, 12), (3, 224, 224)),
        32,
    ),
    _network(
        "efficientnet",
        lambda full: images.Mobile(32 if full else 4, nn.SiLU, torch.sigmoid),
        _given((3, 12, 12), (3, 224, 224)),
        32,
    ),
    _network("convnext", lambda full: images.ConvNeXt(96 if full else 8), _given((3, 16, 16), (3, 224, 224)), 32),
    _network(
        "densenet",
        lambda full: images.DenseNet(64 if full else 4, 32 if full else 3, 12 if full else 3),
        _given((3, 8, 8), (3, 56, 56)),
        32,
    ),
    _network("unet", lambda full: images.UNet(64 if full else 8), _timed, 16),
    _network("segmenter", lambda full: images.Segmenter(64 if full else 4), _masked, 16),
    _network("pyramid", lambda full: images.Pyramid(64 if full else 6), _given((3, 8, 8), (3, 96, 96)), 16),
    _network("vae", _vae, _varied, 256),
    _network(
        "generator", lambda full: images.Generator(100 if full else 5, 64 if full else 4), _given((5,), (100,)), 64
    ),
    _network(
        "discriminator",
        lambda full: images.Discriminator(64 if full else 4),
        lambda full, batch: tuple(torch.randn(batch, 3, *[64 if full else 8] * 2) for _ in range(2)),
    ),
    _network(
        "capsules", lambda full: images.Capsules(8 if full else 2, 10 if full else 3), _given((1, 16, 16), (1, 16, 16))
    ),
    _network("spatial", lambda full: images.Spatial(16 if full else 4), _given((1, 12, 12), (1, 64, 64))),
    _network(
        "lstm by hand", lambda full: sequences.LSTMByHand(*([256, 512] if full else [6, 8])), _given((5, 6), (64, 256))
    ),
    _network("cells", lambda full: sequences.GRUCells(*([256, 256] if full else [6, 8])), _given((4, 6), (32, 256))),
    _network(
        "lstm", lambda full: sequences.Recurrent("LSTM", *([256, 256] if full else [6, 8])), _given((4, 6), (32, 256))
    ),
    _network(
        "gru", lambda full: sequences.Recurrent("GRU", *([256, 256] if full else [6, 8])), _given((4, 6), (32, 256))
    ),
    _network(
        "mamba 2",
        lambda full: sequences.Mamba2(*([512, 16, 64, 64] if full else [8, 2, 4, 4])),
        _given((12, 8), (512, 512)),
        8,
    ),
    _network(
        "mamba", lambda full: sequences.Mamba1(*([512, 16, 32] if full else [6, 4, 2])), _given((5, 6), (64, 512)), 8
    ),
    _network("rwkv", lambda full: sequences.RWKV(512 if full else 8), _given((5, 8), (64, 512)), 8),
    _network(
        "retention", lambda full: sequences.Retention(*([512, 8] if full else [8, 2])), _given((7, 8), (512, 512)), 8
    ),
    _network("tcn", lambda full: sequences.TCN(*([32, 64] if full else [3, 6])), _given((3, 14), (32, 512))),
    _network(
        "wavenet",
        lambda full: sequences.WaveNet(*([256, 64, 8] if full else [9, 6, 3])),
        _integers((12,), (2048,), (9, 256)),
        8,
    ),
    _network("mixer", lambda full: sequences.Mixer(*([196, 512] if full else [6, 8])), _given((6, 8), (196, 512)), 32),
    _network(
        "gmlp", lambda full: sequences.GatedMLP(*([196, 256] if full else [6, 8])), _given((6, 8), (196, 256)), 32
    ),
    _network("hyena", lambda full: sequences.Hyena(*([256, 1024] if full else [6, 8])), _given((8, 6), (1024, 256)), 8),
    _network("kan", lambda full: sets.KAN(*([256, 256] if full else [5, 4])), _given((5,), (256,)), 512),
    _network("messages", lambda full: sets.Messages(64 if full else 8), _graph),
    _network("graph convolution", lambda full: sets.GraphConvolution(64 if full else 8), _graph),
    _network("graph attention", lambda full: sets.GraphAttention(*([64, 4] if full else [8, 2])), _graph),
    _network("dlrm", lambda full: sets.DLRM(*([100_000, 64, 8, 13] if full else [20, 4, 3, 5])), _recommended, 2048),
    _network(
        "factorization machine",
        lambda full: sets.FactorizationMachine(*([100_000, 26, 16] if full else [30, 4, 3])),
        _integers((4,), (26,), (30, 100_000)),
        2048,
    ),
    _network("factors", lambda full: sets.Factors(*([50_000, 50_000, 64] if full else [11, 11, 4])), _ranked, 4096),
    _network(
        "nerf",
        lambda full: sets.NeRF(256 if full else 8),
        lambda full, batch: (torch.randn(batch, 3), torch.randn(batch, 3)),
        4096,
    ),
    _network("siren", lambda full: sets.Siren(256 if full else 8), _given((2,), (2,)), 65536),
    _network("pointnet", lambda full: sets.PointNet(64 if full else 6), _given((3, 10), (3, 1024)), 32),
    _network(
        "edge convolution",
        lambda full: sets.EdgeConvolution(*([64, 20] if full else [6, 3])),
        _given((7, 3), (1024, 3)),
        8,
    ),
    _network(
        "deep sets",
        lambda full: sets.DeepSets(*([64, 256] if full else [4, 6])),
        lambda full, batch: (torch.randn(batch, 9, 64 if full else 4), torch.randint(1, 10, (batch,))),
        512,
    ),
    _network("spectral", lambda full: sets.Spectral(*([64, 16] if full else [4, 3])), _given((4, 12), (64, 256)), 32),
    _network("coupling", lambda full: sets.Coupling(*([64, 128, 8] if full else [5, 6, 3])), _given((5,), (64,)), 1024),
    _network(
        "mixture density",
        lambda full: sets.MixtureDensity(*([32, 8, 128] if full else [4, 3, 6])),
        lambda full, batch: (torch.randn(batch, 32 if full else 4), torch.randn(batch)),
        1024,
    ),
    _network(
        "autoencoder",
        lambda full: sets.AutoEncoder(*([512, 4096, 32] if full else [6, 12, 3])),
        _given((6,), (512,)),
        1024,
    ),
    _network(
        "neural ode", lambda full: sets.NeuralODE(*([64, 128, 8] if full else [3, 6, 3])), _given((3,), (64,)), 1024
    ),
    _network(
        "contrast",
        lambda full: sets.Contrast(*([512, 256] if full else [6, 5])),
        lambda full, batch: tuple(torch.randn(batch, 512 if full else 6) for _ in range(2)),
        512,
    ),
    _network(
        "arcface",
        lambda full: sets.ArcFace(*([256, 1000] if full else [6, 5])),
        lambda full, batch: (
            torch.randn(batch, 256 if full else 6),
            torch.randint(0, 1000 if full else 5, (batch,)),
        ),
        512,
    ),
    _network("detector", lambda full: sets.Detector(*([256, 80] if full else [8, 5])), _detected, 16),
    _network("policy", lambda full: sets.Policy(*([64, 18] if full else [5, 4])), _played, 4096),
    _network(
        "quantised", lambda full: sets.Quantised(*([64, 512, 32] if full else [5, 7, 4])), _given((5,), (64,)), 2048
    ),
)


def networks() -> tuple[Network, ...]:
    """Return all of them, by families: images, sequences, sets."""
    return _NETWORKS
