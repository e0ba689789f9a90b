"""TIR-H to TIR-T: `simt` spreads tiles over the threads of a GPU, `vector` runs them in loops of vectors on a CPU."""
