// RUN: --to tirt --target sm_90a
// A box three elements before an aligned place is loaded by the accesses around it; an aligned one is loaded as it is.
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @stencil profile "fast" (
      %x: !tessera_tile.tensor<?x?xbf16> as "x" dims ["M", "N"] strides [-1, 1] stride_div [16, 1] dim_div [1, 16] align 16,
      %y: !tessera_tile.tensor<?x?xbf16> as "y" dims ["M", "N"] strides [-1, 1] stride_div [16, 1] dim_div [1, 16] align 16 written) {
    %m = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x?xbf16>
    %n = tessera_tile.dim %x[1] : !tessera_tile.tensor<?x?xbf16>
    tessera_tile.grid(%m, %n) by [4, 256] {
    ^bb0(%i: index, %j: index):
      %three = tessera_tile.constant -3 : index
      %back = tessera_tile.elementwise "add"(%j, %three) : (index, index) -> index
      %a = tessera_tile.load %x[%i, %back] [4, 256] : !tessera_tile.tensor<?x?xbf16> -> !tessera_tile.tile<4x256xbf16>
      %b = tessera_tile.load %x[%i, %j] [4, 256] : !tessera_tile.tensor<?x?xbf16> -> !tessera_tile.tile<4x256xbf16>
      %c = tessera_tile.elementwise "add"(%a, %b) : (!tessera_tile.tile<4x256xbf16>, !tessera_tile.tile<4x256xbf16>) -> !tessera_tile.tile<4x256xbf16>
      tessera_tile.store %c, %y[%i, %j] [4, 256] : !tessera_tile.tile<4x256xbf16>, !tessera_tile.tensor<?x?xbf16>
    }
    tessera_tile.return
  }
}
// CHECK: tessera_target.load {{.*}} vector 8 behind [5]
// CHECK: tessera_target.load {{.*}} vector 8 :

// -----
// Rows that do not end with an access are loaded element by element: what lies behind them is another row's.
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @odd profile "fast" (
      %x: !tessera_tile.tensor<?x?xbf16> as "x" dims ["M", "N"] strides [-1, 1] stride_div [16, 1] dim_div [1, 1] align 16,
      %y: !tessera_tile.tensor<?x?xbf16> as "y" dims ["M", "N"] strides [-1, 1] stride_div [16, 1] dim_div [1, 1] align 16 written) {
    %m = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x?xbf16>
    %n = tessera_tile.dim %x[1] : !tessera_tile.tensor<?x?xbf16>
    tessera_tile.grid(%m, %n) by [4, 256] {
    ^bb0(%i: index, %j: index):
      %three = tessera_tile.constant -3 : index
      %back = tessera_tile.elementwise "add"(%j, %three) : (index, index) -> index
      %a = tessera_tile.load %x[%i, %back] [4, 256] : !tessera_tile.tensor<?x?xbf16> -> !tessera_tile.tile<4x256xbf16>
      tessera_tile.store %a, %y[%i, %j] [4, 256] : !tessera_tile.tile<4x256xbf16>, !tessera_tile.tensor<?x?xbf16>
    }
    tessera_tile.return
  }
}
// CHECK-NOT: behind
// CHECK: tessera_target.load {{.*}} vector 1
