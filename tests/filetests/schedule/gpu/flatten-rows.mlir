// RUN: schedule-flatten-rows

// A bias of rows of any length: where x and y have no gaps, programs take neighbours across rows.
tessera_tile.kernel @bias profile "fast" (
    %x: !tessera_tile.tensor<?x?xbf16> as "X" dims ["A", "B"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16,
    %w: !tessera_tile.tensor<?xbf16> as "W" dims ["B"] strides [1] stride_div [1] dim_div [1] align 16,
    %y: !tessera_tile.tensor<?x?xbf16> as "Y" dims ["A", "B"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16 written) {
  %a = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x?xbf16>
  %b = tessera_tile.dim %x[1] : !tessera_tile.tensor<?x?xbf16>
  // CHECK: [[TOTAL:%\d+]] = tessera_tile.elementwise "mul"
  // CHECK: [[STRIDE:%\d+]] = tessera_tile.stride %{{.*}}[0]
  // CHECK: elementwise "eq"([[STRIDE]], %b)
  // CHECK: tessera_tile.grid([[TOTAL]]) by [2048] when {{.*}} {
  // CHECK: elementwise "floordiv"({{.*}}) : (!tessera_tile.tile<256xui32>, !tessera_tile.tile<256xui32>)
  // CHECK: tessera_tile.gather {{.*}} -> !tessera_tile.tile<2048xbf16>
  // CHECK: tessera_tile.load_flat {{.*}} 2048
  // CHECK: tessera_tile.store_flat
  // CHECK: tessera_notes.flat = ["tensors without gaps are one row, of which a program computes 2048 elements"]
  // CHECK: tessera_tile.grid({{.*}}) by [64, 16] when {{.*}} {
  tessera_tile.grid(%a, %b) by [64, 16] {
  ^bb0(%i: index, %j: index):
    %bias = tessera_tile.load %w[%j] [16] : !tessera_tile.tensor<?xbf16> -> !tessera_tile.tile<16xbf16>
    %row = tessera_tile.reshape %bias : !tessera_tile.tile<16xbf16> -> !tessera_tile.tile<1x16xbf16>
    %rows = tessera_tile.broadcast %row : !tessera_tile.tile<1x16xbf16> -> !tessera_tile.tile<64x16xbf16>
    %part = tessera_tile.load %x[%i, %j] [64, 16] : !tessera_tile.tensor<?x?xbf16> -> !tessera_tile.tile<64x16xbf16>
    %sum = tessera_tile.elementwise "add"(%part, %rows) : (!tessera_tile.tile<64x16xbf16>, !tessera_tile.tile<64x16xbf16>) -> !tessera_tile.tile<64x16xbf16>
    tessera_tile.store %sum, %y[%i, %j] [64, 16] : !tessera_tile.tile<64x16xbf16>, !tessera_tile.tensor<?x?xbf16>
  }
  tessera_tile.return
}

// -----
// Rows that are aligned stay as they are.
tessera_tile.kernel @aligned profile "fast" (
    %x: !tessera_tile.tensor<?x?xbf16> as "X" dims ["A", "B"] strides [-1, 1] stride_div [8, 1] dim_div [1, 8] align 16,
    %y: !tessera_tile.tensor<?x?xbf16> as "Y" dims ["A", "B"] strides [-1, 1] stride_div [8, 1] dim_div [1, 8] align 16 written) {
  %a = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x?xbf16>
  %b = tessera_tile.dim %x[1] : !tessera_tile.tensor<?x?xbf16>
  // CHECK: tessera_tile.grid({{.*}}) by [64, 16] {
  tessera_tile.grid(%a, %b) by [64, 16] {
  ^bb0(%i: index, %j: index):
    %part = tessera_tile.load %x[%i, %j] [64, 16] : !tessera_tile.tensor<?x?xbf16> -> !tessera_tile.tile<64x16xbf16>
    tessera_tile.store %part, %y[%i, %j] [64, 16] : !tessera_tile.tile<64x16xbf16>, !tessera_tile.tensor<?x?xbf16>
  }
  tessera_tile.return
}

// -----
// What is stored to a column of another row is no function of its own element.
tessera_tile.kernel @turned profile "fast" (
    %x: !tessera_tile.tensor<?x?xbf16> as "X" dims ["A", "A"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16,
    %w: !tessera_tile.tensor<?xbf16> as "W" dims ["A"] strides [1] stride_div [1] dim_div [1] align 16,
    %y: !tessera_tile.tensor<?x?xbf16> as "Y" dims ["A", "A"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16 written) {
  %a = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x?xbf16>
  // CHECK: tessera_tile.grid({{.*}}) by [16, 16] {
  tessera_tile.grid(%a, %a) by [16, 16] {
  ^bb0(%i: index, %j: index):
    %other = tessera_tile.load %w[%j] [16] : !tessera_tile.tensor<?xbf16> -> !tessera_tile.tile<16xbf16>
    %column = tessera_tile.reshape %other : !tessera_tile.tile<16xbf16> -> !tessera_tile.tile<16x1xbf16>
    %columns = tessera_tile.broadcast %column : !tessera_tile.tile<16x1xbf16> -> !tessera_tile.tile<16x16xbf16>
    %part = tessera_tile.load %x[%i, %j] [16, 16] : !tessera_tile.tensor<?x?xbf16> -> !tessera_tile.tile<16x16xbf16>
    %sum = tessera_tile.elementwise "add"(%part, %columns) : (!tessera_tile.tile<16x16xbf16>, !tessera_tile.tile<16x16xbf16>) -> !tessera_tile.tile<16x16xbf16>
    tessera_tile.store %sum, %y[%i, %j] [16, 16] : !tessera_tile.tile<16x16xbf16>, !tessera_tile.tensor<?x?xbf16>
  }
  tessera_tile.return
}
