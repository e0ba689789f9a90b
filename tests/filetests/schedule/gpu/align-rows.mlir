// RUN: schedule-align-rows

// The largest elements of rows less weights, which begin anywhere: tiles begin at the aligned place before a row, and have
// all elements of the last access. What lies around the row is no part of the maximum. The launch looks how weights lie.
tessera_tile.kernel @anywhere profile "fast" (
    %x: !tessera_tile.tensor<?x1301xf32> as "X" dims ["M", "1301"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16,
    %w: !tessera_tile.tensor<1301xf32> as "W" dims ["1301"] strides [1] stride_div [1] dim_div [1] align 16,
    %y: !tessera_tile.tensor<?xf32> as "Y" dims ["M"] strides [1] stride_div [1] dim_div [1] align 16 written) {
  %m = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x1301xf32>
  tessera_tile.grid(%m) by [1] {
  ^bb0(%i: index):
    %zero = tessera_tile.constant 0 : index
    // CHECK: [[BEHIND:%\w+]] = tessera_tile.misalignment %x[%i, %zero]
    // CHECK: [[AT:%\w+]] = tessera_tile.elementwise "sub"({{.*}}, [[BEHIND]])
    // CHECK: [[X:%\w+]] = tessera_tile.load %x[%i, [[AT]]] [1, 1304] drop [0] {tessera_schedule.early = #builtin.int<3>, tessera_schedule.aligned = #builtin.int<1>}
    %row = tessera_tile.load %x[%i, %zero] [1, 1301] drop [0] : !tessera_tile.tensor<?x1301xf32> -> !tessera_tile.tile<1301xf32>
    // CHECK: [[W:%\w+]] = tessera_tile.load %w{{.*}} [1304] {tessera_schedule.early = #builtin.int<3>, tessera_schedule.aligned = #builtin.int<2>}
    %weights = tessera_tile.load %w[%zero] [1301] : !tessera_tile.tensor<1301xf32> -> !tessera_tile.tile<1301xf32>
    // CHECK: [[APART:%\w+]] = tessera_tile.elementwise "sub"([[X]], [[W]])
    %apart = tessera_tile.elementwise "sub"(%row, %weights) : (!tessera_tile.tile<1301xf32>, !tessera_tile.tile<1301xf32>) -> !tessera_tile.tile<1301xf32>
    // CHECK: [[GE:%\w+]] = tessera_tile.elementwise "ge"
    // CHECK: [[LT:%\w+]] = tessera_tile.elementwise "lt"
    // CHECK: [[IN:%\w+]] = tessera_tile.elementwise "and"([[GE]], [[LT]])
    // CHECK: [[MASKED:%\w+]] = tessera_tile.elementwise "select"([[IN]], [[APART]]
    // CHECK: tessera_tile.reduce "max" [[MASKED]]
    %most = tessera_tile.reduce "max" %apart axis 0 : !tessera_tile.tile<1301xf32> -> f32
    tessera_tile.store %most, %y[%i] [1] drop [0] : f32, !tessera_tile.tensor<?xf32>
  }
  // CHECK: rows of 1301 elements are loaded from where accesses are aligned
  tessera_tile.return
}

// -----
// Rows that are stored again stay, and so do those that begin where accesses are aligned.
tessera_tile.kernel @stored profile "fast" (
    %x: !tessera_tile.tensor<?x1301xf32> as "X" dims ["M", "1301"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16,
    %z: !tessera_tile.tensor<?x1304xf32> as "Z" dims ["M", "1304"] strides [-1, 1] stride_div [4, 1] dim_div [1, 1] align 16,
    %y: !tessera_tile.tensor<?x1301xf32> as "Y" dims ["M", "1301"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16 written) {
  %m = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x1301xf32>
  tessera_tile.grid(%m) by [1] {
  ^bb0(%i: index):
    %zero = tessera_tile.constant 0 : index
    // CHECK-NOT: misalignment
    %row = tessera_tile.load %x[%i, %zero] [1, 1301] drop [0] : !tessera_tile.tensor<?x1301xf32> -> !tessera_tile.tile<1301xf32>
    %other = tessera_tile.load %z[%i, %zero] [1, 1304] drop [0] : !tessera_tile.tensor<?x1304xf32> -> !tessera_tile.tile<1304xf32>
    %most = tessera_tile.reduce "max" %other axis 0 : !tessera_tile.tile<1304xf32> -> f32
    %mosts = tessera_tile.splat %most : f32 -> !tessera_tile.tile<1301xf32>
    %out = tessera_tile.elementwise "sub"(%row, %mosts) : (!tessera_tile.tile<1301xf32>, !tessera_tile.tile<1301xf32>) -> !tessera_tile.tile<1301xf32>
    // CHECK: tessera_tile.store {{.*}}, %y[%i, %zero] [1, 1301]
    tessera_tile.store %out, %y[%i, %zero] [1, 1301] drop [0] : !tessera_tile.tile<1301xf32>, !tessera_tile.tensor<?x1301xf32>
  }
  tessera_tile.return
}
