"""Dtypes, numeric policies and profiles: frozen data that every layer shares."""
