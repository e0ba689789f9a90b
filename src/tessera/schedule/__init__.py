"""Scheduling passes: TIR-H in, TIR-H out, with warps, stages and copies made explicit. One file per pass.

`gpu` has the passes for any GPU, `hopper` those for GPUs with tensor maps, warpgroup instructions or clusters, `cpu`
those for CPUs. What several of them use (costs, dependences, resources, knobs) and passes for every target are
here.

Every decision is an attribute `tessera_schedule.*` (`ir/decisions.py`) or an op, can be read in the dump and is forced
by a knob.
"""
