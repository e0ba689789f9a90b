// RUN:
// ERROR: tessera_tile.nosuch is not registered
builtin.module {
  tessera_tile.nosuch
}

// -----
// ERROR: case.mlir:5:3
builtin.module {
  tessera_tile.barrier
  %x = tessera_tile.constant "text" : i32
}

// -----
// ERROR: add takes 2 operands, got 1
tessera_tile.kernel @k profile "fast" (%x: f32 as "x") {
  %y = tessera_tile.elementwise "add"(%x) : (f32) -> f32
  tessera_tile.return
}

// -----
// ERROR: uses a value that is not defined before it
tessera_tile.kernel @k profile "fast" (%x: f32 as "x") {
  %y = tessera_tile.elementwise "neg"(%z) : (f32) -> f32
  %z = tessera_tile.elementwise "neg"(%x) : (f32) -> f32
  tessera_tile.return
}

// -----
// ERROR: values used but not defined
tessera_tile.kernel @k profile "fast" (%x: f32 as "x") {
  tessera_tile.print "{}", %nobody : f32
  tessera_tile.return
}

// -----
// ERROR: scf.while
builtin.module {
  "scf.while"() ({}, {}) : () -> ()
}

// -----
// ERROR: a tile's shape is static
tessera_tile.kernel @k profile "fast" (%x: !tessera_tile.tile<?xf32> as "x") {
  tessera_tile.return
}

// -----
// ERROR: 2 offsets and sizes
tessera_tile.kernel @k profile "fast" (
    %x: !tessera_tile.tensor<?x?xf32> as "x" dims ["M", "N"] strides [-1, 1] stride_div [1, 1] dim_div [1, 1]) {
  %c = tessera_tile.constant 0 : index
  %t = tessera_tile.load %x[%c] [4, 4] : !tessera_tile.tensor<?x?xf32> -> !tessera_tile.tile<4x4xf32>
  tessera_tile.return
}

// -----
// ERROR: no atomic scope is called system; one of group, cluster, device, mesh
builtin.module {
  "tessera_target.func"() <{sym_name = "f", params = [{kind = "pointer", arg = #builtin.int<0>, axis = #builtin.int<0>, align = #builtin.int<4>, dtype = "i32"}], grid = "[]", num_warps = #builtin.int<1>, profile = "fast", cluster = #builtin.int<1>}> ({
  ^bb0(%x: !tessera_target.pointer<i32, "global">):
    %zero = tessera_target.constant 0 : index
    %one = tessera_target.constant 1 : i32
    %old = tessera_target.atomic "add" %x[%zero] value %one : i32 order "relaxed" scope "system" : !tessera_target.pointer<i32, "global">[index] -> i32
    tessera_target.return
  }) : () -> ()
}

// -----
// ERROR: params[0].kind is 'address'
builtin.module {
  "tessera_target.func"() <{sym_name = "f", params = [{kind = "address", arg = #builtin.int<0>, axis = #builtin.int<0>, align = #builtin.int<4>, dtype = "i32"}], grid = "[]", num_warps = #builtin.int<1>, profile = "fast", cluster = #builtin.int<1>}> ({
  ^bb0(%x: !tessera_target.pointer<i32, "global">):
    tessera_target.return
  }) : () -> ()
}
