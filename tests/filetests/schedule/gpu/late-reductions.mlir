// RUN: schedule-late-reductions

// A loop carries what the upper parts of its tiles give together; what follows it reduces that.
tessera_tile.kernel @columns profile "fast" (
    %x: !tessera_tile.tensor<?x?xf32> as "X" dims ["M", "N"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16,
    %y: !tessera_tile.tensor<?xf32> as "Y" dims ["N"] strides [1] stride_div [1] dim_div [1] align 16 written) {
  %m = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x?xf32>
  %n = tessera_tile.dim %x[1] : !tessera_tile.tensor<?x?xf32>
  %c0 = tessera_tile.constant 0 : index
  %c64 = tessera_tile.constant 64 : index
  %zero = tessera_tile.constant 0.0 : f32
  tessera_tile.grid(%n) by [128] {
  ^bb0(%j: index):
    %start = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<128xf32>
    // CHECK: [[SUMS:%\w+]] = scf.for {{.*}} iter_args([[PART:%\w+]] = {{%\w+}}) -> (!tessera_tile.tile<16x128xf32>) {
    // CHECK: [[ROWS:%\w+]] = tessera_tile.reduce "sum" {{.*}} axis 0 : !tessera_tile.tile<4x16x128xf32>
    // CHECK: tessera_tile.elementwise "add"([[PART]], [[ROWS]])
    %sum = scf.for %i = %c0 to %m step %c64 iter_args(%s = %start) -> (!tessera_tile.tile<128xf32>) {
      %rows = tessera_tile.load %x[%i, %j] [64, 128] : !tessera_tile.tensor<?x?xf32> -> !tessera_tile.tile<64x128xf32>
      %row = tessera_tile.reduce "sum" %rows axis 0 : !tessera_tile.tile<64x128xf32> -> !tessera_tile.tile<128xf32>
      %t = tessera_tile.elementwise "add"(%s, %row) : (!tessera_tile.tile<128xf32>, !tessera_tile.tile<128xf32>) -> !tessera_tile.tile<128xf32>
      scf.yield %t : !tessera_tile.tile<128xf32>
    }
    // CHECK: [[SUM:%\w+]] = tessera_tile.reduce "sum" [[SUMS]] axis 0 : !tessera_tile.tile<16x128xf32>
    // CHECK: tessera_tile.store [[SUM]]
    tessera_tile.store %sum, %y[%j] [128] : !tessera_tile.tile<128xf32>, !tessera_tile.tensor<?xf32>
  }
  // CHECK: tessera_notes.late_reductions
  tessera_tile.return
}

// -----
// Under strict the order of a sum is given; a maximum has none. What it starts from is combined last.
tessera_tile.kernel @both profile "strict" (
    %x: !tessera_tile.tensor<?x?xf32> as "X" dims ["M", "N"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16,
    %y: !tessera_tile.tensor<?xf32> as "Y" dims ["N"] strides [1] stride_div [1] dim_div [1] align 16 written) {
  %m = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x?xf32>
  %n = tessera_tile.dim %x[1] : !tessera_tile.tensor<?x?xf32>
  %c0 = tessera_tile.constant 0 : index
  %c8 = tessera_tile.constant 8 : index
  %zero = tessera_tile.constant 0.0 : f32
  tessera_tile.grid(%n) by [16] {
  ^bb0(%j: index):
    // CHECK: [[START:%\w+]] = tessera_tile.splat {{%\w+}} : f32 -> !tessera_tile.tile<16xf32>
    %start = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<16xf32>
    // CHECK: {{%\w+}}, [[TILES:%\w+]] = scf.for {{.*}} -> (!tessera_tile.tile<16xf32>, !tessera_tile.tile<8x16xf32>) {
    %sum, %most = scf.for %i = %c0 to %m step %c8 iter_args(%s = %start, %l = %start) -> (!tessera_tile.tile<16xf32>, !tessera_tile.tile<16xf32>) {
      %rows = tessera_tile.load %x[%i, %j] [8, 16] : !tessera_tile.tensor<?x?xf32> -> !tessera_tile.tile<8x16xf32>
      // CHECK: tessera_tile.reduce "sum"
      %row = tessera_tile.reduce "sum" %rows axis 0 : !tessera_tile.tile<8x16xf32> -> !tessera_tile.tile<16xf32>
      %t = tessera_tile.elementwise "add"(%s, %row) : (!tessera_tile.tile<16xf32>, !tessera_tile.tile<16xf32>) -> !tessera_tile.tile<16xf32>
      %high = tessera_tile.reduce "max" %rows axis 0 : !tessera_tile.tile<8x16xf32> -> !tessera_tile.tile<16xf32>
      %u = tessera_tile.elementwise "maximum"(%l, %high) : (!tessera_tile.tile<16xf32>, !tessera_tile.tile<16xf32>) -> !tessera_tile.tile<16xf32>
      scf.yield %t, %u : !tessera_tile.tile<16xf32>, !tessera_tile.tile<16xf32>
    }
    // CHECK: [[MOST:%\w+]] = tessera_tile.reduce "max" [[TILES]] axis 0
    // CHECK: tessera_tile.elementwise "maximum"([[START]], [[MOST]])
    %both = tessera_tile.elementwise "add"(%sum, %most) : (!tessera_tile.tile<16xf32>, !tessera_tile.tile<16xf32>) -> !tessera_tile.tile<16xf32>
    tessera_tile.store %both, %y[%j] [16] : !tessera_tile.tile<16xf32>, !tessera_tile.tensor<?xf32>
  }
  tessera_tile.return
}
