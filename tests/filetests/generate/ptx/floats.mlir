// RUN: --to ptx --target sm_80
// `fast`: product and sum fuse, division has 2 ULP and exponentials come from ex2. NaN is kept by maxima.
!p = !tessera_target.pointer<f32, "global">
!v = !tessera_target.fragment<32xf32, #tessera_target.layout<lane = [[1], [2], [4], [8], [16]], sizes = [32]>>
"tessera_target.func"() <{sym_name = "fast", params = [{kind = "size", arg = #builtin.int<0>, axis = #builtin.int<0>, align = #builtin.int<1>, dtype = "i64"}, {kind = "pointer", arg = #builtin.int<0>, axis = #builtin.int<0>, align = #builtin.int<16>, dtype = "f32"}, {kind = "pointer", arg = #builtin.int<1>, axis = #builtin.int<0>, align = #builtin.int<16>, dtype = "f32"}], grid = "[]", num_warps = #builtin.int<1>, profile = "fast", cluster = #builtin.int<1>}> ({
^bb0(%n: index, %x: !p, %y: !p):
  %zero = tessera_target.constant 0 : index
  %one = tessera_target.constant 1 : index
  %a = tessera_target.load %x[%zero] strides[%one] sizes[%n] axes [0] vector 1 : !p -> !v
  %b = tessera_target.elementwise "mul"(%a, %a) : (!v, !v) -> !v
  %c = tessera_target.elementwise "add"(%b, %a) : (!v, !v) -> !v
  %d = tessera_target.elementwise "div"(%c, %a) : (!v, !v) -> !v
  %e = tessera_target.elementwise "exp"(%d) : (!v) -> !v
  %f = tessera_target.elementwise "maximum"(%e, %a) : (!v, !v) -> !v
  tessera_target.store %f, %y[%zero] strides[%one] sizes[%n] axes [0] vector 1 : !v, !p
  tessera_target.return
}) : () -> ()
// CHECK: fma.rn.f32 [[C:%r\d+]], [[A:%r\d+]], [[A]], [[A]];
// CHECK: div.full.f32 {{%r\d+}}, [[C]], [[A]];
// CHECK: ex2.approx{{(.ftz)?}}.f32
// CHECK: max.NaN.f32

// -----
// `strict`: each operation is rounded to nearest.
!p = !tessera_target.pointer<f32, "global">
!v = !tessera_target.fragment<32xf32, #tessera_target.layout<lane = [[1], [2], [4], [8], [16]], sizes = [32]>>
"tessera_target.func"() <{sym_name = "strict", params = [{kind = "size", arg = #builtin.int<0>, axis = #builtin.int<0>, align = #builtin.int<1>, dtype = "i64"}, {kind = "pointer", arg = #builtin.int<0>, axis = #builtin.int<0>, align = #builtin.int<16>, dtype = "f32"}, {kind = "pointer", arg = #builtin.int<1>, axis = #builtin.int<0>, align = #builtin.int<16>, dtype = "f32"}], grid = "[]", num_warps = #builtin.int<1>, profile = "strict", cluster = #builtin.int<1>}> ({
^bb0(%n: index, %x: !p, %y: !p):
  %zero = tessera_target.constant 0 : index
  %one = tessera_target.constant 1 : index
  %a = tessera_target.load %x[%zero] strides[%one] sizes[%n] axes [0] vector 1 : !p -> !v
  %b = tessera_target.elementwise "mul"(%a, %a) : (!v, !v) -> !v
  %c = tessera_target.elementwise "add"(%b, %a) : (!v, !v) -> !v
  %d = tessera_target.elementwise "div"(%c, %a) : (!v, !v) -> !v
  %e = tessera_target.elementwise "exp"(%d) : (!v) -> !v
  %f = tessera_target.elementwise "maximum"(%e, %a) : (!v, !v) -> !v
  tessera_target.store %f, %y[%zero] strides[%one] sizes[%n] axes [0] vector 1 : !v, !p
  tessera_target.return
}) : () -> ()
// CHECK-NOT: {{approx|div.full|ftz}}
// CHECK: mul.rn.f32 [[B:%r\d+]], [[A:%r\d+]], [[A]];
// CHECK: add.rn.f32 [[C:%r\d+]], [[A]], [[B]];
// CHECK: div.rn.f32 {{%r\d+}}, [[C]], [[A]];
// CHECK: max.NaN.f32
// CHECK-NOT: {{approx|div.full|ftz}}
