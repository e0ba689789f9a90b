// RUN: schedule-keep-rows
// A gradient of softmax: both rows are copied at once, and read again behind their sum.
builtin.module {
  tessera_tile.kernel @backward profile "fast" (
      %g: !tessera_tile.tensor<?x16384xbf16> as "g" dims ["M", "N"] strides [-1, 1] stride_div [16, 1] dim_div [1, 16] align 16,
      %y: !tessera_tile.tensor<?x16384xbf16> as "y" dims ["M", "N"] strides [-1, 1] stride_div [16, 1] dim_div [1, 16] align 16,
      %x: !tessera_tile.tensor<?x16384xbf16> as "x" dims ["M", "N"] strides [-1, 1] stride_div [16, 1] dim_div [1, 16] align 16 written) {
    %m = tessera_tile.dim %g[0] : !tessera_tile.tensor<?x16384xbf16>
    tessera_tile.grid(%m) by [1] {
    ^bb0(%i: index):
      %zero = tessera_tile.constant 0 : index
      %a = tessera_tile.load %g[%i, %zero] [1, 16384] drop [0] : !tessera_tile.tensor<?x16384xbf16> -> !tessera_tile.tile<16384xbf16>
      %b = tessera_tile.load %y[%i, %zero] [1, 16384] drop [0] : !tessera_tile.tensor<?x16384xbf16> -> !tessera_tile.tile<16384xbf16>
      %c = tessera_tile.cast %a : !tessera_tile.tile<16384xbf16> -> !tessera_tile.tile<16384xf32>
      %d = tessera_tile.cast %b : !tessera_tile.tile<16384xbf16> -> !tessera_tile.tile<16384xf32>
      %p = tessera_tile.elementwise "mul"(%c, %d) : (!tessera_tile.tile<16384xf32>, !tessera_tile.tile<16384xf32>) -> !tessera_tile.tile<16384xf32>
      %s = tessera_tile.reduce "sum" %p axis 0 : !tessera_tile.tile<16384xf32> -> f32
      %t = tessera_tile.splat %s : f32 -> !tessera_tile.tile<16384xf32>
      %e = tessera_tile.elementwise "sub"(%c, %t) : (!tessera_tile.tile<16384xf32>, !tessera_tile.tile<16384xf32>) -> !tessera_tile.tile<16384xf32>
      %f = tessera_tile.elementwise "mul"(%e, %d) : (!tessera_tile.tile<16384xf32>, !tessera_tile.tile<16384xf32>) -> !tessera_tile.tile<16384xf32>
      %h = tessera_tile.cast %f : !tessera_tile.tile<16384xf32> -> !tessera_tile.tile<16384xbf16>
      tessera_tile.store %h, %x[%i, %zero] [1, 16384] drop [0] : !tessera_tile.tile<16384xbf16>, !tessera_tile.tensor<?x16384xbf16>
    }
    tessera_tile.return
  }
}
// CHECK: tessera_tile.cp_async
// CHECK: tessera_tile.cp_async
// CHECK: tessera_tile.commit_group
// CHECK: tessera_tile.wait_group 0
// CHECK: tessera_tile.barrier
// CHECK-NOT: tessera_tile.load
// CHECK: tessera_tile.shared_load
// CHECK: tessera_tile.shared_load
// CHECK: tessera_tile.reduce
// CHECK: tessera_tile.shared_load
// CHECK: tessera_tile.shared_load
// CHECK: tessera_tile.store
