"""Kernels that race on shared memory: the comments `first` and `second` mark the two accesses."""

import tessera as ts

F = ts.f32
ROW = ts.Tensor["m", "n", F]


def copy_read_at_once(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), F)
        ts.tile.cp_async(b, x[i : i + 8, 0:32])  # first
        y[i : i + 8, 0:32] = b  # second


def copy_never_committed(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), F)
        ts.tile.cp_async(b, x[i : i + 8, 0:32])  # first
        ts.tile.wait_group(0)
        y[i : i + 8, 0:32] = b  # second


def copy_committed_after_the_wait(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), F)
        ts.tile.cp_async(b, x[i : i + 8, 0:32])  # first
        ts.tile.wait_group(0)
        ts.tile.commit_group()
        ts.tile.barrier()
        y[i : i + 8, 0:32] = b  # second


def copy_without_wait(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), F)
        ts.tile.cp_async(b, x[i : i + 8, 0:32])  # first
        ts.tile.commit_group()
        ts.tile.barrier()
        y[i : i + 8, 0:32] = b  # second


def copy_without_barrier(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), F)
        ts.tile.cp_async(b, x[i : i + 8, 0:32])  # first
        ts.tile.commit_group()
        ts.tile.wait_group(0)
        y[i : i + 8, 0:32] = b  # second


def barrier_before_the_wait(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), F)
        ts.tile.cp_async(b, x[i : i + 8, 0:32])  # first
        ts.tile.commit_group()
        ts.tile.barrier()
        ts.tile.wait_group(0)
        y[i : i + 8, 0:32] = b  # second


def wait_for_too_few(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        a, b = ts.tile.alloc_shared((8, 32), F), ts.tile.alloc_shared((8, 32), F)
        ts.tile.cp_async(a, x[i : i + 8, 0:32])
        ts.tile.commit_group()
        ts.tile.cp_async(b, x[i : i + 8, 32:64])  # first
        ts.tile.commit_group()
        ts.tile.wait_group(1)
        ts.tile.barrier()
        y[i : i + 8, 0:32] = a + b  # second


def second_copy_in_the_next_group(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        a, b = ts.tile.alloc_shared((8, 32), F), ts.tile.alloc_shared((8, 32), F)
        ts.tile.cp_async(a, x[i : i + 8, 0:32])
        ts.tile.commit_group()
        ts.tile.cp_async(b, x[i : i + 8, 32:64])  # first
        ts.tile.wait_group(0)
        y[i : i + 8, 0:32] = ts.tile.load(b)  # second


def copy_over_a_copy(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), F)
        ts.tile.cp_async(b, x[i : i + 8, 0:32])  # first
        ts.tile.cp_async(b, x[i : i + 8, 32:64])  # second
        ts.tile.barrier()
        y[i : i + 8, 0:32] = b


def store_over_a_copy(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), F)
        ts.tile.cp_async(b, x[i : i + 8, 0:32])  # first
        ts.tile.commit_group()
        b[...] = x[i : i + 8, 32:64]  # second
        ts.tile.barrier()
        y[i : i + 8, 0:32] = b


def copy_over_a_store(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), F)
        b[...] = ts.tile.zeros((8, 32), F)  # first
        ts.tile.cp_async(b, x[i : i + 8, 0:32])  # second
        ts.tile.barrier()
        y[i : i + 8, 0:32] = b


def store_then_read(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), F)
        b[...] = x[i : i + 8, 0:32]  # first
        y[i : i + 8, 0:32] = b  # second


def store_then_transposed_read(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 8), F)
        b[...] = x[i : i + 8, 0:8]  # first
        y[i : i + 8, 0:8] = ts.tile.load(b.T)  # second


def store_twice(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), F)
        b[...] = ts.tile.zeros((8, 32), F)  # first
        b[...] = x[i : i + 8, 0:32]  # second
        ts.tile.barrier()
        y[i : i + 8, 0:32] = b


def store_after_a_read(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), F)
        b[...] = x[i : i + 8, 0:32]
        ts.tile.barrier()
        held = b + 1.0  # first
        b[...] = held  # second
        ts.tile.barrier()
        y[i : i + 8, 0:32] = b


def copy_after_a_read(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), F)
        ts.tile.cp_async(b, x[i : i + 8, 0:32])
        ts.tile.barrier()
        y[i : i + 8, 0:32] = b  # first
        ts.tile.cp_async(b, x[i : i + 8, 32:64])  # second
        ts.tile.barrier()
        y[i : i + 8, 32:64] = b


def mma_reads_too_early(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 16)):
        b = ts.tile.alloc_shared((16, 16), F)
        ts.tile.cp_async(b, x[i : i + 16, 0:16])  # first
        ts.tile.commit_group()
        y[i : i + 16, 0:16] = ts.tile.mma(b, b.T)  # second


def copy_while_mma_reads(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 16)):
        b = ts.tile.alloc_shared((16, 16), F)
        acc = ts.tile.zeros((16, 16), F)
        for k in ts.tile.range(0, n, 16):
            ts.tile.cp_async(b, x[i : i + 16, k : k + 16])  # second
            ts.tile.barrier()
            acc = ts.tile.mma(b, b.T, acc)  # first
        y[i : i + 16, 0:16] = acc


def loop_reads_what_its_end_wrote(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), F)
        b[...] = x[i : i + 8, 0:32]
        ts.tile.barrier()
        for k in ts.tile.range(0, n, 32):
            y[i : i + 8, k : k + 32] = b  # second
            ts.tile.barrier()
            b[...] = x[i : i + 8, k : k + 32]  # first


def loop_copies_at_its_end(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), F)
        ts.tile.cp_async(b, x[i : i + 8, 0:32])
        ts.tile.commit_group()
        ts.tile.wait_group(0)
        ts.tile.barrier()
        for k in ts.tile.range(0, n, 32):
            y[i : i + 8, k : k + 32] = b  # second
            ts.tile.barrier()
            ts.tile.cp_async(b, x[i : i + 8, k + 32 : k + 64])  # first
            ts.tile.commit_group()


def loop_stores_without_end_barrier(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), F)
        for k in ts.tile.range(0, n, 32):
            b[...] = x[i : i + 8, k : k + 32]  # second
            ts.tile.barrier()
            y[i : i + 8, k : k + 32] = b  # first


def read_after_the_loop(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), F)
        for k in ts.tile.range(0, n, 32):
            ts.tile.barrier()
            b[...] = x[i : i + 8, k : k + 32]  # first
        y[i : i + 8, 0:32] = b  # second


def double_buffer_waits_for_too_few(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((2, 8, 32), F)
        ts.tile.cp_async(b[0], x[i : i + 8, 0:32])  # first
        ts.tile.commit_group()
        for k in ts.tile.range(0, n // 32):
            ts.tile.cp_async(b[(k + 1) % 2], x[i : i + 8, k * 32 + 32 : k * 32 + 64])
            ts.tile.commit_group()
            ts.tile.wait_group(2)
            ts.tile.barrier()
            y[i : i + 8, k * 32 : k * 32 + 32] = ts.tile.load(b[k % 2])  # second
            ts.tile.barrier()


def double_buffer_without_second_barrier(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((2, 8, 32), F)
        ts.tile.cp_async(b[0], x[i : i + 8, 0:32])
        ts.tile.commit_group()
        for k in ts.tile.range(0, n // 32):
            ts.tile.cp_async(b[(k + 1) % 2], x[i : i + 8, k * 32 + 32 : k * 32 + 64])  # second
            ts.tile.commit_group()
            ts.tile.wait_group(1)
            ts.tile.barrier()
            y[i : i + 8, k * 32 : k * 32 + 32] = ts.tile.load(b[k % 2])  # first


def double_buffer_of_one_stage(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((2, 8, 32), F)
        ts.tile.cp_async(b[0], x[i : i + 8, 0:32])  # first
        ts.tile.commit_group()
        for k in ts.tile.range(0, n // 32):
            ts.tile.cp_async(b[k % 2], x[i : i + 8, k * 32 + 32 : k * 32 + 64])  # second
            ts.tile.commit_group()
            ts.tile.wait_group(1)
            ts.tile.barrier()
            y[i : i + 8, k * 32 : k * 32 + 32] = ts.tile.load(b[k % 2])
            ts.tile.barrier()


def double_buffer_reads_the_next_stage(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((2, 8, 32), F)
        ts.tile.cp_async(b[0], x[i : i + 8, 0:32])
        ts.tile.commit_group()
        for k in ts.tile.range(0, n // 32):
            ts.tile.cp_async(b[(k + 1) % 2], x[i : i + 8, k * 32 + 32 : k * 32 + 64])  # first
            ts.tile.commit_group()
            ts.tile.wait_group(1)
            ts.tile.barrier()
            y[i : i + 8, k * 32 : k * 32 + 32] = ts.tile.load(b[(k + 1) % 2])  # second
            ts.tile.barrier()


def ring_of_three_waits_for_too_few(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((3, 8, 32), F)
        for s in ts.tile.static_range(2):
            ts.tile.cp_async(b[s], x[i : i + 8, s * 32 : s * 32 + 32])  # first
            ts.tile.commit_group()
        stage = 0
        for k in ts.tile.range(0, n, 32):
            ts.tile.wait_group(2)
            ts.tile.barrier()
            y[i : i + 8, k : k + 32] = ts.tile.load(b[stage])  # second
            ts.tile.barrier()
            ts.tile.cp_async(b[(stage + 2) % 3], x[i : i + 8, k + 64 : k + 96])
            ts.tile.commit_group()
            stage = (stage + 1) % 3


def ring_of_three_copies_too_near(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((3, 8, 32), F)
        for s in ts.tile.static_range(2):
            ts.tile.cp_async(b[s], x[i : i + 8, s * 32 : s * 32 + 32])  # first
            ts.tile.commit_group()
        for k in ts.tile.range(0, n // 32):
            ts.tile.wait_group(1)
            ts.tile.barrier()
            y[i : i + 8, k * 32 : k * 32 + 32] = ts.tile.load(b[k % 3])
            ts.tile.barrier()
            ts.tile.cp_async(b[(k + 1) % 3], x[i : i + 8, k * 32 + 64 : k * 32 + 96])  # second
            ts.tile.commit_group()


def ring_of_four_without_barrier_at_all(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((4, 8, 32), F)
        for s in ts.tile.static_range(3):
            ts.tile.cp_async(b[s], x[i : i + 8, s * 32 : s * 32 + 32])  # first
            ts.tile.commit_group()
        for k in ts.tile.range(0, n // 32):
            ts.tile.wait_group(2)
            y[i : i + 8, k * 32 : k * 32 + 32] = ts.tile.load(b[k % 4])  # second
            ts.tile.cp_async(b[(k + 3) % 4], x[i : i + 8, k * 32 + 96 : k * 32 + 128])
            ts.tile.commit_group()


def last_group_is_not_waited_for(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((2, 8, 32), F)
        ts.tile.cp_async(b[0], x[i : i + 8, 0:32])
        ts.tile.commit_group()
        stage = 0
        for k in ts.tile.range(0, n, 32):
            if k + 32 < n:
                ts.tile.cp_async(b[1 - stage], x[i : i + 8, k + 32 : k + 64])  # first
                ts.tile.commit_group()
            ts.tile.wait_group(1)
            ts.tile.barrier()
            y[i : i + 8, k : k + 32] = ts.tile.load(b[stage])  # second
            ts.tile.barrier()
            stage = 1 - stage


def barrier_in_one_branch(x: ROW, y: ROW, fast: int):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), F)
        b[...] = x[i : i + 8, 0:32]  # first
        if fast == 0:
            ts.tile.barrier()
        y[i : i + 8, 0:32] = b  # second


def wait_in_one_branch(x: ROW, y: ROW, late: int):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), F)
        ts.tile.cp_async(b, x[i : i + 8, 0:32])  # first
        ts.tile.commit_group()
        if late > 3:
            ts.tile.wait_group(0)
        else:
            ts.tile.wait_group(1)
        ts.tile.barrier()
        y[i : i + 8, 0:32] = b  # second


def branch_writes_without_barrier(x: ROW, y: ROW, again: int):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), F)
        b[...] = x[i : i + 8, 0:32]
        ts.tile.barrier()
        if again != 0:
            b[...] = x[i : i + 8, 32:64]  # first
        y[i : i + 8, 0:32] = b  # second


def barrier_in_the_first_iteration_only(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), F)
        for k in ts.tile.range(0, n, 32):
            b[...] = x[i : i + 8, k : k + 32]  # first
            if k == 0:
                ts.tile.barrier()
            y[i : i + 8, k : k + 32] = b  # second
            ts.tile.barrier()


def branch_on_data(x: ROW, y: ROW, order: ts.Tensor["m", ts.i32]):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), F)
        b[...] = x[i : i + 8, 0:32]
        ts.tile.barrier()
        if order[i] == 5:
            held = b + 1.0  # first
            b[...] = held  # second
        ts.tile.barrier()
        y[i : i + 8, 0:32] = b


def while_loop(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), F)
        k = 0
        while k < n:
            b[...] = x[i : i + 8, k : k + 32]  # second
            ts.tile.barrier()
            y[i : i + 8, k : k + 32] = b  # first
            k = k + 32


def loop_left_before_the_barrier(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), F)
        for k in ts.tile.range(0, n, 32):
            b[...] = x[i : i + 8, k : k + 32]  # first
            if k + 64 >= n:
                break
            ts.tile.barrier()
        y[i : i + 8, 0:32] = b  # second


@ts.function
def fill(b, x, i):
    b[...] = x[i : i + 8, 0:32]  # first


def a_function_writes(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), F)
        fill(b, x, i)
        y[i : i + 8, 0:32] = b  # second


def nested_loops(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), F)
        total = ts.tile.zeros((8, 32), F)
        for k in ts.tile.range(0, n, 32):
            b[...] = x[i : i + 8, k : k + 32]  # second
            ts.tile.barrier()
            for j in ts.tile.range(3):
                total += b + j  # first
        y[i : i + 8, 0:32] = total


def predicated_store(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), F)
        b[...] = ts.tile.zeros((8, 32), F)
        ts.tile.barrier()
        if x[i : i + 8, 0:32] > 0:
            b[...] = 1.0  # first
        y[i : i + 8, 0:32] = b  # second


def causal(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 32)):
        b = ts.tile.alloc_shared((32, 32), F)
        total = ts.tile.zeros((32, 32), F)
        for k in ts.tile.range(0, i + 32, 32):
            ts.tile.cp_async(b, x[k : k + 32, 0:32])  # second
            ts.tile.barrier()
            total += b  # first
        y[i : i + 32, 0:32] = total


def program_number_decides(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), F)
        b[...] = x[i : i + 8, 0:32]  # first
        if i > 0:
            ts.tile.barrier()
        y[i : i + 8, 0:32] = b  # second


def the_whole_ring_is_read(x: ROW, y: ts.Tensor["s", "m", "n", F]):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((2, 8, 32), F)
        ts.tile.cp_async(b[0], x[i : i + 8, 0:32])
        ts.tile.commit_group()
        ts.tile.cp_async(b[1], x[i : i + 8, 32:64])  # first
        ts.tile.commit_group()
        ts.tile.wait_group(1)
        ts.tile.barrier()
        y[0:2, i : i + 8, 0:32] = b  # second


def one_stage_of_the_ring_is_written(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((4, 2, 8, 32), F)
        for s in ts.tile.static_range(4):
            for t in ts.tile.static_range(2):
                b[s][t][...] = x[i : i + 8, s * 32 : s * 32 + 32]
        ts.tile.barrier()
        b[2][1][...] = x[i : i + 8, 0:32]  # first
        y[i : i + 8, 0:32] = ts.tile.load(b[2][0]) + ts.tile.load(b[2][1])  # second


def the_second_grid(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        y[i : i + 8, 0:32] = x[i : i + 8, 0:32]
    for j in ts.tile.grid((m, 16)):
        b = ts.tile.alloc_shared((16, 32), F)
        b[...] = x[j : j + 16, 0:32]  # first
        y[j : j + 16, 0:32] = b  # second


def parts_that_overlap(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((16, 32), F)
        b[0:8, :] = x[i : i + 8, 0:32]  # first
        b[7:15, :] = x[i : i + 8, 0:32]  # second


def part_read_at_once(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), F)
        b[...] = x[i : i + 8, 0:32]  # first
        y[i : i + 8, 0:16] = b[:, 0:16]  # second


def element_read_at_once(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((32,), F)
        for k in ts.tile.range(0, 4):
            b[k] = x[i, k]  # first
        y[i, 0] = b[3]  # second


def part_overwritten_an_iteration_later(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((64, 32), F)
        for k in ts.tile.range(0, 4):
            b[k * 8 : k * 8 + 8, :] = x[i : i + 8, 0:32]  # second
            b[k * 8 + 8 : k * 8 + 9, :] = x[i : i + 1, 0:32]  # first


def columns_by_an_index_tile(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), F)
        b[:, ts.tile.arange(16) * 2] = x[i : i + 8, 0:16]  # first
        y[i : i + 8, 0:8] = b.T[4:12, :].T  # second


def at_places_of_data(x: ROW, y: ROW, places: ts.Tensor[8, ts.i32]):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), F)
        b[places[:], :] = x[i : i + 8, 0:32]  # first
        y[i, 0] = b[3, 3]  # second


def of_a_stage(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((2, 8, 32), F)
        b[0][...] = x[i : i + 8, 0:32]
        b[1, 0:4, :] = x[i : i + 4, 0:32]  # first
        b[1, 4:8, :] = x[i : i + 4, 0:32]
        y[i : i + 8, 0:32] = b[1]  # second


def copied_to_and_read_in_part(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), F)
        ts.tile.cp_async(b, x[i : i + 8, 0:32])  # first
        ts.tile.commit_group()
        y[i, 0:8] = b[0, 0:8]  # second


def programs_of_large_arguments_only(x: ROW, y: ROW, k: int):
    for i in ts.tile.grid((k - 100000, 8)):
        b = ts.tile.alloc_shared((8, 32), F)
        ts.tile.cp_async(b, x[i : i + 8, 0:32])  # first
        y[i : i + 8, 0:32] = b  # second


FAULTY = [
    function
    for name, function in list(globals().items())
    if callable(function) and getattr(function, "__module__", "") == __name__ and function is not fill
]
