"""Rows of the synthetic tasks, drawn by compiled loops: row r is a function of the stream's key and r alone.

Each loop fills ``tokens``, one array row per row of the stream from number ``first`` on, and ``targets``. Id 0 is left
to padding.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lra_bench.contracts import NOT_SCORED
from lra_bench.data.compiled import compiled
from lra_bench.data.splitmix import STEP, below, mix, uniform

BLANK, SEPARATOR, FIRST_COPIED = 1, 2, 3
FIRST_KEY = 2
FIRST_MARKER = 1
MARK, FIRST_SYMBOL = 1, 2
TRIES = 32
"""How often to draw among all places, which takes no look at each of them, before drawing among the free ones."""


@compiled
def _start(key: Any, row: int, counter: Any) -> None:
    """Set the counter of one row; rows start at random places of the generator's cycle."""
    counter[0] = mix(key + np.uint64(row) * STEP)


@compiled
def _shuffle(items: Any, count: int, counter: Any) -> None:
    """Bring ``count`` items, drawn at random without replacement, to the front (Fisher and Yates)."""
    for place in range(count):
        other = place + below(counter, len(items) - place)
        items[place], items[other] = items[other], items[place]


@compiled
def draw_copies(key: Any, first: int, copied: int, symbols: int, tokens: Any, targets: Any) -> None:
    """Symbols at the front, then blanks, a separator and as many blanks as symbols.

    ``tokens`` and ``targets`` are (R, N).
    """
    counter = np.empty(1, dtype=np.uint64)
    rows, length = tokens.shape
    for row in range(rows):
        _start(key, first + row, counter)
        tokens[row, copied:] = BLANK
        tokens[row, length - copied - 1] = SEPARATOR
        targets[row] = NOT_SCORED
        for place in range(copied):
            symbol = below(counter, symbols)
            tokens[row, place] = FIRST_COPIED + symbol
            targets[row, length - copied + place] = symbol


@compiled
def _share(cumulative: Any, place: int) -> float:
    return cumulative[place] - (cumulative[place - 1] if place else 0.0)


@compiled
def _free_place(cumulative: Any, tokens: Any, counter: Any) -> int:
    """One of the places (N,) that are BLANK in ``tokens``, by the shares that ``cumulative`` sums up."""
    for _ in range(TRIES):
        place = int(np.searchsorted(cumulative, uniform(counter), side="right"))
        if place < len(cumulative) and tokens[place] == BLANK:  # rounding may end the sum below 1
            return place
    left, free = 0.0, -1
    for place in range(len(cumulative)):
        if tokens[place] == BLANK:
            left += _share(cumulative, place)
    left *= uniform(counter)
    for place in range(len(cumulative)):
        if tokens[place] == BLANK:
            free = place
            left -= _share(cumulative, place)
            if left < 0:
                break
    return free


@compiled
def draw_recalls(
    key: Any, first: int, pairs: int, half: int, queries: int, cumulative: Any, tokens: Any, targets: Any
) -> None:
    """``pairs`` of one of ``half`` keys and one of ``half`` values, none twice, then ``queries`` keys among blanks.

    ``cumulative`` (N − 2 pairs,) holds the probabilities of each place behind the pairs or an earlier one.
    ``tokens`` and ``targets`` are (R, N).
    """
    counter = np.empty(1, dtype=np.uint64)
    keys, values, asked = np.empty(half, np.int64), np.empty(half, np.int64), np.empty(pairs, np.int64)
    for row in range(tokens.shape[0]):
        _start(key, first + row, counter)
        tokens[row] = BLANK
        targets[row] = NOT_SCORED
        for number in range(half):
            keys[number] = values[number] = number
        for pair in range(pairs):
            asked[pair] = pair
        _shuffle(keys, pairs, counter)
        _shuffle(values, pairs, counter)
        # Without this the earlier pairs would be asked for at the likelier places.
        _shuffle(asked, pairs, counter)
        for pair in range(pairs):
            tokens[row, 2 * pair] = FIRST_KEY + keys[pair]
            tokens[row, 2 * pair + 1] = FIRST_KEY + half + values[pair]
        for query in range(queries):
            pair = asked[query % pairs]
            place = 2 * pairs + _free_place(cumulative, tokens[row, 2 * pairs :], counter)
            tokens[row, place] = FIRST_KEY + keys[pair]
            targets[row, place] = values[pair]


@compiled
def draw_needles(key: Any, first: int, needles: int, symbols: int, tokens: Any, targets: Any, depth: Any) -> None:
    """Random symbols; each marker once among them, a symbol behind it; at the end one of the markers again.

    The asked marker's place is uniform, the others keep clear of each other. ``tokens`` and ``targets`` are (R, N);
    ``depth`` (R,) gets that place as a share of the last possible one.
    """
    counter = np.empty(1, dtype=np.uint64)
    rows, length = tokens.shape
    first_symbol, starts = FIRST_MARKER + needles, length - 2
    for row in range(rows):
        _start(key, first + row, counter)
        targets[row] = NOT_SCORED
        for place in range(length):
            tokens[row, place] = first_symbol + below(counter, symbols)
        asked = below(counter, needles)
        for number in range(needles):
            needle = (asked + number) % needles
            place = below(counter, starts)
            if number == 0:
                targets[row, length - 1] = tokens[row, place + 1] - first_symbol
                depth[row] = place / max(starts - 1, 1)
            while (
                tokens[row, place] < first_symbol
                or tokens[row, place + 1] < first_symbol
                or (place > 0 and tokens[row, place - 1] < first_symbol)
            ):
                place = below(counter, starts)
            tokens[row, place] = FIRST_MARKER + needle
        tokens[row, length - 1] = FIRST_MARKER + asked


@compiled
def draw_pairs(key: Any, first: int, keys: int, marks: int, balanced: bool, tokens: Any, targets: Any) -> None:
    """Two documents, each with its key behind every mark; all of the same tokens where ``balanced``.

    ``tokens`` (R, 2, N), ``targets`` (R,): whether both have the same key.
    """
    counter = np.empty(1, dtype=np.uint64)
    rows, _, length = tokens.shape
    units = np.empty(length - marks, dtype=np.int64)  # a mark and the key behind it are one
    for row in range(rows):
        _start(key, first + row, counter)
        same = below(counter, 2)
        own = below(counter, keys)
        targets[row] = same
        for document in range(2):
            if document == 1 and same == 0:
                own = (own + 1 + below(counter, keys - 1)) % keys
            units[:marks] = MARK
            unit = marks
            if balanced:
                # Every symbol as often as any other, first ones once more where that does not come out even.
                for symbol in range(keys):
                    left = (length - marks + keys - 1 - symbol) // keys - (marks if symbol == own else 0)
                    units[unit : unit + left] = FIRST_SYMBOL + symbol
                    unit += left
            else:
                for place in range(marks, len(units)):
                    units[place] = FIRST_SYMBOL + below(counter, keys)
            _shuffle(units, len(units), counter)
            place = 0
            for unit in range(len(units)):
                tokens[row, document, place] = units[unit]
                place += 1
                if units[unit] == MARK:
                    tokens[row, document, place] = FIRST_SYMBOL + own
                    place += 1
