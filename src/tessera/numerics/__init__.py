"""Dtypes, numeric policies and profiles: frozen data that every layer shares."""

from __future__ import annotations

from tessera.numerics.dtypes import DType, Policy, accum, loss_scale, saturate, stochastic_round
from tessera.numerics.profiles import Profile, current_profile, profile

__all__ = [
    "DType",
    "Policy",
    "Profile",
    "accum",
    "current_profile",
    "loss_scale",
    "profile",
    "saturate",
    "stochastic_round",
]
