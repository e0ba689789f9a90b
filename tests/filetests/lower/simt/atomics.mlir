// RUN: --to tirt --target sm_80
// Order and scope are kept; threads that are outside do nothing.
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @count profile "fast" (
      %b: !tessera_tile.tensor<?xi32> as "b" dims ["V"] strides [1] stride_div [1] dim_div [1] align 16 written,
      %r: !tessera_tile.tensor<256xi64> as "r" dims ["256"] strides [1] stride_div [1] dim_div [16] align 16) {
    %zero = tessera_tile.constant 0 : index
    %one = tessera_tile.constant 1 : i32
    %v = tessera_tile.splat %one : i32 -> !tessera_tile.tile<256xi32>
    %j = tessera_tile.load %r[%zero] [256] : !tessera_tile.tensor<256xi64> -> !tessera_tile.tile<256xi64>
    %old = tessera_tile.atomic "add" %b[%j] value %v : !tessera_tile.tile<256xi32> order "acq_rel" scope "device" : !tessera_tile.tensor<?xi32>[!tessera_tile.tile<256xi64>] -> !tessera_tile.tile<256xi32>
    tessera_tile.return
  }
}
// CHECK: [[MASK:%\d+]] = tessera_target.elementwise "lt"({{.*}}xui64
// CHECK: tessera_target.atomic "add" {{.*}} mask [[MASK]] : {{.*}} order "acq_rel" scope "device"
// CHECK-NOT: tessera_target.atomic

// -----
// A program's threads are one agent: they wait for each other before a release and after an acquire.
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @pass profile "fast" (
      %b: !tessera_tile.tensor<?xi32> as "b" dims ["V"] strides [1] stride_div [1] dim_div [1] align 16 written,
      %x: !tessera_tile.tensor<256xf32> as "x" dims ["256"] strides [1] stride_div [1] dim_div [16] align 16 written) {
    %zero = tessera_tile.constant 0 : index
    %place = tessera_tile.constant 0 : i64
    %one = tessera_tile.constant 1 : i32
    %f = tessera_tile.constant 1.0 : f32
    %v = tessera_tile.splat %f : f32 -> !tessera_tile.tile<256xf32>
    tessera_tile.store %v, %x[%zero] [256] : !tessera_tile.tile<256xf32>, !tessera_tile.tensor<256xf32>
    tessera_tile.atomic "store" %b[%place] value %one : i32 order "release" scope "device" : !tessera_tile.tensor<?xi32>[i64]
    %seen = tessera_tile.atomic "load" %b[%place] order "acquire" scope "device" : !tessera_tile.tensor<?xi32>[i64] -> i32
    tessera_tile.atomic "store" %b[%place] value %one : i32 order "relaxed" scope "device" : !tessera_tile.tensor<?xi32>[i64]
    tessera_tile.fence "acquire" scope "device"
    tessera_tile.fence "release" scope "mesh"
    tessera_tile.return
  }
}
// CHECK: tessera_target.store
// CHECK: tessera_target.barrier
// CHECK: tessera_target.atomic "store" {{.*}} order "release"
// CHECK: tessera_target.atomic "load" {{.*}} order "acquire"
// CHECK: tessera_target.barrier
// CHECK: tessera_target.atomic "store" {{.*}} order "relaxed"
// CHECK-NEXT: tessera_target.fence "acquire"
// CHECK-NEXT: tessera_target.barrier
// CHECK-NEXT: tessera_target.barrier
// CHECK-NEXT: tessera_target.fence "release" scope "mesh"
// CHECK-NEXT: tessera_target.return
