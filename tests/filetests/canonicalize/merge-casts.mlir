// RUN: canonicalize-merge-casts canonicalize-dead-code

// Through a type that holds every value, and back.
tessera_tile.kernel @lossless profile "fast" (%x: bf16 as "x", %i: i32 as "i") {
  %w = tessera_tile.cast %x : bf16 -> f32
  %y = tessera_tile.cast %w : f32 -> bf16
  // CHECK: [[X:%\w+]]: bf16
  // CHECK: [[I:%\w+]]: i32
  // CHECK-NEXT: tessera_tile.print "{}", [[X]] : bf16
  tessera_tile.print "{}", %y : bf16
  %z = tessera_tile.cast %w : f32 -> f64
  // CHECK-NEXT: tessera_tile.cast [[X]] : bf16 -> f64
  tessera_tile.print "{}", %z : f64
  %a = tessera_tile.cast %i : i32 -> i16
  %b = tessera_tile.cast %a : i16 -> i8
  // CHECK: tessera_tile.cast [[I]] : i32 -> i8
  tessera_tile.print "{}", %b : i8
  tessera_tile.return
}

// -----
// Through a type that rounds, wraps or saturates, both casts stay.
tessera_tile.kernel @lossy profile "fast" (%x: f32 as "x", %i: i32 as "i") {
  // CHECK: cast {{.*}} f32 -> bf16
  // CHECK-NEXT: cast {{.*}} bf16 -> f32
  %h = tessera_tile.cast %x : f32 -> bf16
  %y = tessera_tile.cast %h : bf16 -> f32
  // CHECK: cast {{.*}} i32 -> f32
  // CHECK-NEXT: cast {{.*}} f32 -> i64
  %f = tessera_tile.cast %i : i32 -> f32
  %j = tessera_tile.cast %f : f32 -> i64
  // CHECK: cast {{.*}} i32 -> i8
  // CHECK-NEXT: cast {{.*}} i8 -> i32
  %n = tessera_tile.cast %i : i32 -> i8
  %k = tessera_tile.cast %n : i8 -> i32
  tessera_tile.print "{} {} {}", %y, %j, %k : f32, i64, i32
  tessera_tile.return
}
