// RUN: canonicalize-dead-code

// Loads and arithmetic without readers go, with the loop that holds nothing else; stores and prints stay.
tessera_tile.kernel @unused profile "fast" (
    %x: !tessera_tile.tensor<?xf32> as "x" dims ["N"] strides [1] stride_div [1] dim_div [1] written) {
  %n = tessera_tile.dim %x[0] : !tessera_tile.tensor<?xf32>
  %c0 = tessera_tile.constant 0 : index
  %c8 = tessera_tile.constant 8 : index
  // CHECK: tessera_tile.grid
  tessera_tile.grid(%n) by [8] {
  ^bb0(%i: index):
    // CHECK-NOT: exp
    // CHECK-NOT: scf.for
    // CHECK-NOT: alloc_shared
    %t = tessera_tile.load %x[%i] [8] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<8xf32>
    %e = tessera_tile.elementwise "exp"(%t) : (!tessera_tile.tile<8xf32>) -> !tessera_tile.tile<8xf32>
    %r = scf.for %k = %c0 to %n step %c8 iter_args(%acc = %t) -> (!tessera_tile.tile<8xf32>) {
      %u = tessera_tile.load %x[%k] [8] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<8xf32>
      %s = tessera_tile.elementwise "add"(%acc, %u) : (!tessera_tile.tile<8xf32>, !tessera_tile.tile<8xf32>) -> !tessera_tile.tile<8xf32>
      scf.yield %s : !tessera_tile.tile<8xf32>
    }
    %shared = tessera_tile.alloc_shared : !tessera_tile.shared<8xf32, "none", [0]>
    // CHECK: [[V:%\w+]] = tessera_tile.load
    // CHECK-NEXT: tessera_tile.store [[V]]
    %v = tessera_tile.load %x[%i] [8] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<8xf32>
    tessera_tile.store %v, %x[%i] [8] : !tessera_tile.tile<8xf32>, !tessera_tile.tensor<?xf32>
  }
  tessera_tile.return %x : !tessera_tile.tensor<?xf32>
}

// -----
// A while loop may not end, so it stays; a loop that prints stays.
tessera_tile.kernel @effects profile "fast" (%a: i1 as "a", %n: index as "n") {
  %c0 = tessera_tile.constant 0 : index
  // CHECK: scf.while
  %r = scf.while (%x = %a) : (i1) -> i1 {
    scf.condition(%x) %x : i1
  } do {
  ^bb0(%y: i1):
    scf.yield %y : i1
  }
  // CHECK: scf.for
  // CHECK-NEXT: print
  scf.for %i = %c0 to %n step %n {
    tessera_tile.print "{}", %i : index
  }
  tessera_tile.return
}

// -----
// Carried values that change places for nobody are gone; those that something reads, or that follow from one that is
// read, stay.
tessera_tile.kernel @carried profile "fast" (%n: index as "n") {
  %c0 = tessera_tile.constant 0 : index
  %c1 = tessera_tile.constant 1 : index
  // CHECK: [[A:%\w+]], [[B:%\w+]] = scf.for [[I:%\w+]] = {{.*}} iter_args([[X:%\w+]] = {{%\w+}}, [[Y:%\w+]] = {{%\w+}}) -> (index, index) {
  // CHECK-NEXT: [[Z:%\w+]] = tessera_tile.elementwise "add"([[Y]],
  // CHECK-NEXT: scf.yield [[Y]], [[Z]]
  %a, %b, %c, %d, %e = scf.for %i = %c0 to %n step %c1 iter_args(%x = %c0, %y = %c1, %p = %c0, %q = %c1, %r = %c0) -> (index, index, index, index, index) {
    %z = tessera_tile.elementwise "add"(%y, %c1) : (index, index) -> index
    %s = tessera_tile.elementwise "add"(%r, %x) : (index, index) -> index
    %t = tessera_tile.elementwise "sub"(%q, %p) : (index, index) -> index
    scf.yield %y, %z, %q, %t, %s : index, index, index, index, index
  }
  // CHECK: print
  tessera_tile.print "{}", %a : index
  tessera_tile.return
}
