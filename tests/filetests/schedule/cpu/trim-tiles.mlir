// RUN: schedule-trim-tiles

// The last tile of rows reaches past the end of a tensor of any size: the product of rows there leads to nothing.
// CHECK: } {tessera_schedule.trim = #builtin.int<1>}
tessera_tile.kernel @any profile "fast" (
    %a: !tessera_tile.tensor<?x64xf32> as "a" dims ["M", "64"] strides [64, 1] stride_div [16, 1] dim_div [1, 16] align 16,
    %b: !tessera_tile.tensor<64x64xf32> as "b" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16,
    %c: !tessera_tile.tensor<?x64xf32> as "c" dims ["M", "64"] strides [64, 1] stride_div [16, 1] dim_div [1, 16] align 16 written) {
  %m = tessera_tile.dim %c[0] : !tessera_tile.tensor<?x64xf32>
  tessera_tile.grid(%m) by [64] {
  ^bb0(%i: index):
    %o = tessera_tile.constant 0 : index
    %zero = tessera_tile.constant 0.0 : f32
    %acc = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<64x64xf32>
    %x = tessera_tile.load %a[%i, %o] [64, 64] : !tessera_tile.tensor<?x64xf32> -> !tessera_tile.tile<64x64xf32>
    %y = tessera_tile.load %b[%o, %o] [64, 64] : !tessera_tile.tensor<64x64xf32> -> !tessera_tile.tile<64x64xf32>
    %e = tessera_tile.elementwise "exp"(%x) : (!tessera_tile.tile<64x64xf32>) -> !tessera_tile.tile<64x64xf32>
    %sum = tessera_tile.mma %e, %y, %acc compute "f32" : !tessera_tile.tile<64x64xf32>, !tessera_tile.tile<64x64xf32>, !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
    tessera_tile.store %sum, %c[%i, %o] [64, 64] : !tessera_tile.tile<64x64xf32>, !tessera_tile.tensor<?x64xf32>
  }
  tessera_tile.return
}

// -----
// Where tiles divide the tensor there are no such rows, ...
// CHECK-NOT: trim
// CHECK: tessera_tile.return
tessera_tile.kernel @whole profile "fast" (
    %a: !tessera_tile.tensor<128x64xf32> as "a" dims ["128", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16,
    %c: !tessera_tile.tensor<128xf32> as "c" dims ["128"] strides [1] stride_div [1] dim_div [16] align 16 written) {
  %m = tessera_tile.constant 128 : index
  tessera_tile.grid(%m) by [64] {
  ^bb0(%i: index):
    %o = tessera_tile.constant 0 : index
    %x = tessera_tile.load %a[%i, %o] [64, 64] : !tessera_tile.tensor<128x64xf32> -> !tessera_tile.tile<64x64xf32>
    %sum = tessera_tile.reduce "sum" %x axis 1 : !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64xf32>
    tessera_tile.store %sum, %c[%i] [64] : !tessera_tile.tile<64xf32>, !tessera_tile.tensor<128xf32>
  }
  tessera_tile.return
}

// -----
// ... nor where all rows lead to what is stored: to a sum of all of them.
// CHECK-NOT: trim
// CHECK: tessera_tile.return
tessera_tile.kernel @all profile "fast" (
    %a: !tessera_tile.tensor<?x64xf32> as "a" dims ["M", "64"] strides [64, 1] stride_div [16, 1] dim_div [1, 16] align 16,
    %c: !tessera_tile.tensor<64xf32> as "c" dims ["64"] strides [1] stride_div [1] dim_div [16] align 16 written) {
  %m = tessera_tile.dim %a[0] : !tessera_tile.tensor<?x64xf32>
  tessera_tile.grid(%m) by [64] {
  ^bb0(%i: index):
    %o = tessera_tile.constant 0 : index
    %x = tessera_tile.load %a[%i, %o] [64, 64] : !tessera_tile.tensor<?x64xf32> -> !tessera_tile.tile<64x64xf32>
    %sum = tessera_tile.reduce "sum" %x axis 0 : !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64xf32>
    tessera_tile.store %sum, %c[%o] [64] : !tessera_tile.tile<64xf32>, !tessera_tile.tensor<64xf32>
  }
  tessera_tile.return
}

// -----
// Tiles are computed whole if that is asked for.
// RUN: schedule-trim-tiles{trim=0}
// CHECK-NOT: trim
// CHECK: tessera_tile.return
tessera_tile.kernel @asked profile "fast" (
    %a: !tessera_tile.tensor<?x64xf32> as "a" dims ["M", "64"] strides [64, 1] stride_div [16, 1] dim_div [1, 16] align 16,
    %c: !tessera_tile.tensor<?xf32> as "c" dims ["M"] strides [1] stride_div [1] dim_div [1] align 16 written) {
  %m = tessera_tile.dim %c[0] : !tessera_tile.tensor<?xf32>
  tessera_tile.grid(%m) by [64] {
  ^bb0(%i: index):
    %o = tessera_tile.constant 0 : index
    %x = tessera_tile.load %a[%i, %o] [64, 64] : !tessera_tile.tensor<?x64xf32> -> !tessera_tile.tile<64x64xf32>
    %sum = tessera_tile.reduce "sum" %x axis 1 : !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64xf32>
    tessera_tile.store %sum, %c[%i] [64] : !tessera_tile.tile<64xf32>, !tessera_tile.tensor<?xf32>
  }
  tessera_tile.return
}
