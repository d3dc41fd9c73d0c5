"""Generators of the tasks of MAD, compiled, as those in ``tasks/synthetic/drawing.py``.

Token ids are those of the authors plus 1, because id 0 is reserved for padding. Targets are ids of the authors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lra_bench.contracts import NOT_SCORED
from lra_bench.data.compiled import compiled
from lra_bench.data.splitmix import below, uniform

from ..synthetic.drawing import shuffle, start


@compiled
def draw_recalls(
    key: Any, first: int, keys: int, values: int, noise_symbols: int, noise: float, tokens: Any, targets: Any
) -> None:
    """Generate examples of ``MadRecall``: pairs of a key and its value, some of them replaced by noise.

    Args:
        key: Key of the stream.
        first: Number of the first example in the stream.
        keys: Number of different keys, which are the first symbols.
        values: Number of different values, which follow them.
        noise_symbols: Number of noise symbols, which follow the values.
        noise: Probability that a pair is replaced.
        tokens: Output, (R, N).
        targets: Output, (R, N). The values of keys that were shown before.
    """
    counter, value_of = np.empty(1, dtype=np.uint64), np.empty(keys, np.int64)
    seen = np.empty(keys, np.int64)
    rows, length = tokens.shape
    pairs = length // 2
    for row in range(rows):
        start(key, first + row, counter)
        shown = 0
        while shown == 0:
            targets[row], value_of[:] = NOT_SCORED, -1
            kept = below(counter, pairs)
            for pair in range(pairs):
                place, last = 2 * pair, pair == pairs - 1
                if not last and pair != kept and noise > 0 and uniform(counter) < noise:
                    tokens[row, place] = 1 + keys + values + below(counter, noise_symbols)
                    tokens[row, place + 1] = 1 + keys + values + below(counter, noise_symbols)
                    continue
                if last and shown == 0:
                    break  # all pairs are noise, which the last one cannot repeat
                name = seen[below(counter, shown)] if last else below(counter, keys)
                if value_of[name] < 0:
                    value_of[name] = keys + below(counter, values)
                    seen[shown] = name
                    shown += 1
                else:
                    targets[row, place] = value_of[name]
                tokens[row, place] = 1 + name
                tokens[row, place + 1] = 1 + value_of[name]


@compiled
def _motif(size: int, symbols: int, first_symbol: int, tokens: Any, place: int, counter: Any) -> int:
    """Write ``size`` different symbols to ``tokens`` (N,) from a place on, and return a code of them."""
    code = 0
    for number in range(size):
        repeated = True
        while repeated:
            symbol = 1 + first_symbol + below(counter, symbols)
            repeated = False
            for other in range(place, place + number):
                repeated = repeated or tokens[other] == symbol
        tokens[place + number] = symbol
        code = code * (first_symbol + symbols + 2) + symbol
    return code


@compiled
def draw_fuzzy(
    key: Any,
    first: int,
    keys: int,
    values: int,
    shortest: int,
    longest_key: int,
    longest_value: int,
    tokens: Any,
    targets: Any,
) -> None:
    """Generate examples of ``MadFuzzyRecall``: keys and values are motifs, sequences of different symbols.

    Args:
        key: Key of the stream.
        first: Number of the first example in the stream.
        keys: Number of symbols of keys, which are the first ones.
        values: Number of symbols of values, which follow them; the symbol after them is the filler.
        shortest: Number of symbols in the shortest keys.
        longest_key: Number of symbols in the longest keys.
        longest_value: Number of symbols in the longest values.
        tokens: Output, (R, N). Fillers, then pairs.
        targets: Output, (R, N). The values of keys that were shown before.
    """
    counter = np.empty(1, dtype=np.uint64)
    rows, length = tokens.shape
    codes, places, sizes = np.empty(length, np.int64), np.empty(length, np.int64), np.empty(length, np.int64)
    text, probe = np.empty(length, np.int64), np.empty(longest_key + longest_value, np.int64)
    is_scored = np.empty(length, np.bool_)
    for row in range(rows):
        start(key, first + row, counter)
        known, shown, used = -1, 0, 0
        while known < 0:  # drawn again if the probe is not among the pairs
            shown = used = 0
            is_scored[:] = False
            probe_key = shortest + below(counter, longest_key - shortest + 1)
            probe_value = 1 + below(counter, longest_value)
            probe_size = probe_key + probe_value
            probe_code = _motif(probe_key, keys, 0, probe, 0, counter)
            _motif(probe_value, values, keys, probe, probe_key, counter)
            probe_place = below(counter, length - 2 * probe_size)
            while used < length - probe_size - longest_key - longest_value:
                key_size = shortest + below(counter, longest_key - shortest + 1)
                value_size = 1 + below(counter, longest_value)
                if used >= probe_place and known < 0:
                    key_size, code = probe_key, probe_code
                    text[used : used + key_size] = probe[:key_size]
                else:
                    code = _motif(key_size, keys, 0, text, used, counter)
                used += key_size
                entry = 0
                while entry < shown and codes[entry] != code:
                    entry += 1
                if entry < shown:
                    value_size = sizes[entry]
                    text[used : used + value_size] = text[places[entry] : places[entry] + value_size]
                    is_scored[used : used + value_size] = True
                else:
                    if code == probe_code:
                        value_size, known = probe_value, entry
                        text[used : used + value_size] = probe[probe_key:probe_size]
                    else:
                        _motif(value_size, values, keys, text, used, counter)
                    codes[entry], places[entry], sizes[entry] = code, used, value_size
                    shown += 1
                used += value_size
        text[used : used + probe_size] = probe[:probe_size]
        is_scored[used + probe_key : used + probe_size] = True
        used += probe_size
        fillers = length - used
        tokens[row, :fillers], targets[row] = 1 + keys + values, NOT_SCORED
        for place in range(used):
            tokens[row, fillers + place] = text[place]
            if is_scored[place]:
                targets[row, fillers + place - 1] = text[place] - 1


@compiled
def draw_copies(key: Any, first: int, symbols: int, copied: int, tokens: Any, targets: Any) -> None:
    """Generate examples of ``MadCopy``: each blank stands before a random symbol; then a marker and blanks.

    Args:
        key: Key of the stream.
        first: Number of the first example in the stream.
        symbols: Number of symbols to copy; the next two are the blank and the marker.
        copied: Number of symbols in an example.
        tokens: Output, (R, N).
        targets: Output, (R, N). The symbols, at the last places.
    """
    counter, before = np.empty(1, dtype=np.uint64), np.empty(copied, np.int64)
    rows, length = tokens.shape
    for row in range(rows):
        start(key, first + row, counter)
        tokens[row], targets[row], before[:] = 1 + symbols, NOT_SCORED, 0
        for _ in range(length - 2 * copied - 1):
            before[below(counter, copied)] += 1
        place = -1
        for number in range(copied):
            symbol = below(counter, symbols)
            place += before[number] + 1
            tokens[row, place] = 1 + symbol
            targets[row, length - copied + number] = symbol
        tokens[row, length - copied - 1] = 2 + symbols


@compiled
def draw_symbols(key: Any, first: int, symbols: int, tokens: Any, targets: Any) -> None:
    """Generate examples of ``MadCompression``: random symbols and a marker, all of them targets.

    Args:
        key: Key of the stream.
        first: Number of the first example in the stream.
        symbols: Number of symbols; the next one is the marker.
        tokens: Output, (R, N).
        targets: Output, (R, N).
    """
    counter = np.empty(1, dtype=np.uint64)
    rows, length = tokens.shape
    for row in range(rows):
        start(key, first + row, counter)
        for place in range(length):
            symbol = below(counter, symbols) if place < length - 1 else symbols
            tokens[row, place], targets[row, place] = 1 + symbol, symbol


@compiled
def draw_map(key: Any, values: Any) -> None:
    """Fill ``values`` (V,) with a random permutation of 0 to V − 1."""
    counter = np.empty(1, dtype=np.uint64)
    start(key, 0, counter)
    for value in range(len(values)):
        values[value] = value
    shuffle(values, len(values), counter)


@compiled
def draw_known(key: Any, first: int, value_of: Any, marker: int, tokens: Any, targets: Any) -> None:
    """Generate examples of ``MadMemorisation``: random keys, each followed by a marker at which its value is scored.

    Args:
        key: Key of the stream.
        first: Number of the first example in the stream.
        value_of: Value of each key, (K,).
        marker: Symbol of the marker.
        tokens: Output, (R, N).
        targets: Output, (R, N).
    """
    counter = np.empty(1, dtype=np.uint64)
    rows, length = tokens.shape
    for row in range(rows):
        start(key, first + row, counter)
        targets[row], tokens[row] = NOT_SCORED, 1 + marker
        for place in range(0, length, 2):
            name = below(counter, len(value_of))
            tokens[row, place] = 1 + name
            targets[row, place + 1] = value_of[name]
