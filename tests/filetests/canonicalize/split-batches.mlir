// RUN: canonicalize-split-batches canonicalize-dead-code

// A sum of products that a loop carries is one for each member, and so are the loads and the store.
tessera_tile.kernel @carried profile "fast" (%a: !tessera_tile.tensor<?x?x?xf32> as "a" dims ["b", "m", "k"] strides [-1, -1, 1] stride_div [1, 1, 1] dim_div [1, 1, 1] align 16, %w: !tessera_tile.tensor<?x?xf32> as "w" dims ["k", "n"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16, %c: !tessera_tile.tensor<?x?x?xf32> as "c" dims ["b", "m", "n"] strides [-1, -1, 1] stride_div [1, 1, 1] dim_div [1, 1, 1] align 16 written) {
  %zero = tessera_tile.constant 0 : index
  %step = tessera_tile.constant 8 : index
  %end = tessera_tile.dim %a[2] : !tessera_tile.tensor<?x?x?xf32>
  %f = tessera_tile.constant 0.0 : f32
  %start = tessera_tile.splat %f : f32 -> !tessera_tile.tile<2x16x4xf32>
  // CHECK: @carried
  // CHECK: [[S0:%\w+]] = tessera_tile.splat {{.*}} -> !tessera_tile.tile<16x4xf32>
  // CHECK: [[S1:%\w+]] = tessera_tile.splat {{.*}} -> !tessera_tile.tile<16x4xf32>
  // CHECK: scf.for {{.*}} iter_args([[T0:%\w+]] = [[S0]], [[T1:%\w+]] = [[S1]]) -> (!tessera_tile.tile<16x4xf32>, !tessera_tile.tile<16x4xf32>)
  %sum = scf.for %k = %zero to %end step %step iter_args(%acc = %start) -> (!tessera_tile.tile<2x16x4xf32>) {
    // CHECK: [[A0:%\w+]] = tessera_tile.load {{.*}} [1, 16, 8] drop [0]
    // CHECK: [[A1:%\w+]] = tessera_tile.load {{.*}} [1, 16, 8] drop [0]
    %x = tessera_tile.load %a[%zero, %zero, %k] [2, 16, 8] : !tessera_tile.tensor<?x?x?xf32> -> !tessera_tile.tile<2x16x8xf32>
    // CHECK: [[B:%\w+]] = tessera_tile.load {{.*}} [8, 4]
    %y = tessera_tile.load %w[%k, %zero] [8, 4] : !tessera_tile.tensor<?x?xf32> -> !tessera_tile.tile<8x4xf32>
    // CHECK: [[P0:%\w+]] = tessera_tile.mma [[A0]], [[B]], [[T0]]
    // CHECK: [[P1:%\w+]] = tessera_tile.mma [[A1]], [[B]], [[T1]]
    // CHECK: scf.yield [[P0]], [[P1]]
    %p = tessera_tile.mma %x, %y, %acc compute "f32" : !tessera_tile.tile<2x16x8xf32>, !tessera_tile.tile<8x4xf32>, !tessera_tile.tile<2x16x4xf32> -> !tessera_tile.tile<2x16x4xf32>
    scf.yield %p : !tessera_tile.tile<2x16x4xf32>
  }
  // CHECK: tessera_tile.store {{.*}} [1, 16, 4] drop [0]
  // CHECK: tessera_tile.store {{.*}} [1, 16, 4] drop [0]
  // CHECK-NOT: tessera_tile.store
  tessera_tile.store %sum, %c[%zero, %zero, %zero] [2, 16, 4] : !tessera_tile.tile<2x16x4xf32>, !tessera_tile.tensor<?x?x?xf32>
  tessera_tile.return
}

// -----
// What else reads a batch is given it put together; rows of products are reduced one member at a time.
tessera_tile.kernel @read profile "fast" (%a: !tessera_tile.tensor<?x?x?xf32> as "a" dims ["b", "m", "k"] strides [-1, -1, 1] stride_div [1, 1, 1] dim_div [1, 1, 1] align 16) {
  %zero = tessera_tile.constant 0 : index
  %f = tessera_tile.constant 0.0 : f32
  %start = tessera_tile.splat %f : f32 -> !tessera_tile.tile<2x8x8xf32>
  %x = tessera_tile.load %a[%zero, %zero, %zero] [2, 8, 8] : !tessera_tile.tensor<?x?x?xf32> -> !tessera_tile.tile<2x8x8xf32>
  // CHECK: @read
  // CHECK: [[P0:%\w+]] = tessera_tile.mma {{.*}} -> !tessera_tile.tile<8x8xf32>
  // CHECK: [[P1:%\w+]] = tessera_tile.mma {{.*}} -> !tessera_tile.tile<8x8xf32>
  // CHECK: tessera_tile.reduce "sum" [[P0]] axis 1
  // CHECK: tessera_tile.reduce "sum" [[P1]] axis 1
  // CHECK: [[W:%\w+]] = tessera_tile.elementwise "select"({{.*}}) : {{.*}} -> !tessera_tile.tile<2x8xf32>
  // CHECK: print "{}", [[W]]
  %p = tessera_tile.mma %x, %x, %start compute "f32" : !tessera_tile.tile<2x8x8xf32>, !tessera_tile.tile<2x8x8xf32>, !tessera_tile.tile<2x8x8xf32> -> !tessera_tile.tile<2x8x8xf32>
  %r = tessera_tile.reduce "sum" %p axis 2 : !tessera_tile.tile<2x8x8xf32> -> !tessera_tile.tile<2x8xf32>
  tessera_tile.print "{}", %r : !tessera_tile.tile<2x8xf32>
  tessera_tile.return
}

// -----
// Products of matrices stay as they are.
tessera_tile.kernel @matrices profile "fast" (%a: !tessera_tile.tensor<?x?xf32> as "a" dims ["m", "k"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16) {
  %zero = tessera_tile.constant 0 : index
  %f = tessera_tile.constant 0.0 : f32
  %start = tessera_tile.splat %f : f32 -> !tessera_tile.tile<8x8xf32>
  // CHECK: @matrices
  // CHECK: tessera_tile.mma {{.*}}, {{.*}}, {{.*}} -> !tessera_tile.tile<8x8xf32>
  // CHECK-NOT: tessera_tile.mma
  %x = tessera_tile.load %a[%zero, %zero] [8, 8] : !tessera_tile.tensor<?x?xf32> -> !tessera_tile.tile<8x8xf32>
  %p = tessera_tile.mma %x, %x, %start compute "f32" : !tessera_tile.tile<8x8xf32>, !tessera_tile.tile<8x8xf32>, !tessera_tile.tile<8x8xf32> -> !tessera_tile.tile<8x8xf32>
  tessera_tile.print "{}", %p : !tessera_tile.tile<8x8xf32>
  tessera_tile.return
}
