// RUN: --to tirt --target sm_80
// A size that nothing divides: the tensor may end within an access, in the load and in the store.
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @tail profile "fast" (
      %x: !tessera_tile.tensor<?xf32> as "x" dims ["N"] strides [1] stride_div [1] dim_div [1] align 16,
      %y: !tessera_tile.tensor<?xf32> as "y" dims ["N"] strides [1] stride_div [1] dim_div [1] align 16 written) {
    %n = tessera_tile.dim %x[0] : !tessera_tile.tensor<?xf32>
    tessera_tile.grid(%n) by [512] {
    ^bb0(%i: index):
      %t = tessera_tile.load %x[%i] [512] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<512xf32>
      tessera_tile.store %t, %y[%i] [512] : !tessera_tile.tile<512xf32>, !tessera_tile.tensor<?xf32>
    }
    tessera_tile.return
  }
}
// One size for both tensors, as they have the dim in common; one grid dimension, ceil(N / 512) programs.
// CHECK: params = [{kind = "size", arg = #builtin.int<0>, axis = #builtin.int<0>
// CHECK: ^bb0([[N:%\d+]]: index, [[X:%\d+]]: {{.*}}, [[Y:%\d+]]:
// CHECK: [[P:%\d+]] = tessera_target.elementwise "mul"
// CHECK: [[T:%\d+]] = tessera_target.load [[X]][[[P]]] strides[{{%\d+}}] sizes[[[N]]] axes [0] checked [0] vector 4 cut :
// CHECK-NOT: tessera_target.barrier
// CHECK: tessera_target.store [[T]], [[Y]][[[P]]] strides[{{%\d+}}] sizes[[[N]]] axes [0] checked [0] vector 4 cut :

// -----
// Where 4 divides the size, a mask is one for 16 bytes: lanes hold 4 neighbours.
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @quads profile "fast" (
      %x: !tessera_tile.tensor<?xf32> as "x" dims ["N"] strides [1] stride_div [1] dim_div [4] align 16,
      %y: !tessera_tile.tensor<?xf32> as "y" dims ["N"] strides [1] stride_div [1] dim_div [4] align 16 written) {
    %n = tessera_tile.dim %x[0] : !tessera_tile.tensor<?xf32>
    tessera_tile.grid(%n) by [512] {
    ^bb0(%i: index):
      %t = tessera_tile.load %x[%i] [512] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<512xf32>
      tessera_tile.store %t, %y[%i] [512] : !tessera_tile.tile<512xf32>, !tessera_tile.tensor<?xf32>
    }
    tessera_tile.return
  }
}
// 128 threads times 4 elements: the two lowest bits of the index are a thread's registers.
// CHECK: tessera_target.load {{.*}} checked [0] vector 4 : {{.*}}layout<register = [[1], [2]], lane = [[4], [8], [16], [32], [64]], warp = [[128], [256]], sizes = [512]>
// CHECK: tessera_target.store {{.*}} checked [0] vector 4 :

// -----
// A base address known to 8 bytes only: vectors of 2.
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @pairs profile "fast" (
      %x: !tessera_tile.tensor<?xf32> as "x" dims ["N"] strides [1] stride_div [1] dim_div [4] align 8,
      %y: !tessera_tile.tensor<?xf32> as "y" dims ["N"] strides [1] stride_div [1] dim_div [4] align 16 written) {
    %n = tessera_tile.dim %x[0] : !tessera_tile.tensor<?xf32>
    tessera_tile.grid(%n) by [512] {
    ^bb0(%i: index):
      %t = tessera_tile.load %x[%i] [512] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<512xf32>
      tessera_tile.store %t, %y[%i] [512] : !tessera_tile.tile<512xf32>, !tessera_tile.tensor<?xf32>
    }
    tessera_tile.return
  }
}
// CHECK: tessera_target.load {{.*}} checked [0] vector 2 :
// CHECK: tessera_target.store {{.*}} checked [0] vector 4 :

// -----
// A size that whole tiles fill needs no masks.
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @full profile "fast" (
      %x: !tessera_tile.tensor<1024xf32> as "x" dims ["1024"] strides [1] stride_div [1] dim_div [16] align 16,
      %y: !tessera_tile.tensor<1024xf32> as "y" dims ["1024"] strides [1] stride_div [1] dim_div [16] align 16 written) {
    %n = tessera_tile.constant 1024 : index
    tessera_tile.grid(%n) by [512] {
    ^bb0(%i: index):
      %t = tessera_tile.load %x[%i] [512] : !tessera_tile.tensor<1024xf32> -> !tessera_tile.tile<512xf32>
      tessera_tile.store %t, %y[%i] [512] : !tessera_tile.tile<512xf32>, !tessera_tile.tensor<1024xf32>
    }
    tessera_tile.return
  }
}
// CHECK-NOT: checked
// CHECK: tessera_target.load {{.*}} axes [0] vector 4 :
// CHECK-NOT: checked
// CHECK: tessera_target.store {{.*}} axes [0] vector 4 :
