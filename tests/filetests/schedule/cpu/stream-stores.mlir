// RUN: schedule-stream-stores{target=x86-64-v3}

// What is only written goes past the caches where the tensor has 16 MiB.
// CHECK: tessera_tile.store {{.*}} {tessera_schedule.stream = #builtin.int<16>}
tessera_tile.kernel @halved profile "fast" (
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
// A tensor that is read as well stays in the caches.
// CHECK-NOT: tessera_schedule
// CHECK: tessera_tile.return
tessera_tile.kernel @in_place profile "fast" (
    %x: !tessera_tile.tensor<?x4096xf32> as "x" dims ["M", "4096"] strides [4096, 1] stride_div [16, 1] dim_div [1, 16] align 16,
    %y: !tessera_tile.tensor<?x4096xf32> as "y" dims ["M", "4096"] strides [4096, 1] stride_div [16, 1] dim_div [1, 16] align 16 written) {
  %m = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x4096xf32>
  %zero = tessera_tile.constant 0 : index
  tessera_tile.grid(%m) by [1] {
  ^bb0(%i: index):
    %t = tessera_tile.load %y[%i, %zero] [1, 4096] : !tessera_tile.tensor<?x4096xf32> -> !tessera_tile.tile<1x4096xf32>
    %u = tessera_tile.elementwise "neg"(%t) : (!tessera_tile.tile<1x4096xf32>) -> !tessera_tile.tile<1x4096xf32>
    tessera_tile.store %u, %y[%i, %zero] [1, 4096] : !tessera_tile.tile<1x4096xf32>, !tessera_tile.tensor<?x4096xf32>
  }
  tessera_tile.return
}

// -----
// Elements apart are no rows.
// CHECK-NOT: tessera_schedule
// CHECK: tessera_tile.return
tessera_tile.kernel @columns profile "fast" (
    %x: !tessera_tile.tensor<?x4096xf32> as "x" dims ["M", "4096"] strides [4096, 1] stride_div [16, 1] dim_div [1, 16] align 16,
    %y: !tessera_tile.tensor<?x4096xf32> as "y" dims ["M", "4096"] strides [1, -1] stride_div [16, 1] dim_div [1, 16] align 16 written) {
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
// Never, if that is asked for.
// RUN: schedule-stream-stores{target=x86-64-v3,stream=0}
// CHECK-NOT: tessera_schedule
// CHECK: tessera_tile.return
tessera_tile.kernel @never profile "fast" (
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
// Nor on AArch64, where stores have no such form.
// RUN: schedule-stream-stores{target=aarch64}
// CHECK-NOT: tessera_schedule
// CHECK: tessera_tile.return
tessera_tile.kernel @elsewhere profile "fast" (
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
// From another size on.
// RUN: schedule-stream-stores{target=x86-64-v3,stream=64}
// CHECK: tessera_tile.store {{.*}} {tessera_schedule.stream = #builtin.int<64>}
tessera_tile.kernel @larger profile "fast" (
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
