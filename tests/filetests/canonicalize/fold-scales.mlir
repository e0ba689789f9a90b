// RUN: canonicalize-fold-scales

// Scores by which a softmax weighs keys: the mask and the maximum see them unscaled, the exponential takes the factor.
tessera_tile.kernel @softmax profile "fast" (%x: !tessera_tile.tensor<?xf32> as "x" dims ["S"] strides [1] stride_div [1] dim_div [1] align 4) {
  %size = tessera_tile.dim %x[0] : !tessera_tile.tensor<?xf32>
  tessera_tile.grid(%size) by [128] {
  ^bb0(%n: index):
    %zero = tessera_tile.constant 0 : index
    %s = tessera_tile.load %x[%n] [128] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<128xf32>
    %q = tessera_tile.reshape %s : !tessera_tile.tile<128xf32> -> !tessera_tile.tile<8x16xf32>
    %half = tessera_tile.constant 0.5 : f32
    %keys = tessera_tile.splat %half : f32 -> !tessera_tile.tile<16x16xf32>
    %start = tessera_tile.splat %half : f32 -> !tessera_tile.tile<8x16xf32>
    %a = tessera_tile.mma %q, %keys, %start compute "f32" : !tessera_tile.tile<8x16xf32>, !tessera_tile.tile<16x16xf32>, !tessera_tile.tile<8x16xf32> -> !tessera_tile.tile<8x16xf32>
    %m = tessera_tile.load %x[%zero] [8] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<8xf32>
    %yes = tessera_tile.elementwise "lt"(%a, %a) : (!tessera_tile.tile<8x16xf32>, !tessera_tile.tile<8x16xf32>) -> !tessera_tile.tile<8x16xi1>
    %c = tessera_tile.constant 0.125 : f32
    %cs = tessera_tile.splat %c : f32 -> !tessera_tile.tile<8x16xf32>
    %low = tessera_tile.constant -8.0 : f32
    %lows = tessera_tile.splat %low : f32 -> !tessera_tile.tile<8x16xf32>
    %y = tessera_tile.elementwise "mul"(%a, %cs) : (!tessera_tile.tile<8x16xf32>, !tessera_tile.tile<8x16xf32>) -> !tessera_tile.tile<8x16xf32>
    // CHECK: [[LOW:%\w+]] = tessera_tile.constant -6.400000e+01 : f32
    // CHECK: [[LOWS:%\w+]] = tessera_tile.splat [[LOW]]
    // CHECK: [[Z:%\w+]] = tessera_tile.elementwise "select"(%yes, %a, [[LOWS]])
    %z = tessera_tile.elementwise "select"(%yes, %y, %lows) : (!tessera_tile.tile<8x16xi1>, !tessera_tile.tile<8x16xf32>, !tessera_tile.tile<8x16xf32>) -> !tessera_tile.tile<8x16xf32>
    // CHECK: [[R:%\w+]] = tessera_tile.reduce "max" [[Z]] axis 1
    // CHECK: [[C:%\w+]] = tessera_tile.constant 1.250000e-01 : f32
    // CHECK: [[CS:%\w+]] = tessera_tile.splat [[C]] : f32 -> !tessera_tile.tile<8xf32>
    // CHECK: [[TOP:%\w+]] = tessera_tile.elementwise "mul"([[R]], [[CS]])
    %top = tessera_tile.reduce "max" %z axis 1 : !tessera_tile.tile<8x16xf32> -> !tessera_tile.tile<8xf32>
    %row = tessera_tile.reshape %m : !tessera_tile.tile<8xf32> -> !tessera_tile.tile<8x1xf32>
    %rows = tessera_tile.broadcast %row : !tessera_tile.tile<8x1xf32> -> !tessera_tile.tile<8x16xf32>
    %d = tessera_tile.elementwise "sub"(%z, %rows) : (!tessera_tile.tile<8x16xf32>, !tessera_tile.tile<8x16xf32>) -> !tessera_tile.tile<8x16xf32>
    // CHECK: constant 0.180336878 : f32
    // CHECK: [[P:%\w+]] = tessera_tile.elementwise "mul"([[Z]],
    // CHECK: constant 1.44269502 : f32
    // CHECK: [[B:%\w+]] = tessera_tile.elementwise "mul"(%row,
    // CHECK: [[BS:%\w+]] = tessera_tile.broadcast [[B]]
    // CHECK: [[D:%\w+]] = tessera_tile.elementwise "sub"([[P]], [[BS]])
    // CHECK: tessera_tile.elementwise "exp2"([[D]])
    // CHECK-NOT: "exp"
    %p = tessera_tile.elementwise "exp"(%d) : (!tessera_tile.tile<8x16xf32>) -> !tessera_tile.tile<8x16xf32>
    tessera_tile.print "{}", %top : !tessera_tile.tile<8xf32>
    tessera_tile.print "{}", %p : !tessera_tile.tile<8x16xf32>
  }
  tessera_tile.return
}

// A product that something else reads stays, and so does what is made of it.
tessera_tile.kernel @read profile "fast" (%x: !tessera_tile.tensor<?xf32> as "x" dims ["S"] strides [1] stride_div [1] dim_div [1] align 4) {
  %size = tessera_tile.dim %x[0] : !tessera_tile.tensor<?xf32>
  tessera_tile.grid(%size) by [128] {
  ^bb0(%n: index):
    %s = tessera_tile.load %x[%n] [128] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<128xf32>
    %c = tessera_tile.constant 0.125 : f32
    %cs = tessera_tile.splat %c : f32 -> !tessera_tile.tile<128xf32>
    // CHECK: [[Y:%\w+]] = tessera_tile.elementwise "mul"
    // CHECK: reduce "max" [[Y]] axis 0
    // CHECK: "exp"([[Y]])
    %y = tessera_tile.elementwise "mul"(%s, %cs) : (!tessera_tile.tile<128xf32>, !tessera_tile.tile<128xf32>) -> !tessera_tile.tile<128xf32>
    %top = tessera_tile.reduce "max" %y axis 0 : !tessera_tile.tile<128xf32> -> f32
    %p = tessera_tile.elementwise "exp"(%y) : (!tessera_tile.tile<128xf32>) -> !tessera_tile.tile<128xf32>
    tessera_tile.print "{} {} {}", %top, %p, %y : f32, !tessera_tile.tile<128xf32>, !tessera_tile.tile<128xf32>
  }
  tessera_tile.return
}

// Other profiles compute what is written.
tessera_tile.kernel @strict profile "strict" (%x: !tessera_tile.tensor<?xf32> as "x" dims ["S"] strides [1] stride_div [1] dim_div [1] align 4) {
  %size = tessera_tile.dim %x[0] : !tessera_tile.tensor<?xf32>
  tessera_tile.grid(%size) by [128] {
  ^bb0(%n: index):
    %s = tessera_tile.load %x[%n] [128] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<128xf32>
    %c = tessera_tile.constant 0.125 : f32
    %cs = tessera_tile.splat %c : f32 -> !tessera_tile.tile<128xf32>
    %y = tessera_tile.elementwise "mul"(%s, %cs) : (!tessera_tile.tile<128xf32>, !tessera_tile.tile<128xf32>) -> !tessera_tile.tile<128xf32>
    // CHECK-LABEL: @strict
    // CHECK: "exp"(
    %p = tessera_tile.elementwise "exp"(%y) : (!tessera_tile.tile<128xf32>) -> !tessera_tile.tile<128xf32>
    tessera_tile.print "{}", %p : !tessera_tile.tile<128xf32>
  }
  tessera_tile.return
}

// Rows that are hidden wholly have differences of 0: numbers that stand for infinity keep the exact difference.
tessera_tile.kernel @hidden profile "fast" (%x: !tessera_tile.tensor<?xf32> as "x" dims ["S"] strides [1] stride_div [1] dim_div [1] align 4) {
  %size = tessera_tile.dim %x[0] : !tessera_tile.tensor<?xf32>
  tessera_tile.grid(%size) by [128] {
  ^bb0(%n: index):
    %s = tessera_tile.load %x[%n] [128] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<128xf32>
    %yes = tessera_tile.elementwise "lt"(%s, %s) : (!tessera_tile.tile<128xf32>, !tessera_tile.tile<128xf32>) -> !tessera_tile.tile<128xi1>
    %c = tessera_tile.constant 0.125 : f32
    %cs = tessera_tile.splat %c : f32 -> !tessera_tile.tile<128xf32>
    %low = tessera_tile.constant -1.0e9 : f32
    %lows = tessera_tile.splat %low : f32 -> !tessera_tile.tile<128xf32>
    // CHECK-LABEL: @hidden
    // CHECK-NOT: exp2
    // CHECK: "exp"(
    // CHECK: "exp"(
    %y = tessera_tile.elementwise "mul"(%s, %cs) : (!tessera_tile.tile<128xf32>, !tessera_tile.tile<128xf32>) -> !tessera_tile.tile<128xf32>
    %z = tessera_tile.elementwise "select"(%yes, %y, %lows) : (!tessera_tile.tile<128xi1>, !tessera_tile.tile<128xf32>, !tessera_tile.tile<128xf32>) -> !tessera_tile.tile<128xf32>
    %top = tessera_tile.reduce "max" %z axis 0 : !tessera_tile.tile<128xf32> -> f32
    %tops = tessera_tile.splat %top : f32 -> !tessera_tile.tile<128xf32>
    %d = tessera_tile.elementwise "sub"(%z, %tops) : (!tessera_tile.tile<128xf32>, !tessera_tile.tile<128xf32>) -> !tessera_tile.tile<128xf32>
    %p = tessera_tile.elementwise "exp"(%d) : (!tessera_tile.tile<128xf32>) -> !tessera_tile.tile<128xf32>
    tessera_tile.print "{}", %p : !tessera_tile.tile<128xf32>
    %w = tessera_tile.elementwise "select"(%yes, %s, %lows) : (!tessera_tile.tile<128xi1>, !tessera_tile.tile<128xf32>, !tessera_tile.tile<128xf32>) -> !tessera_tile.tile<128xf32>
    %v = tessera_tile.elementwise "mul"(%w, %cs) : (!tessera_tile.tile<128xf32>, !tessera_tile.tile<128xf32>) -> !tessera_tile.tile<128xf32>
    %e = tessera_tile.elementwise "sub"(%v, %tops) : (!tessera_tile.tile<128xf32>, !tessera_tile.tile<128xf32>) -> !tessera_tile.tile<128xf32>
    %q = tessera_tile.elementwise "exp"(%e) : (!tessera_tile.tile<128xf32>) -> !tessera_tile.tile<128xf32>
    tessera_tile.print "{}", %q : !tessera_tile.tile<128xf32>
  }
  tessera_tile.return
}
