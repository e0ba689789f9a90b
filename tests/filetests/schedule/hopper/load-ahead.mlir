// RUN: schedule-load-ahead

// Of the tiles that a consumers' loop carries, those that it loads are marked, before the loop and in it.
tessera_tile.kernel @sums profile "fast" (
    %a: !tessera_tile.tensor<?xf32> as "a" dims ["N"] strides [1] stride_div [1] dim_div [64] align 16) {
  %n = tessera_tile.dim %a[0] : !tessera_tile.tensor<?xf32>
  tessera_tile.grid(%n) by [64] {
  ^bb0(%i: index):
    %c0 = tessera_tile.constant 0 : index
    %c64 = tessera_tile.constant 64 : index
    %zero = tessera_tile.constant 0.0 : f32
    tessera_tile.roles(%c0) producer 24 {
    ^bb1(%s: index):
      tessera_tile.role_end %s
    } consumer 240 groups 1 {
    ^bb2(%s: index):
      // CHECK: [[INIT:%\w+]] = tessera_tile.splat
      // CHECK: [[FIRST:%\w+]] = tessera_tile.load %a[%c0] {{.*}}tessera_schedule.ahead = #builtin.int<1>
      // CHECK: scf.for [[K:%\w+]] = {{.*}} iter_args([[NOW:%\w+]] = [[FIRST]], [[SUM:%\w+]] = [[INIT]])
      // CHECK: [[NEXT:%\w+]] = tessera_tile.load %a[[[K]]] {{.*}}tessera_schedule.ahead = #builtin.int<1>
      // CHECK-NOT: ahead
      %init = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<64xf32>
      %first = tessera_tile.load %a[%c0] [64] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<64xf32>
      %last, %total = scf.for %k = %c0 to %n step %c64 iter_args(%now = %first, %sum = %init) -> (!tessera_tile.tile<64xf32>, !tessera_tile.tile<64xf32>) {
        %next = tessera_tile.load %a[%k] [64] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<64xf32>
        %other = tessera_tile.load %a[%k] [64] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<64xf32>
        %more = tessera_tile.elementwise "add"(%sum, %now) : (!tessera_tile.tile<64xf32>, !tessera_tile.tile<64xf32>) -> !tessera_tile.tile<64xf32>
        %most = tessera_tile.elementwise "add"(%more, %other) : (!tessera_tile.tile<64xf32>, !tessera_tile.tile<64xf32>) -> !tessera_tile.tile<64xf32>
        scf.yield %next, %most : !tessera_tile.tile<64xf32>, !tessera_tile.tile<64xf32>
      }
      tessera_tile.role_end %s
    }
  } {tessera_schedule.num_warps = #builtin.int<4>}
  tessera_tile.return
}
