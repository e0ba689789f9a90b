// RUN: canonicalize-remove-noops canonicalize-dead-code

// x * 1, x + (-0.0) and x - 0.0 are x; x + 0.0 is not, for -0.0.
tessera_tile.kernel @floats profile "fast" (%x: f32 as "x") {
  %one = tessera_tile.constant 1.0 : f32
  %minus = tessera_tile.constant -0.0 : f32
  %plus = tessera_tile.constant 0.0 : f32
  %a = tessera_tile.elementwise "mul"(%one, %x) : (f32, f32) -> f32
  %b = tessera_tile.elementwise "add"(%a, %minus) : (f32, f32) -> f32
  %c = tessera_tile.elementwise "sub"(%b, %plus) : (f32, f32) -> f32
  %d = tessera_tile.elementwise "div"(%c, %one) : (f32, f32) -> f32
  %e = tessera_tile.elementwise "neg"(%d) : (f32) -> f32
  %f = tessera_tile.elementwise "neg"(%e) : (f32) -> f32
  // CHECK: @floats profile "fast" (
  // CHECK-NEXT: [[X:%\w+]]: f32
  // CHECK-NEXT: [[ZERO:%\w+]] = tessera_tile.constant 0.000000e+00
  // CHECK-NEXT: tessera_tile.print "{}", [[X]] : f32
  tessera_tile.print "{}", %f : f32
  // CHECK-NEXT: [[SUM:%\w+]] = tessera_tile.elementwise "add"([[X]], [[ZERO]])
  %g = tessera_tile.elementwise "add"(%x, %plus) : (f32, f32) -> f32
  // CHECK-NEXT: tessera_tile.elementwise "mul"([[SUM]], [[ZERO]])
  %h = tessera_tile.elementwise "mul"(%g, %plus) : (f32, f32) -> f32
  tessera_tile.print "{}", %h : f32
  tessera_tile.return
}

// -----
// On integers x + 0, x * 0, x % 1, x - x vanish, on tiles of one value as well.
tessera_tile.kernel @integers profile "fast" (%i: i32 as "i") {
  %zero = tessera_tile.constant 0 : i32
  %one = tessera_tile.constant 1 : i32
  %zeros = tessera_tile.splat %zero : i32 -> !tessera_tile.tile<8xi32>
  %tile = tessera_tile.arange : !tessera_tile.tile<8xi32>
  %a = tessera_tile.elementwise "add"(%zeros, %tile) : (!tessera_tile.tile<8xi32>, !tessera_tile.tile<8xi32>) -> !tessera_tile.tile<8xi32>
  // CHECK: [[TILE:%\w+]] = tessera_tile.arange
  // CHECK: print "{}", [[TILE]]
  tessera_tile.print "{}", %a : !tessera_tile.tile<8xi32>
  %b = tessera_tile.elementwise "mod"(%i, %one) : (i32, i32) -> i32
  %c = tessera_tile.elementwise "sub"(%i, %i) : (i32, i32) -> i32
  %d = tessera_tile.elementwise "mul"(%i, %zero) : (i32, i32) -> i32
  // CHECK-NOT: elementwise
  tessera_tile.print "{} {} {}", %b, %c, %d : i32, i32, i32
  tessera_tile.return
}

// -----
// Masks and assertions that always hold.
tessera_tile.kernel @masks profile "fast" (
    %x: !tessera_tile.tensor<?xf32> as "x" dims ["N"] strides [1] stride_div [1] dim_div [1] written) {
  %true = tessera_tile.constant true
  %all = tessera_tile.splat %true : i1 -> !tessera_tile.tile<8xi1>
  %zero = tessera_tile.constant 0 : index
  // CHECK: tessera_tile.load %x[%{{\w+}}] [8] :
  %t = tessera_tile.load %x[%zero] [8] mask %all : !tessera_tile.tile<8xi1> : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<8xf32>
  // CHECK-NEXT: tessera_tile.store %{{\w+}}, %x[%{{\w+}}] [8] :
  tessera_tile.store %t, %x[%zero] [8] mask %all : !tessera_tile.tile<8xi1> : !tessera_tile.tile<8xf32>, !tessera_tile.tensor<?xf32>
  // CHECK-NOT: assert
  tessera_tile.assert %all, "holds" : !tessera_tile.tile<8xi1>
  tessera_tile.return
}
