// RUN: --to tirt --target x86-64-v3
// A tile that is kept is read backwards in whole chunks whose lanes change places, and neighbours in whole chunks.
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @backwards profile "fast" (
      %x: !tessera_tile.tensor<64xf32> as "x" dims ["64"] strides [1] stride_div [1] dim_div [16] align 16,
      %y: !tessera_tile.tensor<64xf32> as "y" dims ["64"] strides [1] stride_div [1] dim_div [16] align 16 written) {
    %zero = tessera_tile.constant 0 : index
    %last = tessera_tile.constant 63 : index
    %v = tessera_tile.load %x[%zero] [64] : !tessera_tile.tensor<64xf32> -> !tessera_tile.tile<64xf32>
    %p = tessera_tile.part %v[%last] steps [-1] : !tessera_tile.tile<64xf32> -> !tessera_tile.tile<64xf32>
    tessera_tile.store %p, %y[%zero] [64] : !tessera_tile.tile<64xf32>, !tessera_tile.tensor<64xf32>
    tessera_tile.return
  }
}
// CHECK: sym_name = "backwards"
// CHECK: [[CHUNK:%\d+]] = tessera_target.buffer_load {{.*}} vector 8
// CHECK-NEXT: [[BACK:%\d+]] = tessera_target.relayout [[CHUNK]] [7, 6, 5, 4, 3, 2, 1, 0]
// CHECK: tessera_target.store [[BACK]]

// -----
// A start that may be outside: zeros stand around the tile, so that every chunk is read from the buffer.
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @outside profile "fast" (
      %i: index as "i",
      %x: !tessera_tile.tensor<64xf32> as "x" dims ["64"] strides [1] stride_div [1] dim_div [16] align 16,
      %y: !tessera_tile.tensor<16xf32> as "y" dims ["16"] strides [1] stride_div [1] dim_div [16] align 16 written) {
    %zero = tessera_tile.constant 0 : index
    %v = tessera_tile.load %x[%zero] [64] : !tessera_tile.tensor<64xf32> -> !tessera_tile.tile<64xf32>
    %p = tessera_tile.part %v[%i] steps [1] : !tessera_tile.tile<64xf32> -> !tessera_tile.tile<16xf32>
    tessera_tile.store %p, %y[%zero] [16] : !tessera_tile.tile<16xf32>, !tessera_tile.tensor<16xf32>
    tessera_tile.return
  }
}
// 64 elements, and before and behind them twice the reach of a part.
// CHECK: sym_name = "outside"
// CHECK: !tessera_target.buffer<128xf32, "scratch"
// CHECK: tessera_target.elementwise "maximum"
// CHECK: tessera_target.elementwise "minimum"
// CHECK: tessera_target.buffer_load {{.*}} vector 8
