// RUN: --to tirt --target sm_90a
// Merges of lanes and of warps are loops, each with a loop over the bits of lanes; those of registers are unrolled.
builtin.module attributes {tessera.after = "schedule", tessera.knobs = {num_warps = 4 : i64}} {
  tessera_tile.kernel @rows profile "fast" (
      %x: !tessera_tile.tensor<4096xi32> as "x" dims ["4096"] strides [1] stride_div [1] dim_div [16] align 16,
      %y: !tessera_tile.tensor<4096xi32> as "y" dims ["4096"] strides [1] stride_div [1] dim_div [16] align 16 written) {
    %zero = tessera_tile.constant 0 : index
    %t = tessera_tile.load %x[%zero] [4096] : !tessera_tile.tensor<4096xi32> -> !tessera_tile.tile<4096xi32>
    %s = tessera_tile.sort %t axis 0 : !tessera_tile.tile<4096xi32> -> !tessera_tile.tile<4096xi32>
    tessera_tile.store %s, %y[%zero] [4096] : !tessera_tile.tile<4096xi32>, !tessera_tile.tensor<4096xi32>
    tessera_tile.return
  }
}
// CHECK: tessera_target.load
// CHECK: tessera_target.exchange {{.*}} register 1 lane 0 :
// CHECK: tessera_target.exchange {{.*}} register 3 lane 0 :
// CHECK: tessera_target.exchange {{.*}} register 1 lane 0 :
// CHECK: scf.for
// CHECK: tessera_target.exchange {{.*}} register 3 lane 0 lanes
// CHECK: tessera_target.keep_in_order {{.*}} register 0 threads
// CHECK: scf.for
// CHECK: tessera_target.exchange {{.*}} register 0 lane 0 lanes
// CHECK: tessera_target.exchange {{.*}} register 2 lane 0 :
// CHECK: tessera_target.keep_in_order {{.*}} register 2 threads
// CHECK: scf.for
// CHECK: tessera_target.exchange_warps {{.*}} register 3 lane 31 warp 0 warps
// CHECK: scf.for
// CHECK: tessera_target.exchange_warps {{.*}} register 0 lane 0 warp 0 warps
// CHECK: scf.for
// CHECK: scf.if
// CHECK: tessera_target.store
