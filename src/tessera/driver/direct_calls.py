"""Hands a kernel's repeated calls to the compiled entry, which CPython calls in place of `__call__`.

A call that came through the Python path is turned into a record: guards that hold for all calls of its kind, and
what it launched. From then on the entry serves calls of this kind, and leaves all others to the Python path.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from tessera.data import dataclass
from tessera.driver.native import load_native
from tessera.driver.settings import settings
from tessera.driver.variants import Variant
from tessera.entry import host, layout
from tessera.frontend.signature import Signature
from tessera.frontend.specialize import Specialization
from tessera.runtime.device import Device
from tessera.runtime.forking import compiling
from tessera.runtime.once import once
from tessera.runtime.platforms import Launcher

if TYPE_CHECKING:
    from tessera.entry.tables import Record, Table

_SLOW_CALLS = 2
"""Calls of a variant that make a record: a program that calls a kernel once never loads the entry."""
_RECORDS = 32
"""Records of a kernel; the oldest goes first."""
_EAGER_RECORDS = 16
"""Records of a variant, after which only calls with sizes seen before make one: a record costs 0.1 ms."""
_TRIES = 4
"""Records tried for calls of one set of sizes, which may come with other keywords or constants."""
_PLANS_KEPT = 512
"""Plans of former records remembered for `explain()`."""


@dataclass(slots=True)
class Origin:
    """What a launch was made from.

    Args:
        spec: facts of the call.
        variant: the code.
        launcher: the code, loaded.
        device: where.
        calls: how many such calls took the Python path.
        tries: how often a record was made, or could not be made, of one.
    """

    spec: Specialization
    variant: Variant
    launcher: Launcher
    device: Device
    calls: int = 0
    tries: int = 0


@dataclass(slots=True)
class _Tally:
    """Calls of one variant that took the Python path, and the records made of them."""

    calls: int = 0
    records: int = 0


@dataclass(frozen=True, slots=True)
class Given:
    """The arguments of a call.

    Args:
        values: one for each parameter, defaults filled in.
        positional: how many came by position.
        names: names of the others, in order.
    """

    values: Sequence[Any]
    positional: int
    names: tuple[str, ...]

    def place(self, number: int, name: str) -> int | None:
        """Return where the caller put a parameter, None where it did not give it."""
        if number < self.positional:
            return number
        return self.positional + self.names.index(name) if name in self.names else None


@once
def _load_entry() -> tuple[Any, int]:
    """Return the loaded code and the entry's address; compiled at most once for a machine and a version."""
    loaded = load_native("entry")
    return loaded, loaded.address(layout.ENTRY)


class DirectCalls:
    """The records of one kernel.

    Args:
        kernel: the kernel object.
        signature: its parameters.
        key: names whose values select a tuning result.
    """

    def __init__(self, kernel: host.Callable, signature: Signature, key: Sequence[str]) -> None:
        self._signature = signature
        self._address = id(kernel)
        self._slow = cast(Any, type(kernel)).__call__
        self._key = frozenset(key)
        self._tallies: dict[int, _Tally] = {}
        self._records: list[Record] = []
        self._made: dict[int, object] = {}
        self._table: Table | None = None
        self._building = threading.Lock()

    @property
    def count(self) -> int:
        """How many kinds of calls the entry serves."""
        return len(self._records)

    def last(self) -> Any:
        """Return the plan of the call that the entry served last, None when the Python path served a later one."""
        return None if self._table is None else self._made.get(host.word(self._address + layout.KERNEL["last"]))

    def served_slowly(self, plan: Any, origin: Origin | None, given: Given | None) -> None:
        """Note a call that took the Python path, and make a record of its kind.

        Args:
            plan: what it launched.
            origin: what that was made from, None when the interpreter ran it.
            given: its arguments, None when it named a stream.
        """
        if self._table is not None:
            host.put_word(self._address + layout.KERNEL["last"], 0)
        if origin is None or given is None or not settings().entry:
            return
        tally = self._tallies.setdefault(id(origin.variant), _Tally())
        tally.calls += 1
        origin.calls += 1
        repeated = origin.calls >= _SLOW_CALLS or tally.records < _EAGER_RECORDS
        if tally.calls < _SLOW_CALLS or not repeated or origin.tries >= _TRIES or host.why_not():
            return
        with compiling():
            tally.records += self._try(origin, given, plan)

    def _try(self, origin: Origin, given: Given, plan: object) -> bool:
        """Make a record of a call's kind, unless another thread makes one; return whether there is a new one."""
        from tessera.driver.direct_records import make_record  # a process that calls a kernel once needs none of it
        from tessera.entry.tables import NotDirect

        if not self._building.acquire(blocking=False):
            return False
        try:
            origin.tries += 1
            return self._add(make_record(self._signature, self._key, origin, given), plan)
        except NotDirect:  # calls that stay with the Python path; `docs/launch.md` lists them
            return False
        finally:
            self._building.release()

    def _add(self, record: Record, plan: object) -> bool:
        if any(one.kind == record.kind for one in self._records):
            return False  # the entry left the call to Python for another reason, such as another thread's use
        from tessera.entry.tables import Table

        _, entry = _load_entry()
        self._records = [*self._records[-(_RECORDS - 1) :], record]
        if len(self._made) >= _PLANS_KEPT:
            used = {one.number for one in self._records}
            self._made = {number: made for number, made in self._made.items() if number in used}
        self._made[record.number] = plan
        table = Table(self._records, self._slow)
        host.put_word(self._address + layout.KERNEL["table"], table.address)
        host.put_word(self._address + layout.KERNEL["call"], entry)
        self._table = table  # frees the old one, unless a call is reading it
        return True
