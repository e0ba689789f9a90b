// RUN: --to tirt --target sm_80
// Threads read what others stored: a barrier between the store and the load of the same tensor, and none before the
// store to y, which no load before it reads.
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @dependent profile "fast" (
      %x: !tessera_tile.tensor<?xf32> as "x" dims ["N"] strides [1] stride_div [1] dim_div [1] align 16 written,
      %y: !tessera_tile.tensor<?xf32> as "y" dims ["N"] strides [1] stride_div [1] dim_div [1] align 16 written) {
    %n = tessera_tile.dim %x[0] : !tessera_tile.tensor<?xf32>
    tessera_tile.grid(%n) by [256] {
    ^bb0(%i: index):
      %c = tessera_tile.constant 1.0 : f32
      %t = tessera_tile.splat %c : f32 -> !tessera_tile.tile<256xf32>
      tessera_tile.store %t, %x[%i] [256] : !tessera_tile.tile<256xf32>, !tessera_tile.tensor<?xf32>
      %one = tessera_tile.constant 1 : index
      %next = tessera_tile.elementwise "add"(%i, %one) : (index, index) -> index
      %u = tessera_tile.load %x[%next] [256] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<256xf32>
      tessera_tile.store %u, %y[%i] [256] : !tessera_tile.tile<256xf32>, !tessera_tile.tensor<?xf32>
    }
    tessera_tile.return
  }
}
// CHECK: ^bb0({{%\d+}}: index, [[X:%\d+]]: {{.*}}, [[Y:%\d+]]:
// CHECK-NOT: barrier
// CHECK: tessera_target.store {{.*}}, [[X]][
// CHECK: tessera_target.barrier
// CHECK-NEXT: tessera_target.load [[X]][
// CHECK-NOT: barrier
// CHECK: tessera_target.store {{.*}}, [[Y]][
// CHECK-NOT: barrier

// -----
// Each thread stores where it has loaded: no other one is there.
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @in_place profile "fast" (
      %x: !tessera_tile.tensor<?xf32> as "x" dims ["N"] strides [1] stride_div [1] dim_div [1] align 16 written) {
    %n = tessera_tile.dim %x[0] : !tessera_tile.tensor<?xf32>
    tessera_tile.grid(%n) by [256] {
    ^bb0(%i: index):
      %t = tessera_tile.load %x[%i] [256] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<256xf32>
      %u = tessera_tile.elementwise "neg"(%t) : (!tessera_tile.tile<256xf32>) -> !tessera_tile.tile<256xf32>
      tessera_tile.store %u, %x[%i] [256] : !tessera_tile.tile<256xf32>, !tessera_tile.tensor<?xf32>
    }
    tessera_tile.return
  }
}
// CHECK: tessera_target.load
// CHECK-NOT: barrier
// CHECK: tessera_target.store
// CHECK-NOT: barrier

// -----
// Two arguments that are one memory: the load of y may read what the store to x wrote.
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @alias profile "fast" (
      %x: !tessera_tile.tensor<?xf32> as "x" dims ["N"] strides [1] stride_div [1] dim_div [1] align 16 written,
      %y: !tessera_tile.tensor<?xf32> as "y" dims ["M"] strides [1] stride_div [1] dim_div [1] align 16 alias 0,
      %z: !tessera_tile.tensor<?xf32> as "z" dims ["N"] strides [1] stride_div [1] dim_div [1] align 16 written) {
    %n = tessera_tile.dim %x[0] : !tessera_tile.tensor<?xf32>
    tessera_tile.grid(%n) by [256] {
    ^bb0(%i: index):
      %c = tessera_tile.constant 1.0 : f32
      %t = tessera_tile.splat %c : f32 -> !tessera_tile.tile<256xf32>
      tessera_tile.store %t, %x[%i] [256] : !tessera_tile.tile<256xf32>, !tessera_tile.tensor<?xf32>
      %zero = tessera_tile.constant 0 : index
      %u = tessera_tile.load %y[%zero] [256] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<256xf32>
      tessera_tile.store %u, %z[%i] [256] : !tessera_tile.tile<256xf32>, !tessera_tile.tensor<?xf32>
    }
    tessera_tile.return
  }
}
// CHECK: tessera_target.store
// CHECK: tessera_target.barrier
// CHECK-NEXT: tessera_target.load
