// RUN: --to ptx --target sm_80
// 16 bytes a lane, under one predicate: what is outside is zero, and never read.
!p = !tessera_target.pointer<f32, "global">
!v = !tessera_target.fragment<128xf32, #tessera_target.layout<register = [[1], [2]], lane = [[4], [8], [16], [32], [64]], sizes = [128]>>
"tessera_target.func"() <{sym_name = "quads", params = [{kind = "size", arg = #builtin.int<0>, axis = #builtin.int<0>, align = #builtin.int<1>, dtype = "i64"}, {kind = "pointer", arg = #builtin.int<0>, axis = #builtin.int<0>, align = #builtin.int<16>, dtype = "f32"}, {kind = "pointer", arg = #builtin.int<1>, axis = #builtin.int<0>, align = #builtin.int<16>, dtype = "f32"}], grid = "[]", num_warps = #builtin.int<1>, profile = "fast", cluster = #builtin.int<1>}> ({
^bb0(%n: index, %x: !p, %y: !p):
  %zero = tessera_target.constant 0 : index
  %one = tessera_target.constant 1 : index
  %a = tessera_target.load %x[%zero] strides[%one] sizes[%n] axes [0] checked [0] vector 4 : !p -> !v
  tessera_target.store %a, %y[%zero] strides[%one] sizes[%n] axes [0] checked [0] vector 4 : !v, !p
  tessera_target.return
}) : () -> ()
// CHECK: .target sm_80
// CHECK: .maxntid 32
// CHECK: ld.param.b64 [[N:%rd\d+]], [quads_param_0];
// CHECK: shl.b32 [[I:%r\d+]], {{%r\d+}}, 2;
// CHECK: setp.gt.u64 [[INSIDE:%p\d+]], [[N]],
// CHECK: mov.b32 [[A:%r\d+]], 0; mov.b32 [[B:%r\d+]], 0; mov.b32 [[C:%r\d+]], 0; mov.b32 [[D:%r\d+]], 0; @[[INSIDE]] ld.global.v4.b32 {[[A]], [[B]], [[C]], [[D]]},
// CHECK: @[[INSIDE]] st.global.v4.b32 [{{%rd\d+}}], {[[A]], [[B]], [[C]], [[D]]};
// CHECK-NOT: bar.sync

// -----
// Single elements have a predicate each; without masks there is none.
!p = !tessera_target.pointer<f32, "global">
!v = !tessera_target.fragment<128xf32, #tessera_target.layout<register = [[1], [2]], lane = [[4], [8], [16], [32], [64]], sizes = [128]>>
"tessera_target.func"() <{sym_name = "singles", params = [{kind = "size", arg = #builtin.int<0>, axis = #builtin.int<0>, align = #builtin.int<1>, dtype = "i64"}, {kind = "pointer", arg = #builtin.int<0>, axis = #builtin.int<0>, align = #builtin.int<4>, dtype = "f32"}, {kind = "pointer", arg = #builtin.int<1>, axis = #builtin.int<0>, align = #builtin.int<16>, dtype = "f32"}], grid = "[]", num_warps = #builtin.int<1>, profile = "fast", cluster = #builtin.int<1>}> ({
^bb0(%n: index, %x: !p, %y: !p):
  %zero = tessera_target.constant 0 : index
  %one = tessera_target.constant 1 : index
  %a = tessera_target.load %x[%zero] strides[%one] sizes[%n] axes [0] checked [0] vector 1 : !p -> !v
  tessera_target.store %a, %y[%zero] strides[%one] sizes[%n] axes [0] vector 4 : !v, !p
  tessera_target.return
}) : () -> ()
// CHECK: @[[P0:%p\d+]] ld.global.b32
// CHECK: @[[P1:%p\d+]] ld.global.b32
// CHECK: @[[P2:%p\d+]] ld.global.b32
// CHECK: @[[P3:%p\d+]] ld.global.b32
// CHECK-NOT: ld.global
// CHECK: {{^\s*st.global.v4.b32}} [
