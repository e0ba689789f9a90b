"""Prefetches the rows that the next product packs, a few lines at each kernel call of this one."""

from __future__ import annotations

from tessera.backends.cpu.texts import LINE_BYTES, Loops, Size, prefetch, sized
from tessera.backends.llvm.ops import I64
from tessera.backends.llvm.text import ModuleText
from tessera.data import dataclass


@dataclass(frozen=True)
class Ahead:
    """How much is prefetched at a time: a core stalls on more lines than it can track.

    Args:
        lines: cache lines of a row.
        part: lines prefetched at once, a divisor of `lines`.
        count: parts prefetched by one call.
    """

    lines: int
    part: int
    count: int

    @classmethod
    def of(cls, rows: int, length: int, calls: int) -> Ahead:
        """Return what each of a number of calls prefetches, so that the last one ends with the last row.

        Args:
            rows: the most rows there are.
            length: bytes of each.
            calls: calls of kernels in a product.
        """
        lines = -(-length // LINE_BYTES)
        wanted = -(-rows * lines // calls)
        part = next(size for size in range(min(wanted, lines), lines + 1) if lines % size == 0)
        return cls(lines, part, -(-wanted // part))

    @property
    def name(self) -> str:
        """A symbol that tells functions apart."""
        return f"tessera_ahead_{self.lines}_{self.part}_{self.count}"


def ask_function(module: ModuleText, ahead: Ahead) -> str:
    """Define `void (asked, rows, distance, wanted)` once, and return its symbol.

    `asked` holds the number of parts that have been prefetched, `rows` is where the first row begins, `distance` that
    of two rows in bytes, and `wanted` their number.
    """
    if not module.has(ahead.name):
        module.define(ahead.name, _Ask(module, ahead).render())
    return ahead.name


class _Ask(Loops):
    """Writes the function."""

    def __init__(self, module: ModuleText, ahead: Ahead):
        super().__init__(
            module, f"define internal void @{ahead.name}(ptr %asked, ptr %rows, i64 %distance, i64 %wanted)"
        )
        self.ahead = ahead

    def render(self) -> str:
        """Return the function's text."""
        ahead, fn = self.ahead, self.fn
        done = fn.assign("load i64, ptr %asked, align 8")
        left = self.ops.compare("slt", I64, done, self.times("%wanted", ahead.lines // ahead.part))

        def ask() -> None:
            self.repeat(sized(ahead.count, ""), lambda i: self._part(self.sum(done, i)))
            fn.line(f"store i64 {self.sum(done, str(ahead.count))}, ptr %asked, align 8")

        self.choice(left, ask, lambda: None)
        fn.line("ret void")
        return fn.render()

    def _part(self, number: str) -> None:
        ahead = self.ahead
        row, which = self.divided(Size(number, None), ahead.lines // ahead.part)
        first = self.fn.assign(f"mul nsw i64 {row.text}, %distance")
        place = self.ops.gep("i8", "%rows", self.sum(first, self.times(which.text, ahead.part * LINE_BYTES)))
        for line in range(ahead.part):
            prefetch(self.module, self.fn, self.ops.gep("i8", place, str(line * LINE_BYTES)), "read", 2)
