"""Passes for any GPU: they need at most `cp.async`."""
