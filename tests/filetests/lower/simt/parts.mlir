// RUN: --to tirt --target sm_80
// Each thread holds all columns of its rows: a part of them in reverse is other names for registers.
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @registers profile "fast" (
      %x: !tessera_tile.tensor<128x4xf32> as "x" dims ["128", "4"] strides [4, 1] stride_div [4, 1] dim_div [16, 4] align 16,
      %y: !tessera_tile.tensor<128x2xf32> as "y" dims ["128", "2"] strides [2, 1] stride_div [2, 1] dim_div [16, 2] align 16 written) {
    %zero = tessera_tile.constant 0 : index
    %three = tessera_tile.constant 3 : index
    %v = tessera_tile.load %x[%zero, %zero] [128, 4] : !tessera_tile.tensor<128x4xf32> -> !tessera_tile.tile<128x4xf32>
    %p = tessera_tile.part %v[%zero, %three] steps [1, -2] : !tessera_tile.tile<128x4xf32> -> !tessera_tile.tile<128x2xf32>
    tessera_tile.store %p, %y[%zero, %zero] [128, 2] : !tessera_tile.tile<128x2xf32>, !tessera_tile.tensor<128x2xf32>
    tessera_tile.return
  }
}
// CHECK: sym_name = "registers"
// CHECK-NOT: alloc
// CHECK: [[V:%\d+]] = tessera_target.load
// CHECK: tessera_target.relayout [[V]] [3, 1]
// CHECK: tessera_target.store

// -----
// Across threads it goes through shared memory, with a barrier before (others may share its bytes) and after it is
// written; a start that is not known to be inside is kept near, and what is outside is zero.
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @shared profile "fast" (
      %i: index as "i",
      %x: !tessera_tile.tensor<512xf32> as "x" dims ["512"] strides [1] stride_div [1] dim_div [16] align 16,
      %y: !tessera_tile.tensor<128xf32> as "y" dims ["128"] strides [1] stride_div [1] dim_div [16] align 16 written) {
    %zero = tessera_tile.constant 0 : index
    %v = tessera_tile.load %x[%zero] [512] : !tessera_tile.tensor<512xf32> -> !tessera_tile.tile<512xf32>
    %p = tessera_tile.part %v[%i] steps [1] : !tessera_tile.tile<512xf32> -> !tessera_tile.tile<128xf32>
    tessera_tile.store %p, %y[%zero] [128] : !tessera_tile.tile<128xf32>, !tessera_tile.tensor<128xf32>
    tessera_tile.return
  }
}
// CHECK: sym_name = "shared"
// CHECK: [[BUFFER:%\d+]] = tessera_target.alloc at {{.*}} transient
// CHECK-NEXT: tessera_target.barrier
// CHECK-NEXT: tessera_target.buffer_store {{.*}}, [[BUFFER]]
// CHECK-NEXT: tessera_target.barrier
// CHECK: [[LOW:%\d+]] = tessera_target.elementwise "maximum"
// CHECK: [[NEAR:%\d+]] = tessera_target.elementwise "minimum"([[LOW]],
// CHECK: tessera_target.buffer_load [[BUFFER]]{{\[}}[[NEAR]]] {{.*}} fill

// -----
// Elements at an index: one comparison without sign, and zero where it is outside.
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @taken profile "fast" (
      %x: !tessera_tile.tensor<512xf32> as "x" dims ["512"] strides [1] stride_div [1] dim_div [16] align 16,
      %r: !tessera_tile.tensor<128xi32> as "r" dims ["128"] strides [1] stride_div [1] dim_div [16] align 16,
      %y: !tessera_tile.tensor<128xf32> as "y" dims ["128"] strides [1] stride_div [1] dim_div [16] align 16 written) {
    %zero = tessera_tile.constant 0 : index
    %v = tessera_tile.load %x[%zero] [512] : !tessera_tile.tensor<512xf32> -> !tessera_tile.tile<512xf32>
    %k = tessera_tile.load %r[%zero] [128] : !tessera_tile.tensor<128xi32> -> !tessera_tile.tile<128xi32>
    %p = tessera_tile.take %v[%k] axis 0 : !tessera_tile.tile<512xf32>[!tessera_tile.tile<128xi32>] -> !tessera_tile.tile<128xf32>
    tessera_tile.store %p, %y[%zero] [128] : !tessera_tile.tile<128xf32>, !tessera_tile.tensor<128xf32>
    tessera_tile.return
  }
}
// CHECK: sym_name = "taken"
// CHECK: [[U:%\d+]] = tessera_target.cast {{.*}} -> !tessera_target.fragment<128xui32
// CHECK: [[INSIDE:%\d+]] = tessera_target.elementwise "lt"([[U]],
// CHECK: tessera_target.elementwise "select"([[INSIDE]], [[U]],
// CHECK: [[G:%\d+]] = tessera_target.buffer_gather
// CHECK: tessera_target.elementwise "select"([[INSIDE]], [[G]],
