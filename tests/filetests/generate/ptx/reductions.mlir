// RUN: --to ptx --target sm_80
// Lanes that differ in one bit exchange what they have; all threads of four warps meet at a barrier, and read after it.
!p = !tessera_target.pointer<f32, "global">
!s = !tessera_target.buffer<4xf32, "shared", "none", 4, [0]>
!v = !tessera_target.fragment<128xf32, #tessera_target.layout<lane = [[1], [2], [4], [8], [16]], warp = [[32], [64]], sizes = [128]>>
!w = !tessera_target.fragment<4xf32, #tessera_target.layout<lane = [[0], [0], [0], [0], [0]], warp = [[1], [2]], sizes = [4]>>
!all = !tessera_target.fragment<4xf32, #tessera_target.layout<register = [[1], [2]], lane = [[0], [0], [0], [0], [0]], warp = [[0], [0]], sizes = [4]>>
"tessera_target.func"() <{sym_name = "sum", params = [{kind = "size", arg = #builtin.int<0>, axis = #builtin.int<0>, align = #builtin.int<1>, dtype = "i64"}, {kind = "pointer", arg = #builtin.int<0>, axis = #builtin.int<0>, align = #builtin.int<16>, dtype = "f32"}, {kind = "pointer", arg = #builtin.int<1>, axis = #builtin.int<0>, align = #builtin.int<16>, dtype = "f32"}], grid = "[]", num_warps = #builtin.int<4>, profile = "fast", cluster = #builtin.int<1>}> ({
^bb0(%n: index, %x: !p, %y: !p):
  %zero = tessera_target.constant 0 : index
  %one = tessera_target.constant 1 : index
  %s = tessera_target.alloc at 0 : !s
  %a = tessera_target.load %x[%zero] strides[%one] sizes[%n] axes [0] vector 1 : !p -> !w
  %b = tessera_target.reduce_lanes "sum" %a mask 16 : !w -> !w
  tessera_target.buffer_store %b, %s[] axes [0] vector 1 : !w, !s
  tessera_target.barrier
  %c = tessera_target.buffer_load %s[] axes [0] vector 4 : !s -> !all
  tessera_target.store %c, %y[%zero] strides[%one] sizes[%n] axes [0] vector 4 : !all, !p
  tessera_target.return
}) : () -> ()
// CHECK: .maxntid 128
// CHECK: ld.global.b32 [[A:%r\d+]],
// CHECK: shfl.sync.bfly.b32 [[OTHER:%r\d+]], [[A]], 16, 31, -1;
// CHECK: add.f32 [[B:%r\d+]], [[A]], [[OTHER]];
// One lane of a warp writes, as the others hold copies.
// CHECK: st.shared.b32 [{{.*}}], [[B]];
// CHECK: bar.sync 0;
// CHECK: ld.shared.v4.b32
