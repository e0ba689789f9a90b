"""The worker pool: threads that run the programs of a launch, written in LLVM IR.

One job at a time. The caller opens the job and takes part in it; workers that come while it is open go in, take
pieces until none is left, and go out. Closing lets nobody in any more and waits for those inside, so a caller never
waits for a worker to wake. Whoever finds the pool busy (another thread's launch, a launch inside a launch) runs its
programs itself. A worker looks out for the next job for a short while and then sleeps on a condition variable, which
every system with POSIX threads has.

`run` is called with the GIL, gives it up, and takes it back now and then to let CPython handle signals.
"""

from __future__ import annotations

import re
from typing import Any

import llvmlite.binding as llvm

from tessera.entry import layout
from tessera.entry.layout import POOL
from tessera.errors import CompilerFault

_llvm: Any = llvm  # llvmlite ships no types

_PAUSE = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
}
"""What tells a core that it spins, by the first part of the triple."""

_LOOK = """\
look:
  %passed = sub i64 %time, %asked
  %due = icmp sgt i64 %passed, POLL_NS
  br i1 %due, label %ask, label %piece
ask:
  %restore = load ptr, ptr {restore}
  %save = load ptr, ptr {save}
  %check = load ptr, ptr {check}
  %held = load ptr, ptr %gil
  call void %restore(ptr %held)
  %signalled = call i32 %check()
  %again = call ptr %save()
  store ptr %again, ptr %gil
  %raised = icmp ne i32 %signalled, 0
  br i1 %raised, label %STOPPED, label %signals
signals:
  %later = call i64 @now(ptr %pool)
  br label %piece
"""
"""Between two pieces of a caller's own: lets CPython handle signals now and then, and goes to `STOPPED` if one raises.
It stands where the text below says `LOOK_` and the name of that place."""

# `{name}` is the address of a field of the pool; see `_addressed`.
_IR = """
define internal i64 @now(ptr %pool) {
  %time = alloca [2 x i64], align 16
  %kind64 = load i64, ptr {clock_kind}
  %kind = trunc i64 %kind64 to i32
  %clock = load ptr, ptr {clock}
  call i32 %clock(i32 %kind, ptr %time)
  %seconds = load i64, ptr %time
  %rest = getelementptr i8, ptr %time, i64 8
  %nanoseconds = load i64, ptr %rest
  %whole = mul i64 %seconds, 1000000000
  %now = add i64 %whole, %nanoseconds
  ret i64 %now
}

; Give up the pool's mutex, or take it.
define internal void @locked(ptr %pool, i1 %take) {
  %lock = load ptr, ptr {lock}
  %unlock = load ptr, ptr {unlock}
  %which = select i1 %take, ptr %lock, ptr %unlock
  call i32 %which(ptr {mutex})
  ret void
}

define internal void @wake_all(ptr %pool, ptr %condition) {
  %broadcast = load ptr, ptr {broadcast}
  call void @locked(ptr %pool, i1 true)
  call i32 %broadcast(ptr %condition)
  call void @locked(ptr %pool, i1 false)
  ret void
}

; Return how many programs the piece after one of %count has that took %spent nanoseconds: at most %most.
define internal i64 @paced(i64 %count, i64 %spent, i64 %most) {
  %longer = mul i64 %count, GROWTH
  %more = call i64 @llvm.umin.i64(i64 %longer, i64 %most)
  %slow = icmp sgt i64 %spent, PIECE_NS
  %quick = icmp slt i64 %spent, QUICK_NS
  %steady = select i1 %slow, i64 1, i64 %count
  %next = select i1 %quick, i64 %more, i64 %steady
  ret i64 %next
}

; Take pieces until none is left. %gil is where the caller's thread state is kept, null in a worker.
define internal void @take_part(ptr %pool, ptr %params, ptr %gil) noinline {
entry:
  %function = load ptr, ptr {function}
  %most = load i64, ptr {chunk}
  %last = load i64, ptr {last}
  %asks = icmp ne ptr %gil, null
  %begun = call i64 @now(ptr %pool)
  br label %piece
piece:
  %asked = phi i64 [ %begun, %entry ], [ %asked, %onward ], [ %asked, %look ], [ %later, %signals ]
  %since = phi i64 [ %begun, %entry ], [ %time, %onward ], [ %time, %look ], [ %later, %signals ]
  %chunk = phi i64 [ 1, %entry ], [ %following, %onward ], [ %following, %look ], [ %following, %signals ]
  %first = atomicrmw add ptr {next}, i64 %chunk monotonic
  %some = icmp slt i64 %first, %last
  br i1 %some, label %work, label %leave
work:
  %full = add i64 %first, %chunk
  %end = call i64 @llvm.smin.i64(i64 %full, i64 %last)
  call void %function(ptr %params, i64 %first, i64 %end)
  %time = call i64 @now(ptr %pool)
  %spent = sub i64 %time, %since
  %following = call i64 @paced(i64 %chunk, i64 %spent, i64 %most)
  br i1 %asks, label %look, label %onward
onward:
  br label %piece
LOOK_break
break:
  store atomic i64 1, ptr {broken} monotonic, align 8
  store atomic i64 NONE, ptr {next} monotonic, align 8
  br label %leave
leave:
  ret void
}

; The same without the pool: every piece is the caller's.
define internal i64 @alone(ptr %pool, ptr %function, ptr %params, i64 %first, i64 %last, i64 %most, ptr %gil) {
entry:
  %begun = call i64 @now(ptr %pool)
  br label %piece
piece:
  %at = phi i64 [ %first, %entry ], [ %end, %look ], [ %end, %signals ]
  %asked = phi i64 [ %begun, %entry ], [ %asked, %look ], [ %later, %signals ]
  %since = phi i64 [ %begun, %entry ], [ %time, %look ], [ %later, %signals ]
  %chunk = phi i64 [ 1, %entry ], [ %following, %look ], [ %following, %signals ]
  %some = icmp slt i64 %at, %last
  br i1 %some, label %work, label %done
work:
  %full = add i64 %at, %chunk
  %end = call i64 @llvm.smin.i64(i64 %full, i64 %last)
  call void %function(ptr %params, i64 %at, i64 %end)
  %time = call i64 @now(ptr %pool)
  %spent = sub i64 %time, %since
  %following = call i64 @paced(i64 %chunk, i64 %spent, i64 %most)
  br label %look
LOOK_broken
broken:
  ret i64 -1
done:
  ret i64 0
}

; Leave the caller's CPU to the caller: a worker is woken there when its own CPU seems taken, as that of a halted
; virtual one does, and would wait its turn while another CPU idles. %left is the CPU that it stays away from, or -1.
define internal void @move_away(ptr %pool, ptr %left) noinline {
entry:
  %mask = alloca [CPU_BYTES x i8], align 8
  %which = load ptr, ptr {cpu}
  %can = icmp ne ptr %which, null
  br i1 %can, label %compare, label %done
compare:
  %here = call i32 %which()
  %place = sext i32 %here to i64
  %home = load atomic i64, ptr {home} monotonic, align 8
  %same = icmp eq i64 %place, %home
  %known = icmp ult i64 %home, CPUS
  %shared = and i1 %same, %known
  br i1 %shared, label %read, label %done
read:
  %get = load ptr, ptr {affinity}
  %size = call i32 %get(i32 0, i64 CPU_BYTES, ptr %mask)
  %read_ok = icmp sge i32 %size, 0
  br i1 %read_ok, label %look, label %done
look:
  %before = load i64, ptr %left
  %some = icmp sge i64 %before, 0
  br i1 %some, label %return, label %leave
return:
  %byte_was = lshr i64 %before, 3
  %at_was = getelementptr i8, ptr %mask, i64 %byte_was
  %bit_was64 = and i64 %before, 7
  %bit_was = trunc i64 %bit_was64 to i8
  %one_was = shl i8 1, %bit_was
  %old_was = load i8, ptr %at_was
  %new_was = or i8 %old_was, %one_was
  store i8 %new_was, ptr %at_was
  br label %leave
leave:
  %byte = lshr i64 %home, 3
  %at = getelementptr i8, ptr %mask, i64 %byte
  %bit64 = and i64 %home, 7
  %bit = trunc i64 %bit64 to i8
  %one = shl i8 1, %bit
  %others = xor i8 %one, -1
  %old = load i8, ptr %at
  %new = and i8 %old, %others
  store i8 %new, ptr %at
  %set = load ptr, ptr {set_affinity}
  %status = call i32 %set(i32 0, i64 CPU_BYTES, ptr %mask)
  %moved = icmp eq i32 %status, 0
  br i1 %moved, label %note, label %done
note:
  store i64 %home, ptr %left
  br label %done
done:
  ret void
}

; What a thread of the pool does for ever.
define internal ptr @worker(ptr %pool) noinline {
entry:
  %own = alloca [PARAMS x ptr], align 16
  %scratch = alloca ptr, align 8
  %size = alloca i64, align 8
  %left_cpu = alloca i64, align 8
  store i64 -1, ptr %left_cpu
  store ptr null, ptr %scratch
  store i64 0, ptr %size
  br label %next_job
next_job:
  %seen = load atomic i32, ptr {posted} seq_cst, align 4
  %stopping = load atomic i64, ptr {stop} seq_cst, align 8
  %stop = icmp ne i64 %stopping, 0
  br i1 %stop, label %end, label %knock
knock:
  %state = load atomic i32, ptr {state} acquire, align 4
  %limit = load atomic i64, ptr {limit} monotonic, align 8
  %open_bit = and i32 %state, OPEN
  %open = icmp ne i32 %open_bit, 0
  %inside32 = and i32 %state, COUNT
  %inside = zext i32 %inside32 to i64
  %room = icmp ult i64 %inside, %limit
  %welcome = and i1 %open, %room
  br i1 %welcome, label %enter, label %look_out
enter:
  %more = add i32 %state, 1
  %swapped = cmpxchg ptr {state}, i32 %state, i32 %more acq_rel acquire
  %in = extractvalue { i32, i1 } %swapped, 1
  br i1 %in, label %memory, label %knock
memory:
  %wanted = load i64, ptr {scratch}
  %had = load i64, ptr %size
  %short = icmp ugt i64 %wanted, %had
  br i1 %short, label %grow, label %fill
grow:
  %free = load ptr, ptr {free}
  %memalign = load ptr, ptr {memalign}
  %old = load ptr, ptr %scratch
  call void %free(ptr %old)
  store ptr null, ptr %scratch
  %status = call i32 %memalign(ptr %scratch, i64 64, i64 %wanted)
  %given = icmp eq i32 %status, 0
  %now_has = select i1 %given, i64 %wanted, i64 0
  store i64 %now_has, ptr %size
  br i1 %given, label %fill, label %nothing
nothing:
  store ptr null, ptr %scratch
  br label %leave
fill:
  %params = load ptr, ptr {params}
  %count = load i64, ptr {count}
  %bytes = shl i64 %count, 3
  br label %copy
copy:
  %place = phi i64 [ 0, %fill ], [ %following, %copying ]
  %rest = icmp ult i64 %place, %bytes
  br i1 %rest, label %copying, label %copied
copying:
  %from = getelementptr i8, ptr %params, i64 %place
  %to = getelementptr i8, ptr %own, i64 %place
  %word = load ptr, ptr %from
  store ptr %word, ptr %to
  %following = add i64 %place, 8
  br label %copy
copied:
  %needs = icmp ne i64 %wanted, 0
  br i1 %needs, label %name, label %work
name:
  %before_last = sub i64 %bytes, 16
  %slot = getelementptr i8, ptr %own, i64 %before_last
  %mine = load ptr, ptr %scratch
  store ptr %mine, ptr %slot
  %unwritten = load i64, ptr {unwritten}
  %as_it_is = icmp eq i64 %unwritten, 0
  br i1 %as_it_is, label %work, label %overwrite
overwrite:
  %so_far = phi i64 [ 0, %name ], [ %further, %overwriting ]
  %further = add i64 %so_far, 8
  %unlike = icmp ule i64 %further, %wanted
  br i1 %unlike, label %overwriting, label %work
overwriting:
  %word_of_scratch = getelementptr i8, ptr %mine, i64 %so_far
  store volatile i64 %unwritten, ptr %word_of_scratch, align 8
  br label %overwrite
work:
  call void @take_part(ptr %pool, ptr %own, ptr null)
  br label %leave
leave:
  %were = atomicrmw sub ptr {state}, i32 1 acq_rel
  %left = and i32 %were, WAITING_OR_COUNT
  %awaited = icmp eq i32 %left, WAITING_AND_ONE
  br i1 %awaited, label %tell, label %look_out
tell:
  call void @wake_all(ptr %pool, ptr {done})
  br label %look_out
look_out:
  %idle = call i64 @now(ptr %pool)
  br label %spin
spin:
  %since = phi i64 [ %idle, %look_out ], [ %since, %tire ], [ %time, %linger ]
  PAUSE
  %current = load atomic i32, ptr {posted} seq_cst, align 4
  %same = icmp eq i32 %current, %seen
  br i1 %same, label %tire, label %next_job
tire:
  %time = call i64 @now(ptr %pool)
  %spent = sub i64 %time, %since
  %awake = icmp slt i64 %spent, SPIN_NS
  br i1 %awake, label %spin, label %linger
linger:
  %latest = load atomic i32, ptr {state} monotonic, align 4
  %others_bit = and i32 %latest, OPEN
  %others = icmp ne i32 %others_bit, 0
  %waited = sub i64 %time, %idle
  %patient = icmp slt i64 %waited, LINGER_NS
  %stays = and i1 %others, %patient
  br i1 %stays, label %spin, label %bed
bed:
  call void @locked(ptr %pool, i1 true)
  atomicrmw add ptr {sleepers}, i32 1 seq_cst
  br label %sleep
sleep:
  %called = load atomic i32, ptr {posted} seq_cst, align 4
  %quiet = icmp eq i32 %called, %seen
  br i1 %quiet, label %sleeping, label %rise
sleeping:
  %wait = load ptr, ptr {wait}
  call i32 %wait(ptr {wake}, ptr {mutex})
  br label %sleep
rise:
  atomicrmw sub ptr {sleepers}, i32 1 seq_cst
  call void @locked(ptr %pool, i1 false)
  call void @move_away(ptr %pool, ptr %left_cpu)
  br label %next_job
end:
  %release = load ptr, ptr {free}
  %memory_left = load ptr, ptr %scratch
  call void %release(ptr %memory_left)
  ret ptr null
}

; Start threads until there are %wanted, as far as the system gives them. Signals are for Python's threads.
define internal void @start(ptr %pool, i64 %wanted) noinline {
entry:
  %all = alloca [16 x i64], align 16
  %before = alloca [16 x i64], align 16
  call void @llvm.memset.p0.i64(ptr %all, i8 -1, i64 128, i1 false)
  %sigmask = load ptr, ptr {sigmask}
  %setmask64 = load i64, ptr {setmask}
  %setmask = trunc i64 %setmask64 to i32
  call i32 %sigmask(i32 %setmask, ptr %all, ptr %before)
  br label %more
more:
  %have = load i64, ptr {started}
  %less = icmp ult i64 %have, %wanted
  br i1 %less, label %create, label %done
create:
  %make = load ptr, ptr {create}
  %offset = shl i64 %have, 3
  %id = getelementptr i8, ptr {threads}, i64 %offset
  %status = call i32 %make(ptr %id, ptr null, ptr @worker, ptr %pool)
  %made = icmp eq i32 %status, 0
  br i1 %made, label %count, label %done
count:
  %now = add i64 %have, 1
  store i64 %now, ptr {started}
  br label %more
done:
  call i32 %sigmask(i32 %setmask, ptr %before, ptr null)
  ret void
}

; Let nobody in any more and wait for those inside.
define internal void @close(ptr %pool) {
entry:
  %were = atomicrmw and ptr {state}, i32 COUNT acq_rel
  %busy = icmp ne i32 %were, OPEN
  br i1 %busy, label %hope, label %done
hope:
  %since = call i64 @now(ptr %pool)
  br label %spin
spin:
  PAUSE
  %inside = load atomic i32, ptr {state} acquire, align 4
  %some = icmp ne i32 %inside, 0
  br i1 %some, label %tire, label %done
tire:
  %time = call i64 @now(ptr %pool)
  %spent = sub i64 %time, %since
  %awake = icmp slt i64 %spent, CLOSE_NS
  br i1 %awake, label %spin, label %bed
bed:
  call void @locked(ptr %pool, i1 true)
  atomicrmw or ptr {state}, i32 WAITING acq_rel
  br label %sleep
sleep:
  %state = load atomic i32, ptr {state} acquire, align 4
  %still = and i32 %state, COUNT
  %late = icmp ne i32 %still, 0
  br i1 %late, label %sleeping, label %rise
sleeping:
  %wait = load ptr, ptr {wait}
  call i32 %wait(ptr {done}, ptr {mutex})
  br label %sleep
rise:
  call void @locked(ptr %pool, i1 false)
  br label %done
done:
  store atomic i32 0, ptr {state} release, align 4
  ret void
}

; Run programs %first to %last - 1 on %threads threads. Called with the GIL; gives 0, or -1 with an exception set.
; %cost is what they take on one thread, in nanoseconds.
define i64 @RUN(ptr %pool, i64 %threads, ptr %function, ptr %params, i64 %count, i64 %scratch, i64 %first, i64 %last,
                i64 %cost) {
entry:
  %gil = alloca ptr, align 8
  %save = load ptr, ptr {save}
  %held = call ptr %save()
  store ptr %held, ptr %gil
  %programs = sub i64 %last, %first
  %pieces = mul i64 %threads, PIECES
  %part = udiv i64 %programs, %pieces
  %chunk = call i64 @llvm.umax.i64(i64 %part, i64 1)
  %several = icmp ugt i64 %threads, 1
  %fits = icmp ule i64 %count, PARAMS
  %stopping = load atomic i64, ptr {stop} seq_cst, align 8
  %serves = icmp eq i64 %stopping, 0
  %can0 = and i1 %several, %fits
  %can = and i1 %can0, %serves
  br i1 %can, label %weigh, label %single
weigh:
  %resting = load atomic i32, ptr {sleepers} monotonic, align 4
  %rest = icmp ne i32 %resting, 0
  %small = icmp slt i64 %cost, WAKE_NS
  %doubtful = and i1 %rest, %small
  br i1 %doubtful, label %pace, label %claim
pace:
  %start = call i64 @now(ptr %pool)
  %before = load atomic i64, ptr {ended} monotonic, align 8
  %pause = sub i64 %start, %before
  %steady = icmp slt i64 %pause, SPIN_NS
  br i1 %steady, label %claim, label %single
claim:
  %taken = cmpxchg ptr {busy}, i64 0, i64 1 acq_rel acquire
  %mine = extractvalue { i64, i1 } %taken, 1
  br i1 %mine, label %open, label %single
single:
  %outcome = call i64 @alone(ptr %pool, ptr %function, ptr %params, i64 %first, i64 %last, i64 %chunk, ptr %gil)
  br label %back
open:
  %helpers0 = sub i64 %threads, 1
  %helpers = call i64 @llvm.umin.i64(i64 %helpers0, i64 MOST)
  %have = load i64, ptr {started}
  %enough = icmp uge i64 %have, %helpers
  br i1 %enough, label %post, label %hire
hire:
  call void @start(ptr %pool, i64 %helpers)
  br label %post
post:
  store ptr %function, ptr {function}
  store ptr %params, ptr {params}
  store i64 %count, ptr {count}
  store i64 %scratch, ptr {scratch}
  store i64 %last, ptr {last}
  store i64 %chunk, ptr {chunk}
  store atomic i64 %helpers, ptr {limit} monotonic, align 8
  store atomic i64 0, ptr {broken} monotonic, align 8
  store atomic i64 %first, ptr {next} monotonic, align 8
  store atomic i32 OPEN, ptr {state} release, align 4
  atomicrmw add ptr {posted}, i32 1 seq_cst
  %sleepers = load atomic i32, ptr {sleepers} seq_cst, align 4
  %asleep = icmp ne i32 %sleepers, 0
  br i1 %asleep, label %wake, label %join
wake:
  %which = load ptr, ptr {cpu}
  %tells = icmp ne ptr %which, null
  br i1 %tells, label %tell, label %call
tell:
  %here = call i32 %which()
  %home = sext i32 %here to i64
  store atomic i64 %home, ptr {home} monotonic, align 8
  br label %call
call:
  call void @wake_all(ptr %pool, ptr {wake})
  br label %join
join:
  call void @take_part(ptr %pool, ptr %params, ptr %gil)
  call void @close(ptr %pool)
  %broken = load atomic i64, ptr {broken} monotonic, align 8
  %failed = sub i64 0, %broken
  store atomic i64 0, ptr {busy} release, align 8
  br label %back
back:
  %result = phi i64 [ %outcome, %single ], [ %failed, %join ]
  %end = call i64 @now(ptr %pool)
  store atomic i64 %end, ptr {ended} monotonic, align 8
  %restore = load ptr, ptr {restore}
  %kept = load ptr, ptr %gil
  call void %restore(ptr %kept)
  ret i64 %result
}

; End all threads. Called without the GIL.
define void @STOP(ptr %pool) {
entry:
  store atomic i64 1, ptr {stop} seq_cst, align 8
  atomicrmw add ptr {posted}, i32 1 seq_cst
  call void @wake_all(ptr %pool, ptr {wake})
  %have = load i64, ptr {started}
  br label %more
more:
  %number = phi i64 [ 0, %entry ], [ %next, %one ]
  %some = icmp ult i64 %number, %have
  br i1 %some, label %one, label %done
one:
  %offset = shl i64 %number, 3
  %at = getelementptr i8, ptr {threads}, i64 %offset
  %id = load ptr, ptr %at
  %join = load ptr, ptr {join}
  call i32 %join(ptr %id, ptr null)
  %next = add i64 %number, 1
  br label %more
done:
  store i64 0, ptr {started}
  ret void
}

declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.umin.i64(i64, i64)
declare i64 @llvm.umax.i64(i64, i64)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
"""

_CONSTANTS = {
    "PARAMS": layout.POOL_PARAMS,
    "OPEN": layout.POOL_OPEN,
    "WAITING_OR_COUNT": layout.POOL_OPEN - 1,
    "WAITING_AND_ONE": layout.POOL_WAITING + 1,
    "WAITING": layout.POOL_WAITING,
    "COUNT": layout.POOL_WAITING - 1,
    "SPIN_NS": layout.POOL_SPIN_NS,
    "LINGER_NS": layout.POOL_LINGER_NS,
    "CLOSE_NS": layout.POOL_CLOSE_NS,
    "POLL_NS": layout.POOL_POLL_NS,
    "PIECE_NS": layout.POOL_PIECE_NS,
    "QUICK_NS": layout.POOL_PIECE_NS // layout.POOL_GROWTH,
    "GROWTH": layout.POOL_GROWTH,
    "WAKE_NS": layout.POOL_WAKE_NS,
    "PIECES": layout.POOL_PIECES,
    "MOST": layout.POOL_THREADS - 1,
    "NONE": 1 << 61,
    "CPUS": layout.POOL_CPUS,
    "CPU_BYTES": layout.POOL_CPUS // 8,
    "RUN": layout.POOL_RUN,
    "STOP": layout.POOL_STOP,
}


def pool_ir(architecture: str) -> str:
    """Return the LLVM IR of the pool.

    Args:
        architecture: `x86_64` or `aarch64`.
    """
    declaration, pause = _PAUSE[architecture]
    names = "|".join(sorted((*_CONSTANTS, "PAUSE"), key=len, reverse=True))
    values = {**{name: str(value) for name, value in _CONSTANTS.items()}, "PAUSE": pause}
    whole = re.sub(r"(?m)^LOOK_(\w+)\n", lambda match: _LOOK.replace("STOPPED", match[1]), _IR)
    text = re.sub(rf"\b({names})\b", lambda match: values[match[1]], whole)
    # A field's address is a constant expression only of a constant: its instruction goes before the line.
    lines: list[str] = [declaration]
    for number, line in enumerate(text.splitlines()):
        lines += _addressed(line, number)
    return "\n".join(lines) + "\n"


def _addressed(line: str, number: int) -> list[str]:
    """Return a line with `{field}` replaced by the field's address, after the instructions that compute it."""
    before: list[str] = []

    def address(match: re.Match[str]) -> str:
        name = f"%at.{number}.{len(before)}"
        before.append(f"  {name} = getelementptr i8, ptr %pool, i64 {POOL[match[1]]}")
        return name

    code = line if line.lstrip().startswith(";") else re.sub(r"{(\w+)}", address, line)
    return [*before, code]


def compile_pool() -> bytes:
    """Return the object code of the pool for this machine.

    Raises:
        CompilerFault: `llvm-failed` when LLVM rejects it.
    """
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    triple = str(_llvm.get_process_triple())
    target = _llvm.Target.from_triple(triple)
    machine = target.create_target_machine(opt=2, reloc="pic", codemodel="small")
    try:
        module = _llvm.parse_assembly(pool_ir(triple.split("-")[0]))
        module.triple = machine.triple
        module.data_layout = str(machine.target_data)
        module.verify()
    except RuntimeError as error:
        raise CompilerFault(f"LLVM rejects the worker pool: {error}", code="llvm-failed") from error
    return machine.emit_object(module)
