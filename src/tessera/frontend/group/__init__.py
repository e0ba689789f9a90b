"""From a group of a graph to its kernel in TIR-H."""
