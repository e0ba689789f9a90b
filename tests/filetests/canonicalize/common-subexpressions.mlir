// RUN: canonicalize-common-subexpressions

// The same value once; operands of commutative functions in any order; not out of a region.
tessera_tile.kernel @same profile "fast" (%x: f32 as "x", %y: f32 as "y", %c: i1 as "c") {
  // CHECK: [[A:%\w+]] = tessera_tile.elementwise "mul"
  // CHECK-NEXT: [[C:%\w+]] = tessera_tile.elementwise "sub"
  // CHECK-NEXT: [[D:%\w+]] = tessera_tile.elementwise "sub"
  %a = tessera_tile.elementwise "mul"(%x, %y) : (f32, f32) -> f32
  %b = tessera_tile.elementwise "mul"(%y, %x) : (f32, f32) -> f32
  %d = tessera_tile.elementwise "sub"(%x, %y) : (f32, f32) -> f32
  %e = tessera_tile.elementwise "sub"(%y, %x) : (f32, f32) -> f32
  // CHECK-NEXT: print "{} {} {} {}", [[A]], [[A]], [[C]], [[D]]
  tessera_tile.print "{} {} {} {}", %a, %b, %d, %e : f32, f32, f32, f32
  // CHECK-NEXT: scf.if
  scf.if %c {
    // CHECK-NEXT: print "{}", [[A]]
    %f = tessera_tile.elementwise "mul"(%x, %y) : (f32, f32) -> f32
    tessera_tile.print "{}", %f : f32
    // CHECK-NEXT: [[G:%\w+]] = tessera_tile.elementwise "exp"
    %g = tessera_tile.elementwise "exp"(%x) : (f32) -> f32
    tessera_tile.print "{}", %g : f32
  }
  // CHECK: [[H:%\w+]] = tessera_tile.elementwise "exp"
  // CHECK-NEXT: print "{}", [[H]]
  %h = tessera_tile.elementwise "exp"(%x) : (f32) -> f32
  tessera_tile.print "{}", %h : f32
  tessera_tile.return
}

// -----
// What reads memory is not a pure value: the second load, and an mma on a buffer that was written, stay.
tessera_tile.kernel @memory profile "fast" (
    %x: !tessera_tile.tensor<?xf32> as "x" dims ["N"] strides [1] stride_div [1] dim_div [1] written,
    %acc: f32 as "acc") {
  %c0 = tessera_tile.constant 0 : index
  // CHECK: tessera_tile.load
  %a = tessera_tile.load %x[%c0] [8] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<8xf32>
  %b = tessera_tile.elementwise "exp"(%a) : (!tessera_tile.tile<8xf32>) -> !tessera_tile.tile<8xf32>
  tessera_tile.store %b, %x[%c0] [8] : !tessera_tile.tile<8xf32>, !tessera_tile.tensor<?xf32>
  // CHECK: tessera_tile.load
  %c = tessera_tile.load %x[%c0] [8] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<8xf32>
  tessera_tile.print "{}", %c : !tessera_tile.tile<8xf32>
  %s = tessera_tile.alloc_shared : !tessera_tile.shared<8x8xf32, "none", [0, 1]>
  %t = tessera_tile.alloc_shared : !tessera_tile.shared<8x8xf32, "none", [0, 1]>
  %z = tessera_tile.splat %acc : f32 -> !tessera_tile.tile<8x8xf32>
  // CHECK: tessera_tile.mma
  %m = tessera_tile.mma %s, %s, %z compute "f32" : !tessera_tile.shared<8x8xf32, "none", [0, 1]>, !tessera_tile.shared<8x8xf32, "none", [0, 1]>, !tessera_tile.tile<8x8xf32> -> !tessera_tile.tile<8x8xf32>
  tessera_tile.shared_store %m, %s : !tessera_tile.tile<8x8xf32>, !tessera_tile.shared<8x8xf32, "none", [0, 1]>
  // CHECK: tessera_tile.mma
  %n = tessera_tile.mma %s, %s, %z compute "f32" : !tessera_tile.shared<8x8xf32, "none", [0, 1]>, !tessera_tile.shared<8x8xf32, "none", [0, 1]>, !tessera_tile.tile<8x8xf32> -> !tessera_tile.tile<8x8xf32>
  tessera_tile.print "{}", %n : !tessera_tile.tile<8x8xf32>
  tessera_tile.return
}
