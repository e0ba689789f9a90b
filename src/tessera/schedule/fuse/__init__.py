"""Cuts graphs into groups, each of which becomes one kernel."""
