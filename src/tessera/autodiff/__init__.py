"""Derivatives of graphs: ops are appended that compute them."""
