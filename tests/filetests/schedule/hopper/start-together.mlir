// RUN: schedule-start-together

// Two sums of a step start one after the other; the second product of the first sum needs no wait at all.
tessera_tile.kernel @sums profile "fast" (
    %a: !tessera_tile.tensor<?x?xbf16> as "a" dims ["M", "K"] strides [-1, 1] stride_div [8, 1] dim_div [1, 8] align 16) {
  %m = tessera_tile.dim %a[0] : !tessera_tile.tensor<?x?xbf16>
  tessera_tile.grid(%m) by [64] {
  ^bb0(%i: index):
    %x = tessera_tile.alloc_shared : !tessera_tile.shared<64x64xbf16, "panels", [0, 1]>
    %y = tessera_tile.alloc_shared : !tessera_tile.shared<64x64xbf16, "panels", [0, 1]>
    %full = tessera_tile.alloc_barriers arrivals 1 programs 1 : !tessera_tile.barriers<1>
    %c0 = tessera_tile.constant 0 : index
    %zero = tessera_tile.constant 0.0 : f32
    tessera_tile.roles(%c0) producer 24 {
    ^bb1(%s: index):
      tessera_tile.role_end %s
    } consumer 240 groups 1 {
    ^bb2(%s: index):
      // CHECK: [[NONE:%\w+]] = tessera_tile.splat
      %none = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<64x64xf32>
      // CHECK: [[P0:%\w+]] = tessera_tile.mma_start %x, %x, [[NONE]]
      // CHECK: tessera_tile.barrier_wait
      // CHECK: [[P1:%\w+]] = tessera_tile.mma_start %x, %y, [[P0]]
      // CHECK: [[Q:%\w+]] = tessera_tile.mma_start %y, %y, [[NONE]]
      // CHECK: [[P:%\w+]] = tessera_tile.mma_wait [[P1]] pending 0
      // CHECK: [[R:%\w+]] = tessera_tile.mma_wait [[Q]] pending 0
      // CHECK: [[SUM:%\w+]] = tessera_tile.elementwise "add"([[P]], [[R]])
      %p0 = tessera_tile.mma %x, %x, %none compute "bf16" {tessera_schedule.warpgroup = #builtin.int<1>} : !tessera_tile.shared<64x64xbf16, "panels", [0, 1]>, !tessera_tile.shared<64x64xbf16, "panels", [0, 1]>, !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
      tessera_tile.barrier_wait %full[%c0] parity %s : !tessera_tile.barriers<1>
      %p1 = tessera_tile.mma %x, %y, %p0 compute "bf16" {tessera_schedule.warpgroup = #builtin.int<1>} : !tessera_tile.shared<64x64xbf16, "panels", [0, 1]>, !tessera_tile.shared<64x64xbf16, "panels", [0, 1]>, !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
      %q = tessera_tile.mma %y, %y, %none compute "bf16" {tessera_schedule.warpgroup = #builtin.int<1>} : !tessera_tile.shared<64x64xbf16, "panels", [0, 1]>, !tessera_tile.shared<64x64xbf16, "panels", [0, 1]>, !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
      %sum = tessera_tile.elementwise "add"(%p1, %q) : (!tessera_tile.tile<64x64xf32>, !tessera_tile.tile<64x64xf32>) -> !tessera_tile.tile<64x64xf32>
      // CHECK: tessera_tile.mma %x, %x, [[SUM]]
      %again = tessera_tile.mma %x, %x, %sum compute "bf16" {tessera_schedule.warpgroup = #builtin.int<1>} : !tessera_tile.shared<64x64xbf16, "panels", [0, 1]>, !tessera_tile.shared<64x64xbf16, "panels", [0, 1]>, !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
      %total = tessera_tile.reduce "sum" %again axis 1 : !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64xf32>
      tessera_tile.role_end %s
    }
  } {tessera_schedule.num_warps = #builtin.int<4>}
  tessera_tile.return
}
