// RUN: canonicalize-share-reciprocals

// A row, or a tile, has one division; a tile whose elements have divisors of their own keeps its divisions.
tessera_tile.kernel @quotients profile "fast" (%x: !tessera_tile.tensor<?xf32> as "x" dims ["S"] strides [1] stride_div [1] dim_div [1] align 4,
    %by: f32 as "by") {
  %size = tessera_tile.dim %x[0] : !tessera_tile.tensor<?xf32>
  tessera_tile.grid(%size) by [128] {
  ^bb0(%n: index):
    %zero = tessera_tile.constant 0 : index
    %s = tessera_tile.load %x[%n] [128] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<128xf32>
    %a = tessera_tile.reshape %s : !tessera_tile.tile<128xf32> -> !tessera_tile.tile<8x16xf32>
    %m = tessera_tile.load %x[%zero] [8] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<8xf32>
    %row = tessera_tile.reshape %m : !tessera_tile.tile<8xf32> -> !tessera_tile.tile<8x1xf32>
    %rows = tessera_tile.broadcast %row : !tessera_tile.tile<8x1xf32> -> !tessera_tile.tile<8x16xf32>
    %bys = tessera_tile.splat %by : f32 -> !tessera_tile.tile<8x16xf32>
    // CHECK: [[ONE:%\w+]] = tessera_tile.constant 1{{[.0e+]*}} : f32
    // CHECK: [[ONES:%\w+]] = tessera_tile.splat [[ONE]] : f32 -> !tessera_tile.tile<8x1xf32>
    // CHECK: [[R:%\w+]] = tessera_tile.elementwise "div"([[ONES]], %row)
    // CHECK: [[RS:%\w+]] = tessera_tile.broadcast [[R]]
    // CHECK: tessera_tile.elementwise "mul"(%a, [[RS]])
    %p = tessera_tile.elementwise "div"(%a, %rows) : (!tessera_tile.tile<8x16xf32>, !tessera_tile.tile<8x16xf32>) -> !tessera_tile.tile<8x16xf32>
    // CHECK: [[S:%\w+]] = tessera_tile.elementwise "div"({{%\w+}}, %by) : (f32, f32) -> f32
    // CHECK: [[SS:%\w+]] = tessera_tile.splat [[S]]
    // CHECK: tessera_tile.elementwise "mul"(%a, [[SS]])
    %q = tessera_tile.elementwise "div"(%a, %bys) : (!tessera_tile.tile<8x16xf32>, !tessera_tile.tile<8x16xf32>) -> !tessera_tile.tile<8x16xf32>
    // CHECK: tessera_tile.elementwise "div"({{%\w+}}, %a)
    %r = tessera_tile.elementwise "div"(%q, %a) : (!tessera_tile.tile<8x16xf32>, !tessera_tile.tile<8x16xf32>) -> !tessera_tile.tile<8x16xf32>
    tessera_tile.print "{} {}", %p, %r : !tessera_tile.tile<8x16xf32>, !tessera_tile.tile<8x16xf32>
  }
  tessera_tile.return
}

// CHECK: profile "fast" divides_exactly
tessera_tile.kernel @exactly profile "fast" divides_exactly (%x: !tessera_tile.tensor<?xf32> as "x" dims ["S"] strides [1] stride_div [1] dim_div [1] align 4,
    %by: f32 as "by") {
  %size = tessera_tile.dim %x[0] : !tessera_tile.tensor<?xf32>
  tessera_tile.grid(%size) by [128] {
  ^bb0(%n: index):
    // CHECK: [[A:%\w+]] = tessera_tile.load
    %a = tessera_tile.load %x[%n] [128] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<128xf32>
    // CHECK: [[BYS:%\w+]] = tessera_tile.splat
    %bys = tessera_tile.splat %by : f32 -> !tessera_tile.tile<128xf32>
    // CHECK: tessera_tile.elementwise "div"([[A]], [[BYS]])
    %q = tessera_tile.elementwise "div"(%a, %bys) : (!tessera_tile.tile<128xf32>, !tessera_tile.tile<128xf32>) -> !tessera_tile.tile<128xf32>
    tessera_tile.print "{}", %q : !tessera_tile.tile<128xf32>
  }
  tessera_tile.return
}
