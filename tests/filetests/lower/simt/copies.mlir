// RUN: --to tirt --target sm_80
// cp.async moves 16 bytes where the divisors say so: 8 bf16. The swizzle is part of the buffer, as is its place.
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @copy profile "fast" (
      %x: !tessera_tile.tensor<?x?xbf16> as "x" dims ["M", "K"] strides [-1, 1] stride_div [8, 1] dim_div [1, 8] align 16,
      %y: !tessera_tile.tensor<64x32xbf16> as "y" dims ["64", "32"] strides [32, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
    %zero = tessera_tile.constant 0 : index
    %s = tessera_tile.alloc_shared : !tessera_tile.shared<64x32xbf16, "xor", [0, 1]>
    tessera_tile.cp_async %x[%zero, %zero] [64, 32] into %s : !tessera_tile.tensor<?x?xbf16>, !tessera_tile.shared<64x32xbf16, "xor", [0, 1]>
    tessera_tile.commit_group
    tessera_tile.wait_group 0
    tessera_tile.barrier
    %t = tessera_tile.shared_load %s : !tessera_tile.shared<64x32xbf16, "xor", [0, 1]> -> !tessera_tile.tile<64x32xbf16>
    tessera_tile.store %t, %y[%zero, %zero] [64, 32] : !tessera_tile.tile<64x32xbf16>, !tessera_tile.tensor<64x32xbf16>
    tessera_tile.return
  }
}
// CHECK: [[S:%\d+]] = tessera_target.alloc at 0 : !tessera_target.buffer<64x32xbf16, "shared", "xor", 32, [0, 1]>
// CHECK: tessera_target.memcpy "cp.async" {{.*}} axes [0, 1] checked [0, 1] vector 8 into [[S]]
// CHECK-NEXT: tessera_target.commit
// CHECK-NEXT: tessera_target.wait 0
// CHECK-NEXT: tessera_target.barrier
// CHECK-NEXT: tessera_target.buffer_load [[S]]

// -----
// An odd stride: elements of 2 bytes cannot be copied asynchronously, which takes 4 bytes or more.
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @odd profile "fast" (
      %x: !tessera_tile.tensor<?x?xbf16> as "x" dims ["M", "K"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16,
      %y: !tessera_tile.tensor<64x32xbf16> as "y" dims ["64", "32"] strides [32, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
    %zero = tessera_tile.constant 0 : index
    %s = tessera_tile.alloc_shared : !tessera_tile.shared<64x32xbf16, "none", [0, 1]>
    tessera_tile.cp_async %x[%zero, %zero] [64, 32] into %s : !tessera_tile.tensor<?x?xbf16>, !tessera_tile.shared<64x32xbf16, "none", [0, 1]>
    tessera_tile.commit_group
    tessera_tile.wait_group 0
    tessera_tile.barrier
    %t = tessera_tile.shared_load %s : !tessera_tile.shared<64x32xbf16, "none", [0, 1]> -> !tessera_tile.tile<64x32xbf16>
    tessera_tile.store %t, %y[%zero, %zero] [64, 32] : !tessera_tile.tile<64x32xbf16>, !tessera_tile.tensor<64x32xbf16>
    tessera_tile.return
  }
}
// CHECK: tessera_target.memcpy "plain" {{.*}} vector 1 into
// CHECK: tessera_target.barrier
// CHECK: tessera_target.buffer_load

// -----
// Volta has no asynchronous copies at all.
// RUN: --to tirt --target sm_70
builtin.module attributes {tessera.after = "schedule"} {
  tessera_tile.kernel @volta profile "fast" (
      %x: !tessera_tile.tensor<64x32xbf16> as "x" dims ["64", "32"] strides [32, 1] stride_div [16, 1] dim_div [16, 16] align 16,
      %y: !tessera_tile.tensor<64x32xbf16> as "y" dims ["64", "32"] strides [32, 1] stride_div [16, 1] dim_div [16, 16] align 16 written) {
    %zero = tessera_tile.constant 0 : index
    %s = tessera_tile.alloc_shared : !tessera_tile.shared<64x32xbf16, "none", [0, 1]>
    tessera_tile.cp_async %x[%zero, %zero] [64, 32] into %s : !tessera_tile.tensor<64x32xbf16>, !tessera_tile.shared<64x32xbf16, "none", [0, 1]>
    tessera_tile.commit_group
    tessera_tile.wait_group 0
    tessera_tile.barrier
    %t = tessera_tile.shared_load %s : !tessera_tile.shared<64x32xbf16, "none", [0, 1]> -> !tessera_tile.tile<64x32xbf16>
    tessera_tile.store %t, %y[%zero, %zero] [64, 32] : !tessera_tile.tile<64x32xbf16>, !tessera_tile.tensor<64x32xbf16>
    tessera_tile.return
  }
}
// CHECK: tessera_target.memcpy "plain" {{.*}} vector 8 into
// CHECK: tessera_target.barrier
