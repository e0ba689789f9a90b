// RUN: --to ptx --target sm_80
// acq_rel is a relaxed atomic between two fences of its scope (PTX ISA, "Memory consistency model"). Who is outside
// skips it, and has the old value zero.
!pi = !tessera_target.pointer<i32, "global">
!vi = !tessera_target.fragment<32xi32, #tessera_target.layout<lane = [[1], [2], [4], [8], [16]], sizes = [32]>>
!vx = !tessera_target.fragment<32xindex, #tessera_target.layout<lane = [[1], [2], [4], [8], [16]], sizes = [32]>>
!vm = !tessera_target.fragment<32xi1, #tessera_target.layout<lane = [[1], [2], [4], [8], [16]], sizes = [32]>>
"tessera_target.func"() <{sym_name = "count", params = [{kind = "size", arg = #builtin.int<0>, axis = #builtin.int<0>, align = #builtin.int<1>, dtype = "i64"}, {kind = "pointer", arg = #builtin.int<0>, axis = #builtin.int<0>, align = #builtin.int<16>, dtype = "i32"}, {kind = "pointer", arg = #builtin.int<1>, axis = #builtin.int<0>, align = #builtin.int<16>, dtype = "i32"}], grid = "[]", num_warps = #builtin.int<1>, profile = "fast", cluster = #builtin.int<1>}> ({
^bb0(%n: index, %x: !pi, %y: !pi):
  %i = tessera_target.iota 0 : !vx
  %all = tessera_target.splat %n : index -> !vx
  %mask = tessera_target.elementwise "lt"(%i, %all) : (!vx, !vx) -> !vm

  %one = tessera_target.constant 1 : i32
  %v = tessera_target.splat %one : i32 -> !vi
  %old = tessera_target.atomic "add" %v, %x[%i] mask %mask : !vm order "acq_rel" scope "device" : !vi, !pi[!vx] -> !vi
  tessera_target.scatter %old, %y[%i] : !vi, !pi[!vx]
  tessera_target.return
}) : () -> ()
// CHECK: setp.le.s64 [[OUTSIDE:%p\d+]],
// CHECK: fence.acq_rel.gpu;
// CHECK: mov.b32 [[OLD:%r\d+]], 0;
// CHECK: @[[OUTSIDE]] bra [[END:\$\w+]];
// CHECK: atom.global.add.u32 [[OLD]], [{{%rd\d+}}], 1;
// CHECK: [[END]]:
// CHECK: fence.acq_rel.gpu;
// CHECK: st.global.b32 [{{%rd\d+}}], [[OLD]];

// -----
// Of 32 lanes four own an element, and the others hold copies: those must not add again.
!pi = !tessera_target.pointer<i32, "global">
!vi = !tessera_target.fragment<4xi32, #tessera_target.layout<lane = [[1], [2], [0], [0], [0]], sizes = [4]>>
!vx = !tessera_target.fragment<4xindex, #tessera_target.layout<lane = [[1], [2], [0], [0], [0]], sizes = [4]>>
"tessera_target.func"() <{sym_name = "few", params = [{kind = "pointer", arg = #builtin.int<0>, axis = #builtin.int<0>, align = #builtin.int<16>, dtype = "i32"}], grid = "[]", num_warps = #builtin.int<1>, profile = "fast", cluster = #builtin.int<1>}> ({
^bb0(%y: !pi):
  %i = tessera_target.iota 0 : !vx
  %one = tessera_target.constant 1 : i32
  %v = tessera_target.splat %one : i32 -> !vi
  %old = tessera_target.atomic "add" %v, %y[%i] order "relaxed" scope "device" : !vi, !pi[!vx] -> !vi
  tessera_target.return
}) : () -> ()
// CHECK-NOT: fence
// CHECK: mov.u32 [[LANE:%r\d+]], %tid.x;
// CHECK: setp.gt.u32 [[COPY:%p\d+]], [[LANE]], 3;
// CHECK: @[[COPY]] bra [[END:\$\w+]];
// CHECK: atom.global.add.u32
// CHECK: [[END]]:
// CHECK-NOT: fence

// -----
// All devices see what has the scope of the mesh: the exchanges of the loop too.
!p = !tessera_target.pointer<f32, "global">
!v = !tessera_target.fragment<32xf32, #tessera_target.layout<lane = [[1], [2], [4], [8], [16]], sizes = [32]>>
!vx = !tessera_target.fragment<32xindex, #tessera_target.layout<lane = [[1], [2], [4], [8], [16]], sizes = [32]>>
"tessera_target.func"() <{sym_name = "most", params = [{kind = "pointer", arg = #builtin.int<0>, axis = #builtin.int<0>, align = #builtin.int<16>, dtype = "f32"}], grid = "[]", num_warps = #builtin.int<1>, profile = "fast", cluster = #builtin.int<1>}> ({
^bb0(%y: !p):
  %i = tessera_target.iota 0 : !vx
  %one = tessera_target.constant 1.0 : f32
  %v = tessera_target.splat %one : f32 -> !v
  %a = tessera_target.atomic "add" %v, %y[%i] order "release" scope "mesh" : !v, !p[!vx] -> !v
  %m = tessera_target.atomic "max" %v, %y[%i] order "relaxed" scope "mesh" : !v, !p[!vx] -> !v
  tessera_target.return
}) : () -> ()
// CHECK: fence.acq_rel.sys;
// CHECK: atom.relaxed.sys.global.add.f32
// CHECK-NOT: fence
// CHECK: [[AGAIN:\$\w+]]:
// CHECK: max.NaN.f32 [[NEW:%r\d+]], [[SEEN:%r\d+]],
// CHECK: atom.relaxed.sys.global.cas.b32 [[NOW:%r\d+]], [{{%rd\d+}}], [[SEEN]], [[NEW]];
// CHECK: setp.ne.b32 [[CHANGED:%p\d+]], [[NOW]], [[SEEN]];
// CHECK: @[[CHANGED]] bra [[AGAIN]];
