// RUN: canonicalize-fuse-shapes canonicalize-dead-code

// Arithmetic and shape changes of splats are done on the scalar.
tessera_tile.kernel @splats profile "fast" (%s: f32 as "s") {
  %t = tessera_tile.splat %s : f32 -> !tessera_tile.tile<1x32xf32>
  %b = tessera_tile.broadcast %t : !tessera_tile.tile<1x32xf32> -> !tessera_tile.tile<64x32xf32>
  %u = tessera_tile.elementwise "mul"(%b, %b) : (!tessera_tile.tile<64x32xf32>, !tessera_tile.tile<64x32xf32>) -> !tessera_tile.tile<64x32xf32>
  %v = tessera_tile.transpose %u [1, 0] : !tessera_tile.tile<64x32xf32> -> !tessera_tile.tile<32x64xf32>
  %w = tessera_tile.cast %v : !tessera_tile.tile<32x64xf32> -> !tessera_tile.tile<32x64xbf16>
  // CHECK: [[S:%\w+]]: f32
  // CHECK-NEXT: [[P:%\w+]] = tessera_tile.elementwise "mul"([[S]], [[S]]) : (f32, f32) -> f32
  // CHECK-NEXT: [[C:%\w+]] = tessera_tile.cast [[P]] : f32 -> bf16
  // CHECK-NEXT: [[W:%\w+]] = tessera_tile.splat [[C]] : bf16 -> !tessera_tile.tile<32x64xbf16>
  // CHECK-NEXT: print "{}", [[W]]
  tessera_tile.print "{}", %w : !tessera_tile.tile<32x64xbf16>
  %m = tessera_tile.reduce "max" %b axis 0 : !tessera_tile.tile<64x32xf32> -> !tessera_tile.tile<32xf32>
  // CHECK-NEXT: tessera_tile.splat [[S]] : f32 -> !tessera_tile.tile<32xf32>
  tessera_tile.print "{}", %m : !tessera_tile.tile<32xf32>
  tessera_tile.return
}

// -----
// Chains become one op or none.
tessera_tile.kernel @chains profile "fast" () {
  %r = tessera_tile.arange : !tessera_tile.tile<24xi32>
  %a = tessera_tile.reshape %r : !tessera_tile.tile<24xi32> -> !tessera_tile.tile<4x6xi32>
  %b = tessera_tile.reshape %a : !tessera_tile.tile<4x6xi32> -> !tessera_tile.tile<2x3x4xi32>
  %c = tessera_tile.transpose %b [1, 2, 0] : !tessera_tile.tile<2x3x4xi32> -> !tessera_tile.tile<3x4x2xi32>
  %d = tessera_tile.transpose %c [2, 0, 1] : !tessera_tile.tile<3x4x2xi32> -> !tessera_tile.tile<2x3x4xi32>
  // CHECK: [[R:%\w+]] = tessera_tile.arange
  // CHECK-NEXT: [[B:%\w+]] = tessera_tile.reshape [[R]] : !tessera_tile.tile<24xi32> -> !tessera_tile.tile<2x3x4xi32>
  // CHECK-NEXT: print "{}", [[B]]
  tessera_tile.print "{}", %d : !tessera_tile.tile<2x3x4xi32>
  %e = tessera_tile.transpose %b [1, 2, 0] : !tessera_tile.tile<2x3x4xi32> -> !tessera_tile.tile<3x4x2xi32>
  %f = tessera_tile.transpose %e [1, 0, 2] : !tessera_tile.tile<3x4x2xi32> -> !tessera_tile.tile<4x3x2xi32>
  // CHECK-NEXT: tessera_tile.transpose [[B]] [2, 1, 0]
  tessera_tile.print "{}", %f : !tessera_tile.tile<4x3x2xi32>
  %g = tessera_tile.reshape %r : !tessera_tile.tile<24xi32> -> !tessera_tile.tile<24xi32>
  // CHECK-NEXT: print
  // CHECK-NEXT: print "{}", [[R]]
  tessera_tile.print "{}", %g : !tessera_tile.tile<24xi32>
  %h = tessera_tile.reshape %r : !tessera_tile.tile<24xi32> -> !tessera_tile.tile<1x24xi32>
  %i = tessera_tile.transpose %h [1, 0] : !tessera_tile.tile<1x24xi32> -> !tessera_tile.tile<24x1xi32>
  // CHECK-NEXT: tessera_tile.reshape [[R]] : !tessera_tile.tile<24xi32> -> !tessera_tile.tile<24x1xi32>
  tessera_tile.print "{}", %i : !tessera_tile.tile<24x1xi32>
  tessera_tile.return
}
