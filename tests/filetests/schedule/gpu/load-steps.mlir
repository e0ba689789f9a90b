// RUN: schedule-load-steps
// A scan along columns: the loads of 16 rows come before the first of them is added, and stores stay in their order.
builtin.module {
  tessera_tile.kernel @scan profile "fast" (
      %x: !tessera_tile.tensor<?x?xf32> as "x" dims ["M", "N"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16,
      %y: !tessera_tile.tensor<?x?xf32> as "y" dims ["M", "N"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16 written) {
    %m = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x?xf32>
    %n = tessera_tile.dim %x[1] : !tessera_tile.tensor<?x?xf32>
    tessera_tile.grid(%n) by [64] {
    ^bb0(%j: index):
      %zero = tessera_tile.constant 0 : index
      %one = tessera_tile.constant 1 : index
      %none = tessera_tile.constant 0.000000e+00 : f32
      %start = tessera_tile.splat %none : f32 -> !tessera_tile.tile<64xf32>
      %last = scf.for %i = %zero to %m step %one iter_args(%sum = %start) -> (!tessera_tile.tile<64xf32>) {
        %row = tessera_tile.load %x[%i, %j] [1, 64] drop [0] : !tessera_tile.tensor<?x?xf32> -> !tessera_tile.tile<64xf32>
        %next = tessera_tile.elementwise "add"(%sum, %row) : (!tessera_tile.tile<64xf32>, !tessera_tile.tile<64xf32>) -> !tessera_tile.tile<64xf32>
        tessera_tile.store %next, %y[%i, %j] [1, 64] drop [0] : !tessera_tile.tile<64xf32>, !tessera_tile.tensor<?x?xf32>
        scf.yield %next : !tessera_tile.tile<64xf32>
      }
    }
    tessera_tile.return
  }
}
// CHECK: scf.for
// CHECK: tessera_tile.load
// CHECK-NOT: tessera_tile.store
// CHECK: tessera_tile.load
// CHECK: tessera_tile.store
// CHECK-NOT: tessera_tile.load
// CHECK: scf.yield
// CHECK: scf.for
// CHECK: tessera_tile.load
// CHECK: tessera_tile.store
