"""Effects: every op declares its own as a trait, and passes ask the trait.

The lattice is `pure < random < movement < state < collective < memory < io`; the join of two effects is the
larger. Two ops may be exchanged only if `commutes` says so.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache

from xdsl.ir import Operation
from xdsl.traits import (
    EffectInstance,
    MemoryEffect,
    MemoryEffectKind,
    OpTrait,
    is_side_effect_free,
)

from tessera.data import dataclass


class Effect(IntEnum):
    """What running an op can be observed to do."""

    PURE = 0
    RANDOM = 1
    MOVEMENT = 2
    STATE = 3
    COLLECTIVE = 4
    MEMORY = 5
    IO = 6


@dataclass(frozen=True)
class HasEffect(OpTrait):
    """States the effect of an op, and whether it only reads."""

    effect: Effect = Effect.PURE
    reads_only: bool = False

    def of(self, op: Operation) -> tuple[Effect, bool]:
        """Return the effect of this very op, and whether it only reads."""
        return self.effect, self.reads_only


class _MemoryEffects(MemoryEffect):
    """Tells xDSL's own passes (dead code, common subexpressions) the same as `HasEffect`."""

    @classmethod
    def get_effects(cls, op: Operation) -> set[EffectInstance]:
        found = op.get_trait(HasEffect)
        if found is None:
            return set()
        value, only_reads = found.of(op)
        if value <= Effect.RANDOM:
            return set()
        kinds = {EffectInstance(MemoryEffectKind.READ)}
        return kinds if only_reads else kinds | {EffectInstance(MemoryEffectKind.WRITE)}


def effect(value: Effect, *, reads_only: bool = False) -> tuple[OpTrait, OpTrait]:
    """Return the traits that declare `value`; spread them into `traits_def(...)`."""
    return declared(HasEffect(value, reads_only))


def declared(trait: HasEffect) -> tuple[OpTrait, OpTrait]:
    """Return the traits of an op whose effect `trait` decides from the op itself."""
    return trait, _MemoryEffects()


PURE = effect(Effect.PURE)


@lru_cache(maxsize=1024)
def _declared(cls: type[Operation]) -> HasEffect | None:
    """Return the trait by which a class of ops declares its effect."""
    return cls.get_trait(HasEffect)


def effect_of(op: Operation) -> Effect:
    """Return the effect of `op`, joined over its regions; an undeclared op counts as `io`."""
    if op.regions:
        inner = [effect_of(child) for region in op.regions for block in region.blocks for child in block.ops]
        return max(inner, default=Effect.PURE)
    trait = _declared(type(op))
    if trait is not None:
        return trait.of(op)[0]
    return Effect.PURE if is_side_effect_free(op) else Effect.IO


def reads_only(op: Operation) -> bool:
    """Return whether `op` reads state but changes none."""
    trait = _declared(type(op))
    return trait is not None and trait.of(op)[1]


def acts(op: Operation) -> bool:
    """Return whether running `op` itself, apart from the ops inside it, changes what others can see."""
    return not op.regions and effect_of(op) > Effect.RANDOM and not reads_only(op)


def commutes(a: Operation, b: Operation) -> bool:
    """Return whether `a` and `b` may run in either order, as far as effects say."""
    first, second = effect_of(a), effect_of(b)
    if min(first, second) <= Effect.RANDOM:
        return True
    return max(first, second) < Effect.IO and reads_only(a) and reads_only(b)
