"""`@dataclass` as the standard library has it, at a tenth of its cost for classes that a process only defines.

The standard one writes and compiles up to six methods for each class, which took a third of `import tessera`. Here all
classes share the methods that compare, hash, print and freeze, and `__init__` is written when a class makes its first
object. Fields are the standard library's: `fields`, `replace`, `asdict` and `match` see no difference.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, cast

Values = Callable[[Any], tuple[Any, ...]]
"""Gives the fields of an object that count in comparisons."""

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(
        cls: type | None = None, /, *, frozen: bool = False, slots: bool = False, eq: bool = True
    ) -> type | Callable[[type], type]:
        """Add the methods of a dataclass.

        Args:
            cls: the class, where the decorator stands without arguments.
            frozen: whether fields cannot be assigned.
            slots: whether objects have their fields only.
            eq: whether objects are equal where their fields are; those that are frozen too are hashed by them.

        Returns:
            The class, a new one with `slots`.
        """

        def decorate(plain: type) -> type:
            if any(dataclasses.is_dataclass(base) for base in plain.__bases__):
                return dataclasses.dataclass(plain, frozen=frozen, slots=slots, eq=eq)
            return _with_methods(plain, frozen, slots, eq)

        return decorate if cls is None else decorate(cls)


def _with_methods(plain: type, frozen: bool, slots: bool, eq: bool) -> type:
    own = set(vars(plain))
    plain.__doc__ = plain.__doc__ or plain.__name__  # else the standard library takes a millisecond to write one
    hashed = "__hash__" in own and vars(plain)["__hash__"] is not None
    standard: Any = dataclasses.dataclass
    made = standard(plain, init=False, repr=False, eq=False, slots=slots)
    methods: dict[str, Any] = {"__init__": _first_init(made, frozen, slots), "__repr__": _repr}
    if eq:
        values = _values([field.name for field in dataclasses.fields(made) if field.compare])
        methods["__eq__"], by_fields = _comparison(values)
        if not hashed:
            made.__hash__ = by_fields if frozen else None
    for name, method in methods.items():
        if name not in own:
            setattr(made, name, method)
    if frozen:
        _freeze(made)
    if frozen and slots:
        made.__getstate__, made.__setstate__ = _state, _set_state
    made.__dataclass_params__.init = made.__dataclass_params__.repr = True
    made.__dataclass_params__.eq, made.__dataclass_params__.frozen = eq, frozen
    return made


def _first_init(cls: Any, frozen: bool, slots: bool) -> Callable[..., None]:
    """Return an `__init__` that puts the class's own in its place."""

    def __init__(self: Any, /, *args: Any, **kwargs: Any) -> None:
        if cls.__init__ is __init__:
            cls.__init__ = _init(cls, frozen, slots)
        cls.__init__(self, *args, **kwargs)

    return __init__


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
    return lambda one: tuple(getattr(one, name) for name in names)


def _comparison(values: Values) -> tuple[Callable[[Any, object], Any], Callable[[Any], int]]:
    def __eq__(self: Any, other: object) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: Any) -> int:
        return hash(values(self))

    return __eq__, __hash__


@recursive_repr()
def _repr(self: Any) -> str:
    shown = (f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _freeze(cls: Any) -> None:
    names = frozenset(field.name for field in dataclasses.fields(cls))

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        object.__setattr__(self, name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        object.__delattr__(self, name)

    cls.__setattr__, cls.__delattr__ = __setattr__, __delattr__


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
