// RUN: schedule-warp-specialize schedule-whole-stores

// Where all rows are stored, the copy engine can do it; what leads to the tile alone is in both branches.
tessera_tile.kernel @gemm profile "fast" (
    %a: !tessera_tile.tensor<?x?xbf16> as "A" dims ["M", "K"] strides [-1, 1] stride_div [8, 1] dim_div [1, 8] align 16,
    %b: !tessera_tile.tensor<?x?xbf16> as "B" dims ["N", "K"] strides [-1, 1] stride_div [8, 1] dim_div [8, 8] align 16,
    %c: !tessera_tile.tensor<?x?xf32> as "C" dims ["M", "N"] strides [-1, 1] stride_div [8, 1] dim_div [1, 8] align 16 written,
    %last: i64 as "last") {
  %m = tessera_tile.dim %a[0] : !tessera_tile.tensor<?x?xbf16>
  %n = tessera_tile.dim %b[0] : !tessera_tile.tensor<?x?xbf16>
  %k = tessera_tile.dim %a[1] : !tessera_tile.tensor<?x?xbf16>
  %c0 = tessera_tile.constant 0 : index
  %c64 = tessera_tile.constant 64 : index
  %zero = tessera_tile.constant 0.0 : f32
  tessera_tile.grid(%m, %n) by [64, 64] {
  ^bb0(%i: index, %j: index):
    %start = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<64x64xf32>
    // CHECK: [[ACC:%\w+]], {{%\w+}}, {{%\w+}} = scf.for {{.*}}tile<64x64xf32>
    %acc = scf.for %at = %c0 to %k step %c64 iter_args(%sum = %start) -> (!tessera_tile.tile<64x64xf32>) {
      %ta = tessera_tile.load %a[%i, %at] [64, 64] : !tessera_tile.tensor<?x?xbf16> -> !tessera_tile.tile<64x64xbf16>
      %tb = tessera_tile.load %b[%j, %at] [64, 64] : !tessera_tile.tensor<?x?xbf16> -> !tessera_tile.tile<64x64xbf16>
      %tt = tessera_tile.transpose %tb [1, 0] : !tessera_tile.tile<64x64xbf16> -> !tessera_tile.tile<64x64xbf16>
      %next = tessera_tile.mma %ta, %tt, %sum compute "bf16" : !tessera_tile.tile<64x64xbf16>, !tessera_tile.tile<64x64xbf16>, !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
      scf.yield %next : !tessera_tile.tile<64x64xf32>
    }
    // CHECK: [[WHOLE:%\w+]] = tessera_tile.elementwise "and"
    // CHECK: scf.if [[WHOLE]]
    // CHECK: [[T:%\w+]] = tessera_tile.elementwise "mul"([[ACC]], [[ACC]])
    // CHECK: tessera_tile.store [[T]], %c[%i, %j] [64, 64] :
    // CHECK: } else {
    // CHECK: [[U:%\w+]] = tessera_tile.elementwise "mul"([[ACC]], [[ACC]])
    // CHECK: tessera_tile.store [[U]], %c[%i, %j] [64, 64] mask
    // CHECK: tessera_schedule.whole_store
    %square = tessera_tile.elementwise "mul"(%acc, %acc) : (!tessera_tile.tile<64x64xf32>, !tessera_tile.tile<64x64xf32>) -> !tessera_tile.tile<64x64xf32>
    %numbers = tessera_tile.arange : !tessera_tile.tile<64xi64>
    %ends = tessera_tile.splat %last : i64 -> !tessera_tile.tile<64xi64>
    %inside = tessera_tile.elementwise "lt"(%numbers, %ends) : (!tessera_tile.tile<64xi64>, !tessera_tile.tile<64xi64>) -> !tessera_tile.tile<64xi1>
    %column = tessera_tile.reshape %inside : !tessera_tile.tile<64xi1> -> !tessera_tile.tile<64x1xi1>
    %mask = tessera_tile.broadcast %column : !tessera_tile.tile<64x1xi1> -> !tessera_tile.tile<64x64xi1>
    tessera_tile.store %square, %c[%i, %j] [64, 64] mask %mask : !tessera_tile.tile<64x64xi1> : !tessera_tile.tile<64x64xf32>, !tessera_tile.tensor<?x?xf32>
  }
  tessera_tile.return
}
