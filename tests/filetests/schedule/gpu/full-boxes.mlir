// RUN: schedule-full-boxes

// A program whose box lies inside has no bounds; the last one has.
tessera_tile.kernel @parts profile "fast" (
    %x: !tessera_tile.tensor<?xf32> as "X" dims ["N"] strides [1] stride_div [1] dim_div [1] align 16,
    %y: !tessera_tile.tensor<?xf32> as "Y" dims ["P"] strides [1] stride_div [1] dim_div [1] align 16 written) {
  %n = tessera_tile.dim %x[0] : !tessera_tile.tensor<?xf32>
  %c64 = tessera_tile.constant 64 : index
  tessera_tile.grid(%n) by [64] {
  ^bb0(%i: index):
    // CHECK: [[END:%\w+]] = tessera_tile.elementwise "add"([[I:%\w+]], {{%\w+}})
    // CHECK: [[INSIDE:%\w+]] = tessera_tile.elementwise "le"([[END]]
    // CHECK: scf.if [[INSIDE]] {
    // CHECK: tessera_tile.load {{%\w+}}[[[I]]] [64] {tessera_schedule.inside = #builtin.int<1>}
    // CHECK: } else {
    // CHECK: tessera_tile.load {{%\w+}}[[[I]]] [64] : !tessera_tile.tensor<?xf32>
    %block = tessera_tile.load %x[%i] [64] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<64xf32>
    %sum = tessera_tile.reduce "sum" %block axis 0 : !tessera_tile.tile<64xf32> -> f32
    %place = tessera_tile.elementwise "floordiv"(%i, %c64) : (index, index) -> index
    tessera_tile.store %sum, %y[%place] [1] drop [0] : f32, !tessera_tile.tensor<?xf32>
  }
  // CHECK: tessera_notes.full_boxes
  tessera_tile.return
}

// -----
// Four steps of a loop at once while all of them lie inside, then one after the other.
tessera_tile.kernel @columns profile "fast" (
    %x: !tessera_tile.tensor<?x?xf32> as "X" dims ["M", "N"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16,
    %y: !tessera_tile.tensor<?xf32> as "Y" dims ["N"] strides [1] stride_div [1] dim_div [1] align 16 written) {
  %m = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x?xf32>
  %n = tessera_tile.dim %x[1] : !tessera_tile.tensor<?x?xf32>
  %c0 = tessera_tile.constant 0 : index
  %c8 = tessera_tile.constant 8 : index
  %zero = tessera_tile.constant 0.0 : f32
  tessera_tile.grid(%n) by [32] {
  ^bb0(%j: index):
    %start = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<8x32xf32>
    // CHECK: [[BEHIND:%\w+]] = tessera_tile.constant 31 : index
    // CHECK: [[END:%\w+]] = tessera_tile.elementwise "sub"([[M:%\w+]], [[BEHIND]])
    // CHECK: [[STEP:%\w+]] = tessera_tile.constant 32 : index
    // CHECK: [[MOST:%\w+]] = scf.for {{%\w+}} = {{%\w+}} to [[END]] step [[STEP]]
    // CHECK: tessera_tile.load {{.*}} [8, 32] {tessera_schedule.inside = #builtin.int<1>}
    // CHECK: tessera_tile.load {{.*}} [8, 32] {tessera_schedule.inside = #builtin.int<1>}
    // CHECK: tessera_tile.load {{.*}} [8, 32] {tessera_schedule.inside = #builtin.int<1>}
    // CHECK: tessera_tile.load {{.*}} [8, 32] {tessera_schedule.inside = #builtin.int<1>}
    // CHECK: scf.for {{%\w+}} = {{%\w+}} to [[M]] step {{%\w+}} iter_args({{%\w+}} = [[MOST]])
    // CHECK: tessera_tile.load {{.*}} [8, 32] : !tessera_tile.tensor<?x?xf32>
    %sum = scf.for %i = %c0 to %m step %c8 iter_args(%s = %start) -> (!tessera_tile.tile<8x32xf32>) {
      %rows = tessera_tile.load %x[%i, %j] [8, 32] : !tessera_tile.tensor<?x?xf32> -> !tessera_tile.tile<8x32xf32>
      %t = tessera_tile.elementwise "add"(%s, %rows) : (!tessera_tile.tile<8x32xf32>, !tessera_tile.tile<8x32xf32>) -> !tessera_tile.tile<8x32xf32>
      scf.yield %t : !tessera_tile.tile<8x32xf32>
    }
    %row = tessera_tile.reduce "sum" %sum axis 0 : !tessera_tile.tile<8x32xf32> -> !tessera_tile.tile<32xf32>
    tessera_tile.store %row, %y[%j] [32] : !tessera_tile.tile<32xf32>, !tessera_tile.tensor<?xf32>
  }
  tessera_tile.return
}

// -----
// What a loop carries is no sum: each step needs the one before.
tessera_tile.kernel @recurrence profile "fast" (
    %x: !tessera_tile.tensor<?x32xf32> as "X" dims ["M", "32"] strides [32, 1] stride_div [32, 1] dim_div [1, 32] align 16,
    %y: !tessera_tile.tensor<32xf32> as "Y" dims ["32"] strides [1] stride_div [1] dim_div [32] align 16 written) {
  %m = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x32xf32>
  %c0 = tessera_tile.constant 0 : index
  %c1 = tessera_tile.constant 1 : index
  %n = tessera_tile.constant 32 : index
  %zero = tessera_tile.constant 0.0 : f32
  tessera_tile.grid(%n) by [32] {
  ^bb0(%j: index):
    %start = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<32xf32>
    // CHECK: scf.for
    // CHECK-NOT: scf.for
    %last = scf.for %i = %c0 to %m step %c1 iter_args(%s = %start) -> (!tessera_tile.tile<32xf32>) {
      %row = tessera_tile.load %x[%i, %j] [1, 32] drop [0] : !tessera_tile.tensor<?x32xf32> -> !tessera_tile.tile<32xf32>
      %p = tessera_tile.elementwise "mul"(%s, %row) : (!tessera_tile.tile<32xf32>, !tessera_tile.tile<32xf32>) -> !tessera_tile.tile<32xf32>
      %t = tessera_tile.elementwise "add"(%p, %row) : (!tessera_tile.tile<32xf32>, !tessera_tile.tile<32xf32>) -> !tessera_tile.tile<32xf32>
      scf.yield %t : !tessera_tile.tile<32xf32>
    }
    tessera_tile.store %last, %y[%j] [32] : !tessera_tile.tile<32xf32>, !tessera_tile.tensor<32xf32>
  }
  tessera_tile.return
}
