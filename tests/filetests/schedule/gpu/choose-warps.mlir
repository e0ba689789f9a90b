// RUN: schedule-choose-warps

// One warp per 4096 accumulator elements, between 4 and 8; a product's grid has a raster order.
tessera_tile.kernel @gemm profile "fast" (
    %c: !tessera_tile.tensor<?x?xf32> as "C" dims ["M", "N"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] written) {
  %m = tessera_tile.dim %c[0] : !tessera_tile.tensor<?x?xf32>
  %zero = tessera_tile.constant 0.0 : f32
  tessera_tile.grid(%m, %m) by [128, 256] {
  ^bb0(%i: index, %j: index):
    %x = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<128x32xf32>
    %y = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<32x256xf32>
    %acc = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<128x256xf32>
    // CHECK: tessera_tile.mma {{.*}} {tessera_schedule.rows_only = #builtin.int<0>}
    %sum = tessera_tile.mma %x, %y, %acc compute "f32" : !tessera_tile.tile<128x32xf32>, !tessera_tile.tile<32x256xf32>, !tessera_tile.tile<128x256xf32> -> !tessera_tile.tile<128x256xf32>
    tessera_tile.store %sum, %c[%i, %j] [128, 256] : !tessera_tile.tile<128x256xf32>, !tessera_tile.tensor<?x?xf32>
  }
  // CHECK: tessera_schedule.num_warps = #builtin.int<8>, tessera_schedule.group = #builtin.int<16>
  tessera_tile.return
}

// -----
// A reduction along the rows of a product keeps each row in one warp.
tessera_tile.kernel @rows profile "fast" (
    %c: !tessera_tile.tensor<?xf32> as "c" dims ["M"] strides [1] stride_div [1] dim_div [1] written) {
  %m = tessera_tile.dim %c[0] : !tessera_tile.tensor<?xf32>
  %zero = tessera_tile.constant 0.0 : f32
  tessera_tile.grid(%m) by [64] {
  ^bb0(%i: index):
    %x = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<64x32xf32>
    %y = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<32x64xf32>
    %acc = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<64x64xf32>
    // CHECK: tessera_tile.mma {{.*}} {tessera_schedule.rows_only = #builtin.int<1>}
    %sum = tessera_tile.mma %x, %y, %acc compute "f32" : !tessera_tile.tile<64x32xf32>, !tessera_tile.tile<32x64xf32>, !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
    %top = tessera_tile.reduce "max" %sum axis 1 : !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64xf32>
    tessera_tile.store %top, %c[%i] [64] : !tessera_tile.tile<64xf32>, !tessera_tile.tensor<?xf32>
  }
  // CHECK: tessera_schedule.num_warps = #builtin.int<4>
  tessera_tile.return
}

// -----
// Without a product: one warp per 1024 elements of the largest tile.
tessera_tile.kernel @row profile "fast" (
    %x: !tessera_tile.tensor<?xf32> as "x" dims ["N"] strides [1] stride_div [1] dim_div [1] written) {
  %n = tessera_tile.dim %x[0] : !tessera_tile.tensor<?xf32>
  tessera_tile.grid(%n) by [8192] {
  ^bb0(%i: index):
    %t = tessera_tile.load %x[%i] [8192] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<8192xf32>
    tessera_tile.store %t, %x[%i] [8192] : !tessera_tile.tile<8192xf32>, !tessera_tile.tensor<?xf32>
  }
  // CHECK: tessera_schedule.num_warps = #builtin.int<8>
  tessera_tile.return
}
