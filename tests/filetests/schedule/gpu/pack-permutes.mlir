// RUN: schedule-pack-permutes

// Boxes of up to 8x32x4 elements, eight of them a program, by way of shared memory: where tiles are padded.
tessera_tile.kernel @short profile "fast" (
    %x: !tessera_tile.tensor<?x?x?x?xbf16> as "X" dims ["A", "B", "C", "D"] strides [-1, 1, -1, -1] stride_div [1, 1, 1, 1] dim_div [1, 1, 1, 1] order [3, 0, 2, 1] align 16,
    %y: !tessera_tile.tensor<?x?x?x?xbf16> as "Y" dims ["A", "B", "C", "D"] strides [-1, -1, -1, 1] stride_div [1, 1, 1, 1] dim_div [1, 1, 1, 1] align 16 written) {
  %a = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x?x?x?xbf16>
  %b = tessera_tile.dim %x[1] : !tessera_tile.tensor<?x?x?x?xbf16>
  %c = tessera_tile.dim %x[2] : !tessera_tile.tensor<?x?x?x?xbf16>
  %d = tessera_tile.dim %x[3] : !tessera_tile.tensor<?x?x?x?xbf16>
  // CHECK: tessera_tile.stride %x[1]
  // CHECK: tessera_tile.stride %y[1]
  // CHECK: tessera_tile.grid({{.*}}) by [1, 1, 1, 1] when {{.*}} {
  // CHECK: [[BUFFER:%\d+]] = tessera_tile.alloc_shared : !tessera_tile.shared<8x2048xbf16
  // CHECK: scf.for
  // CHECK: [[READ:%\d+]] = tessera_tile.gather_at %x[{{.*}}] mask
  // CHECK: tessera_tile.shared_scatter [[READ]], [[BUFFER]]
  // CHECK: tessera_tile.barrier
  // CHECK: scf.for
  // CHECK: [[KEPT:%\d+]] = tessera_tile.shared_gather [[BUFFER]]
  // CHECK: tessera_tile.scatter_at [[KEPT]], %y[{{.*}}] mask
  // CHECK: tessera_notes.permutes = ["boxes of up to 1x8x32x4 are moved without what pads them, 8 at a time"]
  // CHECK: tessera_tile.grid({{.*}}) by [1, 8, 32, 4] when {{.*}} {
  tessera_tile.grid(%a, %b, %c, %d) by [1, 8, 32, 4] {
  ^bb0(%i: index, %j: index, %k: index, %l: index):
    %part = tessera_tile.load %x[%i, %j, %k, %l] [1, 8, 32, 4] : !tessera_tile.tensor<?x?x?x?xbf16> -> !tessera_tile.tile<1x8x32x4xbf16>
    tessera_tile.store %part, %y[%i, %j, %k, %l] [1, 8, 32, 4] : !tessera_tile.tile<1x8x32x4xbf16>, !tessera_tile.tensor<?x?x?x?xbf16>
  }
  tessera_tile.return
}

// -----
// Dimensions that fill their tiles are moved as they are.
tessera_tile.kernel @full profile "fast" (
    %x: !tessera_tile.tensor<?x?x?xbf16> as "X" dims ["A", "B", "C"] strides [-1, 1, -1] stride_div [8, 1, 8] dim_div [1, 8, 8] order [2, 0, 1] align 16,
    %y: !tessera_tile.tensor<?x?x?xbf16> as "Y" dims ["A", "B", "C"] strides [-1, -1, 1] stride_div [8, 8, 1] dim_div [1, 8, 8] align 16 written) {
  %a = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x?x?xbf16>
  %b = tessera_tile.dim %x[1] : !tessera_tile.tensor<?x?x?xbf16>
  %c = tessera_tile.dim %x[2] : !tessera_tile.tensor<?x?x?xbf16>
  // CHECK: tessera_tile.grid({{.*}}) by [1, 8, 8] {
  tessera_tile.grid(%a, %b, %c) by [1, 8, 8] {
  ^bb0(%i: index, %j: index, %k: index):
    %part = tessera_tile.load %x[%i, %j, %k] [1, 8, 8] : !tessera_tile.tensor<?x?x?xbf16> -> !tessera_tile.tile<1x8x8xbf16>
    tessera_tile.store %part, %y[%i, %j, %k] [1, 8, 8] : !tessera_tile.tile<1x8x8xbf16>, !tessera_tile.tensor<?x?x?xbf16>
  }
  tessera_tile.return
}

// -----
// Programs that move single elements have no boxes to pack.
tessera_tile.kernel @single profile "fast" (
    %x: !tessera_tile.tensor<?x?xf32> as "X" dims ["A", "B"] strides [1, -1] stride_div [1, 1] dim_div [1, 1] align 16,
    %y: !tessera_tile.tensor<?x?xf32> as "Y" dims ["A", "B"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16 written) {
  %a = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x?xf32>
  %b = tessera_tile.dim %x[1] : !tessera_tile.tensor<?x?xf32>
  // CHECK: tessera_tile.grid({{.*}}) by [1, 1] {
  tessera_tile.grid(%a, %b) by [1, 1] {
  ^bb0(%i: index, %j: index):
    %one = tessera_tile.load %x[%i, %j] [1, 1] drop [0, 1] : !tessera_tile.tensor<?x?xf32> -> f32
    tessera_tile.store %one, %y[%i, %j] [1, 1] drop [0, 1] : f32, !tessera_tile.tensor<?x?xf32>
  }
  tessera_tile.return
}
