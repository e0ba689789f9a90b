// RUN: schedule-warp-specialize

// Both operands are computed from bytes: the raw tiles are copied, consumers read them, and the right operand is
// written to shared memory, where a fence hands it to the warpgroup instruction.
tessera_tile.kernel @both profile "fast" (
    %a: !tessera_tile.tensor<?x?xi8> as "A" dims ["M", "K"] strides [-1, 1] stride_div [16, 1] dim_div [1, 16] align 16,
    %b: !tessera_tile.tensor<?x?xi8> as "B" dims ["K", "N"] strides [-1, 1] stride_div [16, 1] dim_div [16, 16] align 16,
    %c: !tessera_tile.tensor<?x?xf32> as "C" dims ["M", "N"] strides [-1, 1] stride_div [16, 1] dim_div [1, 16] align 16 written) {
  %m = tessera_tile.dim %a[0] : !tessera_tile.tensor<?x?xi8>
  %n = tessera_tile.dim %b[1] : !tessera_tile.tensor<?x?xi8>
  %k = tessera_tile.dim %a[1] : !tessera_tile.tensor<?x?xi8>
  %c0 = tessera_tile.constant 0 : index
  %c64 = tessera_tile.constant 64 : index
  %zero = tessera_tile.constant 0.0 : f32
  tessera_tile.grid(%m, %n) by [128, 64] {
  ^bb0(%i: index, %j: index):
    // CHECK: [[RB:%\w+]] = tessera_tile.alloc_shared : !tessera_tile.shared<8x64x64xi8, "panels", [0, 1, 2]>
    // CHECK: [[RA:%\w+]] = tessera_tile.alloc_shared : !tessera_tile.shared<8x128x64xi8, "panels", [0, 1, 2]>
    // CHECK: [[STAGED:%\w+]] = tessera_tile.alloc_shared : !tessera_tile.shared<64x64xbf16, "panels", [0, 1]>
    // CHECK: producer
    // CHECK: barrier_expect {{.*}} bytes 12288
    // CHECK: bulk_copy %a
    // CHECK: bulk_copy %b
    // CHECK: consumer
    // CHECK: barrier_wait
    // CHECK: [[XA:%\w+]] = tessera_tile.shared_load
    // CHECK: [[XB:%\w+]] = tessera_tile.shared_load
    // CHECK: [[A:%\w+]] = tessera_tile.cast [[XA]]
    // CHECK: [[B:%\w+]] = tessera_tile.cast [[XB]]
    // CHECK: barrier_arrive
    // CHECK: tessera_tile.barrier
    // CHECK: tessera_tile.shared_store [[B]], [[STAGED]]
    // CHECK: tessera_tile.proxy_fence
    // CHECK: tessera_tile.barrier
    // CHECK: tessera_tile.mma [[A]], [[STAGED]]
    %init = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<128x64xf32>
    %sum = scf.for %p = %c0 to %k step %c64 iter_args(%acc = %init) -> (!tessera_tile.tile<128x64xf32>) {
      %x = tessera_tile.load %a[%i, %p] [128, 64] : !tessera_tile.tensor<?x?xi8> -> !tessera_tile.tile<128x64xi8>
      %y = tessera_tile.load %b[%p, %j] [64, 64] : !tessera_tile.tensor<?x?xi8> -> !tessera_tile.tile<64x64xi8>
      %left = tessera_tile.cast %x : !tessera_tile.tile<128x64xi8> -> !tessera_tile.tile<128x64xbf16>
      %right = tessera_tile.cast %y : !tessera_tile.tile<64x64xi8> -> !tessera_tile.tile<64x64xbf16>
      %next = tessera_tile.mma %left, %right, %acc compute "bf16" : !tessera_tile.tile<128x64xbf16>, !tessera_tile.tile<64x64xbf16>, !tessera_tile.tile<128x64xf32> -> !tessera_tile.tile<128x64xf32>
      scf.yield %next : !tessera_tile.tile<128x64xf32>
    }
    tessera_tile.store %sum, %c[%i, %j] [128, 64] : !tessera_tile.tile<128x64xf32>, !tessera_tile.tensor<?x?xf32>
  }
  tessera_tile.return %c : !tessera_tile.tensor<?x?xf32>
}

// -----
// Only the right operand is computed: the product is turned, so that it comes from registers; the loop carries the
// transposed sum.
tessera_tile.kernel @right profile "fast" (
    %a: !tessera_tile.tensor<?x?xbf16> as "A" dims ["M", "K"] strides [-1, 1] stride_div [16, 1] dim_div [1, 16] align 16,
    %b: !tessera_tile.tensor<?x?xi8> as "B" dims ["K", "N"] strides [-1, 1] stride_div [16, 1] dim_div [16, 16] align 16,
    %c: !tessera_tile.tensor<?x?xf32> as "C" dims ["M", "N"] strides [-1, 1] stride_div [16, 1] dim_div [1, 16] align 16 written) {
  %m = tessera_tile.dim %a[0] : !tessera_tile.tensor<?x?xbf16>
  %n = tessera_tile.dim %b[1] : !tessera_tile.tensor<?x?xi8>
  %k = tessera_tile.dim %a[1] : !tessera_tile.tensor<?x?xbf16>
  %c0 = tessera_tile.constant 0 : index
  %c64 = tessera_tile.constant 64 : index
  %zero = tessera_tile.constant 0.0 : f32
  tessera_tile.grid(%m, %n) by [128, 64] {
  ^bb0(%i: index, %j: index):
    // CHECK: consumer
    // CHECK: scf.for {{.*}} -> (!tessera_tile.tile<64x128xf32>, index, index)
    // CHECK-NOT: shared_store
    // CHECK: [[X:%\w+]] = tessera_tile.shared_load
    // CHECK: [[Y:%\w+]] = tessera_tile.cast [[X]]
    // CHECK: [[A:%\w+]] = tessera_tile.shared_transpose
    // CHECK: [[B:%\w+]] = tessera_tile.transpose [[Y]] [1, 0]
    // CHECK: tessera_tile.mma [[B]], [[A]]
    // CHECK: scf.yield
    // CHECK: tessera_tile.transpose {{.*}} -> !tessera_tile.tile<128x64xf32>
    // CHECK: tessera_tile.store
    %init = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<128x64xf32>
    %sum = scf.for %p = %c0 to %k step %c64 iter_args(%acc = %init) -> (!tessera_tile.tile<128x64xf32>) {
      %x = tessera_tile.load %a[%i, %p] [128, 64] : !tessera_tile.tensor<?x?xbf16> -> !tessera_tile.tile<128x64xbf16>
      %y = tessera_tile.load %b[%p, %j] [64, 64] : !tessera_tile.tensor<?x?xi8> -> !tessera_tile.tile<64x64xi8>
      %right = tessera_tile.cast %y : !tessera_tile.tile<64x64xi8> -> !tessera_tile.tile<64x64xbf16>
      %next = tessera_tile.mma %x, %right, %acc compute "bf16" : !tessera_tile.tile<128x64xbf16>, !tessera_tile.tile<64x64xbf16>, !tessera_tile.tile<128x64xf32> -> !tessera_tile.tile<128x64xf32>
      scf.yield %next : !tessera_tile.tile<128x64xf32>
    }
    tessera_tile.store %sum, %c[%i, %j] [128, 64] : !tessera_tile.tile<128x64xf32>, !tessera_tile.tensor<?x?xf32>
  }
  tessera_tile.return %c : !tessera_tile.tensor<?x?xf32>
}
