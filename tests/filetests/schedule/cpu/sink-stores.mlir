// RUN: schedule-sink-stores

// The last iteration stores what it has summed. There is one even where K is 0: both tiles then lie outside.
// CHECK: [[ONE:%\w+]] = tessera_tile.constant 1 : index
// CHECK: [[END:%\w+]] = tessera_tile.elementwise "maximum"({{%\w+}}, [[ONE]])
// CHECK: scf.for [[K:%\w+]] = {{%\w+}} to [[END]] step [[STEP:%\w+]]
// CHECK: [[SUM:%\w+]] = tessera_tile.mma
// CHECK: [[NEXT:%\w+]] = tessera_tile.elementwise "add"([[K]], [[STEP]])
// CHECK: [[LAST:%\w+]] = tessera_tile.elementwise "ge"([[NEXT]], [[END]])
// CHECK: scf.if [[LAST]] {
// CHECK: [[ROUNDED:%\w+]] = tessera_tile.cast [[SUM]]
// CHECK: tessera_tile.store [[ROUNDED]]
// CHECK: }{tessera_schedule.last_iteration = #builtin.int<1>}
// CHECK: scf.yield [[SUM]]
// CHECK-NOT: tessera_tile.store
builtin.module {
  tessera_tile.kernel @gemm profile "fast" (
      %0: !tessera_tile.tensor<?x?xbf16> as "a" dims ["M", "K"] strides [-1, 1] stride_div [16, 1] dim_div [16, 16] align 16,
      %1: !tessera_tile.tensor<?x?xbf16> as "b" dims ["K", "N"] strides [-1, 1] stride_div [16, 1] dim_div [16, 16] align 16,
      %2: !tessera_tile.tensor<?x?xbf16> as "out" dims ["M", "N"] strides [-1, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
    %3 = tessera_tile.dim %0[0] : !tessera_tile.tensor<?x?xbf16>
    %4 = tessera_tile.dim %1[1] : !tessera_tile.tensor<?x?xbf16>
    %5 = tessera_tile.dim %0[1] : !tessera_tile.tensor<?x?xbf16>
    tessera_tile.grid(%3, %4) by [64, 64] {
    ^bb0(%6: index, %7: index):
      %8 = tessera_tile.constant 0.000000e+00 : f32
      %9 = tessera_tile.splat %8 : f32 -> !tessera_tile.tile<64x64xf32>
      %10 = tessera_tile.constant 0 : index
      %11 = tessera_tile.constant 128 : index
      %12 = scf.for %13 = %10 to %5 step %11 iter_args(%14 = %9) -> (!tessera_tile.tile<64x64xf32>) {
        %15 = tessera_tile.load %0[%6, %13] [64, 128] : !tessera_tile.tensor<?x?xbf16> -> !tessera_tile.tile<64x128xbf16>
        %16 = tessera_tile.load %1[%13, %7] [128, 64] : !tessera_tile.tensor<?x?xbf16> -> !tessera_tile.tile<128x64xbf16>
        %17 = tessera_tile.mma %15, %16, %14 compute "bf16" : !tessera_tile.tile<64x128xbf16>, !tessera_tile.tile<128x64xbf16>, !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
        scf.yield %17 : !tessera_tile.tile<64x64xf32>
      }
      %18 = tessera_tile.cast %12 : !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xbf16>
      tessera_tile.store %18, %2[%6, %7] [64, 64] : !tessera_tile.tile<64x64xbf16>, !tessera_tile.tensor<?x?xbf16>
    }
    tessera_tile.return %2 : !tessera_tile.tensor<?x?xbf16>
  }
}

// -----

// In f32 vector units multiply: the loop stays as it is.
// CHECK: scf.for
// CHECK-NOT: scf.if
// CHECK: scf.yield
// CHECK: tessera_tile.store
builtin.module {
  tessera_tile.kernel @gemm profile "fast" (
      %0: !tessera_tile.tensor<64x128xf32> as "a" dims ["64", "128"] strides [128, 1] stride_div [16, 1] dim_div [16, 16] align 16,
      %1: !tessera_tile.tensor<128x64xf32> as "b" dims ["128", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16,
      %2: !tessera_tile.tensor<64x64xf32> as "out" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
    %3 = tessera_tile.constant 64 : index
    tessera_tile.grid(%3, %3) by [64, 64] {
    ^bb0(%4: index, %5: index):
      %6 = tessera_tile.constant 0.000000e+00 : f32
      %7 = tessera_tile.splat %6 : f32 -> !tessera_tile.tile<64x64xf32>
      %8 = tessera_tile.constant 0 : index
      %9 = tessera_tile.constant 128 : index
      %10 = tessera_tile.constant 32 : index
      %11 = scf.for %12 = %8 to %9 step %10 iter_args(%13 = %7) -> (!tessera_tile.tile<64x64xf32>) {
        %14 = tessera_tile.load %0[%4, %12] [64, 32] : !tessera_tile.tensor<64x128xf32> -> !tessera_tile.tile<64x32xf32>
        %15 = tessera_tile.load %1[%12, %5] [32, 64] : !tessera_tile.tensor<128x64xf32> -> !tessera_tile.tile<32x64xf32>
        %16 = tessera_tile.mma %14, %15, %13 compute "f32" : !tessera_tile.tile<64x32xf32>, !tessera_tile.tile<32x64xf32>, !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
        scf.yield %16 : !tessera_tile.tile<64x64xf32>
      }
      tessera_tile.store %11, %2[%4, %5] [64, 64] : !tessera_tile.tile<64x64xf32>, !tessera_tile.tensor<64x64xf32>
    }
    tessera_tile.return %2 : !tessera_tile.tensor<64x64xf32>
  }
}

// -----
// The schedule knows a branch of the last iteration that a kernel has itself, ...
// CHECK: scf.if
// CHECK: }{tessera_schedule.last_iteration = #builtin.int<1>}
tessera_tile.kernel @own profile "fast" (
    %c: !tessera_tile.tensor<64xf32> as "c" dims ["64"] strides [1] stride_div [1] dim_div [16] align 16 written) {
  %i = tessera_tile.constant 0 : index
  %step = tessera_tile.constant 32 : index
  %end = tessera_tile.constant 64 : index
  %zero = tessera_tile.constant 0.0 : f32
  %x = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<64xf32>
  scf.for %k = %i to %end step %step {
    %next = tessera_tile.elementwise "add"(%k, %step) : (index, index) -> index
    %last = tessera_tile.elementwise "ge"(%next, %end) : (index, index) -> i1
    scf.if %last {
      tessera_tile.store %x, %c[%i] [64] : !tessera_tile.tile<64xf32>, !tessera_tile.tensor<64xf32>
    }
  }
  tessera_tile.return
}

// -----
// ... and no other one may be taken for it.
// ERROR: tessera_schedule.last_iteration: the condition is not that the loop's counter and its step reach the end
tessera_tile.kernel @another profile "fast" (
    %c: !tessera_tile.tensor<64xf32> as "c" dims ["64"] strides [1] stride_div [1] dim_div [16] align 16 written) {
  %i = tessera_tile.constant 0 : index
  %step = tessera_tile.constant 32 : index
  %end = tessera_tile.constant 64 : index
  %zero = tessera_tile.constant 0.0 : f32
  %x = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<64xf32>
  scf.for %k = %i to %end step %step {
    %last = tessera_tile.elementwise "ge"(%k, %step) : (index, index) -> i1
    scf.if %last {
      tessera_tile.store %x, %c[%i] [64] : !tessera_tile.tile<64xf32>, !tessera_tile.tensor<64xf32>
    } {tessera_schedule.last_iteration = #builtin.int<1>}
  }
  tessera_tile.return
}
