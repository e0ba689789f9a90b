// RUN: schedule-groups
// Rows that are split after a map are split before it, so that both maps are of one group, in the product.
builtin.module {
  tessera_graph.graph "split" {
  ^bb0(%x: !tessera_graph.array<["B*S", "K"], f32>, %w: !tessera_graph.array<["K", "N"], f32>, %b: !tessera_graph.array<["N"], f32>, %r: !tessera_graph.array<["B", "S", "N"], f32>):
    %p = tessera_graph.contract %x, %w : !tessera_graph.array<["B*S", "K"], f32>, !tessera_graph.array<["K", "N"], f32> -> !tessera_graph.array<["B*S", "N"], f32>
    %bb = tessera_graph.broadcast %b [1] : !tessera_graph.array<["N"], f32> -> !tessera_graph.array<["B*S", "N"], f32>
    %y = tessera_graph.map "add"(%p, %bb) : (!tessera_graph.array<["B*S", "N"], f32>, !tessera_graph.array<["B*S", "N"], f32>) -> !tessera_graph.array<["B*S", "N"], f32>
    %s = tessera_graph.reshape %y : !tessera_graph.array<["B*S", "N"], f32> -> !tessera_graph.array<["B", "S", "N"], f32>
    %z = tessera_graph.map "add"(%s, %r) : (!tessera_graph.array<["B", "S", "N"], f32>, !tessera_graph.array<["B", "S", "N"], f32>) -> !tessera_graph.array<["B", "S", "N"], f32>
    tessera_graph.return %y, %z : !tessera_graph.array<["B*S", "N"], f32>, !tessera_graph.array<["B", "S", "N"], f32>
  }
}
// CHECK: tessera_graph.product(%0, %1, %2, %3
// CHECK: tessera_graph.contract
// CHECK-NEXT: tessera_graph.reshape %p
// CHECK-NEXT: tessera_graph.group
// CHECK: tessera_graph.map "add"
// CHECK: tessera_graph.map "add"
// CHECK-NOT: tessera_graph.group
// CHECK: tessera_graph.return

// -----
// A product that others read, too, is a result; these come after it.
builtin.module {
  tessera_graph.graph "readers" {
  ^bb0(%x: !tessera_graph.array<["M", "K"], f32>, %w: !tessera_graph.array<["K", "N"], f32>):
    %p = tessera_graph.contract %x, %w : !tessera_graph.array<["M", "K"], f32>, !tessera_graph.array<["K", "N"], f32> -> !tessera_graph.array<["M", "N"], f32>
    %c = tessera_graph.call pure "f"(%p) : (!tessera_graph.array<["M", "N"], f32>) -> (!tessera_graph.array<["M", "N"], f32>)
    %y = tessera_graph.map "exp"(%p) : (!tessera_graph.array<["M", "N"], f32>) -> !tessera_graph.array<["M", "N"], f32>
    tessera_graph.return %y, %c : !tessera_graph.array<["M", "N"], f32>, !tessera_graph.array<["M", "N"], f32>
  }
}
// CHECK: %p, %2 = tessera_graph.product
// CHECK: tessera_graph.yield %p_1, %5
// CHECK: tessera_graph.call pure "f"(%p)

// -----
// A group that needs what a call makes of the product is none of its epilogue.
builtin.module {
  tessera_graph.graph "between" {
  ^bb0(%x: !tessera_graph.array<["M", "K"], f32>, %w: !tessera_graph.array<["K", "N"], f32>):
    %p = tessera_graph.contract %x, %w : !tessera_graph.array<["M", "K"], f32>, !tessera_graph.array<["K", "N"], f32> -> !tessera_graph.array<["M", "N"], f32>
    %c = tessera_graph.call pure "f"(%p) : (!tessera_graph.array<["M", "N"], f32>) -> (!tessera_graph.array<["M", "N"], f32>)
    %y = tessera_graph.map "add"(%p, %c) : (!tessera_graph.array<["M", "N"], f32>, !tessera_graph.array<["M", "N"], f32>) -> !tessera_graph.array<["M", "N"], f32>
    tessera_graph.return %y : !tessera_graph.array<["M", "N"], f32>
  }
}
// CHECK-NOT: tessera_graph.product
// CHECK: tessera_graph.return
