// RUN: schedule-group-buffers

// What only consumers use is there once for each group; what the producer fills stays one.
tessera_tile.kernel @staged profile "fast" (
    %a: !tessera_tile.tensor<?x?xbf16> as "a" dims ["M", "K"] strides [-1, 1] stride_div [8, 1] dim_div [1, 8] align 16 written) {
  %m = tessera_tile.dim %a[0] : !tessera_tile.tensor<?x?xbf16>
  tessera_tile.grid(%m) by [64] {
  ^bb0(%i: index):
    // CHECK: [[BOTH:%\w+]] = tessera_tile.alloc_shared : !tessera_tile.shared<2x64x64xbf16, "panels", [0, 1, 2]>
    // CHECK: [[RING:%\w+]] = tessera_tile.alloc_shared : !tessera_tile.shared<64x64xbf16, "panels", [0, 1]>
    %mine = tessera_tile.alloc_shared : !tessera_tile.shared<64x64xbf16, "panels", [0, 1]>
    %ring = tessera_tile.alloc_shared : !tessera_tile.shared<64x64xbf16, "panels", [0, 1]>
    %full = tessera_tile.alloc_barriers arrivals 1 programs 1 : !tessera_tile.barriers<1>
    %c0 = tessera_tile.constant 0 : index
    tessera_tile.roles() producer 24 {
      // CHECK: bulk_copy {{.*}} into [[RING]]
      tessera_tile.barrier_expect %full[%c0] bytes 8192 : !tessera_tile.barriers<1>
      tessera_tile.bulk_copy %a[%i, %c0] [64, 64] into %ring, %full[%c0] programs 1 : !tessera_tile.tensor<?x?xbf16>, !tessera_tile.shared<64x64xbf16, "panels", [0, 1]>, !tessera_tile.barriers<1>
      tessera_tile.role_end
    } consumer 240 groups 2 {
      // CHECK: [[GROUP:%\w+]] = tessera_tile.role_group
      // CHECK: [[MINE:%\w+]] = tessera_tile.shared_view [[BOTH]][[[GROUP]]]
      // CHECK: tessera_tile.shared_load [[RING]]
      // CHECK: tessera_tile.shared_store {{%\w+}}, [[MINE]]
      tessera_tile.barrier_wait %full[%c0] parity %c0 : !tessera_tile.barriers<1>
      %x = tessera_tile.shared_load %ring : !tessera_tile.shared<64x64xbf16, "panels", [0, 1]> -> !tessera_tile.tile<64x64xbf16>
      tessera_tile.shared_store %x, %mine : !tessera_tile.tile<64x64xbf16>, !tessera_tile.shared<64x64xbf16, "panels", [0, 1]>
      tessera_tile.bulk_store %mine into %a[%i, %c0] [64, 64] : !tessera_tile.shared<64x64xbf16, "panels", [0, 1]>, !tessera_tile.tensor<?x?xbf16>
      tessera_tile.role_end
    }
  }
  tessera_tile.return
}

// -----
// All consumers of one group share their buffers.
tessera_tile.kernel @one profile "fast" (
    %a: !tessera_tile.tensor<?x?xbf16> as "a" dims ["M", "K"] strides [-1, 1] stride_div [8, 1] dim_div [1, 8] align 16 written) {
  %m = tessera_tile.dim %a[0] : !tessera_tile.tensor<?x?xbf16>
  tessera_tile.grid(%m) by [64] {
  ^bb0(%i: index):
    // CHECK: alloc_shared : !tessera_tile.shared<64x64xbf16, "panels", [0, 1]>
    %mine = tessera_tile.alloc_shared : !tessera_tile.shared<64x64xbf16, "panels", [0, 1]>
    %c0 = tessera_tile.constant 0 : index
    tessera_tile.roles() producer 24 {
      tessera_tile.role_end
    } consumer 240 {
      // CHECK-NOT: shared_view
      // CHECK: role_end
      tessera_tile.bulk_store %mine into %a[%i, %c0] [64, 64] : !tessera_tile.shared<64x64xbf16, "panels", [0, 1]>, !tessera_tile.tensor<?x?xbf16>
      tessera_tile.role_end
    }
  }
  tessera_tile.return
}
