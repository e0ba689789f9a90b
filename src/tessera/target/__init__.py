"""Targets as frozen data: capability records, fragment tables of matrix instructions, artefacts."""
