// RUN: schedule-batch-steps
// The sum of a channel over all images and places: 512 images are loaded at once, one launch for many images and few
// channels, the other for the rest. What reduces a row reduces the sums of all steps behind the loop.
builtin.module {
  tessera_tile.kernel @channels profile "fast" (
      %x: !tessera_tile.tensor<?x?x4xf32> as "x" dims ["A", "B", "4"] strides [-1, -1, 1] stride_div [4, 4, 1] dim_div [1, 1, 4] align 16,
      %y: !tessera_tile.tensor<?xf32> as "y" dims ["B"] strides [1] stride_div [1] dim_div [1] align 16 written) {
    %images = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x?x4xf32>
    %channels = tessera_tile.dim %x[1] : !tessera_tile.tensor<?x?x4xf32>
    tessera_tile.grid(%channels) by [1] {
    ^bb0(%b: index):
      %zero = tessera_tile.constant 0 : index
      %one = tessera_tile.constant 1 : index
      %start = tessera_tile.constant 0x40a00000 : f32
      %sum = scf.for %a = %zero to %images step %one iter_args(%part = %start) -> (f32) {
        %row = tessera_tile.load %x[%a, %b, %zero] [1, 1, 4] drop [0, 1] : !tessera_tile.tensor<?x?x4xf32> -> !tessera_tile.tile<4xf32>
        %all = tessera_tile.reduce "sum" %row axis 0 : !tessera_tile.tile<4xf32> -> f32
        %more = tessera_tile.elementwise "add"(%part, %all) : (f32, f32) -> f32
        scf.yield %more : f32
      }
      tessera_tile.store %sum, %y[%b] [1] drop [0] : f32, !tessera_tile.tensor<?xf32>
    }
    tessera_tile.return
  }
}
// CHECK: tessera_tile.grid(%{{.*}}) by [1] when [[MANY:%\w+]]
// CHECK: [[SUMS:%\w+]] = scf.for [[A:%\w+]] = %{{\w+}} to [[IMAGES:%\w+]] step %{{\w+}} iter_args([[PART:%\w+]] = %{{\w+}}) -> (!tessera_tile.tile<512x4xf32>)
// CHECK: [[ROWS:%\w+]] = tessera_tile.load %{{\w+}}[[[A]], %{{\w+}}, %{{\w+}}] [512, 1, 4] drop [1]
// CHECK-NOT: tessera_tile.reduce
// CHECK: [[SOME:%\w+]] = tessera_tile.elementwise "select"(%{{\w+}}, [[ROWS]], %{{\w+}})
// CHECK: tessera_tile.elementwise "add"([[PART]], [[SOME]])
// CHECK: [[ROW:%\w+]] = tessera_tile.reduce "sum" [[SUMS]] axis 0
// CHECK: [[ALL:%\w+]] = tessera_tile.reduce "sum" [[ROW]] axis 0
// CHECK: tessera_tile.elementwise "add"(%{{\w+}}, [[ALL]])
// CHECK: tessera_tile.grid(%{{.*}}) by [1] when [[FEW:%\w+]]
// CHECK: tessera_tile.load %{{\w+}}[%{{\w+}}, %{{\w+}}, %{{\w+}}] [1, 1, 4] drop [0, 1]

// -----
// A sum in the order of the profile, and a loop that keeps its last row, stay as they are.
builtin.module {
  tessera_tile.kernel @ordered profile "strict" (
      %x: !tessera_tile.tensor<?x?x4xf32> as "x" dims ["A", "B", "4"] strides [-1, -1, 1] stride_div [4, 4, 1] dim_div [1, 1, 4] align 16,
      %y: !tessera_tile.tensor<?xf32> as "y" dims ["B"] strides [1] stride_div [1] dim_div [1] align 16 written) {
    %images = tessera_tile.dim %x[0] : !tessera_tile.tensor<?x?x4xf32>
    %channels = tessera_tile.dim %x[1] : !tessera_tile.tensor<?x?x4xf32>
    tessera_tile.grid(%channels) by [1] {
    ^bb0(%b: index):
      %zero = tessera_tile.constant 0 : index
      %one = tessera_tile.constant 1 : index
      %start = tessera_tile.constant 0 : f32
      %sum = scf.for %a = %zero to %images step %one iter_args(%part = %start) -> (f32) {
        %row = tessera_tile.load %x[%a, %b, %zero] [1, 1, 4] drop [0, 1] : !tessera_tile.tensor<?x?x4xf32> -> !tessera_tile.tile<4xf32>
        %all = tessera_tile.reduce "sum" %row axis 0 : !tessera_tile.tile<4xf32> -> f32
        %more = tessera_tile.elementwise "add"(%part, %all) : (f32, f32) -> f32
        scf.yield %more : f32
      }
      tessera_tile.store %sum, %y[%b] [1] drop [0] : f32, !tessera_tile.tensor<?xf32>
    }
    tessera_tile.return
  }
}
// CHECK: tessera_tile.grid(%{{\w+}}) by [1] {
// CHECK-NOT: tessera_tile.grid
// CHECK: [1, 1, 4] drop [0, 1]
