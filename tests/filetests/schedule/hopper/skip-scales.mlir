// RUN: schedule-skip-scales

// Causal attention. The sums so far are multiplied by one wherever a row's maximum has not moved; neither the sums of
// powers, a number a row, nor the scores are worth a branch.
// CHECK: -> !tessera_tile.tile<64x64xbf16>
// CHECK: [[KEPT:%\w+]] = tessera_tile.broadcast
// CHECK-NEXT: tessera_tile.elementwise "mul"([[KEPT]], {{.*}} {tessera_schedule.skips_ones = #builtin.int<1>}
// CHECK-NOT: skips_ones
builtin.module {
  tessera_tile.kernel @kernel profile "fast" (
      %0: !tessera_tile.tensor<?x?x64xbf16> as "Q" dims ["H", "S", "64"] strides [-1, -1, 1] stride_div [16, 16, 1] dim_div [1, 16, 16] align 16,
      %1: !tessera_tile.tensor<?x?x64xbf16> as "K" dims ["H", "S", "64"] strides [-1, -1, 1] stride_div [16, 16, 1] dim_div [1, 16, 16] align 16,
      %2: !tessera_tile.tensor<?x?x64xbf16> as "V" dims ["H", "S", "64"] strides [-1, -1, 1] stride_div [16, 16, 1] dim_div [1, 16, 16] align 16,
      %3: !tessera_tile.tensor<?x?x64xf32> as "out" dims ["H", "S", "64"] strides [-1, -1, 1] stride_div [16, 16, 1] dim_div [1, 16, 16] align 16 written) {
    %4 = tessera_tile.dim %0[0] : !tessera_tile.tensor<?x?x64xbf16>
    %5 = tessera_tile.dim %0[1] : !tessera_tile.tensor<?x?x64xbf16>
    tessera_tile.grid(%4, %5) by [1, 64] {
    ^bb0(%6: index, %7: index):
      %8 = tessera_tile.alloc_shared : !tessera_tile.shared<64x32xf32, "panels", [0, 1]>
      %9 = tessera_tile.alloc_shared : !tessera_tile.shared<64x32xf32, "panels", [0, 1]>
      %10 = tessera_tile.alloc_shared {tessera_schedule.ring = #builtin.int<2>} : !tessera_tile.shared<64x64xbf16, "panels", [0, 1]>
      %11 = tessera_tile.alloc_barriers arrivals 1 programs 1 {tessera_schedule.ring = #builtin.int<2>} : !tessera_tile.barriers<1>
      %12 = tessera_tile.alloc_barriers arrivals 1 programs 1 {tessera_schedule.ring = #builtin.int<2>} : !tessera_tile.barriers<1>
      %13 = tessera_tile.alloc_shared {tessera_schedule.ring = #builtin.int<1>} : !tessera_tile.shared<2x64x64xbf16, "panels", [0, 1, 2]>
      %14 = tessera_tile.alloc_shared {tessera_schedule.ring = #builtin.int<0>} : !tessera_tile.shared<2x64x64xbf16, "panels", [0, 1, 2]>
      %15 = tessera_tile.alloc_barriers arrivals 1 programs 1 {tessera_schedule.ring = #builtin.int<0>} : !tessera_tile.barriers<2>
      %16 = tessera_tile.alloc_barriers arrivals 1 programs 1 {tessera_schedule.ring = #builtin.int<0>} : !tessera_tile.barriers<2>
      %17 = tessera_tile.alloc_barriers arrivals 1 programs 1 {tessera_schedule.ring = #builtin.int<1>} : !tessera_tile.barriers<2>
      %18 = tessera_tile.alloc_barriers arrivals 1 programs 1 {tessera_schedule.ring = #builtin.int<1>} : !tessera_tile.barriers<2>
      %19 = tessera_tile.constant 0 : index
      %20 = tessera_tile.constant 64 : index
      %21 = tessera_tile.elementwise "add"(%7, %20) : (index, index) -> index
      %22 = tessera_tile.constant 0.000000e+00 : f32
      %23 = tessera_tile.constant 0xff800000 : f32
      %24 = tessera_tile.elementwise "minimum"(%5, %21) : (index, index) -> index
      tessera_tile.roles(%19, %19, %19) producer 56 {
      ^bb0(%25: index, %26: index, %27: index):
        %28 = tessera_tile.constant 1 : index
        %29 = tessera_tile.elementwise "sub"(%28, %27) : (index, index) -> index
        tessera_tile.barrier_wait %12[%19] parity %29 : !tessera_tile.barriers<1>
        tessera_tile.barrier_expect %11[%19] bytes 8192 : !tessera_tile.barriers<1>
        tessera_tile.bulk_copy %0[%6, %7, %19] [1, 64, 64] drop [0] into %10, %11[%19] programs 1 : !tessera_tile.tensor<?x?x64xbf16>, !tessera_tile.shared<64x64xbf16, "panels", [0, 1]>, !tessera_tile.barriers<1>
        %30, %31 = scf.for %32 = %19 to %24 step %20 iter_args(%33 = %25, %34 = %26) -> (index, index) {
          %35 = tessera_tile.elementwise "sub"(%28, %34) : (index, index) -> index
          tessera_tile.barrier_wait %16[%33] parity %35 : !tessera_tile.barriers<2>
          tessera_tile.barrier_expect %15[%33] bytes 8192 : !tessera_tile.barriers<2>
          %36 = tessera_tile.shared_view %14[%33] : !tessera_tile.shared<2x64x64xbf16, "panels", [0, 1, 2]> -> !tessera_tile.shared<64x64xbf16, "panels", [0, 1]>
          tessera_tile.bulk_copy %1[%6, %32, %19] [1, 64, 64] drop [0] into %36, %15[%33] programs 1 : !tessera_tile.tensor<?x?x64xbf16>, !tessera_tile.shared<64x64xbf16, "panels", [0, 1]>, !tessera_tile.barriers<2>
          tessera_tile.barrier_wait %18[%33] parity %35 : !tessera_tile.barriers<2>
          tessera_tile.barrier_expect %17[%33] bytes 8192 : !tessera_tile.barriers<2>
          %37 = tessera_tile.shared_view %13[%33] : !tessera_tile.shared<2x64x64xbf16, "panels", [0, 1, 2]> -> !tessera_tile.shared<64x64xbf16, "panels", [0, 1]>
          tessera_tile.bulk_copy %2[%6, %32, %19] [1, 64, 64] drop [0] into %37, %17[%33] programs 1 : !tessera_tile.tensor<?x?x64xbf16>, !tessera_tile.shared<64x64xbf16, "panels", [0, 1]>, !tessera_tile.barriers<2>
          %38 = tessera_tile.elementwise "add"(%33, %28) : (index, index) -> index
          %39 = tessera_tile.constant 2 : index
          %40 = tessera_tile.elementwise "eq"(%38, %39) : (index, index) -> i1
          %41 = tessera_tile.elementwise "select"(%40, %19, %38) : (i1, index, index) -> index
          %42 = tessera_tile.elementwise "select"(%40, %35, %34) : (i1, index, index) -> index
          scf.yield %41, %42 : index, index
        }
        tessera_tile.role_end %30, %31, %29
      } consumer 240 {
      ^bb0(%43: index, %44: index, %45: index):
        %46 = tessera_tile.constant 1 : index
        %47 = tessera_tile.elementwise "sub"(%46, %45) : (index, index) -> index
        %48 = tessera_tile.splat %22 : f32 -> !tessera_tile.tile<64x64xf32>
        %49 = tessera_tile.splat %23 : f32 -> !tessera_tile.tile<64xf32>
        %50 = tessera_tile.splat %22 : f32 -> !tessera_tile.tile<64xf32>
        tessera_tile.barrier_wait %11[%19] parity %45 : !tessera_tile.barriers<1>
        %51, %52, %53, %54, %55 = scf.for %56 = %19 to %24 step %20 iter_args(%57 = %48, %58 = %49, %59 = %50, %60 = %43, %61 = %44) -> (!tessera_tile.tile<64x64xf32>, !tessera_tile.tile<64xf32>, !tessera_tile.tile<64xf32>, index, index) {
          %62 = tessera_tile.shared_view %14[%60] : !tessera_tile.shared<2x64x64xbf16, "panels", [0, 1, 2]> -> !tessera_tile.shared<64x64xbf16, "panels", [0, 1]>
          %63 = tessera_tile.shared_transpose %62 [1, 0] : !tessera_tile.shared<64x64xbf16, "panels", [0, 1]> -> !tessera_tile.shared<64x64xbf16, "panels", [1, 0]>
          tessera_tile.barrier_wait %15[%60] parity %61 : !tessera_tile.barriers<2>
          %64 = tessera_tile.mma %10, %63, %48 compute "bf16" {tessera_schedule.warpgroup = #builtin.int<1>, tessera_schedule.rows_only = #builtin.int<1>} : !tessera_tile.shared<64x64xbf16, "panels", [0, 1]>, !tessera_tile.shared<64x64xbf16, "panels", [1, 0]>, !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
          tessera_tile.barrier_arrive %16[%60] : !tessera_tile.barriers<2>
          %65 = tessera_tile.arange : !tessera_tile.tile<64xi32>
          %66 = tessera_tile.reshape %65 : !tessera_tile.tile<64xi32> -> !tessera_tile.tile<64x1xi32>
          %67 = tessera_tile.elementwise "sub"(%7, %56) : (index, index) -> index
          %68 = tessera_tile.constant -128 : index
          %69 = tessera_tile.elementwise "maximum"(%67, %68) : (index, index) -> index
          %70 = tessera_tile.constant 128 : index
          %71 = tessera_tile.elementwise "minimum"(%69, %70) : (index, index) -> index
          %72 = tessera_tile.cast %71 : index -> i32
          %73 = tessera_tile.splat %72 : i32 -> !tessera_tile.tile<64x1xi32>
          %74 = tessera_tile.elementwise "add"(%66, %73) : (!tessera_tile.tile<64x1xi32>, !tessera_tile.tile<64x1xi32>) -> !tessera_tile.tile<64x1xi32>
          %75 = tessera_tile.reshape %65 : !tessera_tile.tile<64xi32> -> !tessera_tile.tile<1x64xi32>
          %76 = tessera_tile.broadcast %75 : !tessera_tile.tile<1x64xi32> -> !tessera_tile.tile<64x64xi32>
          %77 = tessera_tile.broadcast %74 : !tessera_tile.tile<64x1xi32> -> !tessera_tile.tile<64x64xi32>
          %78 = tessera_tile.elementwise "le"(%76, %77) : (!tessera_tile.tile<64x64xi32>, !tessera_tile.tile<64x64xi32>) -> !tessera_tile.tile<64x64xi1>
          %79 = tessera_tile.splat %23 : f32 -> !tessera_tile.tile<64x64xf32>
          %80 = tessera_tile.elementwise "select"(%78, %64, %79) : (!tessera_tile.tile<64x64xi1>, !tessera_tile.tile<64x64xf32>, !tessera_tile.tile<64x64xf32>) -> !tessera_tile.tile<64x64xf32>
          %81 = tessera_tile.reduce "max" %80 axis 1 : !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64xf32>
          %82 = tessera_tile.elementwise "maximum"(%58, %81) : (!tessera_tile.tile<64xf32>, !tessera_tile.tile<64xf32>) -> !tessera_tile.tile<64xf32>
          %83 = tessera_tile.elementwise "sub"(%58, %82) : (!tessera_tile.tile<64xf32>, !tessera_tile.tile<64xf32>) -> !tessera_tile.tile<64xf32>
          %84 = tessera_tile.constant 0.180336878 : f32
          %85 = tessera_tile.splat %84 : f32 -> !tessera_tile.tile<64xf32>
          %86 = tessera_tile.elementwise "mul"(%83, %85) : (!tessera_tile.tile<64xf32>, !tessera_tile.tile<64xf32>) -> !tessera_tile.tile<64xf32>
          %87 = tessera_tile.elementwise "exp2"(%86) : (!tessera_tile.tile<64xf32>) -> !tessera_tile.tile<64xf32>
          %88 = tessera_tile.splat %84 : f32 -> !tessera_tile.tile<64x64xf32>
          %89 = tessera_tile.elementwise "mul"(%80, %88) : (!tessera_tile.tile<64x64xf32>, !tessera_tile.tile<64x64xf32>) -> !tessera_tile.tile<64x64xf32>
          %90 = tessera_tile.elementwise "mul"(%82, %85) : (!tessera_tile.tile<64xf32>, !tessera_tile.tile<64xf32>) -> !tessera_tile.tile<64xf32>
          %91 = tessera_tile.reshape %90 : !tessera_tile.tile<64xf32> -> !tessera_tile.tile<64x1xf32>
          %92 = tessera_tile.broadcast %91 : !tessera_tile.tile<64x1xf32> -> !tessera_tile.tile<64x64xf32>
          %93 = tessera_tile.elementwise "sub"(%89, %92) : (!tessera_tile.tile<64x64xf32>, !tessera_tile.tile<64x64xf32>) -> !tessera_tile.tile<64x64xf32>
          %94 = tessera_tile.elementwise "exp2"(%93) : (!tessera_tile.tile<64x64xf32>) -> !tessera_tile.tile<64x64xf32>
          %95 = tessera_tile.elementwise "mul"(%87, %59) : (!tessera_tile.tile<64xf32>, !tessera_tile.tile<64xf32>) -> !tessera_tile.tile<64xf32>
          %96 = tessera_tile.reduce "sum" %94 axis 1 : !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64xf32>
          %97 = tessera_tile.elementwise "add"(%95, %96) : (!tessera_tile.tile<64xf32>, !tessera_tile.tile<64xf32>) -> !tessera_tile.tile<64xf32>
          %98 = tessera_tile.cast %94 : !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xbf16>
          %99 = tessera_tile.reshape %87 : !tessera_tile.tile<64xf32> -> !tessera_tile.tile<64x1xf32>
          %100 = tessera_tile.broadcast %99 : !tessera_tile.tile<64x1xf32> -> !tessera_tile.tile<64x64xf32>
          %101 = tessera_tile.elementwise "mul"(%100, %57) : (!tessera_tile.tile<64x64xf32>, !tessera_tile.tile<64x64xf32>) -> !tessera_tile.tile<64x64xf32>
          %102 = tessera_tile.shared_view %13[%60] : !tessera_tile.shared<2x64x64xbf16, "panels", [0, 1, 2]> -> !tessera_tile.shared<64x64xbf16, "panels", [0, 1]>
          tessera_tile.barrier_wait %17[%60] parity %61 : !tessera_tile.barriers<2>
          %103 = tessera_tile.mma %98, %102, %101 compute "bf16" {tessera_schedule.warpgroup = #builtin.int<1>, tessera_schedule.rows_only = #builtin.int<1>} : !tessera_tile.tile<64x64xbf16>, !tessera_tile.shared<64x64xbf16, "panels", [0, 1]>, !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
          tessera_tile.barrier_arrive %18[%60] : !tessera_tile.barriers<2>
          %104 = tessera_tile.elementwise "add"(%60, %46) : (index, index) -> index
          %105 = tessera_tile.constant 2 : index
          %106 = tessera_tile.elementwise "eq"(%104, %105) : (index, index) -> i1
          %107 = tessera_tile.elementwise "sub"(%46, %61) : (index, index) -> index
          %108 = tessera_tile.elementwise "select"(%106, %19, %104) : (i1, index, index) -> index
          %109 = tessera_tile.elementwise "select"(%106, %107, %61) : (i1, index, index) -> index
          scf.yield %103, %82, %97, %108, %109 : !tessera_tile.tile<64x64xf32>, !tessera_tile.tile<64xf32>, !tessera_tile.tile<64xf32>, index, index
        } {tessera_schedule.stages = #builtin.int<2>}
        tessera_tile.barrier_arrive %12[%19] : !tessera_tile.barriers<1>
        %110 = tessera_tile.reshape %53 : !tessera_tile.tile<64xf32> -> !tessera_tile.tile<64x1xf32>
        tessera_tile.bulk_wait 1
        %111 = tessera_tile.subtile %51 [0, 0] : !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x32xf32>
        %112 = tessera_tile.broadcast %110 : !tessera_tile.tile<64x1xf32> -> !tessera_tile.tile<64x32xf32>
        %113 = tessera_tile.elementwise "div"(%111, %112) : (!tessera_tile.tile<64x32xf32>, !tessera_tile.tile<64x32xf32>) -> !tessera_tile.tile<64x32xf32>
        tessera_tile.shared_store %113, %9 : !tessera_tile.tile<64x32xf32>, !tessera_tile.shared<64x32xf32, "panels", [0, 1]>
        tessera_tile.bulk_store %9 into %3[%6, %7, %19] [1, 64, 32] drop [0] : !tessera_tile.shared<64x32xf32, "panels", [0, 1]>, !tessera_tile.tensor<?x?x64xf32>
        tessera_tile.bulk_wait 1
        %114 = tessera_tile.subtile %51 [0, 32] : !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x32xf32>
        %115 = tessera_tile.elementwise "div"(%114, %112) : (!tessera_tile.tile<64x32xf32>, !tessera_tile.tile<64x32xf32>) -> !tessera_tile.tile<64x32xf32>
        tessera_tile.shared_store %115, %8 : !tessera_tile.tile<64x32xf32>, !tessera_tile.shared<64x32xf32, "panels", [0, 1]>
        %116 = tessera_tile.constant 32 : index
        tessera_tile.bulk_store %8 into %3[%6, %7, %116] [1, 64, 32] drop [0] : !tessera_tile.shared<64x32xf32, "panels", [0, 1]>, !tessera_tile.tensor<?x?x64xf32>
        tessera_tile.role_end %54, %55, %47
      }
    } {tessera_schedule.persistent = #builtin.int<1>, tessera_schedule.uneven = #builtin.int<1>, tessera_schedule.num_warps = #builtin.int<4>, tessera_schedule.store_buffers = #builtin.int<2>, tessera_schedule.group = #builtin.int<16>}
    tessera_tile.return
  }
}
