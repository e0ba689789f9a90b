// RUN: --to ll --target x86-64-v3
// Lane j of a masked access is at i + j: it takes part if 0 <= i + j < n, and reads zero if not.
!p = !tessera_target.pointer<f32, "global">
!v = !tessera_target.fragment<8xf32, #tessera_target.layout<register = [[1], [2], [4]], sizes = [8]>>
"tessera_target.func"() <{sym_name = "tail", params = [{kind = "size", arg = #builtin.int<0>, axis = #builtin.int<0>, align = #builtin.int<1>, dtype = "i64"}, {kind = "pointer", arg = #builtin.int<0>, axis = #builtin.int<0>, align = #builtin.int<16>, dtype = "f32"}, {kind = "pointer", arg = #builtin.int<1>, axis = #builtin.int<0>, align = #builtin.int<16>, dtype = "f32"}], grid = "[]", num_warps = #builtin.int<1>, profile = "fast", cluster = #builtin.int<1>}> ({
^bb0(%n: index, %x: !p, %y: !p):
  %i = tessera_target.program_id : index
  %one = tessera_target.constant 1 : index
  %t = tessera_target.load %x[%i] strides[%one] sizes[%n] axes [0] checked [0] vector 8 : !p -> !v
  tessera_target.store %t, %y[%i] strides[%one] sizes[%n] axes [0] checked [0] vector 8 : !v, !p
  tessera_target.return
}) : () -> ()
// CHECK: define void @tail(ptr noalias %params, i64 %first, i64 %last)
// A worker runs programs first..last-1.
// CHECK: [[I:%pid\d+]] = phi i64 [ %first, %entry ]
// CHECK-NEXT: icmp slt i64 [[I]], %last
// CHECK: [[LEFT:%v\d+]] = sub nsw i64 {{%v\d+}}, [[I]]
// CHECK: [[BEFORE:%v\d+]] = sub nsw i64 0, [[I]]
// The difference is kept within 0..8 before it becomes 32 bits wide.
// CHECK: [[LOW:%v\d+]] = call i64 @llvm.smax.i64(i64 [[LEFT]], i64 0)
// CHECK-NEXT: [[ENDS:%v\d+]] = call i64 @llvm.smin.i64(i64 [[LOW]], i64 8)
// CHECK: [[BELOW:%v\d+]] = icmp ult <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>,
// CHECK: call i64 @llvm.smax.i64(i64 [[BEFORE]], i64 0)
// CHECK: [[ABOVE:%v\d+]] = icmp uge <8 x i32>
// CHECK: [[MASK:%v\d+]] = and <8 x i1> [[BELOW]], [[ABOVE]]
// CHECK: [[T:%v\d+]] = call <8 x float> @llvm.masked.load.v8f32.p0(ptr align 4 {{%v\d+}}, <8 x i1> [[MASK]], <8 x float> zeroinitializer)
// CHECK: call void @llvm.masked.store.v8f32.p0(<8 x float> [[T]], ptr align 4 {{%v\d+}}, <8 x i1>
// CHECK: ret void

// -----
// A base address known to be a multiple of 16 tells nothing of its elements: accesses are as aligned as one of them.
!p = !tessera_target.pointer<f32, "global">
!v = !tessera_target.fragment<8xf32, #tessera_target.layout<register = [[1], [2], [4]], sizes = [8]>>
"tessera_target.func"() <{sym_name = "whole", params = [{kind = "size", arg = #builtin.int<0>, axis = #builtin.int<0>, align = #builtin.int<1>, dtype = "i64"}, {kind = "pointer", arg = #builtin.int<0>, axis = #builtin.int<0>, align = #builtin.int<16>, dtype = "f32"}, {kind = "pointer", arg = #builtin.int<1>, axis = #builtin.int<0>, align = #builtin.int<16>, dtype = "f32"}], grid = "[]", num_warps = #builtin.int<1>, profile = "fast", cluster = #builtin.int<1>}> ({
^bb0(%n: index, %x: !p, %y: !p):
  %i = tessera_target.program_id : index
  %one = tessera_target.constant 1 : index
  %t = tessera_target.load %x[%i] strides[%one] sizes[%n] axes [0] vector 8 : !p -> !v
  tessera_target.store %t, %y[%i] strides[%one] sizes[%n] axes [0] vector 8 : !v, !p
  tessera_target.return
}) : () -> ()
// CHECK-NOT: masked
// CHECK: load <8 x float>, ptr {{%v\d+}}, align 4
// CHECK: store <8 x float> {{%v\d+}}, ptr {{%v\d+}}, align 4
// CHECK-NOT: masked
