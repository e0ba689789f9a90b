// RUN: schedule-pack-operands{target=x86-64-v3}

// Rows of the left operand are multiplied where they lie, the right operand is packed. Rows that crowd are copied, as
// several panels read them.
// CHECK: tessera_tile.mma {{.*}} {tessera_schedule.left_in_place = #builtin.int<1>, tessera_schedule.copies_rows = #builtin.int<1>, tessera_schedule.panel = #builtin.int<16>}
tessera_tile.kernel @plain profile "fast" (
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
// One panel reads rows once: no copy.
// CHECK: tessera_tile.mma {{.*}} {tessera_schedule.left_in_place = #builtin.int<1>, tessera_schedule.panel = #builtin.int<16>}
tessera_tile.kernel @one_panel profile "fast" (
    %a: !tessera_tile.tensor<64x64xf32> as "a" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16,
    %b: !tessera_tile.tensor<64x16xf32> as "b" dims ["64", "16"] strides [16, 1] stride_div [16, 1] dim_div [16, 16] align 16,
    %c: !tessera_tile.tensor<64x16xf32> as "c" dims ["64", "16"] strides [16, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
  %i = tessera_tile.constant 0 : index
  %zero = tessera_tile.constant 0.0 : f32
  %acc = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<64x16xf32>
  %x = tessera_tile.load %a[%i, %i] [64, 64] : !tessera_tile.tensor<64x64xf32> -> !tessera_tile.tile<64x64xf32>
  %y = tessera_tile.load %b[%i, %i] [64, 16] : !tessera_tile.tensor<64x16xf32> -> !tessera_tile.tile<64x16xf32>
  %sum = tessera_tile.mma %x, %y, %acc compute "f32" : !tessera_tile.tile<64x64xf32>, !tessera_tile.tile<64x16xf32>, !tessera_tile.tile<64x16xf32> -> !tessera_tile.tile<64x16xf32>
  tessera_tile.store %sum, %c[%i, %i] [64, 16] : !tessera_tile.tile<64x16xf32>, !tessera_tile.tensor<64x16xf32>
  tessera_tile.return
}

// -----
// Few rows read the right operand once, where it lies.
// CHECK: tessera_tile.mma {{.*}} {tessera_schedule.right_in_place = #builtin.int<1>}
tessera_tile.kernel @few_rows profile "fast" (
    %a: !tessera_tile.tensor<8x64xf32> as "a" dims ["8", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16,
    %b: !tessera_tile.tensor<64x64xf32> as "b" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16,
    %c: !tessera_tile.tensor<8x64xf32> as "c" dims ["8", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
  %i = tessera_tile.constant 0 : index
  %zero = tessera_tile.constant 0.0 : f32
  %acc = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<8x64xf32>
  %x = tessera_tile.load %a[%i, %i] [8, 64] : !tessera_tile.tensor<8x64xf32> -> !tessera_tile.tile<8x64xf32>
  %y = tessera_tile.load %b[%i, %i] [64, 64] : !tessera_tile.tensor<64x64xf32> -> !tessera_tile.tile<64x64xf32>
  %sum = tessera_tile.mma %x, %y, %acc compute "f32" : !tessera_tile.tile<8x64xf32>, !tessera_tile.tile<64x64xf32>, !tessera_tile.tile<8x64xf32> -> !tessera_tile.tile<8x64xf32>
  tessera_tile.store %sum, %c[%i, %i] [8, 64] : !tessera_tile.tile<8x64xf32>, !tessera_tile.tensor<8x64xf32>
  tessera_tile.return
}

// -----
// What is overwritten before it is multiplied is copied; the product finds it in rows.
// CHECK-NOT: tessera_schedule.left_in_place
// CHECK: tessera_tile.return
tessera_tile.kernel @overwritten profile "fast" (
    %a: !tessera_tile.tensor<64x64xf32> as "a" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16 written,
    %b: !tessera_tile.tensor<64x64xf32> as "b" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16,
    %c: !tessera_tile.tensor<64x64xf32> as "c" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
  %i = tessera_tile.constant 0 : index
  %zero = tessera_tile.constant 0.0 : f32
  %acc = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<64x64xf32>
  %x = tessera_tile.load %a[%i, %i] [64, 64] : !tessera_tile.tensor<64x64xf32> -> !tessera_tile.tile<64x64xf32>
  %y = tessera_tile.load %b[%i, %i] [64, 64] : !tessera_tile.tensor<64x64xf32> -> !tessera_tile.tile<64x64xf32>
  %none = tessera_tile.constant 0.0 : f32
  %zeros = tessera_tile.splat %none : f32 -> !tessera_tile.tile<64x64xf32>
  tessera_tile.store %zeros, %a[%i, %i] [64, 64] : !tessera_tile.tile<64x64xf32>, !tessera_tile.tensor<64x64xf32>
  %sum = tessera_tile.mma %x, %y, %acc compute "f32" : !tessera_tile.tile<64x64xf32>, !tessera_tile.tile<64x64xf32>, !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
  tessera_tile.store %sum, %c[%i, %i] [64, 64] : !tessera_tile.tile<64x64xf32>, !tessera_tile.tensor<64x64xf32>
  tessera_tile.return
}

// -----
// All is packed, if that is asked for.
// RUN: schedule-pack-operands{target=x86-64-v3,in_place=0}
// CHECK-NOT: in_place
// CHECK: tessera_tile.return
tessera_tile.kernel @forced profile "fast" (
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
// A matrix unit computes what it can, ...
// RUN: schedule-pack-operands{target=sapphirerapids}
// CHECK: tessera_tile.mma {{.*}} {tessera_schedule.left_in_place = #builtin.int<1>, tessera_schedule.matrix_unit = #builtin.int<1>, tessera_schedule.panel = #builtin.int<32>}
tessera_tile.kernel @tiles profile "fast" (
    %a: !tessera_tile.tensor<64x64xbf16> as "a" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16,
    %b: !tessera_tile.tensor<64x64xbf16> as "b" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16,
    %c: !tessera_tile.tensor<64x64xf32> as "c" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
  %i = tessera_tile.constant 0 : index
  %zero = tessera_tile.constant 0.0 : f32
  %acc = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<64x64xf32>
  %x = tessera_tile.load %a[%i, %i] [64, 64] : !tessera_tile.tensor<64x64xbf16> -> !tessera_tile.tile<64x64xbf16>
  %y = tessera_tile.load %b[%i, %i] [64, 64] : !tessera_tile.tensor<64x64xbf16> -> !tessera_tile.tile<64x64xbf16>
  %sum = tessera_tile.mma %x, %y, %acc compute "bf16" : !tessera_tile.tile<64x64xbf16>, !tessera_tile.tile<64x64xbf16>, !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
  tessera_tile.store %sum, %c[%i, %i] [64, 64] : !tessera_tile.tile<64x64xf32>, !tessera_tile.tensor<64x64xf32>
  tessera_tile.return
}

// -----
// ... but vector units what waits for memory.
// RUN: schedule-pack-operands{target=sapphirerapids}
// CHECK: tessera_tile.mma {{.*}} {tessera_schedule.right_in_place = #builtin.int<1>}
tessera_tile.kernel @four_rows profile "fast" (
    %a: !tessera_tile.tensor<4x64xbf16> as "a" dims ["4", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16,
    %b: !tessera_tile.tensor<64x64xbf16> as "b" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16,
    %c: !tessera_tile.tensor<4x64xf32> as "c" dims ["4", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
  %i = tessera_tile.constant 0 : index
  %zero = tessera_tile.constant 0.0 : f32
  %acc = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<4x64xf32>
  %x = tessera_tile.load %a[%i, %i] [4, 64] : !tessera_tile.tensor<4x64xbf16> -> !tessera_tile.tile<4x64xbf16>
  %y = tessera_tile.load %b[%i, %i] [64, 64] : !tessera_tile.tensor<64x64xbf16> -> !tessera_tile.tile<64x64xbf16>
  %sum = tessera_tile.mma %x, %y, %acc compute "bf16" : !tessera_tile.tile<4x64xbf16>, !tessera_tile.tile<64x64xbf16>, !tessera_tile.tile<4x64xf32> -> !tessera_tile.tile<4x64xf32>
  tessera_tile.store %sum, %c[%i, %i] [4, 64] : !tessera_tile.tile<4x64xf32>, !tessera_tile.tensor<4x64xf32>
  tessera_tile.return
}

// -----
// What a loop's next iteration packs is prefetched.
// CHECK: tessera_tile.mma {{.*}} {tessera_schedule.left_in_place = #builtin.int<1>, tessera_schedule.copies_rows = #builtin.int<1>, tessera_schedule.prefetch_operand = #builtin.int<1>, tessera_schedule.panel = #builtin.int<16>}
tessera_tile.kernel @loop profile "fast" (
    %a: !tessera_tile.tensor<64x?xf32> as "a" dims ["64", "K"] strides [-1, 1] stride_div [16, 1] dim_div [16, 16] align 16,
    %b: !tessera_tile.tensor<?x64xf32> as "b" dims ["K", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16,
    %c: !tessera_tile.tensor<64x64xf32> as "c" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
  %i = tessera_tile.constant 0 : index
  %step = tessera_tile.constant 32 : index
  %k = tessera_tile.dim %a[1] : !tessera_tile.tensor<64x?xf32>
  %zero = tessera_tile.constant 0.0 : f32
  %acc = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<64x64xf32>
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
// RUN: schedule-pack-operands{target=x86-64-v3,prefetch=0}
// CHECK: tessera_tile.mma {{.*}} {tessera_schedule.left_in_place = #builtin.int<1>, tessera_schedule.copies_rows = #builtin.int<1>, tessera_schedule.panel = #builtin.int<16>}
tessera_tile.kernel @hardware profile "fast" (
    %a: !tessera_tile.tensor<64x?xf32> as "a" dims ["64", "K"] strides [-1, 1] stride_div [16, 1] dim_div [16, 16] align 16,
    %b: !tessera_tile.tensor<?x64xf32> as "b" dims ["K", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16,
    %c: !tessera_tile.tensor<64x64xf32> as "c" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
  %i = tessera_tile.constant 0 : index
  %step = tessera_tile.constant 32 : index
  %k = tessera_tile.dim %a[1] : !tessera_tile.tensor<64x?xf32>
  %zero = tessera_tile.constant 0.0 : f32
  %acc = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<64x64xf32>
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
// What comes from outside of a loop is packed before it, ...
// CHECK: tessera_tile.mma {{.*}} {tessera_schedule.left_in_place = #builtin.int<1>, tessera_schedule.copies_rows = #builtin.int<1>, tessera_schedule.panel = #builtin.int<16>, tessera_schedule.right_packed_before = #builtin.int<1>}
tessera_tile.kernel @stays profile "fast" (
    %a: !tessera_tile.tensor<64x64xf32> as "a" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16,
    %b: !tessera_tile.tensor<64x64xf32> as "b" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16,
    %c: !tessera_tile.tensor<64x64xf32> as "c" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
  %i = tessera_tile.constant 0 : index
  %step = tessera_tile.constant 32 : index
  %end = tessera_tile.constant 64 : index
  %zero = tessera_tile.constant 0.0 : f32
  %acc = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<32x64xf32>
  %y = tessera_tile.load %b[%i, %i] [64, 64] : !tessera_tile.tensor<64x64xf32> -> !tessera_tile.tile<64x64xf32>
  scf.for %j = %i to %end step %step {
    %x = tessera_tile.load %a[%j, %i] [32, 64] : !tessera_tile.tensor<64x64xf32> -> !tessera_tile.tile<32x64xf32>
    %sum = tessera_tile.mma %x, %y, %acc compute "f32" : !tessera_tile.tile<32x64xf32>, !tessera_tile.tile<64x64xf32>, !tessera_tile.tile<32x64xf32> -> !tessera_tile.tile<32x64xf32>
    tessera_tile.store %sum, %c[%j, %i] [32, 64] : !tessera_tile.tile<32x64xf32>, !tessera_tile.tensor<64x64xf32>
  }
  tessera_tile.return
}

// -----
// ... unless that is not wanted. Panels are as narrow as is asked for.
// RUN: schedule-pack-operands{target=x86-64-v3,pack_before=0,panel=8}
// CHECK: tessera_tile.mma {{.*}} {tessera_schedule.left_in_place = #builtin.int<1>, tessera_schedule.copies_rows = #builtin.int<1>, tessera_schedule.panel = #builtin.int<8>}
tessera_tile.kernel @each_time profile "fast" (
    %a: !tessera_tile.tensor<64x64xf32> as "a" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16,
    %b: !tessera_tile.tensor<64x64xf32> as "b" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16,
    %c: !tessera_tile.tensor<64x64xf32> as "c" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
  %i = tessera_tile.constant 0 : index
  %step = tessera_tile.constant 32 : index
  %end = tessera_tile.constant 64 : index
  %zero = tessera_tile.constant 0.0 : f32
  %acc = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<32x64xf32>
  %y = tessera_tile.load %b[%i, %i] [64, 64] : !tessera_tile.tensor<64x64xf32> -> !tessera_tile.tile<64x64xf32>
  scf.for %j = %i to %end step %step {
    %x = tessera_tile.load %a[%j, %i] [32, 64] : !tessera_tile.tensor<64x64xf32> -> !tessera_tile.tile<32x64xf32>
    %sum = tessera_tile.mma %x, %y, %acc compute "f32" : !tessera_tile.tile<32x64xf32>, !tessera_tile.tile<64x64xf32>, !tessera_tile.tile<32x64xf32> -> !tessera_tile.tile<32x64xf32>
    tessera_tile.store %sum, %c[%j, %i] [32, 64] : !tessera_tile.tile<32x64xf32>, !tessera_tile.tensor<64x64xf32>
  }
  tessera_tile.return
}

// -----
// An operand that is made beside its product cannot be packed before a loop.
// ERROR: tessera_schedule.left_packed_before: the operand is made where the product is
tessera_tile.kernel @too_late profile "fast" (
    %a: !tessera_tile.tensor<64x64xf32> as "a" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16,
    %b: !tessera_tile.tensor<64x64xf32> as "b" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16,
    %c: !tessera_tile.tensor<64x64xf32> as "c" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
  %i = tessera_tile.constant 0 : index
  %step = tessera_tile.constant 32 : index
  %end = tessera_tile.constant 64 : index
  %zero = tessera_tile.constant 0.0 : f32
  %acc = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<32x64xf32>
  %y = tessera_tile.load %b[%i, %i] [64, 64] : !tessera_tile.tensor<64x64xf32> -> !tessera_tile.tile<64x64xf32>
  scf.for %j = %i to %end step %step {
    %x = tessera_tile.load %a[%j, %i] [32, 64] : !tessera_tile.tensor<64x64xf32> -> !tessera_tile.tile<32x64xf32>
    %sum = tessera_tile.mma %x, %y, %acc compute "f32" {tessera_schedule.left_packed_before = #builtin.int<1>} : !tessera_tile.tile<32x64xf32>, !tessera_tile.tile<64x64xf32>, !tessera_tile.tile<32x64xf32> -> !tessera_tile.tile<32x64xf32>
    tessera_tile.store %sum, %c[%j, %i] [32, 64] : !tessera_tile.tile<32x64xf32>, !tessera_tile.tensor<64x64xf32>
  }
  tessera_tile.return
}
