// RUN: canonicalize-simplify-control-flow canonicalize-dead-code

// A branch whose condition is known, and a loop of one trip.
tessera_tile.kernel @known profile "fast" (%a: f32 as "a", %b: f32 as "b") {
  %false = tessera_tile.constant false
  %c0 = tessera_tile.constant 0 : index
  %c8 = tessera_tile.constant 8 : index
  %r = scf.if %false -> (f32) {
    scf.yield %a : f32
  } else {
    scf.yield %b : f32
  }
  %s = scf.for %i = %c0 to %c8 step %c8 iter_args(%acc = %r) -> (f32) {
    %n = tessera_tile.elementwise "add"(%acc, %a) : (f32, f32) -> f32
    tessera_tile.print "{}", %i : index
    scf.yield %n : f32
  }
  %t = scf.for %i = %c8 to %c8 step %c8 iter_args(%acc = %s) -> (f32) {
    %n = tessera_tile.elementwise "mul"(%acc, %acc) : (f32, f32) -> f32
    scf.yield %n : f32
  }
  // CHECK: [[A:%\w+]]: f32
  // CHECK: [[B:%\w+]]: f32
  // CHECK-NEXT: [[C0:%\w+]] = tessera_tile.constant 0 : index
  // CHECK-NEXT: [[N:%\w+]] = tessera_tile.elementwise "add"([[B]], [[A]])
  // CHECK-NEXT: print "{}", [[C0]]
  // CHECK-NEXT: print "{}", [[N]]
  tessera_tile.print "{}", %t : f32
  tessera_tile.return
}

// -----
// A value that every trip passes on, and one that nobody reads, are no longer carried.
tessera_tile.kernel @carried profile "fast" (%a: f32 as "a", %n: index as "n") {
  %c0 = tessera_tile.constant 0 : index
  %c1 = tessera_tile.constant 1 : index
  // CHECK: [[A:%\w+]]: f32
  // CHECK: scf.for %{{\w+}} = %{{\w+}} to %{{\w+}} step %{{\w+}} iter_args([[X:%\w+]] = [[A]]) -> (f32) {
  // CHECK-NEXT: [[Y:%\w+]] = tessera_tile.elementwise "add"([[X]], [[A]])
  // CHECK-NEXT: scf.yield [[Y]] : f32
  %r, %s, %t = scf.for %i = %c0 to %n step %c1 iter_args(%x = %a, %y = %a, %z = %a) -> (f32, f32, f32) {
    %next = tessera_tile.elementwise "add"(%x, %y) : (f32, f32) -> f32
    scf.yield %next, %y, %next : f32, f32, f32
  }
  // CHECK: print "{} {}", %{{\w+}}, [[A]]
  tessera_tile.print "{} {}", %r, %s : f32, f32
  tessera_tile.return
}
