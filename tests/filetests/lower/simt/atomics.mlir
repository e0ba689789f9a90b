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
    %old = tessera_tile.atomic "add" %v, %b[%j] order "acq_rel" scope "device" : !tessera_tile.tile<256xi32>, !tessera_tile.tensor<?xi32>[!tessera_tile.tile<256xi64>] -> !tessera_tile.tile<256xi32>
    tessera_tile.return
  }
}
// CHECK: [[MASK:%\d+]] = tessera_target.elementwise "lt"({{.*}}xui64
// CHECK: tessera_target.atomic "add" {{.*}} mask [[MASK]] : {{.*}} order "acq_rel" scope "device"
// CHECK-NOT: tessera_target.atomic
