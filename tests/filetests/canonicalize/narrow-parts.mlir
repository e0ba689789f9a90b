// RUN: canonicalize-narrow-parts canonicalize-dead-code

// A part of a loaded tile, and of what is computed of it, is a smaller load; an element is a load of one.
tessera_tile.kernel @loads profile "fast" (%x: !tessera_tile.tensor<?x64xf32> as "x" dims ["m", "64"] strides [64, 1] stride_div [16, 1] dim_div [1, 16] align 16) {
  %zero = tessera_tile.constant 0 : index
  %eight = tessera_tile.constant 8 : index
  %v = tessera_tile.load %x[%zero, %zero] [32, 64] : !tessera_tile.tensor<?x64xf32> -> !tessera_tile.tile<32x64xf32>
  %e = tessera_tile.elementwise "exp"(%v) : (!tessera_tile.tile<32x64xf32>) -> !tessera_tile.tile<32x64xf32>
  // CHECK: @loads
  // CHECK: [[ROW:%\w+]] = tessera_tile.elementwise "add"({{.*}}) : (index, index) -> index
  // CHECK: [[V:%\w+]] = tessera_tile.load {{.*}}{{\[}}[[ROW]], {{.*}}] [4, 64] : {{.*}} -> !tessera_tile.tile<4x64xf32>
  // CHECK: [[E:%\w+]] = tessera_tile.elementwise "exp"([[V]]) : (!tessera_tile.tile<4x64xf32>)
  // CHECK-NEXT: print "{}", [[E]]
  %p = tessera_tile.part %e[%eight, %zero] steps [1, 1] : !tessera_tile.tile<32x64xf32> -> !tessera_tile.tile<4x64xf32>
  tessera_tile.print "{}", %p : !tessera_tile.tile<4x64xf32>
  tessera_tile.return
}

// -----
tessera_tile.kernel @element profile "fast" (%x: !tessera_tile.tensor<?x64xf32> as "x" dims ["m", "64"] strides [64, 1] stride_div [16, 1] dim_div [1, 16] align 16) {
  %zero = tessera_tile.constant 0 : index
  %three = tessera_tile.constant 3 : index
  %v = tessera_tile.load %x[%zero, %zero] [32, 64] : !tessera_tile.tensor<?x64xf32> -> !tessera_tile.tile<32x64xf32>
  // CHECK: @element
  // CHECK: [[E:%\w+]] = tessera_tile.load {{.*}} [1, 1] drop [0, 1] : {{.*}} -> f32
  // CHECK-NEXT: print "{}", [[E]] : f32
  %e = tessera_tile.part %v[%zero, %three] steps [1, 1] : !tessera_tile.tile<32x64xf32> -> f32
  tessera_tile.print "{}", %e : f32
  tessera_tile.return
}

// -----
// What may lie outside of the tile is zero, whatever the tensor holds there; neighbours apart are no slice.
tessera_tile.kernel @kept profile "fast" (%i: index as "i", %x: !tessera_tile.tensor<?xf32> as "x" dims ["m"] strides [1] stride_div [1] dim_div [1] align 16) {
  %zero = tessera_tile.constant 0 : index
  %v = tessera_tile.load %x[%zero] [64] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<64xf32>
  // CHECK: [[V:%\w+]] = tessera_tile.load {{.*}} [64]
  // CHECK: tessera_tile.part [[V]]{{.*}} -> !tessera_tile.tile<8xf32>
  %p = tessera_tile.part %v[%i] steps [1] : !tessera_tile.tile<64xf32> -> !tessera_tile.tile<8xf32>
  tessera_tile.print "{}", %p : !tessera_tile.tile<8xf32>
  // CHECK: tessera_tile.part [[V]]{{.*}} steps [2]
  %q = tessera_tile.part %v[%zero] steps [2] : !tessera_tile.tile<64xf32> -> !tessera_tile.tile<8xf32>
  tessera_tile.print "{}", %q : !tessera_tile.tile<8xf32>
  // CHECK: [[C:%\w+]] = tessera_tile.elementwise "cos"([[V]])
  // CHECK: tessera_tile.part [[C]]
  %c = tessera_tile.elementwise "cos"(%v) : (!tessera_tile.tile<64xf32>) -> !tessera_tile.tile<64xf32>
  %r = tessera_tile.part %c[%i] steps [1] : !tessera_tile.tile<64xf32> -> !tessera_tile.tile<8xf32>
  tessera_tile.print "{}", %r : !tessera_tile.tile<8xf32>
  tessera_tile.return
}

// -----
// The whole is the tile; parts of splats, positions, parts and shape changes are made without the tile.
tessera_tile.kernel @made profile "fast" (%s: f32 as "s") {
  %zero = tessera_tile.constant 0 : index
  %two = tessera_tile.constant 2 : index
  %t = tessera_tile.splat %s : f32 -> !tessera_tile.tile<8x4xf32>
  // CHECK: [[S:%\w+]]: f32
  %a = tessera_tile.part %t[%two, %zero] steps [1, 1] : !tessera_tile.tile<8x4xf32> -> !tessera_tile.tile<2x4xf32>
  // CHECK: [[A:%\w+]] = tessera_tile.splat [[S]] : f32 -> !tessera_tile.tile<2x4xf32>
  // CHECK-NEXT: print "{}", [[A]]
  tessera_tile.print "{}", %a : !tessera_tile.tile<2x4xf32>
  %b = tessera_tile.part %t[%two, %zero] steps [1, 1] : !tessera_tile.tile<8x4xf32> -> f32
  // CHECK-NEXT: print "{}", [[S]]
  tessera_tile.print "{}", %b : f32
  %n = tessera_tile.arange : !tessera_tile.tile<24xi32>
  %m = tessera_tile.reshape %n : !tessera_tile.tile<24xi32> -> !tessera_tile.tile<4x6xi32>
  // The third row is 12, 13, …: positions from 12 on.
  // CHECK: tessera_tile.constant 12 : index
  // CHECK: tessera_tile.arange : !tessera_tile.tile<6xi32>
  // CHECK-NOT: tile<24xi32>
  %r = tessera_tile.part %m[%two, %zero] steps [1, 1] : !tessera_tile.tile<4x6xi32> -> !tessera_tile.tile<1x6xi32>
  tessera_tile.print "{}", %r : !tessera_tile.tile<1x6xi32>
  tessera_tile.return
}

// -----
// Tiles side by side: the part of one of them is that one.
tessera_tile.kernel @side_by_side profile "fast" () {
  %zero = tessera_tile.constant 0 : index
  %k = tessera_tile.arange : !tessera_tile.tile<8xi32>
  %f = tessera_tile.cast %k : !tessera_tile.tile<8xi32> -> !tessera_tile.tile<8xf32>
  %x = tessera_tile.scan "sum" %f axis 0 : !tessera_tile.tile<8xf32> -> !tessera_tile.tile<8xf32>
  %y = tessera_tile.scan "max" %f axis 0 : !tessera_tile.tile<8xf32> -> !tessera_tile.tile<8xf32>
  %eight = tessera_tile.constant 8 : index
  %one = tessera_tile.constant 1 : i32
  %ones = tessera_tile.splat %one : i32 -> !tessera_tile.tile<2x1xi32>
  %n = tessera_tile.arange : !tessera_tile.tile<2xi32>
  %m = tessera_tile.reshape %n : !tessera_tile.tile<2xi32> -> !tessera_tile.tile<2x1xi32>
  %q = tessera_tile.elementwise "lt"(%m, %ones) : (!tessera_tile.tile<2x1xi32>, !tessera_tile.tile<2x1xi32>) -> !tessera_tile.tile<2x1xi1>
  %w = tessera_tile.broadcast %q : !tessera_tile.tile<2x1xi1> -> !tessera_tile.tile<2x8xi1>
  %a = tessera_tile.reshape %x : !tessera_tile.tile<8xf32> -> !tessera_tile.tile<1x8xf32>
  %b = tessera_tile.broadcast %a : !tessera_tile.tile<1x8xf32> -> !tessera_tile.tile<2x8xf32>
  %c = tessera_tile.reshape %y : !tessera_tile.tile<8xf32> -> !tessera_tile.tile<1x8xf32>
  %d = tessera_tile.broadcast %c : !tessera_tile.tile<1x8xf32> -> !tessera_tile.tile<2x8xf32>
  %s = tessera_tile.elementwise "select"(%w, %b, %d) : (!tessera_tile.tile<2x8xi1>, !tessera_tile.tile<2x8xf32>, !tessera_tile.tile<2x8xf32>) -> !tessera_tile.tile<2x8xf32>
  %t = tessera_tile.reshape %s : !tessera_tile.tile<2x8xf32> -> !tessera_tile.tile<16xf32>
  // CHECK: [[X:%\w+]] = tessera_tile.scan "sum"
  // CHECK: [[Y:%\w+]] = tessera_tile.scan "max"
  // CHECK-NOT: select
  // CHECK: [[A:%\w+]] = tessera_tile.reshape [[X]]
  // CHECK: [[C:%\w+]] = tessera_tile.reshape [[Y]]
  // CHECK: [[P:%\w+]] = tessera_tile.reshape [[C]]
  // CHECK-NEXT: print "{}", [[P]]
  // CHECK: [[R:%\w+]] = tessera_tile.reshape [[A]]
  // CHECK-NEXT: print "{}", [[R]]
  %p = tessera_tile.part %t[%eight] steps [1] : !tessera_tile.tile<16xf32> -> !tessera_tile.tile<8xf32>
  tessera_tile.print "{}", %p : !tessera_tile.tile<8xf32>
  %r = tessera_tile.part %t[%zero] steps [1] : !tessera_tile.tile<16xf32> -> !tessera_tile.tile<8xf32>
  tessera_tile.print "{}", %r : !tessera_tile.tile<8xf32>
  tessera_tile.return
}
