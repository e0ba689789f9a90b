"""Kernels with structured parameters: one compiled kernel for each layout of what is passed.

A call takes the structures apart and hands tensors and scalars to the kernel of their layout, so that everything
behind (checks, specialisation, launch) sees plain arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any, Generic, ParamSpec, TypeVar

from tessera.driver.binding import check_names, check_tensors, expected_tensors
from tessera.driver.by_call import ByCall
from tessera.driver.open_kernel import OpenKernel
from tessera.driver.variants import Space
from tessera.errors import CallError, caller_location
from tessera.frontend.annotations import Dim
from tessera.frontend.signature import open_params
from tessera.frontend.structure import Layout, Structure, StructureAnnotation, StructureParam, parts_of
from tessera.runtime.readers import view_of
from tessera.target.artifact import Artifact

P = ParamSpec("P")
R = TypeVar("R")


class StructuredKernel(ByCall, Generic[P, R]):
    """A kernel some of whose parameters are structures, such as an epilogue.

    Args:
        function: the Python function.
        structured: its structured parameters, with what they take.
        space: tunables and their values, in the order they are tried.
        key: names whose values select a tuning result.
    """

    def __init__(
        self,
        function: FunctionType,
        structured: Mapping[str, StructureAnnotation],
        space: Space = (),
        key: tuple[str, ...] = (),
    ) -> None:
        super().__init__(function)
        self._space = space
        self._key = key
        code = function.__code__
        order = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        self._order = order
        self._places = tuple((order.index(name), name) for name in structured)
        self._kinds = {name: annotation.kind for name, annotation in structured.items()}
        self._kernels: dict[tuple[Layout, ...], Any] = {}

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the kernel; see `Kernel.__call__`.

        Raises:
            CallError: an argument does not fit.
            TesseraError: what the compiler or the device says.
        """
        kernel, flat, named, given = self._taken_apart(args, kwargs)
        self._last = kernel
        returned = kernel(*flat, **named)
        for structure in given:
            structure.finish(named.get("stream"))
        return returned

    def flattened(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, list[Any], dict[str, Any]]:
        """Return the kernel of a call's structures, and the arguments that it takes.

        Raises:
            CallError: an argument does not fit.
        """
        return self._taken_apart(args, kwargs)[:3]

    def _taken_apart(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Any, list[Any], dict[str, Any], list[Structure]]:
        """Return the kernel of a call's structures, the arguments that it takes, and the structures."""
        flat: list[Any] = list(args)
        named: dict[str, Any] = dict(kwargs)
        given: list[Structure] = []
        for place, name in reversed(self._places):
            structure = flat[place] if place < len(args) else named.pop(name, None)
            self._check(structure, name)
            given.append(structure)
        kernel = self._kernel_of(tuple(structure.layout for structure in given))
        if any(structure.needs_sizes for structure in given):
            given = self._bound(kernel, given, flat, named)
        for (place, name), structure in zip(reversed(self._places), given, strict=True):
            if place < len(args):
                flat[place : place + 1] = structure.values
            else:
                named.update(_named(name, structure))
        return kernel, flat, named, given

    def _bound(
        self, kernel: Any, given: list[Structure], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[Structure]:
        """Return the structures for one launch, whose sizes the plain tensor arguments give."""
        found = {**dict(zip(self._order, args, strict=False)), **kwargs}
        if isinstance(kernel, OpenKernel):
            kernel = kernel.of_arguments(found)
        plain = [tensor for tensor in expected_tensors(kernel.signature) if found.get(tensor.name) is not None]
        sizes = check_tensors(plain, [view_of(found[tensor.name])[1] for tensor in plain])
        bound: list[Structure] = []
        for structure, (param, layout) in zip(given, reversed(kernel.signature.structures), strict=True):
            dims = param.dims_of(layout)
            known = {formal: dim.value(sizes) for formal, dim in dims.items()}
            bound.append(structure.bound(known))
        return bound

    def _check(self, structure: Any, name: str) -> None:
        kind = self._kinds[name]
        if not isinstance(structure, kind):
            raise CallError(
                f"argument {name!r} is {structure!r:.60}, the kernel takes {kind.__name__} there",
                code="not-a-structure",
                location=caller_location(),
                help=kind.HELP,
            )

    def _kernel_of(self, layouts: tuple[Layout, ...]) -> Any:
        """Return the kernel for the layouts of the structured parameters, last one first."""
        kernel = self._kernels.get(layouts)
        if kernel is None:
            from tessera.driver.kernel import Kernel

            names = [name for _, name in reversed(self._places)]
            chosen = dict(zip(names, layouts, strict=True))
            opened = open_params(self._function)
            if opened:
                kernel = OpenKernel[Any, Any](self._function, opened, self._space, self._key, chosen, self._agreement)
            else:
                kernel = Kernel[Any, Any](self._function, self._space, self._key, chosen, agreement=self._agreement)
            self._kernels[layouts] = kernel
        return kernel

    def for_structures(self, /, **structures: Structure) -> Any:
        """Return the kernel for the layouts of these structures, to compile or inspect it."""
        for _, name in self._places:
            self._check(structures.get(name), name)
        return self._kernel_of(tuple(structures[name].layout for _, name in reversed(self._places)))

    def compile(
        self,
        /,
        target: str | None = None,
        dump: Sequence[str] = (),
        dims: Mapping[str, int] | None = None,
        strides: Mapping[str, Sequence[int]] | None = None,
        **constexprs: Any,
    ) -> Artifact:
        """Compile without running; see `ts.compile`. Structures are given by name, as at a call."""
        check_names(self._function.__name__, self._kinds)
        structures = {name: constexprs.pop(name, None) for _, name in self._places}
        return self.for_structures(**structures).compile(target, dump, dims, strides, **constexprs)


def _named(name: str, structure: Structure) -> dict[str, Any]:
    """Return the parts of a structure passed by name."""
    anyone = StructureAnnotation(type(structure), tuple(Dim((f,)) for f in structure.layout.formals))
    paths = (path for path, _, _ in parts_of(StructureParam(name, anyone), structure.layout))
    return dict(zip(paths, structure.values, strict=True))
