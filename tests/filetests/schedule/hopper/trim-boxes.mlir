// RUN: schedule-trim-boxes

// A row of A past its end counts for the same row of C alone, and a column of B for the same column, which are not
// stored. What C adds to is loaded along two dimensions of the grid; no copy engine fetches it.
tessera_tile.kernel @product profile "fast" (
    %a: !tessera_tile.tensor<?x?xbf16> as "A" dims ["M", "K"] strides [-1, 1] stride_div [8, 1] dim_div [1, 8] align 16,
    %b: !tessera_tile.tensor<?x?xbf16> as "B" dims ["K", "N"] strides [-1, 1] stride_div [8, 1] dim_div [8, 8] align 16,
    %c: !tessera_tile.tensor<?x?xf32> as "C" dims ["M", "N"] strides [-1, 1] stride_div [8, 1] dim_div [1, 8] align 16 written) {
  %m = tessera_tile.dim %a[0] : !tessera_tile.tensor<?x?xbf16>
  %n = tessera_tile.dim %b[1] : !tessera_tile.tensor<?x?xbf16>
  %k = tessera_tile.dim %a[1] : !tessera_tile.tensor<?x?xbf16>
  %c0 = tessera_tile.constant 0 : index
  %c64 = tessera_tile.constant 64 : index
  tessera_tile.grid(%m, %n) by [128, 256] {
  ^bb0(%i: index, %j: index):
    // CHECK: [[OLD:%\w+]] = tessera_tile.load %c[%i, %j] [128, 256] :
    // CHECK: tessera_tile.load %a[%i, %p] [128, 64] {tessera_schedule.loose_end = #builtin.int<1>}
    // CHECK: tessera_tile.load %b[%p, %j] [64, 256] {tessera_schedule.loose_end = #builtin.int<2>}
    %old = tessera_tile.load %c[%i, %j] [128, 256] : !tessera_tile.tensor<?x?xf32> -> !tessera_tile.tile<128x256xf32>
    %sum = scf.for %p = %c0 to %k step %c64 iter_args(%acc = %old) -> (!tessera_tile.tile<128x256xf32>) {
      %ta = tessera_tile.load %a[%i, %p] [128, 64] : !tessera_tile.tensor<?x?xbf16> -> !tessera_tile.tile<128x64xbf16>
      %tb = tessera_tile.load %b[%p, %j] [64, 256] : !tessera_tile.tensor<?x?xbf16> -> !tessera_tile.tile<64x256xbf16>
      %next = tessera_tile.mma %ta, %tb, %acc compute "bf16" : !tessera_tile.tile<128x64xbf16>, !tessera_tile.tile<64x256xbf16>, !tessera_tile.tile<128x256xf32> -> !tessera_tile.tile<128x256xf32>
      scf.yield %next : !tessera_tile.tile<128x256xf32>
    }
    tessera_tile.store %sum, %c[%i, %j] [128, 256] : !tessera_tile.tile<128x256xf32>, !tessera_tile.tensor<?x?xf32>
  }
  tessera_tile.return
}

// The largest element of a row of C is that of all columns, those past the end too: B keeps its zeros.
tessera_tile.kernel @largest profile "fast" (
    %a: !tessera_tile.tensor<?x64xbf16> as "A" dims ["M", "64"] strides [64, 1] stride_div [64, 1] dim_div [1, 64] align 16,
    %b: !tessera_tile.tensor<64x?xbf16> as "B" dims ["64", "N"] strides [-1, 1] stride_div [8, 1] dim_div [64, 8] align 16,
    %c: !tessera_tile.tensor<?x?xf32> as "C" dims ["M", "N"] strides [-1, 1] stride_div [8, 1] dim_div [1, 8] align 16 written) {
  %m = tessera_tile.dim %a[0] : !tessera_tile.tensor<?x64xbf16>
  %n = tessera_tile.dim %b[1] : !tessera_tile.tensor<64x?xbf16>
  %c0 = tessera_tile.constant 0 : index
  %zero = tessera_tile.constant 0.0 : f32
  tessera_tile.grid(%m, %n) by [128, 256] {
  ^bb0(%i: index, %j: index):
    // CHECK: tessera_tile.load %a[%i, %c0] [128, 64] {tessera_schedule.loose_end = #builtin.int<1>}
    // CHECK: tessera_tile.load %b[%c0, %j] [64, 256] :
    %none = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<128x256xf32>
    %ta = tessera_tile.load %a[%i, %c0] [128, 64] : !tessera_tile.tensor<?x64xbf16> -> !tessera_tile.tile<128x64xbf16>
    %tb = tessera_tile.load %b[%c0, %j] [64, 256] : !tessera_tile.tensor<64x?xbf16> -> !tessera_tile.tile<64x256xbf16>
    %sum = tessera_tile.mma %ta, %tb, %none compute "bf16" : !tessera_tile.tile<128x64xbf16>, !tessera_tile.tile<64x256xbf16>, !tessera_tile.tile<128x256xf32> -> !tessera_tile.tile<128x256xf32>
    %most = tessera_tile.reduce "max" %sum axis 1 : !tessera_tile.tile<128x256xf32> -> !tessera_tile.tile<128xf32>
    %column = tessera_tile.reshape %most : !tessera_tile.tile<128xf32> -> !tessera_tile.tile<128x1xf32>
    %all = tessera_tile.broadcast %column : !tessera_tile.tile<128x1xf32> -> !tessera_tile.tile<128x256xf32>
    tessera_tile.store %all, %c[%i, %j] [128, 256] : !tessera_tile.tile<128x256xf32>, !tessera_tile.tensor<?x?xf32>
  }
  tessera_tile.return
}
