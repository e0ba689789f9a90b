// RUN: schedule-private-sums
// A histogram: for few bins and many elements programs add to elements of their own, and those to the tensor at the end.
builtin.module {
  tessera_tile.kernel @histogram profile "fast" (
      %x: !tessera_tile.tensor<?xi32> as "x" dims ["N"] strides [1] stride_div [1] dim_div [1] align 16,
      %y: !tessera_tile.tensor<?xi32> as "y" dims ["K"] strides [1] stride_div [1] dim_div [1] align 16 written) {
    %n = tessera_tile.dim %x[0] : !tessera_tile.tensor<?xi32>
    tessera_tile.grid(%n) by [1024] {
    ^bb0(%i: index):
      %place = tessera_tile.load %x[%i] [1024] : !tessera_tile.tensor<?xi32> -> !tessera_tile.tile<1024xi32>
      %one = tessera_tile.constant 1 : i32
      %ones = tessera_tile.splat %one : i32 -> !tessera_tile.tile<1024xi32>
      %old = tessera_tile.atomic "add" %y[%place] value %ones : !tessera_tile.tile<1024xi32> order "relaxed" scope "device" : !tessera_tile.tensor<?xi32>[!tessera_tile.tile<1024xi32>] -> !tessera_tile.tile<1024xi32>
    }
    tessera_tile.return
  }
}
// CHECK: tessera_tile.grid({{.*}}) by [1] when
// CHECK: [[OWN:%\w+]] = tessera_tile.alloc_shared
// CHECK: scf.for
// CHECK: tessera_tile.shared_atomic "add" [[OWN]]
// CHECK: tessera_tile.barrier
// CHECK: tessera_tile.atomic "add"
// CHECK: tessera_tile.grid({{.*}}) by [1024] when
// CHECK: tessera_tile.atomic "add"
