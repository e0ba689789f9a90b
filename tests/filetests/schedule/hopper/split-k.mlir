// RUN: schedule-split-k{split_k=2}

// Each of two programs of a cluster sums a part of K; the first adds up and stores.
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
  tessera_tile.grid(%m, %n) by [64, 64] {
  ^bb0(%i: index, %j: index):
    %start = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<64x64xf32>
    // CHECK: [[BUFFER:%\w+]] = tessera_tile.alloc_shared : !tessera_tile.shared<64x64xf32, "none", [0, 1]>
    // CHECK: [[LINKS:%\w+]] = tessera_tile.alloc_links ranks 2
    // CHECK: [[RANK:%\w+]] = tessera_tile.cluster_rank
    // CHECK: [[MOVED:%\w+]] = tessera_tile.elementwise "mul"([[RANK]]
    // CHECK: [[FROM:%\w+]] = tessera_tile.elementwise "add"({{.*}}, [[MOVED]])
    // CHECK: [[TO:%\w+]] = tessera_tile.elementwise "minimum"(%k
    // CHECK: [[SUM:%\w+]] = scf.for {{%\w+}} = [[FROM]] to [[TO]] step
    %acc = scf.for %at = %c0 to %k step %c64 iter_args(%sum = %start) -> (!tessera_tile.tile<64x64xf32>) {
      %ta = tessera_tile.load %a[%i, %at] [64, 64] : !tessera_tile.tensor<?x?xbf16> -> !tessera_tile.tile<64x64xbf16>
      %tb = tessera_tile.load %b[%at, %j] [64, 64] : !tessera_tile.tensor<?x?xbf16> -> !tessera_tile.tile<64x64xbf16>
      %next = tessera_tile.mma %ta, %tb, %sum compute "bf16" : !tessera_tile.tile<64x64xbf16>, !tessera_tile.tile<64x64xbf16>, !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
      scf.yield %next : !tessera_tile.tile<64x64xf32>
    }
    // CHECK: [[FIRST:%\w+]] = tessera_tile.elementwise "eq"([[RANK]]
    // CHECK: scf.if [[FIRST]] {
    // CHECK: [[ALL:%\w+]] = tessera_tile.partial_sum [[LINKS]], [[SUM]] by [[BUFFER]]
    // CHECK: tessera_tile.store [[ALL]], %c[%i, %j]
    // CHECK: } else {
    // CHECK: tessera_tile.partial_send [[LINKS]], [[SUM]] by [[BUFFER]]
    tessera_tile.store %acc, %c[%i, %j] [64, 64] : !tessera_tile.tile<64x64xf32>, !tessera_tile.tensor<?x?xf32>
  }
  tessera_tile.return
}
