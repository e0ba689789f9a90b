// RUN: schedule-choose-products

// CHECK: tessera_tile.mma {{.*}} {tessera_schedule.multiply_adds = #builtin.int<1>}
builtin.module {
  tessera_tile.kernel @kernel profile "strict" (
      %0: !tessera_tile.tensor<64x64xf16> as "x" dims ["64", "64"] strides [-1, 1] stride_div [16, 1] dim_div [16, 16] align 16,
      %1: !tessera_tile.tensor<64x64xf32> as "y" dims ["64", "64"] strides [-1, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
    tessera_tile.grid() by [] {
      %2 = tessera_tile.constant 0 : index
      %3 = tessera_tile.load %0[%2, %2] [64, 64] : !tessera_tile.tensor<64x64xf16> -> !tessera_tile.tile<64x64xf16>
      %4 = tessera_tile.load %1[%2, %2] [64, 64] : !tessera_tile.tensor<64x64xf32> -> !tessera_tile.tile<64x64xf32>
      %5 = tessera_tile.mma %3, %3, %4 compute "f16" : !tessera_tile.tile<64x64xf16>, !tessera_tile.tile<64x64xf16>, !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
      tessera_tile.store %5, %1[%2, %2] [64, 64] : !tessera_tile.tile<64x64xf32>, !tessera_tile.tensor<64x64xf32>
    }
    tessera_tile.return
  }
}
