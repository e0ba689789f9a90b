// RUN: --to tirt --target sm_80
// Two of three tensors have rows of an odd pitch, of which single elements are moved: lanes have neighbours, as 32 of them
// would touch 32 rows at a time if each held a row.
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @rows profile "fast" (
      %x: !tessera_tile.tensor<?x8xbf16> as "x" dims ["A", "8"] strides [-1, 1] stride_div [1, 1] dim_div [16, 8] align 16,
      %b: !tessera_tile.tensor<?x8xbf16> as "b" dims ["A", "8"] strides [-1, 1] stride_div [8, 1] dim_div [16, 8] align 16,
      %y: !tessera_tile.tensor<?x8xbf16> as "y" dims ["A", "8"] strides [-1, 1] stride_div [1, 1] dim_div [16, 8] align 16 written) {
    %zero = tessera_tile.constant 0 : index
    %s = tessera_tile.load %x[%zero, %zero] [256, 8] : !tessera_tile.tensor<?x8xbf16> -> !tessera_tile.tile<256x8xbf16>
    %t = tessera_tile.load %b[%zero, %zero] [256, 8] : !tessera_tile.tensor<?x8xbf16> -> !tessera_tile.tile<256x8xbf16>
    %u = tessera_tile.elementwise "add"(%s, %t) : (!tessera_tile.tile<256x8xbf16>, !tessera_tile.tile<256x8xbf16>) -> !tessera_tile.tile<256x8xbf16>
    tessera_tile.store %u, %y[%zero, %zero] [256, 8] : !tessera_tile.tile<256x8xbf16>, !tessera_tile.tensor<?x8xbf16>
    tessera_tile.return
  }
}
// CHECK: tessera_target.load {{.*}} vector 1 : {{.*}} lane = {{\[\[}}0, 1], [0, 2], [0, 4], [1, 0], [2, 0]]
// CHECK: tessera_target.load {{.*}} lane = {{\[\[}}0, 1], [0, 2], [0, 4], [1, 0], [2, 0]]
// CHECK: tessera_target.store {{.*}} vector 1 : {{.*}} lane = {{\[\[}}0, 1], [0, 2], [0, 4], [1, 0], [2, 0]]

// -----
// Parts of 16 bytes lose nothing: a thread has 8 neighbours of f32 as it has of bf16.
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @widened profile "fast" (
      %x: !tessera_tile.tensor<?x64xbf16> as "x" dims ["A", "64"] strides [-1, 1] stride_div [16, 1] dim_div [16, 16] align 16,
      %y: !tessera_tile.tensor<?x64xf32> as "y" dims ["A", "64"] strides [-1, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
    %zero = tessera_tile.constant 0 : index
    %s = tessera_tile.load %x[%zero, %zero] [256, 64] : !tessera_tile.tensor<?x64xbf16> -> !tessera_tile.tile<256x64xbf16>
    %u = tessera_tile.cast %s : !tessera_tile.tile<256x64xbf16> -> !tessera_tile.tile<256x64xf32>
    tessera_tile.store %u, %y[%zero, %zero] [256, 64] : !tessera_tile.tile<256x64xf32>, !tessera_tile.tensor<?x64xf32>
    tessera_tile.return
  }
}
// CHECK: tessera_target.load {{.*}} vector 8
// CHECK: tessera_target.store {{.*}} vector 4
