// RUN: schedule-raise-copies

// A ring that is filled one iteration ahead, and a buffer that each iteration fills, become slices of the iteration
// that reads them; copies, waits and barriers go.
// CHECK: scf.for [[K:%\w+]] =
// CHECK: [[LEFT:%\w+]] = tessera_tile.load %0[{{%\w+}}, [[K]]] [16, 32]
// CHECK-NOT: tessera_tile.cp_async
// CHECK: [[RIGHT:%\w+]] = tessera_tile.load %1[{{%\w+}}, [[K]]] [16, 32]
// CHECK: [[TURNED:%\w+]] = tessera_tile.transpose [[RIGHT]]
// CHECK: tessera_tile.mma [[LEFT]], [[TURNED]],
// CHECK-NOT: tessera_tile.barrier
// CHECK: tessera_notes.copies = ["buffers that the kernel fills by hand are scheduled as slices are"]
builtin.module {
  tessera_tile.kernel @k profile "fast" (
      %0: !tessera_tile.tensor<?x?xf32> as "a" dims ["M", "K"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16,
      %1: !tessera_tile.tensor<?x?xf32> as "b" dims ["K", "N"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16,
      %2: !tessera_tile.tensor<?x?xf32> as "c" dims ["M", "N"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16 written) {
    %3 = tessera_tile.dim %0[0] : !tessera_tile.tensor<?x?xf32>
    %4 = tessera_tile.dim %1[1] : !tessera_tile.tensor<?x?xf32>
    %5 = tessera_tile.dim %0[1] : !tessera_tile.tensor<?x?xf32>
    tessera_tile.grid(%3, %4) by [16, 16] {
    ^bb0(%6: index, %7: index):
      %8 = tessera_tile.alloc_shared : !tessera_tile.shared<2x16x32xf32, "none", [0, 1, 2]>
      %9 = tessera_tile.alloc_shared : !tessera_tile.shared<16x32xf32, "none", [0, 1]>
      %10 = tessera_tile.constant 0 : index
      %11 = tessera_tile.shared_view %8[%10] : !tessera_tile.shared<2x16x32xf32, "none", [0, 1, 2]> -> !tessera_tile.shared<16x32xf32, "none", [0, 1]>
      %12 = tessera_tile.constant 32 : index
      tessera_tile.cp_async %0[%6, %10] [16, 32] into %11 : !tessera_tile.tensor<?x?xf32>, !tessera_tile.shared<16x32xf32, "none", [0, 1]>
      tessera_tile.commit_group
      %13 = tessera_tile.constant 0.000000e+00 : f32
      %14 = tessera_tile.splat %13 : f32 -> !tessera_tile.tile<16x16xf32>
      %15 = tessera_tile.shared_transpose %9 [1, 0] : !tessera_tile.shared<16x32xf32, "none", [0, 1]> -> !tessera_tile.shared<32x16xf32, "none", [1, 0]>
      %16 = tessera_tile.constant 1 : index
      %17, %18 = scf.for %19 = %10 to %5 step %12 iter_args(%20 = %14, %21 = %10) -> (!tessera_tile.tile<16x16xf32>, index) {
        %22 = tessera_tile.elementwise "add"(%19, %12) : (index, index) -> index
        %23 = tessera_tile.elementwise "lt"(%22, %5) : (index, index) -> i1
        scf.if %23 {
          %24 = tessera_tile.constant 1 : index
          %25 = tessera_tile.elementwise "sub"(%24, %21) : (index, index) -> index
          %26 = tessera_tile.shared_view %8[%25] : !tessera_tile.shared<2x16x32xf32, "none", [0, 1, 2]> -> !tessera_tile.shared<16x32xf32, "none", [0, 1]>
          tessera_tile.cp_async %0[%6, %22] [16, 32] into %26 : !tessera_tile.tensor<?x?xf32>, !tessera_tile.shared<16x32xf32, "none", [0, 1]>
        } else {
        }
        tessera_tile.cp_async %1[%7, %19] [16, 32] into %9 : !tessera_tile.tensor<?x?xf32>, !tessera_tile.shared<16x32xf32, "none", [0, 1]>
        tessera_tile.commit_group
        tessera_tile.wait_group 0
        tessera_tile.barrier
        %27 = tessera_tile.shared_view %8[%21] : !tessera_tile.shared<2x16x32xf32, "none", [0, 1, 2]> -> !tessera_tile.shared<16x32xf32, "none", [0, 1]>
        %28 = tessera_tile.mma %27, %15, %20 compute "f32" : !tessera_tile.shared<16x32xf32, "none", [0, 1]>, !tessera_tile.shared<32x16xf32, "none", [1, 0]>, !tessera_tile.tile<16x16xf32> -> !tessera_tile.tile<16x16xf32>
        tessera_tile.barrier
        %29 = tessera_tile.elementwise "sub"(%16, %21) : (index, index) -> index
        scf.yield %28, %29 : !tessera_tile.tile<16x16xf32>, index
      }
      tessera_tile.store %17, %2[%6, %7] [16, 16] : !tessera_tile.tile<16x16xf32>, !tessera_tile.tensor<?x?xf32>
    }
    tessera_tile.return
  }
}
