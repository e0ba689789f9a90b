// RUN: --to tirt --target sm_90a
// Warp roles with a ring of two stages: a producer fetches by bulk copies, two warpgroups multiply.
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @gemm profile "fast" (
      %a: !tessera_tile.tensor<?x?xbf16> as "a" dims ["M", "K"] strides [-1, 1] stride_div [16, 1] dim_div [16, 16] align 16,
      %b: !tessera_tile.tensor<?x128xbf16> as "b" dims ["K", "128"] strides [128, 1] stride_div [16, 1] dim_div [16, 16] align 16,
      %c: !tessera_tile.tensor<?x128xf32> as "c" dims ["M", "128"] strides [128, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
    %m = tessera_tile.dim %a[0] : !tessera_tile.tensor<?x?xbf16>
    %k = tessera_tile.dim %a[1] : !tessera_tile.tensor<?x?xbf16>
    tessera_tile.grid(%m) by [128] {
    ^bb0(%i: index):
      %out = tessera_tile.alloc_shared : !tessera_tile.shared<128x32xf32, "panels", [0, 1]>
      %bs = tessera_tile.alloc_shared : !tessera_tile.shared<2x64x128xbf16, "panels", [0, 1, 2]>
      %as = tessera_tile.alloc_shared : !tessera_tile.shared<2x128x64xbf16, "panels", [0, 1, 2]>
      %full = tessera_tile.alloc_barriers arrivals 1 programs 1 : !tessera_tile.barriers<2>
      %empty = tessera_tile.alloc_barriers arrivals 1 programs 1 : !tessera_tile.barriers<2>
      %zero = tessera_tile.constant 0 : index
      %one = tessera_tile.constant 1 : index
      %two = tessera_tile.constant 2 : index
      %step = tessera_tile.constant 64 : index
      %false = tessera_tile.constant false
      tessera_tile.roles(%zero, %zero) producer 40 {
      ^bb0(%ps: index, %pp: index):
        %pe:2 = scf.for %s = %zero to %k step %step iter_args(%stage = %ps, %phase = %pp) -> (index, index) {
          %other = tessera_tile.elementwise "sub"(%one, %phase) : (index, index) -> index
          tessera_tile.barrier_wait %empty[%stage] parity %other : !tessera_tile.barriers<2>
          tessera_tile.barrier_expect %full[%stage] bytes 32768 : !tessera_tile.barriers<2>
          %av = tessera_tile.shared_view %as[%stage] : !tessera_tile.shared<2x128x64xbf16, "panels", [0, 1, 2]> -> !tessera_tile.shared<128x64xbf16, "panels", [0, 1]>
          tessera_tile.bulk_copy %a[%i, %s] [128, 64] into %av, %full[%stage] programs 1 once %false : !tessera_tile.tensor<?x?xbf16>, !tessera_tile.shared<128x64xbf16, "panels", [0, 1]>, !tessera_tile.barriers<2>
          %bv = tessera_tile.shared_view %bs[%stage] : !tessera_tile.shared<2x64x128xbf16, "panels", [0, 1, 2]> -> !tessera_tile.shared<64x128xbf16, "panels", [0, 1]>
          tessera_tile.bulk_copy %b[%s, %zero] [64, 128] into %bv, %full[%stage] programs 1 once %false : !tessera_tile.tensor<?x128xbf16>, !tessera_tile.shared<64x128xbf16, "panels", [0, 1]>, !tessera_tile.barriers<2>
          %next = tessera_tile.elementwise "sub"(%one, %stage) : (index, index) -> index
          %wraps = tessera_tile.elementwise "eq"(%next, %zero) : (index, index) -> i1
          %turned = tessera_tile.elementwise "select"(%wraps, %other, %phase) : (i1, index, index) -> index
          scf.yield %next, %turned : index, index
        }
        tessera_tile.role_end %pe#0, %pe#1
      } consumer 232 {
      ^bb0(%cs: index, %cp: index):
        %f = tessera_tile.constant 0.0 : f32
        %acc = tessera_tile.splat %f : f32 -> !tessera_tile.tile<128x128xf32>
        %ce:3 = scf.for %s = %zero to %k step %step iter_args(%t = %acc, %stage = %cs, %phase = %cp) -> (!tessera_tile.tile<128x128xf32>, index, index) {
          %av = tessera_tile.shared_view %as[%stage] : !tessera_tile.shared<2x128x64xbf16, "panels", [0, 1, 2]> -> !tessera_tile.shared<128x64xbf16, "panels", [0, 1]>
          %bv = tessera_tile.shared_view %bs[%stage] : !tessera_tile.shared<2x64x128xbf16, "panels", [0, 1, 2]> -> !tessera_tile.shared<64x128xbf16, "panels", [0, 1]>
          tessera_tile.barrier_wait %full[%stage] parity %phase : !tessera_tile.barriers<2>
          %p = tessera_tile.mma %av, %bv, %t compute "bf16" {tessera_schedule.warpgroup = #builtin.int<1>} : !tessera_tile.shared<128x64xbf16, "panels", [0, 1]>, !tessera_tile.shared<64x128xbf16, "panels", [0, 1]>, !tessera_tile.tile<128x128xf32> -> !tessera_tile.tile<128x128xf32>
          tessera_tile.barrier_arrive %empty[%stage] : !tessera_tile.barriers<2>
          %other = tessera_tile.elementwise "sub"(%one, %phase) : (index, index) -> index
          %next = tessera_tile.elementwise "sub"(%one, %stage) : (index, index) -> index
          %wraps = tessera_tile.elementwise "eq"(%next, %zero) : (index, index) -> i1
          %turned = tessera_tile.elementwise "select"(%wraps, %other, %phase) : (i1, index, index) -> index
          scf.yield %p, %next, %turned : !tessera_tile.tile<128x128xf32>, index, index
        }
        %part = tessera_tile.subtile %ce#0 [0, 32] : !tessera_tile.tile<128x128xf32> -> !tessera_tile.tile<128x32xf32>
        tessera_tile.shared_store %part, %out : !tessera_tile.tile<128x32xf32>, !tessera_tile.shared<128x32xf32, "panels", [0, 1]>
        %column = tessera_tile.constant 32 : index
        tessera_tile.bulk_store %out into %c[%i, %column] [128, 32] : !tessera_tile.shared<128x32xf32, "panels", [0, 1]>, !tessera_tile.tensor<?x128xf32>
        tessera_tile.role_end %ce#1, %ce#2
      }
    } {tessera_schedule.num_warps = #builtin.int<8>}
    tessera_tile.return
  }
}
// Tensor maps come as parameters, of boxes of 64 columns (128 bytes of bf16) by rows.
// CHECK: kind = "tensor_map", arg = #builtin.int<0>{{.*}}order = [#builtin.int<1>, #builtin.int<0>], box = [#builtin.int<64>, #builtin.int<128>]
// CHECK: ^bb0({{.*}}: index, [[A:%\d+]]: !tessera_target.pointer<bf16, "param">, [[B:%\d+]]: !tessera_target.pointer<bf16, "param">, [[C:%\d+]]:
// One arrival and its bytes fill a stage; one arrival of each of eight warps empties it. All threads wait until both
// are set up.
// CHECK: tessera_target.mbarrier_init [[FULL:%\d+]] arrivals 1 :
// CHECK: tessera_target.mbarrier_init [[EMPTY:%\d+]] arrivals 8 :
// CHECK: tessera_target.barrier
// CHECK: tessera_target.grid_wait
// CHECK: tessera_target.roles registers [40, 232] producer {
// A stage is free before it is filled, and its bytes are expected before the copies start: 128 x 64 + 64 x 128 bf16.
// CHECK: tessera_target.mbarrier_wait [[EMPTY]][[[S:%\d+]]] parity
// CHECK-NEXT: tessera_target.mbarrier_expect [[FULL]][[[S]]] bytes 32768
// CHECK: tessera_target.bulk_copy [[A]][{{.*}} box [64, 128] {{.*}}, [[FULL]][[[S]]] :
// CHECK: tessera_target.bulk_copy [[B]][{{.*}} box [64, 64] {{.*}}, [[FULL]][[[S]]] :
// CHECK: } consumer {
// A stage is full before the product reads it, and free after that.
// CHECK: tessera_target.mbarrier_wait [[FULL]][[[T:%\d+]]] parity
// CHECK-NEXT: tessera_target.tensor_core "wgmma_m64n128k16_bf16_bf16_f32"
// CHECK-NEXT: tessera_target.mbarrier_arrive [[EMPTY]][[[T]]]
// What threads wrote, the copy engine reads only behind a fence, once all threads of the warp have written.
// CHECK: tessera_target.buffer_store {{.*}}, [[OUT:%\d+]][]
// CHECK: tessera_target.proxy_fence
// CHECK-NEXT: tessera_target.warp_barrier
// CHECK-NEXT: tessera_target.bulk_store [[OUT]] into [[C]][
// Shared memory must live until it has been read.
// CHECK: tessera_target.bulk_wait 0
// CHECK: tessera_target.return
