"""`torch.compile(backend="tessera")`: graphs of ATen ops become Graph IR, and what has no row there runs as ATen."""
