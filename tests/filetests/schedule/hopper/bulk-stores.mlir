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

// -----
// RUN: schedule-bulk-stores

// A bulk store would not be complete when the fence releases what is stored.
builtin.module {
  tessera_tile.kernel @gemm profile "fast" (
      %a: !tessera_tile.tensor<?x?xbf16> as "A" dims ["M", "K"] strides [-1, 1] stride_div [8, 1] dim_div [1, 8] align 16,
      %b: !tessera_tile.tensor<?x?xbf16> as "B" dims ["N", "K"] strides [-1, 1] stride_div [8, 1] dim_div [8, 8] align 16,
      %c: !tessera_tile.tensor<?x?xf32> as "C" dims ["M", "N"] strides [-1, 1] stride_div [8, 1] dim_div [1, 8] align 16 written) {
    %m = tessera_tile.dim %a[0] : !tessera_tile.tensor<?x?xbf16>
    %n = tessera_tile.dim %b[0] : !tessera_tile.tensor<?x?xbf16>
    %k = tessera_tile.dim %a[1] : !tessera_tile.tensor<?x?xbf16>
    %c0 = tessera_tile.constant 0 : index
    %c64 = tessera_tile.constant 64 : index
    %zero = tessera_tile.constant 0.000000e+00 : f32
    tessera_tile.grid(%m, %n) by [64, 64] {
    ^bb0(%i: index, %j: index):
      %0 = tessera_tile.alloc_shared : !tessera_tile.shared<8x64x64xbf16, "panels", [0, 1, 2]>
      %1 = tessera_tile.alloc_shared : !tessera_tile.shared<8x64x64xbf16, "panels", [0, 1, 2]>
      %2 = tessera_tile.alloc_barriers arrivals 1 programs 1 : !tessera_tile.barriers<8>
      %3 = tessera_tile.alloc_barriers arrivals 1 programs 1 : !tessera_tile.barriers<8>
      %4 = tessera_tile.elementwise "le"(%n, %c64) : (index, index) -> i1
      %5 = tessera_tile.elementwise "le"(%m, %c64) : (index, index) -> i1
      tessera_tile.roles(%c0, %c0) producer 56 {
      ^bb0(%6: index, %7: index):
        %8, %9 = scf.for %10 = %c0 to %k step %c64 iter_args(%11 = %6, %12 = %7) -> (index, index) {
          %13 = tessera_tile.constant 1 : index
          %14 = tessera_tile.elementwise "sub"(%13, %12) : (index, index) -> index
          tessera_tile.barrier_wait %3[%11] parity %14 : !tessera_tile.barriers<8>
          tessera_tile.barrier_expect %2[%11] bytes 16384 : !tessera_tile.barriers<8>
          %15 = tessera_tile.shared_view %1[%11] : !tessera_tile.shared<8x64x64xbf16, "panels", [0, 1, 2]> -> !tessera_tile.shared<64x64xbf16, "panels", [0, 1]>
          tessera_tile.bulk_copy %a[%i, %10] [64, 64] into %15, %2[%11] programs 1 once %4 : !tessera_tile.tensor<?x?xbf16>, !tessera_tile.shared<64x64xbf16, "panels", [0, 1]>, !tessera_tile.barriers<8>
          %16 = tessera_tile.shared_view %0[%11] : !tessera_tile.shared<8x64x64xbf16, "panels", [0, 1, 2]> -> !tessera_tile.shared<64x64xbf16, "panels", [0, 1]>
          tessera_tile.bulk_copy %b[%j, %10] [64, 64] into %16, %2[%11] programs 1 once %5 : !tessera_tile.tensor<?x?xbf16>, !tessera_tile.shared<64x64xbf16, "panels", [0, 1]>, !tessera_tile.barriers<8>
          %17 = tessera_tile.elementwise "add"(%11, %13) : (index, index) -> index
          %18 = tessera_tile.constant 8 : index
          %19 = tessera_tile.elementwise "eq"(%17, %18) : (index, index) -> i1
          %20 = tessera_tile.elementwise "select"(%19, %c0, %17) : (i1, index, index) -> index
          %21 = tessera_tile.elementwise "select"(%19, %14, %12) : (i1, index, index) -> index
          scf.yield %20, %21 : index, index
        }
        tessera_tile.role_end %8, %9
      } consumer 240 {
      ^bb0(%22: index, %23: index):
        %start = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<64x64xf32>
        %acc, %24, %25 = scf.for %at = %c0 to %k step %c64 iter_args(%sum = %start, %26 = %22, %27 = %23) -> (!tessera_tile.tile<64x64xf32>, index, index) {
          %28 = tessera_tile.shared_view %1[%26] : !tessera_tile.shared<8x64x64xbf16, "panels", [0, 1, 2]> -> !tessera_tile.shared<64x64xbf16, "panels", [0, 1]>
          %29 = tessera_tile.shared_view %0[%26] : !tessera_tile.shared<8x64x64xbf16, "panels", [0, 1, 2]> -> !tessera_tile.shared<64x64xbf16, "panels", [0, 1]>
          %30 = tessera_tile.shared_transpose %29 [1, 0] : !tessera_tile.shared<64x64xbf16, "panels", [0, 1]> -> !tessera_tile.shared<64x64xbf16, "panels", [1, 0]>
          tessera_tile.barrier_wait %2[%26] parity %27 : !tessera_tile.barriers<8>
          %next = tessera_tile.mma %28, %30, %sum compute "bf16" {tessera_schedule.warpgroup = #builtin.int<1>} : !tessera_tile.shared<64x64xbf16, "panels", [0, 1]>, !tessera_tile.shared<64x64xbf16, "panels", [1, 0]>, !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
          tessera_tile.barrier_arrive %3[%26] : !tessera_tile.barriers<8>
          %31 = tessera_tile.constant 1 : index
          %32 = tessera_tile.elementwise "add"(%26, %31) : (index, index) -> index
          %33 = tessera_tile.constant 8 : index
          %34 = tessera_tile.elementwise "eq"(%32, %33) : (index, index) -> i1
          %35 = tessera_tile.elementwise "sub"(%31, %27) : (index, index) -> index
          %36 = tessera_tile.elementwise "select"(%34, %c0, %32) : (i1, index, index) -> index
          %37 = tessera_tile.elementwise "select"(%34, %35, %27) : (i1, index, index) -> index
          scf.yield %next, %36, %37 : !tessera_tile.tile<64x64xf32>, index, index
        } {tessera_schedule.stages = #builtin.int<8>}
        // CHECK-NOT: bulk_store
        // CHECK: tessera_tile.store %acc
        tessera_tile.store %acc, %c[%i, %j] [64, 64] : !tessera_tile.tile<64x64xf32>, !tessera_tile.tensor<?x?xf32>
        tessera_tile.fence "release" scope "device"
        tessera_tile.role_end %24, %25
      }
    } {tessera_schedule.persistent = #builtin.int<1>, tessera_schedule.num_warps = #builtin.int<4>}
    tessera_tile.return
  }
}
