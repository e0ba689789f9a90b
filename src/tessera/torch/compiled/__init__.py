"""`torch.compile(backend="tessera")`: graphs of ATen ops become Graph IR, and what has no row there runs as ATen."""

from tessera.collecting import collector_paused

with collector_paused(keep=True):
    from tessera.torch.compiled import backend

__all__ = ["backend"]
