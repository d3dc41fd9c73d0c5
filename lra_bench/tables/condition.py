"""Conditions on the changes between two checkouts, such as ``score<-1 or speed<0.95``, and their evaluation."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from lra_bench.build import suggest
from lra_bench.contracts import UserError

NAMES = ("score", "speed", "inference_speed", "memory", "parameters")
"""Values that a condition can name."""

LONGEST = 500
FORM = f"write comparisons of {', '.join(NAMES)} with numbers, joined by and, or and not"

_LESS: Mapping[type[ast.cmpop], Callable[..., bool]] = MappingProxyType(
    {ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge}
)


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
        self._check(self._tree)

    def holds(self, values: Mapping[str, Interval | None]) -> bool | None:
        """Return whether the condition is true, false, or None if that is unknown.

        A comparison is true or false only if it is so at both ends of the interval of the value.
        """
        return self._holds(self._tree, values)

    def _error(self, problem: str) -> UserError:
        return UserError(f'--fail-if "{self.text[:100]}": {problem}, such as "score<-1 or speed<0.95"')

    def _check(self, node: ast.expr) -> None:
        if isinstance(node, ast.BoolOp):
            for each in node.values:
                self._check(each)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self._check(node.operand)
        elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _LESS:
            terms = [node.left, *node.comparators]
            named = [each.id for each in terms if isinstance(each, ast.Name)]
            if len(named) != 1 or all(_number(each) is None for each in terms):
                raise self._error(FORM)
            if named[0] not in NAMES:
                raise self._error(f"there is no value {named[0]}{suggest(named[0], list(NAMES))}; write a condition")
            self.names.add(named[0])
        else:
            raise self._error(FORM)

    def _holds(self, node: Any, values: Mapping[str, Interval | None]) -> bool | None:
        if isinstance(node, ast.UnaryOp):
            inner = self._holds(node.operand, values)
            return None if inner is None else not inner
        if isinstance(node, ast.BoolOp):
            found, decisive = {self._holds(each, values) for each in node.values}, isinstance(node.op, ast.Or)
            return decisive if decisive in found else None if None in found else not decisive
        terms = [node.left, *node.comparators]
        (measured,) = (values.get(each.id) for each in terms if isinstance(each, ast.Name))
        if measured is None:
            return None
        numbers = [[end if isinstance(each, ast.Name) else _number(each) for each in terms] for end in measured[1:]]
        at_ends = {_LESS[type(node.ops[0])](*each) for each in numbers}
        return at_ends.pop() if len(at_ends) == 1 else None


def _number(node: ast.expr) -> float | None:
    """Return the value of a number with or without a sign, None for anything else."""
    sign = 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        sign, node = -1 if isinstance(node.op, ast.USub) else 1, node.operand
    known = isinstance(node, ast.Constant) and type(node.value) in (int, float)
    return sign * node.value if known else None  # type: ignore[attr-defined]
