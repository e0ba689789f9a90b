// RUN: schedule-chunk-tiles{hold_rows=2}

// A row of 20000 elements less its largest one stays in shared memory for both passes: two chunks of 8192, and what they
// leave.
tessera_tile.kernel @rows profile "fast" (
    %x: !tessera_tile.tensor<?x20000xbf16> as "X" dims ["M", "20000"] strides [-1, 1] stride_div [8, 1] dim_div [1, 1] align 16,
    %y: !tessera_tile.tensor<?x20000xbf16> as "Y" dims ["M", "20000"] strides [-1, 1] stride_div [8, 1] dim_div [1, 1] align 16 written) {
  %m = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x20000xbf16>
  tessera_tile.grid(%m) by [1] {
  ^bb0(%i: index):
    // CHECK: [[CHUNKS:%\w+]] = tessera_tile.alloc_shared : !tessera_tile.shared<2x1x8192xbf16
    // CHECK: [[REST:%\w+]] = tessera_tile.alloc_shared : !tessera_tile.shared<3616xbf16
    // CHECK: tessera_tile.cp_async %x[%i, {{.*}}] [1, 8192] drop [0]
    // CHECK: tessera_tile.cp_async %x[%i, {{.*}}] [1, 8192] drop [0]
    // CHECK: tessera_tile.cp_async %x[%i, {{.*}}] [1, 3616] drop [0] into [[REST]]
    // CHECK: tessera_tile.wait_group 0
    // CHECK: tessera_tile.barrier
    // CHECK: scf.for
    // CHECK: tessera_tile.shared_view [[CHUNKS]]
    // CHECK: tessera_tile.shared_load
    // CHECK: tessera_tile.reduce "max"
    %zero = tessera_tile.constant 0 : index
    %row = tessera_tile.load %x[%i, %zero] [1, 20000] drop [0] : !tessera_tile.tensor<?x20000xbf16> -> !tessera_tile.tile<20000xbf16>
    %most = tessera_tile.reduce "max" %row axis 0 : !tessera_tile.tile<20000xbf16> -> bf16
    %mosts = tessera_tile.splat %most : bf16 -> !tessera_tile.tile<20000xbf16>
    %out = tessera_tile.elementwise "sub"(%row, %mosts) : (!tessera_tile.tile<20000xbf16>, !tessera_tile.tile<20000xbf16>) -> !tessera_tile.tile<20000xbf16>
    // CHECK: scf.for
    // CHECK: tessera_tile.shared_view [[CHUNKS]]
    // CHECK: tessera_tile.store
    // CHECK: tessera_tile.shared_load [[REST]]
    tessera_tile.store %out, %y[%i, %zero] [1, 20000] drop [0] : !tessera_tile.tile<20000xbf16>, !tessera_tile.tensor<?x20000xbf16>
  }
  // CHECK: tessera_notes.chunk = ["rows of 20000 elements stay in shared memory for 2 passes"]
  tessera_tile.return
}
