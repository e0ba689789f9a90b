// RUN: schedule-fit-blocks

// Known sizes: one launch, with the tiles that take least for them. Its boxes, zeros, sums and stores have their sizes.
tessera_tile.kernel @known profile "fast" (
    %a: !tessera_tile.tensor<4096x1024xbf16> as "A" dims ["4096", "1024"] strides [1024, 1] stride_div [1024, 1] dim_div [4096, 1024] align 16,
    %b: !tessera_tile.tensor<1024x4096xbf16> as "B" dims ["1024", "4096"] strides [4096, 1] stride_div [4096, 1] dim_div [1024, 4096] align 16,
    %c: !tessera_tile.tensor<4096x4096xf32> as "C" dims ["4096", "4096"] strides [4096, 1] stride_div [4096, 1] dim_div [4096, 4096] align 16 written) {
  %m = tessera_tile.constant 4096 : index
  %k = tessera_tile.constant 1024 : index
  %c0 = tessera_tile.constant 0 : index
  %c80 = tessera_tile.constant 80 : index
  %none = tessera_tile.constant 0.0 : f32
  // CHECK: tessera_tile.grid
  // CHECK-SAME: by [128, 256] {
  // CHECK: ^[[BODY:bb[0-9]+]]([[I:%\w+]]: index, [[J:%\w+]]: index):
  tessera_tile.grid(%m, %m) by [104, 200] {
  ^bb0(%i: index, %j: index):
    // CHECK: tessera_tile.splat {{.*}} -> !tessera_tile.tile<128x256xf32>
    %zero = tessera_tile.splat %none : f32 -> !tessera_tile.tile<104x200xf32>
    %sum = scf.for %at = %c0 to %k step %c80 iter_args(%acc = %zero) -> (!tessera_tile.tile<104x200xf32>) {
      // CHECK: tessera_tile.load %a[[[I]], [[AT:%\w+]]] [128, 64]
      %x = tessera_tile.load %a[%i, %at] [104, 80] : !tessera_tile.tensor<4096x1024xbf16> -> !tessera_tile.tile<104x80xbf16>
      // CHECK: tessera_tile.load %b[[[AT]], [[J]]] [64, 256]
      %y = tessera_tile.load %b[%at, %j] [80, 200] : !tessera_tile.tensor<1024x4096xbf16> -> !tessera_tile.tile<80x200xbf16>
      %next = tessera_tile.mma %x, %y, %acc compute "bf16" : !tessera_tile.tile<104x80xbf16>, !tessera_tile.tile<80x200xbf16>, !tessera_tile.tile<104x200xf32> -> !tessera_tile.tile<104x200xf32>
      scf.yield %next : !tessera_tile.tile<104x200xf32>
    }
    // CHECK: tessera_tile.store {{.*}}, %c[[[I]], [[J]]] [128, 256]
    // CHECK: tessera_notes.blocks = ["tiles of 104x200 are computed as 128x256"]
    // CHECK-SAME: tessera_notes.terms = ["steps of 80 terms are computed as steps of 64"]
    tessera_tile.store %sum, %c[%i, %j] [104, 200] : !tessera_tile.tile<104x200xf32>, !tessera_tile.tensor<4096x4096xf32>
  }
  tessera_tile.return
}

// -----

// Others: a launch for each size of tiles, of which one has programs. Where a tensor goes on behind the grid, none.
tessera_tile.kernel @open profile "fast" (
    %a: !tessera_tile.tensor<?x64xbf16> as "A" dims ["M", "64"] strides [64, 1] stride_div [64, 1] dim_div [1, 64] align 16,
    %b: !tessera_tile.tensor<64x?xbf16> as "B" dims ["64", "N"] strides [-1, 1] stride_div [1, 1] dim_div [64, 1] align 16,
    %c: !tessera_tile.tensor<?x?xf32> as "C" dims ["M", "N"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16 written,
    %d: !tessera_tile.tensor<?x?xf32> as "D" dims ["L", "N"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1] align 16 written) {
  %m = tessera_tile.dim %a[0] : !tessera_tile.tensor<?x64xbf16>
  %n = tessera_tile.dim %b[1] : !tessera_tile.tensor<64x?xbf16>
  %k = tessera_tile.constant 64 : index
  %c0 = tessera_tile.constant 0 : index
  %c32 = tessera_tile.constant 32 : index
  %none = tessera_tile.constant 0.0 : f32
  // CHECK-LABEL: @open
  // CHECK: tessera_tile.grid
  // CHECK-SAME: by [128, 128] when
  // CHECK: tessera_notes.blocks = ["tiles of 136x40 are computed as 128x128 or 64x64, as the sizes of a launch say"]
  // CHECK: tessera_tile.grid
  // CHECK-SAME: by [64, 64] when
  tessera_tile.grid(%m, %n) by [136, 40] {
  ^bb0(%i: index, %j: index):
    %zero = tessera_tile.splat %none : f32 -> !tessera_tile.tile<136x40xf32>
    %sum = scf.for %at = %c0 to %k step %c32 iter_args(%acc = %zero) -> (!tessera_tile.tile<136x40xf32>) {
      %x = tessera_tile.load %a[%i, %at] [136, 32] : !tessera_tile.tensor<?x64xbf16> -> !tessera_tile.tile<136x32xbf16>
      %y = tessera_tile.load %b[%at, %j] [32, 40] : !tessera_tile.tensor<64x?xbf16> -> !tessera_tile.tile<32x40xbf16>
      %next = tessera_tile.mma %x, %y, %acc compute "bf16" : !tessera_tile.tile<136x32xbf16>, !tessera_tile.tile<32x40xbf16>, !tessera_tile.tile<136x40xf32> -> !tessera_tile.tile<136x40xf32>
      scf.yield %next : !tessera_tile.tile<136x40xf32>
    }
    tessera_tile.store %sum, %c[%i, %j] [136, 40] : !tessera_tile.tile<136x40xf32>, !tessera_tile.tensor<?x?xf32>
  }
  // CHECK: tessera_tile.grid
  // CHECK-SAME: by [136, 40] {
  // CHECK: tessera_notes.blocks = ["blocks stay as they are: a tensor that is stored to does not end where the grid does"]
  tessera_tile.grid(%m, %n) by [136, 40] {
  ^bb1(%i: index, %j: index):
    %zero = tessera_tile.splat %none : f32 -> !tessera_tile.tile<136x40xf32>
    %sum = scf.for %at = %c0 to %k step %c32 iter_args(%acc = %zero) -> (!tessera_tile.tile<136x40xf32>) {
      %x = tessera_tile.load %a[%i, %at] [136, 32] : !tessera_tile.tensor<?x64xbf16> -> !tessera_tile.tile<136x32xbf16>
      %y = tessera_tile.load %b[%at, %j] [32, 40] : !tessera_tile.tensor<64x?xbf16> -> !tessera_tile.tile<32x40xbf16>
      %next = tessera_tile.mma %x, %y, %acc compute "bf16" : !tessera_tile.tile<136x32xbf16>, !tessera_tile.tile<32x40xbf16>, !tessera_tile.tile<136x40xf32> -> !tessera_tile.tile<136x40xf32>
      scf.yield %next : !tessera_tile.tile<136x40xf32>
    }
    tessera_tile.store %sum, %d[%i, %j] [136, 40] : !tessera_tile.tile<136x40xf32>, !tessera_tile.tensor<?x?xf32>
  }
  tessera_tile.return
}
