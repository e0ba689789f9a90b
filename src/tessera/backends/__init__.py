"""Backends: from TIR-T to an Artifact. No device is needed; only this package imports llvmlite."""
