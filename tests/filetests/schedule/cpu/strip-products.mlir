// RUN: schedule-pack-operands schedule-strip-products

// A matrix unit computes 32 rows, which are rounded and stored, before it computes the next ones.
// CHECK: [[SUM:%\w+]] = tessera_tile.mma {{.*}}tessera_schedule.strip = #builtin.int<32>}
// CHECK-NEXT: [[ROUNDED:%\w+]] = tessera_tile.cast [[SUM]]
// CHECK-NEXT: tessera_tile.store [[ROUNDED]]
tessera_tile.kernel @plain profile "fast" (
    %a: !tessera_tile.tensor<64x64xbf16> as "a" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16,
    %c: !tessera_tile.tensor<64x64xbf16> as "c" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
  %i = tessera_tile.constant 0 : index
  %zero = tessera_tile.constant 0.0 : f32
  %acc = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<64x64xf32>
  %x = tessera_tile.load %a[%i, %i] [64, 64] : !tessera_tile.tensor<64x64xbf16> -> !tessera_tile.tile<64x64xbf16>
  %sum = tessera_tile.mma %x, %x, %acc compute "bf16" : !tessera_tile.tile<64x64xbf16>, !tessera_tile.tile<64x64xbf16>, !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
  %y = tessera_tile.cast %sum : !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xbf16>
  tessera_tile.store %y, %c[%i, %i] [64, 64] : !tessera_tile.tile<64x64xbf16>, !tessera_tile.tensor<64x64xbf16>
  tessera_tile.return
}

// -----
// As many rows as are asked for.
// RUN: schedule-pack-operands schedule-strip-products{strip=64}
// CHECK: tessera_tile.mma {{.*}}tessera_schedule.strip = #builtin.int<64>}
tessera_tile.kernel @forced profile "fast" (
    %a: !tessera_tile.tensor<64x64xbf16> as "a" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16,
    %c: !tessera_tile.tensor<64x64xf32> as "c" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
  %i = tessera_tile.constant 0 : index
  %zero = tessera_tile.constant 0.0 : f32
  %acc = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<64x64xf32>
  %x = tessera_tile.load %a[%i, %i] [64, 64] : !tessera_tile.tensor<64x64xbf16> -> !tessera_tile.tile<64x64xbf16>
  %sum = tessera_tile.mma %x, %x, %acc compute "bf16" : !tessera_tile.tile<64x64xbf16>, !tessera_tile.tile<64x64xbf16>, !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
  tessera_tile.store %sum, %c[%i, %i] [64, 64] : !tessera_tile.tile<64x64xf32>, !tessera_tile.tensor<64x64xf32>
  tessera_tile.return
}

// -----
// None are, if that is asked for.
// RUN: schedule-pack-operands schedule-strip-products{strip=0}
// CHECK-NOT: tessera_schedule.strip
// CHECK: tessera_tile.return
tessera_tile.kernel @none profile "fast" (
    %a: !tessera_tile.tensor<64x64xbf16> as "a" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16,
    %c: !tessera_tile.tensor<64x64xf32> as "c" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
  %i = tessera_tile.constant 0 : index
  %zero = tessera_tile.constant 0.0 : f32
  %acc = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<64x64xf32>
  %x = tessera_tile.load %a[%i, %i] [64, 64] : !tessera_tile.tensor<64x64xbf16> -> !tessera_tile.tile<64x64xbf16>
  %sum = tessera_tile.mma %x, %x, %acc compute "bf16" : !tessera_tile.tile<64x64xbf16>, !tessera_tile.tile<64x64xbf16>, !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
  tessera_tile.store %sum, %c[%i, %i] [64, 64] : !tessera_tile.tile<64x64xf32>, !tessera_tile.tensor<64x64xf32>
  tessera_tile.return
}

// -----
// A store that reads another tile against its order goes in squares: all rows are there first.
// RUN: schedule-pack-operands schedule-turn-squares schedule-strip-products
// CHECK-NOT: tessera_schedule.strip
// CHECK: tessera_tile.return
tessera_tile.kernel @turned profile "fast" (
    %a: !tessera_tile.tensor<64x64xbf16> as "a" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16,
    %r: !tessera_tile.tensor<64x64xf32> as "r" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16,
    %c: !tessera_tile.tensor<64x64xf32> as "c" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
  %i = tessera_tile.constant 0 : index
  %zero = tessera_tile.constant 0.0 : f32
  %acc = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<64x64xf32>
  %x = tessera_tile.load %a[%i, %i] [64, 64] : !tessera_tile.tensor<64x64xbf16> -> !tessera_tile.tile<64x64xbf16>
  %more = tessera_tile.load %r[%i, %i] [64, 64] : !tessera_tile.tensor<64x64xf32> -> !tessera_tile.tile<64x64xf32>
  %across = tessera_tile.transpose %more [1, 0] : !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
  %sum = tessera_tile.mma %x, %x, %acc compute "bf16" : !tessera_tile.tile<64x64xbf16>, !tessera_tile.tile<64x64xbf16>, !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
  %y = tessera_tile.elementwise "add"(%sum, %across) : (!tessera_tile.tile<64x64xf32>, !tessera_tile.tile<64x64xf32>) -> !tessera_tile.tile<64x64xf32>
  tessera_tile.store %y, %c[%i, %i] [64, 64] : !tessera_tile.tile<64x64xf32>, !tessera_tile.tensor<64x64xf32>
  tessera_tile.return
}

// -----
// Rows that are multiplied where they lie are all read before any is overwritten.
// CHECK-NOT: tessera_schedule.strip
// CHECK: tessera_tile.return
tessera_tile.kernel @onto_an_operand profile "fast" (
    %a: !tessera_tile.tensor<64x64xbf16> as "a" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
  %i = tessera_tile.constant 0 : index
  %zero = tessera_tile.constant 0.0 : f32
  %acc = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<64x64xf32>
  %x = tessera_tile.load %a[%i, %i] [64, 64] : !tessera_tile.tensor<64x64xbf16> -> !tessera_tile.tile<64x64xbf16>
  %sum = tessera_tile.mma %x, %x, %acc compute "bf16" : !tessera_tile.tile<64x64xbf16>, !tessera_tile.tile<64x64xbf16>, !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
  %y = tessera_tile.cast %sum : !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xbf16>
  tessera_tile.store %y, %a[%i, %i] [64, 64] : !tessera_tile.tile<64x64xbf16>, !tessera_tile.tensor<64x64xbf16>
  tessera_tile.return
}

// -----
// Vector units compute all rows at once.
// RUN: schedule-pack-operands{target=x86-64-v4} schedule-strip-products{target=x86-64-v4}
// CHECK-NOT: tessera_schedule.strip
// CHECK: tessera_tile.return
tessera_tile.kernel @vectors profile "fast" (
    %a: !tessera_tile.tensor<64x64xbf16> as "a" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16,
    %c: !tessera_tile.tensor<64x64xf32> as "c" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
  %i = tessera_tile.constant 0 : index
  %zero = tessera_tile.constant 0.0 : f32
  %acc = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<64x64xf32>
  %x = tessera_tile.load %a[%i, %i] [64, 64] : !tessera_tile.tensor<64x64xbf16> -> !tessera_tile.tile<64x64xbf16>
  %sum = tessera_tile.mma %x, %x, %acc compute "bf16" : !tessera_tile.tile<64x64xbf16>, !tessera_tile.tile<64x64xbf16>, !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
  tessera_tile.store %sum, %c[%i, %i] [64, 64] : !tessera_tile.tile<64x64xf32>, !tessera_tile.tensor<64x64xf32>
  tessera_tile.return
}
