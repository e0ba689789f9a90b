"""Random programs of the whole language, each with a meaning that NumPy computes from the generator's own tree.

`tree` is the language as data, `generate` draws programs, `source` writes them as Python, `meaning` says what they
compute, `run` compares that with what a device computed, `campaign` does so for many seeds,
`serial` keeps programs. The tree, the generator
and the meaning know nothing of the compiler: what they say is checked against it.
"""
