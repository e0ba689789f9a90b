// RUN: schedule-prefetch-boxes

// Programs go from row to row: each prefetches the next one's, of 16 KiB.
// CHECK: tessera_tile.load {{.*}} {tessera_schedule.prefetch_box = #builtin.int<1>}
tessera_tile.kernel @rows profile "fast" (
    %x: !tessera_tile.tensor<?x4096xf32> as "x" dims ["M", "4096"] strides [4096, 1] stride_div [16, 1] dim_div [1, 16] align 16,
    %y: !tessera_tile.tensor<?x4096xf32> as "y" dims ["M", "4096"] strides [4096, 1] stride_div [16, 1] dim_div [1, 16] align 16 written) {
  %m = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x4096xf32>
  %zero = tessera_tile.constant 0 : index
  tessera_tile.grid(%m) by [1] {
  ^bb0(%i: index):
    %t = tessera_tile.load %x[%i, %zero] [1, 4096] : !tessera_tile.tensor<?x4096xf32> -> !tessera_tile.tile<1x4096xf32>
    %u = tessera_tile.elementwise "neg"(%t) : (!tessera_tile.tile<1x4096xf32>) -> !tessera_tile.tile<1x4096xf32>
    tessera_tile.store %u, %y[%i, %zero] [1, 4096] : !tessera_tile.tile<1x4096xf32>, !tessera_tile.tensor<?x4096xf32>
  }
  tessera_tile.return
}

// -----
// Rows of 1 KiB are read ahead by the hardware.
// CHECK-NOT: tessera_schedule
// CHECK: tessera_tile.return
tessera_tile.kernel @short profile "fast" (
    %x: !tessera_tile.tensor<?x4096xf32> as "x" dims ["M", "4096"] strides [4096, 1] stride_div [16, 1] dim_div [1, 16] align 16,
    %y: !tessera_tile.tensor<?x4096xf32> as "y" dims ["M", "4096"] strides [4096, 1] stride_div [16, 1] dim_div [1, 16] align 16 written) {
  %m = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x4096xf32>
  %zero = tessera_tile.constant 0 : index
  tessera_tile.grid(%m) by [1] {
  ^bb0(%i: index):
    %t = tessera_tile.load %x[%i, %zero] [1, 256] : !tessera_tile.tensor<?x4096xf32> -> !tessera_tile.tile<1x256xf32>
    %u = tessera_tile.elementwise "neg"(%t) : (!tessera_tile.tile<1x256xf32>) -> !tessera_tile.tile<1x256xf32>
    tessera_tile.store %u, %y[%i, %zero] [1, 256] : !tessera_tile.tile<1x256xf32>, !tessera_tile.tensor<?x4096xf32>
  }
  tessera_tile.return
}

// -----
// Many rows would not stay in the second-level cache.
// CHECK-NOT: tessera_schedule
// CHECK: tessera_tile.return
tessera_tile.kernel @much profile "fast" (
    %x: !tessera_tile.tensor<?x4096xf32> as "x" dims ["M", "4096"] strides [4096, 1] stride_div [16, 1] dim_div [1, 16] align 16,
    %y: !tessera_tile.tensor<?x4096xf32> as "y" dims ["M", "4096"] strides [4096, 1] stride_div [16, 1] dim_div [1, 16] align 16 written) {
  %m = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x4096xf32>
  %zero = tessera_tile.constant 0 : index
  tessera_tile.grid(%m) by [16] {
  ^bb0(%i: index):
    %t = tessera_tile.load %x[%i, %zero] [16, 4096] : !tessera_tile.tensor<?x4096xf32> -> !tessera_tile.tile<16x4096xf32>
    %u = tessera_tile.elementwise "neg"(%t) : (!tessera_tile.tile<16x4096xf32>) -> !tessera_tile.tile<16x4096xf32>
    tessera_tile.store %u, %y[%i, %zero] [16, 4096] : !tessera_tile.tile<16x4096xf32>, !tessera_tile.tensor<?x4096xf32>
  }
  tessera_tile.return
}

// -----
// Nothing is, if that is asked for.
// RUN: schedule-prefetch-boxes{prefetch=0}
// CHECK-NOT: tessera_schedule
// CHECK: tessera_tile.return
tessera_tile.kernel @none profile "fast" (
    %x: !tessera_tile.tensor<?x4096xf32> as "x" dims ["M", "4096"] strides [4096, 1] stride_div [16, 1] dim_div [1, 16] align 16,
    %y: !tessera_tile.tensor<?x4096xf32> as "y" dims ["M", "4096"] strides [4096, 1] stride_div [16, 1] dim_div [1, 16] align 16 written) {
  %m = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x4096xf32>
  %zero = tessera_tile.constant 0 : index
  tessera_tile.grid(%m) by [1] {
  ^bb0(%i: index):
    %t = tessera_tile.load %x[%i, %zero] [1, 4096] : !tessera_tile.tensor<?x4096xf32> -> !tessera_tile.tile<1x4096xf32>
    %u = tessera_tile.elementwise "neg"(%t) : (!tessera_tile.tile<1x4096xf32>) -> !tessera_tile.tile<1x4096xf32>
    tessera_tile.store %u, %y[%i, %zero] [1, 4096] : !tessera_tile.tile<1x4096xf32>, !tessera_tile.tensor<?x4096xf32>
  }
  tessera_tile.return
}

// -----
// One row that goes on from program to program is a stream that the hardware follows.
// CHECK-NOT: tessera_schedule
// CHECK: tessera_tile.return
tessera_tile.kernel @along profile "fast" (
    %x: !tessera_tile.tensor<?x4096xf32> as "x" dims ["M", "4096"] strides [4096, 1] stride_div [16, 1] dim_div [1, 16] align 16,
    %y: !tessera_tile.tensor<?x4096xf32> as "y" dims ["M", "4096"] strides [4096, 1] stride_div [16, 1] dim_div [1, 16] align 16 written) {
  %m = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x4096xf32>
  %n = tessera_tile.dim %x[1] : !tessera_tile.tensor<?x4096xf32>
  %zero = tessera_tile.constant 0 : index
  tessera_tile.grid(%n) by [1024] {
  ^bb0(%i: index):
    %t = tessera_tile.load %x[%zero, %i] [1, 1024] : !tessera_tile.tensor<?x4096xf32> -> !tessera_tile.tile<1x1024xf32>
    %u = tessera_tile.elementwise "neg"(%t) : (!tessera_tile.tile<1x1024xf32>) -> !tessera_tile.tile<1x1024xf32>
    tessera_tile.store %u, %y[%zero, %i] [1, 1024] : !tessera_tile.tile<1x1024xf32>, !tessera_tile.tensor<?x4096xf32>
  }
  tessera_tile.return
}
