// RUN: canonicalize-gather-to-slice canonicalize-dead-code

// saxpy by linear_id: masked accesses at offset + 0, 1, 2, … become bounded slices without a mask.
tessera_tile.kernel @saxpy profile "fast" (
    %x: !tessera_tile.tensor<?xf32> as "x" dims ["N"] strides [1] stride_div [1] dim_div [1],
    %y: !tessera_tile.tensor<?xf32> as "y" dims ["N"] strides [1] stride_div [1] dim_div [1] written) {
  %n = tessera_tile.dim %x[0] : !tessera_tile.tensor<?xf32>
  %m = tessera_tile.dim %y[0] : !tessera_tile.tensor<?xf32>
  // CHECK: tessera_tile.grid
  // CHECK-NEXT: ([[OFFSET:%\w+]]: index)
  tessera_tile.grid(%n) by [1024] {
  ^bb0(%offset: index):
    %lane = tessera_tile.arange : !tessera_tile.tile<1024xi32>
    %wide = tessera_tile.cast %lane : !tessera_tile.tile<1024xi32> -> !tessera_tile.tile<1024xindex>
    %start = tessera_tile.splat %offset : index -> !tessera_tile.tile<1024xindex>
    %i = tessera_tile.elementwise "add"(%start, %wide) : (!tessera_tile.tile<1024xindex>, !tessera_tile.tile<1024xindex>) -> !tessera_tile.tile<1024xindex>
    %limit = tessera_tile.splat %n : index -> !tessera_tile.tile<1024xindex>
    %inside = tessera_tile.elementwise "lt"(%i, %limit) : (!tessera_tile.tile<1024xindex>, !tessera_tile.tile<1024xindex>) -> !tessera_tile.tile<1024xi1>
    // CHECK-NEXT: [[V:%\w+]] = tessera_tile.load %x[[[OFFSET]]] [1024] : !tessera_tile.tensor<?xf32>
    %v = tessera_tile.gather %x[%i] mask %inside : !tessera_tile.tile<1024xi1> : !tessera_tile.tensor<?xf32>[!tessera_tile.tile<1024xindex>] -> !tessera_tile.tile<1024xf32>
    %limit2 = tessera_tile.splat %m : index -> !tessera_tile.tile<1024xindex>
    %inside2 = tessera_tile.elementwise "gt"(%limit2, %i) : (!tessera_tile.tile<1024xindex>, !tessera_tile.tile<1024xindex>) -> !tessera_tile.tile<1024xi1>
    // CHECK-NEXT: tessera_tile.store [[V]], %y[[[OFFSET]]] [1024] :
    tessera_tile.scatter %v, %y[%i] mask %inside2 : !tessera_tile.tile<1024xi1> : !tessera_tile.tile<1024xf32>, !tessera_tile.tensor<?xf32>[!tessera_tile.tile<1024xindex>]
  }
  tessera_tile.return %y : !tessera_tile.tensor<?xf32>
}

// -----
// The size of another dimension is no bound, so that mask stays; the part of an `and` that is none stays, too.
tessera_tile.kernel @masks profile "fast" (
    %x: !tessera_tile.tensor<128xf32> as "x" dims ["128"] strides [1] stride_div [1] dim_div [1],
    %k: i64 as "k") {
  %lane = tessera_tile.arange : !tessera_tile.tile<256xi64>
  %s = tessera_tile.splat %k : i64 -> !tessera_tile.tile<256xi64>
  %i = tessera_tile.elementwise "add"(%lane, %s) : (!tessera_tile.tile<256xi64>, !tessera_tile.tile<256xi64>) -> !tessera_tile.tile<256xi64>
  // CHECK: [[FEW:%\w+]] = tessera_tile.elementwise "lt"
  %few = tessera_tile.elementwise "lt"(%i, %s) : (!tessera_tile.tile<256xi64>, !tessera_tile.tile<256xi64>) -> !tessera_tile.tile<256xi1>
  %c128 = tessera_tile.constant 128 : i64
  %size = tessera_tile.splat %c128 : i64 -> !tessera_tile.tile<256xi64>
  %bound = tessera_tile.elementwise "lt"(%i, %size) : (!tessera_tile.tile<256xi64>, !tessera_tile.tile<256xi64>) -> !tessera_tile.tile<256xi1>
  %both = tessera_tile.elementwise "and"(%bound, %few) : (!tessera_tile.tile<256xi1>, !tessera_tile.tile<256xi1>) -> !tessera_tile.tile<256xi1>
  // CHECK: [[AT:%\w+]] = tessera_tile.cast %{{\w+}} : i64 -> index
  // CHECK-NEXT: tessera_tile.load %x[[[AT]]] [256] mask [[FEW]]
  %v = tessera_tile.gather %x[%i] mask %few : !tessera_tile.tile<256xi1> : !tessera_tile.tensor<128xf32>[!tessera_tile.tile<256xi64>] -> !tessera_tile.tile<256xf32>
  // CHECK: tessera_tile.load %x[%{{\w+}}] [256] mask [[FEW]]
  %w = tessera_tile.gather %x[%i] mask %both : !tessera_tile.tile<256xi1> : !tessera_tile.tensor<128xf32>[!tessera_tile.tile<256xi64>] -> !tessera_tile.tile<256xf32>
  tessera_tile.print "{} {}", %v, %w : !tessera_tile.tile<256xf32>, !tessera_tile.tile<256xf32>
  tessera_tile.return
}

// -----
// One row of a matrix: the index of the row is a splat.
tessera_tile.kernel @row profile "fast" (
    %x: !tessera_tile.tensor<?x?xf32> as "x" dims ["M", "N"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1],
    %row: i32 as "row") {
  %lane = tessera_tile.arange : !tessera_tile.tile<64xi32>
  %r = tessera_tile.splat %row : i32 -> !tessera_tile.tile<64xi32>
  // CHECK: [[ROW:%\w+]] = tessera_tile.cast %{{\w+}} : i32 -> index
  // CHECK: [[ZERO:%\w+]] = tessera_tile.constant 0 : index
  // CHECK: tessera_tile.load %x[[[ROW]], [[ZERO]]] [1, 64] drop [0]
  %v = tessera_tile.gather %x[%r, %lane] : !tessera_tile.tensor<?x?xf32>[!tessera_tile.tile<64xi32>, !tessera_tile.tile<64xi32>] -> !tessera_tile.tile<64xf32>
  tessera_tile.print "{}", %v : !tessera_tile.tile<64xf32>
  tessera_tile.return
}

// -----
// Not contiguous, unsigned (where counting may start anew) or narrowed: the gather stays.
tessera_tile.kernel @others profile "fast" (
    %x: !tessera_tile.tensor<?xf32> as "x" dims ["N"] strides [1] stride_div [1] dim_div [1]) {
  %lane = tessera_tile.arange : !tessera_tile.tile<64xi32>
  %twice = tessera_tile.elementwise "add"(%lane, %lane) : (!tessera_tile.tile<64xi32>, !tessera_tile.tile<64xi32>) -> !tessera_tile.tile<64xi32>
  // CHECK: tessera_tile.gather
  %a = tessera_tile.gather %x[%twice] : !tessera_tile.tensor<?xf32>[!tessera_tile.tile<64xi32>] -> !tessera_tile.tile<64xf32>
  %u = tessera_tile.arange : !tessera_tile.tile<64xui8>
  // CHECK: tessera_tile.gather
  %b = tessera_tile.gather %x[%u] : !tessera_tile.tensor<?xf32>[!tessera_tile.tile<64xui8>] -> !tessera_tile.tile<64xf32>
  %long = tessera_tile.arange : !tessera_tile.tile<256xi32>
  %narrow = tessera_tile.cast %long : !tessera_tile.tile<256xi32> -> !tessera_tile.tile<256xi8>
  // CHECK: tessera_tile.gather
  %c = tessera_tile.gather %x[%narrow] : !tessera_tile.tensor<?xf32>[!tessera_tile.tile<256xi8>] -> !tessera_tile.tile<256xf32>
  tessera_tile.print "{} {}", %a, %b : !tessera_tile.tile<64xf32>, !tessera_tile.tile<64xf32>
  tessera_tile.print "{}", %c : !tessera_tile.tile<256xf32>
  tessera_tile.return
}

// -----
// A dimension's name has one size, so the bound may be read from another tensor; other names are no bound.
tessera_tile.kernel @names profile "fast" (
    %x: !tessera_tile.tensor<?xf32> as "x" dims ["N"] strides [1] stride_div [1] dim_div [1],
    %y: !tessera_tile.tensor<?xf32> as "y" dims ["N"] strides [1] stride_div [1] dim_div [1],
    %z: !tessera_tile.tensor<?xf32> as "z" dims ["K"] strides [1] stride_div [1] dim_div [1]) {
  %n = tessera_tile.dim %x[0] : !tessera_tile.tensor<?xf32>
  %i = tessera_tile.arange : !tessera_tile.tile<64xindex>
  %limit = tessera_tile.splat %n : index -> !tessera_tile.tile<64xindex>
  // CHECK: [[INSIDE:%\w+]] = tessera_tile.elementwise "lt"
  %inside = tessera_tile.elementwise "lt"(%i, %limit) : (!tessera_tile.tile<64xindex>, !tessera_tile.tile<64xindex>) -> !tessera_tile.tile<64xi1>
  // CHECK: tessera_tile.load %y[%{{\w+}}] [64] : !tessera_tile.tensor<?xf32>
  %v = tessera_tile.gather %y[%i] mask %inside : !tessera_tile.tile<64xi1> : !tessera_tile.tensor<?xf32>[!tessera_tile.tile<64xindex>] -> !tessera_tile.tile<64xf32>
  // CHECK: tessera_tile.load %z[%{{\w+}}] [64] mask [[INSIDE]]
  %w = tessera_tile.gather %z[%i] mask %inside : !tessera_tile.tile<64xi1> : !tessera_tile.tensor<?xf32>[!tessera_tile.tile<64xindex>] -> !tessera_tile.tile<64xf32>
  tessera_tile.print "{} {}", %v, %w : !tessera_tile.tile<64xf32>, !tessera_tile.tile<64xf32>
  tessera_tile.return
}

// -----
// A sum of 32 bits may wrap: its numbers are negative then, and are left out. A second sum could bring them back.
tessera_tile.kernel @wraps profile "fast" (
    %x: !tessera_tile.tensor<?xf32> as "x" dims ["N"] strides [1] stride_div [1] dim_div [1],
    %s: i32 as "s") {
  %lane = tessera_tile.arange : !tessera_tile.tile<64xi32>
  %start = tessera_tile.splat %s : i32 -> !tessera_tile.tile<64xi32>
  // CHECK: [[AT:%\w+]] = tessera_tile.elementwise "add"
  %i = tessera_tile.elementwise "add"(%lane, %start) : (!tessera_tile.tile<64xi32>, !tessera_tile.tile<64xi32>) -> !tessera_tile.tile<64xi32>
  // CHECK: [[KEPT:%\w+]] = tessera_tile.elementwise "ge"([[AT]],
  // CHECK: tessera_tile.load %x[%{{\w+}}] [64] mask [[KEPT]]
  %v = tessera_tile.gather %x[%i] : !tessera_tile.tensor<?xf32>[!tessera_tile.tile<64xi32>] -> !tessera_tile.tile<64xf32>
  %again = tessera_tile.elementwise "add"(%i, %start) : (!tessera_tile.tile<64xi32>, !tessera_tile.tile<64xi32>) -> !tessera_tile.tile<64xi32>
  // CHECK: tessera_tile.gather
  %w = tessera_tile.gather %x[%again] : !tessera_tile.tensor<?xf32>[!tessera_tile.tile<64xi32>] -> !tessera_tile.tile<64xf32>
  tessera_tile.print "{} {}", %v, %w : !tessera_tile.tile<64xf32>, !tessera_tile.tile<64xf32>
  tessera_tile.return
}
