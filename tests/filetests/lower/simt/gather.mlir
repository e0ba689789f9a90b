// RUN: --to tirt --target sm_80
// Any integer may be an index: one comparison without sign tells 0 <= index < size, and what is outside reads as fill.
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @look_up profile "fast" (
      %t: !tessera_tile.tensor<?xf32> as "t" dims ["V"] strides [1] stride_div [1] dim_div [1] align 16,
      %r: !tessera_tile.tensor<256xi32> as "r" dims ["256"] strides [1] stride_div [1] dim_div [16] align 16,
      %y: !tessera_tile.tensor<256xf32> as "y" dims ["256"] strides [1] stride_div [1] dim_div [16] align 16 written) {
    %zero = tessera_tile.constant 0 : index
    %fill = tessera_tile.constant -1.0 : f32
    %i = tessera_tile.load %r[%zero] [256] : !tessera_tile.tensor<256xi32> -> !tessera_tile.tile<256xi32>
    %j = tessera_tile.cast %i : !tessera_tile.tile<256xi32> -> !tessera_tile.tile<256xi64>
    %g = tessera_tile.gather %t[%j] fill %fill : f32 : !tessera_tile.tensor<?xf32>[!tessera_tile.tile<256xi64>] -> !tessera_tile.tile<256xf32>
    tessera_tile.store %g, %y[%zero] [256] : !tessera_tile.tile<256xf32>, !tessera_tile.tensor<256xf32>
    tessera_tile.return
  }
}
// CHECK: [[FILL:%\d+]] = tessera_target.constant -1.000000e+00 : f32
// CHECK: [[I:%\d+]] = tessera_target.load {{.*}} -> !tessera_target.fragment<256xi32
// A size beyond 2^31 has no more elements that an i32 can name.
// CHECK: [[MOST:%\d+]] = tessera_target.constant 2147483648 : index
// CHECK: [[SIZE:%\d+]] = tessera_target.elementwise "minimum"({{%\d+}}, [[MOST]])
// CHECK: [[BOUND:%\d+]] = tessera_target.cast [[SIZE]] : index -> ui32
// CHECK: [[U:%\d+]] = tessera_target.cast [[I]] : {{.*}} -> !tessera_target.fragment<256xui32
// CHECK: [[ALL:%\d+]] = tessera_target.splat [[BOUND]]
// CHECK: [[MASK:%\d+]] = tessera_target.elementwise "lt"([[U]], [[ALL]])
// CHECK: tessera_target.gather {{.*}} mask [[MASK]] : {{.*}} fill [[FILL]] : f32

// -----
// A scatter is masked as well: what is outside is not written.
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @spread profile "fast" (
      %t: !tessera_tile.tensor<?xf32> as "t" dims ["V"] strides [1] stride_div [1] dim_div [1] align 16 written,
      %r: !tessera_tile.tensor<256xi64> as "r" dims ["256"] strides [1] stride_div [1] dim_div [16] align 16) {
    %zero = tessera_tile.constant 0 : index
    %c = tessera_tile.constant 2.0 : f32
    %v = tessera_tile.splat %c : f32 -> !tessera_tile.tile<256xf32>
    %j = tessera_tile.load %r[%zero] [256] : !tessera_tile.tensor<256xi64> -> !tessera_tile.tile<256xi64>
    tessera_tile.scatter %v, %t[%j] : !tessera_tile.tile<256xf32>, !tessera_tile.tensor<?xf32>[!tessera_tile.tile<256xi64>]
    tessera_tile.return
  }
}
// CHECK: [[MASK:%\d+]] = tessera_target.elementwise "lt"({{.*}}xui64
// CHECK: tessera_target.scatter {{.*}} mask [[MASK]]

// -----
// Every second row: its elements are aligned neighbours along the last axis, which one access moves.
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @rows profile "fast" (
      %x: !tessera_tile.tensor<?x64xf32> as "x" dims ["m", "64"] strides [-1, 1] stride_div [16, 1] dim_div [1, 16] align 16,
      %y: !tessera_tile.tensor<16x64xf32> as "y" dims ["16", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
    %zero = tessera_tile.constant 0 : index
    %two = tessera_tile.constant 2 : i64
    %i = tessera_tile.arange : !tessera_tile.tile<16xi64>
    %twos = tessera_tile.splat %two : i64 -> !tessera_tile.tile<16xi64>
    %j = tessera_tile.elementwise "mul"(%i, %twos) : (!tessera_tile.tile<16xi64>, !tessera_tile.tile<16xi64>) -> !tessera_tile.tile<16xi64>
    %k = tessera_tile.reshape %j : !tessera_tile.tile<16xi64> -> !tessera_tile.tile<16x1xi64>
    %rows = tessera_tile.broadcast %k : !tessera_tile.tile<16x1xi64> -> !tessera_tile.tile<16x64xi64>
    %l = tessera_tile.arange : !tessera_tile.tile<64xi64>
    %c = tessera_tile.reshape %l : !tessera_tile.tile<64xi64> -> !tessera_tile.tile<1x64xi64>
    %columns = tessera_tile.broadcast %c : !tessera_tile.tile<1x64xi64> -> !tessera_tile.tile<16x64xi64>
    %g = tessera_tile.gather %x[%rows, %columns] : !tessera_tile.tensor<?x64xf32>[!tessera_tile.tile<16x64xi64>, !tessera_tile.tile<16x64xi64>] -> !tessera_tile.tile<16x64xf32>
    tessera_tile.store %g, %y[%zero, %zero] [16, 64] : !tessera_tile.tile<16x64xf32>, !tessera_tile.tensor<16x64xf32>
    tessera_tile.return
  }
}
// CHECK: tessera_target.gather {{.*}} mask {{.*}} vector [1, 4] :
