"""Runs of a graph after its first: one function, written for one kind of call, that does what is needed and no more.

It makes arrays, starts launches together, and calls what else the graph calls with arguments that are there already. A
tensor of PyTorch's is a place in memory here: another shape of it costs nothing until something asks for a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

import numpy as np

from tessera.driver.launch import stream_source
from tessera.driver.together import Together
from tessera.graph.edges import Number
from tessera.graph.pieces import Pieces, Recording
from tessera.graph.recorded import Launches, Other, View
from tessera.graph.runs import Apply, Call, Direct, Run, Seen, leaves_of, lying
from tessera.graph.source import Source
from tessera.numerics.dtypes import u8
from tessera.ops import arrays
from tessera.ops.forms import Form, Part, creator, laid, typed, viewed, viewer
from tessera.runtime.readers import start_of_numpy
from tessera.runtime.shortage import out_of_memory

LITTLE = 1 << 16
"""Launches that share no more bytes than this share them with those after the next step, too."""


class Replay:
    """The steps of a graph for one kind of call.

    Args:
        recording: the graph's first run.

    Raises:
        NotDirect: the driver lacks a function.
    """

    def __init__(self, recording: Recording) -> None:
        self.lock = Lock()
        """Held by a run: parameters are put where the last run's were."""
        self.items = recording.items
        writer = _TensorWriter(recording) if arrays.is_torch(recording.like) else _Writer(recording)
        source = writer.written()
        self.text = source.text
        """What runs; for debuggers and tests."""
        self.is_here = writer.is_here
        """Says whether the calling thread may run it, None where any may."""
        self._run, self._made = source.function("<replay>"), writer.made

    def __call__(self, given: list[Any], starts: Sequence[int]) -> list[Any]:
        """Run the steps.

        Args:
            given: arguments; the list is emptied.
            starts: their addresses.

        Returns:
            The results.

        Raises:
            ResourceError: `out-of-memory`.
            TesseraError: as steps do.
        """
        try:
            return self._run(given, starts)
        except (MemoryError, RuntimeError) as error:
            shape = self._wanted(error)
            if shape is None:
                raise
            raise out_of_memory(shape) from error

    def _wanted(self, error: Exception) -> tuple[int, ...] | None:
        """Return the shape of the tensor that could not be made, None for another error: libraries say no more."""
        trace = error.__traceback__ and error.__traceback__.tb_next
        return None if trace is None else self._made.get(trace.tb_lineno)


class _Writer:
    """Writes a replay on NumPy's arrays, each of which has a name.

    Args:
        recording: the graph's first run.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording, self._pieces = recording, Pieces(recording)
        self._source = Source("def replay(given, starts):")
        self._forms = recording.forms
        self._live: set[int] = set()
        self.is_here: Callable[[], bool] | None = None
        self.made: dict[int, tuple[int, ...]] = {}
        """Shapes of tensors by the number of the line that makes them."""

    def written(self) -> Source:
        """Write all."""
        pieces, items = self._pieces, self._recording.items
        self._take()
        found = [(piece, pieces.launches(piece)) for piece in pieces.pieces]
        if any(launches is not None for _, launches in found):
            like = self._recording.like
            stream = stream_source([like], arrays.view(like, "argument").device)
            self._add(f"stream = {self._name(stream, 'stream')}((v0,))")
        shared = [launches[0].bytes_ for _, launches in found if launches is not None]
        little = [bytes_ for bytes_ in shared if 0 < bytes_ <= LITTLE]
        if little:
            self._memory("little", max(little))
        for piece, launches in found:
            if launches is not None:
                self._together(*launches)
            for item in items[piece.start : piece.stop]:
                if isinstance(item, Other):
                    self._other(item)
                else:
                    self._named(item)
            self._drop(pieces.gone(piece))
        self._give()
        return self._source

    def _add(self, line: str) -> None:
        self._source.add(line)

    def _name(self, value: Any, stem: str) -> str:
        return self._source.name(value, stem)

    def _take(self) -> None:
        """Write how arguments come."""
        given = self._recording.given
        self._add(f"{', '.join(f'v{number}' for number in given)}, = given")
        self._add("given.clear()")
        self._live |= {*given}

    def _together(self, together: Together, made: Sequence[int]) -> None:
        """Write launches that make arrays."""
        for number in made:
            self._make(number)
        memory = "little" if together.bytes_ <= LITTLE else "memory"
        if together.bytes_ > LITTLE:
            self._memory(memory, together.bytes_)
        start = self._start(memory) if together.bytes_ else "0"
        addresses = ["0", start, *map(self._address, together.owners)]
        self._add(f"{self._name(together.table.run, 'launch')}(({', '.join(addresses)}), stream)")
        if together.bytes_ > LITTLE:
            self._add("del memory")

    def _make(self, number: int) -> None:
        """Write how an array is made that launches write."""
        form = self._forms[number]
        self._new(f"v{number}", form.shape, form.dtype)
        self._live.add(number)

    def _new(self, name: str, shape: tuple[int, ...], dtype: Any) -> None:
        self._add(f"{name} = {self._name(np.empty, 'new')}({shape}, {self._name(dtype, 'dtype')})")
        self.made[self._source.line] = shape

    def _memory(self, name: str, count: int) -> None:
        """Write how memory is made that launches share."""
        self._new(name, (count,), u8.numpy())

    def _start(self, name: str) -> str:
        """Return the text of an array's address."""
        return f"{self._name(start_of_numpy, 'start')}({name})"

    def _address(self, number: int) -> str:
        """Return the text of the address of a value that has memory of its own."""
        return f"starts[{number}]" if number < len(self._recording.given) else self._start(f"v{number}")

    def _named(self, item: Launches | View) -> None:
        """Write what gives a value a name that lies in another one."""
        if isinstance(item, View):
            if item.number in self._pieces.arrays:
                self._plain(item.run, [item.of], [item.number])
            return
        for number, of in item.same.items():
            if number in self._pieces.arrays:
                self._add(f"v{number} = v{of}")
                self._live.add(number)

    def _other(self, item: Other) -> None:
        """Write a step that is no launch."""
        self._plain(item.run, item.operands, item.results)

    def _plain(self, run: Run, operands: Sequence[int], goals: Sequence[int]) -> None:
        """Write a call of a step's function, or of the step."""
        if isinstance(run, Apply):
            given = ", ".join(map(self._tensor, run.operands))
            self._add(f"v{run.goal} = {self._name(run.function, 'f')}({given})")
        elif isinstance(run, Call):
            given = ", ".join(map(self._tensor, run.operands))
            self._add(f"{_names(goals)}{self._name(run.function, 'f')}({given})")
        else:
            numbers = sorted({0, *operands, *(self._live & {*goals})})
            call = _through(run, self._recording.count, numbers, goals)
            self._add(f"{_names(goals)}{self._name(call, 'f')}({', '.join(map(self._tensor, numbers))})")
        self._live |= {*goals}
        for at, number in enumerate(goals):
            if isinstance(run, Call) and run.lies[at]:
                self._add(f"v{number} = {self._name(lying, 'lying')}(v{number})")
            self._lies(number)

    def _lies(self, number: int) -> None:
        """Write what is to be done to a result so that it lies as it did."""

    def _tensor(self, number: int) -> str:
        """Return the name of a value."""
        return f"v{number}"

    def _drop(self, numbers: Sequence[int]) -> None:
        """Write that nothing needs values any more."""
        gone = [number for number in numbers if number in self._live]
        self._live -= {*gone}
        if gone:
            self._add(f"del {', '.join(f'v{number}' for number in gone)}")

    def _give(self) -> None:
        """Write how results are given."""
        assert self._recording.edges is None, "NumPy's arrays are taken and given as they are"
        self._add(f"return [{', '.join(f'v{number}' for number in self._recording.results)}]")


class _TensorWriter(_Writer):
    """Writes a replay on PyTorch's tensors.

    Args:
        recording: the graph's first run.
    """

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        self._base: dict[int, tuple[str, Form]] = {}
        """For a value with memory of its own the name of a tensor that starts there, and how that lies."""
        self._views: dict[int, dict[Part, str]] = {}
        """Names of other tensors in that memory."""
        self._at: dict[int, str] = {}
        """Texts of addresses that are known."""
        self._raw: dict[int, str] = {}
        """Names of arguments as they came, by number."""
        self._shared: set[int] = set()
        """Values in whose memory callers have several tensors."""
        self._count = 0
        create, self.is_here = creator(recording.like.device)
        self._create = self._name(create, "new")
        self._wishes: dict[int, Form] = {}
        for number, part in self._asked():
            root, after = self._pieces.roots.of(number)
            form, own = part.form, self._forms[root]
            if not after + part.after and form.is_dense and (form.count, form.dtype) == (own.count, own.dtype):
                self._wishes.setdefault(root, part.form)

    def _asked(self) -> list[tuple[int, Part]]:
        """Return how results are given, and how calls take operands."""
        recording = self._recording
        found: list[tuple[int, Part]] = []
        for number, part in zip(self._given_numbers(), recording.wanted, strict=True):
            found += [] if part is None else [(number, part)]
        for item in recording.items:
            if isinstance(item, Other) and isinstance(item.run, Call) and item.run.seen is not None:
                call, function = item.run, item.run.function
                assert isinstance(function, Direct), "only such functions are watched"
                for (at, _), part in zip(function.slots, item.run.seen.given, strict=True):
                    found += [] if part is None else [(call.operands[at], part)]
        return found

    def _given_numbers(self) -> list[int]:
        """Return the values that are results, in order."""
        recording = self._recording
        if recording.edges is None:
            return list(recording.results)
        return [recording.results[one.number] for one in recording.edges.gives if not isinstance(one, Number)]

    def _take(self) -> None:
        super()._take()
        recording = self._recording
        edges = recording.edges
        takes = [None] * len(recording.given) if edges is None else edges.takes
        targets: set[int] = set() if edges is None else {at for together in edges.written for at, _ in together}
        for number, form, ready in zip(recording.given, recording.taken, takes, strict=True):
            name = self._raw[number] = f"v{number}"
            if form is None:
                held = f"t{number}" if number in targets else name
                self._add(f"{held} = {self._name(ready, 'ready')}({name})")
                self._base[number] = held, self._forms[number]
            else:
                self._base[number], self._at[number] = (name, form), f"starts[{number}]"

    def _make(self, number: int) -> None:
        form = self._wishes.get(number, self._forms[number])
        self._new_tensor(f"v{number}", form)
        self._base[number] = f"v{number}", form
        self._live.add(number)

    def _new_tensor(self, name: str, form: Form) -> None:
        dtype = self._name(form.dtype, "dtype")
        self._add(f"{name} = {self._create}({form.shape}, {form.strides}, {dtype})")
        self.made[self._source.line] = form.shape

    def _memory(self, name: str, count: int) -> None:
        self._new_tensor(name, Form((count,), (1,), arrays.torch_dtypes()["u8"]))

    def _start(self, name: str) -> str:
        return f"{name}.data_ptr()"

    def _address(self, number: int) -> str:
        return self._at.get(number) or self._start(self._base[number][0])

    def _named(self, item: Launches | View) -> None:
        """Write nothing: where a value lies is known, and a tensor is made when one is asked for."""

    def _tensor(self, number: int) -> str:
        root, after = self._pieces.roots.of(number)
        return self._view(root, Part(after, self._forms[number]))

    def _view(self, root: int, part: Part) -> str:
        """Return the name of a part of a value's memory."""
        name, form = self._base[root]
        if not part.after and part.form == form:
            return name
        known = self._views.setdefault(root, {})
        found = known.get(part)
        if found is None:
            found = known[part] = f"w{self._count}"
            self._count += 1
            self._add(f"{found} = {self._viewed(root, part)}")
        return found

    def _viewed(self, root: int, part: Part, is_shared: bool = False) -> str:
        """Return the text of a new tensor in a value's memory; if it is shared, PyTorch knows what it is a view of."""
        name, own = self._base[root]
        form, after = part.form, part.after
        if form.dtype is not own.dtype:
            dtype = self._name(form.dtype, "dtype")
            return f"{self._name(typed, 'typed')}({name}, {form.shape}, {form.strides}, {after}, {dtype})"
        view = self._name(viewed if is_shared else viewer(), "view")
        return f"{view}({name}, {form.shape}, {form.strides}, {after // form.dtype.itemsize})"

    def _other(self, item: Other) -> None:
        run = item.run
        if isinstance(run, Call) and isinstance(run.function, Direct) and run.seen is not None:
            self._direct(run, run.function, run.seen)
        else:
            self._plain(run, item.operands, item.results)

    def _direct(self, call: Call, function: Direct, seen: Seen) -> None:
        """Write a call of what a function calls, with its arguments."""
        given: list[str] = []
        for (at, ready), part in zip(function.slots, seen.given, strict=True):
            number = call.operands[at]
            if part is None:
                given.append(f"{self._name(ready, 'ready')}({self._tensor(number)})")
            else:
                root, after = self._pieces.roots.of(number)
                given.append(self._view(root, Part(after + part.after, part.form)))
        texts = [self._source.constant(one, given) for one in function.args]
        texts += [f"{name}={self._source.constant(one, given)}" for name, one in function.kwargs.items()]
        text = f"{self._name(function.target, 'op')}({', '.join(texts)})"
        if seen.outline is None:
            self._add(f"{_names(call.goals)}{self._name(leaves_of, 'leaves')}({text})")
        elif not seen.outline:
            self._add(f"v{call.goals[0]} = {text}")
        else:
            goals = iter(call.goals)
            self._add(f"{', '.join(f'v{next(goals)}' if one else '_' for one in seen.outline)}, = {text}")
        for number, hold, form, in_order in zip(call.goals, function.holds, seen.kept, call.lies, strict=True):
            if form is None:
                held = f"{self._name(hold, 'hold')}(v{number})"
                self._add(f"v{number} = {held}" + ".contiguous()" * in_order)
            self._lies(number, form)
        self._live |= {*call.goals}

    def _lies(self, number: int, form: Form | None = None) -> None:
        form = form or self._forms[number]
        name = f"v{number}"
        if form.count and form.shape:
            self._add(
                f"if {name}.stride() != {form.strides}: {name} = {self._name(laid, 'laid')}({name}, {form.strides})"
            )
        self._base[number] = name, form

    def _drop(self, numbers: Sequence[int]) -> None:
        gone: list[str] = []
        for number in numbers:
            if number in self._base:
                gone += {self._base.pop(number)[0], *self._views.pop(number, {}).values()}
                raw = self._raw.pop(number, None)
                gone += [raw] if raw is not None and raw not in gone else []
        self._live -= {*numbers}
        if gone:
            self._add(f"del {', '.join(sorted(gone))}")

    def _give(self) -> None:
        recording, edges = self._recording, self._recording.edges
        roots = [self._pieces.roots.of(number)[0] for number in self._given_numbers()]
        self._shared = {root for root in roots if root in self._raw or roots.count(root) > 1}
        wanted = iter(zip(self._given_numbers(), recording.wanted, strict=True))
        returned: dict[Any, Any] = {}
        if edges is None:
            texts = [self._result(number, part, None, returned) for number, part in wanted]
        else:
            self._write_back()
            texts = [
                self._source.constant(one.value(recording.sizes))
                if isinstance(one, Number)
                else self._result(*next(wanted), one.ready(recording.sizes), returned)
                for one in edges.gives
            ]
        self._add(f"return [{', '.join(texts)}]")

    def _write_back(self) -> None:
        """Write copies to arguments that are changed."""
        recording, edges = self._recording, self._recording.edges
        assert edges is not None, "only what has edges has such arguments"
        for together in edges.written:
            goals = ", ".join(self._raw[recording.given[at]] for at, _ in together)
            found = ", ".join(self._tensor(recording.results[number]) for _, number in together)
            self._add(f"{self._name(edges.write, 'write')}([{goals}], [{found}])")

    def _result(self, number: int, part: Part | None, ready: Any, returned: dict[Any, Any]) -> str:
        """Return the text of a result; results that are not the same value are not the same tensor."""
        root, before = self._pieces.roots.of(number)
        is_shared = root in self._shared
        if part is None:
            part = Part(before, self._forms[number])
            is_whole = not before and part.form == self._base[root][1]
            tensor = self._viewed(root, part, is_shared) if is_shared and not is_whole else self._tensor(number)
            return tensor if ready is None else f"{self._name(ready, 'ready')}({tensor})"
        part = Part(before + part.after, part.form)
        name, form = self._base[root]
        is_free = root == number or root not in self._raw
        if is_free and not part.after and part.form == form and returned.setdefault(name, number) == number:
            return name
        if (number, part) not in returned:
            returned[number, part] = f"r{len(returned)}"
            self._add(f"{returned[number, part]} = {self._viewed(root, part, is_shared)}")
        return returned[number, part]


def _names(goals: Sequence[int]) -> str:
    """Return the text of an assignment to several values."""
    return "".join(f"v{number}, " for number in goals) + "= " if goals else ""


def _through(run: Run, count: int, numbers: Sequence[int], goals: Sequence[int]) -> Callable[..., list[Any]]:
    """Return a step as a function of some values, which gives others."""

    def call(*given: Any) -> list[Any]:
        values: list[Any] = [None] * count
        for number, array in zip(numbers, given, strict=True):
            values[number] = array
        run(values)
        return [values[number] for number in goals]

    return call
