"""Passes for CPUs."""
