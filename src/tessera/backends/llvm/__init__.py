"""What all backends share: LLVM IR as text, the emitter of TIR-T, and the result of a compilation."""
