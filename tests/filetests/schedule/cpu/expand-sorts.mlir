// RUN: schedule-expand-sorts

// Runs of two are merged after their pairs are in order: of the first step's partners one is mirrored.
// CHECK-LABEL: @whole
// CHECK: exchange {{.*}} axis 0 bits 1
// CHECK: "maximum"
// CHECK: "minimum"
// CHECK: "select"
// CHECK: exchange {{.*}} axis 0 bits 3
// CHECK: "select"
// CHECK: exchange {{.*}} axis 0 bits 1
// CHECK: "select"
// CHECK-NOT: exchange
// CHECK-NOT: sort
tessera_tile.kernel @whole profile "fast" () {
  %x = tessera_tile.arange : !tessera_tile.tile<4xi32>
  %y = tessera_tile.sort %x axis 0 : !tessera_tile.tile<4xi32> -> !tessera_tile.tile<4xi32>
  tessera_tile.print "{}", %y : !tessera_tile.tile<4xi32>
  tessera_tile.return
}

// -----
// A merge of pairs has the last steps only; of equal elements the second tile decides.
// CHECK-LABEL: @merge
// CHECK: exchange {{.*}} axis 0 bits 2
// CHECK: exchange {{.*}} axis 0 bits 2
// CHECK: "eq"
// CHECK: "lt"
// CHECK: exchange {{.*}} axis 0 bits 1
// CHECK: exchange {{.*}} axis 0 bits 1
// CHECK-NOT: exchange
tessera_tile.kernel @merge profile "fast" () {
  %x = tessera_tile.arange : !tessera_tile.tile<4xi32>
  %y, %z = tessera_tile.sort %x, %x axis 0 merge : !tessera_tile.tile<4xi32>, !tessera_tile.tile<4xi32> -> !tessera_tile.tile<4xi32>, !tessera_tile.tile<4xi32>
  tessera_tile.print "{} {}", %y, %z : !tessera_tile.tile<4xi32>, !tessera_tile.tile<4xi32>
  tessera_tile.return
}
