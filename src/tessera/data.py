"""`@dataclass` as the standard library has it, at a tenth of its cost for classes that a process only defines.

The standard one writes and compiles up to six methods for each class, which took a third of `import tessera` and a
fourth of a process's first kernel. Here all classes share the methods that compare, hash, print and freeze. A class's
first objects are filled by a loop; `__init__` is compiled for classes that make more. Fields are the standard
library's: `fields`, `replace`, `asdict` and `match` see no difference.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import MISSING, FrozenInstanceError
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, cast

Values = Callable[[Any], tuple[Any, ...]]
"""Gives the fields of an object that count in comparisons."""

Fill = Callable[[Any, tuple[Any, ...], dict[str, Any]], bool]
"""Sets the fields of an object by the arguments of its class."""

STANDARD: Any = dataclasses.dataclass
FIRST_OBJECTS = 100
"""So many objects of a class are made before its `__init__` is compiled, which takes as long as to fill these."""

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(
        cls: type | None = None,
        /,
        *,
        init: bool = True,
        repr: bool = True,
        eq: bool = True,
        frozen: bool = False,
        slots: bool = False,
        **rare: bool,
    ) -> type | Callable[[type], type]:
        """Add the methods of a dataclass.

        Args:
            cls: the class, where the decorator stands without arguments.
            init: whether objects are made from their fields.
            repr: whether objects are shown with their fields.
            eq: whether objects are equal where their fields are; those that are frozen too are hashed by them.
            frozen: whether fields cannot be assigned.
            slots: whether objects have their fields only.
            **rare: the other arguments of the standard library's decorator, which then does the work.

        Returns:
            The class, a new one with `slots`.
        """

        def decorate(plain: type) -> type:
            if rare or (slots and _bases(plain)):
                return STANDARD(plain, init=init, repr=repr, eq=eq, frozen=frozen, slots=slots, **rare)
            return _with_methods(plain, init, repr, eq, frozen, slots)

        return decorate if cls is None else decorate(cls)


@contextmanager
def shared_methods(package: str) -> Generator[None]:
    """Let a package that is imported meanwhile define its dataclasses by this one.

    Args:
        package: its name. What another thread imports at that time keeps the standard library's.
    """

    def chosen(cls: Any = None, /, **flags: bool) -> Any:
        def decorate(plain: type) -> type:
            decorator: Any = dataclass if plain.__module__.partition(".")[0] == package else STANDARD
            return decorator(plain, **flags)

        return decorate if cls is None else decorate(cls)

    dataclasses.dataclass = chosen
    try:
        yield
    finally:
        dataclasses.dataclass = STANDARD


def _bases(plain: type) -> list[Any]:
    """Return the dataclasses that a class derives from, the farthest first."""
    return [base for base in plain.__mro__[:0:-1] if "__dataclass_fields__" in vars(base)]


def _with_methods(plain: type, init: bool, repr: bool, eq: bool, frozen: bool, slots: bool) -> type:
    own = set(vars(plain))
    plain.__doc__ = plain.__doc__ or plain.__name__  # else the standard library takes a millisecond to write one
    flags = {"init": init, "repr": repr, "eq": eq, "frozen": frozen}
    made, facts, methods = _with_fields(plain, flags, slots)
    if init and "__init__" not in own:
        methods["__init__"] = _first_init(facts, frozen, slots)
        methods["__signature__"] = _Signature(facts, frozen, slots)
    if repr and "__repr__" not in own:
        methods["__repr__"] = _shown
    if eq:
        _compare(methods, facts, own, plain.__dict__.get("__hash__") is not None, frozen)
    if frozen:
        _freeze(methods, facts)
    if frozen and slots:
        methods["__getstate__"], methods["__setstate__"] = _state, _set_state
    if made is None and slots:
        made = _with_slots(plain, facts.names, methods)
    else:
        made = made or plain
        for name, value in methods.items():
            setattr(made, name, value)
    facts.cls = made
    return made


class _Facts:
    """What the methods of a class need of its fields, and the class, once it is made.

    Args:
        names: all of them.
        given: those that `__init__` takes, in its order.
        defaults: the values of those that need not be given.
        makers: what makes such values.
        compared: those that count in comparisons.
        hashed: those that count in hashes.
    """

    cls: Any

    def __init__(
        self,
        names: list[str],
        given: list[str],
        defaults: dict[str, Any],
        makers: dict[str, Callable[[], Any]],
        compared: list[str],
        hashed: list[str],
    ):
        self.names, self.given, self.defaults, self.makers = names, given, defaults, makers
        self.compared, self.hashed = compared, hashed


class _Later:
    """What the standard library keeps of a class, made when somebody asks for it."""

    def __init__(self, kept: str, facts: _Facts, annotations: dict[str, Any], flags: dict[str, bool]):
        self.kept, self.facts, self.annotations, self.flags = kept, facts, annotations, flags

    def __get__(self, instance: Any, owner: type) -> Any:
        cls = self.facts.cls
        told = {"__annotations__": self.annotations, "__module__": cls.__module__, "__doc__": cls.__doc__}
        stand_in = _standard(type(cls.__name__, (), {**self.facts.defaults, **told}), slots=False)
        _set_flags(stand_in, self.flags)
        cls.__dataclass_fields__ = stand_in.__dataclass_fields__
        cls.__dataclass_params__ = stand_in.__dataclass_params__
        return getattr(cls, self.kept)


def _set_flags(cls: Any, flags: dict[str, bool]) -> None:
    for name, value in flags.items():
        setattr(cls.__dataclass_params__, name, value)


def _with_fields(plain: type, flags: dict[str, bool], slots: bool) -> tuple[Any, _Facts, dict[str, Any]]:
    """Return a class that the standard library's functions know as a dataclass, its fields, and what it lacks.

    The class is None where it can be made with the methods: later ones cost more.
    """
    annotations, bases = inspect.get_annotations(plain), _bases(plain)
    defaults = {name: getattr(plain, name) for name in annotations if hasattr(plain, name)}
    if not bases and _are_plain(annotations, defaults):
        names = list(annotations)
        facts = _Facts(names, names, defaults, {}, names, names)
        kept: dict[str, Any] = {
            name: _Later(name, facts, annotations, flags) for name in ("__dataclass_fields__", "__dataclass_params__")
        }
        if "__match_args__" not in vars(plain):
            kept["__match_args__"] = tuple(names)
        return None, facts, kept
    made = _with_bases(plain, bases, annotations, defaults) if bases else _standard(plain, slots)
    _set_flags(made, flags)
    every = dataclasses.fields(made)
    facts = _Facts(
        names=[field.name for field in every],
        given=[field.name for field in every if field.init],
        defaults={f.name: f.default for f in every if f.default is not MISSING and (f.init or slots)},
        makers={f.name: f.default_factory for f in every if f.default_factory is not MISSING},
        compared=[field.name for field in every if field.compare],
        hashed=[field.name for field in every if (field.compare if field.hash is None else field.hash)],
    )
    return made, facts, {}


def _standard(plain: type, slots: bool) -> Any:
    return STANDARD(plain, init=False, repr=False, eq=False, slots=slots)


def _are_plain(annotations: dict[str, Any], defaults: dict[str, Any]) -> bool:
    """Whether each annotation is a field that `__init__` takes, and each default a value that objects may share."""
    special = ("ClassVar", "InitVar", "KW_ONLY")
    return all(
        isinstance(text, str) and not any(word in text for word in special) for text in annotations.values()
    ) and not any(
        isinstance(value, dataclasses.Field) or value.__class__.__hash__ is None for value in defaults.values()
    )


def _with_slots(plain: type, names: list[str], more: dict[str, Any]) -> Any:
    """Return a class like one without bases, whose objects have these fields only, with more methods."""
    kept = {name: value for name, value in vars(plain).items() if name not in ("__dict__", "__weakref__", *names)}
    told = {"__slots__": tuple(names), "__qualname__": plain.__qualname__}
    return type(plain)(plain.__name__, plain.__bases__, {**kept, **more, **told})


def _with_bases(plain: type, bases: list[Any], annotations: dict[str, Any], defaults: dict[str, Any]) -> Any:
    # The standard library lets nothing derive from a frozen class without writing methods: a class without bases
    # stands in for this one.
    facts = {"__annotations__": annotations, "__module__": plain.__module__, "__doc__": plain.__doc__}
    stand_in = _standard(type(plain.__name__, (), {**defaults, **facts}), slots=False)
    made: Any = plain
    for name in defaults:
        if isinstance(defaults[name], dataclasses.Field):
            if hasattr(stand_in, name):
                setattr(made, name, getattr(stand_in, name))
            else:
                delattr(made, name)
    every = [*bases, stand_in]
    made.__dataclass_fields__ = {name: field for one in every for name, field in one.__dataclass_fields__.items()}
    made.__dataclass_params__ = stand_in.__dataclass_params__
    if "__match_args__" not in vars(made):
        made.__match_args__ = tuple(field.name for field in dataclasses.fields(made) if field.init)
    return made


def _first_init(facts: _Facts, frozen: bool, slots: bool) -> Callable[..., None]:
    """Return an `__init__` that puts the class's own in its place after some objects."""
    made = 0
    fill = _never

    def __init__(self: Any, /, *args: Any, **kwargs: Any) -> None:
        nonlocal made, fill
        if not made:
            fill = _filler(facts, frozen)
        made += 1
        if made <= FIRST_OBJECTS and fill(self, args, kwargs):
            return
        cls = facts.cls
        if cls.__init__ is __init__:
            cls.__init__ = _init(cls, frozen, slots)
        cls.__init__(self, *args, **kwargs)

    return __init__


class _Signature:
    """A class's signature, made when somebody asks for it; classes derived from it have their own."""

    def __init__(self, facts: _Facts, frozen: bool, slots: bool):
        self.facts, self.frozen, self.slots = facts, frozen, slots

    def __get__(self, instance: Any, owner: type) -> inspect.Signature:
        if instance is not None or owner is not self.facts.cls:
            raise AttributeError("__signature__")
        written = inspect.signature(_init(owner, self.frozen, self.slots))
        return written.replace(parameters=list(written.parameters.values())[1:])


def _never(self: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return False


def _filler(facts: _Facts, frozen: bool) -> Fill:
    """Return a function that sets an object's fields; False where the arguments are wrong, which `__init__` tells."""
    names, defaults, makers = facts.given, facts.defaults, facts.makers
    known = set(names)
    total = len(known | defaults.keys() | makers.keys())
    assign = object.__setattr__ if frozen else setattr
    checks = hasattr(facts.cls, "__post_init__")

    def fill(self: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        values = dict(zip(names, args, strict=False))
        if len(args) > len(names) or not known >= kwargs.keys() or not values.keys().isdisjoint(kwargs):
            return False
        values.update(kwargs)
        if len(values) < total:
            made = {name: make() for name, make in makers.items() if name not in values}
            values = {**defaults, **values, **made}
            if len(values) < total:
                return False
        for name, value in values.items():
            assign(self, name, value)
        if checks:
            self.__post_init__()
        return True

    return fill


def _init(cls: Any, frozen: bool, slots: bool) -> Callable[..., None]:
    """Return the standard library's `__init__`, taken from a class that has nothing else."""
    fields = [(field.name, field.type, field) for field in dataclasses.fields(cls)]
    namespace: dict[str, Any] = {"__doc__": cls.__doc__, "__qualname__": cls.__qualname__, "__module__": cls.__module__}
    if hasattr(cls, "__post_init__"):
        namespace["__post_init__"] = cls.__post_init__
    donor: Any = dataclasses.make_dataclass(
        cls.__name__, fields, namespace=namespace, repr=False, eq=False, frozen=frozen, slots=slots
    )
    return donor.__init__


def _values(names: list[str]) -> Values:
    if len(names) > 1:
        return cast("Values", attrgetter(*names))
    if not names:
        return lambda one: ()
    value = attrgetter(names[0])
    return lambda one: (value(one),)


def _compare(methods: dict[str, Any], facts: _Facts, own: set[str], hashed: bool, frozen: bool) -> None:
    """Let objects be equal, and hashed, by their fields."""
    values = _values(facts.compared)
    counted = _values(facts.hashed)

    def __eq__(self: Any, other: object) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: Any) -> int:
        return hash(counted(self))

    if "__eq__" not in own:
        methods["__eq__"] = __eq__
    if not hashed:
        methods["__hash__"] = __hash__ if frozen else None


@recursive_repr()
def _shown(self: Any) -> str:
    shown = (f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _freeze(methods: dict[str, Any], facts: _Facts) -> None:
    names = frozenset(facts.names)

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if type(self) is facts.cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        object.__setattr__(self, name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is facts.cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        object.__delattr__(self, name)

    methods["__setattr__"], methods["__delattr__"] = __setattr__, __delattr__


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
