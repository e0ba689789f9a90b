"""Library ops, written in the public language only, one file per op."""
