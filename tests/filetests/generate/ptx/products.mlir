// RUN: --to ptx --target sm_80
// A warp has 32 x 32 of the 64 x 64 sums: 2 x 4 instructions a step of 16 along k, with 4 registers of A, 2 of B and 4
// of C each (PTX ISA, "matrix fragments for mma.m16n8k16"). Four 8 x 8 matrices come by each ldmatrix.
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
// CHECK: ldmatrix.sync.aligned.m8n8.x4.shared.b16 {[[A0:%r\d+]], [[A1:%r\d+]], [[A2:%r\d+]], [[A3:%r\d+]]},
// CHECK: ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {[[B0:%r\d+]], [[B1:%r\d+]], [[B2:%r\d+]], [[B3:%r\d+]]},
// The first product of a tile, and the one beside it with the same rows of A.
// CHECK: mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {[[C0:%r\d+]], [[C1:%r\d+]], [[C2:%r\d+]], [[C3:%r\d+]]}, {[[A0]], [[A1]], [[A2]], [[A3]]}, {[[B0]], [[B1]]},
// CHECK: mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {{{.*}}}, {[[A0]], [[A1]], [[A2]], [[A3]]}, {[[B2]], [[B3]]},
// The second step along k adds to what the first one gave.
// CHECK: mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {{{.*}}}, {{{.*}}}, {{{.*}}}, {[[C0]], [[C1]], [[C2]], [[C3]]};
// CHECK: st.global
