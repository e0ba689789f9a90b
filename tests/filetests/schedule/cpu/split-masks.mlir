// RUN: schedule-split-masks

// A tile that lies before the length as a whole is multiplied without its mask, in a branch.
// CHECK: [[LAST:%\w+]] = tessera_tile.constant 63 : i64
// CHECK: [[END:%\w+]] = tessera_tile.elementwise "add"([[AT:%\w+]], [[LAST]])
// CHECK: [[LESS:%\w+]] = tessera_tile.elementwise "lt"([[END]], %{{\w+}})
// CHECK: [[ORDER:%\w+]] = tessera_tile.elementwise "le"(%{{\w+}}, [[END]])
// CHECK: [[WHOLE:%\w+]] = tessera_tile.elementwise "and"([[LESS]], [[ORDER]])
// CHECK: scf.if [[WHOLE]] -> (!tessera_tile.tile<4x128xf32>) {
// CHECK-NOT: select
// CHECK: tessera_tile.mma
// CHECK: } else {
// CHECK: "select"
// CHECK: tessera_tile.mma
// CHECK-NOT: tessera_tile.mma
tessera_tile.kernel @values profile "fast" (
    %w: !tessera_tile.tensor<4x64xf32> as "w" dims ["4", "64"] strides [64, 1] stride_div [16, 1] dim_div [4, 16] align 16,
    %v: !tessera_tile.tensor<64x128xf32> as "v" dims ["64", "128"] strides [128, 1] stride_div [16, 1] dim_div [16, 16] align 16,
    %c: !tessera_tile.tensor<4x128xf32> as "c" dims ["4", "128"] strides [128, 1] stride_div [16, 1] dim_div [4, 16] align 16 written,
    %at: i64 as "at",
    %length: i64 as "length") {
  %i = tessera_tile.constant 0 : index
  %zero = tessera_tile.constant 0.0 : f32
  %acc = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<4x128xf32>
  %x = tessera_tile.load %w[%i, %i] [4, 64] : !tessera_tile.tensor<4x64xf32> -> !tessera_tile.tile<4x64xf32>
  %y = tessera_tile.load %v[%i, %i] [64, 128] : !tessera_tile.tensor<64x128xf32> -> !tessera_tile.tile<64x128xf32>
  %first = tessera_tile.splat %at : i64 -> !tessera_tile.tile<64xi64>
  %lanes = tessera_tile.arange : !tessera_tile.tile<64xi64>
  %places = tessera_tile.elementwise "add"(%first, %lanes) : (!tessera_tile.tile<64xi64>, !tessera_tile.tile<64xi64>) -> !tessera_tile.tile<64xi64>
  %ends = tessera_tile.splat %length : i64 -> !tessera_tile.tile<64xi64>
  %short = tessera_tile.elementwise "lt"(%places, %ends) : (!tessera_tile.tile<64xi64>, !tessera_tile.tile<64xi64>) -> !tessera_tile.tile<64xi1>
  %column = tessera_tile.reshape %short : !tessera_tile.tile<64xi1> -> !tessera_tile.tile<64x1xi1>
  %mask = tessera_tile.broadcast %column : !tessera_tile.tile<64x1xi1> -> !tessera_tile.tile<64x128xi1>
  %none = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<64x128xf32>
  %kept = tessera_tile.elementwise "select"(%mask, %y, %none) : (!tessera_tile.tile<64x128xi1>, !tessera_tile.tile<64x128xf32>, !tessera_tile.tile<64x128xf32>) -> !tessera_tile.tile<64x128xf32>
  %sum = tessera_tile.mma %x, %kept, %acc compute "f32" : !tessera_tile.tile<4x64xf32>, !tessera_tile.tile<64x128xf32>, !tessera_tile.tile<4x128xf32> -> !tessera_tile.tile<4x128xf32>
  tessera_tile.store %sum, %c[%i, %i] [4, 128] : !tessera_tile.tile<4x128xf32>, !tessera_tile.tensor<4x128xf32>
  tessera_tile.return
}

// -----
// A mask of numbers in memory has no answer for a tile.
// CHECK-NOT: scf.if
// CHECK: tessera_tile.mma
tessera_tile.kernel @given profile "fast" (
    %w: !tessera_tile.tensor<4x64xf32> as "w" dims ["4", "64"] strides [64, 1] stride_div [16, 1] dim_div [4, 16] align 16,
    %v: !tessera_tile.tensor<64x64xf32> as "v" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16,
    %m: !tessera_tile.tensor<64x64xi32> as "m" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16,
    %c: !tessera_tile.tensor<4x64xf32> as "c" dims ["4", "64"] strides [64, 1] stride_div [16, 1] dim_div [4, 16] align 16 written) {
  %i = tessera_tile.constant 0 : index
  %zero = tessera_tile.constant 0.0 : f32
  %acc = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<4x64xf32>
  %x = tessera_tile.load %w[%i, %i] [4, 64] : !tessera_tile.tensor<4x64xf32> -> !tessera_tile.tile<4x64xf32>
  %y = tessera_tile.load %v[%i, %i] [64, 64] : !tessera_tile.tensor<64x64xf32> -> !tessera_tile.tile<64x64xf32>
  %n = tessera_tile.load %m[%i, %i] [64, 64] : !tessera_tile.tensor<64x64xi32> -> !tessera_tile.tile<64x64xi32>
  %o = tessera_tile.constant 1 : i32
  %one = tessera_tile.splat %o : i32 -> !tessera_tile.tile<64x64xi32>
  %mask = tessera_tile.elementwise "lt"(%n, %one) : (!tessera_tile.tile<64x64xi32>, !tessera_tile.tile<64x64xi32>) -> !tessera_tile.tile<64x64xi1>
  %none = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<64x64xf32>
  %kept = tessera_tile.elementwise "select"(%mask, %y, %none) : (!tessera_tile.tile<64x64xi1>, !tessera_tile.tile<64x64xf32>, !tessera_tile.tile<64x64xf32>) -> !tessera_tile.tile<64x64xf32>
  %sum = tessera_tile.mma %x, %kept, %acc compute "f32" : !tessera_tile.tile<4x64xf32>, !tessera_tile.tile<64x64xf32>, !tessera_tile.tile<4x64xf32> -> !tessera_tile.tile<4x64xf32>
  tessera_tile.store %sum, %c[%i, %i] [4, 64] : !tessera_tile.tile<4x64xf32>, !tessera_tile.tensor<4x64xf32>
  tessera_tile.return
}

// -----
// Nothing is read in place if that is asked for.
// RUN: schedule-split-masks{in_place=0}
// CHECK-NOT: scf.if
// CHECK: tessera_tile.mma
tessera_tile.kernel @asked profile "fast" (
    %w: !tessera_tile.tensor<4x64xf32> as "w" dims ["4", "64"] strides [64, 1] stride_div [16, 1] dim_div [4, 16] align 16,
    %v: !tessera_tile.tensor<64x64xf32> as "v" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16,
    %c: !tessera_tile.tensor<4x64xf32> as "c" dims ["4", "64"] strides [64, 1] stride_div [16, 1] dim_div [4, 16] align 16 written) {
  %i = tessera_tile.constant 0 : index
  %zero = tessera_tile.constant 0.0 : f32
  %acc = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<4x64xf32>
  %x = tessera_tile.load %w[%i, %i] [4, 64] : !tessera_tile.tensor<4x64xf32> -> !tessera_tile.tile<4x64xf32>
  %y = tessera_tile.load %v[%i, %i] [64, 64] : !tessera_tile.tensor<64x64xf32> -> !tessera_tile.tile<64x64xf32>
  %lanes = tessera_tile.arange : !tessera_tile.tile<64xi64>
  %l = tessera_tile.constant 40 : i64
  %ends = tessera_tile.splat %l : i64 -> !tessera_tile.tile<64xi64>
  %short = tessera_tile.elementwise "lt"(%lanes, %ends) : (!tessera_tile.tile<64xi64>, !tessera_tile.tile<64xi64>) -> !tessera_tile.tile<64xi1>
  %column = tessera_tile.reshape %short : !tessera_tile.tile<64xi1> -> !tessera_tile.tile<64x1xi1>
  %mask = tessera_tile.broadcast %column : !tessera_tile.tile<64x1xi1> -> !tessera_tile.tile<64x64xi1>
  %none = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<64x64xf32>
  %kept = tessera_tile.elementwise "select"(%mask, %y, %none) : (!tessera_tile.tile<64x64xi1>, !tessera_tile.tile<64x64xf32>, !tessera_tile.tile<64x64xf32>) -> !tessera_tile.tile<64x64xf32>
  %sum = tessera_tile.mma %x, %kept, %acc compute "f32" : !tessera_tile.tile<4x64xf32>, !tessera_tile.tile<64x64xf32>, !tessera_tile.tile<4x64xf32> -> !tessera_tile.tile<4x64xf32>
  tessera_tile.store %sum, %c[%i, %i] [4, 64] : !tessera_tile.tile<4x64xf32>, !tessera_tile.tensor<4x64xf32>
  tessera_tile.return
}
