// RUN: schedule-stage-copies

// The loads that feed a product become a ring of buffers, filled ahead of the loop.
tessera_tile.kernel @gemm profile "fast" (
    %a: !tessera_tile.tensor<?x?xbf16> as "A" dims ["M", "K"] strides [-1, 1] stride_div [8, 1] dim_div [1, 8] align 16,
    %b: !tessera_tile.tensor<?x?xbf16> as "B" dims ["K", "N"] strides [-1, 1] stride_div [8, 1] dim_div [8, 8] align 16,
    %c: !tessera_tile.tensor<?x?xf32> as "C" dims ["M", "N"] strides [-1, 1] stride_div [8, 1] dim_div [1, 8] align 16 written) {
  %m = tessera_tile.dim %a[0] : !tessera_tile.tensor<?x?xbf16>
  %n = tessera_tile.dim %b[1] : !tessera_tile.tensor<?x?xbf16>
  %k = tessera_tile.dim %a[1] : !tessera_tile.tensor<?x?xbf16>
  %c0 = tessera_tile.constant 0 : index
  %c32 = tessera_tile.constant 32 : index
  %zero = tessera_tile.constant 0.0 : f32
  // CHECK: tessera_tile.grid
  tessera_tile.grid(%m, %n) by [64, 64] {
  ^bb0(%i: index, %j: index):
    // CHECK: [[RB:%\w+]] = tessera_tile.alloc_shared : !tessera_tile.shared<[[S:[0-9]+]]x32x64xbf16, "xor", [0, 1, 2]>
    // CHECK: [[RA:%\w+]] = tessera_tile.alloc_shared : !tessera_tile.shared<[[S]]x64x32xbf16, "xor", [0, 1, 2]>
    %init = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<64x64xf32>
    // CHECK: cp_async %a
    // CHECK: cp_async %b
    // CHECK: commit_group
    // CHECK: scf.for
    // CHECK: wait_group
    // CHECK-NEXT: barrier
    // CHECK: cp_async %a
    // CHECK: commit_group
    // CHECK-NOT: tessera_tile.load
    // CHECK: [[A:%\w+]] = tessera_tile.shared_view [[RA]]
    // CHECK: [[B:%\w+]] = tessera_tile.shared_view [[RB]]
    // CHECK: tessera_tile.mma [[A]], [[B]]
    %sum = scf.for %p = %c0 to %k step %c32 iter_args(%acc = %init) -> (!tessera_tile.tile<64x64xf32>) {
      %x = tessera_tile.load %a[%i, %p] [64, 32] : !tessera_tile.tensor<?x?xbf16> -> !tessera_tile.tile<64x32xbf16>
      %y = tessera_tile.load %b[%p, %j] [32, 64] : !tessera_tile.tensor<?x?xbf16> -> !tessera_tile.tile<32x64xbf16>
      %next = tessera_tile.mma %x, %y, %acc compute "bf16" : !tessera_tile.tile<64x32xbf16>, !tessera_tile.tile<32x64xbf16>, !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
      scf.yield %next : !tessera_tile.tile<64x64xf32>
    }
    // CHECK: wait_group 0
    // CHECK-NEXT: barrier
    // CHECK: tessera_tile.store
    tessera_tile.store %sum, %c[%i, %j] [64, 64] : !tessera_tile.tile<64x64xf32>, !tessera_tile.tensor<?x?xf32>
  }
  tessera_tile.return %c : !tessera_tile.tensor<?x?xf32>
}

// -----
// A load that is used for anything but products stays.
tessera_tile.kernel @copy profile "fast" (
    %a: !tessera_tile.tensor<?x?xf32> as "A" dims ["M", "N"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] written) {
  %m = tessera_tile.dim %a[0] : !tessera_tile.tensor<?x?xf32>
  %c0 = tessera_tile.constant 0 : index
  tessera_tile.grid(%m) by [16] {
  ^bb0(%i: index):
    // CHECK-NOT: alloc_shared
    // CHECK: tessera_tile.load
    %x = tessera_tile.load %a[%i, %c0] [16, 16] : !tessera_tile.tensor<?x?xf32> -> !tessera_tile.tile<16x16xf32>
    %y = tessera_tile.elementwise "exp"(%x) : (!tessera_tile.tile<16x16xf32>) -> !tessera_tile.tile<16x16xf32>
    tessera_tile.store %y, %a[%i, %c0] [16, 16] : !tessera_tile.tile<16x16xf32>, !tessera_tile.tensor<?x?xf32>
  }
  tessera_tile.return
}
