// RUN: schedule-fit-permutes

// Runs of 8 elements become runs of 64, along the dimension in which tiles are read and that in which they are written.
tessera_tile.kernel @reverse profile "fast" (
    %x: !tessera_tile.tensor<?x?x?xbf16> as "X" dims ["A", "B", "C"] strides [1, -1, -1] stride_div [1, 1, 1] dim_div [1, 1, 1] order [2, 1, 0] align 16,
    %y: !tessera_tile.tensor<?x?x?xbf16> as "Y" dims ["A", "B", "C"] strides [-1, -1, 1] stride_div [1, 1, 1] dim_div [1, 1, 1] align 16 written) {
  %a = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x?x?xbf16>
  %b = tessera_tile.dim %x[1] : !tessera_tile.tensor<?x?x?xbf16>
  %c = tessera_tile.dim %x[2] : !tessera_tile.tensor<?x?x?xbf16>
  // CHECK: [[LEAST:%\d+]] = tessera_tile.constant 48 : index
  // CHECK: elementwise "floordiv"({{.*}}, [[LEAST]])
  // CHECK: tessera_tile.grid({{.*}}) by [64, 1, 64] when {{.*}} {
  // CHECK: tessera_tile.load {{.*}} [64, 1, 64]
  // CHECK: tessera_tile.store {{.*}} [64, 1, 64]
  // CHECK: tessera_notes.permutes = ["blocks of 8x8x8 are moved as 64x1x64 or 64x8x8 or 8x8x64 or 8x8x8, as the sizes of a launch say"]
  // CHECK: tessera_tile.grid({{.*}}) by [64, 8, 8] when {{.*}} {
  // CHECK: tessera_tile.grid({{.*}}) by [8, 8, 64] when {{.*}} {
  // CHECK: tessera_tile.grid({{.*}}) by [8, 8, 8] when {{.*}} {
  tessera_tile.grid(%a, %b, %c) by [8, 8, 8] {
  ^bb0(%i: index, %j: index, %k: index):
    %part = tessera_tile.load %x[%i, %j, %k] [8, 8, 8] : !tessera_tile.tensor<?x?x?xbf16> -> !tessera_tile.tile<8x8x8xbf16>
    tessera_tile.store %part, %y[%i, %j, %k] [8, 8, 8] : !tessera_tile.tile<8x8x8xbf16>, !tessera_tile.tensor<?x?x?xbf16>
  }
  tessera_tile.return
}

// -----
// Where sizes are known, one launch is left: columns of 20 have no run of 32, rows do.
tessera_tile.kernel @known profile "fast" (
    %x: !tessera_tile.tensor<20x999xf32> as "X" dims ["20", "999"] strides [999, 1] stride_div [1, 1] dim_div [1, 1] align 16,
    %y: !tessera_tile.tensor<999x20xf32> as "Y" dims ["999", "20"] strides [20, 1] stride_div [1, 1] dim_div [1, 1] align 16 written) {
  %a = tessera_tile.constant 20 : index
  %b = tessera_tile.constant 999 : index
  // CHECK-NOT: when
  // CHECK: tessera_tile.grid({{.*}}) by [8, 32] {
  // CHECK: tessera_notes.permutes = ["blocks of 8x8 are moved as 8x32"]
  // CHECK-NOT: tessera_tile.grid
  tessera_tile.grid(%a, %b) by [8, 8] {
  ^bb0(%i: index, %j: index):
    %part = tessera_tile.load %x[%i, %j] [8, 8] : !tessera_tile.tensor<20x999xf32> -> !tessera_tile.tile<8x8xf32>
    %turned = tessera_tile.transpose %part [1, 0] : !tessera_tile.tile<8x8xf32> -> !tessera_tile.tile<8x8xf32>
    tessera_tile.store %turned, %y[%j, %i] [8, 8] : !tessera_tile.tile<8x8xf32>, !tessera_tile.tensor<999x20xf32>
  }
  tessera_tile.return
}

// -----
// A block that is longer than a run gives way to the other dimension.
tessera_tile.kernel @wide profile "fast" (
    %x: !tessera_tile.tensor<?x?xf32> as "X" dims ["A", "B"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16,
    %y: !tessera_tile.tensor<?x?xf32> as "Y" dims ["B", "A"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16 written) {
  %a = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x?xf32>
  %b = tessera_tile.dim %x[1] : !tessera_tile.tensor<?x?xf32>
  // CHECK: tessera_tile.grid({{.*}}) by [128, 32] when {{.*}} {
  // CHECK: tessera_tile.grid({{.*}}) by [512, 8] when {{.*}} {
  tessera_tile.grid(%a, %b) by [512, 8] {
  ^bb0(%i: index, %j: index):
    %part = tessera_tile.load %x[%i, %j] [512, 8] : !tessera_tile.tensor<?x?xf32> -> !tessera_tile.tile<512x8xf32>
    %turned = tessera_tile.transpose %part [1, 0] : !tessera_tile.tile<512x8xf32> -> !tessera_tile.tile<8x512xf32>
    tessera_tile.store %turned, %y[%j, %i] [8, 512] : !tessera_tile.tile<8x512xf32>, !tessera_tile.tensor<?x?xf32>
  }
  tessera_tile.return
}

// -----
// Blocks stay where a tensor goes on behind the grid, and where reading and writing go along one dimension.
tessera_tile.kernel @part profile "fast" (
    %x: !tessera_tile.tensor<?x?xf32> as "X" dims ["A", "B"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16,
    %y: !tessera_tile.tensor<?x?xf32> as "Y" dims ["C", "A"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16 written,
    %z: !tessera_tile.tensor<?x?xf32> as "Z" dims ["A", "B"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16 written) {
  %a = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x?xf32>
  %b = tessera_tile.dim %x[1] : !tessera_tile.tensor<?x?xf32>
  // CHECK: tessera_tile.grid({{.*}}) by [8, 8] {
  tessera_tile.grid(%a, %b) by [8, 8] {
  ^bb0(%i: index, %j: index):
    %part = tessera_tile.load %x[%i, %j] [8, 8] : !tessera_tile.tensor<?x?xf32> -> !tessera_tile.tile<8x8xf32>
    %turned = tessera_tile.transpose %part [1, 0] : !tessera_tile.tile<8x8xf32> -> !tessera_tile.tile<8x8xf32>
    tessera_tile.store %turned, %y[%j, %i] [8, 8] : !tessera_tile.tile<8x8xf32>, !tessera_tile.tensor<?x?xf32>
  }
  // CHECK: tessera_tile.grid({{.*}}) by [8, 8] {
  tessera_tile.grid(%a, %b) by [8, 8] {
  ^bb0(%i: index, %j: index):
    %part = tessera_tile.load %x[%i, %j] [8, 8] : !tessera_tile.tensor<?x?xf32> -> !tessera_tile.tile<8x8xf32>
    tessera_tile.store %part, %z[%i, %j] [8, 8] : !tessera_tile.tile<8x8xf32>, !tessera_tile.tensor<?x?xf32>
  }
  tessera_tile.return
}

// -----
// Blocks with whole runs are written in longer ones by calls with enough elements.
tessera_tile.kernel @wide profile "fast" (
    %x: !tessera_tile.tensor<?x?xbf16> as "X" dims ["A", "B"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16,
    %y: !tessera_tile.tensor<?x?xbf16> as "Y" dims ["B", "A"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16 written) {
  // CHECK: [[A:%\w+]] = tessera_tile.dim %x[0]
  // CHECK: [[B:%\w+]] = tessera_tile.dim %x[1]
  %a = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x?xbf16>
  %b = tessera_tile.dim %x[1] : !tessera_tile.tensor<?x?xbf16>
  // CHECK: [[ELEMENTS:%\w+]] = tessera_tile.elementwise "mul"([[A]], [[B]])
  // CHECK: [[MANY:%\w+]] = tessera_tile.constant 4194304
  // CHECK: elementwise "floordiv"([[ELEMENTS]], [[MANY]])
  // CHECK: tessera_tile.grid([[A]], [[B]]) by [128, 64] when {{.*}} {
  // CHECK: tessera_tile.grid([[A]], [[B]]) by [64, 64] when {{.*}} {
  tessera_tile.grid(%a, %b) by [64, 64] {
  ^bb0(%i: index, %j: index):
    %block = tessera_tile.load %x[%i, %j] [64, 64] : !tessera_tile.tensor<?x?xbf16> -> !tessera_tile.tile<64x64xbf16>
    %turned = tessera_tile.transpose %block [1, 0] : !tessera_tile.tile<64x64xbf16> -> !tessera_tile.tile<64x64xbf16>
    tessera_tile.store %turned, %y[%j, %i] [64, 64] : !tessera_tile.tile<64x64xbf16>, !tessera_tile.tensor<?x?xbf16>
  }
  tessera_tile.return
}
