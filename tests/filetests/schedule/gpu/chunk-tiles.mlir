// RUN: schedule-chunk-tiles{chunk=32}

// A row of 77 elements less its sum: one pass for the sum, one that computes and stores. Each is a loop over two chunks,
// and a chunk of the 13 elements that are left. The second goes from the end.
tessera_tile.kernel @rows profile "fast" (
    %x: !tessera_tile.tensor<?x77xf32> as "X" dims ["M", "77"] strides [-1, 1] stride_div [4, 1] dim_div [1, 1] align 16,
    %y: !tessera_tile.tensor<?x77xf32> as "Y" dims ["M", "77"] strides [-1, 1] stride_div [4, 1] dim_div [1, 1] align 16 written) {
  %m = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x77xf32>
  tessera_tile.grid(%m) by [1] {
  ^bb0(%i: index):
    %zero = tessera_tile.constant 0 : index
    // CHECK: tessera_tile.constant -0.000000e+00 : f32
    // CHECK: tessera_tile.splat {{.*}} -> !tessera_tile.tile<8xf32>
    // CHECK: scf.for {{.*}} -> (!tessera_tile.tile<8xf32>) {
    // CHECK: tessera_tile.load {{.*}} [1, 32] drop [0] : !tessera_tile.tensor<?x77xf32> -> !tessera_tile.tile<32xf32>
    // CHECK: tessera_tile.reshape {{.*}} -> !tessera_tile.tile<4x8xf32>
    // CHECK: tessera_tile.reduce "sum" {{.*}} axis 0 : !tessera_tile.tile<4x8xf32> -> !tessera_tile.tile<8xf32>
    // CHECK: tessera_tile.elementwise "add"
    // CHECK: scf.yield
    // CHECK: tessera_tile.load {{.*}} [1, 13] drop [0] : !tessera_tile.tensor<?x77xf32> -> !tessera_tile.tile<13xf32>
    %row = tessera_tile.load %x[%i, %zero] [1, 77] drop [0] : !tessera_tile.tensor<?x77xf32> -> !tessera_tile.tile<77xf32>
    // CHECK: tessera_tile.reduce "sum" {{.*}} axis 0 : !tessera_tile.tile<13xf32> -> f32
    // CHECK: tessera_tile.reduce "sum" {{.*}} axis 0 : !tessera_tile.tile<8xf32> -> f32
    // CHECK: tessera_tile.elementwise "add"({{.*}}) : (f32, f32) -> f32
    %sum = tessera_tile.reduce "sum" %row axis 0 : !tessera_tile.tile<77xf32> -> f32
    // CHECK: scf.for [[AT:%\w+]] =
    // CHECK: [[LAST:%\w+]] = tessera_tile.constant 32 : index
    // CHECK: [[PLACE:%\w+]] = tessera_tile.elementwise "sub"([[LAST]], [[AT]])
    // CHECK: tessera_tile.load %x[%i, [[PLACE]]] [1, 32]
    %sums = tessera_tile.splat %sum : f32 -> !tessera_tile.tile<77xf32>
    %out = tessera_tile.elementwise "sub"(%row, %sums) : (!tessera_tile.tile<77xf32>, !tessera_tile.tile<77xf32>) -> !tessera_tile.tile<77xf32>
    // CHECK: tessera_tile.store {{.*}} [1, 32] drop [0] : !tessera_tile.tile<32xf32>
    // CHECK: tessera_tile.store {{.*}} [1, 13] drop [0] : !tessera_tile.tile<13xf32>
    tessera_tile.store %out, %y[%i, %zero] [1, 77] drop [0] : !tessera_tile.tile<77xf32>, !tessera_tile.tensor<?x77xf32>
  }
  // CHECK: tessera_notes.chunk = ["tiles of 77 elements are computed in 2 passes over chunks of 32"]
  tessera_tile.return
}

// -----
// Rows that begin anywhere: chunks begin where those that are loaded are aligned, behind a head of four elements. The last
// chunk ends with the last multiple of them, and reduces only what the loop has not.
tessera_tile.kernel @anywhere profile "fast" (
    %x: !tessera_tile.tensor<?x77xf32> as "X" dims ["M", "77"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16,
    %y: !tessera_tile.tensor<?x77xf32> as "Y" dims ["M", "77"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16 written) {
  %m = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x77xf32>
  tessera_tile.grid(%m) by [1] {
  ^bb0(%i: index):
    %zero = tessera_tile.constant 0 : index
    // CHECK: [[BEHIND:%\w+]] = tessera_tile.misalignment %x[%i, %zero]
    // CHECK: [[BEFORE:%\w+]] = tessera_tile.elementwise "sub"({{.*}}, [[BEHIND]])
    // CHECK: tessera_tile.load %x[%i, [[BEFORE]]] [1, 4] drop [0] : !tessera_tile.tensor<?x77xf32>
    // CHECK: tessera_tile.elementwise "ge"
    // CHECK: tessera_tile.elementwise "select"
    // CHECK: tessera_tile.reduce "max" {{.*}} : !tessera_tile.tile<4xf32> -> f32
    // CHECK: scf.for
    // CHECK: tessera_tile.load %x[%i, {{.*}}] [1, 32] drop [0] {tessera_schedule.inside = #builtin.int<2>, tessera_schedule.aligned = #builtin.int<1>}
    // CHECK: scf.yield
    // CHECK: tessera_tile.elementwise "mod"
    // CHECK: tessera_tile.load %x[%i, {{.*}}] [1, 32] drop [0] {tessera_schedule.inside = #builtin.int<2>, tessera_schedule.aligned = #builtin.int<1>}
    // CHECK: tessera_tile.elementwise "select"
    // CHECK: tessera_tile.load %x[%i, {{.*}}] [1, 4] drop [0] : !tessera_tile.tensor<?x77xf32>
    %row = tessera_tile.load %x[%i, %zero] [1, 77] drop [0] : !tessera_tile.tensor<?x77xf32> -> !tessera_tile.tile<77xf32>
    %most = tessera_tile.reduce "max" %row axis 0 : !tessera_tile.tile<77xf32> -> f32
    %mosts = tessera_tile.splat %most : f32 -> !tessera_tile.tile<77xf32>
    %out = tessera_tile.elementwise "sub"(%row, %mosts) : (!tessera_tile.tile<77xf32>, !tessera_tile.tile<77xf32>) -> !tessera_tile.tile<77xf32>
    // CHECK: tessera_tile.store {{.*}} [1, 32] drop [0] {tessera_schedule.inside = #builtin.int<2>, tessera_schedule.aligned = #builtin.int<2>}
    tessera_tile.store %out, %y[%i, %zero] [1, 77] drop [0] : !tessera_tile.tile<77xf32>, !tessera_tile.tensor<?x77xf32>
  }
  // CHECK: tessera_notes.chunk = ["tiles of 77 elements are computed in 2 passes over chunks of 32, which begin where accesses are aligned"]
  tessera_tile.return
}

// -----
// Two arguments that start at one address are one memory: rows of 77 and of 76 elements overlap in other places.
tessera_tile.kernel @alias profile "fast" (
    %x: !tessera_tile.tensor<?x77xf32> as "X" dims ["M", "77"] strides [77, 1] stride_div [1, 1] dim_div [1, 1] align 16,
    %y: !tessera_tile.tensor<?x76xf32> as "Y" dims ["M", "76"] strides [76, 1] stride_div [1, 1] dim_div [1, 1] align 16 written alias 0) {
  %m = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x77xf32>
  tessera_tile.grid(%m) by [1] {
  ^bb0(%i: index):
    %zero = tessera_tile.constant 0 : index
    // CHECK: tessera_tile.load {{.*}} [1, 76] drop [0]
    %row = tessera_tile.load %x[%i, %zero] [1, 76] drop [0] : !tessera_tile.tensor<?x77xf32> -> !tessera_tile.tile<76xf32>
    tessera_tile.store %row, %y[%i, %zero] [1, 76] drop [0] : !tessera_tile.tile<76xf32>, !tessera_tile.tensor<?x76xf32>
  }
  // CHECK: tessera_notes.chunk = ["tiles of 76 elements stay whole: a tensor that they are stored to is accessed in other passes or places"]
  tessera_tile.return
}

// -----
// All elements of several rows: the dimensions that were merged are reduced one after the other, and elements numbered.
// CHECK-LABEL: @all
tessera_tile.kernel @all profile "fast" (
    %x: !tessera_tile.tensor<4x64xi32> as "X" dims ["4", "64"] strides [64, 1] stride_div [64, 1] dim_div [4, 64] align 16,
    %y: !tessera_tile.tensor<1xi32> as "Y" dims ["1"] strides [1] stride_div [1] dim_div [1] align 16 written) {
  %one = tessera_tile.constant 1 : index
  tessera_tile.grid(%one) by [1] {
  ^bb0(%i: index):
    %zero = tessera_tile.constant 0 : index
    // CHECK: scf.for
    // CHECK: tessera_tile.load {{.*}} [4, 8] : !tessera_tile.tensor<4x64xi32> -> !tessera_tile.tile<4x8xi32>
    // CHECK: tessera_tile.reduce "max" {{.*}} -> !tessera_tile.tile<4xi32>
    // CHECK: tessera_tile.reduce "max" {{.*}} : !tessera_tile.tile<4xi32> -> i32
    // CHECK-NOT: 256xi32
    %rows = tessera_tile.load %x[%zero, %zero] [4, 64] : !tessera_tile.tensor<4x64xi32> -> !tessera_tile.tile<4x64xi32>
    %flat = tessera_tile.reshape %rows : !tessera_tile.tile<4x64xi32> -> !tessera_tile.tile<256xi32>
    %number = tessera_tile.arange : !tessera_tile.tile<256xi32>
    %sum = tessera_tile.elementwise "add"(%flat, %number) : (!tessera_tile.tile<256xi32>, !tessera_tile.tile<256xi32>) -> !tessera_tile.tile<256xi32>
    %most = tessera_tile.reduce "max" %sum axis 0 : !tessera_tile.tile<256xi32> -> i32
    tessera_tile.store %most, %y[%zero] [1] drop [0] : i32, !tessera_tile.tensor<1xi32>
  }
  tessera_tile.return
}
