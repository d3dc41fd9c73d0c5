"""ListOps in plain Python, from its definition: trees as (operator, [children]), digits as int."""

from __future__ import annotations

import re
from collections.abc import Callable
from statistics import median

from hypothesis import strategies as st

trees = st.recursive(
    st.integers(0, 9),
    lambda children: st.tuples(
        st.sampled_from(["MIN", "MAX", "MED", "SM"]), st.lists(children, min_size=1, max_size=10)
    ),
    max_leaves=40,
)


def write(tree) -> list[str]:
    """Return the symbols of a tree."""
    if isinstance(tree, int):
        return [str(tree)]
    operator, children = tree
    return [f"[{operator}", *(symbol for child in children for symbol in write(child)), "]"]


def parse(symbols):
    """Return the tree of a sequence of symbols, the inverse of ``write``."""
    tree, rest = _parse(list(symbols))
    assert not rest
    return tree


def _parse(symbols):
    first, rest = symbols[0], symbols[1:]
    if re.fullmatch(r"\d", first):
        return int(first), rest
    children = []
    while rest[0] != "]":
        child, rest = _parse(rest)
        children.append(child)
    assert first != "]" and children
    return (first[1:], children), rest[1:]


def evaluate(tree) -> int:
    """Return the value of a tree."""
    if isinstance(tree, int):
        return tree
    operator, children = tree
    values = [evaluate(child) for child in children]
    rules: dict[str, Callable[[list[int]], int]] = {
        "MIN": min,
        "MAX": max,
        "MED": lambda digits: int(median(digits)),
        "SM": lambda digits: sum(digits) % 10,
    }
    return rules[operator](values)


def depth(tree) -> int:
    """Return the number of levels of a tree; a digit has one."""
    return 1 if isinstance(tree, int) else 1 + max(depth(child) for child in tree[1])


def parenthesised(tree) -> str:
    """Return a tree in the notation of the original files: left-deep pairs in parentheses."""
    if isinstance(tree, int):
        return str(tree)
    operator, children = tree
    text = f"[{operator}"
    for child in children:
        text = f"( {text} {parenthesised(child)} )"
    return f"( {text} ] )"
