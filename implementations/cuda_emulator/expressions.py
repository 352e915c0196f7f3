"""The arithmetic of a launch description: whole and real numbers, names, + - * / // %, ceil, min and max. No more."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from attnspec.spec.errors import InputError

Number = int | float
OPERATIONS: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
FUNCTIONS: dict[str, Callable[..., Number]] = {"ceil": math.ceil, "min": min, "max": max}
LONGEST = 200  # characters
GRAMMAR = "numbers, names, + - * / // %, ceil, min, max"


@dataclass(frozen=True)
class Expression:
    """An expression, parsed. names: those it uses."""

    text: str
    tree: ast.expr
    names: frozenset[str]

    def value(self, names: Mapping[str, Number]) -> Number:
        """Return its value. Raises InputError for a division by 0."""
        try:
            return _value(self.tree, names)
        except (ZeroDivisionError, OverflowError) as error:
            raise InputError(f"{self.text!r}: {error}") from None

    def whole(self, names: Mapping[str, Number]) -> int:
        """Return its value, a whole number. Raises InputError for another one."""
        found = self.value(names)
        if found != int(found):
            raise InputError(f"{self.text!r} is {found}: use a whole number, by // or ceil")
        return int(found)


def parse(text: str | int, known: frozenset[str], alone: Sequence[str] = ()) -> Expression:
    """Return the expression of a text. known: the names it may use; alone: those that may stand in its place, for the
    message. Raises InputError, one line, for any other text; nothing of it is ever run."""
    shown = str(text)
    try:
        tree = ast.parse(shown, mode="eval").body if len(shown) <= LONGEST else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        tree = None
    if tree is None:
        raise InputError(f"{shown[:60]!r}: is no expression; use {GRAMMAR}, at most {LONGEST} characters")
    names = frozenset(_names(tree, shown))
    unknown = sorted(names - known)
    if unknown:
        beside = f"; or alone {', '.join(alone)}" if alone else ""
        raise InputError(f"{shown!r}: unknown name {unknown[0]!r}; use {', '.join(sorted(known))}{beside}")
    return Expression(shown, tree, names)


def _names(node: ast.expr, shown: str) -> list[str]:
    """Return the names of a tree. Raises InputError for what the grammar has not."""
    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() | float()):
            return []
        case ast.Name(id=name):
            return [name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _names(operand, shown)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATIONS:
            return _names(left, shown) + _names(right, shown)
        case ast.Call(func=ast.Name(id=function), args=args, keywords=[]) if function in FUNCTIONS and args:
            if (len(args) == 1) == (function == "ceil"):
                return [name for argument in args for name in _names(argument, shown)]
    raise InputError(f"{shown!r}: {ast.unparse(node)!r} is not allowed; use {GRAMMAR}")


def _value(node: ast.expr, names: Mapping[str, Number]) -> Number:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.Name(id=name):
            return names[name]
        case ast.UnaryOp(operand=operand):
            return -_value(operand, names)
        case ast.BinOp(left=left, op=op, right=right):
            return OPERATIONS[type(op)](_value(left, names), _value(right, names))
        case ast.Call(func=ast.Name(id=function), args=args):
            return FUNCTIONS[function](*(_value(argument, names) for argument in args))
    raise AssertionError(f"{node!r} has been parsed")  # pragma: no cover
