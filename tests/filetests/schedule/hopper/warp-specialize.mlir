// RUN: schedule-warp-specialize

// The loads that feed a product become bulk copies of a producer; the consumers wait for each stage and hand it back.
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
  // CHECK: tessera_tile.grid
  tessera_tile.grid(%m, %n) by [128, 128] {
  ^bb0(%i: index, %j: index):
    // CHECK: [[RB:%\w+]] = tessera_tile.alloc_shared : !tessera_tile.shared<6x128x64xbf16, "panels", [0, 1, 2]>
    // CHECK: [[RA:%\w+]] = tessera_tile.alloc_shared : !tessera_tile.shared<6x128x64xbf16, "panels", [0, 1, 2]>
    // CHECK: [[FULL:%\w+]] = tessera_tile.alloc_barriers arrivals 1 programs 1 : !tessera_tile.barriers<6>
    // CHECK: [[EMPTY:%\w+]] = tessera_tile.alloc_barriers arrivals 1 programs 1 : !tessera_tile.barriers<6>
    // CHECK: [[A_ONCE:%\w+]] = tessera_tile.elementwise "le"(%n, {{%\w+}})
    // CHECK: [[B_ONCE:%\w+]] = tessera_tile.elementwise "le"(%m, {{%\w+}})
    // CHECK: tessera_tile.roles([[ZERO:%\w+]], {{%\w+}}) producer 24 {
    // CHECK-NOT: mma
    // CHECK: scf.for
    // CHECK: barrier_wait [[EMPTY]][
    // CHECK: barrier_expect [[FULL]]{{.*}} bytes 32768
    // CHECK: [[TA:%\w+]] = tessera_tile.shared_view [[RA]]
    // CHECK: bulk_copy %a[%i, {{.*}}] [128, 64] into [[TA]], [[FULL]][{{.*}} once [[A_ONCE]]
    // CHECK: [[TB:%\w+]] = tessera_tile.shared_view [[RB]]
    // CHECK: bulk_copy %b[%j, {{.*}}] [128, 64] into [[TB]], [[FULL]][{{.*}} once [[B_ONCE]]
    // CHECK: } consumer 240 {
    // CHECK: tessera_tile.splat
    // CHECK: scf.for
    // CHECK-NOT: tessera_tile.load
    // CHECK: [[A:%\w+]] = tessera_tile.shared_view [[RA]]
    // CHECK: [[B:%\w+]] = tessera_tile.shared_view [[RB]]
    // CHECK: [[BT:%\w+]] = tessera_tile.shared_transpose [[B]] [1, 0]
    // CHECK: barrier_wait [[FULL]][
    // CHECK: tessera_tile.mma [[A]], [[BT]]{{.*}}warpgroup = #builtin.int<1>
    // CHECK: barrier_arrive [[EMPTY]][
    // CHECK: scf.yield
    %init = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<128x128xf32>
    %sum = scf.for %p = %c0 to %k step %c64 iter_args(%acc = %init) -> (!tessera_tile.tile<128x128xf32>) {
      %x = tessera_tile.load %a[%i, %p] [128, 64] : !tessera_tile.tensor<?x?xbf16> -> !tessera_tile.tile<128x64xbf16>
      %y = tessera_tile.load %b[%j, %p] [128, 64] : !tessera_tile.tensor<?x?xbf16> -> !tessera_tile.tile<128x64xbf16>
      %t = tessera_tile.transpose %y [1, 0] : !tessera_tile.tile<128x64xbf16> -> !tessera_tile.tile<64x128xbf16>
      %next = tessera_tile.mma %x, %t, %acc compute "bf16" : !tessera_tile.tile<128x64xbf16>, !tessera_tile.tile<64x128xbf16>, !tessera_tile.tile<128x128xf32> -> !tessera_tile.tile<128x128xf32>
      scf.yield %next : !tessera_tile.tile<128x128xf32>
    }
    // CHECK: tessera_tile.store
    // CHECK: tessera_tile.role_end
    tessera_tile.store %sum, %c[%i, %j] [128, 128] : !tessera_tile.tile<128x128xf32>, !tessera_tile.tensor<?x?xf32>
  }
  // CHECK: tessera_schedule.persistent = #builtin.int<1>, tessera_schedule.num_warps = #builtin.int<8>
  tessera_tile.return %c : !tessera_tile.tensor<?x?xf32>
}

// -----
// Rows that do not start at multiples of 16 bytes are beyond the copy engine: the reason is noted, nothing changes.
tessera_tile.kernel @unaligned profile "fast" (
    %a: !tessera_tile.tensor<?x?xbf16> as "A" dims ["M", "K"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16,
    %c: !tessera_tile.tensor<?x?xf32> as "C" dims ["M", "M"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16 written) {
  %m = tessera_tile.dim %a[0] : !tessera_tile.tensor<?x?xbf16>
  %k = tessera_tile.dim %a[1] : !tessera_tile.tensor<?x?xbf16>
  %c0 = tessera_tile.constant 0 : index
  %c64 = tessera_tile.constant 64 : index
  %zero = tessera_tile.constant 0.0 : f32
  // CHECK: tessera_tile.grid
  tessera_tile.grid(%m) by [64] {
  ^bb0(%i: index):
    // CHECK-NOT: alloc_barriers
    %init = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<64x64xf32>
    // CHECK: scf.for
    // CHECK: tessera_tile.load
    %sum = scf.for %p = %c0 to %k step %c64 iter_args(%acc = %init) -> (!tessera_tile.tile<64x64xf32>) {
      %x = tessera_tile.load %a[%i, %p] [64, 64] : !tessera_tile.tensor<?x?xbf16> -> !tessera_tile.tile<64x64xbf16>
      %t = tessera_tile.transpose %x [1, 0] : !tessera_tile.tile<64x64xbf16> -> !tessera_tile.tile<64x64xbf16>
      %next = tessera_tile.mma %x, %t, %acc compute "bf16" : !tessera_tile.tile<64x64xbf16>, !tessera_tile.tile<64x64xbf16>, !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
      scf.yield %next : !tessera_tile.tile<64x64xf32>
    }
    tessera_tile.store %sum, %c[%i, %i] [64, 64] : !tessera_tile.tile<64x64xf32>, !tessera_tile.tensor<?x?xf32>
  }
  // CHECK: tessera_notes.roles = ["one role: stride 0 of A is not known to be a multiple of 16 bytes"]
  tessera_tile.return
}
