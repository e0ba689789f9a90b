"""The Triton peer of `gemm.py`: a persistent matrix product over tensor descriptors (TMA), tuned per problem.

One program per multiprocessor walks the tiles in groups of rows, so that the operands of neighbouring tiles stay in L2.
Operands come through tensor descriptors made on the host, in whichever order they are stored; the epilogue adds a bias
and applies GELU where asked, and stores the tile in one or two halves, the smaller of which leaves shared memory for
one more stage. Each problem is tuned over a handful of tile shapes by the device's time; those that give a wrong result
are left out. TMA wants rows that start at multiples of 16 bytes: a product without them has no such peer. Triton 3.6's
own warp specialisation is not used: on an H200 its products read outside of their operands.

Written for Triton 3.6. Source: its reference pages of `make_tensor_descriptor`, `range`, `dot`, `AsyncCompileMode`.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from triton.runtime.errors import OutOfResources
from triton.tools.tensor_descriptor import TensorDescriptor

Call = Callable[[], Any]


class Unsupported(Exception):
    """The operands' addresses or strides are not TMA's."""


@dataclass(frozen=True)
class Config:
    """One point of the space: a tile, the stages of its ring, and who works on it.

    Args:
        bm: rows of a tile.
        bn: columns of a tile.
        bk: bytes of the contraction that one stage holds.
        stages: stages of the ring of operands.
        warps: warps of a program.
        halves: parts in which the epilogue stores a tile.
    """

    bm: int
    bn: int
    bk: int
    stages: int
    warps: int
    halves: int = 1


LARGE = (
    Config(128, 256, 128, 3, 8),
    Config(128, 256, 128, 3, 8, halves=2),
    Config(128, 256, 128, 4, 8, halves=2),
    Config(256, 128, 128, 3, 8, halves=2),
    Config(128, 128, 128, 4, 8),
    Config(128, 128, 128, 4, 4),
)
FEW_ROWS = (
    Config(64, 32, 256, 5, 4),
    Config(64, 64, 256, 4, 4),
    Config(64, 128, 128, 5, 4),
    Config(128, 64, 256, 4, 4),
    Config(128, 64, 128, 6, 4),
    Config(128, 128, 128, 4, 4),
)
"""Small tiles: so few rows give the large ones to a part of the multiprocessors only."""

GROUP = 8
"""Rows of tiles that are walked together."""


@triton.jit
def _place(tile, M, N, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    rows, columns = tl.cdiv(M, BM), tl.cdiv(N, BN)
    first = tile // (GROUP * columns) * GROUP
    height = min(rows - first, GROUP)
    within = tile % (GROUP * columns)
    return first + within % height, within // height


@triton.jit
def _finished(x, bias, columns, N, BIAS_GELU: tl.constexpr):
    if BIAS_GELU:
        x += tl.load(bias + columns, mask=columns < N, other=0.0).to(tl.float32)[None, :]
        x *= tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    return x


@triton.jit
def _product(
    a_tiles,
    b_tiles,
    c_tiles,
    bias,
    M,
    N,
    K,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    HALVES: tl.constexpr,
    GROUP: tl.constexpr,
    A_TRANSPOSED: tl.constexpr,
    B_TRANSPOSED: tl.constexpr,
    BIAS_GELU: tl.constexpr,
    ACC: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    tiles = tl.cdiv(M, BM) * tl.cdiv(N, BN)
    steps = tl.cdiv(K, BK)
    # One flat loop over tiles and steps keeps the ring full across tiles.
    for tile in tl.range(tl.program_id(0), tiles, PROGRAMS, flatten=True):
        row, column = _place(tile, M, N, BM, BN, GROUP)
        m, n = row * BM, column * BN
        acc = tl.zeros((BM, BN), dtype=ACC)
        for step in range(steps):
            k = step * BK
            if A_TRANSPOSED:
                a = a_tiles.load([k, m]).T
            else:
                a = a_tiles.load([m, k])
            if B_TRANSPOSED:
                b = b_tiles.load([n, k]).T
            else:
                b = b_tiles.load([k, n])
            acc = tl.dot(a, b, acc, out_dtype=ACC)
        if HALVES == 1:
            columns = n + tl.arange(0, BN)
            c_tiles.store([m, n], _finished(acc, bias, columns, N, BIAS_GELU).to(c_tiles.dtype))
        else:
            left, right = acc.reshape((BM, 2, BN // 2)).permute((0, 2, 1)).split()
            columns = n + tl.arange(0, BN // 2)
            c_tiles.store([m, n], _finished(left, bias, columns, N, BIAS_GELU).to(c_tiles.dtype))
            columns += BN // 2
            right = _finished(right, bias, columns, N, BIAS_GELU)
            c_tiles.store([m, n + BN // 2], right.to(c_tiles.dtype))


class Peer:
    """Triton's product; the best configuration of each problem is kept."""

    def __init__(self, seconds: Callable[[Call], float]):
        """Make the peer.

        Args:
            seconds: gives the device's time of a call, for the tuning.
        """
        self.seconds = seconds
        self.chosen: dict[tuple[Any, ...], Config] = {}
        # Descriptors that a kernel makes lie in device memory, which Triton asks its host program for.
        triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device="cuda"))

    def tune(self, a: Any, b: Any, out: Any, bias: Any, right: Callable[[Config, Call], bool]) -> None:
        """Choose the fastest configuration of this problem whose result is right.

        Args:
            a: (M, K), stored by rows or by columns.
            b: (K, N), likewise.
            out: (M, N), stored by rows.
            bias: (N,), or None for a plain product.
            right: runs a call of a configuration and says whether its result is right.

        Raises:
            Unsupported: TMA cannot read these operands, or no configuration fits.
        """
        for name, x in (("A", a), ("B", b), ("C", out)):
            if not _tma_can_read(x):
                raise Unsupported(f"TMA cannot read {name} with strides {tuple(x.stride())} of {x.dtype}")
        space = FEW_ROWS if a.shape[0] <= 128 else LARGE
        configs = list(space)
        with ThreadPoolExecutor() as pool, triton.AsyncCompileMode(pool):
            for config in configs:
                launcher(config, a, b, out, bias, run=False)()
        timed: dict[Config, float] = {}
        for config in configs:
            call = launcher(config, a, b, out, bias)
            try:
                if right(config, call):
                    timed[config] = self.seconds(call)
            except OutOfResources:  # shared memory: known only once the driver loads the kernel
                continue
        if not timed:
            raise Unsupported("no configuration fits")
        self.chosen[_problem(a, b, out, bias)] = min(timed, key=timed.__getitem__)

    def bound(self, a: Any, b: Any, out: Any, bias: Any = None) -> Call:
        """Return the call that computes `out = a·b`, or `out = GELU(a·b + bias)`, of a tuned problem."""
        return launcher(self.chosen[_problem(a, b, out, bias)], a, b, out, bias)


def _problem(a: Any, b: Any, out: Any, bias: Any) -> tuple[Any, ...]:
    return (*a.shape, b.shape[1], _by_columns(a), _by_columns(b), a.dtype, out.dtype, bias is None)


def launcher(config: Config, a: Any, b: Any, out: Any, bias: Any, run: bool = True) -> Call:
    """Return the call that launches (or only compiles) the kernel; descriptors are made here, not at each call."""
    (m, k), n = a.shape, b.shape[1]
    bk = config.bk // a.element_size()
    programs = torch.cuda.get_device_properties(out.device).multi_processor_count
    tiles = triton.cdiv(m, config.bm) * triton.cdiv(n, config.bn)
    c = _descriptor(out, (config.bm, config.bn // config.halves))
    descriptors = (_descriptor(a, (config.bm, bk)), _descriptor(b, (bk, config.bn)), c)
    options = constants(config, a, b, out, bias is not None, programs)
    options |= dict(num_warps=config.warps, num_stages=config.stages)
    # An unused pointer must still be one: the output stands in for a bias that is not there.
    arguments = (*descriptors, out if bias is None else bias, m, n, k)
    grid = (min(programs, tiles),)

    def call() -> Any:
        if run:
            _product[grid](*arguments, **options)
            return out
        return _product.warmup(*arguments, grid=grid, **options)

    return call


def constants(config: Config, a: Any, b: Any, out: Any, finish: bool, programs: int) -> dict[str, Any]:
    """Return the kernel's compile-time arguments."""
    return dict(
        BM=config.bm,
        BN=config.bn,
        BK=config.bk // a.element_size(),
        HALVES=config.halves,
        GROUP=GROUP,
        A_TRANSPOSED=_by_columns(a),
        B_TRANSPOSED=_by_columns(b),
        BIAS_GELU=finish,
        ACC=tl.int32 if out.dtype == torch.int32 else tl.float32,
        PROGRAMS=programs,
    )


def _by_columns(x: Any) -> bool:
    return x.stride(1) != 1


def _descriptor(x: Any, block: tuple[int, int]) -> Any:
    stored, block = (x.T, block[::-1]) if _by_columns(x) else (x, block)
    return TensorDescriptor.from_tensor(stored, list(block))


def _tma_can_read(x: Any) -> bool:
    strides = sorted(x.stride())
    return strides[0] == 1 and strides[1] * x.element_size() % 16 == 0 and x.data_ptr() % 16 == 0
