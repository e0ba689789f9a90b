"""Matrix products: dtypes x shapes x operand forms, accumulation in loops over odd sizes, policies."""

from collections.abc import Callable
from typing import Any

import numpy as np

import tessera as ts
from tessera.numerics.dtypes import DType, accumulator_of
from tessera.numerics.tolerances import Tolerance, of_matmul, of_rounding
from tests.conformance.data import integers, normal
from tests.conformance.harness import Case, Close, Output, Updated, check, conformance, dtype
from tests.unit.schedule.hopper.prologues import CASES as PROLOGUES
from tests.unit.schedule.hopper.prologues import Case as Prologue
from tests.unit.schedule.hopper.prologues import reference

DTYPES = ("f32", "tf32", "f16", "bf16", "fp8_e4m3", "fp8_e5m2", "i8", "u8", "f64")
SHAPES = (
    (16, 16, 16),
    (64, 64, 32),
    (128, 64, 64),
    (48, 80, 32),
    (8, 8, 8),
    (1, 64, 64),
    (16, 8, 48),
    (32, 1, 16),
)
FORMS = ("plain", "at", "bt", "both", "strides-a", "strides-b")


def operand(rng: np.random.Generator, shape: tuple[int, int], dt: DType) -> np.ndarray:
    """Return an operand; small integers over their whole range."""
    return integers(rng, shape, dt) if dt.is_int else normal(rng, shape, dt.storage)


def wide(x: np.ndarray) -> np.ndarray:
    """Return the exact values."""
    return x.astype(np.float32).astype(np.float64) if x.dtype.itemsize < 4 else x.astype(np.float64)


def product(a: np.ndarray, b: np.ndarray, acc: DType, c: np.ndarray | float = 0.0) -> Close:
    """Return `c + a @ b` and its magnitude."""
    total = wide(a) @ wide(b)
    if acc.is_int:
        # f64 holds every product of 8-bit integers; the sum wraps.
        return Close((total.astype(np.int64) + np.asarray(c).astype(np.int64)).astype(acc.numpy()), 0.0)
    return Close(total + c, np.abs(wide(a)) @ np.abs(wide(b)) + np.abs(c))


def one_tile(form: str, shape: tuple[int, int, int], dt: DType, acc: DType) -> Callable[..., Any]:
    """Return a kernel that multiplies two whole tensors as one tile."""
    m, n, k = shape
    a_shape = (k, m) if form in ("at", "both") else (m, k)
    b_shape = (n, k) if form in ("bt", "both") else (k, n)

    def plain(a: ts.Tensor[*a_shape, dt], b: ts.Tensor[*b_shape, dt], c: ts.Tensor[m, n, acc]):
        c[:, :] = ts.tile.mma(a[:, :], b[:, :])

    def at(a: ts.Tensor[*a_shape, dt], b: ts.Tensor[*b_shape, dt], c: ts.Tensor[m, n, acc]):
        c[:, :] = ts.tile.mma(a[:, :].T, b[:, :])

    def bt(a: ts.Tensor[*a_shape, dt], b: ts.Tensor[*b_shape, dt], c: ts.Tensor[m, n, acc]):
        c[:, :] = ts.tile.mma(a[:, :], b[:, :].T)

    def both(a: ts.Tensor[*a_shape, dt], b: ts.Tensor[*b_shape, dt], c: ts.Tensor[m, n, acc]):
        c[:, :] = ts.tile.mma(a[:, :].T, b[:, :].T)

    return {"at": at, "bt": bt, "both": both}.get(form, plain)


def tile_case(form: str, shape: tuple[int, int, int], dt: DType) -> Case:
    """Return one product of whole tensors."""
    m, n, k = shape
    acc = accumulator_of(dt.storage)

    def make(rng: np.random.Generator) -> list[Any]:
        a, b = operand(rng, (m, k), dt), operand(rng, (k, n), dt)
        turned_a = form in ("at", "both", "strides-a")
        turned_b = form in ("bt", "both", "strides-b")
        a = np.ascontiguousarray(a.T) if turned_a else a
        b = np.ascontiguousarray(b.T) if turned_b else b
        return [a.T if form == "strides-a" else a, b.T if form == "strides-b" else b, Output((m, n), acc)]

    def reference(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> Close:
        return product(a.T if form in ("at", "both") else a, b.T if form in ("bt", "both") else b, acc)

    return Case(
        f"{dt}-{m}x{n}x{k}-{form}",
        one_tile(form, shape, dt, acc),
        make,
        reference,
        of_matmul(dt, acc, k),
    )


def _cases() -> list[Case]:
    """Every pair of dtype and shape, of dtype and form, of shape and form."""
    found: dict[str, Case] = {}
    for at, name in enumerate(DTYPES):
        for place, shape in enumerate(SHAPES):
            case = tile_case(FORMS[(at + place) % len(FORMS)], shape, dtype(name))
            found[case.name] = case
    return list(found.values())


@conformance(_cases())
def test_products(case, backend):
    check(case, backend)


# Loops over K with tails in all three dimensions


def looped(dt: Any, acc: DType, turned: str) -> Callable[..., Any]:
    """Return a GEMM; `turned` says which operand is stored transposed."""

    def plain(
        a: ts.Tensor["M", "K", dt],
        b: ts.Tensor["K", "N", dt],
        c: ts.Tensor["M", "N", acc],
        BM: ts.constexpr,
        BN: ts.constexpr,
        BK: ts.constexpr,
    ):
        for m, n in ts.tile.grid((M, BM), (N, BN)):
            total = ts.tile.zeros((BM, BN), acc)
            for k in ts.tile.range(0, K, BK):
                total = ts.tile.mma(a[m : m + BM, k : k + BK], b[k : k + BK, n : n + BN], total)
            c[m : m + BM, n : n + BN] = total
        return c

    def b_turned(
        a: ts.Tensor["M", "K", dt],
        b: ts.Tensor["N", "K", dt],
        c: ts.Tensor["M", "N", acc],
        BM: ts.constexpr,
        BN: ts.constexpr,
        BK: ts.constexpr,
    ):
        for m, n in ts.tile.grid((M, BM), (N, BN)):
            total = ts.tile.zeros((BM, BN), acc)
            for k in ts.tile.range(0, K, BK):
                total = ts.tile.mma(a[m : m + BM, k : k + BK], b[n : n + BN, k : k + BK].T, total)
            c[m : m + BM, n : n + BN] = total
        return c

    def a_turned(
        a: ts.Tensor["K", "M", dt],
        b: ts.Tensor["K", "N", dt],
        c: ts.Tensor["M", "N", acc],
        BM: ts.constexpr,
        BN: ts.constexpr,
        BK: ts.constexpr,
    ):
        for m, n in ts.tile.grid((M, BM), (N, BN)):
            total = ts.tile.zeros((BM, BN), acc)
            for k in ts.tile.range(0, K, BK):
                total = ts.tile.mma(a[k : k + BK, m : m + BM].T, b[k : k + BK, n : n + BN], total)
            c[m : m + BM, n : n + BN] = total
        return c

    return {"": plain, "b": b_turned, "a": a_turned}[turned]


LOOPED = (
    ("bf16", "", (130, 70, 75), (64, 64, 32)),
    ("f16", "b", (37, 129, 100), (16, 32, 16)),
    ("f32", "", (65, 33, 17), (32, 32, 8)),
    ("tf32", "b", (40, 40, 40), (32, 32, 16)),
    ("fp8_e4m3", "b", (66, 34, 130), (64, 32, 64)),
    ("fp8_e5m2", "", (20, 50, 60), (16, 16, 32)),
    ("i8", "b", (70, 70, 130), (64, 64, 64)),
    ("u8", "", (17, 19, 33), (16, 16, 32)),
    ("f64", "a", (19, 23, 29), (16, 16, 8)),
    ("bf16", "a", (100, 60, 50), (32, 64, 16)),
    ("bf16", "", (48, 80, 96), (48, 80, 32)),
    ("f32", "a", (3, 5, 7), (4, 8, 8)),
    ("bf16", "b", (256, 128, 192), (128, 128, 64)),
    ("f16", "", (16, 16, 0), (16, 16, 16)),
    ("bf16", "", (24, 40, 5), (24, 40, 24)),
)


@conformance(
    [
        Case(
            f"looped-{name}-{'x'.join(map(str, size))}-by-{'x'.join(map(str, block))}-{turned or 'plain'}",
            looped(dtype(name), accumulator_of(dtype(name).storage), turned),
            lambda rng, name=name, turned=turned, size=size: [
                operand(rng, (size[2], size[0]) if turned == "a" else (size[0], size[2]), dtype(name)),
                operand(rng, (size[1], size[2]) if turned == "b" else (size[2], size[1]), dtype(name)),
                Output(size[:2], accumulator_of(dtype(name).storage)),
            ],
            lambda a, b, c, name=name, turned=turned: product(
                a.T if turned == "a" else a, b.T if turned == "b" else b, accumulator_of(dtype(name).storage)
            ),
            of_matmul(dtype(name), accumulator_of(dtype(name).storage), size[2], -(-size[2] // block[2])),
            dict(BM=block[0], BN=block[1], BK=block[2]),
        )
        for name, turned, size, block in LOOPED
    ]
)
def test_products_in_loops(case, backend):
    check(case, backend)


# Policies, accumulators, mixed formats, more than one product


def accumulating(dt: Any, acc: DType, options: dict[str, Any]) -> Callable[..., Any]:
    compute, into = options.get("compute"), options.get("accumulator")

    def kernel(
        a: ts.Tensor[32, 48, dt],
        b: ts.Tensor[48, 16, dt],
        c: ts.Tensor[32, 16, acc],
        d: ts.Tensor[32, 16, acc],
    ):
        first = ts.tile.mma(a[:, :], b[:, :], accumulator=into, compute=compute)
        d[:, :] = first
        c[:, :] = ts.tile.mma(a[:, :], b[:, :], c[:, :], compute=compute)

    return kernel


ACCUMULATED = (
    ("f32", ts.f32, "f32", {"compute": ts.tf32}, "tf32"),
    ("f32-strict", ts.f32, "f32", {}, "f32"),
    ("bf16-f64", ts.bf16 @ ts.accum(ts.f64), "f64", {"accumulator": ts.f64}, "bf16"),
    ("f16-f16", ts.f16, "f16", {"accumulator": ts.f16}, "f16"),
    ("u8-i32", ts.u8, "i32", {"accumulator": ts.i32}, "u8"),
    ("policy-text", "bf16 @accum(f32)", "f32", {}, "bf16"),
)


@conformance(
    [
        Case(
            f"accumulated-{label}",
            accumulating(dt, dtype(acc), options),
            lambda rng, acc=acc, dt=dt, operands=operands: [
                operand(rng, (32, 48), dtype(operands)),
                operand(rng, (48, 16), dtype(operands)),
                Updated(normal(rng, (32, 16), dtype(acc))),
                Output((32, 16), dtype(acc)),
            ],
            lambda a, b, c, d, acc=acc: (
                product(a, b, dtype(acc), c.astype(np.float64)),
                product(a, b, dtype(acc)),
            ),
            of_matmul(dtype(operands), dtype(acc), 48),
        )
        for label, dt, acc, options, operands in ACCUMULATED
    ]
)
def test_accumulators_and_policies(case, backend):
    check(case, backend)


def mixed(a: ts.Tensor[32, 32, ts.fp8_e4m3], b: ts.Tensor[32, 32, ts.fp8_e5m2], c: ts.Tensor[32, 32, ts.f32]):
    c[:, :] = ts.tile.mma(a[:, :], b[:, :])


def chained(
    a: ts.Tensor[64, 32, ts.bf16],
    b: ts.Tensor[32, 64, ts.bf16],
    w: ts.Tensor[64, 48, ts.bf16],
    y: ts.Tensor[64, 48, ts.f32],
    z: ts.Tensor[64, ts.f32],
):
    """A product feeds arithmetic, a reduction, and the left side of the next product."""
    s = ts.tile.maximum(ts.tile.mma(a[:, :], b[:, :]), 0.0)
    z[:] = ts.tile.row_sum(s)
    y[:, :] = ts.tile.mma(s.to(ts.bf16), w[:, :]) * 0.5


def _chained(a: Any, b: Any, w: Any, y: Any, z: Any) -> tuple[Any, Any]:
    s = np.maximum(wide(a) @ wide(b), 0)
    size = np.abs(wide(a)) @ np.abs(wide(b))
    return Close(s @ wide(w) / 2, size @ np.abs(wide(w)) / 2), Close(s.sum(1), size.sum(1))


def computed(
    x: ts.Tensor[24, 40, ts.f32],
    y: ts.Tensor[40, 24, ts.f32],
    z: ts.Tensor[24, 24, ts.f32],
    u: ts.Tensor[24, 24, ts.f32],
):
    """Operands that are not loads: arithmetic, casts, transposes, sums of two products."""
    a, b = (x[:, :] * 2.0).to(ts.f16), ts.tile.exp(y[:, :]).to(ts.f16)
    z[:, :] = ts.tile.mma(a, b) + ts.tile.mma(b.T, a.T)
    u[:, :] = ts.tile.mma(ts.tile.full((24, 40), 0.5, ts.f16), b)


def _computed(x: Any, y: Any, z: Any, u: Any) -> tuple[Any, Any]:
    a, b = (x * 2).astype(np.float16), np.exp(y.astype(np.float64)).astype(np.float16)
    first = product(a, b, ts.f32)
    second = product(np.ascontiguousarray(b.T), np.ascontiguousarray(a.T), ts.f32)
    half = product(np.full((24, 40), 0.5, np.float16), b, ts.f32)
    return Close(first.value + second.value, first.magnitude + second.magnitude), half


# exp may land on the other side of a rounding to f16: one unit roundoff of it for each term.
_ONCE_MORE = Tolerance(scaled=2.0**-11)


@conformance(
    [
        Case(
            "mixed-fp8",
            mixed,
            lambda rng: [
                operand(rng, (32, 32), ts.fp8_e4m3),
                operand(rng, (32, 32), ts.fp8_e5m2),
                Output((32, 32), ts.f32),
            ],
            lambda a, b, c: product(a, b, ts.f32),
            of_matmul(ts.fp8_e4m3, ts.f32, 32),
        ),
        Case(
            "chained",
            chained,
            lambda rng: [
                *(normal(rng, shape, ts.bf16) for shape in ((64, 32), (32, 64), (64, 48))),
                Output((64, 48), ts.f32),
                Output((64,), ts.f32),
            ],
            _chained,
            [
                of_matmul(ts.bf16, ts.f32, 64).plus(of_rounding(ts.bf16)).plus(Tolerance(scaled=2.0**-8)),
                of_matmul(ts.bf16, ts.f32, 96),
            ],
        ),
        Case(
            "computed",
            computed,
            lambda rng: [
                normal(rng, (24, 40), ts.f32),
                normal(rng, (40, 24), ts.f32),
                *[Output((24, 24), ts.f32)] * 2,
            ],
            _computed,
            of_matmul(ts.f16, ts.f32, 80).plus(_ONCE_MORE),
        ),
    ]
)
def test_operands_that_are_no_plain_loads(case, backend):
    check(case, backend)


def special(a: ts.Tensor[16, 16, ts.bf16], b: ts.Tensor[16, 16, ts.bf16], c: ts.Tensor[16, 16, ts.f32]):
    c[:, :] = ts.tile.mma(a[:, :], b[:, :])


def _special(rng: np.random.Generator) -> list[Any]:
    a, b = normal(rng, (16, 16), ts.bf16), normal(rng, (16, 16), ts.bf16)
    a[3, 4], a[5, 6], b[7, 8] = np.nan, np.inf, -np.inf
    return [a, b, Output((16, 16), ts.f32)]


@conformance(
    [
        Case(
            "special",
            special,
            _special,
            lambda a, b, c: Close(
                product(a, b, ts.f32).value, np.abs(np.nan_to_num(wide(a))) @ np.abs(np.nan_to_num(wide(b)))
            ),
            of_matmul(ts.bf16, ts.f32, 16),
        )
    ]
)
def test_nan_and_infinity_pass_through(case, backend):
    check(case, backend)


def batched(
    a: ts.Tensor["B", "M", "K", ts.f16],
    b: ts.Tensor["B", "N", "K", ts.f16],
    bias: ts.Tensor["N", ts.f32],
    c: ts.Tensor["B", "M", "N", ts.f16],
):
    for i, m, n in ts.tile.grid((B, 1), (M, 32), (N, 32)):
        acc = ts.tile.zeros((32, 32))
        for k in ts.tile.range(0, K, 16):
            acc = ts.tile.mma(a[i, m : m + 32, k : k + 16], b[i, n : n + 32, k : k + 16].T, acc)
        c[i, m : m + 32, n : n + 32] = ts.tile.relu(acc + bias[n : n + 32])


def _batched(a: Any, b: Any, bias: Any, c: Any) -> Close:
    total = wide(a) @ wide(b).transpose(0, 2, 1)
    size = np.abs(wide(a)) @ np.abs(wide(b)).transpose(0, 2, 1)
    return Close(np.maximum(total + bias, 0), size + np.abs(bias))


@conformance(
    [
        Case(
            "batched",
            batched,
            lambda rng: [
                normal(rng, (3, 40, 50), ts.f16),
                normal(rng, (3, 33, 50), ts.f16),
                normal(rng, (33,), ts.f32),
                Output((3, 40, 33), ts.f16),
            ],
            _batched,
            of_matmul(ts.f16, ts.f32, 51).plus(of_rounding(ts.f16)),
        )
    ]
)
def test_batches_with_an_epilogue(case, backend):
    check(case, backend)


def _prologue(case: Prologue, m: int, n: int, k: int) -> Case:
    def expected(*arrays: Any) -> Close:
        inputs = list(arrays[:-1])
        return Close(reference(case, inputs), case.expected(*(np.abs(x.astype(np.float64)) for x in inputs)))

    return Case(
        f"{case}-{m}x{n}x{k}",
        case.kernel,
        lambda rng: [*case.arrays(rng, m, n, k), Output((m, n), ts.f32)],
        expected,
        of_matmul(ts.bf16, ts.f32, k),
    )


@conformance([_prologue(case, m, n, k) for case in PROLOGUES for m, n, k in [(144, 80, 208)]])
def test_operands_computed_from_what_a_loop_loads(case, backend):
    check(case, backend)


def converted(dt: ts.DType, columns: int, depth: int) -> Any:
    """Return a product whose right operand is narrower than the left: a stage of it may be less than a swizzle."""

    def kernel(a: ts.Tensor["M", "K", ts.f16], b: ts.Tensor["N", "K", dt], c: ts.Tensor["M", "N", ts.f32]):
        for m, n in ts.tile.grid((M, 64), (N, columns)):
            acc = ts.tile.zeros((64, columns), ts.f32)
            for k in ts.tile.range(0, K, depth):
                acc = ts.tile.mma(a[m : m + 64, k : k + depth], b[n : n + columns, k : k + depth].T.to(ts.f16), acc)
            c[m : m + 64, n : n + columns] = acc

    return kernel


@conformance(
    [
        Case(
            f"converted-{name}-{columns}x{depth}",
            converted(dtype(name), columns, depth),
            lambda rng, name=name, columns=columns: [
                operand(rng, (128, 320), ts.f16),
                operand(rng, (3 * columns, 320), dtype(name)),
                Output((128, 3 * columns), ts.f32),
            ],
            lambda a, b, c: product(a, np.ascontiguousarray(b.T).astype(np.float16), ts.f32),
            of_matmul(ts.f16, ts.f32, 320),
        )
        for name in ("i8", "u8", "fp8_e4m3")
        for columns, depth in ((8, 64), (8, 128), (24, 64))
    ]
)
def test_right_operands_narrower_than_the_left(case, backend):
    check(case, backend)
