"""Scheduling passes: TIR-H in, TIR-H out, with warps, stages and copies made explicit. One file per pass.

Every decision is an attribute `tessera_schedule.*` or an op that can be read in the dump and forced by a knob.
"""
