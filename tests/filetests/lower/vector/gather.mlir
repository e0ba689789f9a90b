// RUN: --to tirt --target x86-64-v3
// Single elements at an index tile: one comparison without sign, and the fill where an index is outside.
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @look_up profile "fast" (
      %t: !tessera_tile.tensor<?xf32> as "t" dims ["V"] strides [1] stride_div [1] dim_div [1] align 16,
      %r: !tessera_tile.tensor<64xi32> as "r" dims ["64"] strides [1] stride_div [1] dim_div [16] align 16,
      %y: !tessera_tile.tensor<64xf32> as "y" dims ["64"] strides [1] stride_div [1] dim_div [16] align 16 written) {
    %zero = tessera_tile.constant 0 : index
    %fill = tessera_tile.constant -1.0 : f32
    %i = tessera_tile.load %r[%zero] [64] : !tessera_tile.tensor<64xi32> -> !tessera_tile.tile<64xi32>
    %j = tessera_tile.cast %i : !tessera_tile.tile<64xi32> -> !tessera_tile.tile<64xi64>
    %g = tessera_tile.gather %t[%j] fill %fill : f32 : !tessera_tile.tensor<?xf32>[!tessera_tile.tile<64xi64>] -> !tessera_tile.tile<64xf32>
    tessera_tile.store %g, %y[%zero] [64] : !tessera_tile.tile<64xf32>, !tessera_tile.tensor<64xf32>
    tessera_tile.return
  }
}
// CHECK: [[FILL:%\d+]] = tessera_target.constant -1.000000e+00 : f32
// CHECK: [[I:%\d+]] = tessera_target.load
// CHECK: [[U:%\d+]] = tessera_target.cast [[I]] : {{.*}} -> !tessera_target.fragment<8xui32
// CHECK: [[MASK:%\d+]] = tessera_target.elementwise "lt"([[U]],
// CHECK: tessera_target.gather {{.*}} mask [[MASK]] : {{.*}} fill [[FILL]] : f32

// -----
// Rows at an index tile: the row is tested once, and its elements are contiguous vectors.
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @rows profile "fast" (
      %t: !tessera_tile.tensor<?x64xf32> as "t" dims ["V", "64"] strides [64, 1] stride_div [16, 1] dim_div [1, 16] align 16,
      %r: !tessera_tile.tensor<8xi64> as "r" dims ["8"] strides [1] stride_div [1] dim_div [8] align 16,
      %y: !tessera_tile.tensor<8x64xf32> as "y" dims ["8", "64"] strides [64, 1] stride_div [16, 1] dim_div [8, 16] align 16 written) {
    %zero = tessera_tile.constant 0 : index
    %i = tessera_tile.load %r[%zero] [8] : !tessera_tile.tensor<8xi64> -> !tessera_tile.tile<8xi64>
    %j = tessera_tile.reshape %i : !tessera_tile.tile<8xi64> -> !tessera_tile.tile<8x1xi64>
    %rows = tessera_tile.broadcast %j : !tessera_tile.tile<8x1xi64> -> !tessera_tile.tile<8x64xi64>
    %k = tessera_tile.arange : !tessera_tile.tile<64xi64>
    %l = tessera_tile.reshape %k : !tessera_tile.tile<64xi64> -> !tessera_tile.tile<1x64xi64>
    %columns = tessera_tile.broadcast %l : !tessera_tile.tile<1x64xi64> -> !tessera_tile.tile<8x64xi64>
    %g = tessera_tile.gather %t[%rows, %columns] : !tessera_tile.tensor<?x64xf32>[!tessera_tile.tile<8x64xi64>, !tessera_tile.tile<8x64xi64>] -> !tessera_tile.tile<8x64xf32>
    tessera_tile.store %g, %y[%zero, %zero] [8, 64] : !tessera_tile.tile<8x64xf32>, !tessera_tile.tensor<8x64xf32>
    tessera_tile.return
  }
}
// CHECK-NOT: tessera_target.gather
// CHECK: tessera_target.load {{.*}} vector 8 {{.*}}fragment<8xf32
// CHECK-NOT: tessera_target.gather
