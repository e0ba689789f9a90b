// RUN: schedule-groups
// A softmax is one group: reductions along the last axis, and all that follows from them.
builtin.module {
  tessera_graph.graph "softmax" {
  ^bb0(%x: !tessera_graph.array<["M", "N"], f32>):
    %m = tessera_graph.reduce "max" %x along [1] : !tessera_graph.array<["M", "N"], f32> -> !tessera_graph.array<["M"], f32>
    %mb = tessera_graph.broadcast %m [0] : !tessera_graph.array<["M"], f32> -> !tessera_graph.array<["M", "N"], f32>
    %d = tessera_graph.map "sub"(%x, %mb) : (!tessera_graph.array<["M", "N"], f32>, !tessera_graph.array<["M", "N"], f32>) -> !tessera_graph.array<["M", "N"], f32>
    %e = tessera_graph.map "exp"(%d) : (!tessera_graph.array<["M", "N"], f32>) -> !tessera_graph.array<["M", "N"], f32>
    %s = tessera_graph.reduce "sum" %e along [1] : !tessera_graph.array<["M", "N"], f32> -> !tessera_graph.array<["M"], f32>
    %sb = tessera_graph.broadcast %s [0] : !tessera_graph.array<["M"], f32> -> !tessera_graph.array<["M", "N"], f32>
    %y = tessera_graph.map "div"(%e, %sb) : (!tessera_graph.array<["M", "N"], f32>, !tessera_graph.array<["M", "N"], f32>) -> !tessera_graph.array<["M", "N"], f32>
    tessera_graph.return %y : !tessera_graph.array<["M", "N"], f32>
  }
}
// CHECK: %1 = tessera_graph.group(%0
// CHECK: tessera_graph.reduce "max"
// CHECK: tessera_graph.reduce "sum"
// CHECK: tessera_graph.map "div"
// CHECK: axes = ["M", "N"], rows = array<i64: 1>
// CHECK-NEXT: tessera_graph.return %1

// -----
// A product holds the group that reads it; a constant is written for the result that is nothing else.
builtin.module {
  tessera_graph.graph "between" {
  ^bb0(%x: !tessera_graph.array<["M", "M"], f32>):
    %a = tessera_graph.map "exp"(%x) : (!tessera_graph.array<["M", "M"], f32>) -> !tessera_graph.array<["M", "M"], f32>
    %p = tessera_graph.contract %a, %a : !tessera_graph.array<["M", "M"], f32>, !tessera_graph.array<["M", "M"], f32> -> !tessera_graph.array<["M", "M"], f32>
    %y = tessera_graph.map "add"(%p, %a) : (!tessera_graph.array<["M", "M"], f32>, !tessera_graph.array<["M", "M"], f32>) -> !tessera_graph.array<["M", "M"], f32>
    %c = tessera_graph.full 2.000000e+00 : f32 -> !tessera_graph.array<[], f32>
    tessera_graph.return %y, %c : !tessera_graph.array<["M", "M"], f32>, !tessera_graph.array<[], f32>
  }
}
// CHECK: %1 = tessera_graph.group(%0
// CHECK: tessera_graph.map "exp"
// CHECK: tessera_graph.product(%1
// CHECK: tessera_graph.contract %3, %3
// CHECK: tessera_graph.group(%p, %3
// CHECK: tessera_graph.map "add"
// CHECK: tessera_graph.group
// CHECK: tessera_graph.full

// -----
// Sums of columns are the library's, after the kernel that computes the elements has added up neighbours.
builtin.module {
  tessera_graph.graph "columns" {
  ^bb0(%x: !tessera_graph.array<["M", "N"], f32>):
    %a = tessera_graph.map "tanh"(%x) : (!tessera_graph.array<["M", "N"], f32>) -> !tessera_graph.array<["M", "N"], f32>
    %s = tessera_graph.reduce "sum" %a along [0] : !tessera_graph.array<["M", "N"], f32> -> !tessera_graph.array<["N"], f32>
    %sb = tessera_graph.broadcast %s [1] : !tessera_graph.array<["N"], f32> -> !tessera_graph.array<["M", "N"], f32>
    %y = tessera_graph.map "mul"(%a, %sb) : (!tessera_graph.array<["M", "N"], f32>, !tessera_graph.array<["M", "N"], f32>) -> !tessera_graph.array<["M", "N"], f32>
    tessera_graph.return %y : !tessera_graph.array<["M", "N"], f32>
  }
}
// CHECK: %1, %2 = tessera_graph.group(%0
// CHECK: tessera_graph.map "tanh"
// CHECK-NEXT: tessera_graph.parts "sum" %a along 0 by 64
// CHECK: %s = tessera_graph.reduce "sum" %2
// CHECK: tessera_graph.group(%1, %s
// CHECK: tessera_graph.map "mul"

// -----
// What is small, or a cast, is computed by each reader; what a sum of columns needs is computed again beside a row's sums.
builtin.module {
  tessera_graph.graph "again" {
  ^bb0(%x: !tessera_graph.array<["M", "N"], f32>, %w: !tessera_graph.array<["N"], bf16>):
    %c = tessera_graph.cast %w : !tessera_graph.array<["N"], bf16> -> !tessera_graph.array<["N"], f32>
    %wb = tessera_graph.broadcast %c [1] : !tessera_graph.array<["N"], f32> -> !tessera_graph.array<["M", "N"], f32>
    %a = tessera_graph.map "mul"(%x, %wb) : (!tessera_graph.array<["M", "N"], f32>, !tessera_graph.array<["M", "N"], f32>) -> !tessera_graph.array<["M", "N"], f32>
    %r = tessera_graph.reduce "sum" %a along [1] : !tessera_graph.array<["M", "N"], f32> -> !tessera_graph.array<["M"], f32>
    %s = tessera_graph.reduce "sum" %a along [0] : !tessera_graph.array<["M", "N"], f32> -> !tessera_graph.array<["N"], f32>
    tessera_graph.return %r, %s : !tessera_graph.array<["M"], f32>, !tessera_graph.array<["N"], f32>
  }
}
// CHECK: tessera_graph.group(%0, %1
// CHECK: tessera_graph.cast
// CHECK: tessera_graph.reduce "sum"
// CHECK: rows = array<i64: 1>
// CHECK: tessera_graph.group(%0, %1
// CHECK: tessera_graph.map "mul"
// CHECK: tessera_graph.parts "sum"
// CHECK: rows = array<i64>
// CHECK: tessera_graph.reduce "sum"

// -----
// ERROR: operands differ in dtype
builtin.module {
  tessera_graph.graph "wrong" {
  ^bb0(%x: !tessera_graph.array<["M"], f32>, %y: !tessera_graph.array<["M"], f64>):
    %a = tessera_graph.map "add"(%x, %y) : (!tessera_graph.array<["M"], f32>, !tessera_graph.array<["M"], f64>) -> !tessera_graph.array<["M"], f32>
    tessera_graph.return %a : !tessera_graph.array<["M"], f32>
  }
}

// -----
// ERROR: only dimensions of size 1 are repeated
builtin.module {
  tessera_graph.graph "wrong" {
  ^bb0(%x: !tessera_graph.array<["M"], f32>):
    %a = tessera_graph.broadcast %x [0] : !tessera_graph.array<["M"], f32> -> !tessera_graph.array<["2*M"], f32>
    tessera_graph.return %a : !tessera_graph.array<["2*M"], f32>
  }
}

// -----
// A take of what is computed for all elements is computed of what is taken; halves that are placed are written in place.
builtin.module {
  tessera_graph.graph "moves" {
  ^bb0(%x: !tessera_graph.array<["M", "8"], f32>, %i: !tessera_graph.array<["M", "1"], i64>):
    %a = tessera_graph.map "exp"(%x) : (!tessera_graph.array<["M", "8"], f32>) -> !tessera_graph.array<["M", "8"], f32>
    %t = tessera_graph.take %a at %i along [0, 2] : !tessera_graph.array<["M", "8"], f32> at !tessera_graph.array<["M", "1"], i64> -> !tessera_graph.array<["M", "1"], f32>
    %l = tessera_graph.slice %x from ["0", "0"] by [1, 1] : !tessera_graph.array<["M", "8"], f32> -> !tessera_graph.array<["M", "4"], f32>
    %r = tessera_graph.slice %x from ["0", "4"] by [1, 1] : !tessera_graph.array<["M", "8"], f32> -> !tessera_graph.array<["M", "4"], f32>
    %p = tessera_graph.map "sin"(%l) : (!tessera_graph.array<["M", "4"], f32>) -> !tessera_graph.array<["M", "4"], f32>
    %q = tessera_graph.map "cos"(%r) : (!tessera_graph.array<["M", "4"], f32>) -> !tessera_graph.array<["M", "4"], f32>
    %u = tessera_graph.place %p at ["0", "4"] by [1, 1] : !tessera_graph.array<["M", "4"], f32> -> !tessera_graph.array<["M", "8"], f32>
    %v = tessera_graph.place %q at ["0", "0"] by [1, 1] : !tessera_graph.array<["M", "4"], f32> -> !tessera_graph.array<["M", "8"], f32>
    %y = tessera_graph.map "add"(%u, %v) : (!tessera_graph.array<["M", "8"], f32>, !tessera_graph.array<["M", "8"], f32>) -> !tessera_graph.array<["M", "8"], f32>
    tessera_graph.return %t, %y : !tessera_graph.array<["M", "1"], f32>, !tessera_graph.array<["M", "8"], f32>
  }
}
// CHECK: tessera_graph.group(%0, %1
// CHECK: tessera_graph.take
// CHECK-NEXT: tessera_graph.map "exp"
// CHECK: tessera_graph.group
// CHECK: tessera_graph.map "sin"
// CHECK: tessera_graph.map "cos"
// CHECK: tessera_graph.concat {{.*}} along 1
// CHECK-NEXT: tessera_graph.return

// -----
// A batch times one matrix is one product of all rows, and the sum of a batch's products one with a longer sum.
builtin.module {
  tessera_graph.graph "layer" {
  ^bb0(%x: !tessera_graph.array<["B", "M", "K"], f32>, %w: !tessera_graph.array<["K", "N"], f32>, %d: !tessera_graph.array<["B", "M", "N"], f32>):
    %b = tessera_graph.broadcast %w [1, 2] : !tessera_graph.array<["K", "N"], f32> -> !tessera_graph.array<["B", "K", "N"], f32>
    %y = tessera_graph.contract %x, %b : !tessera_graph.array<["B", "M", "K"], f32>, !tessera_graph.array<["B", "K", "N"], f32> -> !tessera_graph.array<["B", "M", "N"], f32>
    %t = tessera_graph.transpose %x [0, 2, 1] : !tessera_graph.array<["B", "M", "K"], f32> -> !tessera_graph.array<["B", "K", "M"], f32>
    %p = tessera_graph.contract %t, %d : !tessera_graph.array<["B", "K", "M"], f32>, !tessera_graph.array<["B", "M", "N"], f32> -> !tessera_graph.array<["B", "K", "N"], f32>
    %s = tessera_graph.reduce "sum" %p along [0] : !tessera_graph.array<["B", "K", "N"], f32> -> !tessera_graph.array<["K", "N"], f32>
    tessera_graph.return %y, %s : !tessera_graph.array<["B", "M", "N"], f32>, !tessera_graph.array<["K", "N"], f32>
  }
}
// CHECK: tessera_graph.contract {{.*}} -> !tessera_graph.array<["B*M", "N"], f32>
// CHECK-NOT: tessera_graph.reduce
// CHECK: tessera_graph.contract {{.*}} -> !tessera_graph.array<["K", "N"], f32>

// -----
// Numbers, as counters are, are one kernel.
builtin.module {
  tessera_graph.graph "counters" {
  ^bb0(%x: !tessera_graph.array<[], i64>, %y: !tessera_graph.array<[], i64>):
    %one = tessera_graph.full 1 : i64 -> !tessera_graph.array<[], i64>
    %a = tessera_graph.map "add"(%x, %one) : (!tessera_graph.array<[], i64>, !tessera_graph.array<[], i64>) -> !tessera_graph.array<[], i64>
    %b = tessera_graph.map "add"(%y, %one) : (!tessera_graph.array<[], i64>, !tessera_graph.array<[], i64>) -> !tessera_graph.array<[], i64>
    tessera_graph.return %a, %b : !tessera_graph.array<[], i64>, !tessera_graph.array<[], i64>
  }
}
// CHECK: tessera_graph.group(%0, %1
// CHECK-NOT: tessera_graph.group
// CHECK: tessera_graph.return

// -----
// Two sums of columns, of what is computed of one array and of others, are one kernel, and nothing else is written: the
// map that follows computes again what it needs. Many parts are combined in steps.
builtin.module {
  tessera_graph.graph "norm" {
  ^bb0(%g: !tessera_graph.array<["65536", "128"], bf16>, %x: !tessera_graph.array<["65536", "128"], bf16>):
    %gw = tessera_graph.cast %g : !tessera_graph.array<["65536", "128"], bf16> -> !tessera_graph.array<["65536", "128"], f32>
    %xw = tessera_graph.cast %x : !tessera_graph.array<["65536", "128"], bf16> -> !tessera_graph.array<["65536", "128"], f32>
    %s = tessera_graph.reduce "sum" %gw along [0] : !tessera_graph.array<["65536", "128"], f32> -> !tessera_graph.array<["128"], f32>
    %p = tessera_graph.map "mul"(%gw, %xw) : (!tessera_graph.array<["65536", "128"], f32>, !tessera_graph.array<["65536", "128"], f32>) -> !tessera_graph.array<["65536", "128"], f32>
    %t = tessera_graph.reduce "sum" %p along [0] : !tessera_graph.array<["65536", "128"], f32> -> !tessera_graph.array<["128"], f32>
    %sb = tessera_graph.broadcast %s [1] : !tessera_graph.array<["128"], f32> -> !tessera_graph.array<["65536", "128"], f32>
    %tb = tessera_graph.broadcast %t [1] : !tessera_graph.array<["128"], f32> -> !tessera_graph.array<["65536", "128"], f32>
    %d = tessera_graph.map "sub"(%gw, %sb) : (!tessera_graph.array<["65536", "128"], f32>, !tessera_graph.array<["65536", "128"], f32>) -> !tessera_graph.array<["65536", "128"], f32>
    %e = tessera_graph.map "mul"(%d, %tb) : (!tessera_graph.array<["65536", "128"], f32>, !tessera_graph.array<["65536", "128"], f32>) -> !tessera_graph.array<["65536", "128"], f32>
    %y = tessera_graph.cast %e : !tessera_graph.array<["65536", "128"], f32> -> !tessera_graph.array<["65536", "128"], bf16>
    tessera_graph.return %y : !tessera_graph.array<["65536", "128"], bf16>
  }
}
// CHECK: tessera_graph.parts "sum"
// CHECK: tessera_graph.parts "sum"
// CHECK-NEXT: tessera_graph.yield %6, %7 : !tessera_graph.array<["1024", "128"], f32>, !tessera_graph.array<["1024", "128"], f32>
// CHECK: tessera_graph.reduce "sum" {{.*}} along [1]
// CHECK: tessera_graph.group(%0, %6, %9
// CHECK: tessera_graph.cast %11
