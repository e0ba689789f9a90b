// RUN: --to ptx --target sm_90a
// Warp roles with a ring of two stages, see lower/simt/roles.mlir.
// Source: PTX ISA 8.0, "mbarrier", "Tensor copies", "Asynchronous warpgroup matrix instructions", "setmaxnreg".
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @gemm profile "fast" (
      %a: !tessera_tile.tensor<?x?xbf16> as "a" dims ["M", "K"] strides [-1, 1] stride_div [16, 1] dim_div [16, 16] align 16,
      %b: !tessera_tile.tensor<?x128xbf16> as "b" dims ["K", "128"] strides [128, 1] stride_div [16, 1] dim_div [16, 16] align 16,
      %c: !tessera_tile.tensor<?x128xf32> as "c" dims ["M", "128"] strides [128, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
    %m = tessera_tile.dim %a[0] : !tessera_tile.tensor<?x?xbf16>
    %k = tessera_tile.dim %a[1] : !tessera_tile.tensor<?x?xbf16>
    tessera_tile.grid(%m) by [128] {
    ^bb0(%i: index):
      %out = tessera_tile.alloc_shared : !tessera_tile.shared<128x32xf32, "panels", [0, 1]>
      %bs = tessera_tile.alloc_shared : !tessera_tile.shared<2x64x128xbf16, "panels", [0, 1, 2]>
      %as = tessera_tile.alloc_shared : !tessera_tile.shared<2x128x64xbf16, "panels", [0, 1, 2]>
      %full = tessera_tile.alloc_barriers arrivals 1 programs 1 : !tessera_tile.barriers<2>
      %empty = tessera_tile.alloc_barriers arrivals 1 programs 1 : !tessera_tile.barriers<2>
      %zero = tessera_tile.constant 0 : index
      %one = tessera_tile.constant 1 : index
      %two = tessera_tile.constant 2 : index
      %step = tessera_tile.constant 64 : index
      %false = tessera_tile.constant false
      tessera_tile.roles(%zero, %zero) producer 40 {
      ^bb0(%ps: index, %pp: index):
        %pe:2 = scf.for %s = %zero to %k step %step iter_args(%stage = %ps, %phase = %pp) -> (index, index) {
          %other = tessera_tile.elementwise "sub"(%one, %phase) : (index, index) -> index
          tessera_tile.barrier_wait %empty[%stage] parity %other : !tessera_tile.barriers<2>
          tessera_tile.barrier_expect %full[%stage] bytes 32768 : !tessera_tile.barriers<2>
          %av = tessera_tile.shared_view %as[%stage] : !tessera_tile.shared<2x128x64xbf16, "panels", [0, 1, 2]> -> !tessera_tile.shared<128x64xbf16, "panels", [0, 1]>
          tessera_tile.bulk_copy %a[%i, %s] [128, 64] into %av, %full[%stage] programs 1 once %false : !tessera_tile.tensor<?x?xbf16>, !tessera_tile.shared<128x64xbf16, "panels", [0, 1]>, !tessera_tile.barriers<2>
          %bv = tessera_tile.shared_view %bs[%stage] : !tessera_tile.shared<2x64x128xbf16, "panels", [0, 1, 2]> -> !tessera_tile.shared<64x128xbf16, "panels", [0, 1]>
          tessera_tile.bulk_copy %b[%s, %zero] [64, 128] into %bv, %full[%stage] programs 1 once %false : !tessera_tile.tensor<?x128xbf16>, !tessera_tile.shared<64x128xbf16, "panels", [0, 1]>, !tessera_tile.barriers<2>
          %next = tessera_tile.elementwise "sub"(%one, %stage) : (index, index) -> index
          %wraps = tessera_tile.elementwise "eq"(%next, %zero) : (index, index) -> i1
          %turned = tessera_tile.elementwise "select"(%wraps, %other, %phase) : (i1, index, index) -> index
          scf.yield %next, %turned : index, index
        }
        tessera_tile.role_end %pe#0, %pe#1
      } consumer 232 {
      ^bb0(%cs: index, %cp: index):
        %f = tessera_tile.constant 0.0 : f32
        %acc = tessera_tile.splat %f : f32 -> !tessera_tile.tile<128x128xf32>
        %ce:3 = scf.for %s = %zero to %k step %step iter_args(%t = %acc, %stage = %cs, %phase = %cp) -> (!tessera_tile.tile<128x128xf32>, index, index) {
          %av = tessera_tile.shared_view %as[%stage] : !tessera_tile.shared<2x128x64xbf16, "panels", [0, 1, 2]> -> !tessera_tile.shared<128x64xbf16, "panels", [0, 1]>
          %bv = tessera_tile.shared_view %bs[%stage] : !tessera_tile.shared<2x64x128xbf16, "panels", [0, 1, 2]> -> !tessera_tile.shared<64x128xbf16, "panels", [0, 1]>
          tessera_tile.barrier_wait %full[%stage] parity %phase : !tessera_tile.barriers<2>
          %p = tessera_tile.mma %av, %bv, %t compute "bf16" {tessera_schedule.warpgroup = #builtin.int<1>} : !tessera_tile.shared<128x64xbf16, "panels", [0, 1]>, !tessera_tile.shared<64x128xbf16, "panels", [0, 1]>, !tessera_tile.tile<128x128xf32> -> !tessera_tile.tile<128x128xf32>
          tessera_tile.barrier_arrive %empty[%stage] : !tessera_tile.barriers<2>
          %other = tessera_tile.elementwise "sub"(%one, %phase) : (index, index) -> index
          %next = tessera_tile.elementwise "sub"(%one, %stage) : (index, index) -> index
          %wraps = tessera_tile.elementwise "eq"(%next, %zero) : (index, index) -> i1
          %turned = tessera_tile.elementwise "select"(%wraps, %other, %phase) : (i1, index, index) -> index
          scf.yield %p, %next, %turned : !tessera_tile.tile<128x128xf32>, index, index
        }
        %part = tessera_tile.subtile %ce#0 [0, 32] : !tessera_tile.tile<128x128xf32> -> !tessera_tile.tile<128x32xf32>
        tessera_tile.shared_store %part, %out : !tessera_tile.tile<128x32xf32>, !tessera_tile.shared<128x32xf32, "panels", [0, 1]>
        %column = tessera_tile.constant 32 : index
        tessera_tile.bulk_store %out into %c[%i, %column] [128, 32] : !tessera_tile.shared<128x32xf32, "panels", [0, 1]>, !tessera_tile.tensor<?x128xf32>
        tessera_tile.role_end %ce#1, %ce#2
      }
    } {tessera_schedule.num_warps = #builtin.int<8>}
    tessera_tile.return
  }
}
// CHECK: .target sm_90a
// 8 warps that multiply and 4 of the producer's warpgroup.
// CHECK: .maxntid 384
// CHECK: mbarrier.init.shared::cta.b64 [{{%r\d+}}], 1;
// CHECK: mbarrier.init.shared::cta.b64 [{{%r\d+}}], 8;
// The copy engine must see barriers that are set up.
// CHECK: fence.mbarrier_init.release.cluster;
// CHECK: bar.sync 0;
// CHECK: griddepcontrol.wait;
// CHECK: griddepcontrol.launch_dependents;
// CHECK: setmaxnreg.inc.sync.aligned.u32 232;
// CHECK: mbarrier.try_wait.parity.shared::cta.b64
// Registers are fenced before the first product reads them; four steps of 16 along k, one group, and its end.
// CHECK-NOT: wgmma.mma_async
// CHECK: wgmma.fence.sync.aligned;
// CHECK: wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16
// CHECK: wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16
// CHECK: wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16
// CHECK: wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16
// CHECK-NOT: wgmma.mma_async
// CHECK: wgmma.commit_group.sync.aligned;
// CHECK: wgmma.wait_group.sync.aligned 0;
// CHECK: mbarrier.arrive.shared::cta.b64 _,
// CHECK: st.shared.v2.b32
// CHECK: fence.proxy.async.shared::cta;
// CHECK: bar.warp.sync -1;
// CHECK: cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [
// CHECK: cp.async.bulk.commit_group;
// Shared memory must live until the copy engine has read it.
// CHECK: cp.async.bulk.wait_group.read 0;
// CHECK: setmaxnreg.dec.sync.aligned.u32 40;
// CHECK: mbarrier.try_wait.parity.shared::cta.b64
// CHECK: mbarrier.arrive.expect_tx.shared::cta.b64 _, [[[FULL:%r\d+]]], 32768;
// A's box fills a panel; B's 128 columns are two boxes of 64.
// CHECK: cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes{{.*}}[[FULL]]
// CHECK: cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes{{.*}}[[FULL]]
// CHECK: cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes{{.*}}[[FULL]]
// CHECK-NOT: cp.async.bulk.tensor
