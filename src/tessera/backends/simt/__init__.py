"""Emission of fragments spread over threads, shared by all GPUs; each GPU backend adds its instructions."""
