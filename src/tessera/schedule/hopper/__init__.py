"""Passes for GPUs with what Hopper introduced: tensor maps (TMA), warpgroup instructions, warp roles, clusters."""
