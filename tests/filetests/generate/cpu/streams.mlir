// RUN: --to ll --target x86-64-v3
// A streamed store goes past the caches only where its address is that of a whole vector, and is fenced before the end.
!p = !tessera_target.pointer<f32, "global">
!v = !tessera_target.fragment<8xf32, #tessera_target.layout<register = [[1], [2], [4]], sizes = [8]>>
"tessera_target.func"() <{sym_name = "stream", params = [{kind = "size", arg = #builtin.int<0>, axis = #builtin.int<0>, align = #builtin.int<1>, dtype = "i64"}, {kind = "pointer", arg = #builtin.int<0>, axis = #builtin.int<0>, align = #builtin.int<16>, dtype = "f32"}, {kind = "pointer", arg = #builtin.int<1>, axis = #builtin.int<0>, align = #builtin.int<16>, dtype = "f32"}], grid = "[]", num_warps = #builtin.int<1>, profile = "fast", cluster = #builtin.int<1>}> ({
^bb0(%n: index, %x: !p, %y: !p):
  %zero = tessera_target.constant 0 : index
  %one = tessera_target.constant 1 : index
  %large = tessera_target.constant 4194304 : index
  %wanted = tessera_target.elementwise "ge"(%n, %large) : (index, index) -> i1
  %t = tessera_target.load %x[%zero] strides[%one] sizes[%n] axes [0] vector 8 : !p -> !v
  tessera_target.store %t, %y[%zero] strides[%one] sizes[%n] axes [0] vector 8 stream %wanted : !v, !p
  tessera_target.return
}) : () -> ()
// CHECK: [[WANTED:%v\d+]] = icmp sge i64 {{%v\d+}}, 4194304
// CHECK: [[ADDRESS:%v\d+]] = ptrtoint ptr [[PLACE:%v\d+]] to i64
// CHECK-NEXT: [[REST:%v\d+]] = and i64 [[ADDRESS]], 31
// CHECK-NEXT: [[ALIGNED:%v\d+]] = icmp eq i64 [[REST]], 0
// CHECK-NEXT: [[PAST:%v\d+]] = and i1 [[WANTED]], [[ALIGNED]]
// CHECK-NEXT: br i1 [[PAST]],
// CHECK: store <8 x float> [[T:%v\d+]], ptr [[PLACE]], align 32, !nontemporal
// CHECK: store <8 x float> [[T]], ptr [[PLACE]], align 4
// Non-temporal stores are ordered by nothing else (Intel SDM, volume 1, 10.4.6.2).
// CHECK: call void @llvm.x86.sse.sfence()
// CHECK: ret void
