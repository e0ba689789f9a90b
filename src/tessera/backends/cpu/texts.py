"""Functions written as LLVM IR text with loops, branches and sizes that are folded where they are known."""

from __future__ import annotations

from collections.abc import Callable

from tessera.backends.llvm.ops import I64, Ops
from tessera.backends.llvm.text import FunctionText, ModuleText
from tessera.backends.llvm.types import LLVMType
from tessera.data import dataclass

LINE_BYTES = 64
"""Bytes of a line of the caches."""


@dataclass(frozen=True)
class Size:
    """A size as text, and as a number where it is known."""

    text: str
    known: int | None


class Loops:
    """Writes one function; sizes and offsets are i64 texts.

    Args:
        module: where it belongs.
        signature: everything before the attributes.
    """

    def __init__(self, module: ModuleText, signature: str):
        self.module = module
        self.fn = FunctionText(f"{signature} {module.attributes('nounwind noinline')}", once=True)
        self.ops = Ops(module, self.fn)

    def render(self) -> str:
        """Return the function's text."""
        raise NotImplementedError

    def moved(self, pointer: str, type_: LLVMType, offset: str) -> str:
        """Return a pointer moved by `offset` elements of a vector type."""
        return self.ops.gep(type_.element, pointer, offset)

    def times(self, value: str, factor: int) -> str:
        """Return the product with a constant."""
        if value.isdigit():
            return str(int(value) * factor)
        return value if factor == 1 else self.fn.assign(f"mul nsw i64 {value}, {factor}")

    def sum(self, a: str, b: str) -> str:
        """Return the sum of two sizes."""
        if a == "0" or b == "0":
            return b if a == "0" else a
        if a.isdigit() and b.isdigit():
            return str(int(a) + int(b))
        return self.fn.assign(f"add nsw i64 {a}, {b}")

    def divided(self, size: Size, by: int) -> tuple[Size, Size]:
        """Return the quotient and the rest."""
        if size.known is not None:
            full, rest = divmod(size.known, by)
            return Size(str(full), full), Size(str(rest), rest)
        full = self.fn.assign(f"sdiv i64 {size.text}, {by}")
        return Size(full, None), Size(self.fn.assign(f"srem i64 {size.text}, {by}"), None)

    def repeat(self, count: Size, body: Callable[[str], None]) -> None:
        """Loop `count` times; `body` takes the counter as text."""
        fn = self.fn
        if count.known is not None and count.known <= 1:
            if count.known:
                body("0")
            return
        before, head, exit_ = fn.block, fn.label("head"), fn.label("exit")
        inside = fn.label("body")
        fn.branch(head)
        fn.start(head)
        place, counter = fn.reserve(), fn.fresh("i")
        fn.branch_if(self.ops.compare("slt", I64, counter, count.text), inside, exit_)
        fn.start(inside)
        body(counter)
        following = fn.assign(f"add nsw i64 {counter}, 1")
        fn.fill(place, f"{counter} = phi i64 [ 0, %{before} ], [ {following}, %{fn.block} ]")
        fn.branch(head, f", !llvm.loop {self.module.loop()}")
        fn.start(exit_)

    def pieces(self, full: Size, rest: Size, fresh: bool, piece: Callable[[str, bool, bool], None]) -> None:
        """Run whole pieces of a sum, and what is left of it.

        Args:
            full: how many whole pieces there are.
            rest: zero when nothing is left.
            fresh: whether the sum starts from zero; sizes are known then.
            piece: takes a piece's number, whether it is a whole one, and whether it starts the sum from zero.
        """
        if fresh and full.known:
            piece("0", True, True)
            self.repeat(sized(full.known - 1, ""), lambda i: piece(self.sum(i, "1"), True, False))
        else:
            self.repeat(full, lambda i: piece(i, True, False))
        self.if_any(rest, lambda: piece(full.text, False, fresh and not full.known))

    def if_any(self, size: Size, body: Callable[[], None]) -> None:
        """Run `body` unless the size is zero."""
        if size.known is not None:
            if size.known:
                body()
            return
        self.choice(self.ops.compare("sgt", I64, size.text, "0"), body, lambda: None)

    def choice(self, condition: str, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
        """Branch on a condition."""
        fn = self.fn
        labels = fn.label("then"), fn.label("else")
        join = fn.label("join")
        fn.branch_if(condition, *labels)
        for label, body in zip(labels, (then, otherwise), strict=True):
            fn.start(label)
            body()
            fn.branch(join)
        fn.start(join)


def prefetch(module: ModuleText, fn: FunctionText, place: str, purpose: str, locality: int) -> None:
    """Prefetch the cache line at `place`.

    Args:
        module: where the intrinsic is declared.
        fn: where the request goes.
        place: address, as text.
        purpose: `read` or `write`.
        locality: 3 for the first-level cache, 2 for the second-level one.
    """
    module.declare("declare void @llvm.prefetch.p0(ptr, i32 immarg, i32 immarg, i32 immarg)")
    fn.line(f"call void @llvm.prefetch.p0(ptr {place}, i32 {int(purpose == 'write')}, i32 {locality}, i32 1)")


def first_lanes(fn: FunctionText, ops: Ops, lanes: int, count: str) -> str:
    """Return the mask of the first `count` of some lanes."""
    type_ = LLVMType("i32", lanes)
    numbers = "<" + ", ".join(f"i32 {lane}" for lane in range(lanes)) + ">"
    number = count if count.isdigit() else fn.assign(f"trunc i64 {count} to i32")
    return ops.compare("ult", type_, numbers, ops.splat(type_, number))


def masked_load(module: ModuleText, fn: FunctionText, type_: LLVMType, place: str, align: int, mask: str) -> str:
    """Return a vector of which the lanes of a mask are read; the others are 0."""
    bools, symbol = type_.of("i1"), f"llvm.masked.load.{type_.mangled}.p0"
    module.declare(f"declare {type_} @{symbol}(ptr, {bools}, {type_})")
    return fn.assign(f"call {type_} @{symbol}(ptr align {align} {place}, {bools} {mask}, {type_} zeroinitializer)")


def masked_store(
    module: ModuleText, fn: FunctionText, type_: LLVMType, value: str, place: str, align: int, mask: str
) -> None:
    """Store the lanes of a mask."""
    bools, symbol = type_.of("i1"), f"llvm.masked.store.{type_.mangled}.p0"
    module.declare(f"declare void @{symbol}({type_}, ptr, {bools})")
    fn.line(f"call void @{symbol}({type_} {value}, ptr align {align} {place}, {bools} {mask})")


def sized(known: int | None, name: str) -> Size:
    """Return a size that is a number, or else has a name."""
    return Size(name if known is None else str(known), known)


def halves(number: int) -> list[int]:
    """Return a number and its halves down to 1."""
    found = [number]
    while found[-1] > 1:
        found.append(found[-1] // 2)
    return found
