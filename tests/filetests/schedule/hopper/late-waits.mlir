// RUN: schedule-late-waits

// A group that has the matrix units for itself starts a step's products before it waits for those of the step before,
// and hands back their stage then.
tessera_tile.kernel @sums profile "fast" (
    %a: !tessera_tile.tensor<?x?xbf16> as "a" dims ["M", "K"] strides [-1, 1] stride_div [8, 1] dim_div [1, 8] align 16) {
  %m = tessera_tile.dim %a[0] : !tessera_tile.tensor<?x?xbf16>
  %k = tessera_tile.dim %a[1] : !tessera_tile.tensor<?x?xbf16>
  tessera_tile.grid(%m) by [64] {
  ^bb0(%i: index):
    %ring = tessera_tile.alloc_shared : !tessera_tile.shared<3x64x64xbf16, "panels", [0, 1, 2]>
    %full = tessera_tile.alloc_barriers arrivals 1 programs 1 : !tessera_tile.barriers<3>
    %empty = tessera_tile.alloc_barriers arrivals 1 programs 1 : !tessera_tile.barriers<3>
    %turns = tessera_tile.alloc_barriers arrivals 1 programs 1 : !tessera_tile.barriers<2>
    %c0 = tessera_tile.constant 0 : index
    %c64 = tessera_tile.constant 64 : index
    %zero = tessera_tile.constant 0.0 : f32
    tessera_tile.roles(%c0) producer 24 {
    ^bb1(%s: index):
      tessera_tile.role_end %s
    } consumer 240 groups 2 {
    ^bb2(%s: index):
      // CHECK: [[GROUP:%\w+]] = tessera_tile.role_group
      // CHECK: [[TILE:%\w+]] = tessera_tile.splat
      // CHECK: [[BEGIN:%\w+]] = tessera_tile.mma_begin [[TILE]]
      // CHECK: tessera_tile.barrier_wait %turns[[[GROUP]]]
      // CHECK: [[END:%\w+]], [[LEFT:%\w+]], [[LAST:%\w+]] = scf.for [[K:%\w+]] = {{.*}} iter_args([[SUM:%\w+]] = [[BEGIN]], [[SLOT:%\w+]] = {{%\w+}}, [[BEFORE:%\w+]] =
      // CHECK: tessera_tile.barrier_wait %full[[[SLOT]]]
      // CHECK: [[NEXT:%\w+]] = tessera_tile.mma_start {{.*}}, [[SUM]] compute
      // CHECK: tessera_tile.mma_retire pending 1
      // CHECK: [[AGAIN:%\w+]] = tessera_tile.elementwise "gt"([[K]], %c0)
      // CHECK: tessera_tile.barrier_arrive %empty[[[BEFORE]]] when [[AGAIN]]
      // CHECK: scf.yield [[NEXT]], [[SLOT]], [[SLOT]]
      // CHECK: tessera_tile.barrier_arrive %turns
      // CHECK: [[DONE:%\w+]] = tessera_tile.mma_wait [[END]] pending 0
      // CHECK: [[RAN:%\w+]] = tessera_tile.elementwise "lt"(%c0, %k)
      // CHECK: tessera_tile.barrier_arrive %empty[[[LAST]]] when [[RAN]]
      // CHECK: tessera_tile.reduce "sum" [[DONE]]
      %group = tessera_tile.role_group
      %init = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<64x64xf32>
      tessera_tile.barrier_wait %turns[%group] parity %s {tessera_schedule.group_turn = #builtin.int<1>} : !tessera_tile.barriers<2>
      %sum, %slots = scf.for %p = %c0 to %k step %c64 iter_args(%acc = %init, %slot = %s) -> (!tessera_tile.tile<64x64xf32>, index) {
        %stage = tessera_tile.shared_view %ring[%slot] : !tessera_tile.shared<3x64x64xbf16, "panels", [0, 1, 2]> -> !tessera_tile.shared<64x64xbf16, "panels", [0, 1]>
        tessera_tile.barrier_wait %full[%slot] parity %c0 : !tessera_tile.barriers<3>
        %next = tessera_tile.mma %stage, %stage, %acc compute "bf16" {tessera_schedule.warpgroup = #builtin.int<1>} : !tessera_tile.shared<64x64xbf16, "panels", [0, 1]>, !tessera_tile.shared<64x64xbf16, "panels", [0, 1]>, !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
        tessera_tile.barrier_arrive %empty[%slot] : !tessera_tile.barriers<3>
        scf.yield %next, %slot : !tessera_tile.tile<64x64xf32>, index
      }
      tessera_tile.barrier_arrive %turns[%group] {tessera_schedule.group_turn = #builtin.int<1>} : !tessera_tile.barriers<2>
      %total = tessera_tile.reduce "sum" %sum axis 1 : !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64xf32>
      tessera_tile.role_end %slots
    }
  } {tessera_schedule.num_warps = #builtin.int<4>}
  tessera_tile.return
}
