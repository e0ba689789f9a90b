// RUN: canonicalize-merge-loads

// A row that is loaded twice is loaded once, and what is computed of it; a store to other memory changes nothing.
tessera_tile.kernel @twice profile "fast" (
    %x: !tessera_tile.tensor<?xf32> as "X" dims ["N"] strides [1] stride_div [1] dim_div [1],
    %y: !tessera_tile.tensor<?xf32> as "Y" dims ["N"] strides [1] stride_div [1] dim_div [1] written) {
  %c0 = tessera_tile.constant 0 : index
  // CHECK: [[A:%\w+]] = tessera_tile.load %x[%c0] [8]
  // CHECK-NEXT: [[E:%\w+]] = tessera_tile.elementwise "exp"([[A]])
  // CHECK-NEXT: store [[E]]
  // CHECK-NEXT: store [[E]]
  %a = tessera_tile.load %x[%c0] [8] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<8xf32>
  %b = tessera_tile.elementwise "exp"(%a) : (!tessera_tile.tile<8xf32>) -> !tessera_tile.tile<8xf32>
  tessera_tile.store %b, %y[%c0] [8] : !tessera_tile.tile<8xf32>, !tessera_tile.tensor<?xf32>
  %zero = tessera_tile.constant 0 : index
  %c = tessera_tile.load %x[%zero] [8] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<8xf32>
  %d = tessera_tile.elementwise "exp"(%c) : (!tessera_tile.tile<8xf32>) -> !tessera_tile.tile<8xf32>
  tessera_tile.store %d, %y[%c0] [8] : !tessera_tile.tile<8xf32>, !tessera_tile.tensor<?xf32>
  // Another box, and another value outside of the tensor, are other loads.
  // CHECK: tessera_tile.load %x[%c0] [16]
  // CHECK: tessera_tile.load %x[%c0] [8] fill
  %e = tessera_tile.load %x[%c0] [16] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<16xf32>
  %one = tessera_tile.constant 1.0 : f32
  %f = tessera_tile.load %x[%c0] [8] fill %one : f32 : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<8xf32>
  tessera_tile.print "{}", %e : !tessera_tile.tile<16xf32>
  tessera_tile.print "{}", %f : !tessera_tile.tile<8xf32>
  tessera_tile.return
}

// -----
// A store to the same memory may change it, through an argument that starts at the same address too.
tessera_tile.kernel @written profile "fast" (
    %x: !tessera_tile.tensor<?xf32> as "X" dims ["N"] strides [1] stride_div [1] dim_div [1],
    %y: !tessera_tile.tensor<?xf32> as "Y" dims ["N"] strides [1] stride_div [1] dim_div [1] written alias 0) {
  %c0 = tessera_tile.constant 0 : index
  // CHECK: [[A:%\w+]] = tessera_tile.load %x[%c0] [8]
  // CHECK: store [[A]]
  // CHECK: [[B:%\w+]] = tessera_tile.load %x[%c0] [8]
  // CHECK: print "{}", [[B]]
  %a = tessera_tile.load %x[%c0] [8] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<8xf32>
  tessera_tile.store %a, %y[%c0] [8] : !tessera_tile.tile<8xf32>, !tessera_tile.tensor<?xf32>
  %b = tessera_tile.load %x[%c0] [8] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<8xf32>
  tessera_tile.print "{}", %b : !tessera_tile.tile<8xf32>
  tessera_tile.return
}

// -----
// What a loop writes counts in it from the start; a loop that only reads has the tile from before.
tessera_tile.kernel @loops profile "fast" (
    %x: !tessera_tile.tensor<?xf32> as "X" dims ["N"] strides [1] stride_div [1] dim_div [1],
    %y: !tessera_tile.tensor<?xf32> as "Y" dims ["N"] strides [1] stride_div [1] dim_div [1] written,
    %n: index as "n") {
  %c0 = tessera_tile.constant 0 : index
  %c8 = tessera_tile.constant 8 : index
  // CHECK: [[X:%\w+]] = tessera_tile.load %x[%c0] [8]
  // CHECK: [[Y:%\w+]] = tessera_tile.load %y[%c0] [8]
  %a = tessera_tile.load %x[%c0] [8] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<8xf32>
  %b = tessera_tile.load %y[%c0] [8] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<8xf32>
  tessera_tile.store %b, %y[%c8] [8] : !tessera_tile.tile<8xf32>, !tessera_tile.tensor<?xf32>
  scf.for %k = %c0 to %n step %c8 {
    // CHECK: [[Z:%\w+]] = tessera_tile.load %y[%c0] [8]
    // CHECK: "add"([[X]], [[Z]])
    %c = tessera_tile.load %x[%c0] [8] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<8xf32>
    %d = tessera_tile.load %y[%c0] [8] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<8xf32>
    %e = tessera_tile.elementwise "add"(%c, %d) : (!tessera_tile.tile<8xf32>, !tessera_tile.tile<8xf32>) -> !tessera_tile.tile<8xf32>
    tessera_tile.store %e, %y[%k] [8] : !tessera_tile.tile<8xf32>, !tessera_tile.tensor<?xf32>
  }
  // CHECK: [[W:%\w+]] = tessera_tile.load %y[%c0] [8]
  // CHECK: print "{} {}", [[X]], [[W]]
  %f = tessera_tile.load %x[%c0] [8] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<8xf32>
  %g = tessera_tile.load %y[%c0] [8] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<8xf32>
  tessera_tile.print "{} {}", %f, %g : !tessera_tile.tile<8xf32>, !tessera_tile.tile<8xf32>
  tessera_tile.return
}

// -----
// A fence lets other programs write anywhere.
tessera_tile.kernel @ordered profile "fast" (
    %x: !tessera_tile.tensor<?xf32> as "X" dims ["N"] strides [1] stride_div [1] dim_div [1]) {
  %c0 = tessera_tile.constant 0 : index
  // CHECK: [[A:%\w+]] = tessera_tile.load %x[%c0] [8]
  // CHECK: [[B:%\w+]] = tessera_tile.load %x[%c0] [8]
  // CHECK: print "{} {}", [[A]], [[B]]
  %a = tessera_tile.load %x[%c0] [8] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<8xf32>
  tessera_tile.fence "acquire" scope "device"
  %b = tessera_tile.load %x[%c0] [8] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<8xf32>
  tessera_tile.print "{} {}", %a, %b : !tessera_tile.tile<8xf32>, !tessera_tile.tile<8xf32>
  tessera_tile.return
}
