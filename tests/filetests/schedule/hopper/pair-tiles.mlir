// RUN: schedule-pair-tiles{cluster=2} schedule-warp-specialize

// Two programs with tiles below one another share the copies of B, which do not depend on their rank.
tessera_tile.kernel @gemm profile "fast" (
    %a: !tessera_tile.tensor<?x?xbf16> as "A" dims ["M", "K"] strides [-1, 1] stride_div [8, 1] dim_div [1, 8] align 16,
    %b: !tessera_tile.tensor<?x?xbf16> as "B" dims ["K", "N"] strides [-1, 1] stride_div [8, 1] dim_div [8, 8] align 16,
    %c: !tessera_tile.tensor<?x?xf32> as "C" dims ["M", "N"] strides [-1, 1] stride_div [8, 1] dim_div [1, 8] align 16 written) {
  %m = tessera_tile.dim %a[0] : !tessera_tile.tensor<?x?xbf16>
  %n = tessera_tile.dim %b[1] : !tessera_tile.tensor<?x?xbf16>
  %k = tessera_tile.dim %a[1] : !tessera_tile.tensor<?x?xbf16>
  %c0 = tessera_tile.constant 0 : index
  %c64 = tessera_tile.constant 64 : index
  %zero = tessera_tile.constant 0.0 : f32
  // CHECK: tessera_tile.grid({{.*}}) by [128, 64]
  tessera_tile.grid(%m, %n) by [64, 64] {
  // CHECK: [[FIRST:%\w+]]: index, %j: index
  ^bb0(%i: index, %j: index):
    // CHECK: alloc_barriers arrivals 1 programs 1
    // CHECK: alloc_barriers arrivals 1 programs 2
    // CHECK: [[RANK:%\w+]] = tessera_tile.cluster_rank
    // CHECK: [[BELOW:%\w+]] = tessera_tile.elementwise "mul"([[RANK]]
    // CHECK: [[ROW:%\w+]] = tessera_tile.elementwise "add"({{.*}}, [[BELOW]])
    // CHECK: bulk_copy %a{{\[}}[[ROW]], {{.*}} programs 1
    // CHECK: bulk_copy %b[{{.*}}, %j] {{.*}} programs 2
    %start = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<64x64xf32>
    %acc = scf.for %at = %c0 to %k step %c64 iter_args(%sum = %start) -> (!tessera_tile.tile<64x64xf32>) {
      %ta = tessera_tile.load %a[%i, %at] [64, 64] : !tessera_tile.tensor<?x?xbf16> -> !tessera_tile.tile<64x64xbf16>
      %tb = tessera_tile.load %b[%at, %j] [64, 64] : !tessera_tile.tensor<?x?xbf16> -> !tessera_tile.tile<64x64xbf16>
      %next = tessera_tile.mma %ta, %tb, %sum compute "bf16" : !tessera_tile.tile<64x64xbf16>, !tessera_tile.tile<64x64xbf16>, !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
      scf.yield %next : !tessera_tile.tile<64x64xf32>
    }
    tessera_tile.store %acc, %c[%i, %j] [64, 64] : !tessera_tile.tile<64x64xf32>, !tessera_tile.tensor<?x?xf32>
  }
  tessera_tile.return
}
