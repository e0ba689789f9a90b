// RUN: schedule-divide-rows

// Each of three groups takes 64 of 192 rows: loads, numbers of rows and stores begin at its own; what all read stays.
tessera_tile.kernel @rows profile "fast" (
    %a: !tessera_tile.tensor<?x64xbf16> as "A" dims ["M", "64"] strides [64, 1] stride_div [64, 1] dim_div [1, 64] align 16,
    %b: !tessera_tile.tensor<?x64xbf16> as "B" dims ["N", "64"] strides [64, 1] stride_div [64, 1] dim_div [1, 64] align 16,
    %c: !tessera_tile.tensor<?x64xf32> as "C" dims ["M", "64"] strides [64, 1] stride_div [64, 1] dim_div [1, 64] align 16 written) {
  %m = tessera_tile.dim %a[0] : !tessera_tile.tensor<?x64xbf16>
  %n = tessera_tile.dim %b[0] : !tessera_tile.tensor<?x64xbf16>
  %c0 = tessera_tile.constant 0 : index
  %c64 = tessera_tile.constant 64 : index
  %zero = tessera_tile.constant 0.0 : f32
  // CHECK: tessera_tile.grid
  // CHECK: ^[[BODY:bb[0-9]+]]([[I:%\w+]]: index):
  tessera_tile.grid(%m) by [192] {
  ^bb0(%i: index):
    // CHECK: [[GROUP:%\w+]] = tessera_tile.role_group
    // CHECK: [[C64:%\w+]] = tessera_tile.constant 64
    // CHECK: [[OWN:%\w+]] = tessera_tile.elementwise "mul"([[GROUP]], [[C64]])
    // CHECK: tessera_tile.elementwise "add"{{.*}} -> !tessera_tile.tile<64xi32>
    // CHECK: [[NUMBERS:%\w+]] = tessera_tile.arange : !tessera_tile.tile<64xi32>
    // CHECK: [[WIDE:%\w+]] = tessera_tile.cast [[NUMBERS]]
    // CHECK: [[FIRST:%\w+]] = tessera_tile.cast [[OWN]] : index -> i64
    // CHECK: [[ALL:%\w+]] = tessera_tile.splat [[FIRST]]
    // CHECK: [[ROWS:%\w+]] = tessera_tile.elementwise "add"([[WIDE]], [[ALL]])
    %numbers = tessera_tile.arange : !tessera_tile.tile<192xi32>
    %wide = tessera_tile.cast %numbers : !tessera_tile.tile<192xi32> -> !tessera_tile.tile<192xi64>
    // CHECK: [[AT:%\w+]] = tessera_tile.elementwise "add"([[I]], [[OWN]])
    // CHECK: [[A:%\w+]] = tessera_tile.load %a{{\[}}[[AT]], %c0] [64, 64]
    %x = tessera_tile.load %a[%i, %c0] [192, 64] : !tessera_tile.tensor<?x64xbf16> -> !tessera_tile.tile<192x64xbf16>
    %none = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<192x64xf32>
    %sum = scf.for %p = %c0 to %n step %c64 iter_args(%acc = %none) -> (!tessera_tile.tile<192x64xf32>) {
      // CHECK: [[B:%\w+]] = tessera_tile.load %b[%{{\w+}}, %c0] [64, 64]
      %y = tessera_tile.load %b[%p, %c0] [64, 64] : !tessera_tile.tensor<?x64xbf16> -> !tessera_tile.tile<64x64xbf16>
      // CHECK: [[T:%\w+]] = tessera_tile.transpose [[B]] [1, 0]
      %t = tessera_tile.transpose %y [1, 0] : !tessera_tile.tile<64x64xbf16> -> !tessera_tile.tile<64x64xbf16>
      // CHECK: tessera_tile.mma [[A]], [[T]]
      %next = tessera_tile.mma %x, %t, %acc compute "bf16" : !tessera_tile.tile<192x64xbf16>, !tessera_tile.tile<64x64xbf16>, !tessera_tile.tile<192x64xf32> -> !tessera_tile.tile<192x64xf32>
      scf.yield %next : !tessera_tile.tile<192x64xf32>
    }
    %float = tessera_tile.cast %wide : !tessera_tile.tile<192xi64> -> !tessera_tile.tile<192xf32>
    %column = tessera_tile.reshape %float : !tessera_tile.tile<192xf32> -> !tessera_tile.tile<192x1xf32>
    %each = tessera_tile.broadcast %column : !tessera_tile.tile<192x1xf32> -> !tessera_tile.tile<192x64xf32>
    %scaled = tessera_tile.elementwise "mul"(%sum, %each) : (!tessera_tile.tile<192x64xf32>, !tessera_tile.tile<192x64xf32>) -> !tessera_tile.tile<192x64xf32>
    // Columns change places within rows.
    // CHECK: tessera_tile.reshape {{.*}} -> !tessera_tile.tile<64x2x32xf32>
    // CHECK: tessera_tile.reshape {{.*}} -> !tessera_tile.tile<64x64xf32>
    %halves = tessera_tile.reshape %scaled : !tessera_tile.tile<192x64xf32> -> !tessera_tile.tile<192x2x32xf32>
    %turned = tessera_tile.transpose %halves [0, 2, 1] : !tessera_tile.tile<192x2x32xf32> -> !tessera_tile.tile<192x32x2xf32>
    %mixed = tessera_tile.reshape %turned : !tessera_tile.tile<192x32x2xf32> -> !tessera_tile.tile<192x64xf32>
    // CHECK: tessera_tile.store {{.*}}, %c{{\[}}[[AT]], %c0] [64, 64]
    tessera_tile.store %mixed, %c[%i, %c0] [192, 64] : !tessera_tile.tile<192x64xf32>, !tessera_tile.tensor<?x64xf32>
  }
  // CHECK: tessera_schedule.row_groups = #builtin.int<3>, tessera_notes.rows = ["192 rows are divided among three warpgroups"]
  tessera_tile.return %c : !tessera_tile.tensor<?x64xf32>
}

// -----

// The largest of each column is one of all rows: no group has it.
tessera_tile.kernel @columns profile "fast" (
    %a: !tessera_tile.tensor<?x64xbf16> as "A" dims ["M", "64"] strides [64, 1] stride_div [64, 1] dim_div [1, 64] align 16,
    %b: !tessera_tile.tensor<?x64xbf16> as "B" dims ["N", "64"] strides [64, 1] stride_div [64, 1] dim_div [1, 64] align 16,
    %c: !tessera_tile.tensor<?x64xf32> as "C" dims ["M", "64"] strides [64, 1] stride_div [64, 1] dim_div [1, 64] align 16 written) {
  %m = tessera_tile.dim %a[0] : !tessera_tile.tensor<?x64xbf16>
  %n = tessera_tile.dim %b[0] : !tessera_tile.tensor<?x64xbf16>
  %c0 = tessera_tile.constant 0 : index
  %c64 = tessera_tile.constant 64 : index
  %zero = tessera_tile.constant 0.0 : f32
  tessera_tile.grid(%m) by [192] {
  ^bb0(%i: index):
    // CHECK-NOT: role_group
    // CHECK: tessera_tile.load %a[%{{\w+}}, %c0] [192, 64]
    %x = tessera_tile.load %a[%i, %c0] [192, 64] : !tessera_tile.tensor<?x64xbf16> -> !tessera_tile.tile<192x64xbf16>
    %none = tessera_tile.splat %zero : f32 -> !tessera_tile.tile<192x64xf32>
    %sum = scf.for %p = %c0 to %n step %c64 iter_args(%acc = %none) -> (!tessera_tile.tile<192x64xf32>) {
      %y = tessera_tile.load %b[%p, %c0] [64, 64] : !tessera_tile.tensor<?x64xbf16> -> !tessera_tile.tile<64x64xbf16>
      %t = tessera_tile.transpose %y [1, 0] : !tessera_tile.tile<64x64xbf16> -> !tessera_tile.tile<64x64xbf16>
      %next = tessera_tile.mma %x, %t, %acc compute "bf16" : !tessera_tile.tile<192x64xbf16>, !tessera_tile.tile<64x64xbf16>, !tessera_tile.tile<192x64xf32> -> !tessera_tile.tile<192x64xf32>
      scf.yield %next : !tessera_tile.tile<192x64xf32>
    }
    %most = tessera_tile.reduce "max" %sum axis 0 : !tessera_tile.tile<192x64xf32> -> !tessera_tile.tile<64xf32>
    %row = tessera_tile.reshape %most : !tessera_tile.tile<64xf32> -> !tessera_tile.tile<1x64xf32>
    %each = tessera_tile.broadcast %row : !tessera_tile.tile<1x64xf32> -> !tessera_tile.tile<192x64xf32>
    %less = tessera_tile.elementwise "sub"(%sum, %each) : (!tessera_tile.tile<192x64xf32>, !tessera_tile.tile<192x64xf32>) -> !tessera_tile.tile<192x64xf32>
    tessera_tile.store %less, %c[%i, %c0] [192, 64] : !tessera_tile.tile<192x64xf32>, !tessera_tile.tensor<?x64xf32>
  }
  // CHECK: tessera_notes.rows = ["no three warpgroups divide 192 rows: rows are summed up"]
  tessera_tile.return %c : !tessera_tile.tensor<?x64xf32>
}
