// RUN: canonicalize-fold-constants canonicalize-dead-code

// Arithmetic on constants, and the static size of a dimension.
tessera_tile.kernel @sizes profile "fast" (
    %x: !tessera_tile.tensor<128xf32> as "x" dims ["128"] strides [1] stride_div [1] dim_div [1] written) {
  %n = tessera_tile.dim %x[0] : !tessera_tile.tensor<128xf32>
  %63 = tessera_tile.constant 63 : index
  %64 = tessera_tile.constant 64 : index
  %sum = tessera_tile.elementwise "add"(%n, %63) : (index, index) -> index
  %blocks = tessera_tile.elementwise "floordiv"(%sum, %64) : (index, index) -> index
  // CHECK: [[BLOCKS:%\w+]] = tessera_tile.constant 2 : index
  // CHECK-NEXT: tessera_tile.grid([[BLOCKS]]) by [1]
  tessera_tile.grid(%blocks) by [1] {
  ^bb0(%i: index):
  }
  // CHECK-NOT: elementwise
  tessera_tile.return
}

// -----
// Folding rounds as running does: bf16 arithmetic rounds once, casts truncate, -7 // 2 is -4.
tessera_tile.kernel @numbers profile "fast" (
    %x: !tessera_tile.tensor<?xf32> as "x" dims ["N"] strides [1] stride_div [1] dim_div [1] written) {
  %a = tessera_tile.constant 1.0 : bf16
  %b = tessera_tile.constant 0.00390625 : bf16
  %c = tessera_tile.elementwise "add"(%a, %b) : (bf16, bf16) -> bf16
  // CHECK: tessera_tile.constant 1.000000e+00 : bf16
  tessera_tile.print "{}", %c : bf16
  %d = tessera_tile.constant -2.75 : f32
  %e = tessera_tile.cast %d : f32 -> i32
  // CHECK: tessera_tile.constant -2 : i32
  tessera_tile.print "{}", %e : i32
  %f = tessera_tile.constant -7 : i32
  %g = tessera_tile.constant 2 : i32
  %h = tessera_tile.elementwise "floordiv"(%f, %g) : (i32, i32) -> i32
  // CHECK: tessera_tile.constant -4 : i32
  tessera_tile.print "{}", %h : i32
  %k = tessera_tile.elementwise "lt"(%f, %g) : (i32, i32) -> i1
  // CHECK: tessera_tile.constant true
  tessera_tile.print "{}", %k : i1
  tessera_tile.return
}

// -----
// An integer divided by zero is 0, and so is the remainder.
tessera_tile.kernel @by_zero profile "fast" () {
  %one = tessera_tile.constant 1 : i32
  %zero = tessera_tile.constant 0 : i32
  // CHECK: tessera_tile.constant 0 : i32
  // CHECK-NEXT: tessera_tile.print
  %m = tessera_tile.elementwise "mod"(%one, %zero) : (i32, i32) -> i32
  tessera_tile.print "{}", %m : i32
  tessera_tile.return
}

// -----
// A known condition selects; constants of a chain of integer additions meet, those of floats do not.
tessera_tile.kernel @chains profile "fast" (%i: i32 as "i", %x: f32 as "x") {
  %true = tessera_tile.constant true
  %three = tessera_tile.constant 3 : i32
  %four = tessera_tile.constant 4 : i32
  %a = tessera_tile.elementwise "add"(%three, %i) : (i32, i32) -> i32
  %b = tessera_tile.elementwise "add"(%a, %four) : (i32, i32) -> i32
  %c = tessera_tile.elementwise "select"(%true, %b, %i) : (i1, i32, i32) -> i32
  // CHECK: [[SEVEN:%\w+]] = tessera_tile.constant 7 : i32
  // CHECK-NEXT: [[SUM:%\w+]] = tessera_tile.elementwise "add"(%{{\w+}}, [[SEVEN]]) : (i32, i32) -> i32
  // CHECK: print "{}", [[SUM]]
  tessera_tile.print "{}", %c : i32
  %tenth = tessera_tile.constant 0.1 : f32
  %d = tessera_tile.elementwise "add"(%x, %tenth) : (f32, f32) -> f32
  // CHECK: elementwise "add"
  // CHECK: elementwise "add"
  %e = tessera_tile.elementwise "add"(%d, %tenth) : (f32, f32) -> f32
  tessera_tile.print "{}", %e : f32
  tessera_tile.return
}
