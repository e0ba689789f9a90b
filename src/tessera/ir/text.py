"""The textual form: printing, and parsing of text that may be wrong in any way."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from types import TracebackType

from xdsl.dialects.builtin import UNKNOWN_LOC, ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.parser import Parser
from xdsl.parser.generic_parser import ParserState
from xdsl.printer import Printer
from xdsl.traits import IsolatedFromAbove
from xdsl.utils.exceptions import ParseError
from xdsl.utils.lexer import Input, Position
from xdsl.utils.mlir_lexer import MLIRLexer, MLIRToken, MLIRTokenKind, StringLiteral

from tessera.errors import Frame, Location, TesseraError, VerifyError
from tessera.ir.collect import new_context
from tessera.ir.decisions import check_decisions
from tessera.ir.locations import location_of, to_loc
from tessera.ir.traits import has_trait


def text_of(module: Operation, *, locations: bool = False) -> str:
    """Return the textual form of an op, ending in a newline.

    Args:
        module: any op.
        locations: whether each op's source location is printed.
    """
    out = io.StringIO()
    Printer(out, print_debuginfo=locations).print_op(module)
    return out.getvalue() + "\n"


def parse_module(text: str, file: str = "<input>") -> ModuleOp:
    """Parse and verify the textual form of a module.

    An op that carries no `loc(...)` gets its place in the text, so that whatever is reported of it later, by
    a pass or while it runs, names a line of the text.

    Args:
        text: the textual form.
        file: its name in messages.

    Raises:
        VerifyError: the text does not parse or verify; has the place.
    """
    with _Refusal("", lambda: _place(text, file, 0)):
        parser = _LocatingParser(text, file)
    with _Refusal("", lambda: _place(text, file, parser.pos)):
        try:
            module = parser.parse_module()
        except ParseError as error:
            raise VerifyError(error.msg.strip(), location=_place(text, file, error.span.start)) from error
    check(module)
    return module


def check(module: ModuleOp) -> None:
    """Verify a module, its decisions, and that every value is defined before its uses.

    Raises:
        VerifyError: with the place of the op that is wrong.
    """
    for op in module.walk():
        with _Refusal(op.name, lambda op=op: location_of(op)):
            op.verify(verify_nested_ops=False)
            check_decisions(op)
    with _Refusal(module.name, lambda: location_of(module)):
        module.verify()
    _check_order(module, set())


def _check_order(parent: Operation, visible: set[SSAValue]) -> None:
    inherited: set[SSAValue] = set() if has_trait(parent, IsolatedFromAbove) else visible
    for region in parent.regions:
        for block in region.blocks:
            seen = inherited | set(block.args)
            for op in block.ops:
                if any(operand not in seen for operand in op.operands):
                    raise VerifyError(f"{op.name} uses a value that is not defined before it", location=location_of(op))
                _check_order(op, seen)
                seen.update(op.results)


def _place(text: str, file: str, position: int) -> Location:
    line = text.count("\n", 0, position) + 1
    column = position - text.rfind("\n", 0, position)
    return Location(Frame(file, line, column))


class _Lexer(MLIRLexer):
    """xDSL's lexer, but for two things of string literals.

    One without an end takes linear time, not exponential; and one of letters beyond ASCII, which are printed as bytes,
    is text like any other where these are UTF-8: names, messages and paths of a program are.
    """

    _unescaped_characters_regex = re.compile(r'"(?:[^"\\\n\v\f]|\\(?:["nt\\]|[0-9A-Fa-f]{2}))*"')

    def _lex_string_literal(self, start_pos: Position) -> MLIRToken:
        token = super()._lex_string_literal(start_pos)
        if token.kind == MLIRTokenKind.BYTES_LIT and _is_text(token):
            return MLIRToken(MLIRTokenKind.STRING_LIT, token.span)
        return token


def _is_text(token: MLIRToken) -> bool:
    try:
        StringLiteral.from_span(token.span).bytes_contents.decode()
    except UnicodeDecodeError:
        return False
    return True


class _LocatingParser(Parser):
    """A parser that gives every op the place where it stands."""

    def __init__(self, text: str, file: str) -> None:
        super().__init__(new_context(), "", file)
        self._parser_state = ParserState(_Lexer(Input(text, file)))
        self._text, self._file = text, file

    def parse_operation(self) -> Operation:
        position = self.pos
        try:
            op = super().parse_operation()
        except ParseError as error:
            if not error.msg.endswith("is not registered"):
                raise
            # xDSL points behind the name.
            raise VerifyError(error.msg, location=_place(self._text, self._file, position)) from error
        if op.location == UNKNOWN_LOC:
            op.location = to_loc(_place(self._text, self._file, position))
        return op


class _Refusal:
    """Turns whatever xDSL raises over wrong IR, index errors included, into a `VerifyError`."""

    def __init__(self, name: str, location: Callable[[], Location | None]) -> None:
        self.name, self.location = name, location

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, Exception) or isinstance(error, TesseraError):
            return
        lines = [line.strip() for line in str(error).split("\n") if line.strip()]
        message = lines[-1] if lines else type(error).__name__
        prefix = f"{self.name}: " if self.name and self.name not in message else ""
        raise VerifyError(prefix + message, location=self.location()) from error
