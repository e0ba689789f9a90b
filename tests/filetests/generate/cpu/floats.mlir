// RUN: --to ll --target x86-64-v3
// `fast` lets products and sums be fused, and maxima of zeros of both signs be either: no reassociation, no reciprocals,
// and NaN and infinities stay.
!p = !tessera_target.pointer<f32, "global">
!v = !tessera_target.fragment<8xf32, #tessera_target.layout<register = [[1], [2], [4]], sizes = [8]>>
"tessera_target.func"() <{sym_name = "fast", params = [{kind = "size", arg = #builtin.int<0>, axis = #builtin.int<0>, align = #builtin.int<1>, dtype = "i64"}, {kind = "pointer", arg = #builtin.int<0>, axis = #builtin.int<0>, align = #builtin.int<16>, dtype = "f32"}, {kind = "pointer", arg = #builtin.int<1>, axis = #builtin.int<0>, align = #builtin.int<16>, dtype = "f32"}], grid = "[]", num_warps = #builtin.int<1>, profile = "fast", cluster = #builtin.int<1>}> ({
^bb0(%n: index, %x: !p, %y: !p):
  %zero = tessera_target.constant 0 : index
  %one = tessera_target.constant 1 : index
  %a = tessera_target.load %x[%zero] strides[%one] sizes[%n] axes [0] vector 8 : !p -> !v
  %b = tessera_target.elementwise "mul"(%a, %a) : (!v, !v) -> !v
  %c = tessera_target.elementwise "add"(%b, %a) : (!v, !v) -> !v
  %d = tessera_target.elementwise "div"(%c, %a) : (!v, !v) -> !v
  %e = tessera_target.elementwise "maximum"(%d, %a) : (!v, !v) -> !v
  tessera_target.store %e, %y[%zero] strides[%one] sizes[%n] axes [0] vector 8 : !v, !p
  tessera_target.return
}) : () -> ()
// CHECK-NOT: {{ (fast|reassoc|nnan|ninf|arcp|afn) }}
// CHECK: [[B:%v\d+]] = fmul contract <8 x float> [[A:%v\d+]], [[A]]
// CHECK-NEXT: [[C:%v\d+]] = fadd contract <8 x float> [[B]], [[A]]
// CHECK-NEXT: [[D:%v\d+]] = fdiv {{(contract )?}}<8 x float> [[C]], [[A]]
// NaN is kept by maxima.
// CHECK-NEXT: call nsz <8 x float> @llvm.maximum.v8f32(<8 x float> [[D]], <8 x float> [[A]])
// CHECK-NOT: {{ (fast|reassoc|nnan|ninf|arcp|afn) }}

// -----
// `strict` rounds each operation by itself, and +0 is larger than -0.
!p = !tessera_target.pointer<f32, "global">
!v = !tessera_target.fragment<8xf32, #tessera_target.layout<register = [[1], [2], [4]], sizes = [8]>>
"tessera_target.func"() <{sym_name = "strict", params = [{kind = "size", arg = #builtin.int<0>, axis = #builtin.int<0>, align = #builtin.int<1>, dtype = "i64"}, {kind = "pointer", arg = #builtin.int<0>, axis = #builtin.int<0>, align = #builtin.int<16>, dtype = "f32"}, {kind = "pointer", arg = #builtin.int<1>, axis = #builtin.int<0>, align = #builtin.int<16>, dtype = "f32"}], grid = "[]", num_warps = #builtin.int<1>, profile = "strict", cluster = #builtin.int<1>}> ({
^bb0(%n: index, %x: !p, %y: !p):
  %zero = tessera_target.constant 0 : index
  %one = tessera_target.constant 1 : index
  %a = tessera_target.load %x[%zero] strides[%one] sizes[%n] axes [0] vector 8 : !p -> !v
  %b = tessera_target.elementwise "mul"(%a, %a) : (!v, !v) -> !v
  %c = tessera_target.elementwise "add"(%b, %a) : (!v, !v) -> !v
  %d = tessera_target.elementwise "div"(%c, %a) : (!v, !v) -> !v
  %e = tessera_target.elementwise "maximum"(%d, %a) : (!v, !v) -> !v
  tessera_target.store %e, %y[%zero] strides[%one] sizes[%n] axes [0] vector 8 : !v, !p
  tessera_target.return
}) : () -> ()
// CHECK-NOT: contract
// CHECK: [[B:%v\d+]] = fmul <8 x float> [[A:%v\d+]], [[A]]
// CHECK-NEXT: [[C:%v\d+]] = fadd <8 x float> [[B]], [[A]]
// CHECK-NEXT: [[D:%v\d+]] = fdiv <8 x float> [[C]], [[A]]
// CHECK-NEXT: call <8 x float> @llvm.maximum.v8f32(<8 x float> [[D]], <8 x float> [[A]])
// CHECK-NOT: contract
