// RUN: schedule-warp-specialize schedule-bulk-stores

// The tile is stored in parts of 128 bytes by way of shared buffers, which a later tile writes again after a wait.
tessera_tile.kernel @gemm profile "fast" (
    %a: !tessera_tile.tensor<?x?xbf16> as "A" dims ["M", "K"] strides [-1, 1] stride_div [8, 1] dim_div [1, 8] align 16,
    %b: !tessera_tile.tensor<?x?xbf16> as "B" dims ["N", "K"] strides [-1, 1] stride_div [8, 1] dim_div [8, 8] align 16,
    %c: !tessera_tile.tensor<?x?xf32> as "C" dims ["M", "N"] strides [-1, 1] stride_div [8, 1] dim_div [1, 8] align 16 written) {
  %m = tessera_tile.dim %a[0] : !tessera_tile.tensor<?x?xbf16>
  %n = tessera_tile.dim %b[0] : !tessera_tile.tensor<?x?xbf16>
  %k = tessera_tile.dim %a[1] : !tessera_tile.tensor<?x?xbf16>
  %c0 = tessera_tile.constant 0 : index
  %c64 = tessera_tile.constant 64 : index
  %zero = tessera_tile.constant 0.0 : f32
  tessera_tile.grid(%m, %n) by [64, 64] {
  ^bb0(%i: index, %j: index):
    // CHECK: [[R1:%\w+]] = tessera_tile.alloc_shared : !tessera_tile.shared<64x32xf32, "panels", [0, 1]>
    // CHECK: [[R0:%\w+]] = tessera_tile.alloc_shared : !tessera_tile.shared<64x32xf32, "panels", [0, 1]>
    %start = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<64x64xf32>
    // CHECK: [[ACC:%\w+]], {{%\w+}}, {{%\w+}} = scf.for {{.*}}tile<64x64xf32>
    %acc = scf.for %at = %c0 to %k step %c64 iter_args(%sum = %start) -> (!tessera_tile.tile<64x64xf32>) {
      %ta = tessera_tile.load %a[%i, %at] [64, 64] : !tessera_tile.tensor<?x?xbf16> -> !tessera_tile.tile<64x64xbf16>
      %tb = tessera_tile.load %b[%j, %at] [64, 64] : !tessera_tile.tensor<?x?xbf16> -> !tessera_tile.tile<64x64xbf16>
      %tt = tessera_tile.transpose %tb [1, 0] : !tessera_tile.tile<64x64xbf16> -> !tessera_tile.tile<64x64xbf16>
      %next = tessera_tile.mma %ta, %tt, %sum compute "bf16" : !tessera_tile.tile<64x64xbf16>, !tessera_tile.tile<64x64xbf16>, !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
      scf.yield %next : !tessera_tile.tile<64x64xf32>
    }
    // CHECK: tessera_tile.bulk_wait 1
    // CHECK: [[P0:%\w+]] = tessera_tile.subtile [[ACC]] [0, 0]
    // CHECK: tessera_tile.shared_store [[P0]], [[R0]]
    // CHECK: tessera_tile.bulk_store [[R0]] into %c[%i, %j] [64, 32]
    // CHECK: tessera_tile.bulk_wait 1
    // CHECK: [[P1:%\w+]] = tessera_tile.subtile [[ACC]] [0, 32]
    // CHECK: tessera_tile.shared_store [[P1]], [[R1]]
    // CHECK: tessera_tile.bulk_store [[R1]] into %c[%i, {{%\w+}}] [64, 32]
    // CHECK-NOT: tessera_tile.store
    // CHECK: role_end
    tessera_tile.store %acc, %c[%i, %j] [64, 64] : !tessera_tile.tile<64x64xf32>, !tessera_tile.tensor<?x?xf32>
  }
  tessera_tile.return
}
