// RUN: schedule-scan-rows{share_rows=3}

// Running sums of a row of 90 elements: three programs of a cluster have 32 of them each, the last one less.
tessera_tile.kernel @shared profile "fast" (
    %x: !tessera_tile.tensor<?x90xf32> as "X" dims ["M", "90"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16,
    %y: !tessera_tile.tensor<?x90xf32> as "Y" dims ["M", "90"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16 written) {
  %m = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x90xf32>
  tessera_tile.grid(%m) by [1] {
  ^bb0(%i: index):
    // CHECK: [[RANK:%\w+]] = tessera_tile.cluster_rank
    // CHECK: [[BUFFER:%\w+]] = tessera_tile.alloc_shared : !tessera_tile.shared<3xf32
    // CHECK: tessera_tile.cluster_arrive
    // CHECK: tessera_tile.load %x[%i, [[AT:%\w+]]] [1, 32] drop [0]
    // CHECK: [[PART:%\w+]] = tessera_tile.scan "sum"
    // CHECK: [[END:%\w+]] = tessera_tile.subtile [[PART]] [31]
    // CHECK: [[TOTAL:%\w+]] = tessera_tile.reduce "sum" [[END]]
    // CHECK: tessera_tile.cluster_wait
    // CHECK: tessera_tile.cluster_put [[TOTAL]] to [[BUFFER]]
    // CHECK: tessera_tile.cluster_arrive
    // CHECK: tessera_tile.cluster_wait
    // CHECK: [[PARTS:%\w+]] = tessera_tile.shared_load [[BUFFER]]
    // CHECK: [[EARLIER:%\w+]] = tessera_tile.elementwise "select"({{.*}}, [[PARTS]],
    // CHECK: tessera_tile.reduce "sum" [[EARLIER]]
    // CHECK: [[SUMS:%\w+]] = tessera_tile.elementwise "add"({{.*}}, [[PART]])
    // CHECK: tessera_tile.store [[SUMS]], %y[%i, [[AT]]] [1, 32] drop [0]
    %zero = tessera_tile.constant 0 : index
    %row = tessera_tile.load %x[%i, %zero] [1, 90] drop [0] : !tessera_tile.tensor<?x90xf32> -> !tessera_tile.tile<90xf32>
    %sums = tessera_tile.scan "sum" %row axis 0 : !tessera_tile.tile<90xf32> -> !tessera_tile.tile<90xf32>
    tessera_tile.store %sums, %y[%i, %zero] [1, 90] drop [0] : !tessera_tile.tile<90xf32>, !tessera_tile.tensor<?x90xf32>
  }
  // CHECK: tessera_schedule.cluster = #builtin.int<3>{{.*}}tessera_notes.scan_rows = ["rows of 90 elements are scanned in parts of 32, 3 at a time"]
  tessera_tile.return
}

// -----
// Rows that are reduced as well stay.
tessera_tile.kernel @reduced profile "fast" (
    %x: !tessera_tile.tensor<?x96xf32> as "X" dims ["M", "96"] strides [-1, 1] stride_div [4, 1] dim_div [1, 1] align 16 written) {
  %m = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x96xf32>
  tessera_tile.grid(%m) by [1] {
  ^bb0(%i: index):
    %zero = tessera_tile.constant 0 : index
    %row = tessera_tile.load %x[%i, %zero] [1, 96] drop [0] : !tessera_tile.tensor<?x96xf32> -> !tessera_tile.tile<96xf32>
    %sums = tessera_tile.scan "sum" %row axis 0 : !tessera_tile.tile<96xf32> -> !tessera_tile.tile<96xf32>
    %most = tessera_tile.reduce "max" %sums axis 0 : !tessera_tile.tile<96xf32> -> f32
    %mosts = tessera_tile.splat %most : f32 -> !tessera_tile.tile<96xf32>
    %out = tessera_tile.elementwise "sub"(%sums, %mosts) : (!tessera_tile.tile<96xf32>, !tessera_tile.tile<96xf32>) -> !tessera_tile.tile<96xf32>
    // CHECK: tessera_tile.store {{.*}} [1, 96] drop [0]
    tessera_tile.store %out, %x[%i, %zero] [1, 96] drop [0] : !tessera_tile.tile<96xf32>, !tessera_tile.tensor<?x96xf32>
  }
  // CHECK: share_rows=3 is ignored: rows are reduced as well
  tessera_tile.return
}

// -----
// RUN: schedule-scan-rows
// Of a row of 4379 elements those behind the first 4096 are a part of their own, which is on its way meanwhile.
tessera_tile.kernel @tailed profile "fast" (
    %x: !tessera_tile.tensor<?x4379xf32> as "X" dims ["M", "4379"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16 written) {
  %m = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x4379xf32>
  tessera_tile.grid(%m) by [1] {
  ^bb0(%i: index):
    // CHECK: [[FIRST:%\w+]] = tessera_tile.load %x{{.*}} [1, 4096] drop [0]
    // CHECK: [[TAIL:%\w+]] = tessera_tile.load %x{{.*}} [1, 512] drop [0]
    // CHECK: tessera_tile.scan "sum" [[FIRST]]
    // CHECK: tessera_tile.store {{.*}} [1, 4096] drop [0]
    // CHECK: tessera_tile.scan "sum" [[TAIL]]
    // CHECK: tessera_tile.store {{.*}} [1, 512] drop [0]
    %zero = tessera_tile.constant 0 : index
    %row = tessera_tile.load %x[%i, %zero] [1, 4379] drop [0] : !tessera_tile.tensor<?x4379xf32> -> !tessera_tile.tile<4379xf32>
    %sums = tessera_tile.scan "sum" %row axis 0 : !tessera_tile.tile<4379xf32> -> !tessera_tile.tile<4379xf32>
    tessera_tile.store %sums, %x[%i, %zero] [1, 4379] drop [0] : !tessera_tile.tile<4379xf32>, !tessera_tile.tensor<?x4379xf32>
  }
  tessera_tile.return
}

// -----
// RUN: schedule-scan-rows
// Rows of 300 000 elements are shared by eight programs with several parts each, the next one of which is loaded while
// one is scanned, in calls with few rows; in others a program has one each.
tessera_tile.kernel @looped profile "fast" (
    %x: !tessera_tile.tensor<?x300000xf32> as "X" dims ["M", "300000"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16 written) {
  %m = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x300000xf32>
  tessera_tile.grid(%m) by [1] {
  ^bb0(%i: index):
    // CHECK: tessera_tile.cluster_rank
    // CHECK: tessera_tile.cluster_wait
    // CHECK: scf.for {{.*}} iter_args
    // CHECK: [[NEXT:%\w+]] = tessera_tile.load %x{{.*}} [1, 4096] drop [0]
    // CHECK: tessera_tile.scan "sum"
    // CHECK: [[AFTER:%\w+]] = tessera_tile.load %x{{.*}} [1, 4096] drop [0]
    // CHECK: tessera_tile.scan "sum" [[NEXT]]
    // CHECK: scf.yield {{.*}}, [[AFTER]]
    // CHECK: tessera_tile.grid({{.*}}) by [1] when
    // CHECK-NOT: cluster
    // CHECK: scf.for {{.*}} iter_args
    // CHECK: tessera_tile.load %x{{.*}} [1, 4096] drop [0]
    %zero = tessera_tile.constant 0 : index
    %row = tessera_tile.load %x[%i, %zero] [1, 300000] drop [0] : !tessera_tile.tensor<?x300000xf32> -> !tessera_tile.tile<300000xf32>
    %sums = tessera_tile.scan "sum" %row axis 0 : !tessera_tile.tile<300000xf32> -> !tessera_tile.tile<300000xf32>
    tessera_tile.store %sums, %x[%i, %zero] [1, 300000] drop [0] : !tessera_tile.tile<300000xf32>, !tessera_tile.tensor<?x300000xf32>
  }
  tessera_tile.return
}
