"""Layouts as linear maps over F2: one algebra for threads, matrix fragments and shared memory.

A tile held by threads is a map from (register, lane, warp, block) bits to tile index bits; a tile in shared
memory is a map from offset bits to tile index bits. Conversions, vector widths and bank conflicts follow from
composing them.

Source: Zhou et al., "Linear Layouts: Robust Code Generation of Efficient Tensor Computation Using F2",
    arXiv:2505.23819.
"""

from tessera.ir.layouts.build import (
    blocked,
    fragment_layout,
    fragment_repeats,
    from_fragment,
    identity1d,
    zeros1d,
)
from tessera.ir.layouts.convert import (
    ConversionKind,
    Reduction,
    conversion_kind,
    lane_map,
    partner,
    reduction,
    register_map,
)
from tessera.ir.layouts.exchange import exchange_layout, wavefronts
from tessera.ir.layouts.linear import BLOCK, LANE, REGISTER, WARP, LayoutError, LinearLayout, axis_names
from tessera.ir.layouts.shared import (
    OFFSET,
    LdMatrix,
    bank_conflicts,
    ldmatrix,
    row_major,
    shared_addresses,
    stacked,
    vector_width,
    xor_swizzle,
)

__all__ = [
    "BLOCK",
    "LANE",
    "OFFSET",
    "REGISTER",
    "WARP",
    "ConversionKind",
    "LayoutError",
    "LdMatrix",
    "LinearLayout",
    "Reduction",
    "axis_names",
    "bank_conflicts",
    "blocked",
    "conversion_kind",
    "exchange_layout",
    "fragment_layout",
    "fragment_repeats",
    "from_fragment",
    "identity1d",
    "lane_map",
    "ldmatrix",
    "partner",
    "reduction",
    "register_map",
    "row_major",
    "shared_addresses",
    "stacked",
    "vector_width",
    "wavefronts",
    "xor_swizzle",
    "zeros1d",
]
