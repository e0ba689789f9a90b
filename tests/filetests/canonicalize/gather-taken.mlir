// RUN: canonicalize-gather-taken canonicalize-dead-code

// Few elements of a long row are computed of what is loaded again at their places; those outside are zero.
// CHECK-LABEL: @few
// CHECK-NOT: tessera_tile.load
// CHECK: tessera_tile.gather {{.*}} -> !tessera_tile.tile<4xf32>
// CHECK: tessera_tile.elementwise "exp"({{.*}}) : (!tessera_tile.tile<4xf32>)
// CHECK: tessera_tile.elementwise "ge"
// CHECK: tessera_tile.elementwise "lt"
// CHECK: tessera_tile.elementwise "select"
// CHECK-NOT: tessera_tile.take
tessera_tile.kernel @few profile "fast" (
    %x: !tessera_tile.tensor<?x9000xf32> as "X" dims ["M", "9000"] strides [-1, 1] stride_div [4, 1] dim_div [1, 1] align 16,
    %i: index as "i") {
  %zero = tessera_tile.constant 0 : index
  %row = tessera_tile.load %x[%i, %zero] [1, 9000] drop [0] : !tessera_tile.tensor<?x9000xf32> -> !tessera_tile.tile<9000xf32>
  %y = tessera_tile.elementwise "exp"(%row) : (!tessera_tile.tile<9000xf32>) -> !tessera_tile.tile<9000xf32>
  %at = tessera_tile.arange : !tessera_tile.tile<4xi32>
  %some = tessera_tile.take %y[%at] axis 0 : !tessera_tile.tile<9000xf32>[!tessera_tile.tile<4xi32>] -> !tessera_tile.tile<4xf32>
  tessera_tile.print "{}", %some : !tessera_tile.tile<4xf32>
  tessera_tile.return
}

// -----
// Memory that has been written since is not read again.
// CHECK-LABEL: @written
// CHECK-NOT: tessera_tile.gather
// CHECK: tessera_tile.take
tessera_tile.kernel @written profile "fast" (
    %x: !tessera_tile.tensor<?x9000xf32> as "X" dims ["M", "9000"] strides [-1, 1] stride_div [4, 1] dim_div [1, 1] align 16 written,
    %i: index as "i") {
  %zero = tessera_tile.constant 0 : index
  %row = tessera_tile.load %x[%i, %zero] [1, 9000] drop [0] : !tessera_tile.tensor<?x9000xf32> -> !tessera_tile.tile<9000xf32>
  %at = tessera_tile.arange : !tessera_tile.tile<4xi32>
  %new = tessera_tile.elementwise "neg"(%row) : (!tessera_tile.tile<9000xf32>) -> !tessera_tile.tile<9000xf32>
  tessera_tile.store %new, %x[%i, %zero] [1, 9000] drop [0] : !tessera_tile.tile<9000xf32>, !tessera_tile.tensor<?x9000xf32>
  %some = tessera_tile.take %row[%at] axis 0 : !tessera_tile.tile<9000xf32>[!tessera_tile.tile<4xi32>] -> !tessera_tile.tile<4xf32>
  tessera_tile.print "{}", %some : !tessera_tile.tile<4xf32>
  tessera_tile.return
}
