// RUN: --to ptx --target sm_80
// 64 x 32 bf16 by 128 threads: two copies of 16 bytes each. What is outside is read as zero: the number of bytes that
// come from memory is then 0 (PTX ISA, "cp.async", src-size). Others' copies are seen after a wait and a barrier.
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @copy profile "fast" (
      %x: !tessera_tile.tensor<?x?xbf16> as "x" dims ["M", "K"] strides [-1, 1] stride_div [8, 1] dim_div [1, 8] align 16,
      %y: !tessera_tile.tensor<64x32xbf16> as "y" dims ["64", "32"] strides [32, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
    %zero = tessera_tile.constant 0 : index
    %s = tessera_tile.alloc_shared : !tessera_tile.shared<64x32xbf16, "xor", [0, 1]>
    tessera_tile.cp_async %x[%zero, %zero] [64, 32] into %s : !tessera_tile.tensor<?x?xbf16>, !tessera_tile.shared<64x32xbf16, "xor", [0, 1]>
    tessera_tile.commit_group
    tessera_tile.wait_group 0
    tessera_tile.barrier
    %t = tessera_tile.shared_load %s : !tessera_tile.shared<64x32xbf16, "xor", [0, 1]> -> !tessera_tile.tile<64x32xbf16>
    tessera_tile.store %t, %y[%zero, %zero] [64, 32] : !tessera_tile.tile<64x32xbf16>, !tessera_tile.tensor<64x32xbf16>
    tessera_tile.return
  }
}
// CHECK: .maxntid 128
// CHECK: selp.b32 [[ROW:%r\d+]], 16, 0, [[P:%p\d+]];
// CHECK: selp.b32 [[BYTES:%r\d+]], [[ROW]], 0, {{%p\d+}};
// CHECK: cp.async.cg.shared.global [{{%r\d+}}], [{{%rd\d+}}], 16, [[BYTES]];
// CHECK: cp.async.cg.shared.global [{{%r\d+}}], [{{%rd\d+}}], 16, {{%r\d+}};
// CHECK-NOT: cp.async.cg
// CHECK: cp.async.commit_group;
// CHECK: cp.async.wait_group 0;
// CHECK-NOT: ld.shared
// CHECK: bar.sync 0;
// CHECK: ld.shared
// CHECK: st.global
