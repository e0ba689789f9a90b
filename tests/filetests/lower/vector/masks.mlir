// RUN: --to tirt --target x86-64-v3
// A program whose tile lies within the tensor takes loops without masks. Any other goes as far as the tensor: 8 f32 at a
// time, and one vector with a mask where the end cuts it.
// Arithmetic between load and store is in the same loop; nothing goes through memory.
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @tail profile "fast" (
      %x: !tessera_tile.tensor<?xf32> as "x" dims ["N"] strides [1] stride_div [1] dim_div [1] align 16,
      %y: !tessera_tile.tensor<?xf32> as "y" dims ["N"] strides [1] stride_div [1] dim_div [1] align 16 written) {
    %n = tessera_tile.dim %x[0] : !tessera_tile.tensor<?xf32>
    tessera_tile.grid(%n) by [256] {
    ^bb0(%i: index):
      %t = tessera_tile.load %x[%i] [256] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<256xf32>
      %u = tessera_tile.elementwise "mul"(%t, %t) : (!tessera_tile.tile<256xf32>, !tessera_tile.tile<256xf32>) -> !tessera_tile.tile<256xf32>
      tessera_tile.store %u, %y[%i] [256] : !tessera_tile.tile<256xf32>, !tessera_tile.tensor<?xf32>
    }
    tessera_tile.return
  }
}
// CHECK: ^bb0([[N:%\d+]]: index, [[X:%\d+]]: {{.*}}, [[Y:%\d+]]:
// CHECK-NOT: tessera_target.alloc
// CHECK: [[END:%\d+]] = tessera_target.elementwise "add"
// CHECK-NEXT: [[FITS:%\d+]] = tessera_target.elementwise "le"([[END]], [[N]])
// CHECK: scf.if
// CHECK-NEXT: scf.for
// CHECK: [[T:%\d+]] = tessera_target.load [[X]]{{.*}} axes [0] vector 8 :
// CHECK-NEXT: [[U:%\d+]] = tessera_target.elementwise "mul"([[T]], [[T]])
// CHECK-NEXT: tessera_target.store [[U]], [[Y]]{{.*}} axes [0] vector 8
// CHECK: } else {
// CHECK-NEXT: [[LEFT:%\d+]] = tessera_target.elementwise "sub"([[N]], [[AT:%\d+]])
// CHECK: [[COUNT:%\d+]] = tessera_target.elementwise "minimum"
// CHECK-NEXT: [[ODD:%\d+]] = tessera_target.elementwise "mod"([[COUNT]]
// CHECK-NEXT: [[FULL:%\d+]] = tessera_target.elementwise "sub"([[COUNT]], [[ODD]])
// CHECK-NEXT: scf.for {{.*}} to [[FULL]] step
// CHECK: tessera_target.load [[X]]{{.*}} axes [0] vector 8 :
// CHECK: [[CUT:%\d+]] = tessera_target.elementwise "lt"([[FULL]], [[COUNT]])
// CHECK-NEXT: scf.if [[CUT]]
// CHECK: [[V:%\d+]] = tessera_target.load [[X]]{{.*}} axes [0] checked [0] vector 8 :
// CHECK-NEXT: [[W:%\d+]] = tessera_target.elementwise "mul"([[V]], [[V]])
// CHECK-NEXT: tessera_target.store [[W]], [[Y]]{{.*}} axes [0] checked [0] vector 8

// -----
// AVX-512 has 16 lanes of f32.
// RUN: --to tirt --target x86-64-v4
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @wide profile "fast" (
      %x: !tessera_tile.tensor<256xf32> as "x" dims ["256"] strides [1] stride_div [1] dim_div [16] align 16,
      %y: !tessera_tile.tensor<256xf64> as "y" dims ["256"] strides [1] stride_div [1] dim_div [16] align 16 written) {
    %zero = tessera_tile.constant 0 : index
    %t = tessera_tile.load %x[%zero] [256] : !tessera_tile.tensor<256xf32> -> !tessera_tile.tile<256xf32>
    %u = tessera_tile.cast %t : !tessera_tile.tile<256xf32> -> !tessera_tile.tile<256xf64>
    tessera_tile.store %u, %y[%zero] [256] : !tessera_tile.tile<256xf64>, !tessera_tile.tensor<256xf64>
    tessera_tile.return
  }
}
// CHECK-NOT: checked
// CHECK: [[T:%\d+]] = tessera_target.load {{.*}} axes [0] vector 16 : {{.*}}fragment<16xf32
// CHECK: [[U:%\d+]] = tessera_target.cast [[T]] : {{.*}} -> !tessera_target.fragment<16xf64
// CHECK: tessera_target.store [[U]]
// CHECK-NOT: checked
