// RUN: --to ptx --target sm_80
// A thread's only element has the order in its instruction. Who is outside skips it, and has the old value zero.
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
  %old = tessera_target.atomic "add" %x[%i] value %v : !vi mask %mask : !vm order "acq_rel" scope "device" : !pi[!vx] -> !vi
  tessera_target.scatter %old, %y[%i] : !vi, !pi[!vx]
  tessera_target.return
}) : () -> ()
// CHECK: setp.gt.s64 [[INSIDE:%p\d+]],
// CHECK-NOT: fence
// CHECK-NOT: bra
// CHECK: mov.b32 [[OLD:%r\d+]], 0; @[[INSIDE]] atom.acq_rel.gpu.global.add.u32 [[OLD]], [{{%rd\d+}}], {{%r\d+}};
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
  %old = tessera_target.atomic "add" %y[%i] value %v : !vi order "relaxed" scope "device" : !pi[!vx] -> !vi
  tessera_target.return
}) : () -> ()
// CHECK-NOT: fence
// CHECK: mov.u32 [[LANE:%r\d+]], %tid.x;
// CHECK: setp.lt.u32 [[OWN:%p\d+]], [[LANE]], 4;
// CHECK-NOT: bra
// CHECK: @[[OWN]] red.relaxed.gpu.global.add.u32
// CHECK-NOT: fence

// -----
// All devices see what has the scope of the mesh: the exchanges of the loop too. A warp leaves it as a whole.
!p = !tessera_target.pointer<f32, "global">
!v = !tessera_target.fragment<32xf32, #tessera_target.layout<lane = [[1], [2], [4], [8], [16]], sizes = [32]>>
!vx = !tessera_target.fragment<32xindex, #tessera_target.layout<lane = [[1], [2], [4], [8], [16]], sizes = [32]>>
"tessera_target.func"() <{sym_name = "most", params = [{kind = "pointer", arg = #builtin.int<0>, axis = #builtin.int<0>, align = #builtin.int<16>, dtype = "f32"}], grid = "[]", num_warps = #builtin.int<1>, profile = "fast", cluster = #builtin.int<1>}> ({
^bb0(%y: !p):
  %i = tessera_target.iota 0 : !vx
  %one = tessera_target.constant 1.0 : f32
  %v = tessera_target.splat %one : f32 -> !v
  %a = tessera_target.atomic "add" %y[%i] value %v : !v order "release" scope "mesh" : !p[!vx] -> !v
  %m = tessera_target.atomic "max" %y[%i] value %v : !v order "relaxed" scope "mesh" : !p[!vx] -> !v
  tessera_target.return
}) : () -> ()
// CHECK: red.release.sys.global.add.f32
// CHECK-NOT: fence
// CHECK: [[AGAIN:\$\w+]]:
// CHECK: max.NaN.f32 [[NEW:%r\d+]], [[SEEN:%r\d+]],
// CHECK: @[[PENDING:%p\d+]] atom.relaxed.sys.global.cas.b32 [[NOW:%r\d+]], [{{%rd\d+}}], [[SEEN]], [[NEW]];
// CHECK: vote.sync.any.pred [[ANY:%p\d+]],
// CHECK: @[[ANY]] bra [[AGAIN]];

// -----
// Loads and stores, and an update in its order of updates.
!pi = !tessera_target.pointer<i32, "global">
"tessera_target.func"() <{sym_name = "words", params = [{kind = "pointer", arg = #builtin.int<0>, axis = #builtin.int<0>, align = #builtin.int<16>, dtype = "i32"}], grid = "[]", num_warps = #builtin.int<1>, profile = "fast", cluster = #builtin.int<1>}> ({
^bb0(%y: !pi):
  %zero = tessera_target.constant 0 : index
  %one = tessera_target.constant 1 : i32
  %a = tessera_target.atomic "load" %y[%zero] order "relaxed" scope "group" : !pi[index] -> i32
  %b = tessera_target.atomic "load" %y[%zero] order "acquire" scope "device" : !pi[index] -> i32
  tessera_target.atomic "store" %y[%zero] value %a : i32 order "relaxed" scope "device" : !pi[index]
  tessera_target.atomic "store" %y[%zero] value %b : i32 order "release" scope "mesh" : !pi[index]
  %c = tessera_target.atomic "compare_exchange" %y[%zero] value %one : i32 compare %one : i32 order "acquire" scope "device" : !pi[index] -> i32
  %d = tessera_target.atomic "exchange" %y[%zero] value %c : i32 order "release" scope "device" : !pi[index] -> i32
  %e = tessera_target.atomic "max" %y[%zero] value %d : i32 order "acquire" scope "device" : !pi[index] -> i32
  tessera_target.return
}) : () -> ()
// CHECK-NOT: fence
// CHECK: ld.relaxed.cta.global.b32 [[A:%r\d+]], [
// CHECK: ld.acquire.gpu.global.b32 [[B:%r\d+]], [
// CHECK: st.relaxed.gpu.global.b32 [{{%rd\d+}}], [[A]];
// CHECK: st.release.sys.global.b32 [{{%rd\d+}}], [[B]];
// CHECK: atom.acquire.gpu.global.cas.b32 [[C:%r\d+]], [{{%rd\d+}}], {{%r\d+}}, {{%r\d+}};
// CHECK: atom.release.gpu.global.exch.b32 [[D:%r\d+]], [{{%rd\d+}}], [[C]];
// CHECK: atom.acquire.gpu.global.max.s32 {{%r\d+}}, [{{%rd\d+}}], [[D]];

// -----
// Sequential consistency is a fence of its own, then the access (PTX Writer's Guide to Interoperability, "Atomics ABI").
!pi = !tessera_target.pointer<i32, "global">
"tessera_target.func"() <{sym_name = "sequential", params = [{kind = "pointer", arg = #builtin.int<0>, axis = #builtin.int<0>, align = #builtin.int<16>, dtype = "i32"}], grid = "[]", num_warps = #builtin.int<1>, profile = "fast", cluster = #builtin.int<1>}> ({
^bb0(%y: !pi):
  %zero = tessera_target.constant 0 : index
  %one = tessera_target.constant 1 : i32
  tessera_target.atomic "store" %y[%zero] value %one : i32 order "seq_cst" scope "device" : !pi[index]
  %a = tessera_target.atomic "load" %y[%zero] order "seq_cst" scope "device" : !pi[index] -> i32
  %b = tessera_target.atomic "add" %y[%zero] value %a : i32 order "seq_cst" scope "mesh" : !pi[index] -> i32
  tessera_target.fence "seq_cst" scope "device"
  tessera_target.fence "release" scope "mesh"
  tessera_target.fence "acquire" scope "group"
  tessera_target.return
}) : () -> ()
// CHECK: fence.sc.gpu;
// CHECK: st.relaxed.gpu.global.b32
// CHECK: fence.sc.gpu;
// CHECK: ld.acquire.gpu.global.b32
// CHECK: fence.sc.sys;
// CHECK: atom.acquire.sys.global.add.u32
// CHECK: fence.sc.gpu;
// CHECK: fence.acq_rel.sys;
// CHECK: fence.acq_rel.cta;

// -----
// Two elements a thread: relaxed accesses, and fences for both of them.
!pi = !tessera_target.pointer<i32, "global">
!vi = !tessera_target.fragment<64xi32, #tessera_target.layout<register = [[1]], lane = [[2], [4], [8], [16], [32]], sizes = [64]>>
!vx = !tessera_target.fragment<64xindex, #tessera_target.layout<register = [[1]], lane = [[2], [4], [8], [16], [32]], sizes = [64]>>
"tessera_target.func"() <{sym_name = "pairs", params = [{kind = "pointer", arg = #builtin.int<0>, axis = #builtin.int<0>, align = #builtin.int<16>, dtype = "i32"}], grid = "[]", num_warps = #builtin.int<1>, profile = "fast", cluster = #builtin.int<1>}> ({
^bb0(%y: !pi):
  %i = tessera_target.iota 0 : !vx
  %a = tessera_target.atomic "load" %y[%i] order "seq_cst" scope "device" : !pi[!vx] -> !vi
  tessera_target.atomic "store" %y[%i] value %a : !vi order "release" scope "mesh" : !pi[!vx]
  tessera_target.return
}) : () -> ()
// CHECK: fence.sc.gpu;
// CHECK: ld.relaxed.gpu.global.b32
// CHECK-NOT: fence
// CHECK: ld.relaxed.gpu.global.b32
// CHECK: fence.acq_rel.gpu;
// CHECK: fence.acq_rel.sys;
// CHECK: st.relaxed.sys.global.b32
// CHECK-NOT: fence
// CHECK: st.relaxed.sys.global.b32
// CHECK-NOT: fence

// -----
// Below Hopper, where there are no clusters, the scope of a cluster is the device.
!pi = !tessera_target.pointer<i32, "global">
"tessera_target.func"() <{sym_name = "near", params = [{kind = "pointer", arg = #builtin.int<0>, axis = #builtin.int<0>, align = #builtin.int<16>, dtype = "i32"}], grid = "[]", num_warps = #builtin.int<1>, profile = "fast", cluster = #builtin.int<1>}> ({
^bb0(%y: !pi):
  %zero = tessera_target.constant 0 : index
  %one = tessera_target.constant 1 : i32
  tessera_target.atomic "store" %y[%zero] value %one : i32 order "release" scope "cluster" : !pi[index]
  tessera_target.return
}) : () -> ()
// CHECK: st.release.gpu.global.b32
