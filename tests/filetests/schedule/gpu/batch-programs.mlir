// RUN: schedule-batch-programs

// A row of 256 elements is a program: four of them become one, whose tiles have a dimension more. What all rows read is
// read once.
tessera_tile.kernel @rows profile "fast" (
    %x: !tessera_tile.tensor<?x256xf32> as "X" dims ["M", "256"] strides [-1, 1] stride_div [16, 1] dim_div [1, 16] align 16,
    %w: !tessera_tile.tensor<256xf32> as "W" dims ["256"] strides [1] stride_div [1] dim_div [16] align 16,
    %y: !tessera_tile.tensor<?x256xf32> as "Y" dims ["M", "256"] strides [-1, 1] stride_div [16, 1] dim_div [1, 16] align 16 written) {
  %m = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x256xf32>
  // CHECK: tessera_tile.grid({{.*}}) by [4] {
  tessera_tile.grid(%m) by [1] {
  ^bb0(%i: index):
    %zero = tessera_tile.constant 0 : index
    // CHECK: tessera_tile.load {{.*}} [4, 256] : !tessera_tile.tensor<?x256xf32> -> !tessera_tile.tile<4x256xf32>
    %row = tessera_tile.load %x[%i, %zero] [1, 256] drop [0] : !tessera_tile.tensor<?x256xf32> -> !tessera_tile.tile<256xf32>
    // CHECK: tessera_tile.reduce "sum" {{.*}} axis 1 : !tessera_tile.tile<4x256xf32> -> !tessera_tile.tile<4xf32>
    %sum = tessera_tile.reduce "sum" %row axis 0 : !tessera_tile.tile<256xf32> -> f32
    // CHECK: tessera_tile.load {{.*}} [256] : !tessera_tile.tensor<256xf32> -> !tessera_tile.tile<256xf32>
    %weights = tessera_tile.load %w[%zero] [256] : !tessera_tile.tensor<256xf32> -> !tessera_tile.tile<256xf32>
    // CHECK: tessera_tile.reshape {{.*}} : !tessera_tile.tile<4xf32> -> !tessera_tile.tile<4x1xf32>
    // CHECK: tessera_tile.broadcast {{.*}} : !tessera_tile.tile<4x1xf32> -> !tessera_tile.tile<4x256xf32>
    %sums = tessera_tile.splat %sum : f32 -> !tessera_tile.tile<256xf32>
    // CHECK: tessera_tile.broadcast {{.*}} : !tessera_tile.tile<1x256xf32> -> !tessera_tile.tile<4x256xf32>
    %out = tessera_tile.elementwise "mul"(%sums, %weights) : (!tessera_tile.tile<256xf32>, !tessera_tile.tile<256xf32>) -> !tessera_tile.tile<256xf32>
    // CHECK: tessera_tile.store {{.*}} [4, 256] : !tessera_tile.tile<4x256xf32>
    tessera_tile.store %out, %y[%i, %zero] [1, 256] drop [0] : !tessera_tile.tile<256xf32>, !tessera_tile.tensor<?x256xf32>
  }
  // CHECK: tessera_notes.batch = ["4 neighbouring programs of dimension 0 of the grid run as one"]
  tessera_tile.return
}

// -----
// A tensor that goes on where the grid ends is not written behind it: only the programs that exist store.
tessera_tile.kernel @part profile "fast" (
    %x: !tessera_tile.tensor<?xf32> as "X" dims ["M"] strides [1] stride_div [1] dim_div [1] align 16,
    %y: !tessera_tile.tensor<?xf32> as "Y" dims ["N"] strides [1] stride_div [1] dim_div [1] align 16 written) {
  %m = tessera_tile.dim %x[0] : !tessera_tile.tensor<?xf32>
  // CHECK: tessera_tile.grid({{.*}}) by [1024] {
  tessera_tile.grid(%m) by [1] {
  ^bb0(%i: index):
    %v = tessera_tile.load %x[%i] [1] drop [0] : !tessera_tile.tensor<?xf32> -> f32
    // CHECK: tessera_tile.elementwise "lt"
    // CHECK: tessera_tile.scatter {{.*}} mask {{.*}} : !tessera_tile.tile<1024xi1>
    tessera_tile.store %v, %y[%i] [1] drop [0] : f32, !tessera_tile.tensor<?xf32>
  }
  // CHECK: tessera_notes.batch = ["1024 neighbouring programs of dimension 0 of the grid run as one"]
  tessera_tile.return
}

// -----
// Rows of an embedding start where a place says: the places of all elements of 64 of them.
tessera_tile.kernel @embedding profile "fast" (
    %x: !tessera_tile.tensor<?x16xf32> as "X" dims ["R", "16"] strides [-1, 1] stride_div [4, 1] dim_div [1, 16] align 16,
    %p: !tessera_tile.tensor<?xi32> as "P" dims ["M"] strides [1] stride_div [1] dim_div [1] align 16,
    %y: !tessera_tile.tensor<?x16xf32> as "Y" dims ["M", "16"] strides [-1, 1] stride_div [4, 1] dim_div [1, 16] align 16 written) {
  %m = tessera_tile.dim %p[0] : !tessera_tile.tensor<?xi32>
  // CHECK: tessera_tile.grid({{.*}}) by [64] {
  tessera_tile.grid(%m) by [1] {
  ^bb0(%i: index):
    %zero = tessera_tile.constant 0 : index
    // CHECK: tessera_tile.load {{.*}} [64] : !tessera_tile.tensor<?xi32> -> !tessera_tile.tile<64xi32>
    %place = tessera_tile.load %p[%i] [1] drop [0] : !tessera_tile.tensor<?xi32> -> i32
    %row = tessera_tile.cast %place : i32 -> index
    // CHECK: tessera_tile.gather {{.*}} -> !tessera_tile.tile<64x16xf32>
    %v = tessera_tile.load %x[%row, %zero] [1, 16] drop [0] : !tessera_tile.tensor<?x16xf32> -> !tessera_tile.tile<16xf32>
    // CHECK: tessera_tile.store {{.*}} [64, 16] : !tessera_tile.tile<64x16xf32>
    tessera_tile.store %v, %y[%i, %zero] [1, 16] drop [0] : !tessera_tile.tile<16xf32>, !tessera_tile.tensor<?x16xf32>
  }
  tessera_tile.return
}

// -----
// Blocks of a power of two lie one after the other; offsets count programs.
tessera_tile.kernel @blocks profile "fast" (
    %y: !tessera_tile.tensor<?xi32> as "Y" dims ["N"] strides [1] stride_div [1] dim_div [1] align 16 written) {
  %n = tessera_tile.dim %y[0] : !tessera_tile.tensor<?xi32>
  // CHECK: tessera_tile.grid({{.*}}) by [2048] {
  tessera_tile.grid(%n) by [64] {
  ^bb0(%i: index):
    // CHECK: tessera_tile.arange : !tessera_tile.tile<64xi32>
    %places = tessera_tile.arange : !tessera_tile.tile<64xi32>
    // CHECK: tessera_tile.constant 64 : index
    // CHECK: tessera_tile.cast {{.*}} : !tessera_tile.tile<32xindex> -> !tessera_tile.tile<32xi32>
    %first = tessera_tile.cast %i : index -> i32
    %start = tessera_tile.splat %first : i32 -> !tessera_tile.tile<64xi32>
    %all = tessera_tile.elementwise "add"(%places, %start) : (!tessera_tile.tile<64xi32>, !tessera_tile.tile<64xi32>) -> !tessera_tile.tile<64xi32>
    // CHECK: tessera_tile.reshape {{.*}} : !tessera_tile.tile<32x64xi32> -> !tessera_tile.tile<2048xi32>
    // CHECK: tessera_tile.store {{.*}} [2048] : !tessera_tile.tile<2048xi32>
    tessera_tile.store %all, %y[%i] [64] : !tessera_tile.tile<64xi32>, !tessera_tile.tensor<?xi32>
  }
  tessera_tile.return
}

// -----
// Of two sizes that are not known either may be long: batches go along the last one, or, where that has fewer than 32 rows
// and the first has as many, along the first.
tessera_tile.kernel @planes profile "fast" (
    %x: !tessera_tile.tensor<?x?x16xf32> as "X" dims ["A", "B", "16"] strides [-1, -1, 1] stride_div [16, 16, 1] dim_div [1, 1, 16] align 16,
    %y: !tessera_tile.tensor<?x?x16xf32> as "Y" dims ["A", "B", "16"] strides [-1, -1, 1] stride_div [16, 16, 1] dim_div [1, 1, 16] align 16 written) {
  %a = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x?x16xf32>
  %b = tessera_tile.dim %x[1] : !tessera_tile.tensor<?x?x16xf32>
  // CHECK: [[LAST:%.+]] = tessera_tile.elementwise "minimum"
  // CHECK: [[FIRST:%.+]] = tessera_tile.elementwise "minimum"
  // CHECK: [[SHORT:%.+]] = tessera_tile.elementwise "sub"({{.*}}, [[LAST]])
  // CHECK: [[OTHER:%.+]] = tessera_tile.elementwise "mul"([[SHORT]], [[FIRST]])
  // CHECK: [[USUAL:%.+]] = tessera_tile.elementwise "sub"({{.*}}, [[OTHER]])
  // CHECK: tessera_tile.grid({{.*}}) by [1, 64] when [[USUAL]] {
  // CHECK: tessera_tile.grid({{.*}}) by [64, 1] when [[OTHER]] {
  tessera_tile.grid(%a, %b) by [1, 1] {
  ^bb0(%i: index, %j: index):
    %zero = tessera_tile.constant 0 : index
    %v = tessera_tile.load %x[%i, %j, %zero] [1, 1, 16] drop [0, 1] : !tessera_tile.tensor<?x?x16xf32> -> !tessera_tile.tile<16xf32>
    tessera_tile.store %v, %y[%i, %j, %zero] [1, 1, 16] drop [0, 1] : !tessera_tile.tile<16xf32>, !tessera_tile.tensor<?x?x16xf32>
  }
  tessera_tile.return
}

// -----
// Where they are known, batches go along the dimension that has more programs.
tessera_tile.kernel @known profile "fast" (
    %x: !tessera_tile.tensor<4096x4x16xf32> as "X" dims ["4096", "4", "16"] strides [64, 16, 1] stride_div [16, 16, 1] dim_div [16, 4, 16] align 16,
    %y: !tessera_tile.tensor<4096x4x16xf32> as "Y" dims ["4096", "4", "16"] strides [64, 16, 1] stride_div [16, 16, 1] dim_div [16, 4, 16] align 16 written) {
  %a = tessera_tile.constant 4096 : index
  %b = tessera_tile.constant 4 : index
  // CHECK: tessera_tile.grid({{.*}}) by [32, 1] {
  tessera_tile.grid(%a, %b) by [1, 1] {
  ^bb0(%i: index, %j: index):
    %zero = tessera_tile.constant 0 : index
    %v = tessera_tile.load %x[%i, %j, %zero] [1, 1, 16] drop [0, 1] : !tessera_tile.tensor<4096x4x16xf32> -> !tessera_tile.tile<16xf32>
    tessera_tile.store %v, %y[%i, %j, %zero] [1, 1, 16] drop [0, 1] : !tessera_tile.tile<16xf32>, !tessera_tile.tensor<4096x4x16xf32>
  }
  tessera_tile.return
}
