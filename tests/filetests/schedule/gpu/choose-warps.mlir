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
// Neighbours in memory of which each is computed on its own: 16 bytes a thread, of 16 warps at most.
tessera_tile.kernel @row profile "fast" (
    %x: !tessera_tile.tensor<?xf32> as "x" dims ["N"] strides [1] stride_div [1] dim_div [1] written) {
  %n = tessera_tile.dim %x[0] : !tessera_tile.tensor<?xf32>
  tessera_tile.grid(%n) by [8192] {
  ^bb0(%i: index):
    %t = tessera_tile.load %x[%i] [8192] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<8192xf32>
    tessera_tile.store %t, %x[%i] [8192] : !tessera_tile.tile<8192xf32>, !tessera_tile.tensor<?xf32>
  }
  // CHECK: tessera_schedule.num_warps = #builtin.int<16>
  tessera_tile.return
}

// -----
// Sums of two arrays: what a round loads of both counts, and two tiles that the loop carries take 64 registers a thread.
// The loop does nothing but reduce what it loads: as many programs run at once as keep memory busy.
tessera_tile.kernel @two_sums profile "fast" (
    %x: !tessera_tile.tensor<?xbf16> as "x" dims ["N"] strides [1] stride_div [1] dim_div [1],
    %y: !tessera_tile.tensor<?xbf16> as "y" dims ["N"] strides [1] stride_div [1] dim_div [1],
    %z: !tessera_tile.tensor<?xf32> as "z" dims ["P"] strides [1] stride_div [1] dim_div [1] written) {
  %n = tessera_tile.dim %x[0] : !tessera_tile.tensor<?xbf16>
  %p = tessera_tile.dim %z[0] : !tessera_tile.tensor<?xf32>
  %c0 = tessera_tile.constant 0 : index
  %step = tessera_tile.constant 4096 : index
  %zero = tessera_tile.constant 0.0 : f32
  tessera_tile.grid(%p) by [1] {
  ^bb0(%i: index):
    %none = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<4096xf32>
    %sum = scf.for %k = %c0 to %n step %step iter_args(%s = %none) -> (!tessera_tile.tile<4096xf32>) {
      %a = tessera_tile.load %x[%k] [4096] : !tessera_tile.tensor<?xbf16> -> !tessera_tile.tile<4096xbf16>
      %b = tessera_tile.load %y[%k] [4096] : !tessera_tile.tensor<?xbf16> -> !tessera_tile.tile<4096xbf16>
      %c = tessera_tile.cast %a : !tessera_tile.tile<4096xbf16> -> !tessera_tile.tile<4096xf32>
      %d = tessera_tile.cast %b : !tessera_tile.tile<4096xbf16> -> !tessera_tile.tile<4096xf32>
      %e = tessera_tile.elementwise "mul"(%c, %d) : (!tessera_tile.tile<4096xf32>, !tessera_tile.tile<4096xf32>) -> !tessera_tile.tile<4096xf32>
      %t = tessera_tile.elementwise "add"(%s, %e) : (!tessera_tile.tile<4096xf32>, !tessera_tile.tile<4096xf32>) -> !tessera_tile.tile<4096xf32>
      scf.yield %t : !tessera_tile.tile<4096xf32>
    }
    %whole = tessera_tile.reduce "sum" %sum axis 0 : !tessera_tile.tile<4096xf32> -> f32
    tessera_tile.store %whole, %z[%i] [1] drop [0] : f32, !tessera_tile.tensor<?xf32>
  }
  // CHECK: tessera_schedule.num_warps = #builtin.int<4>, tessera_schedule.resident = #builtin.int<8>}
  tessera_tile.return
}

// -----
// A row that is reduced twice: the assembler is told how many programs are to run at once.
tessera_tile.kernel @row_twice profile "fast" (
    %x: !tessera_tile.tensor<?x16384xbf16> as "x" dims ["M", "N"] strides [16384, 1] stride_div [16384, 1] dim_div [1, 16384] align 16 written) {
  %m = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x16384xbf16>
  %c0 = tessera_tile.constant 0 : index
  tessera_tile.grid(%m) by [1] {
  ^bb0(%i: index):
    %a = tessera_tile.load %x[%i, %c0] [1, 16384] drop [0] : !tessera_tile.tensor<?x16384xbf16> -> !tessera_tile.tile<16384xbf16>
    %b = tessera_tile.cast %a : !tessera_tile.tile<16384xbf16> -> !tessera_tile.tile<16384xf32>
    %top = tessera_tile.reduce "max" %b axis 0 : !tessera_tile.tile<16384xf32> -> f32
    %tops = tessera_tile.splat %top : f32 -> !tessera_tile.tile<16384xf32>
    %c = tessera_tile.elementwise "sub"(%b, %tops) : (!tessera_tile.tile<16384xf32>, !tessera_tile.tile<16384xf32>) -> !tessera_tile.tile<16384xf32>
    %sum = tessera_tile.reduce "sum" %c axis 0 : !tessera_tile.tile<16384xf32> -> f32
    %sums = tessera_tile.splat %sum : f32 -> !tessera_tile.tile<16384xf32>
    %d = tessera_tile.elementwise "sub"(%c, %sums) : (!tessera_tile.tile<16384xf32>, !tessera_tile.tile<16384xf32>) -> !tessera_tile.tile<16384xf32>
    %e = tessera_tile.cast %d : !tessera_tile.tile<16384xf32> -> !tessera_tile.tile<16384xbf16>
    tessera_tile.store %e, %x[%i, %c0] [1, 16384] drop [0] : !tessera_tile.tile<16384xbf16>, !tessera_tile.tensor<?x16384xbf16>
  }
  // CHECK: tessera_schedule.num_warps = #builtin.int<8>, tessera_schedule.resident = #builtin.int<3>
  tessera_tile.return
}
