// RUN: schedule-bound-stages

// A stage that may not exist: its copy is left out, and what reads it sees zeros. `% 2` always exists.
// CHECK: [[ABOVE:%\w+]] = tessera_tile.elementwise "ge"([[K:%\w+]],
// CHECK: [[BELOW:%\w+]] = tessera_tile.elementwise "lt"([[K]],
// CHECK: [[INSIDE:%\w+]] = tessera_tile.elementwise "and"([[ABOVE]], [[BELOW]])
// CHECK: [[AT:%\w+]] = tessera_tile.elementwise "select"([[INSIDE]], [[K]],
// CHECK: [[VIEW:%\w+]] = tessera_tile.shared_view {{%\w+}}[[[AT]]]
// CHECK: scf.if [[INSIDE]] {
// CHECK: tessera_tile.cp_async {{.*}} into [[VIEW]]
// CHECK: [[TURNED:%\w+]] = tessera_tile.shared_transpose [[VIEW]]
// CHECK: [[SAFE:%\w+]] = tessera_tile.cast
// CHECK: [[OTHER:%\w+]] = tessera_tile.shared_view {{%\w+}}[[[SAFE]]]
// CHECK: [[LOADED:%\w+]] = tessera_tile.shared_load [[VIEW]]
// CHECK: [[SHOWN:%\w+]] = tessera_tile.elementwise "select"({{%\w+}}, [[LOADED]],
// CHECK: tessera_tile.cast [[SHOWN]]
// CHECK: [[OPERAND:%\w+]] = tessera_tile.shared_load [[TURNED]]
// CHECK: [[LEFT:%\w+]] = tessera_tile.elementwise "select"({{%\w+}}, [[OPERAND]],
// CHECK: tessera_tile.mma [[LEFT]], [[OTHER]],
builtin.module {
  tessera_tile.kernel @kernel profile "fast" (
      %0: !tessera_tile.tensor<64x64xf16> as "x" dims ["64", "64"] strides [-1, 1] stride_div [16, 1] dim_div [16, 16] align 16,
      %1: !tessera_tile.tensor<64x64xf32> as "y" dims ["64", "64"] strides [-1, 1] stride_div [16, 1] dim_div [16, 16] align 16 written,
      %2: i64 as "k") {
    tessera_tile.grid() by [] {
      %3 = tessera_tile.alloc_shared : !tessera_tile.shared<2x64x64xf16, "none", [0, 1, 2]>
      %4 = tessera_tile.cast %2 : i64 -> index
      %5 = tessera_tile.shared_view %3[%4] : !tessera_tile.shared<2x64x64xf16, "none", [0, 1, 2]> -> !tessera_tile.shared<64x64xf16, "none", [0, 1]>
      %6 = tessera_tile.constant 0 : index
      tessera_tile.cp_async %0[%6, %6] [64, 64] into %5 : !tessera_tile.tensor<64x64xf16>, !tessera_tile.shared<64x64xf16, "none", [0, 1]>
      tessera_tile.commit_group
      tessera_tile.wait_group 0
      tessera_tile.barrier
      %7 = tessera_tile.shared_transpose %5 [1, 0] : !tessera_tile.shared<64x64xf16, "none", [0, 1]> -> !tessera_tile.shared<64x64xf16, "none", [1, 0]>
      %8 = tessera_tile.constant 2 : i64
      %9 = tessera_tile.elementwise "mod"(%2, %8) : (i64, i64) -> i64
      %10 = tessera_tile.cast %9 : i64 -> index
      %11 = tessera_tile.shared_view %3[%10] : !tessera_tile.shared<2x64x64xf16, "none", [0, 1, 2]> -> !tessera_tile.shared<64x64xf16, "none", [0, 1]>
      %12 = tessera_tile.shared_load %5 : !tessera_tile.shared<64x64xf16, "none", [0, 1]> -> !tessera_tile.tile<64x64xf16>
      %13 = tessera_tile.cast %12 : !tessera_tile.tile<64x64xf16> -> !tessera_tile.tile<64x64xf32>
      %14 = tessera_tile.mma %7, %11, %13 compute "f16" : !tessera_tile.shared<64x64xf16, "none", [1, 0]>, !tessera_tile.shared<64x64xf16, "none", [0, 1]>, !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
      tessera_tile.store %14, %1[%6, %6] [64, 64] : !tessera_tile.tile<64x64xf32>, !tessera_tile.tensor<64x64xf32>
    }
    tessera_tile.return
  }
}


// -----
// Elements of a stage that may not exist are masked off.
// CHECK: [[INSIDE:%\w+]] = tessera_tile.elementwise "and"
// CHECK: [[AT:%\w+]] = tessera_tile.elementwise "select"([[INSIDE]],
// CHECK: [[VIEW:%\w+]] = tessera_tile.shared_view {{%\w+}}[[[AT]]]
// CHECK: [[MASK:%\w+]] = tessera_tile.splat [[INSIDE]]
// CHECK: tessera_tile.shared_scatter {{%\w+}}, [[VIEW]][{{%\w+}}] mask [[MASK]]
// CHECK: tessera_tile.shared_atomic "add" [[VIEW]][{{%\w+}}] value {{%\w+}} : i32 mask [[INSIDE]]
// CHECK: [[GIVEN:%\w+]] = tessera_tile.elementwise "lt"
// CHECK: [[EVERY:%\w+]] = tessera_tile.splat [[INSIDE]]
// CHECK: [[BOTH:%\w+]] = tessera_tile.elementwise "and"([[GIVEN]], [[EVERY]])
// CHECK: [[READ:%\w+]] = tessera_tile.shared_gather [[VIEW]][{{%\w+}}] mask [[BOTH]]
// CHECK: tessera_tile.store [[READ]],
builtin.module {
  tessera_tile.kernel @kernel profile "fast" (
      %y: !tessera_tile.tensor<64xi32> as "y" dims ["64"] strides [1] stride_div [1] dim_div [16] align 16 written,
      %k: i64 as "k") {
    tessera_tile.grid() by [] {
      %ring = tessera_tile.alloc_shared : !tessera_tile.shared<2x64xi32, "none", [0, 1]>
      %at = tessera_tile.cast %k : i64 -> index
      %view = tessera_tile.shared_view %ring[%at] : !tessera_tile.shared<2x64xi32, "none", [0, 1]> -> !tessera_tile.shared<64xi32, "none", [0]>
      %places = tessera_tile.arange : !tessera_tile.tile<64xi64>
      %ones = tessera_tile.constant 1 : i32
      %many = tessera_tile.splat %ones : i32 -> !tessera_tile.tile<64xi32>
      tessera_tile.shared_scatter %many, %view[%places] : !tessera_tile.tile<64xi32>, !tessera_tile.shared<64xi32, "none", [0]> [!tessera_tile.tile<64xi64>]
      tessera_tile.barrier
      %one = tessera_tile.shared_atomic "add" %view[%k] value %ones : i32 order "relaxed" scope "device" : !tessera_tile.shared<64xi32, "none", [0]> [i64] -> i32
      tessera_tile.barrier
      %few = tessera_tile.elementwise "lt"(%places, %places) : (!tessera_tile.tile<64xi64>, !tessera_tile.tile<64xi64>) -> !tessera_tile.tile<64xi1>
      %read = tessera_tile.shared_gather %view[%places] mask %few : !tessera_tile.tile<64xi1> : !tessera_tile.shared<64xi32, "none", [0]> [!tessera_tile.tile<64xi64>] -> !tessera_tile.tile<64xi32>
      %zero = tessera_tile.constant 0 : index
      tessera_tile.store %read, %y[%zero] [64] : !tessera_tile.tile<64xi32>, !tessera_tile.tensor<64xi32>
    }
    tessera_tile.return
  }
}
