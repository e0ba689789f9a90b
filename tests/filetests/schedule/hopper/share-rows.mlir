// RUN: schedule-share-rows{share_rows=3}

// A row of 96 elements less its largest one: three programs of a cluster have 32 each.
tessera_tile.kernel @rows profile "fast" (
    %x: !tessera_tile.tensor<?x96xf32> as "X" dims ["M", "96"] strides [-1, 1] stride_div [4, 1] dim_div [1, 1] align 16,
    %y: !tessera_tile.tensor<?x96xf32> as "Y" dims ["M", "96"] strides [-1, 1] stride_div [4, 1] dim_div [1, 1] align 16 written,
    %z: !tessera_tile.tensor<?xf32> as "Z" dims ["M"] strides [1] stride_div [1] dim_div [1] align 16 written) {
  %m = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x96xf32>
  tessera_tile.grid(%m) by [1] {
  ^bb0(%i: index):
    // CHECK: [[RANK:%\w+]] = tessera_tile.cluster_rank
    // CHECK: [[AT:%\w+]] = tessera_tile.elementwise "mul"([[RANK]]
    // CHECK: [[BUFFER:%\w+]] = tessera_tile.alloc_shared : !tessera_tile.shared<3xf32
    // CHECK: tessera_tile.cluster_arrive
    // CHECK: tessera_tile.load %x[%i, [[AT]]] [1, 32] drop [0]
    // CHECK: [[PART:%\w+]] = tessera_tile.reduce "max"
    // CHECK: tessera_tile.cluster_wait
    // CHECK: tessera_tile.cluster_put [[PART]] to [[BUFFER]]
    %zero = tessera_tile.constant 0 : index
    %row = tessera_tile.load %x[%i, %zero] [1, 96] drop [0] : !tessera_tile.tensor<?x96xf32> -> !tessera_tile.tile<96xf32>
    %most = tessera_tile.reduce "max" %row axis 0 : !tessera_tile.tile<96xf32> -> f32
    // CHECK: tessera_tile.cluster_arrive
    // CHECK: tessera_tile.cluster_wait
    // CHECK: [[PARTS:%\w+]] = tessera_tile.shared_load [[BUFFER]]
    // CHECK: [[MOST:%\w+]] = tessera_tile.reduce "max" [[PARTS]] axis 0 : !tessera_tile.tile<3xf32> -> f32
    // CHECK: tessera_tile.splat [[MOST]]
    %mosts = tessera_tile.splat %most : f32 -> !tessera_tile.tile<96xf32>
    %out = tessera_tile.elementwise "sub"(%row, %mosts) : (!tessera_tile.tile<96xf32>, !tessera_tile.tile<96xf32>) -> !tessera_tile.tile<96xf32>
    // CHECK: tessera_tile.store {{.*}}, %y[%i, [[AT]]] [1, 32] drop [0]
    tessera_tile.store %out, %y[%i, %zero] [1, 96] drop [0] : !tessera_tile.tile<96xf32>, !tessera_tile.tensor<?x96xf32>
    // The first one stores what is no row.
    // CHECK: [[FIRST:%\w+]] = tessera_tile.elementwise "eq"([[RANK]]
    // CHECK: scf.if [[FIRST]]
    // CHECK: tessera_tile.store [[MOST]], %z[%i]
    tessera_tile.store %most, %z[%i] [1] drop [0] : f32, !tessera_tile.tensor<?xf32>
  }
  // CHECK: tessera_schedule.cluster = #builtin.int<3>{{.*}}tessera_notes.share_rows = ["3 programs share a row of 96 elements, 32 each"]
  tessera_tile.return
}

// -----
// RUN: schedule-share-rows
// Rows of exponentials that registers hold are shared in calls with few of them, and have a program each in others.
tessera_tile.kernel @few profile "fast" (
    %x: !tessera_tile.tensor<?x24740xf32> as "X" dims ["M", "24740"] strides [-1, 1] stride_div [4, 1] dim_div [1, 1] align 16,
    %y: !tessera_tile.tensor<?x24740xf32> as "Y" dims ["M", "24740"] strides [-1, 1] stride_div [4, 1] dim_div [1, 1] align 16 written) {
  // CHECK: [[M:%\w+]] = tessera_tile.dim
  %m = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x24740xf32>
  // CHECK: [[COUNT:%\w+]] = tessera_tile.elementwise "mul"({{.*}}, [[M]])
  // CHECK: "floordiv"([[COUNT]]
  // CHECK: [[MANY:%\w+]] = tessera_tile.elementwise "minimum"
  // CHECK: [[FEW:%\w+]] = tessera_tile.elementwise "sub"({{.*}}, [[MANY]])
  // CHECK: tessera_tile.grid([[M]]) by [1] when [[FEW]]
  // CHECK: cluster_put
  // CHECK: tessera_tile.grid([[M]]) by [1] when [[MANY]]
  // CHECK-NOT: cluster
  tessera_tile.grid(%m) by [1] {
  ^bb0(%i: index):
    %zero = tessera_tile.constant 0 : index
    %row = tessera_tile.load %x[%i, %zero] [1, 24740] drop [0] : !tessera_tile.tensor<?x24740xf32> -> !tessera_tile.tile<24740xf32>
    %powers = tessera_tile.elementwise "exp"(%row) : (!tessera_tile.tile<24740xf32>) -> !tessera_tile.tile<24740xf32>
    %sum = tessera_tile.reduce "sum" %powers axis 0 : !tessera_tile.tile<24740xf32> -> f32
    %sums = tessera_tile.splat %sum : f32 -> !tessera_tile.tile<24740xf32>
    %out = tessera_tile.elementwise "div"(%powers, %sums) : (!tessera_tile.tile<24740xf32>, !tessera_tile.tile<24740xf32>) -> !tessera_tile.tile<24740xf32>
    // CHECK: tessera_tile.store
    tessera_tile.store %out, %y[%i, %zero] [1, 24740] drop [0] : !tessera_tile.tile<24740xf32>, !tessera_tile.tensor<?x24740xf32>
  }
  tessera_tile.return
}
