// RUN: --to tirt --target x86-64-v3
// A product is packed into panels that a register-blocked kernel reads: B in panels of 16 columns (two vectors of 8),
// with a line between buffers so that their rows do not crowd into one set of the cache. A stays where it lies, and
// sums that begin at zero are not read.
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @product profile "fast" (
      %a: !tessera_tile.tensor<64x64xf32> as "a" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16,
      %b: !tessera_tile.tensor<64x64xf32> as "b" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16,
      %c: !tessera_tile.tensor<64x64xf32> as "c" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
    %zero = tessera_tile.constant 0 : index
    %f = tessera_tile.constant 0.0 : f32
    %acc = tessera_tile.splat %f : f32 -> !tessera_tile.tile<64x64xf32>
    %x = tessera_tile.load %a[%zero, %zero] [64, 64] : !tessera_tile.tensor<64x64xf32> -> !tessera_tile.tile<64x64xf32>
    %y = tessera_tile.load %b[%zero, %zero] [64, 64] : !tessera_tile.tensor<64x64xf32> -> !tessera_tile.tile<64x64xf32>
    %p = tessera_tile.mma %x, %y, %acc compute "f32" {tessera_schedule.left_in_place = #builtin.int<1>, tessera_schedule.begins_sums = #builtin.int<1>} : !tessera_tile.tile<64x64xf32>, !tessera_tile.tile<64x64xf32>, !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
    tessera_tile.store %p, %c[%zero, %zero] [64, 64] : !tessera_tile.tile<64x64xf32>, !tessera_tile.tensor<64x64xf32>
    tessera_tile.return
  }
}
// CHECK: ^bb0([[A:%\d+]]: {{.*}}, [[B:%\d+]]: {{.*}}, [[C:%\d+]]:
// CHECK: [[SUMS:%\d+]] = tessera_target.alloc at 16448 : !tessera_target.buffer<64x64xf32, "scratch"
// CHECK: [[PANELS:%\d+]] = tessera_target.alloc at 0 : !tessera_target.buffer<4x64x16xf32, "scratch"
// CHECK: [[U:%\d+]] = tessera_target.load [[B]]{{.*}} axes [1] vector 8
// CHECK: tessera_target.buffer_store [[U]], [[PANELS]][
// CHECK: tessera_target.product "fma" [[A]], [[PANELS]], [[SUMS]] rows {{.*}} fresh
// CHECK: [[S:%\d+]] = tessera_target.buffer_load [[SUMS]][
// CHECK: tessera_target.store [[S]], [[C]][

// -----
// Where the CPU has AMX, bf16 goes to its tiles: two elements of k lie side by side in a panel's row.
// RUN: --to tirt --target sapphirerapids
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @tiles profile "fast" (
      %a: !tessera_tile.tensor<64x64xbf16> as "a" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16,
      %b: !tessera_tile.tensor<64x64xbf16> as "b" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16,
      %c: !tessera_tile.tensor<64x64xf32> as "c" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
    %zero = tessera_tile.constant 0 : index
    %f = tessera_tile.constant 0.0 : f32
    %acc = tessera_tile.splat %f : f32 -> !tessera_tile.tile<64x64xf32>
    %x = tessera_tile.load %a[%zero, %zero] [64, 64] : !tessera_tile.tensor<64x64xbf16> -> !tessera_tile.tile<64x64xbf16>
    %y = tessera_tile.load %b[%zero, %zero] [64, 64] : !tessera_tile.tensor<64x64xbf16> -> !tessera_tile.tile<64x64xbf16>
    %p = tessera_tile.mma %x, %y, %acc compute "bf16" {tessera_schedule.matrix_unit = #builtin.int<1>} : !tessera_tile.tile<64x64xbf16>, !tessera_tile.tile<64x64xbf16>, !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
    tessera_tile.store %p, %c[%zero, %zero] [64, 64] : !tessera_tile.tile<64x64xf32>, !tessera_tile.tensor<64x64xf32>
    tessera_tile.return
  }
}
// CHECK: tessera_target.product "amx_bf16"
