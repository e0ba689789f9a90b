// RUN: schedule-split-tiles

// 96 columns are computed as 64 and 32, and so is all that runs along them: zeros, sums, a row of numbers, the store.
tessera_tile.kernel @columns profile "fast" (
    %a: !tessera_tile.tensor<64x64xbf16> as "A" dims ["64", "64"] strides [64, 1] stride_div [64, 1] dim_div [64, 64] align 16,
    %b: !tessera_tile.tensor<64x?xbf16> as "B" dims ["64", "N"] strides [-1, 1] stride_div [8, 1] dim_div [64, 8] align 16,
    %c: !tessera_tile.tensor<64x?xf32> as "C" dims ["64", "N"] strides [-1, 1] stride_div [4, 1] dim_div [64, 8] align 16 written) {
  %n = tessera_tile.dim %b[1] : !tessera_tile.tensor<64x?xbf16>
  %c0 = tessera_tile.constant 0 : index
  %zero = tessera_tile.constant 0.0 : f32
  // CHECK: tessera_tile.grid
  // CHECK: ^[[BODY:bb[0-9]+]]([[I:%\w+]]: index):
  tessera_tile.grid(%n) by [96] {
  ^bb0(%i: index):
    // CHECK: [[A:%\w+]] = tessera_tile.load %a[%c0, %c0] [64, 64]
    %ta = tessera_tile.load %a[%c0, %c0] [64, 64] : !tessera_tile.tensor<64x64xbf16> -> !tessera_tile.tile<64x64xbf16>
    // CHECK: [[B0:%\w+]] = tessera_tile.load %b[%c0, [[I]]] [64, 64]
    // CHECK: [[C64:%\w+]] = tessera_tile.constant 64
    // CHECK: [[AT:%\w+]] = tessera_tile.elementwise "add"([[I]], [[C64]])
    // CHECK: [[B1:%\w+]] = tessera_tile.load %b[%c0, [[AT]]] [64, 32]
    %tb = tessera_tile.load %b[%c0, %i] [64, 96] : !tessera_tile.tensor<64x?xbf16> -> !tessera_tile.tile<64x96xbf16>
    // CHECK: [[Z0:%\w+]] = tessera_tile.splat {{.*}} -> !tessera_tile.tile<64x64xf32>
    // CHECK: [[Z1:%\w+]] = tessera_tile.splat {{.*}} -> !tessera_tile.tile<64x32xf32>
    %none = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<64x96xf32>
    // CHECK: [[P0:%\w+]] = tessera_tile.mma [[A]], [[B0]], [[Z0]]
    // CHECK: [[P1:%\w+]] = tessera_tile.mma [[A]], [[B1]], [[Z1]]
    %p = tessera_tile.mma %ta, %tb, %none compute "bf16" : !tessera_tile.tile<64x64xbf16>, !tessera_tile.tile<64x96xbf16>, !tessera_tile.tile<64x96xf32> -> !tessera_tile.tile<64x96xf32>
    // CHECK: [[M0:%\w+]] = tessera_tile.reduce "max" [[P0]] axis 1
    // CHECK: [[M1:%\w+]] = tessera_tile.reduce "max" [[P1]] axis 1
    // CHECK: [[M:%\w+]] = tessera_tile.elementwise "maximum"([[M0]], [[M1]])
    %most = tessera_tile.reduce "max" %p axis 1 : !tessera_tile.tile<64x96xf32> -> !tessera_tile.tile<64xf32>
    %column = tessera_tile.reshape %most : !tessera_tile.tile<64xf32> -> !tessera_tile.tile<64x1xf32>
    %all = tessera_tile.broadcast %column : !tessera_tile.tile<64x1xf32> -> !tessera_tile.tile<64x96xf32>
    // CHECK: [[D0:%\w+]] = tessera_tile.elementwise "sub"([[P0]]
    // CHECK: [[D1:%\w+]] = tessera_tile.elementwise "sub"([[P1]]
    %below = tessera_tile.elementwise "sub"(%p, %all) : (!tessera_tile.tile<64x96xf32>, !tessera_tile.tile<64x96xf32>) -> !tessera_tile.tile<64x96xf32>
    // CHECK: tessera_tile.store [[D0]], %c[%c0, [[I]]] [64, 64]
    // CHECK: tessera_tile.store [[D1]], %c[%c0, [[AT]]] [64, 32]
    // CHECK: tessera_notes.tiles = ["96 elements of a product are computed as 64 + 32"]
    tessera_tile.store %below, %c[%c0, %i] [64, 96] : !tessera_tile.tile<64x96xf32>, !tessera_tile.tensor<64x?xf32>
  }
  tessera_tile.return
}

// -----

// What a running sum follows stays whole, and 100 has no part of eight or more for its last four.
tessera_tile.kernel @whole profile "fast" (
    %a: !tessera_tile.tensor<96x112xbf16> as "A" dims ["96", "112"] strides [112, 1] stride_div [112, 1] dim_div [96, 112] align 16,
    %c: !tessera_tile.tensor<100x100xf32> as "C" dims ["100", "100"] strides [100, 1] stride_div [100, 1] dim_div [100, 100] align 16 written) {
  %n = tessera_tile.constant 1 : index
  %c0 = tessera_tile.constant 0 : index
  %zero = tessera_tile.constant 0.0 : f32
  tessera_tile.grid(%n) by [1] {
  ^bb0(%i: index):
    // CHECK-LABEL: @whole
    // CHECK: [[A:%\w+]] = tessera_tile.load %a[%c0, %c0] [96, 100]
    %ta = tessera_tile.load %a[%c0, %c0] [96, 100] : !tessera_tile.tensor<96x112xbf16> -> !tessera_tile.tile<96x100xbf16>
    %run = tessera_tile.scan "sum" %ta axis 0 : !tessera_tile.tile<96x100xbf16> -> !tessera_tile.tile<96x100xbf16>
    %t = tessera_tile.transpose %run [1, 0] : !tessera_tile.tile<96x100xbf16> -> !tessera_tile.tile<100x96xbf16>
    %none = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<100x100xf32>
    // CHECK: tessera_tile.mma {{.*}} -> !tessera_tile.tile<100x100xf32>
    %p = tessera_tile.mma %t, %run, %none compute "bf16" : !tessera_tile.tile<100x96xbf16>, !tessera_tile.tile<96x100xbf16>, !tessera_tile.tile<100x100xf32> -> !tessera_tile.tile<100x100xf32>
    // CHECK: tessera_notes.tiles = ["100 elements of a product take the place of 128: scan takes all of it", "96 elements of a product take the place of 128: scan takes all of it"]
    tessera_tile.store %p, %c[%c0, %c0] [100, 100] : !tessera_tile.tile<100x100xf32>, !tessera_tile.tensor<100x100xf32>
  }
  tessera_tile.return
}

// -----

// A tensor ends with its rows of 88: the product sums over 8 zeros more, and stores them nowhere. The 104 columns are
// followed by others of their tensor.
tessera_tile.kernel @grown profile "fast" (
    %a: !tessera_tile.tensor<64x88xbf16> as "A" dims ["64", "88"] strides [88, 1] stride_div [88, 1] dim_div [64, 88] align 16,
    %b: !tessera_tile.tensor<88x128xbf16> as "B" dims ["88", "128"] strides [128, 1] stride_div [128, 1] dim_div [88, 128] align 16,
    %c: !tessera_tile.tensor<64x128xf32> as "C" dims ["64", "128"] strides [128, 1] stride_div [128, 1] dim_div [64, 128] align 16 written) {
  %n = tessera_tile.constant 1 : index
  %c0 = tessera_tile.constant 0 : index
  %zero = tessera_tile.constant 0.0 : f32
  tessera_tile.grid(%n) by [1] {
  ^bb0(%i: index):
    // CHECK-LABEL: @grown
    // CHECK: tessera_tile.load %a[%c0, %c0] [64, 64]
    // CHECK: tessera_tile.load %a[%c0, {{.*}}] [64, 32]
    %ta = tessera_tile.load %a[%c0, %c0] [64, 88] : !tessera_tile.tensor<64x88xbf16> -> !tessera_tile.tile<64x88xbf16>
    %tb = tessera_tile.load %b[%c0, %c0] [88, 104] : !tessera_tile.tensor<88x128xbf16> -> !tessera_tile.tile<88x104xbf16>
    %none = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<64x104xf32>
    %p = tessera_tile.mma %ta, %tb, %none compute "bf16" : !tessera_tile.tile<64x88xbf16>, !tessera_tile.tile<88x104xbf16>, !tessera_tile.tile<64x104xf32> -> !tessera_tile.tile<64x104xf32>
    // CHECK: tessera_notes.tiles = ["104 elements of a product are computed as 64 + 32 + 8", "88 elements of a product are computed as 64 + 32, the last 8 of them zeros"]
    tessera_tile.store %p, %c[%c0, %c0] [64, 104] : !tessera_tile.tile<64x104xf32>, !tessera_tile.tensor<64x128xf32>
  }
  tessera_tile.return
}
