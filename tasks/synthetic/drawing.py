"""Generators of the synthetic tasks, compiled: example r is a function of the stream's key and r only.

Each generator fills ``tokens`` and ``targets`` with examples ``first``, ``first`` + 1, … of a stream. Token id 0 is
reserved for padding.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lra_bench.contracts import NOT_SCORED
from lra_bench.data.compiled import compiled
from lra_bench.data.splitmix import STEP, below, mix, uniform

BLANK, SEPARATOR, FIRST_COPIED = 1, 2, 3
FIRST_KEY = 2
FIRST_ELEMENT = 1
FIRST_MARKER = 1
MARK, FIRST_SYMBOL = 1, 2
TRIES = 32
"""Number of positions sampled from all positions, rejecting those not free, before sampling from the free ones."""


@compiled
def start(key: Any, row: int, counter: Any) -> None:
    """Set the random counter of one example to a random position in the generator's cycle."""
    counter[0] = mix(key + np.uint64(row) * STEP)


@compiled
def shuffle(items: Any, count: int, counter: Any) -> None:
    """Move ``count`` items, sampled without replacement, to the front, in place (Fisher-Yates shuffle)."""
    for place in range(count):
        other = place + below(counter, len(items) - place)
        items[place], items[other] = items[other], items[place]


@compiled
def draw_numbers(key: Any, first: int, choices: int, symbols: int, numbers: Any) -> None:
    """Fill ``numbers`` (R, M) with random integers: below ``choices`` in the first column, below ``symbols`` elsewhere.

    ``key`` is the key of the stream, ``first`` the number of the first example in it.
    """
    counter = np.empty(1, dtype=np.uint64)
    rows, count = numbers.shape
    for row in range(rows):
        start(key, first + row, counter)
        numbers[row, 0] = below(counter, choices)
        for column in range(1, count):
            numbers[row, column] = below(counter, symbols)


@compiled
def draw_copies(key: Any, first: int, copied: int, symbols: int, tokens: Any, targets: Any) -> None:
    """Generate examples of ``CopyTask``: symbols, blanks, a separator and as many blanks as symbols.

    Args:
        key: Key of the stream.
        first: Number of the first example in the stream.
        copied: Number of symbols to copy.
        symbols: Number of different symbols.
        tokens: Output, (R, N).
        targets: Output, (R, N).
    """
    counter = np.empty(1, dtype=np.uint64)
    rows, length = tokens.shape
    for row in range(rows):
        start(key, first + row, counter)
        tokens[row, copied:] = BLANK
        tokens[row, length - copied - 1] = SEPARATOR
        targets[row] = NOT_SCORED
        for place in range(copied):
            symbol = below(counter, symbols)
            tokens[row, place] = FIRST_COPIED + symbol
            targets[row, length - copied + place] = symbol


@compiled
def draw_scattered_copies(key: Any, first: int, copied: int, symbols: int, tokens: Any, targets: Any) -> None:
    """Generate examples of ``SelectiveCopyTask``: symbols among blanks, a separator, as many blanks as symbols.

    Args:
        key: Key of the stream.
        first: Number of the first example in the stream.
        copied: Number of symbols to copy.
        symbols: Number of different symbols.
        tokens: Output, (R, N).
        targets: Output, (R, N).
    """
    counter = np.empty(1, dtype=np.uint64)
    rows, length = tokens.shape
    separator = length - copied - 1
    for row in range(rows):
        start(key, first + row, counter)
        tokens[row] = BLANK
        tokens[row, separator] = SEPARATOR
        targets[row] = NOT_SCORED
        found = 0
        for place in range(separator):
            # Every subset of ``copied`` positions has the same probability (selection sampling).
            if below(counter, separator - place) < copied - found:
                symbol = below(counter, symbols)
                tokens[row, place] = FIRST_COPIED + symbol
                targets[row, separator + 1 + found] = symbol
                found += 1


@compiled
def draw_words(key: Any, first: int, product: Any, shortest: int, tokens: Any, targets: Any) -> None:
    """Generate examples of ``WordProblemTask``: random elements of a group, and their products from the left.

    Args:
        key: Key of the stream.
        first: Number of the first example in the stream.
        product: Multiplication table of the group, (G, G).
        shortest: Smallest number of targets; all others are equally probable up to N.
        tokens: Output, (R, N).
        targets: Output, (R, N). As many positions from the first one on as sampled, the others are not scored.
    """
    counter = np.empty(1, dtype=np.uint64)
    rows, length = tokens.shape
    for row in range(rows):
        start(key, first + row, counter)
        scored = shortest + below(counter, length - shortest + 1)
        state = 0
        for place in range(length):
            element = below(counter, len(product))
            tokens[row, place] = FIRST_ELEMENT + element
            state = product[state, element]
            targets[row, place] = state if place < scored else NOT_SCORED


@compiled
def _probability(cumulative: Any, place: int) -> float:
    """Return the probability of one position from the cumulative probabilities."""
    return cumulative[place] - (cumulative[place - 1] if place else 0.0)


@compiled
def free_place(cumulative: Any, tokens: Any, counter: Any) -> int:
    """Sample one of the positions at which ``tokens`` (N,) is BLANK, given cumulative probabilities (N,)."""
    for _ in range(TRIES):
        place = int(np.searchsorted(cumulative, uniform(counter), side="right"))
        if place < len(cumulative) and tokens[place] == BLANK:  # due to rounding, the last value may be below 1
            return place
    remaining, free = 0.0, -1
    for place in range(len(cumulative)):
        if tokens[place] == BLANK:
            remaining += _probability(cumulative, place)
    remaining *= uniform(counter)
    for place in range(len(cumulative)):
        if tokens[place] == BLANK:
            free = place
            remaining -= _probability(cumulative, place)
            if remaining < 0:
                break
    return free


@compiled
def draw_recalls(
    key: Any, first: int, choices: Any, half: int, queries: int, cumulative: Any, tokens: Any, targets: Any
) -> None:
    """Generate examples of ``RecallTask``: key-value pairs, then queries among blanks.

    Args:
        key: Key of the stream.
        first: Number of the first example in the stream.
        choices: Numbers of pairs, (C,); each example has one of them.
        half: Number of different keys, and of different values.
        queries: Number of queries; 0 for one query of every key.
        cumulative: For each number of pairs P, the cumulative probabilities of a query's position after the pairs,
            (C, N); only the first N − 2 P are used.
        tokens: Output, (R, N).
        targets: Output, (R, N).
    """
    counter = np.empty(1, dtype=np.uint64)
    keys, values, items = np.empty(half, np.int64), np.empty(half, np.int64), np.empty(half, np.int64)
    for row in range(tokens.shape[0]):
        start(key, first + row, counter)
        # Without a choice no random number is consumed, so that examples of a single number of pairs stay the same.
        choice = below(counter, len(choices)) if len(choices) > 1 else 0
        pairs = choices[choice]
        order, probabilities = items[:pairs], cumulative[choice, : tokens.shape[1] - 2 * pairs]
        tokens[row] = BLANK
        targets[row] = NOT_SCORED
        for number in range(half):
            keys[number] = values[number] = number
        for pair in range(pairs):
            order[pair] = pair
        shuffle(keys, pairs, counter)
        shuffle(values, pairs, counter)
        # Without this shuffle earlier pairs would be queried at the more probable positions.
        shuffle(order, pairs, counter)
        for pair in range(pairs):
            tokens[row, 2 * pair] = FIRST_KEY + keys[pair]
            tokens[row, 2 * pair + 1] = FIRST_KEY + half + values[pair]
        for query in range(queries if queries else pairs):
            pair = order[query % pairs]
            place = 2 * pairs + free_place(probabilities, tokens[row, 2 * pairs :], counter)
            tokens[row, place] = FIRST_KEY + keys[pair]
            targets[row, place] = values[pair]


@compiled
def draw_needles(key: Any, first: int, needles: int, symbols: int, tokens: Any, targets: Any, depth: Any) -> None:
    """Generate examples of ``NeedleTask``: random symbols with each marker once, and one marker again at the end.

    The position of the queried marker is uniform; those of the other markers are rejected if two markers would be
    adjacent.

    Args:
        key: Key of the stream.
        first: Number of the first example in the stream.
        needles: Number of markers.
        symbols: Number of different symbols.
        tokens: Output, (R, N).
        targets: Output, (R, N).
        depth: Output, (R,). Position of the queried marker, divided by the last possible position.
    """
    counter = np.empty(1, dtype=np.uint64)
    rows, length = tokens.shape
    first_symbol, starts = FIRST_MARKER + needles, length - 2
    for row in range(rows):
        start(key, first + row, counter)
        targets[row] = NOT_SCORED
        for place in range(length):
            tokens[row, place] = first_symbol + below(counter, symbols)
        queried = below(counter, needles)
        for number in range(needles):
            needle = (queried + number) % needles
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
        tokens[row, length - 1] = FIRST_MARKER + queried


@compiled
def draw_pairs(key: Any, first: int, keys: int, marks: int, balanced: bool, tokens: Any, targets: Any) -> None:
    """Generate examples of ``RetrievalSynthetic``: two documents, each with its key after every mark.

    Args:
        key: Key of the stream.
        first: Number of the first example in the stream.
        keys: Number of different keys.
        marks: Number of marks in a document.
        balanced: Whether all documents are permutations of the same tokens.
        tokens: Output, (R, 2, N).
        targets: Output, (R,). 1 if both documents have the same key.
    """
    counter = np.empty(1, dtype=np.uint64)
    rows, _, length = tokens.shape
    units = np.empty(length - marks, dtype=np.int64)  # a mark and the key after it are one unit
    for row in range(rows):
        start(key, first + row, counter)
        same = below(counter, 2)
        document_key = below(counter, keys)
        targets[row] = same
        for document in range(2):
            if document == 1 and same == 0:
                document_key = (document_key + 1 + below(counter, keys - 1)) % keys
            units[:marks] = MARK
            unit = marks
            if balanced:
                # All symbols equally often; if the number is not divisible, the first symbols once more.
                for symbol in range(keys):
                    count = (length - marks + keys - 1 - symbol) // keys - (marks if symbol == document_key else 0)
                    units[unit : unit + count] = FIRST_SYMBOL + symbol
                    unit += count
            else:
                for place in range(marks, len(units)):
                    units[place] = FIRST_SYMBOL + below(counter, keys)
            shuffle(units, len(units), counter)
            place = 0
            for unit in range(len(units)):
                tokens[row, document, place] = units[unit]
                place += 1
                if units[unit] == MARK:
                    tokens[row, document, place] = FIRST_SYMBOL + document_key
                    place += 1
