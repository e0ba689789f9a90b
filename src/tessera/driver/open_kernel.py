"""Kernels whose calls decide about dtypes (`ts.dtype_var`) and about which tensors are there (`| None`).

Each combination is a kernel of its own, with plain tensors and, for what is missing, a constant None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any, Generic, ParamSpec, TypeVar, cast

from tessera.driver.agreement import Agreement
from tessera.driver.binding import check_names
from tessera.driver.by_call import ByCall
from tessera.driver.traced import tracer_of
from tessera.driver.variants import Space
from tessera.errors import CallError
from tessera.frontend.annotations import DTypeVar, OpenTensor, chosen_dtype
from tessera.frontend.function import signature_of
from tessera.frontend.signature import structured_params
from tessera.frontend.structure import Layout, StructureParam, parts_of
from tessera.numerics.dtypes import DType
from tessera.runtime.readers import view_of
from tessera.target.artifact import Artifact

P = ParamSpec("P")
R = TypeVar("R")


def _dtype_of(value: Any) -> DType:
    """Return the dtype of an array, of a traced one too."""
    return view_of(value)[1].dtype if tracer_of((value,)) is None else value.element


class OpenKernel(ByCall, Generic[P, R]):
    """A kernel with dtype variables or optional tensors.

    Args:
        function: the Python function.
        opened: its parameters that calls decide about.
        space: tunables and their values, in the order they are tried.
        key: names whose values select a tuning result.
        layouts: what is passed for structured parameters, by name; calls pass their parts.
        agreement: what other kernels of the same function have read of the program.
    """

    def __init__(
        self,
        function: FunctionType,
        opened: Mapping[str, OpenTensor],
        space: Space = (),
        key: tuple[str, ...] = (),
        layouts: Mapping[str, Layout] | None = None,
        agreement: Agreement | None = None,
    ) -> None:
        super().__init__(function, agreement)
        self._space, self._key, self._layouts = space, key, layouts
        self._names = _names_of(function, layouts or {})
        self._opened = tuple((at, name, opened[name]) for at, name in enumerate(self._names) if name in opened)
        self._kernels: dict[Any, Any] = {}
        self._by_choice: dict[Any, Any] = {}

    @property
    def names(self) -> set[str]:
        """The names of its dimensions and parameters."""
        dims = {name for _, _, tensor in self._opened for dim in tensor.dims for name in dim.names}
        return {*dims, *self._names}

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """The names of its parameters, in order, and of the parts of structures."""
        return self._names

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the kernel; see `Kernel.__call__`.

        Raises:
            CallError: an argument does not fit.
            TesseraError: what the compiler or the device says.
        """
        given = [args[at] if at < len(args) else kwargs.get(name) for at, name, _ in self._opened]
        kernel = self._last = self._remembered(given)
        return cast(R, kernel(*args, **kwargs))

    def of_arguments(self, arguments: Mapping[str, Any]) -> Any:
        """Return the kernel for these arguments by name."""
        return self._remembered([arguments.get(name) for _, name, _ in self._opened])

    def _remembered(self, given: Sequence[Any]) -> Any:
        kinds = tuple([getattr(value, "dtype", None) if value is not None else None for value in given])
        kernel = self._kernels.get(kinds)
        if kernel is None:
            kernel = self._chosen(given)
            if all((value is None) == (kind is None) for value, kind in zip(given, kinds, strict=True)):
                self._kernels[kinds] = kernel
        return kernel

    def _chosen(self, given: Sequence[Any]) -> Any:
        """Return the kernel for these arguments."""
        dtypes: dict[str, tuple[DType, str]] = {}
        missing: list[str] = []
        for value, (_, name, tensor) in zip(given, self._opened, strict=True):
            if value is None and tensor.optional:
                missing.append(name)
            elif value is None:
                raise CallError(
                    f"argument {name!r} of {self._function.__name__} is missing",
                    code="argument-count",
                    help=f"it is a {tensor}",
                )
            elif isinstance(tensor.element, DTypeVar):
                self._bind(dtypes, tensor.element, _dtype_of(value), name)
        return self._kernel_of({name: dtype for name, (dtype, _) in dtypes.items()}, missing)

    def _bind(self, dtypes: dict[str, tuple[DType, str]], variable: DTypeVar, dtype: DType, name: str) -> None:
        first, owner = dtypes.setdefault(variable.name, (dtype, name))
        if first != dtype:
            raise CallError(
                f"argument {name!r} is {dtype}, {owner!r} is {first}: both have the dtype {variable}",
                code="wrong-dtype",
                help="pass arrays of one dtype, or give the parameters different variables",
            )
        _check_choice(variable, dtype, f"argument {name!r}")

    def _kernel_of(self, dtypes: Mapping[str, DType], missing: Sequence[str]) -> Any:
        choice = (tuple(dtypes.items()), tuple(missing))
        kernel = self._by_choice.get(choice)
        if kernel is None:
            from tessera.driver.kernel import Kernel

            kernel = self._by_choice[choice] = Kernel[Any, Any](
                self._function, self._space, self._key, self._layouts, dtypes, missing, self._agreement
            )
        return kernel

    def specialize(self, /, **choices: DType | str | None) -> Any:
        """Return the kernel for some dtypes, to compile or inspect it.

        Args:
            **choices: the dtype of each variable by its name, and None for each optional tensor that is missing.

        Raises:
            CallError: `unknown-keyword`, `argument-count` for a variable without a dtype, or `wrong-dtype`.
            LanguageError: `bad-dtype` for what is no dtype.
        """
        missing = [name for _, name, tensor in self._opened if tensor.optional and choices.get(name, name) is None]
        elements = [tensor.element for _, name, tensor in self._opened if name not in missing]
        variables = {element.name: element for element in elements if isinstance(element, DTypeVar)}
        unknown = choices.keys() - {*variables, *missing}
        if unknown:
            name = min(unknown)
            raise CallError(
                f"{self._function.__name__} has no dtype variable {name!r} and no tensor {name!r} that may be missing",
                code="unknown-keyword",
                help=f"dtype variables: {', '.join(variables) or 'none'}",
            )
        dtypes: dict[str, DType] = {}
        for name, variable in variables.items():
            chosen = choices.get(name)
            if chosen is None:
                raise CallError(
                    f"the dtype {name} of {self._function.__name__} is not given",
                    code="argument-count",
                    help=f"ts.compile(kernel, {name}=ts.f32)",
                )
            dtypes[name] = chosen_dtype(chosen, name)
            _check_choice(variable, dtypes[name], name)
        return self._kernel_of(dtypes, missing)

    def compile(
        self,
        /,
        target: str | None = None,
        dump: Sequence[str] = (),
        dims: Mapping[str, int] | None = None,
        strides: Mapping[str, Sequence[int]] | None = None,
        **constexprs: Any,
    ) -> Artifact:
        """Compile without running; see `ts.compile`. Dtype variables are given by name, missing tensors as None."""
        own = {tensor.element.name for _, _, tensor in self._opened if isinstance(tensor.element, DTypeVar)}
        own |= {name for _, name, tensor in self._opened if tensor.optional}
        check_names(self._function.__name__, own)
        choices = {name: constexprs.pop(name) for name in own & constexprs.keys()}
        return self.specialize(**choices).compile(target, dump, dims, strides, **constexprs)


def _names_of(function: FunctionType, layouts: Mapping[str, Layout]) -> tuple[str, ...]:
    """Return the names of a function's parameters in order, and those of the parts of structures."""
    structures = {name: StructureParam(name, annotation) for name, annotation in structured_params(function).items()}
    names: list[str] = []
    for name in signature_of(function).parameters:
        if name in structures and name in layouts:
            names += [path for path, _, _ in parts_of(structures[name], layouts[name])]
        else:
            names.append(name)
    return tuple(names)


def _check_choice(variable: DTypeVar, dtype: DType, what: str) -> None:
    if variable.choices and dtype not in variable.choices:
        raise CallError(
            f"{what} is {dtype}, {variable} is one of {', '.join(map(str, variable.choices))}",
            code="wrong-dtype",
            help="convert it first, or add the dtype to ts.dtype_var",
        )
