"""The adjoint of a kernel as a kernel of its own: its parameters, and how it is built."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from tessera.autodiff.tiles.adjoint import Adjoint, adjoint_of, inputs_of, outputs_of
from tessera.autodiff.tiles.arguments import Added
from tessera.autodiff.tiles.sizes import shapes_of
from tessera.data import dataclass
from tessera.digest import sha256
from tessera.errors import CallError
from tessera.frontend.build import BuiltKernel, argument_infos, build_kernel
from tessera.frontend.generated import Generated
from tessera.frontend.signature import Signature, TensorParam
from tessera.frontend.specialize import Specialization
from tessera.ir.attributes import text
from tessera.ir.text import parse_module, text_of
from tessera.ir.tile.structure import KernelOp
from tessera.numerics.dtypes import Policy
from tessera.target.dims import Dim


@dataclass(frozen=True, slots=True)
class AdjointSource(Generated):
    """What an adjoint is made from.

    Args:
        text: its kernel in TIR-H.
        fixed: sizes that were compiled in.
    """

    text: str
    fixed: tuple[tuple[str, int], ...]

    @property
    def digest(self) -> str:
        """What stands for it in the keys of caches."""
        return sha256(f"{self.fixed}\0{self.text}".encode()).hexdigest()

    def build(self, signature: Signature, spec: Specialization) -> BuiltKernel:
        """Return the kernel in TIR-H."""
        module = parse_module(self.text)
        kernel = next(op for op in module.ops if isinstance(op, KernelOp))
        facts = zip(argument_infos(signature, spec), kernel.infos, strict=True)
        infos = [replace(info, written=own.written) for info, own in facts]
        kernel.properties["arg_info"] = type(kernel.arg_info)([info.to_attr() for info in infos])
        kernel.properties["profile"] = text(spec.profile)
        return BuiltKernel(module, dict(self.fixed), ())


@dataclass(frozen=True, slots=True, eq=False)
class AdjointKernel:
    """The adjoint of a kernel for some sizes.

    Args:
        signature: its parameters: the tensors and scalars of the kernel, then what `added` says.
        added: cotangents (in the order of `outputs`), gradients (in the order of `inputs`) and scratch memory.
        adjoint: the adjoint.
        fixed: the sizes that it is for; others need another one.
        inputs: the tensors whose gradients it computes.
        outputs: the tensors whose cotangents it reads.
        written: the tensors that the kernel stores to.
    """

    signature: Signature
    added: tuple[Added, ...]
    adjoint: Adjoint
    fixed: dict[str, int]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    written: tuple[str, ...]

    def shapes(self, shapes: Sequence[Sequence[int] | None], scalars: Sequence[Any]) -> list[tuple[int, ...]]:
        """Return the shape of each parameter in `added`, from those of the kernel's tensors and scalars.

        Args:
            shapes: the shape of each parameter of the kernel, None for scalars.
            scalars: the value of each, None for tensors.
        """
        return shapes_of(self.added, self.adjoint.axes, shapes, scalars)


def adjoint_kernel(
    signature: Signature,
    spec: Specialization,
    inputs: Collection[str] | None = None,
    outputs: Collection[str] | None = None,
) -> AdjointKernel:
    """Return the adjoint of a kernel.

    Args:
        signature: the kernel's parameters.
        spec: what it is compiled for, with all constants.
        inputs: the tensors whose gradients are wanted; by default those of floats that it reads.
        outputs: the tensors whose cotangents are given; by default those of floats that it stores to.

    Raises:
        LanguageError: `no-adjoint`, and what the kernel's source has wrong.
        CallError: `bad-argument` for names that are of no such tensors.
    """
    plain = replace(spec, args=tuple(replace(fact, alias=-1, view=-1) for fact in spec.args), debug=False)
    built = build_kernel(signature, plain)
    names = [param.name for param in signature.runtime_params]
    wanted = _places(signature, names, inputs, inputs_of(built.module), "gradient")
    given = _places(signature, names, outputs, outputs_of(built.module), "cotangent")
    adjoint = adjoint_of(built.module, wanted, given)
    kernel = next(op for op in adjoint.module.ops if isinstance(op, KernelOp))
    params = [
        TensorParam(info.name, tuple(map(Dim.parse, info.dims)), Policy(one.dtype))
        for info, one in zip(kernel.infos[len(names) :], adjoint.added, strict=True)
    ]
    source = AdjointSource(text_of(adjoint.module), tuple(built.fixed_dims.items()))
    own = Signature(source, (*signature.runtime_params, *params), known_as=kernel.sym_name.data)
    primal = next(op for op in built.module.ops if isinstance(op, KernelOp))
    written = tuple(info.name for info in primal.infos if info.written)
    chosen = [tuple(names[at] for at in places) for places in (wanted, given)]
    return AdjointKernel(own, adjoint.added, adjoint, built.fixed_dims, chosen[0], chosen[1], written)


def _places(
    signature: Signature, names: Sequence[str], asked: Collection[str] | None, known: Sequence[int], what: str
) -> list[int]:
    """Return the places of the tensors that are asked for, in the order of the parameters."""
    if asked is None:
        return list(known)
    floats = {param.name for param in signature.tensors if param.dtype.is_float and param.dtype.storage_bits >= 16}
    able = floats if what == "gradient" else {names[at] for at in known}
    for name in asked:
        if name not in able:
            raise CallError(
                f"{signature.name} has no {what} of {name!r}",
                code="bad-argument",
                help=f"tensors that have one: {', '.join(n for n in names if n in able) or 'none'}",
            )
    return [at for at, name in enumerate(names) if name in asked]
