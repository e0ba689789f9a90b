// RUN: --to ptx --target sm_80
// What is outside is not read, and becomes the fill; a scatter does not write it.
!p = !tessera_target.pointer<f32, "global">
!v = !tessera_target.fragment<32xf32, #tessera_target.layout<lane = [[1], [2], [4], [8], [16]], sizes = [32]>>
!vx = !tessera_target.fragment<32xindex, #tessera_target.layout<lane = [[1], [2], [4], [8], [16]], sizes = [32]>>
!vm = !tessera_target.fragment<32xi1, #tessera_target.layout<lane = [[1], [2], [4], [8], [16]], sizes = [32]>>
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
// CHECK: setp.gt.s64 [[INSIDE:%p\d+]],
// CHECK: @[[INSIDE]] ld.global.b32 [[G:%r\d+]],
// CHECK: selp.{{[bf]}}32 [[F:%r\d+]], [[G]], {{0fC0000000|-1073741824}}, [[INSIDE]];
// CHECK: @[[INSIDE]] st.global.b32 [{{%rd\d+}}], [[F]];
