"""`ts.tile`: the functions of the kernel language. One file per family."""

from __future__ import annotations

from tessera.frontend.tile import group as group
from tessera.frontend.tile import mbarrier as mbarrier
from tessera.frontend.tile import pipeline as pipeline
from tessera.frontend.tile.activations import *  # noqa: F403
from tessera.frontend.tile.atomics import *  # noqa: F403
from tessera.frontend.tile.bits import *  # noqa: F403
from tessera.frontend.tile.create import *  # noqa: F403
from tessera.frontend.tile.debug import *  # noqa: F403
from tessera.frontend.tile.math import *  # noqa: F403
from tessera.frontend.tile.memory import *  # noqa: F403
from tessera.frontend.tile.mma import *  # noqa: F403
from tessera.frontend.tile.order import *  # noqa: F403
from tessera.frontend.tile.parts import *  # noqa: F403
from tessera.frontend.tile.random import *  # noqa: F403
from tessera.frontend.tile.reduce import *  # noqa: F403
from tessera.frontend.tile.shape import *  # noqa: F403
from tessera.frontend.tile.shared import *  # noqa: F403
from tessera.frontend.tile.structure import *  # noqa: F403
from tessera.frontend.tile.values import Context as Context
from tessera.frontend.tile.values import Scalar as Scalar
from tessera.frontend.tile.values import Shared as Shared
from tessera.frontend.tile.values import Tile as Tile
