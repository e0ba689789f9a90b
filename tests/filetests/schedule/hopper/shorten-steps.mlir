// RUN: schedule-shorten-steps

// Products of 128 x 128 x 128 leave no registers beside the sums; those of steps of 64 rows do.
tessera_tile.kernel @weights profile "fast" (
    %a: !tessera_tile.tensor<128x128xbf16> as "A" dims ["128", "128"] strides [128, 1] stride_div [128, 1] dim_div [128, 128] align 16,
    %b: !tessera_tile.tensor<?x128xbf16> as "B" dims ["K", "128"] strides [128, 1] stride_div [128, 1] dim_div [8, 128] align 16,
    %c: !tessera_tile.tensor<128x128xf32> as "C" dims ["128", "128"] strides [128, 1] stride_div [128, 1] dim_div [128, 128] align 16 written) {
  %k = tessera_tile.dim %b[0] : !tessera_tile.tensor<?x128xbf16>
  %c0 = tessera_tile.constant 0 : index
  %c128 = tessera_tile.constant 128 : index
  %one = tessera_tile.constant 1 : index
  %zero = tessera_tile.constant 0.0 : f32
  tessera_tile.grid(%one) by [1] {
  ^bb0(%i: index):
    %none = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<128x128xf32>
    %x = tessera_tile.load %a[%c0, %c0] [128, 128] : !tessera_tile.tensor<128x128xbf16> -> !tessera_tile.tile<128x128xbf16>
    // CHECK: [[C64:%\w+]] = tessera_tile.constant 64
    // CHECK: scf.for [[P:%\w+]] = %c0 to %k step [[C64]]
    // CHECK: tessera_tile.load %b[[[P]], %c0] [64, 128]
    // CHECK: tessera_notes.terms = ["steps of 128 are computed as steps of 64: roles have room"]
    %sum = scf.for %p = %c0 to %k step %c128 iter_args(%acc = %none) -> (!tessera_tile.tile<128x128xf32>) {
      %y = tessera_tile.load %b[%p, %c0] [128, 128] : !tessera_tile.tensor<?x128xbf16> -> !tessera_tile.tile<128x128xbf16>
      %t = tessera_tile.transpose %y [1, 0] : !tessera_tile.tile<128x128xbf16> -> !tessera_tile.tile<128x128xbf16>
      %s = tessera_tile.mma %x, %t, %none compute "bf16" : !tessera_tile.tile<128x128xbf16>, !tessera_tile.tile<128x128xbf16>, !tessera_tile.tile<128x128xf32> -> !tessera_tile.tile<128x128xf32>
      %u = tessera_tile.mma %x, %t, %none compute "bf16" : !tessera_tile.tile<128x128xbf16>, !tessera_tile.tile<128x128xbf16>, !tessera_tile.tile<128x128xf32> -> !tessera_tile.tile<128x128xf32>
      %w = tessera_tile.elementwise "mul"(%s, %u) : (!tessera_tile.tile<128x128xf32>, !tessera_tile.tile<128x128xf32>) -> !tessera_tile.tile<128x128xf32>
      %h = tessera_tile.cast %w : !tessera_tile.tile<128x128xf32> -> !tessera_tile.tile<128x128xbf16>
      %next = tessera_tile.mma %h, %y, %acc compute "bf16" : !tessera_tile.tile<128x128xbf16>, !tessera_tile.tile<128x128xbf16>, !tessera_tile.tile<128x128xf32> -> !tessera_tile.tile<128x128xf32>
      scf.yield %next : !tessera_tile.tile<128x128xf32>
    }
    tessera_tile.store %sum, %c[%c0, %c0] [128, 128] : !tessera_tile.tile<128x128xf32>, !tessera_tile.tensor<128x128xf32>
  }
  tessera_tile.return
}
