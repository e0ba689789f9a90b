// RUN: --to ll --target x86-64-v3
// Lanes outside are read from a place that is always there, and take the fill: no lane touches memory outside.
!p = !tessera_target.pointer<f32, "global">
!pi = !tessera_target.pointer<i32, "global">
!v = !tessera_target.fragment<4xf32, #tessera_target.layout<register = [[1], [2]], sizes = [4]>>
!vi = !tessera_target.fragment<4xi32, #tessera_target.layout<register = [[1], [2]], sizes = [4]>>
!vx = !tessera_target.fragment<4xindex, #tessera_target.layout<register = [[1], [2]], sizes = [4]>>
!vm = !tessera_target.fragment<4xi1, #tessera_target.layout<register = [[1], [2]], sizes = [4]>>
"tessera_target.func"() <{sym_name = "look_up", params = [{kind = "size", arg = #builtin.int<0>, axis = #builtin.int<0>, align = #builtin.int<1>, dtype = "i64"}, {kind = "pointer", arg = #builtin.int<0>, axis = #builtin.int<0>, align = #builtin.int<16>, dtype = "f32"}, {kind = "pointer", arg = #builtin.int<1>, axis = #builtin.int<0>, align = #builtin.int<16>, dtype = "f32"}], grid = "[]", num_warps = #builtin.int<1>, profile = "fast", cluster = #builtin.int<1>}> ({
^bb0(%n: index, %x: !p, %y: !p):
  %i = tessera_target.iota 0 : !vx
  %all = tessera_target.splat %n : index -> !vx
  %mask = tessera_target.elementwise "lt"(%i, %all) : (!vx, !vx) -> !vm

  %fill = tessera_target.constant -2.0 : f32
  %g = tessera_target.gather %x[%i] mask %mask : !vm fill %fill : f32 : !p[!vx] -> !v
  tessera_target.scatter %g, %y[%i] mask %mask : !vm : !v, !p[!vx]
  tessera_target.return
}) : () -> ()
// CHECK: [[DUMMY:%e\d+]] = alloca
// CHECK: [[MASK:%v\d+]] = icmp slt <4 x i64> <i64 0, i64 1, i64 2, i64 3>,
// CHECK-NEXT: [[PLACES:%v\d+]] = getelementptr float, ptr {{%v\d+}}, <4 x i64> <i64 0, i64 1, i64 2, i64 3>
// Where all lanes are inside nothing is selected.
// CHECK: [[ALL:%v\d+]] = call <4 x float> @llvm.masked.gather.v4f32.v4p0(<4 x ptr> align 4 [[PLACES]], <4 x i1> splat (i1 true),
// CHECK: insertelement <4 x ptr> poison, ptr [[DUMMY]], i64 0
// CHECK: [[SAFE:%v\d+]] = select <4 x i1> [[MASK]], <4 x ptr> [[PLACES]], <4 x ptr>
// CHECK-NEXT: [[SOME:%v\d+]] = call <4 x float> @llvm.masked.gather.v4f32.v4p0(<4 x ptr> align 4 [[SAFE]],
// CHECK-NEXT: [[FILLED:%v\d+]] = select <4 x i1> [[MASK]], <4 x float> [[SOME]], <4 x float> splat (float 0xC000000000000000)
// CHECK: [[G:%v\d+]] = phi <4 x float> [ [[ALL]], {{.*}} ], [ [[FILLED]],
// A store outside goes to the dummy as well.
// CHECK: [[WHERE:%v\d+]] = select <4 x i1> [[MASK]], <4 x ptr> {{%v\d+}}, <4 x ptr>
// CHECK-NEXT: call void @llvm.masked.scatter.v4f32.v4p0(<4 x float> [[G]], <4 x ptr> align 4 [[WHERE]],
