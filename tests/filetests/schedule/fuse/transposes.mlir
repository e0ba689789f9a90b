// RUN: schedule-transposes
// What is computed of transposed arrays is computed of them as they lie: transposes meet at the next call and vanish.
builtin.module {
  tessera_graph.graph "meet" {
  ^bb0(%x: !tessera_graph.array<["N", "H", "W", "C"], f32>, %b: !tessera_graph.array<["C"], f32>):
    %a = tessera_graph.call "f"(%x) : (!tessera_graph.array<["N", "H", "W", "C"], f32>) -> (!tessera_graph.array<["N", "H", "W", "C"], f32>)
    %t = tessera_graph.transpose %a [0, 3, 1, 2] : !tessera_graph.array<["N", "H", "W", "C"], f32> -> !tessera_graph.array<["N", "C", "H", "W"], f32>
    %bb = tessera_graph.broadcast %b [1] : !tessera_graph.array<["C"], f32> -> !tessera_graph.array<["N", "C", "H", "W"], f32>
    %s = tessera_graph.map "add"(%t, %bb) : (!tessera_graph.array<["N", "C", "H", "W"], f32>, !tessera_graph.array<["N", "C", "H", "W"], f32>) -> !tessera_graph.array<["N", "C", "H", "W"], f32>
    %u = tessera_graph.transpose %s [0, 2, 3, 1] : !tessera_graph.array<["N", "C", "H", "W"], f32> -> !tessera_graph.array<["N", "H", "W", "C"], f32>
    %r = tessera_graph.call "f"(%u) : (!tessera_graph.array<["N", "H", "W", "C"], f32>) -> (!tessera_graph.array<["N", "H", "W", "C"], f32>)
    tessera_graph.return %r : !tessera_graph.array<["N", "H", "W", "C"], f32>
  }
}
// CHECK: tessera_graph.broadcast %b [3]
// CHECK-NEXT: tessera_graph.map "add"(%a
// CHECK-NEXT: tessera_graph.call "f"
// CHECK-NOT: tessera_graph.transpose

// -----
// Reductions go along other dimensions; what they give is in order where its dimensions are.
builtin.module {
  tessera_graph.graph "sums" {
  ^bb0(%x: !tessera_graph.array<["N", "H", "W", "C"], f32>):
    %a = tessera_graph.call "f"(%x) : (!tessera_graph.array<["N", "H", "W", "C"], f32>) -> (!tessera_graph.array<["N", "H", "W", "C"], f32>)
    %t = tessera_graph.transpose %a [0, 3, 1, 2] : !tessera_graph.array<["N", "H", "W", "C"], f32> -> !tessera_graph.array<["N", "C", "H", "W"], f32>
    %m = tessera_graph.reduce "sum" %t along [0, 2, 3] : !tessera_graph.array<["N", "C", "H", "W"], f32> -> !tessera_graph.array<["C"], f32>
    %n = tessera_graph.reduce "max" %t along [0] : !tessera_graph.array<["N", "C", "H", "W"], f32> -> !tessera_graph.array<["C", "H", "W"], f32>
    tessera_graph.return %m, %n : !tessera_graph.array<["C"], f32>, !tessera_graph.array<["C", "H", "W"], f32>
  }
}
// CHECK: tessera_graph.reduce "sum" %a along [0, 1, 2]
// CHECK-NEXT: tessera_graph.reduce "max" %a along [0]
// CHECK-NEXT: tessera_graph.transpose {{.*}} [2, 0, 1]

// -----
// Parts, concatenations and elements at places are those of the arrays as they lie; other operands are transposed.
builtin.module {
  tessera_graph.graph "parts" {
  ^bb0(%x: !tessera_graph.array<["N", "H", "W", "C"], f32>, %y: !tessera_graph.array<["N", "C", "H", "W"], f32>, %i: !tessera_graph.array<["N", "C", "4", "W"], i64>):
    %a = tessera_graph.call "f"(%x) : (!tessera_graph.array<["N", "H", "W", "C"], f32>) -> (!tessera_graph.array<["N", "H", "W", "C"], f32>)
    %t = tessera_graph.transpose %a [0, 3, 1, 2] : !tessera_graph.array<["N", "H", "W", "C"], f32> -> !tessera_graph.array<["N", "C", "H", "W"], f32>
    %c = tessera_graph.concat %y, %t along 1 : !tessera_graph.array<["N", "C", "H", "W"], f32>, !tessera_graph.array<["N", "C", "H", "W"], f32> -> !tessera_graph.array<["N", "2*C", "H", "W"], f32>
    %s = tessera_graph.slice %t from ["0", "0", "1", "0"] by [1, 1, 2, 1] : !tessera_graph.array<["N", "C", "H", "W"], f32> -> !tessera_graph.array<["N", "C", "4", "W"], f32>
    %k = tessera_graph.take %t at %i along [0, 1, 4, 3] : !tessera_graph.array<["N", "C", "H", "W"], f32> at !tessera_graph.array<["N", "C", "4", "W"], i64> -> !tessera_graph.array<["N", "C", "4", "W"], f32>
    tessera_graph.return %c, %s, %k : !tessera_graph.array<["N", "2*C", "H", "W"], f32>, !tessera_graph.array<["N", "C", "4", "W"], f32>, !tessera_graph.array<["N", "C", "4", "W"], f32>
  }
}
// CHECK: tessera_graph.transpose %y [0, 2, 3, 1]
// CHECK-NEXT: tessera_graph.concat {{.*}}, %a along 3
// CHECK: tessera_graph.slice %a from ["0", "1", "0", "0"] by [1, 2, 1, 1]
// CHECK: tessera_graph.transpose %i [0, 2, 3, 1]
// CHECK-NEXT: tessera_graph.take %a at {{.*}} along [0, 4, 2, 3]

// -----
// A reshape goes on where dimensions that it joins are neighbours in memory, too; where they are not, a transpose stays.
builtin.module {
  tessera_graph.graph "shapes" {
  ^bb0(%x: !tessera_graph.array<["N", "H", "W", "8"], f32>):
    %a = tessera_graph.call "f"(%x) : (!tessera_graph.array<["N", "H", "W", "8"], f32>) -> (!tessera_graph.array<["N", "H", "W", "8"], f32>)
    %t = tessera_graph.transpose %a [0, 3, 1, 2] : !tessera_graph.array<["N", "H", "W", "8"], f32> -> !tessera_graph.array<["N", "8", "H", "W"], f32>
    %g = tessera_graph.reshape %t : !tessera_graph.array<["N", "8", "H", "W"], f32> -> !tessera_graph.array<["N", "2", "4", "H*W"], f32>
    %l = tessera_graph.reshape %t : !tessera_graph.array<["N", "8", "H", "W"], f32> -> !tessera_graph.array<["N", "8*H*W"], f32>
    tessera_graph.return %g, %l : !tessera_graph.array<["N", "2", "4", "H*W"], f32>, !tessera_graph.array<["N", "8*H*W"], f32>
  }
}
// CHECK: %t = tessera_graph.transpose %a [0, 3, 1, 2]
// CHECK-NEXT: tessera_graph.reshape %a : {{.*}} -> !tessera_graph.array<["N", "H*W", "2", "4"], f32>
// CHECK-NEXT: tessera_graph.transpose {{.*}} [0, 2, 3, 1]
// CHECK-NEXT: tessera_graph.reshape %t
