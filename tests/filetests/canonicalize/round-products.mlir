// RUN: canonicalize-round-products

// Loaded scores may be masks; products of matrices are none, unless one is added.
tessera_tile.kernel @weights profile "fast" (%x: !tessera_tile.tensor<?xf32> as "x" dims ["S"] strides [1] stride_div [1] dim_div [1] align 4,
    %by: f32 as "by") {
  %size = tessera_tile.dim %x[0] : !tessera_tile.tensor<?xf32>
  tessera_tile.grid(%size) by [128] {
  ^bb0(%n: index):
    %s = tessera_tile.load %x[%n] [128] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<128xf32>
    %a = tessera_tile.reshape %s : !tessera_tile.tile<128xf32> -> !tessera_tile.tile<8x16xf32>
    %t = tessera_tile.splat %by : f32 -> !tessera_tile.tile<16x8xf32>
    %bys = tessera_tile.splat %by : f32 -> !tessera_tile.tile<8x16xf32>
    %p = tessera_tile.elementwise "mul"(%a, %bys) : (!tessera_tile.tile<8x16xf32>, !tessera_tile.tile<8x16xf32>) -> !tessera_tile.tile<8x16xf32>
    %top = tessera_tile.reduce "max" %p axis 1 : !tessera_tile.tile<8x16xf32> -> !tessera_tile.tile<8xf32>
    %row = tessera_tile.reshape %top : !tessera_tile.tile<8xf32> -> !tessera_tile.tile<8x1xf32>
    %rows = tessera_tile.broadcast %row : !tessera_tile.tile<8x1xf32> -> !tessera_tile.tile<8x16xf32>
    // CHECK: [[P:%\w+]] = tessera_tile.elementwise "rounded_mul"(%a, %bys)
    // CHECK: tessera_tile.elementwise "sub"([[P]], %rows)
    %d = tessera_tile.elementwise "sub"(%p, %rows) : (!tessera_tile.tile<8x16xf32>, !tessera_tile.tile<8x16xf32>) -> !tessera_tile.tile<8x16xf32>
    %e = tessera_tile.elementwise "exp"(%d) : (!tessera_tile.tile<8x16xf32>) -> !tessera_tile.tile<8x16xf32>
    %bs = tessera_tile.splat %by : f32 -> !tessera_tile.tile<8x8xf32>
    %zero = tessera_tile.constant 0.0 : f32
    %zeros = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<8x8xf32>
    %m = tessera_tile.mma %a, %t, %zeros compute "f32" : !tessera_tile.tile<8x16xf32>, !tessera_tile.tile<16x8xf32>, !tessera_tile.tile<8x8xf32> -> !tessera_tile.tile<8x8xf32>
    // CHECK: [[Q:%\w+]] = tessera_tile.elementwise "mul"(%m, %bs)
    %q = tessera_tile.elementwise "mul"(%m, %bs) : (!tessera_tile.tile<8x8xf32>, !tessera_tile.tile<8x8xf32>) -> !tessera_tile.tile<8x8xf32>
    // CHECK: tessera_tile.elementwise "sub"([[Q]], %bs)
    %f = tessera_tile.elementwise "sub"(%q, %bs) : (!tessera_tile.tile<8x8xf32>, !tessera_tile.tile<8x8xf32>) -> !tessera_tile.tile<8x8xf32>
    %g = tessera_tile.elementwise "exp"(%f) : (!tessera_tile.tile<8x8xf32>) -> !tessera_tile.tile<8x8xf32>
    tessera_tile.print "{}", %e : !tessera_tile.tile<8x16xf32>
    tessera_tile.print "{}", %g : !tessera_tile.tile<8x8xf32>
  }
  tessera_tile.return
}
