// RUN: schedule-deepen-steps

// Steps of 32 terms become steps of 64: 128 bytes of a row. Both tensors end where the loop does.
tessera_tile.kernel @sums profile "fast" (
    %a: !tessera_tile.tensor<128x?xbf16> as "A" dims ["128", "K"] strides [-1, 1] stride_div [8, 1] dim_div [128, 8] align 16,
    %b: !tessera_tile.tensor<?x128xbf16> as "B" dims ["K", "128"] strides [128, 1] stride_div [128, 1] dim_div [8, 128] align 16,
    %c: !tessera_tile.tensor<128x128xf32> as "C" dims ["128", "128"] strides [128, 1] stride_div [128, 1] dim_div [128, 128] align 16 written) {
  %k = tessera_tile.dim %a[1] : !tessera_tile.tensor<128x?xbf16>
  %c0 = tessera_tile.constant 0 : index
  %c32 = tessera_tile.constant 32 : index
  %one = tessera_tile.constant 1 : index
  %zero = tessera_tile.constant 0.0 : f32
  tessera_tile.grid(%one) by [1] {
  ^bb0(%i: index):
    %none = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<128x128xf32>
    // CHECK: [[C64:%\w+]] = tessera_tile.constant 64
    // CHECK: scf.for [[P:%\w+]] = %c0 to %k step [[C64]]
    // CHECK: tessera_tile.load %a[%c0, [[P]]] [128, 64]
    // CHECK: tessera_tile.load %b[[[P]], %c0] [64, 128]
    // CHECK: tessera_notes.terms = ["steps of 32 terms are computed as steps of 64"]
    %sum = scf.for %p = %c0 to %k step %c32 iter_args(%acc = %none) -> (!tessera_tile.tile<128x128xf32>) {
      %ta = tessera_tile.load %a[%c0, %p] [128, 32] : !tessera_tile.tensor<128x?xbf16> -> !tessera_tile.tile<128x32xbf16>
      %tb = tessera_tile.load %b[%p, %c0] [32, 128] : !tessera_tile.tensor<?x128xbf16> -> !tessera_tile.tile<32x128xbf16>
      %next = tessera_tile.mma %ta, %tb, %acc compute "bf16" : !tessera_tile.tile<128x32xbf16>, !tessera_tile.tile<32x128xbf16>, !tessera_tile.tile<128x128xf32> -> !tessera_tile.tile<128x128xf32>
      scf.yield %next : !tessera_tile.tile<128x128xf32>
    }
    tessera_tile.store %sum, %c[%c0, %c0] [128, 128] : !tessera_tile.tile<128x128xf32>, !tessera_tile.tensor<128x128xf32>
  }
  tessera_tile.return
}
