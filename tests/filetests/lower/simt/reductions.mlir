// RUN: --to tirt --target sm_80
// A row within a warp: each thread adds its registers, then five exchanges with the lanes that differ in one bit.
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @rows profile "fast" (
      %x: !tessera_tile.tensor<4x512xf32> as "x" dims ["4", "512"] strides [512, 1] stride_div [16, 1] dim_div [4, 16] align 16,
      %y: !tessera_tile.tensor<4xf32> as "y" dims ["4"] strides [1] stride_div [1] dim_div [4] align 16 written) {
    %zero = tessera_tile.constant 0 : index
    %t = tessera_tile.load %x[%zero, %zero] [4, 512] : !tessera_tile.tensor<4x512xf32> -> !tessera_tile.tile<4x512xf32>
    %s = tessera_tile.reduce "sum" %t axis 1 : !tessera_tile.tile<4x512xf32> -> !tessera_tile.tile<4xf32>
    tessera_tile.store %s, %y[%zero] [4] : !tessera_tile.tile<4xf32>, !tessera_tile.tensor<4xf32>
    tessera_tile.return
  }
}
// CHECK: [[T:%\d+]] = tessera_target.load {{.*}} vector 4 : {{.*}}warp = [[1, 0], [2, 0]]
// CHECK-NOT: tessera_target.alloc
// CHECK: [[S:%\d+]] = tessera_target.reduce_registers "sum" [[T]] axis 1
// CHECK-NEXT: [[A:%\d+]] = tessera_target.reduce_lanes "sum" [[S]] mask 1 :
// CHECK-NEXT: [[B:%\d+]] = tessera_target.reduce_lanes "sum" [[A]] mask 2 :
// CHECK-NEXT: [[C:%\d+]] = tessera_target.reduce_lanes "sum" [[B]] mask 4 :
// CHECK-NEXT: [[D:%\d+]] = tessera_target.reduce_lanes "sum" [[C]] mask 8 :
// CHECK-NEXT: [[E:%\d+]] = tessera_target.reduce_lanes "sum" [[D]] mask 16 :
// CHECK-NOT: barrier
// CHECK: tessera_target.store [[E]]

// -----
// A row that all warps share: their sums meet in shared memory, and a barrier stands between writing and reading.
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @row profile "fast" (
      %x: !tessera_tile.tensor<1x4096xf32> as "x" dims ["1", "4096"] strides [4096, 1] stride_div [16, 1] dim_div [1, 16] align 16,
      %y: !tessera_tile.tensor<1xf32> as "y" dims ["1"] strides [1] stride_div [1] dim_div [1] align 16 written) {
    %zero = tessera_tile.constant 0 : index
    %t = tessera_tile.load %x[%zero, %zero] [1, 4096] : !tessera_tile.tensor<1x4096xf32> -> !tessera_tile.tile<1x4096xf32>
    %s = tessera_tile.reduce "max" %t axis 1 : !tessera_tile.tile<1x4096xf32> -> !tessera_tile.tile<1xf32>
    tessera_tile.store %s, %y[%zero] [1] : !tessera_tile.tile<1xf32>, !tessera_tile.tensor<1xf32>
    tessera_tile.return
  }
}
// CHECK: tessera_target.reduce_registers "max"
// CHECK: tessera_target.reduce_lanes "max" {{.*}} mask 16 :
// CHECK: tessera_target.buffer_store
// CHECK: tessera_target.barrier
// CHECK: tessera_target.buffer_load
// CHECK: tessera_target.store
