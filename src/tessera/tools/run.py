"""`tessera run`: runs a textual TIR-H kernel on arrays, in the interpreter."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO, cast

import click
import numpy as np
import numpy.typing as npt

from tessera.driver.binding import check_tensors
from tessera.errors import CallError, VerifyError
from tessera.interp import interpret
from tessera.ir.tile.structure import ArgInfo, KernelOp
from tessera.ir.tile.types import TensorType, describe
from tessera.lower.launch import arg_specs
from tessera.runtime.arguments import ExpectedTensor
from tessera.runtime.packing import scalar_number
from tessera.runtime.readers import view_of
from tessera.tools.texts import module_of

Array = npt.NDArray[Any]


def run_text(text: str, inputs: Sequence[Any], *, file: str = "<input>", checks: bool = True) -> list[Array]:
    """Run the kernel of a textual module on NumPy arrays and numbers; arrays it stores to change in place.

    Args:
        text: the module.
        inputs: one array or number per kernel parameter.
        file: the text's name in messages.
        checks: whether the interpreter checks bounds, initialisation and races.

    Returns:
        The arrays that the kernel returns; if it returns none, those that it stores to.

    Raises:
        VerifyError: the text does not parse or verify; has the place.
        CallError: inputs that do not fit the kernel.
        DeviceError: what a check found while it ran.
    """
    module = module_of(text, file)
    kernel = next((op for op in module.ops if isinstance(op, KernelOp)), None)
    values = inputs if kernel is None else checked_inputs(kernel, inputs)
    returned = interpret(module, values, checks=checks)
    if returned or kernel is None:
        return returned
    return [array for array, info in zip(values, kernel.infos, strict=True) if info.written]


def checked_inputs(kernel: KernelOp, inputs: Sequence[Any]) -> list[Any]:
    """Return what a kernel is run on: the arrays, and the numbers in the dtypes of their parameters.

    Raises:
        CallError: `argument-count`, or an input does not fit, as at a call of a kernel.
    """
    _check_count(kernel, inputs)
    specs = arg_specs(kernel)
    arrays = [(spec, array) for spec, array in zip(specs, inputs, strict=True) if spec.kind == "tensor"]
    expected = [ExpectedTensor.of_spec(spec) for spec, _ in arrays]
    check_tensors(expected, [view_of(array)[1] for _, array in arrays])
    return [
        scalar_number(spec, value) if spec.kind == "scalar" else value
        for spec, value in zip(specs, inputs, strict=True)
    ]


def _check_count(kernel: KernelOp, inputs: Sequence[Any]) -> None:
    parameters = kernel.body.block.args
    if len(inputs) != len(parameters):
        types = zip(kernel.infos, parameters, strict=True)
        raise CallError(
            f"{kernel.sym_name.data} takes {len(parameters)} inputs, got {len(inputs)}",
            code="argument-count",
            help=f"give one for each of {', '.join(f'{info.name}: {describe(arg.type)}' for info, arg in types)}",
        )


def _load(path: Path) -> Array:
    try:
        with path.open("rb") as stream:
            array: Any = np.load(stream, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise CallError(
            f"cannot read {path} as an .npy file: {error}", code="bad-input", help="write it with numpy.save"
        ) from error
    if not isinstance(array, np.ndarray):
        raise CallError(f"{path} holds several arrays", code="bad-input", help="give an .npy file, of one")
    return cast("Array", array)


def _number(text: str) -> int | float | bool:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise CallError(
            f"{text!r:.80} is neither a file nor a number",
            code="bad-input",
            help="pass the path of an .npy file for a tensor, or a number for a scalar",
        ) from error
    if not isinstance(value, int | float):
        raise CallError(
            f"{text!r} is neither a file nor a number",
            code="bad-input",
            help="pass the path of an .npy file for a tensor, or a number for a scalar",
        )
    return value


def read_input(text: str, parameter: TensorType | None, info: ArgInfo) -> Any:
    """Return the value that an `--input` names: an `.npy` file, `zeros(64,32)` or a number.

    NumPy's file format has no bf16 and no fp8: such an array is stored as integers of its width, and read as
    the parameter's dtype.

    Raises:
        CallError: `bad-input`.
    """
    if parameter is None:
        return _number(text)
    dtype = parameter.dtype.numpy()
    if text.startswith("zeros(") and text.endswith(")"):
        sizes = text[6:-1].strip().removesuffix(",")
        try:
            return np.zeros([int(part) for part in sizes.split(",")] if sizes else [], dtype)
        except (ValueError, OverflowError, MemoryError) as error:
            raise CallError(f"there is no {text:.80}: {error}", code="bad-input", help="write zeros(64,32)") from error
    array = _load(Path(text))
    if dtype.isbuiltin != 1 and array.dtype.kind in "uV" and array.dtype.itemsize == dtype.itemsize:
        return array.view(dtype)  # a dtype of another library's
    if array.dtype != dtype:
        raise CallError(
            f"{text} holds {array.dtype}, {info.name} is {describe(parameter)}",
            code="dtype-mismatch",
            help="save an array of that dtype",
        )
    return array


@click.command()
@click.argument("source", type=click.File("r"))
@click.option("--input", "-i", "inputs", multiple=True, help="Per parameter: a .npy file, zeros(64,32), a number.")
@click.option("--output", "-o", "outputs", multiple=True, type=click.Path(path_type=Path), help="A .npy per result.")
@click.option("--no-checks", is_flag=True, help="Do not check bounds, initialisation and races.")
def run(source: TextIO, inputs: tuple[str, ...], outputs: tuple[Path, ...], no_checks: bool) -> None:
    """Run the TIR-H kernel in SOURCE in the interpreter and print or save its results."""
    text = source.read()
    module = module_of(text, source.name)
    kernel = next((op for op in module.ops if isinstance(op, KernelOp)), None)
    if kernel is None:
        raise VerifyError(f"{source.name} holds no kernel")
    _check_count(kernel, inputs)
    values = [
        read_input(given, p.type if isinstance(p.type, TensorType) else None, info)
        for given, p, info in zip(inputs, kernel.body.block.args, kernel.infos, strict=True)
    ]
    results = run_text(text, values, file=source.name, checks=not no_checks)
    if len(outputs) > len(results):
        raise CallError(
            f"{len(outputs)} --output options, and {kernel.sym_name.data} gives {len(results)} arrays",
            code="bad-option",
            help="give one --output for each array that it returns or, if it returns none, stores to",
        )
    for path, result in zip(outputs, results, strict=False):
        with path.open("wb") as stream:
            np.save(stream, result.view(f"u{result.dtype.itemsize}") if result.dtype.kind == "V" else result)
    for result in results[len(outputs) :]:
        click.echo(np.array2string(result, threshold=64))
