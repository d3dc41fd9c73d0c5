"""Generators of multi-query associative recall, compiled, as those in ``tasks/synthetic/drawing.py``.

Token ids are those of the authors plus 1, because id 0 is reserved for padding. Targets are ids of the authors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lra_bench.contracts import NOT_SCORED
from lra_bench.data.compiled import compiled
from lra_bench.data.splitmix import below

from ..synthetic.drawing import BLANK, free_place, shuffle, start

FIRST_KEY = 2
"""Token of the first key. Symbol 0 of the original code is the blank."""


@compiled
def _reset(items: Any) -> None:
    """Set ``items`` to 0, 1, 2, …, because examples must not depend on earlier ones."""
    for item in range(len(items)):
        items[item] = item


@compiled
def _fill(symbols: int, fillers: bool, tokens: Any, counter: Any) -> None:
    """Replace the blanks in ``tokens`` (N,) by random tokens, if there are fillers."""
    if fillers:
        for place in range(len(tokens)):
            if tokens[place] == BLANK:
                tokens[place] = 1 + below(counter, symbols)


@compiled
def draw_mqar(
    key: Any,
    first: int,
    choices: Any,
    symbols: int,
    passes: int,
    updates: int,
    fillers: bool,
    cumulative: Any,
    tokens: Any,
    targets: Any,
) -> None:
    """Generate examples of ``MultiQueryRecall`` with single keys: pairs, updated pairs, then each key once.

    Args:
        key: Key of the stream.
        first: Number of the first example in the stream.
        choices: Numbers of pairs, (C,); each example has one of them.
        symbols: Number of symbols V.
        passes: How often the pairs are shown.
        updates: Number of keys that are shown again with another value.
        fillers: Whether the places between the queries contain random tokens.
        cumulative: For each number of pairs, the cumulative probabilities of the gaps, (C, S); only as many are used as
            there are gaps.
        tokens: Output, (R, N).
        targets: Output, (R, N).
    """
    counter, half = np.empty(1, dtype=np.uint64), symbols // 2
    keys, values, order = np.empty(half - 1, np.int64), np.empty(symbols - half, np.int64), np.empty(half, np.int64)
    free = np.empty(tokens.shape[1], np.int64)
    for row in range(tokens.shape[0]):
        start(key, first + row, counter)
        choice = below(counter, len(choices)) if len(choices) > 1 else 0
        pairs = choices[choice]
        context = 2 * (pairs * passes + updates)
        gaps = (tokens.shape[1] - context) // 2
        tokens[row], targets[row], free[:] = BLANK, NOT_SCORED, BLANK
        _reset(keys)
        _reset(values)
        _reset(order)
        shuffle(keys, pairs, counter)
        shuffle(values, pairs, counter)
        for shown in range(pairs * passes):
            tokens[row, 2 * shown] = FIRST_KEY + keys[shown % pairs]
            tokens[row, 2 * shown + 1] = 1 + half + values[shown % pairs]
        shuffle(order[:pairs], updates, counter)
        for update in range(updates):
            pair, place = order[update], 2 * (pairs * passes + update)
            other = below(counter, symbols - half - 1)
            values[pair] = other + 1 if other >= values[pair] else other
            tokens[row, place] = FIRST_KEY + keys[pair]
            tokens[row, place + 1] = 1 + half + values[pair]
        for pair in range(pairs):
            gap = free_place(cumulative[choice, :gaps], free[:gaps], counter)
            free[gap] = 0
            tokens[row, context + 2 * gap] = FIRST_KEY + keys[pair]
            targets[row, context + 2 * gap] = half + values[pair]
        _fill(symbols, fillers, tokens[row], counter)


@compiled
def draw_compositional(
    key: Any, first: int, sides: Any, symbols: int, fillers: bool, cumulative: Any, tokens: Any, targets: Any
) -> None:
    """Generate examples of ``MultiQueryRecall`` with compound keys: a grid of pairs of keys in random order.

    Args:
        key: Key of the stream.
        first: Number of the first example in the stream.
        sides: Widths of the grid, (C,); each example has one of them, and as many pairs as its square.
        symbols: Number of symbols V.
        fillers: Whether the places between the queries contain random tokens.
        cumulative: For each width, the cumulative probabilities of the gaps, (C, S), as in ``draw_mqar``.
        tokens: Output, (R, N).
        targets: Output, (R, N).
    """
    counter, third = np.empty(1, dtype=np.uint64), symbols // 3
    firsts, seconds = np.empty(third - 1, np.int64), np.empty(third, np.int64)
    values, grid = np.empty(symbols - 2 * third, np.int64), np.empty(tokens.shape[1], np.int64)
    free = np.empty(tokens.shape[1], np.int64)
    for row in range(tokens.shape[0]):
        start(key, first + row, counter)
        choice = below(counter, len(sides)) if len(sides) > 1 else 0
        side = sides[choice]
        pairs = side * side
        gaps = (tokens.shape[1] - 3 * pairs) // 3
        tokens[row], targets[row], free[:] = BLANK, NOT_SCORED, BLANK
        _reset(firsts)
        _reset(seconds)
        _reset(values)
        _reset(grid)
        shuffle(firsts, side, counter)
        shuffle(seconds, side, counter)
        shuffle(grid[:pairs], pairs, counter)
        shuffle(values, pairs, counter)
        for pair in range(pairs):
            one, two = FIRST_KEY + firsts[grid[pair] // side], 1 + third + seconds[grid[pair] % side]
            place = 3 * pairs + 3 * free_place(cumulative[choice, :gaps], free[:gaps], counter)
            free[place // 3 - pairs] = 0
            tokens[row, 3 * pair], tokens[row, 3 * pair + 1] = one, two
            tokens[row, 3 * pair + 2] = 1 + 2 * third + values[pair]
            tokens[row, place], tokens[row, place + 1] = one, two
            targets[row, place + 1] = 2 * third + values[pair]
        _fill(symbols, fillers, tokens[row], counter)
