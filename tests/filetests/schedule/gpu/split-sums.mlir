// RUN: schedule-split-sums

// Each program of a tile does a part of the rows; the last one combines the parts, halves the sums and stores.
tessera_tile.kernel @columns profile "fast" (
    %x: !tessera_tile.tensor<?x?xf32> as "X" dims ["M", "N"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16,
    %y: !tessera_tile.tensor<?xf32> as "Y" dims ["N"] strides [1] stride_div [1] dim_div [1] align 16 written) {
  %m = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x?xf32>
  %n = tessera_tile.dim %x[1] : !tessera_tile.tensor<?x?xf32>
  %c0 = tessera_tile.constant 0 : index
  %c1 = tessera_tile.constant 1 : index
  %zero = tessera_tile.constant 0.0 : f32
  %half = tessera_tile.constant 0.5 : f32
  tessera_tile.grid(%n) by [32] {
  ^bb0(%j: index):
    %start = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<32xf32>
    // CHECK: [[FIRST:%\w+]], [[LAST:%\w+]], [[OWNER:%\w+]], [[OTHERS:%\w+]] = tessera_tile.share
    // CHECK: [[SUM:%\w+]], [[MOST:%\w+]] = scf.for
    %sum, %most = scf.for %i = %c0 to %m step %c1 iter_args(%s = %start, %l = %start) -> (!tessera_tile.tile<32xf32>, !tessera_tile.tile<32xf32>) {
      %row = tessera_tile.load %x[%i, %j] [1, 32] drop [0] : !tessera_tile.tensor<?x?xf32> -> !tessera_tile.tile<32xf32>
      %t = tessera_tile.elementwise "add"(%s, %row) : (!tessera_tile.tile<32xf32>, !tessera_tile.tile<32xf32>) -> !tessera_tile.tile<32xf32>
      %u = tessera_tile.elementwise "maximum"(%row, %l) : (!tessera_tile.tile<32xf32>, !tessera_tile.tile<32xf32>) -> !tessera_tile.tile<32xf32>
      scf.yield %t, %u : !tessera_tile.tile<32xf32>, !tessera_tile.tile<32xf32>
    }
    // CHECK: scf.if [[OWNER]] {
    // CHECK: [[ALL:%\w+]], [[TOP:%\w+]] = tessera_tile.collect_sums [[SUM]], [[MOST]] of [[OTHERS]] by ["add", "maximum"]
    // CHECK: tessera_tile.elementwise "mul"([[ALL]]
    // CHECK: tessera_tile.store
    // CHECK: } else {
    // CHECK: tessera_tile.leave_sums [[SUM]], [[MOST]]
    %halves = tessera_tile.splat %half : f32 -> !tessera_tile.tile<32xf32>
    %scaled = tessera_tile.elementwise "mul"(%sum, %halves) : (!tessera_tile.tile<32xf32>, !tessera_tile.tile<32xf32>) -> !tessera_tile.tile<32xf32>
    %both = tessera_tile.elementwise "add"(%scaled, %most) : (!tessera_tile.tile<32xf32>, !tessera_tile.tile<32xf32>) -> !tessera_tile.tile<32xf32>
    tessera_tile.store %both, %y[%j] [32] : !tessera_tile.tile<32xf32>, !tessera_tile.tensor<?xf32>
  }
  // CHECK: tessera_schedule.split_sums = #builtin.int<256>
  tessera_tile.return
}

// -----
// A sum that starts from what is loaded: only the last program does. It is a scalar, and leaves as a tile of one.
tessera_tile.kernel @scalars profile "fast" (
    %x: !tessera_tile.tensor<?x?xf32> as "X" dims ["M", "N"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16,
    %y: !tessera_tile.tensor<?xf32> as "Y" dims ["N"] strides [1] stride_div [1] dim_div [1] align 16 written) {
  %m = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x?xf32>
  %n = tessera_tile.dim %x[1] : !tessera_tile.tensor<?x?xf32>
  %c0 = tessera_tile.constant 0 : index
  %c1 = tessera_tile.constant 1 : index
  tessera_tile.grid(%n) by [1] {
  ^bb0(%j: index):
    %bias = tessera_tile.load %y[%j] [1] drop [0] : !tessera_tile.tensor<?xf32> -> f32
    // CHECK: [[OWNER:%\w+]], {{%\w+}} = tessera_tile.share
    // CHECK: [[START:%\w+]] = tessera_tile.elementwise "select"([[OWNER]]
    // CHECK: [[SUM:%\w+]] = scf.for {{.*}} iter_args({{%\w+}} = [[START]])
    %sum = scf.for %i = %c0 to %m step %c1 iter_args(%s = %bias) -> (f32) {
      %one = tessera_tile.load %x[%i, %j] [1, 1] drop [0, 1] : !tessera_tile.tensor<?x?xf32> -> f32
      %t = tessera_tile.elementwise "add"(%s, %one) : (f32, f32) -> f32
      scf.yield %t : f32
    }
    // CHECK: [[PART:%\w+]] = tessera_tile.splat [[SUM]] : f32 -> !tessera_tile.tile<1xf32>
    // CHECK: scf.if [[OWNER]] {
    // CHECK: [[ALL:%\w+]] = tessera_tile.collect_sums [[PART]]
    // CHECK: tessera_tile.reduce "max" [[ALL]] axis 0
    // CHECK: } else {
    // CHECK: tessera_tile.leave_sums [[PART]]
    tessera_tile.store %sum, %y[%j] [1] drop [0] : f32, !tessera_tile.tensor<?xf32>
  }
  tessera_tile.return
}

// -----
// A later loop that needs the sums: both stay as they are.
tessera_tile.kernel @twice profile "fast" (
    %x: !tessera_tile.tensor<?x?xf32> as "X" dims ["M", "N"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16,
    %y: !tessera_tile.tensor<?xf32> as "Y" dims ["N"] strides [1] stride_div [1] dim_div [1] align 16 written) {
  %m = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x?xf32>
  %n = tessera_tile.dim %x[1] : !tessera_tile.tensor<?x?xf32>
  %c0 = tessera_tile.constant 0 : index
  %c1 = tessera_tile.constant 1 : index
  %zero = tessera_tile.constant 0.0 : f32
  tessera_tile.grid(%n) by [1] {
  ^bb0(%j: index):
    %sum = scf.for %i = %c0 to %m step %c1 iter_args(%s = %zero) -> (f32) {
      %one = tessera_tile.load %x[%i, %j] [1, 1] drop [0, 1] : !tessera_tile.tensor<?x?xf32> -> f32
      %t = tessera_tile.elementwise "add"(%s, %one) : (f32, f32) -> f32
      scf.yield %t : f32
    }
    // CHECK: tessera_tile.elementwise "maximum"
    %most = scf.for %i = %c0 to %m step %c1 iter_args(%s = %zero) -> (f32) {
      %one = tessera_tile.load %x[%i, %j] [1, 1] drop [0, 1] : !tessera_tile.tensor<?x?xf32> -> f32
      %less = tessera_tile.elementwise "sub"(%one, %sum) : (f32, f32) -> f32
      %t = tessera_tile.elementwise "maximum"(%s, %less) : (f32, f32) -> f32
      scf.yield %t : f32
    }
    // CHECK: tessera_tile.store
    tessera_tile.store %most, %y[%j] [1] drop [0] : f32, !tessera_tile.tensor<?xf32>
  }
  tessera_tile.return
}
