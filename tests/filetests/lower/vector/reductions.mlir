// RUN: --to tirt --target x86-64-v3
// Sums run in four chains of vectors of 8, which the end adds up: an addition takes four cycles.
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @sum profile "fast" (
      %x: !tessera_tile.tensor<4x512xf32> as "x" dims ["4", "512"] strides [512, 1] stride_div [16, 1] dim_div [4, 16] align 16,
      %y: !tessera_tile.tensor<4xf32> as "y" dims ["4"] strides [1] stride_div [1] dim_div [4] align 16 written) {
    %zero = tessera_tile.constant 0 : index
    %t = tessera_tile.load %x[%zero, %zero] [4, 512] : !tessera_tile.tensor<4x512xf32> -> !tessera_tile.tile<4x512xf32>
    %s = tessera_tile.reduce "sum" %t axis 1 : !tessera_tile.tile<4x512xf32> -> !tessera_tile.tile<4xf32>
    tessera_tile.store %s, %y[%zero] [4] : !tessera_tile.tile<4xf32>, !tessera_tile.tensor<4xf32>
    tessera_tile.return
  }
}
// CHECK: [[ZERO:%\d+]] = tessera_target.splat {{%\d+}} : f32 -> !tessera_target.fragment<8xf32
// CHECK: [[A:%\d+]], [[B:%\d+]], [[C:%\d+]], [[D:%\d+]] = scf.for {{.*}} iter_args({{%\d+}} = [[ZERO]], {{%\d+}} = [[ZERO]], {{%\d+}} = [[ZERO]], {{%\d+}} = [[ZERO]])
// CHECK: scf.yield
// CHECK: [[AB:%\d+]] = tessera_target.elementwise "add"([[A]], [[B]])
// CHECK-NEXT: [[CD:%\d+]] = tessera_target.elementwise "add"([[C]], [[D]])
// CHECK-NEXT: [[ALL:%\d+]] = tessera_target.elementwise "add"([[AB]], [[CD]])
// CHECK-NEXT: tessera_target.reduce_registers "add" [[ALL]] axis 0 : {{.*}} -> f32

// -----
// Elements beyond the size are no part of a maximum: the chunk that is not whole takes the lowest number for them.
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @most profile "fast" (
      %x: !tessera_tile.tensor<2x30xf32> as "x" dims ["2", "30"] strides [30, 1] stride_div [2, 1] dim_div [2, 2] align 16,
      %y: !tessera_tile.tensor<2xf32> as "y" dims ["2"] strides [1] stride_div [1] dim_div [2] align 16 written) {
    %zero = tessera_tile.constant 0 : index
    %t = tessera_tile.load %x[%zero, %zero] [2, 30] : !tessera_tile.tensor<2x30xf32> -> !tessera_tile.tile<2x30xf32>
    %s = tessera_tile.reduce "max" %t axis 1 : !tessera_tile.tile<2x30xf32> -> !tessera_tile.tile<2xf32>
    tessera_tile.store %s, %y[%zero] [2] : !tessera_tile.tile<2xf32>, !tessera_tile.tensor<2xf32>
    tessera_tile.return
  }
}
// CHECK: [[SIX:%\d+]] = tessera_target.constant 6 : i32
// CHECK: [[LOWEST:%\d+]] = tessera_target.constant 0xff800000 : f32
// CHECK: [[LAST:%\d+]] = tessera_target.load {{.*}} checked [1] vector 8
// CHECK: [[PLACE:%\d+]] = tessera_target.iota 0
// CHECK: [[END:%\d+]] = tessera_target.splat [[SIX]]
// CHECK: [[INSIDE:%\d+]] = tessera_target.elementwise "lt"([[PLACE]], [[END]])
// CHECK: [[NONE:%\d+]] = tessera_target.splat [[LOWEST]]
// CHECK: [[PART:%\d+]] = tessera_target.elementwise "select"([[INSIDE]], [[LAST]], [[NONE]])
// CHECK: tessera_target.elementwise "maximum"({{%\d+}}, [[PART]])
// CHECK: tessera_target.reduce_registers "maximum"
