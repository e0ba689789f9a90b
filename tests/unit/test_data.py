"""tessera.data: its dataclasses do what the standard library's do."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

import tessera
from tessera.data import FIRST_OBJECTS, STANDARD, dataclass, shared_methods

FLAGS = [
    {"frozen": frozen, "slots": slots, "eq": eq} for frozen in (False, True) for slots in (False, True) for eq in (0, 1)
]


def point(decorate: Callable[..., Any], **flags: Any) -> Any:
    """Return a class with every kind of field, made by a decorator."""

    @decorate(**flags)
    class Point:
        """A point."""

        name: str
        size: int = 3
        tags: list[str] = field(default_factory=list[str])
        hidden: int = field(default=7, repr=False, compare=False)
        half: float = field(init=False, default=0.5)
        kind: ClassVar[str] = "point"

        def doubled(self) -> int:
            return 2 * self.size

    return Point


def derived(decorate: Callable[..., Any], **flags: Any) -> Any:
    """Return a class that takes its fields from two others, and changes one of them."""
    base = point(decorate, **flags)

    @decorate(**flags)
    class Middle(base):
        depth: int = 1
        size: int = 5

    @decorate(**flags)
    class Point(Middle):
        """A point of points."""

        owner: Any = field(default=None, compare=False)
        marks: list[int] = field(init=False, default_factory=list[int])
        size: int = field(default=6, hash=False)
        kind = "derived"

    return Point


def own_init(decorate: Callable[..., Any], **flags: Any) -> Any:
    """Return a class that sets one of its fields itself."""
    base = point(decorate, **flags)

    @decorate(**flags)
    class Point(base):
        """A point that counts."""

        total: int = 0

        def __init__(self, name: str, size: int = 3, tags: list[str] | None = None, hidden: int = 7) -> None:
            for key, value in {"name": name, "size": size, "tags": tags or [], "hidden": hidden, "total": 9}.items():
                object.__setattr__(self, key, value)

    return Point


def both(make: Callable[..., Any] = point, **flags: Any) -> tuple[Any, Any]:
    """Return the class of the standard library, and ours."""
    return make(dataclasses.dataclass, **flags), make(dataclass, **flags)


def outcome(call: Callable[[], Any]) -> Any:
    """Return a result, or the error in its place."""
    try:
        return call()
    except (TypeError, AttributeError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("make", [point, derived, own_init])
@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_objects_are_those_of_the_standard_library(flags: dict[str, Any], make: Callable[..., Any]) -> None:
    for call in (
        lambda cls: repr(cls("a", 4)),
        lambda cls: repr(cls(name="a", tags=["x"])),
        lambda cls: cls("a").tags is cls("a").tags,
        lambda cls: cls("a") == cls("a"),
        lambda cls: cls("a", hidden=1) == cls("a", hidden=2),
        lambda cls: cls("a") == cls("b"),
        lambda cls: cls("a") == "a",
        lambda cls: dataclasses.asdict(cls("a")),
        lambda cls: repr(dataclasses.replace(cls("a"), size=9)),
        lambda cls: [one.name for one in dataclasses.fields(cls)],
        lambda cls: cls.__match_args__,
        lambda cls: cls.__dataclass_params__.frozen,
        lambda cls: cls("a").doubled(),
        lambda cls: repr(copy.deepcopy(cls("a", tags=["x"]))),
        lambda cls: hasattr(cls("a"), "__dict__"),
        lambda cls: (cls.kind, cls.__doc__, cls.__name__),
    ):
        expected, found = both(make, **flags)
        assert outcome(lambda: call(found)) == outcome(lambda: call(expected))  # noqa: B023 - called at once


@pytest.mark.parametrize("make", [point, derived, own_init])
@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_mistakes_are_those_of_the_standard_library(flags: dict[str, Any], make: Callable[..., Any]) -> None:
    def assigned(one: Any, name: str) -> int:
        setattr(one, name, 5)
        return getattr(one, name)

    def deleted(one: Any) -> bool:
        del one.size
        return "size" in vars(type(one))

    for call in (
        lambda cls: cls(),
        lambda cls: cls("a", 1, [], 2, 3, 4, 5, 6),
        lambda cls: cls("a", other=1),
        lambda cls: cls("a", half=1),
        lambda cls: assigned(cls("a"), "size"),
        lambda cls: deleted(cls("a")),
        # Python 3.11 says something of `super` here when there are slots.
        lambda cls: None if flags["slots"] else assigned(cls("a"), "fresh"),
    ):
        expected, found = both(make, **flags)
        assert outcome(lambda: call(found)) == outcome(lambda: call(expected))  # noqa: B023 - called at once


@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_hashes_are_those_of_the_standard_library(flags: dict[str, Any]) -> None:
    def pair(decorate: Callable[..., Any]) -> Any:
        @decorate(**flags)
        class Pair:
            a: int
            b: int = field(compare=False, default=0)

        return Pair

    def hashed(cls: Any) -> Any:
        one, other = cls(1), cls(1, 2)
        return (hash(one) == hash((1,)), hash(one) == hash(other), len({one, other}))

    assert outcome(lambda: hashed(pair(dataclass))) == outcome(lambda: hashed(pair(dataclasses.dataclass)))


def test_methods_of_the_class_stay() -> None:
    @dataclass(frozen=True)
    class Own:
        a: int
        b: int = 0

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 11

        def __repr__(self) -> str:
            return "own"

    assert (Own(1) == Own(2), hash(Own(1)), repr(Own(1))) == (True, 11, "own")


def test_post_init_runs_after_the_fields() -> None:
    seen: list[int] = []

    @dataclass(frozen=True)
    class Checked:
        a: int

        def __post_init__(self) -> None:
            seen.append(self.a)

    assert (Checked(3).a, Checked(4).a, seen) == (3, 4, [3, 4])


def test_a_subclass_has_the_fields_of_its_base() -> None:
    @dataclass(frozen=True)
    class Base:
        a: int

    @dataclass(frozen=True)
    class Derived(Base):
        b: int = 2

    assert repr(Derived(1)).endswith("Derived(a=1, b=2)")
    assert Derived(1) != Base(1)
    with pytest.raises(FrozenInstanceError):
        Derived(1).a = 2  # type: ignore[misc]


@pytest.mark.parametrize("frozen", [False, True])
def test_many_objects_are_made_as_the_first(frozen: bool) -> None:
    cls = derived(dataclass, frozen=frozen)
    made = [cls("a", number, hidden=number) for number in range(FIRST_OBJECTS + 3)]
    assert [(one.name, one.size, one.hidden, one.marks) for one in made] == [
        ("a", number, number, []) for number in range(FIRST_OBJECTS + 3)
    ]
    assert len({id(one.tags) for one in made}) == len(made)
    for count in (FIRST_OBJECTS - 1, FIRST_OBJECTS, FIRST_OBJECTS + 1):
        expected, found = both(derived, frozen=frozen)
        for _ in range(count):
            found("a")
        wrong = outcome(lambda: found("a", name="b"))  # noqa: B023 - called at once
        assert wrong == outcome(lambda: expected("a", name="b"))  # noqa: B023


@pytest.mark.parametrize("flags", [{"init": False}, {"repr": False}, {"order": True}, {"kw_only": True}], ids=str)
def test_flags_are_those_of_the_standard_library(flags: dict[str, bool]) -> None:
    for call in (
        lambda cls: cls("a").name,
        lambda cls: cls(name="a").size,
        lambda cls: "Point(name=" in repr(cls(name="a")),
        lambda cls: cls("a") < cls("b"),
        lambda cls: cls.__dataclass_params__.init,
    ):
        expected, found = both(derived, **flags)
        assert outcome(lambda: call(found)) == outcome(lambda: call(expected))  # noqa: B023 - called at once


def test_a_package_shares_methods_while_it_is_imported() -> None:
    def defined(module: str) -> Any:
        return dataclasses.dataclass(frozen=True)(
            type("Point", (), {"__module__": module, "__annotations__": {"a": int}})
        )

    with shared_methods("pack"):
        ours, others = defined("pack.part"), defined("package.part")
    assert dataclasses.dataclass is STANDARD
    assert "a" not in ours.__init__.__code__.co_varnames
    assert "a" in others.__init__.__code__.co_varnames
    assert (ours(1) == ours(1), hash(ours(1)), ours(1).a) == (True, hash((1,)), 1)


def test_a_plain_subclass_may_call_the_init_of_its_base_first() -> None:
    @dataclass
    class Base:
        a: int

    class Plain(Base):
        def __init__(self) -> None:
            super().__init__(5)

    assert (Plain().a, Base(6).a, Plain().a) == (5, 6, 5)


def test_recursive_objects_print() -> None:
    @dataclass(eq=False)
    class Node:
        next: Any = None

    node = Node()
    node.next = node
    assert repr(node).endswith("Node(next=...)")


def test_what_a_kernel_needs_uses_these() -> None:
    package = Path(tessera.__file__).parent
    files = (path for path in package.rglob("*.py") if path.relative_to(package).parts[0] not in ("tools", "data.py"))
    standard = re.compile(r"^from dataclasses import .*\bdataclass\b", re.M)
    assert [path.name for path in files if standard.search(path.read_text(encoding="utf-8"))] == []


def test_signatures_are_those_of_the_standard_library() -> None:
    """Asked before any object is made, and of a class that derives from one."""

    @dataclass(frozen=True, slots=True)
    class Ours:
        a: int
        b: str = "b"
        c: list[int] = field(default_factory=list)

    @dataclasses.dataclass(frozen=True, slots=True)
    class Theirs:
        a: int
        b: str = "b"
        c: list[int] = field(default_factory=list)

    class Derived(Ours):
        def __init__(self, only: int):
            super().__init__(only)

    assert str(inspect.signature(Ours)) == str(inspect.signature(Theirs))
    assert list(inspect.signature(Derived).parameters) == ["only"]
    assert Ours(1) == Ours(1, "b", [])
