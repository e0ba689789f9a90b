"""What all backends share: LLVM IR as text, the emitter of TIR-T, and what a compilation gives."""
