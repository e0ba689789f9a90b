// RUN: schedule-widen-programs

// Eight rows of 128 columns are 4 KB: programs take four times as many columns.
tessera_tile.kernel @columns profile "fast" (
    %x: !tessera_tile.tensor<?x?xf32> as "X" dims ["M", "N"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16,
    %y: !tessera_tile.tensor<?xf32> as "Y" dims ["N"] strides [1] stride_div [1] dim_div [1] align 16 written) {
  %n = tessera_tile.dim %x[1] : !tessera_tile.tensor<?x?xf32>
  %c0 = tessera_tile.constant 0 : index
  %two = tessera_tile.constant 2.0 : f32
  // CHECK: tessera_tile.grid({{.*}}) by [512] {
  tessera_tile.grid(%n) by [128] {
  ^bb0(%j: index):
    // CHECK: tessera_tile.load {{.*}} [8, 512] : !tessera_tile.tensor<?x?xf32> -> !tessera_tile.tile<8x512xf32>
    %rows = tessera_tile.load %x[%c0, %j] [8, 128] : !tessera_tile.tensor<?x?xf32> -> !tessera_tile.tile<8x128xf32>
    // CHECK: tessera_tile.reduce "sum" {{.*}} -> !tessera_tile.tile<512xf32>
    %sum = tessera_tile.reduce "sum" %rows axis 0 : !tessera_tile.tile<8x128xf32> -> !tessera_tile.tile<128xf32>
    // CHECK: tessera_tile.splat {{.*}} -> !tessera_tile.tile<512xf32>
    %twos = tessera_tile.splat %two : f32 -> !tessera_tile.tile<128xf32>
    %twice = tessera_tile.elementwise "mul"(%sum, %twos) : (!tessera_tile.tile<128xf32>, !tessera_tile.tile<128xf32>) -> !tessera_tile.tile<128xf32>
    // CHECK: tessera_tile.store {{.*}} [512]
    tessera_tile.store %twice, %y[%j] [128] : !tessera_tile.tile<128xf32>, !tessera_tile.tensor<?xf32>
  }
  // CHECK: tessera_notes.widen = ["tiles are 4 times as long along dimension 0 of the grid"]
  tessera_tile.return
}

// -----
// A tensor that goes on where the grid ends could be written behind it.
tessera_tile.kernel @part profile "fast" (
    %x: !tessera_tile.tensor<?x?xf32> as "X" dims ["M", "N"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16,
    %y: !tessera_tile.tensor<?xf32> as "Y" dims ["K"] strides [1] stride_div [1] dim_div [1] align 16 written) {
  %n = tessera_tile.dim %x[1] : !tessera_tile.tensor<?x?xf32>
  %c0 = tessera_tile.constant 0 : index
  // CHECK: tessera_tile.grid({{.*}}) by [128] {
  tessera_tile.grid(%n) by [128] {
  ^bb0(%j: index):
    %rows = tessera_tile.load %x[%c0, %j] [8, 128] : !tessera_tile.tensor<?x?xf32> -> !tessera_tile.tile<8x128xf32>
    %sum = tessera_tile.reduce "sum" %rows axis 0 : !tessera_tile.tile<8x128xf32> -> !tessera_tile.tile<128xf32>
    tessera_tile.store %sum, %y[%j] [128] : !tessera_tile.tile<128xf32>, !tessera_tile.tensor<?xf32>
  }
  tessera_tile.return
}

// -----
// A bias that is the same in all programs: an element's place in its tile matters.
tessera_tile.kernel @biased profile "fast" (
    %x: !tessera_tile.tensor<?x?xf32> as "X" dims ["M", "N"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16,
    %b: !tessera_tile.tensor<128xf32> as "B" dims ["128"] strides [1] stride_div [1] dim_div [128] align 16,
    %y: !tessera_tile.tensor<?xf32> as "Y" dims ["N"] strides [1] stride_div [1] dim_div [1] align 16 written) {
  %n = tessera_tile.dim %x[1] : !tessera_tile.tensor<?x?xf32>
  %c0 = tessera_tile.constant 0 : index
  // CHECK: tessera_tile.grid({{.*}}) by [128] {
  tessera_tile.grid(%n) by [128] {
  ^bb0(%j: index):
    %rows = tessera_tile.load %x[%c0, %j] [8, 128] : !tessera_tile.tensor<?x?xf32> -> !tessera_tile.tile<8x128xf32>
    %sum = tessera_tile.reduce "sum" %rows axis 0 : !tessera_tile.tile<8x128xf32> -> !tessera_tile.tile<128xf32>
    %bias = tessera_tile.load %b[%c0] [128] : !tessera_tile.tensor<128xf32> -> !tessera_tile.tile<128xf32>
    %both = tessera_tile.elementwise "add"(%sum, %bias) : (!tessera_tile.tile<128xf32>, !tessera_tile.tile<128xf32>) -> !tessera_tile.tile<128xf32>
    tessera_tile.store %both, %y[%j] [128] : !tessera_tile.tile<128xf32>, !tessera_tile.tensor<?xf32>
  }
  tessera_tile.return
}

// -----
// A dimension that is reduced itself.
tessera_tile.kernel @rows profile "fast" (
    %x: !tessera_tile.tensor<?xf32> as "X" dims ["N"] strides [1] stride_div [1] dim_div [1] align 16,
    %y: !tessera_tile.tensor<?xf32> as "Y" dims ["N"] strides [1] stride_div [1] dim_div [1] align 16 written) {
  %n = tessera_tile.dim %x[0] : !tessera_tile.tensor<?xf32>
  // CHECK: tessera_tile.grid({{.*}}) by [128] {
  tessera_tile.grid(%n) by [128] {
  ^bb0(%j: index):
    %row = tessera_tile.load %x[%j] [128] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<128xf32>
    %sum = tessera_tile.reduce "max" %row axis 0 : !tessera_tile.tile<128xf32> -> f32
    %sums = tessera_tile.splat %sum : f32 -> !tessera_tile.tile<128xf32>
    %less = tessera_tile.elementwise "sub"(%row, %sums) : (!tessera_tile.tile<128xf32>, !tessera_tile.tile<128xf32>) -> !tessera_tile.tile<128xf32>
    tessera_tile.store %less, %y[%j] [128] : !tessera_tile.tile<128xf32>, !tessera_tile.tensor<?xf32>
  }
  tessera_tile.return
}
