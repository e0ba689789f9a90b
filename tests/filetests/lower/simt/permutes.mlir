// RUN: --to tirt --target sm_80
// A tile is loaded along the dimension that lies nearest in memory, the next nearest after it, and stored along the last
// one. Between the two it lies in shared memory by the bits of its places, in an order that neither side's lanes meet in.
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @permute profile "fast" (
      %x: !tessera_tile.tensor<?x?x?xbf16> as "x" dims ["A", "B", "C"] strides [-1, 1, -1] stride_div [4, 1, 16] dim_div [8, 4, 16] order [2, 0, 1] align 16,
      %y: !tessera_tile.tensor<?x?x?xbf16> as "y" dims ["A", "B", "C"] strides [-1, -1, 1] stride_div [16, 16, 1] dim_div [8, 4, 16] align 16 written) {
    %zero = tessera_tile.constant 0 : index
    %t = tessera_tile.load %x[%zero, %zero, %zero] [8, 4, 64] : !tessera_tile.tensor<?x?x?xbf16> -> !tessera_tile.tile<8x4x64xbf16>
    tessera_tile.store %t, %y[%zero, %zero, %zero] [8, 4, 64] : !tessera_tile.tile<8x4x64xbf16>, !tessera_tile.tensor<?x?x?xbf16>
    tessera_tile.return
  }
}
// CHECK: tessera_target.load {{.*}} vector 4 : {{.*}}register = {{\[\[}}0, 1, 0], [0, 2, 0], [0, 0, 16], [0, 0, 32]], lane = {{\[\[}}1, 0, 0], [2, 0, 0], [4, 0, 0], [0, 0, 1], [0, 0, 2]]
// CHECK: [[S:%\d+]] = tessera_target.alloc {{.*}} : !tessera_target.buffer<2048xbf16, "shared", "none", 2048, [0]>
// CHECK: tessera_target.buffer_store {{.*}}, [[S]]
// CHECK: tessera_target.buffer_load [[S]]
// CHECK: tessera_target.store {{.*}} vector 8 : {{.*}}register = {{\[\[}}0, 0, 1], [0, 0, 2], [0, 0, 4], [4, 0, 0]], lane = {{\[\[}}0, 0, 8], [0, 0, 16], [0, 0, 32], [0, 1, 0], [0, 2, 0]]

// -----
// Where a thread can store one element at a time only, lanes have neighbours: threads that hold several do not keep them.
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @reverse profile "fast" (
      %x: !tessera_tile.tensor<?x?xf16> as "x" dims ["A", "B"] strides [1, -1] stride_div [1, 1] dim_div [1, 1] align 16,
      %y: !tessera_tile.tensor<?x?xf16> as "y" dims ["A", "B"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16 written) {
    %zero = tessera_tile.constant 0 : index
    %t = tessera_tile.load %x[%zero, %zero] [32, 64] : !tessera_tile.tensor<?x?xf16> -> !tessera_tile.tile<32x64xf16>
    tessera_tile.store %t, %y[%zero, %zero] [32, 64] : !tessera_tile.tile<32x64xf16>, !tessera_tile.tensor<?x?xf16>
    tessera_tile.return
  }
}
// CHECK: tessera_target.load {{.*}} vector 1 : {{.*}} lane = {{\[\[}}1, 0], [2, 0], [4, 0], [8, 0], [16, 0]]
// CHECK: tessera_target.buffer_load
// CHECK: tessera_target.store {{.*}} vector 1 : {{.*}} lane = {{\[\[}}0, 1], [0, 2], [0, 4], [0, 8], [0, 16]]
