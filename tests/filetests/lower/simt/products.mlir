// RUN: --to tirt --target sm_80
// mma.m16n8k16: operands come by ldmatrix, B, which lies in rows of k, transposed; two steps of 16 along k.
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @product profile "fast" (
      %c: !tessera_tile.tensor<64x64xf32> as "c" dims ["64", "64"] strides [64, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
    %zero = tessera_tile.constant 0 : index
    %a = tessera_tile.alloc_shared : !tessera_tile.shared<64x32xbf16, "xor", [0, 1]>
    %b = tessera_tile.alloc_shared : !tessera_tile.shared<32x64xbf16, "xor", [0, 1]>
    %f = tessera_tile.constant 0.0 : f32
    %acc = tessera_tile.splat %f : f32 -> !tessera_tile.tile<64x64xf32>
    %p = tessera_tile.mma %a, %b, %acc compute "bf16" : !tessera_tile.shared<64x32xbf16, "xor", [0, 1]>, !tessera_tile.shared<32x64xbf16, "xor", [0, 1]>, !tessera_tile.tile<64x64xf32> -> !tessera_tile.tile<64x64xf32>
    tessera_tile.store %p, %c[%zero, %zero] [64, 64] : !tessera_tile.tile<64x64xf32>, !tessera_tile.tensor<64x64xf32>
    tessera_tile.return
  }
}
// CHECK: [[A:%\d+]] = tessera_target.alloc at 0 :
// CHECK: [[B:%\d+]] = tessera_target.alloc at 4096 :
// CHECK: [[ACC:%\d+]] = tessera_target.splat
// CHECK: [[A0:%\d+]] = tessera_target.ldmatrix [[A]][{{.*}}] transposed 0 : {{.*}} -> !tessera_target.fragment<64x16xbf16
// CHECK: [[B0:%\d+]] = tessera_target.ldmatrix [[B]][{{.*}}] transposed 1 : {{.*}} -> !tessera_target.fragment<16x64xbf16
// CHECK: [[C0:%\d+]] = tessera_target.tensor_core "m16n8k16_bf16_bf16_f32" [[A0]], [[B0]], [[ACC]]
// CHECK: [[K:%\d+]] = tessera_target.constant 16 : index
// CHECK: [[A1:%\d+]] = tessera_target.ldmatrix [[A]][{{%\d+}}, [[K]]] transposed 0
// CHECK: [[B1:%\d+]] = tessera_target.ldmatrix [[B]][{{%\d+}}, {{%\d+}}] transposed 1
// CHECK: [[C1:%\d+]] = tessera_target.tensor_core "m16n8k16_bf16_bf16_f32" [[A1]], [[B1]], [[C0]]
// The accumulator's pairs of columns, its rows 8 apart, 4 lanes a row: PTX ISA, "matrix fragments for mma.m16n8k16".
// CHECK: tessera_target.store [[C1]], {{.*}} axes [0, 1] {{.*}}register = [[0, 1], [8, 0]{{.*}}lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]]

// -----
// Strict f64 sums have an instruction of their own on Ampere.
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @wide profile "strict" (
      %c: !tessera_tile.tensor<32x32xf64> as "c" dims ["32", "32"] strides [32, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
    %zero = tessera_tile.constant 0 : index
    %a = tessera_tile.alloc_shared : !tessera_tile.shared<32x16xf64, "none", [0, 1]>
    %b = tessera_tile.alloc_shared : !tessera_tile.shared<16x32xf64, "none", [0, 1]>
    %f = tessera_tile.constant 0.0 : f64
    %acc = tessera_tile.splat %f : f64 -> !tessera_tile.tile<32x32xf64>
    %p = tessera_tile.mma %a, %b, %acc compute "f64" : !tessera_tile.shared<32x16xf64, "none", [0, 1]>, !tessera_tile.shared<16x32xf64, "none", [0, 1]>, !tessera_tile.tile<32x32xf64> -> !tessera_tile.tile<32x32xf64>
    tessera_tile.store %p, %c[%zero, %zero] [32, 32] : !tessera_tile.tile<32x32xf64>, !tessera_tile.tensor<32x32xf64>
    tessera_tile.return
  }
}
// CHECK-NOT: ldmatrix
// CHECK: tessera_target.tensor_core "m8n8k4_f64_f64_f64"
