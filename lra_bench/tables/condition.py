"""Conditions on the changes between two checkouts, such as ``score<-1 or speed<0.95``, and their evaluation."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import NamedTuple

from lra_bench.build import suggest
from lra_bench.contracts import UserError

NAMES = ("score", "speed", "inference_speed", "memory", "parameters")
"""Values that a condition can name."""

LONGEST = 500
FORM = f"write comparisons of {', '.join(NAMES)} with numbers, joined by and, or and not"

_LESS: Mapping[type[ast.cmpop], Callable[..., bool]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge
}  # fmt: skip


class Interval(NamedTuple):
    """A measured value and the ends of its interval; both are the value if it has no uncertainty."""

    value: float
    low: float
    high: float


class Condition:
    """A condition of the user; ``names`` are the values that it compares.

    Only comparisons (``<``, ``<=``, ``>``, ``>=``), numbers, ``and``, ``or``, ``not`` and parentheses are allowed, and
    nothing is executed. Raises ``UserError`` if ``text`` contains anything else.
    """

    def __init__(self, text: str) -> None:
        self.text = " ".join(text.split())
        self.names: set[str] = set()
        try:
            if len(text) > LONGEST:
                raise ValueError
            self._tree = ast.parse(self.text, mode="eval").body
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            raise self._error(FORM) from None
        self._holds(self._tree, {})

    def holds(self, values: Mapping[str, Interval | None]) -> bool | None:
        """Return whether the condition is true, false, or None if that is unknown.

        A comparison is true or false only if it is so at both ends of the interval of the value.
        """
        return self._holds(self._tree, values)

    def _error(self, problem: str) -> UserError:
        return UserError(f'--fail-if "{self.text[:100]}": {problem}, such as "score<-1 or speed<0.95"')

    def _holds(self, node: ast.expr, values: Mapping[str, Interval | None]) -> bool | None:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self._holds(node.operand, values)
            return None if inner is None else not inner
        if isinstance(node, ast.BoolOp):
            found, decisive = {self._holds(each, values) for each in node.values}, isinstance(node.op, ast.Or)
            return decisive if decisive in found else None if None in found else not decisive
        if not isinstance(node, ast.Compare) or len(node.ops) != 1 or type(node.ops[0]) not in _LESS:
            raise self._error(FORM)
        terms = [node.left, *node.comparators]
        named, numbers = [each.id for each in terms if isinstance(each, ast.Name)], [*map(_number, terms)]
        if len(named) != 1 or numbers == [None, None]:
            raise self._error(FORM)
        if named[0] not in NAMES:
            raise self._error(f"there is no value {named[0]}{suggest(named[0], list(NAMES))}; write a condition")
        self.names.add(named[0])
        if (measured := values.get(named[0])) is None:
            return None
        at_ends = {
            _LESS[type(node.ops[0])](*(end if number is None else number for number in numbers)) for end in measured[1:]
        }
        return at_ends.pop() if len(at_ends) == 1 else None


def _number(node: ast.expr) -> float | None:
    """Return the value of a number with or without a sign, None for anything else."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError):
        return None
    return value if type(value) in (int, float) else None
