// RUN: --to tirt --target x86-64-v3
// A tile that is stored after its memory was overwritten is the tile that was loaded: it is read in full before.
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @shift profile "fast" (
      %x: !tessera_tile.tensor<?xf32> as "x" dims ["N"] strides [1] stride_div [1] dim_div [1] align 16 written) {
    %zero = tessera_tile.constant 0 : index
    %one = tessera_tile.constant 1 : index
    %t = tessera_tile.load %x[%zero] [64] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<64xf32>
    tessera_tile.store %t, %x[%one] [64] : !tessera_tile.tile<64xf32>, !tessera_tile.tensor<?xf32>
    tessera_tile.return
  }
}
// CHECK: [[S:%\d+]] = tessera_target.alloc at 0 : !tessera_target.buffer<64xf32, "scratch"
// CHECK: [[T:%\d+]] = tessera_target.load
// CHECK-NEXT: tessera_target.buffer_store [[T]], [[S]][
// CHECK: [[U:%\d+]] = tessera_target.buffer_load [[S]][
// CHECK: tessera_target.store [[U]]

// -----
// In place, element by element, nothing needs to be kept.
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @in_place profile "fast" (
      %x: !tessera_tile.tensor<64xf32> as "x" dims ["64"] strides [1] stride_div [1] dim_div [16] align 16 written) {
    %zero = tessera_tile.constant 0 : index
    %t = tessera_tile.load %x[%zero] [64] : !tessera_tile.tensor<64xf32> -> !tessera_tile.tile<64xf32>
    %u = tessera_tile.elementwise "neg"(%t) : (!tessera_tile.tile<64xf32>) -> !tessera_tile.tile<64xf32>
    tessera_tile.store %u, %x[%zero] [64] : !tessera_tile.tile<64xf32>, !tessera_tile.tensor<64xf32>
    tessera_tile.return
  }
}
// CHECK-NOT: tessera_target.alloc
// CHECK: [[T:%\d+]] = tessera_target.load
// CHECK-NEXT: [[U:%\d+]] = tessera_target.elementwise "neg"([[T]])
// CHECK-NEXT: tessera_target.store [[U]]
