// RUN: canonicalize-loop-invariants

// Arithmetic that no trip changes leaves both loops; a splat stays with its reader; a division that may trap stays.
tessera_tile.kernel @invariant profile "fast" (%x: f32 as "x", %n: index as "n", %d: index as "d") {
  %c0 = tessera_tile.constant 0 : index
  %c1 = tessera_tile.constant 1 : index
  // CHECK: [[E:%\w+]] = tessera_tile.elementwise "exp"
  // CHECK-NEXT: scf.for [[I:%\w+]]
  scf.for %i = %c0 to %n step %c1 {
    // CHECK-NEXT: [[K:%\w+]] = tessera_tile.elementwise "add"([[I]], [[I]])
    // CHECK-NEXT: scf.for [[J:%\w+]]
    scf.for %j = %c0 to %n step %c1 {
      %e = tessera_tile.elementwise "exp"(%x) : (f32) -> f32
      %k = tessera_tile.elementwise "add"(%i, %i) : (index, index) -> index
      // CHECK-NEXT: tessera_tile.elementwise "floordiv"
      %q = tessera_tile.elementwise "floordiv"(%n, %d) : (index, index) -> index
      // CHECK-NEXT: tessera_tile.splat [[E]]
      %s = tessera_tile.splat %e : f32 -> !tessera_tile.tile<8xf32>
      tessera_tile.print "{} {} {}", %s, %k, %q : !tessera_tile.tile<8xf32>, index, index
    }
  }
  tessera_tile.return
}

// -----
// A free op leaves along with what reads it; loads and what depends on the trip stay.
tessera_tile.kernel @together profile "fast" (
    %x: !tessera_tile.tensor<?xf32> as "x" dims ["N"] strides [1] stride_div [1] dim_div [1], %a: f32 as "a") {
  %c0 = tessera_tile.constant 0 : index
  %c8 = tessera_tile.constant 8 : index
  %n = tessera_tile.dim %x[0] : !tessera_tile.tensor<?xf32>
  // CHECK: [[S:%\w+]] = tessera_tile.splat
  // CHECK-NEXT: [[E:%\w+]] = tessera_tile.elementwise "exp"([[S]])
  // CHECK-NEXT: scf.for
  scf.for %i = %c0 to %n step %c8 {
    %s = tessera_tile.splat %a : f32 -> !tessera_tile.tile<8xf32>
    %e = tessera_tile.elementwise "exp"(%s) : (!tessera_tile.tile<8xf32>) -> !tessera_tile.tile<8xf32>
    // CHECK-NEXT: tessera_tile.load
    %t = tessera_tile.load %x[%c0] [8] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<8xf32>
    // CHECK-NEXT: tessera_tile.elementwise "add"
    %u = tessera_tile.elementwise "add"(%t, %e) : (!tessera_tile.tile<8xf32>, !tessera_tile.tile<8xf32>) -> !tessera_tile.tile<8xf32>
    tessera_tile.print "{} {}", %i, %u : index, !tessera_tile.tile<8xf32>
  }
  tessera_tile.return
}

// -----
// A number that no trip may change is loaded once; one of a tensor that is written stays.
tessera_tile.kernel @numbers profile "fast" (
    %x: !tessera_tile.tensor<?xf32> as "x" dims ["N"] strides [1] stride_div [1] dim_div [1],
    %y: !tessera_tile.tensor<?xf32> as "y" dims ["N"] strides [1] stride_div [1] dim_div [1] written) {
  %c0 = tessera_tile.constant 0 : index
  %c8 = tessera_tile.constant 8 : index
  %n = tessera_tile.dim %x[0] : !tessera_tile.tensor<?xf32>
  // CHECK: [[A:%\w+]] = tessera_tile.load %x
  // CHECK-NEXT: scf.for
  scf.for %i = %c0 to %n step %c8 {
    // CHECK-NEXT: [[B:%\w+]] = tessera_tile.load %y
    // CHECK-NEXT: tessera_tile.elementwise "add"([[A]], [[B]])
    %a = tessera_tile.load %x[%c0] [1] drop [0] : !tessera_tile.tensor<?xf32> -> f32
    %b = tessera_tile.load %y[%c0] [1] drop [0] : !tessera_tile.tensor<?xf32> -> f32
    %sum = tessera_tile.elementwise "add"(%a, %b) : (f32, f32) -> f32
    tessera_tile.store %sum, %y[%i] [1] drop [0] : f32, !tessera_tile.tensor<?xf32>
  }
  tessera_tile.return %y : !tessera_tile.tensor<?xf32>
}

// -----
// Other programs may write what an atomic with an order lets a program see.
tessera_tile.kernel @awaited profile "fast" (
    %x: !tessera_tile.tensor<?xi32> as "x" dims ["N"] strides [1] stride_div [1] dim_div [1],
    %f: !tessera_tile.tensor<?xi32> as "f" dims ["N"] strides [1] stride_div [1] dim_div [1] written) {
  %c0 = tessera_tile.constant 0 : index
  %c8 = tessera_tile.constant 8 : index
  %one = tessera_tile.constant 1 : i32
  %at = tessera_tile.constant 0 : i64
  %n = tessera_tile.dim %x[0] : !tessera_tile.tensor<?xi32>
  // CHECK: scf.for
  scf.for %i = %c0 to %n step %c8 {
    // CHECK: tessera_tile.atomic
    // CHECK-NEXT: tessera_tile.load %x
    %old = tessera_tile.atomic "add" %f[%at] value %one : i32 order "acquire" scope "device" : !tessera_tile.tensor<?xi32>[i64] -> i32
    %a = tessera_tile.load %x[%c0] [1] drop [0] : !tessera_tile.tensor<?xi32> -> i32
    tessera_tile.print "{} {}", %old, %a : i32, i32
  }
  tessera_tile.return
}
