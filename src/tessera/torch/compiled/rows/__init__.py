"""One row an ATen op, in files by families."""
