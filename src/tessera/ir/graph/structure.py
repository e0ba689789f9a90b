"""The graph itself, the groups that become kernels, and calls of what has code of its own."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import StringAttr, UnitAttr
from xdsl.ir import Attribute, Block, BlockArgument, Region, SSAValue
from xdsl.irdl import operand_def, opt_prop_def, prop_def, region_def, traits_def, var_operand_def, var_result_def
from xdsl.traits import HasParent, IsolatedFromAbove, IsTerminator, SymbolOpInterface
from xdsl.utils.exceptions import VerifyException

from tessera.ir.attributes import text
from tessera.ir.definitions import TesseraOp, op_definition
from tessera.ir.effects import PURE, Effect, effect
from tessera.ir.graph.types import ArrayType


@op_definition
class GraphOp(TesseraOp):
    """A function of arrays: its block's arguments are what it takes, its `return` names the results."""

    name = "tessera_graph.graph"
    sym_name = prop_def(StringAttr)
    body = region_def("single_block")
    traits = traits_def(SymbolOpInterface(), IsolatedFromAbove())
    assembly_format = "$sym_name $body attr-dict"

    def __init__(self, name: str, types: Sequence[Attribute]):
        super().__init__(properties={"sym_name": text(name)}, regions=[Region(Block(arg_types=types))])


@op_definition
class ReturnOp(TesseraOp):
    """Ends a graph."""

    name = "tessera_graph.return"
    results_ = var_operand_def(ArrayType)
    traits = traits_def(IsTerminator(), HasParent(GraphOp))
    assembly_format = "($results_^ `:` type($results_))? attr-dict"

    def __init__(self, values: Sequence[SSAValue]):
        super().__init__(operands=[list(values)])


@op_definition
class UpdateOp(TesseraOp):
    """Writes an array to the memory of an argument of the graph, when nothing needs what is there any more."""

    name = "tessera_graph.update"
    target = operand_def(ArrayType)
    value = operand_def(ArrayType)
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = "$target `by` $value attr-dict `:` type($target) `,` type($value)"

    def __init__(self, target: SSAValue, value: SSAValue):
        super().__init__(operands=[target, value])

    def verify_(self) -> None:
        """Check that the target is an argument, and the types."""
        if not isinstance(self.target, BlockArgument) or self.target.type != self.value.type:
            raise VerifyException("update writes an array of its type to an argument of the graph")


def put_updates_last(block: Block) -> None:
    """Move what writes to arguments to the end of a graph, behind all that reads them."""
    last = block.last_op
    assert last is not None, "a graph ends with its return"
    for op in [op for op in block.ops if isinstance(op, UpdateOp)]:
        op.detach()
        block.insert_op_before(op, last)


@op_definition
class GroupOp(TesseraOp):
    """Ops that are one kernel: it reads the operands and writes the results, and all between stays in registers."""

    name = "tessera_graph.group"
    inputs = var_operand_def(ArrayType)
    outputs = var_result_def(ArrayType)
    body = region_def("single_block")
    traits = traits_def(*PURE, IsolatedFromAbove())
    assembly_format = "(`(` $inputs^ `:` type($inputs) `)`)? $body attr-dict (`->` type($outputs)^)?"

    def __init__(self, inputs: Sequence[SSAValue], outputs: Sequence[Attribute]):
        super().__init__(
            operands=[list(inputs)],
            result_types=[list(outputs)],
            regions=[Region(Block(arg_types=[value.type for value in inputs]))],
        )

    def verify_(self) -> None:
        """Check that the body takes the operands and yields the results."""
        if [arg.type for arg in self.body.block.args] != [value.type for value in self.inputs]:
            raise VerifyException("the body of a group takes its operands")
        last = self.body.block.last_op
        if not isinstance(last, YieldOp) or [v.type for v in last.values] != [r.type for r in self.outputs]:
            raise VerifyException("the body of a group yields its results")


@op_definition
class ProductOp(TesseraOp):
    """A product of matrices, its reshape, and a group of maps of it: one kernel where that pays, else two.

    The body holds the product, reshapes of its result, and the group; it takes what they read.
    """

    name = "tessera_graph.product"
    inputs = var_operand_def(ArrayType)
    outputs = var_result_def(ArrayType)
    body = region_def("single_block")
    traits = traits_def(*PURE, IsolatedFromAbove())
    assembly_format = "`(` $inputs `:` type($inputs) `)` $body attr-dict `->` type($outputs)"

    def __init__(self, inputs: Sequence[SSAValue], outputs: Sequence[Attribute]):
        super().__init__(
            operands=[list(inputs)],
            result_types=[list(outputs)],
            regions=[Region(Block(arg_types=[value.type for value in inputs]))],
        )

    @property
    def group(self) -> GroupOp:
        """The maps."""
        return next(op for op in self.body.block.ops if isinstance(op, GroupOp))

    def verify_(self) -> None:
        """Check that the body takes the operands, holds one group, and yields the results."""
        if [arg.type for arg in self.body.block.args] != [value.type for value in self.inputs]:
            raise VerifyException("the body of a product takes its operands")
        last = self.body.block.last_op
        if not isinstance(last, YieldOp) or [v.type for v in last.values] != [r.type for r in self.outputs]:
            raise VerifyException("the body of a product yields its results")
        if sum(isinstance(op, GroupOp) for op in self.body.block.ops) != 1:
            raise VerifyException("the body of a product holds one group")


@op_definition
class YieldOp(TesseraOp):
    """Ends a group, or a product with its maps, and names what is written."""

    name = "tessera_graph.yield"
    values = var_operand_def(ArrayType)
    traits = traits_def(IsTerminator(), HasParent(GroupOp, ProductOp))
    assembly_format = "$values `:` type($values) attr-dict"

    def __init__(self, values: Sequence[SSAValue]):
        super().__init__(operands=[list(values)])


@op_definition
class CallOp(TesseraOp):
    """Calls what has code of its own: an op of the library, a kernel, an operator of PyTorch.

    The name stands for the function; who made the graph knows which. `given` shows what else the function is called
    with. One that is `pure` gives the same for the same, and does nothing else.
    """

    name = "tessera_graph.call"
    callee = prop_def(StringAttr)
    given = opt_prop_def(StringAttr)
    pure = opt_prop_def(UnitAttr)
    inputs = var_operand_def(ArrayType)
    outputs = var_result_def(ArrayType)
    assembly_format = (
        "(`pure` $pure^)? $callee `(` $inputs `)` (`given` $given^)? attr-dict "
        "`:` `(` type($inputs) `)` `->` `(` type($outputs) `)`"
    )

    def __init__(
        self,
        callee: str,
        inputs: Sequence[SSAValue],
        outputs: Sequence[Attribute],
        given: str | None = None,
        pure: bool = False,
    ):
        properties = {
            "callee": text(callee),
            "given": None if given is None else text(given),
            "pure": UnitAttr() if pure else None,
        }
        super().__init__(operands=[list(inputs)], properties=properties, result_types=[list(outputs)])
