// RUN: schedule-pack-operands{target=x86-64-v3} schedule-begin-sums{target=x86-64-v3}

// Vector units begin sums where it is known how many terms they have, ...
// CHECK: tessera_tile.mma {{.*}}tessera_schedule.begins_sums = #builtin.int<1>
tessera_tile.kernel @once profile "fast" (
    %a: !tessera_tile.tensor<64x64xf32> as "a" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16,
    %b: !tessera_tile.tensor<64x64xf32> as "b" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16,
    %c: !tessera_tile.tensor<64x64xf32> as "c" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
  %i = tessera_tile.constant 0 : index
  %zero = tessera_tile.constant 0.0 : f32
  %acc = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<64x64xf32>
  %x = tessera_tile.load %a[%i, %i] [64, 64] : !tessera_tile.tensor<64x64xf32> -> !tessera_tile.tile<64x64xf32>
  %y = tessera_tile.load %b[%i, %i] [64, 64] : !tessera_tile.tensor<64x64xf32> -> !tessera_tile.tile<64x64xf32>
  %sum = tessera_tile.mma %x, %y, %acc compute "f32" : !tessera_tile.tile<64x64xf32>, !tessera_tile.tile<64x64xf32>, !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
  tessera_tile.store %sum, %c[%i, %i] [64, 64] : !tessera_tile.tile<64x64xf32>, !tessera_tile.tensor<64x64xf32>
  tessera_tile.return
}

// -----
// ... also if the tensors end inside of the tiles, ...
// CHECK: tessera_tile.mma {{.*}}tessera_schedule.begins_sums = #builtin.int<1>
tessera_tile.kernel @short profile "fast" (
    %a: !tessera_tile.tensor<64x50xf32> as "a" dims ["64", "50"] strides [50, 1] stride_div [16, 1] dim_div [16, 1] align 16,
    %b: !tessera_tile.tensor<50x64xf32> as "b" dims ["50", "64"] strides [64, 1] stride_div [16, 1] dim_div [1, 16] align 16,
    %c: !tessera_tile.tensor<64x64xf32> as "c" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
  %i = tessera_tile.constant 0 : index
  %zero = tessera_tile.constant 0.0 : f32
  %acc = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<64x64xf32>
  %x = tessera_tile.load %a[%i, %i] [64, 64] : !tessera_tile.tensor<64x50xf32> -> !tessera_tile.tile<64x64xf32>
  %y = tessera_tile.load %b[%i, %i] [64, 64] : !tessera_tile.tensor<50x64xf32> -> !tessera_tile.tile<64x64xf32>
  %sum = tessera_tile.mma %x, %y, %acc compute "f32" : !tessera_tile.tile<64x64xf32>, !tessera_tile.tile<64x64xf32>, !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
  tessera_tile.store %sum, %c[%i, %i] [64, 64] : !tessera_tile.tile<64x64xf32>, !tessera_tile.tensor<64x64xf32>
  tessera_tile.return
}

// -----
// ... and not where that is found out at run time: there may be none.
// CHECK-NOT: begins_sums
// CHECK: tessera_tile.return
tessera_tile.kernel @unknown profile "fast" (
    %a: !tessera_tile.tensor<64x?xf32> as "a" dims ["64", "K"] strides [-1, 1] stride_div [16, 1] dim_div [16, 1] align 16,
    %b: !tessera_tile.tensor<?x64xf32> as "b" dims ["K", "64"] strides [64, 1] stride_div [16, 1] dim_div [1, 16] align 16,
    %c: !tessera_tile.tensor<64x64xf32> as "c" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
  %i = tessera_tile.constant 0 : index
  %zero = tessera_tile.constant 0.0 : f32
  %acc = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<64x64xf32>
  %x = tessera_tile.load %a[%i, %i] [64, 64] : !tessera_tile.tensor<64x?xf32> -> !tessera_tile.tile<64x64xf32>
  %y = tessera_tile.load %b[%i, %i] [64, 64] : !tessera_tile.tensor<?x64xf32> -> !tessera_tile.tile<64x64xf32>
  %sum = tessera_tile.mma %x, %y, %acc compute "f32" : !tessera_tile.tile<64x64xf32>, !tessera_tile.tile<64x64xf32>, !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
  tessera_tile.store %sum, %c[%i, %i] [64, 64] : !tessera_tile.tile<64x64xf32>, !tessera_tile.tensor<64x64xf32>
  tessera_tile.return
}

// -----
// A sum that begins at another number is read.
// CHECK-NOT: begins_sums
// CHECK: tessera_tile.return
tessera_tile.kernel @one profile "fast" (
    %a: !tessera_tile.tensor<64x64xf32> as "a" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16,
    %b: !tessera_tile.tensor<64x64xf32> as "b" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16,
    %c: !tessera_tile.tensor<64x64xf32> as "c" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
  %i = tessera_tile.constant 0 : index
  %zero = tessera_tile.constant 1.0 : f32
  %acc = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<64x64xf32>
  %x = tessera_tile.load %a[%i, %i] [64, 64] : !tessera_tile.tensor<64x64xf32> -> !tessera_tile.tile<64x64xf32>
  %y = tessera_tile.load %b[%i, %i] [64, 64] : !tessera_tile.tensor<64x64xf32> -> !tessera_tile.tile<64x64xf32>
  %sum = tessera_tile.mma %x, %y, %acc compute "f32" : !tessera_tile.tile<64x64xf32>, !tessera_tile.tile<64x64xf32>, !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
  tessera_tile.store %sum, %c[%i, %i] [64, 64] : !tessera_tile.tile<64x64xf32>, !tessera_tile.tensor<64x64xf32>
  tessera_tile.return
}

// -----
// The first iteration of a loop begins the sums that it carries.
// CHECK: tessera_tile.mma {{.*}}tessera_schedule.begins_sums = #builtin.int<1>
tessera_tile.kernel @loop profile "fast" (
    %a: !tessera_tile.tensor<64x?xf32> as "a" dims ["64", "K"] strides [-1, 1] stride_div [16, 1] dim_div [16, 1] align 16,
    %b: !tessera_tile.tensor<?x64xf32> as "b" dims ["K", "64"] strides [64, 1] stride_div [16, 1] dim_div [1, 16] align 16,
    %c: !tessera_tile.tensor<64x64xf32> as "c" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
  %i = tessera_tile.constant 0 : index
  %zero = tessera_tile.constant 0.0 : f32
  %acc = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<64x64xf32>
  %step = tessera_tile.constant 32 : index
  %k = tessera_tile.dim %a[1] : !tessera_tile.tensor<64x?xf32>
  %all = scf.for %j = %i to %k step %step iter_args(%so_far = %acc) -> (!tessera_tile.tile<64x64xf32>) {
    %x = tessera_tile.load %a[%i, %j] [64, 32] : !tessera_tile.tensor<64x?xf32> -> !tessera_tile.tile<64x32xf32>
    %y = tessera_tile.load %b[%j, %i] [32, 64] : !tessera_tile.tensor<?x64xf32> -> !tessera_tile.tile<32x64xf32>
    %sum = tessera_tile.mma %x, %y, %so_far compute "f32" : !tessera_tile.tile<64x32xf32>, !tessera_tile.tile<32x64xf32>, !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
    scf.yield %sum : !tessera_tile.tile<64x64xf32>
  }
  tessera_tile.store %all, %c[%i, %i] [64, 64] : !tessera_tile.tile<64x64xf32>, !tessera_tile.tensor<64x64xf32>
  tessera_tile.return
}

// -----
// A matrix unit is told at run time which iteration is the first.
// RUN: schedule-pack-operands schedule-begin-sums
// CHECK: tessera_tile.mma {{.*}}tessera_schedule.begins_sums = #builtin.int<1>
tessera_tile.kernel @tiles profile "fast" (
    %a: !tessera_tile.tensor<64x?xbf16> as "a" dims ["64", "K"] strides [-1, 1] stride_div [16, 1] dim_div [16, 1] align 16,
    %b: !tessera_tile.tensor<?x64xbf16> as "b" dims ["K", "64"] strides [64, 1] stride_div [16, 1] dim_div [1, 16] align 16,
    %c: !tessera_tile.tensor<64x64xf32> as "c" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
  %i = tessera_tile.constant 0 : index
  %zero = tessera_tile.constant 0.0 : f32
  %acc = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<64x64xf32>
  %step = tessera_tile.constant 32 : index
  %k = tessera_tile.dim %a[1] : !tessera_tile.tensor<64x?xbf16>
  %all = scf.for %j = %i to %k step %step iter_args(%so_far = %acc) -> (!tessera_tile.tile<64x64xf32>) {
    %x = tessera_tile.load %a[%i, %j] [64, 32] : !tessera_tile.tensor<64x?xbf16> -> !tessera_tile.tile<64x32xbf16>
    %y = tessera_tile.load %b[%j, %i] [32, 64] : !tessera_tile.tensor<?x64xbf16> -> !tessera_tile.tile<32x64xbf16>
    %sum = tessera_tile.mma %x, %y, %so_far compute "bf16" : !tessera_tile.tile<64x32xbf16>, !tessera_tile.tile<32x64xbf16>, !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
    scf.yield %sum : !tessera_tile.tile<64x64xf32>
  }
  tessera_tile.store %all, %c[%i, %i] [64, 64] : !tessera_tile.tile<64x64xf32>, !tessera_tile.tensor<64x64xf32>
  tessera_tile.return
}

// -----
// The zeros are written and read if that is asked for.
// RUN: schedule-pack-operands schedule-begin-sums{begin_sums=0}
// CHECK-NOT: begins_sums
// CHECK: tessera_tile.return
tessera_tile.kernel @asked profile "fast" (
    %a: !tessera_tile.tensor<64x?xbf16> as "a" dims ["64", "K"] strides [-1, 1] stride_div [16, 1] dim_div [16, 1] align 16,
    %b: !tessera_tile.tensor<?x64xbf16> as "b" dims ["K", "64"] strides [64, 1] stride_div [16, 1] dim_div [1, 16] align 16,
    %c: !tessera_tile.tensor<64x64xf32> as "c" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
  %i = tessera_tile.constant 0 : index
  %zero = tessera_tile.constant 0.0 : f32
  %acc = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<64x64xf32>
  %step = tessera_tile.constant 32 : index
  %k = tessera_tile.dim %a[1] : !tessera_tile.tensor<64x?xbf16>
  %all = scf.for %j = %i to %k step %step iter_args(%so_far = %acc) -> (!tessera_tile.tile<64x64xf32>) {
    %x = tessera_tile.load %a[%i, %j] [64, 32] : !tessera_tile.tensor<64x?xbf16> -> !tessera_tile.tile<64x32xbf16>
    %y = tessera_tile.load %b[%j, %i] [32, 64] : !tessera_tile.tensor<?x64xbf16> -> !tessera_tile.tile<32x64xbf16>
    %sum = tessera_tile.mma %x, %y, %so_far compute "bf16" : !tessera_tile.tile<64x32xbf16>, !tessera_tile.tile<32x64xbf16>, !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
    scf.yield %sum : !tessera_tile.tile<64x64xf32>
  }
  tessera_tile.store %all, %c[%i, %i] [64, 64] : !tessera_tile.tile<64x64xf32>, !tessera_tile.tensor<64x64xf32>
  tessera_tile.return
}

// -----
// Sums that begin at another number cannot begin with a product.
// ERROR: tessera_schedule.begins_sums: the sums do not begin at zero
tessera_tile.kernel @wrong profile "fast" (
    %a: !tessera_tile.tensor<64x64xf32> as "a" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16,
    %b: !tessera_tile.tensor<64x64xf32> as "b" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16,
    %c: !tessera_tile.tensor<64x64xf32> as "c" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
  %i = tessera_tile.constant 0 : index
  %zero = tessera_tile.constant 1.0 : f32
  %acc = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<64x64xf32>
  %x = tessera_tile.load %a[%i, %i] [64, 64] : !tessera_tile.tensor<64x64xf32> -> !tessera_tile.tile<64x64xf32>
  %y = tessera_tile.load %b[%i, %i] [64, 64] : !tessera_tile.tensor<64x64xf32> -> !tessera_tile.tile<64x64xf32>
  %sum = tessera_tile.mma %x, %y, %acc compute "f32" {tessera_schedule.begins_sums = #builtin.int<1>} : !tessera_tile.tile<64x64xf32>, !tessera_tile.tile<64x64xf32>, !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
  tessera_tile.store %sum, %c[%i, %i] [64, 64] : !tessera_tile.tile<64x64xf32>, !tessera_tile.tensor<64x64xf32>
  tessera_tile.return
}
