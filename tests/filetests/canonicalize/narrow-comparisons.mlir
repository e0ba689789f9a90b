// RUN: canonicalize-narrow-comparisons canonicalize-dead-code

// The wide part is a scalar, within 30 bits.
tessera_tile.kernel @places profile "fast" (%x: !tessera_tile.tensor<?xf32> as "x" dims ["S"] strides [1] stride_div [1] dim_div [1] align 4) {
  %size = tessera_tile.dim %x[0] : !tessera_tile.tensor<?xf32>
  tessera_tile.grid(%size) by [128] {
  ^bb0(%n: index):
    %i = tessera_tile.arange : !tessera_tile.tile<128xi32>
    %w = tessera_tile.cast %i : !tessera_tile.tile<128xi32> -> !tessera_tile.tile<128xi64>
    %p = tessera_tile.cast %n : index -> i64
    %s = tessera_tile.splat %p : i64 -> !tessera_tile.tile<128xi64>
    %at = tessera_tile.elementwise "add"(%s, %w) : (!tessera_tile.tile<128xi64>, !tessera_tile.tile<128xi64>) -> !tessera_tile.tile<128xi64>
    %e = tessera_tile.cast %size : index -> i64
    %end = tessera_tile.splat %e : i64 -> !tessera_tile.tile<128xi64>
    // CHECK: [[OWN:%\w+]] = tessera_tile.arange : !tessera_tile.tile<128xi32>
    // CHECK: [[REST:%\w+]] = tessera_tile.elementwise "sub"(%size, %n)
    // CHECK: constant -1073741824
    // CHECK: "maximum"([[REST]],
    // CHECK: constant 1073741824
    // CHECK: "minimum"(
    // CHECK: index -> i32
    // CHECK: [[SPLAT:%\w+]] = tessera_tile.splat {{.*}} : i32 -> !tessera_tile.tile<128xi32>
    // CHECK: "lt"([[OWN]], [[SPLAT]])
    // CHECK-NOT: tile<128xi64>
    %mask = tessera_tile.elementwise "lt"(%at, %end) : (!tessera_tile.tile<128xi64>, !tessera_tile.tile<128xi64>) -> !tessera_tile.tile<128xi1>
    tessera_tile.print "{}", %mask : !tessera_tile.tile<128xi1>
  }
  tessera_tile.return
}
