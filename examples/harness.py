"""What the examples share: where arrays live, how a result is judged, and the command line."""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import tessera as ts

TOLERANCE = {"f32": 4e-6, "f16": 2e-3, "bf16": 1.2e-2}
"""Largest error allowed, over the largest expected value: a few roundings of the element type."""


class Place:
    """Where an example runs: NumPy arrays on the CPU, PyTorch tensors on a GPU.

    Args:
        device: `cpu` or `cuda`.
        dtype: element type; by default f32 on the CPU and bf16 on a GPU.
        seed: seed of the inputs.
    """

    def __init__(self, device: str = "cpu", dtype: ts.DType | None = None, seed: int = 0) -> None:
        self.device = device
        self.dtype = dtype or (ts.f32 if device == "cpu" else ts.bf16)
        self._random = np.random.default_rng(seed)

    def normal(self, *shape: int, dtype: ts.DType | None = None) -> Any:
        """Return an array of normally distributed numbers."""
        return self.array(self._random.standard_normal(shape, np.float32), dtype)

    def empty(self, *shape: int, dtype: ts.DType | None = None) -> Any:
        """Return an array of NaN: an element that a kernel forgets is then seen."""
        return self.array(np.full(shape, np.nan, np.float32), dtype)

    def array(self, values: np.ndarray, dtype: ts.DType | None = None) -> Any:
        """Return numbers as an array of this place."""
        dtype = dtype or self.dtype
        if self.device == "cpu":
            return np.ascontiguousarray(values).astype(dtype.numpy())
        import torch

        kinds = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
        return torch.from_numpy(np.ascontiguousarray(values)).to("cuda", kinds[dtype.name])

    def finish(self) -> None:
        """Wait for the device."""
        if self.device != "cpu":
            import torch

            torch.cuda.synchronize()


def host(array: Any) -> np.ndarray:
    """Return an array of any place as float64 in NumPy."""
    if not isinstance(array, np.ndarray):
        array = array.float().cpu().numpy()
    return array.astype(np.float64)


@dataclass
class Case:
    """One call of a kernel and what it must give.

    Args:
        name: what runs, with its shapes.
        place: where.
        call: runs the kernel and returns its result. A kernel may add to an argument: the first call counts.
        expected: the result of the first call in float64.
        tolerance: largest error allowed, over the largest expected value.
    """

    name: str
    place: Place
    call: Callable[[], Any]
    expected: np.ndarray
    tolerance: float

    def run(self) -> tuple[float, float]:
        """Make the first call; returns the error and the seconds taken, compilation included."""
        start = time.perf_counter()
        got = self.call()
        self.place.finish()
        seconds = time.perf_counter() - start
        worst = np.max(np.abs(host(got) - self.expected))
        return float(worst / np.max(np.abs(self.expected))), seconds

    def seconds(self, least: float = 0.1) -> float:
        """Return the median time of one call, over at least three calls and `least` seconds."""
        times: list[float] = []
        while len(times) < 3 or sum(times) < least:
            start = time.perf_counter()
            self.call()
            self.place.finish()
            times.append(time.perf_counter() - start)
        return sorted(times)[len(times) // 2]


def main(*cases: Callable[[Place], Case]) -> int:
    """Run an example from the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=tuple(TOLERANCE), help="default: f32 on the CPU, bf16 on a GPU")
    args = parser.parse_args()
    failed = False
    for make in cases:
        place = Place(args.device, getattr(ts, args.dtype) if args.dtype else None)
        case = make(place)
        error, first = case.run()
        failed |= not error <= case.tolerance
        verdict = "ok" if error <= case.tolerance else "WRONG"
        print(
            f"{case.name}: {verdict}, error {error:.1e} (allowed {case.tolerance:.1e}), "
            f"{1e3 * case.seconds():.3f} ms, first call {1e3 * first:.0f} ms"
        )
    return 1 if failed else 0
