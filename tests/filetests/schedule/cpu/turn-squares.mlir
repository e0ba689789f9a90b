// RUN: schedule-turn-squares

// Loops over matrices may meet tiles that lie against their order, ...
// CHECK: } {tessera_schedule.squares = #builtin.int<1>}
tessera_tile.kernel @transposed profile "fast" (
    %x: !tessera_tile.tensor<64x64xf32> as "x" dims ["64", "64"] strides [64, 1] stride_div [1, 1] dim_div [16, 16] align 16,
    %y: !tessera_tile.tensor<64x64xf32> as "y" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
  %n = tessera_tile.constant 64 : index
  tessera_tile.grid(%n) by [64] {
  ^bb0(%i: index):
    %t = tessera_tile.load %x[%i, %i] [64, 64] : !tessera_tile.tensor<64x64xf32> -> !tessera_tile.tile<64x64xf32>
    %u = tessera_tile.transpose %t [1, 0] : !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
    tessera_tile.store %u, %y[%i, %i] [64, 64] : !tessera_tile.tile<64x64xf32>, !tessera_tile.tensor<64x64xf32>
  }
  tessera_tile.return
}

// -----
// ... loops over vectors cannot.
// CHECK-NOT: squares
// CHECK: tessera_tile.return
tessera_tile.kernel @vectors profile "fast" (
    %x: !tessera_tile.tensor<64x64xf32> as "x" dims ["64", "64"] strides [64, 1] stride_div [1, 1] dim_div [16, 16] align 16,
    %y: !tessera_tile.tensor<64x64xf32> as "y" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
  %n = tessera_tile.constant 64 : index
  %zero = tessera_tile.constant 0 : index
  tessera_tile.grid(%n) by [1] {
  ^bb0(%i: index):
    %t = tessera_tile.load %x[%i, %zero] [1, 64] drop [0] : !tessera_tile.tensor<64x64xf32> -> !tessera_tile.tile<64xf32>
    tessera_tile.store %t, %y[%i, %zero] [1, 64] drop [0] : !tessera_tile.tile<64xf32>, !tessera_tile.tensor<64x64xf32>
  }
  tessera_tile.return
}

// -----
// Elements are read one by one if that is asked for.
// RUN: schedule-turn-squares{squares=0}
// CHECK-NOT: squares
// CHECK: tessera_tile.return
tessera_tile.kernel @asked profile "fast" (
    %x: !tessera_tile.tensor<64x64xf32> as "x" dims ["64", "64"] strides [64, 1] stride_div [1, 1] dim_div [16, 16] align 16,
    %y: !tessera_tile.tensor<64x64xf32> as "y" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
  %n = tessera_tile.constant 64 : index
  tessera_tile.grid(%n) by [64] {
  ^bb0(%i: index):
    %t = tessera_tile.load %x[%i, %i] [64, 64] : !tessera_tile.tensor<64x64xf32> -> !tessera_tile.tile<64x64xf32>
    %u = tessera_tile.transpose %t [1, 0] : !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
    tessera_tile.store %u, %y[%i, %i] [64, 64] : !tessera_tile.tile<64x64xf32>, !tessera_tile.tensor<64x64xf32>
  }
  tessera_tile.return
}
