// RUN: schedule-sums-of-products

// What a product is added to becomes its accumulator.
tessera_tile.kernel @sum profile "fast" (
    %a: !tessera_tile.tensor<64x64xbf16> as "A" dims ["64", "64"] strides [64, 1] stride_div [64, 1] dim_div [64, 64] align 16,
    %x: !tessera_tile.tensor<64x64xf32> as "X" dims ["64", "64"] strides [64, 1] stride_div [64, 1] dim_div [64, 64] align 16 written) {
  %c0 = tessera_tile.constant 0 : index
  %zero = tessera_tile.constant 0.0 : f32
  %none = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<64x64xf32>
  // CHECK: [[A:%\w+]] = tessera_tile.load %a
  %ta = tessera_tile.load %a[%c0, %c0] [64, 64] : !tessera_tile.tensor<64x64xbf16> -> !tessera_tile.tile<64x64xbf16>
  // CHECK: [[X:%\w+]] = tessera_tile.load %x
  %tx = tessera_tile.load %x[%c0, %c0] [64, 64] : !tessera_tile.tensor<64x64xf32> -> !tessera_tile.tile<64x64xf32>
  // CHECK: [[SUM:%\w+]] = tessera_tile.mma [[A]], [[A]], [[X]]
  // CHECK-NOT: "add"
  // CHECK: tessera_tile.store [[SUM]]
  %p = tessera_tile.mma %ta, %ta, %none compute "bf16" : !tessera_tile.tile<64x64xbf16>, !tessera_tile.tile<64x64xbf16>, !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
  %sum = tessera_tile.elementwise "add"(%tx, %p) : (!tessera_tile.tile<64x64xf32>, !tessera_tile.tile<64x64xf32>) -> !tessera_tile.tile<64x64xf32>
  tessera_tile.store %sum, %x[%c0, %c0] [64, 64] : !tessera_tile.tile<64x64xf32>, !tessera_tile.tensor<64x64xf32>
  tessera_tile.return
}

// -----

// Only where the order of sums is free.
tessera_tile.kernel @sum profile "deterministic" (
    %a: !tessera_tile.tensor<64x64xbf16> as "A" dims ["64", "64"] strides [64, 1] stride_div [64, 1] dim_div [64, 64] align 16,
    %x: !tessera_tile.tensor<64x64xf32> as "X" dims ["64", "64"] strides [64, 1] stride_div [64, 1] dim_div [64, 64] align 16 written) {
  %c0 = tessera_tile.constant 0 : index
  %zero = tessera_tile.constant 0.0 : f32
  %none = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<64x64xf32>
  // CHECK: [[A:%\w+]] = tessera_tile.load %a
  %ta = tessera_tile.load %a[%c0, %c0] [64, 64] : !tessera_tile.tensor<64x64xbf16> -> !tessera_tile.tile<64x64xbf16>
  // CHECK: [[X:%\w+]] = tessera_tile.load %x
  %tx = tessera_tile.load %x[%c0, %c0] [64, 64] : !tessera_tile.tensor<64x64xf32> -> !tessera_tile.tile<64x64xf32>
  // CHECK: [[P:%\w+]] = tessera_tile.mma
  // CHECK: [[SUM:%\w+]] = tessera_tile.elementwise "add"([[X]], [[P]])
  // CHECK: tessera_tile.store [[SUM]]
  %p = tessera_tile.mma %ta, %ta, %none compute "bf16" : !tessera_tile.tile<64x64xbf16>, !tessera_tile.tile<64x64xbf16>, !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
  %sum = tessera_tile.elementwise "add"(%tx, %p) : (!tessera_tile.tile<64x64xf32>, !tessera_tile.tile<64x64xf32>) -> !tessera_tile.tile<64x64xf32>
  tessera_tile.store %sum, %x[%c0, %c0] [64, 64] : !tessera_tile.tile<64x64xf32>, !tessera_tile.tensor<64x64xf32>
  tessera_tile.return
}
