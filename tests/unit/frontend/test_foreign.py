"""Names of other languages: each is known, or has advice that names what there is."""

import re

import pytest

import tessera as ts
from tessera.frontend import foreign, tile
from tests.unit.frontend.support import built

TRITON = """abs advance arange argmax argmin associative_scan assume atomic_add atomic_and atomic_cas atomic_max
atomic_min atomic_or atomic_xchg atomic_xor broadcast broadcast_to cast cat cdiv ceil clamp cos
cumprod cumsum debug_barrier device_assert device_print div_rn dot dot_scaled erf exp exp2
expand_dims flip floor fma full gather histogram inline_asm_elementwise interleave join load
load_tensor_descriptor log log2 make_block_ptr make_tensor_descriptor map_elementwise max
max_constancy max_contiguous maximum min minimum multiple_of num_programs permute philox program_id
rand rand4x randint randint4x randn randn4x range ravel reduce reduce_or reshape rsqrt sigmoid sin
softmax sort split sqrt sqrt_rn squeeze static_assert static_print static_range store
store_tensor_descriptor sum swizzle2d topk trans umulhi unsqueeze view where xor_sum zeros
zeros_like constexpr float8e4nv float8e5 int1 pointer_type dtype""".split()
CUDA = """threadIdx blockIdx blockDim gridDim __syncthreads atomicAdd atomicCAS atomicExch atomicMax __shfl_xor_sync
__shfl_sync __ldg __popc __clz __ffs __threadfence printf fmaxf rsqrt half""".split()
TILELANG = """alloc_shared alloc_fragment alloc_local copy gemm Parallel Pipelined Persistent serial unroll clear fill
ceildiv reduce_max reduce_sum use_swizzle if_then_else infinity vectorized prim_func sync_threads""".split()
CUTE = "make_layout make_tensor make_rmem_tensor local_tile thread_idx block_idx range_constexpr range_dynamic".split()
NUMPY = (
    "concatenate vstack hstack clip astype matmul einsum arctan2 power ones ones_like tril repeat median pi inf".split()
)


@pytest.mark.parametrize("name", [*TRITON, *CUDA, *TILELANG, *CUTE, *NUMPY])
def test_every_name_of_other_languages_is_known_or_advised(name):
    functions = tile.functions()
    if name in functions:
        return
    advice = foreign.instead(name, functions)
    assert advice, name
    if name.startswith("_"):
        return
    with pytest.raises(ts.LanguageError) as caught:
        getattr(ts.tile, name)
    assert caught.value.help == advice
    assert caught.value.where is not None


def test_advice_names_what_there_is():
    texts = [
        *foreign._ADVICE.values(),
        *foreign.KEYWORDS.values(),
        *map(foreign.instead, foreign._FUNCTIONS, [()] * 99),
    ]
    for text in texts:
        for dotted in re.findall(r"ts(?:\.\w+)+", text or ""):
            value = ts
            for part in dotted.split(".")[1:]:
                value = getattr(value, part)


def test_names_elsewhere_are_not_names_here():
    for name, function in foreign._FUNCTIONS.items():
        assert name not in tile.functions()
        assert function in tile.functions()
    for name, dtype in foreign._DTYPES.items():
        assert not hasattr(ts, name)
        assert isinstance(getattr(ts, dtype), ts.DType)
    assert not foreign._ADVICE.keys() & (tile.functions().keys() | foreign._FUNCTIONS.keys())


def test_missing_names_are_missing_attributes_to_python():
    assert not hasattr(ts, "program_id")
    assert not hasattr(ts.tile, "program_id")
    assert getattr(ts.tile, "__wrapped__", None) is None
    with pytest.raises(ImportError):
        from tessera import program_id  # noqa: F401  # pyright: ignore


@pytest.mark.parametrize(
    "of",
    [
        "x[0:8].exp()",
        "x[0:8].permute(0)",
        "ts.program_id(0)",
        "threadIdx.x",
        "ts.tile.expp(x[0:8])",
        "atomicAdd(x[0], 1)",
    ],
)
def test_kernels_are_told_at_the_place(of, tmp_path):
    import importlib.util

    path = tmp_path / "told.py"
    path.write_text(f'import tessera as ts\ndef kernel(x: ts.Tensor["n", ts.f32]):\n    x[0:8] = {of}\n')
    spec = importlib.util.spec_from_file_location("told", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(ts.LanguageError) as caught:
        built(module.kernel, {"n": 8})
    assert caught.value.where.frame.line == 3
    assert re.search(r"ts\.tile\.(exp|transpose|grid|arange|atomic_add)|did you mean 'exp", caught.value.help)
