// RUN: --to ptx --target sm_90a
// Programs of a cluster have a scope of their own.
!pi = !tessera_target.pointer<i32, "global">
"tessera_target.func"() <{sym_name = "near", params = [{kind = "pointer", arg = #builtin.int<0>, axis = #builtin.int<0>, align = #builtin.int<16>, dtype = "i32"}], grid = "[]", num_warps = #builtin.int<1>, profile = "fast", cluster = #builtin.int<1>}> ({
^bb0(%y: !pi):
  %zero = tessera_target.constant 0 : index
  %one = tessera_target.constant 1 : i32
  tessera_target.atomic "store" %y[%zero] value %one : i32 order "release" scope "cluster" : !pi[index]
  %a = tessera_target.atomic "load" %y[%zero] order "seq_cst" scope "cluster" : !pi[index] -> i32
  tessera_target.atomic "store" %y[%zero] value %a : i32 order "relaxed" scope "cluster" : !pi[index]
  tessera_target.return
}) : () -> ()
// CHECK: st.release.cluster.global.b32
// CHECK: fence.sc.cluster;
// CHECK: ld.acquire.cluster.global.b32 [[A:%r\d+]],
// CHECK: st.relaxed.cluster.global.b32 [{{%rd\d+}}], [[A]];
