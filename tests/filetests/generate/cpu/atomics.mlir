// RUN: --to ll --target x86-64-v3
// Lane by lane, in order; a lane outside updates nothing and has the old value zero.
!p = !tessera_target.pointer<f32, "global">
!pi = !tessera_target.pointer<i32, "global">
!v = !tessera_target.fragment<4xf32, #tessera_target.layout<register = [[1], [2]], sizes = [4]>>
!vi = !tessera_target.fragment<4xi32, #tessera_target.layout<register = [[1], [2]], sizes = [4]>>
!vx = !tessera_target.fragment<4xindex, #tessera_target.layout<register = [[1], [2]], sizes = [4]>>
!vm = !tessera_target.fragment<4xi1, #tessera_target.layout<register = [[1], [2]], sizes = [4]>>
"tessera_target.func"() <{sym_name = "count", params = [{kind = "size", arg = #builtin.int<0>, axis = #builtin.int<0>, align = #builtin.int<1>, dtype = "i64"}, {kind = "pointer", arg = #builtin.int<0>, axis = #builtin.int<0>, align = #builtin.int<16>, dtype = "i32"}], grid = "[]", num_warps = #builtin.int<1>, profile = "fast", cluster = #builtin.int<1>}> ({
^bb0(%n: index, %y: !pi):
  %i = tessera_target.iota 0 : !vx
  %all = tessera_target.splat %n : index -> !vx
  %mask = tessera_target.elementwise "lt"(%i, %all) : (!vx, !vx) -> !vm

  %one = tessera_target.constant 1 : i32
  %v = tessera_target.splat %one : i32 -> !vi
  %old = tessera_target.atomic "add" %y[%i] value %v : !vi mask %mask : !vm order "acq_rel" scope "device" : !pi[!vx] -> !vi
  tessera_target.return
}) : () -> ()
// CHECK: [[MASK:%v\d+]] = icmp slt <4 x i64>
// CHECK: [[BITS:%v\d+]] = bitcast <4 x i1> [[MASK]] to i4
// CHECK: [[LANE:%lane\d+]] = phi i64 [ 0,
// CHECK: lshr i4 [[BITS]],
// CHECK: br i1 {{%v\d+}}, label %update[[U:\d+]], label %join[[J:\d+]]
// CHECK: [[OLD:%v\d+]] = atomicrmw add ptr {{%v\d+}}, i32 {{%v\d+}} acq_rel, align 4
// CHECK: phi i32 [ 0, {{%lane\d+}} ], [ [[OLD]], %update[[U]] ]

// -----
// There is no instruction for maxima of floats: the value is exchanged until nobody was faster. NaN stays NaN.
!p = !tessera_target.pointer<f32, "global">
!pi = !tessera_target.pointer<i32, "global">
!v = !tessera_target.fragment<4xf32, #tessera_target.layout<register = [[1], [2]], sizes = [4]>>
!vi = !tessera_target.fragment<4xi32, #tessera_target.layout<register = [[1], [2]], sizes = [4]>>
!vx = !tessera_target.fragment<4xindex, #tessera_target.layout<register = [[1], [2]], sizes = [4]>>
!vm = !tessera_target.fragment<4xi1, #tessera_target.layout<register = [[1], [2]], sizes = [4]>>
"tessera_target.func"() <{sym_name = "most", params = [{kind = "size", arg = #builtin.int<0>, axis = #builtin.int<0>, align = #builtin.int<1>, dtype = "i64"}, {kind = "pointer", arg = #builtin.int<0>, axis = #builtin.int<0>, align = #builtin.int<16>, dtype = "f32"}], grid = "[]", num_warps = #builtin.int<1>, profile = "fast", cluster = #builtin.int<1>}> ({
^bb0(%n: index, %x: !p):
  %i = tessera_target.iota 0 : !vx
  %one = tessera_target.constant 1.0 : f32
  %v = tessera_target.splat %one : f32 -> !v
  %old = tessera_target.atomic "max" %x[%i] value %v : !v order "relaxed" scope "device" : !p[!vx] -> !v
  tessera_target.return
}) : () -> ()
// CHECK: [[FIRST:%v\d+]] = load atomic i32, ptr [[PLACE:%v\d+]] monotonic, align 4
// CHECK: [[NOW:%cur\d+]] = phi i32 [ [[FIRST]], {{.*}} ], [ [[SEEN:%v\d+]], {{%retry\d+}} ]
// CHECK: [[F:%v\d+]] = bitcast i32 [[NOW]] to float
// CHECK-NEXT: [[M:%v\d+]] = call nsz float @llvm.maximum.f32(float [[F]],
// CHECK: [[NEW:%v\d+]] = bitcast float [[M]] to i32
// CHECK-NEXT: [[PAIR:%v\d+]] = cmpxchg ptr [[PLACE]], i32 [[NOW]], i32 [[NEW]] monotonic monotonic, align 4
// CHECK-NEXT: [[SEEN]] = extractvalue { i32, i1 } [[PAIR]], 0

// -----
// Loads, stores and fences have LLVM's orders; a failed exchange has what is left of its order.
!pi = !tessera_target.pointer<i32, "global">
"tessera_target.func"() <{sym_name = "words", params = [{kind = "pointer", arg = #builtin.int<0>, axis = #builtin.int<0>, align = #builtin.int<16>, dtype = "i32"}], grid = "[]", num_warps = #builtin.int<1>, profile = "fast", cluster = #builtin.int<1>}> ({
^bb0(%y: !pi):
  %zero = tessera_target.constant 0 : index
  %one = tessera_target.constant 1 : i32
  %a = tessera_target.atomic "load" %y[%zero] order "acquire" scope "device" : !pi[index] -> i32
  tessera_target.atomic "store" %y[%zero] value %a : i32 order "release" scope "device" : !pi[index]
  tessera_target.atomic "store" %y[%zero] value %a : i32 order "seq_cst" scope "mesh" : !pi[index]
  %b = tessera_target.atomic "load" %y[%zero] order "seq_cst" scope "group" : !pi[index] -> i32
  tessera_target.fence "seq_cst" scope "device"
  tessera_target.fence "release" scope "mesh"
  %c = tessera_target.atomic "compare_exchange" %y[%zero] value %b : i32 compare %b : i32 order "seq_cst" scope "device" : !pi[index] -> i32
  %d = tessera_target.atomic "compare_exchange" %y[%zero] value %c : i32 compare %c : i32 order "release" scope "device" : !pi[index] -> i32
  %e = tessera_target.atomic "compare_exchange" %y[%zero] value %d : i32 compare %d : i32 order "acq_rel" scope "device" : !pi[index] -> i32
  tessera_target.return
}) : () -> ()
// CHECK: [[A:%v\d+]] = load atomic i32, ptr [[P:%v\d+]] acquire, align 4
// CHECK: store atomic i32 [[A]], ptr {{%v\d+}} release, align 4
// CHECK: store atomic i32 [[A]], ptr {{%v\d+}} seq_cst, align 4
// CHECK: [[B:%v\d+]] = load atomic i32, ptr {{%v\d+}} seq_cst, align 4
// CHECK: fence seq_cst
// CHECK: fence release
// CHECK: cmpxchg ptr {{%v\d+}}, i32 [[B]], i32 [[B]] seq_cst seq_cst, align 4
// CHECK: cmpxchg ptr {{.*}} release monotonic, align 4
// CHECK: cmpxchg ptr {{.*}} acq_rel acquire, align 4
