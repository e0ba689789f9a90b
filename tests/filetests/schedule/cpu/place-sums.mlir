// RUN: schedule-pack-operands{target=x86-64-v3} schedule-begin-sums{target=x86-64-v3} schedule-place-sums{target=x86-64-v3}

// What the loop adds up is all that is stored there.
// CHECK: tessera_tile.store {{.*}}tessera_schedule.sums_in_place = #builtin.int<1>
tessera_tile.kernel @sums profile "fast" (
    %a: !tessera_tile.tensor<?x?xf32> as "a" dims ["M", "K"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16,
    %b: !tessera_tile.tensor<?x?xf32> as "b" dims ["K", "N"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16,
    %c: !tessera_tile.tensor<?x?xf32> as "c" dims ["M", "N"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16 written) {
  %m = tessera_tile.dim %a[0] : !tessera_tile.tensor<?x?xf32>
  %n = tessera_tile.dim %b[1] : !tessera_tile.tensor<?x?xf32>
  %k = tessera_tile.dim %a[1] : !tessera_tile.tensor<?x?xf32>
  tessera_tile.grid(%m, %n) by [32, 64] {
  ^bb0(%i: index, %j: index):
    %first = tessera_tile.constant 0 : index
    %step = tessera_tile.constant 16 : index
    %zero = tessera_tile.constant 0.0 : f32
    %acc = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<32x64xf32>
    %all = scf.for %at = %first to %k step %step iter_args(%so_far = %acc) -> (!tessera_tile.tile<32x64xf32>) {
      %x = tessera_tile.load %a[%i, %at] [32, 16] : !tessera_tile.tensor<?x?xf32> -> !tessera_tile.tile<32x16xf32>
      %y = tessera_tile.load %b[%at, %j] [16, 64] : !tessera_tile.tensor<?x?xf32> -> !tessera_tile.tile<16x64xf32>
      %sum = tessera_tile.mma %x, %y, %so_far compute "f32" : !tessera_tile.tile<32x16xf32>, !tessera_tile.tile<16x64xf32>, !tessera_tile.tile<32x64xf32> -> !tessera_tile.tile<32x64xf32>
      scf.yield %sum : !tessera_tile.tile<32x64xf32>
    }
    tessera_tile.store %all, %c[%i, %j] [32, 64] : !tessera_tile.tile<32x64xf32>, !tessera_tile.tensor<?x?xf32>
  }
  tessera_tile.return
}

// -----
// The result has a size of its own: less of the tile may lie in it than of the operands.
// CHECK-NOT: sums_in_place
// CHECK: tessera_tile.return
tessera_tile.kernel @narrower profile "fast" (
    %a: !tessera_tile.tensor<?x?xf32> as "a" dims ["M", "K"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16,
    %b: !tessera_tile.tensor<?x?xf32> as "b" dims ["K", "N"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16,
    %c: !tessera_tile.tensor<?x?xf32> as "c" dims ["M", "L"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16 written) {
  %m = tessera_tile.dim %a[0] : !tessera_tile.tensor<?x?xf32>
  %n = tessera_tile.dim %c[1] : !tessera_tile.tensor<?x?xf32>
  %k = tessera_tile.dim %a[1] : !tessera_tile.tensor<?x?xf32>
  tessera_tile.grid(%m, %n) by [32, 64] {
  ^bb0(%i: index, %j: index):
    %first = tessera_tile.constant 0 : index
    %step = tessera_tile.constant 16 : index
    %zero = tessera_tile.constant 0.0 : f32
    %acc = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<32x64xf32>
    %all = scf.for %at = %first to %k step %step iter_args(%so_far = %acc) -> (!tessera_tile.tile<32x64xf32>) {
      %x = tessera_tile.load %a[%i, %at] [32, 16] : !tessera_tile.tensor<?x?xf32> -> !tessera_tile.tile<32x16xf32>
      %y = tessera_tile.load %b[%at, %j] [16, 64] : !tessera_tile.tensor<?x?xf32> -> !tessera_tile.tile<16x64xf32>
      %sum = tessera_tile.mma %x, %y, %so_far compute "f32" : !tessera_tile.tile<32x16xf32>, !tessera_tile.tile<16x64xf32>, !tessera_tile.tile<32x64xf32> -> !tessera_tile.tile<32x64xf32>
      scf.yield %sum : !tessera_tile.tile<32x64xf32>
    }
    tessera_tile.store %all, %c[%i, %j] [32, 64] : !tessera_tile.tile<32x64xf32>, !tessera_tile.tensor<?x?xf32>
  }
  tessera_tile.return
}

// -----
// What is stored is no sum of a loop.
// ERROR: tessera_schedule.sums_in_place: what is stored are not the sums of a loop that its first product begins
tessera_tile.kernel @wrong profile "fast" (
    %a: !tessera_tile.tensor<64x64xf32> as "a" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16,
    %c: !tessera_tile.tensor<64x64xf32> as "c" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
  %i = tessera_tile.constant 0 : index
  %x = tessera_tile.load %a[%i, %i] [64, 64] : !tessera_tile.tensor<64x64xf32> -> !tessera_tile.tile<64x64xf32>
  tessera_tile.store %x, %c[%i, %i] [64, 64] {tessera_schedule.sums_in_place = #builtin.int<1>} : !tessera_tile.tile<64x64xf32>, !tessera_tile.tensor<64x64xf32>
  tessera_tile.return
}
