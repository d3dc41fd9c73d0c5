"""Compiled CPU loops over time of ``decay_attention``, for several streams whose states stay in the cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from lra_bench.data.compiled import arithmetic

# A stream is a head of an example. Heads can have few features, so the innermost loops run over W streams, which are
# contiguous in buffers: (T, K or V, W) for T positions. Each of these loops writes to one array, since otherwise the
# compiler does not vectorise it.
#
# S streams are numbered by example and head. Arrays are q and k (B, N, H, K), v (B, N, H, V), decays (B, N, H, 1 or K)
# and strengths (B, N, H, 1), or (B, N, H, 0) without the delta rule; states are (K, V, S), and those before blocks of
# ``rows`` positions are kept (blocks, K, V, S).


@arithmetic
def load(source: Any, start: int, first: int, buffer: Any, count: int) -> None:
    """Copy ``count`` positions from ``start`` of the streams from ``first`` of ``source`` (B, N, H, D) to (T, D, W)."""
    heads = source.shape[2]
    for stream in range(buffer.shape[2]):
        example, head = (first + stream) // heads, (first + stream) % heads
        for step in range(count):
            for feature in range(buffer.shape[1]):
                buffer[step, feature, stream] = source[example, start + step, head, feature]


@arithmetic
def store(buffer: Any, start: int, first: int, target: Any, count: int) -> None:
    """Copy in the direction opposite to that of ``load``."""
    heads = target.shape[2]
    for stream in range(buffer.shape[2]):
        example, head = (first + stream) // heads, (first + stream) % heads
        for step in range(count):
            for feature in range(buffer.shape[1]):
                target[example, start + step, head, feature] = buffer[step, feature, stream]


@arithmetic
def copy_states(source: Any, source_first: int, target: Any, target_first: int, width: int) -> None:
    """Copy ``width`` streams of states (K, V, ·)."""
    for channel in range(source.shape[0]):
        for feature in range(source.shape[1]):
            row = source[channel, feature, source_first : source_first + width]
            copy = target[channel, feature, target_first : target_first + width]
            for stream in range(width):
                copy[stream] = row[stream]


@arithmetic
def advance(
    before: Any, after: Any, keys: Any, values: Any, decays: Any, strengths: Any, errors: Any, updates: Any
) -> None:
    """Compute the states ``after`` a position from those ``before`` it, (K, V, W).

    ``keys`` are (K, W), ``values`` (V, W), ``decays`` (1 or K, W) and ``strengths`` (0 or 1, W). With the delta rule,
    ``errors`` (V, W) receives the differences between values and what the decayed states store for the keys, and
    ``updates`` (V, W) the products of strengths and errors; otherwise ``updates`` receives the values.
    """
    width, per_channel = before.shape[2], decays.shape[0] > 1
    for feature in range(values.shape[0]):
        value, error, update = values[feature], errors[feature], updates[feature]
        if strengths.shape[0]:
            decay, strength = decays[0], strengths[0]
            for stream in range(width):
                error[stream] = 0
            for channel in range(keys.shape[0]):
                key, old = keys[channel], before[channel, feature]
                for stream in range(width):
                    error[stream] += key[stream] * old[stream]
            for stream in range(width):
                error[stream] = value[stream] - decay[stream] * error[stream]
            for stream in range(width):
                update[stream] = strength[stream] * error[stream]
        else:
            for stream in range(width):
                update[stream] = value[stream]
        for channel in range(keys.shape[0]):
            decay, key = decays[channel if per_channel else 0], keys[channel]
            old, new = before[channel, feature], after[channel, feature]
            for stream in range(width):
                new[stream] = decay[stream] * old[stream] + key[stream] * update[stream]


@arithmetic
def read_out(states: Any, queries: Any, outputs: Any) -> None:
    """Write the products of the transposed states (K, V, W) and queries (K, W) to ``outputs`` (V, W)."""
    for feature in range(outputs.shape[0]):
        output = outputs[feature]
        for stream in range(output.shape[0]):
            output[stream] = 0
        for channel in range(queries.shape[0]):
            query, state = queries[channel], states[channel, feature]
            for stream in range(output.shape[0]):
                output[stream] += query[stream] * state[stream]


@arithmetic
def forwards(
    q: Any, k: Any, v: Any, decays: Any, strengths: Any, kept: Any, out: Any, last: Any, rows: int, first: int,
    stop: int,
) -> None:  # fmt: skip
    """Compute outputs (B, N, H, V), last states and kept states of the streams ``first`` to ``stop``.

    The first block of ``kept`` contains the initial states.
    """
    length, width, dtype = q.shape[1], stop - first, q.dtype
    channels, features = q.shape[3], v.shape[3]
    queries, keys = np.empty((rows, channels, width), dtype), np.empty((rows, channels, width), dtype)
    values, outputs = np.empty((rows, features, width), dtype), np.empty((rows, features, width), dtype)
    decay, strength = (
        np.empty((rows, decays.shape[3], width), dtype),
        np.empty((rows, strengths.shape[3], width), dtype),
    )
    errors, updates = np.empty((features, width), dtype), np.empty((features, width), dtype)
    states = np.empty((2, channels, features, width), dtype)
    copy_states(kept[0], first, states[0], 0, width)
    for start in range(0, length, rows):
        count = min(rows, length - start)
        load(q, start, first, queries, count)
        load(k, start, first, keys, count)
        load(v, start, first, values, count)
        load(decays, start, first, decay, count)
        load(strengths, start, first, strength, count)
        if start:
            copy_states(states[start % 2], 0, kept[start // rows], first, width)
        for step in range(count):
            position = start + step
            after = states[(position + 1) % 2]
            advance(states[position % 2], after, keys[step], values[step], decay[step], strength[step], errors, updates)
            read_out(after, queries[step], outputs[step])
        store(outputs, start, first, out, count)
    copy_states(states[length % 2], 0, last, first, width)


@arithmetic
def propagate_back(
    before: Any, after: Any, queries: Any, keys: Any, decays: Any, strengths: Any, errors: Any, updates: Any,
    grad_outputs: Any, grad_states: Any, grad_queries: Any, grad_keys: Any, grad_values: Any, grad_decays: Any,
    grad_strengths: Any,
) -> None:  # fmt: skip
    """Compute the gradients of ``advance`` and ``read_out`` at one position.

    ``grad_states`` (K, V, W) holds the gradient that later positions pass to the states ``after`` this position, and is
    overwritten with that of the states ``before`` it. ``updates`` is overwritten. ``grad_decays`` receives the
    gradients with respect to logarithms of decays.
    """
    width, per_channel, delta = before.shape[2], decays.shape[0] > 1, strengths.shape[0] > 0
    grad_queries[:], grad_keys[:], grad_values[:], grad_decays[:], grad_strengths[:] = 0, 0, 0, 0, 0
    for feature in range(updates.shape[0]):
        update, error, grad_output, grad_value = (
            updates[feature],
            errors[feature],
            grad_outputs[feature],
            grad_values[feature],
        )
        for channel in range(queries.shape[0]):
            query, key, new, gradient = (
                queries[channel],
                keys[channel],
                after[channel, feature],
                grad_states[channel, feature],
            )
            grad_query, grad_key = grad_queries[channel], grad_keys[channel]
            for stream in range(width):
                gradient[stream] += query[stream] * grad_output[stream]
                grad_value[stream] += key[stream] * gradient[stream]
            for stream in range(width):
                grad_query[stream] += new[stream] * grad_output[stream]
            for stream in range(width):
                grad_key[stream] += gradient[stream] * update[stream]
        if delta:
            decay, strength, grad_strength = decays[0], strengths[0], grad_strengths[0]
            for stream in range(width):
                grad_strength[stream] += grad_value[stream] * error[stream]
            for stream in range(width):
                grad_value[stream] *= strength[stream]
            # What the gradient with respect to the keys loses per unit of the states before.
            for stream in range(width):
                update[stream] = grad_value[stream] * decay[stream]
        for channel in range(keys.shape[0]):
            row = channel if per_channel else 0
            decay, key, old, gradient = (
                decays[row],
                keys[channel],
                before[channel, feature],
                grad_states[channel, feature],
            )
            grad_key, grad_decay = grad_keys[channel], grad_decays[row]
            if delta:
                for stream in range(width):
                    grad_key[stream] -= update[stream] * old[stream]
                for stream in range(width):
                    gradient[stream] = decay[stream] * (gradient[stream] - key[stream] * grad_value[stream])
            else:
                for stream in range(width):
                    gradient[stream] *= decay[stream]
            for stream in range(width):
                grad_decay[stream] += gradient[stream] * old[stream]


@arithmetic
def backwards(
    q: Any, k: Any, v: Any, decays: Any, strengths: Any, kept: Any, grad_out: Any, grad_last: Any, grad_q: Any,
    grad_k: Any, grad_v: Any, grad_decays: Any, grad_strengths: Any, grad_state: Any, rows: int, first: int, stop: int,
) -> None:  # fmt: skip
    """Compute the gradients of ``forwards`` by a loop backwards in time, which recomputes the states of each block.

    ``grad_last`` and ``grad_state`` (K, V, S) are the gradients with respect to the last and the initial states, and
    ``grad_decays`` with respect to the logarithms of decays.
    """
    length, width, dtype = q.shape[1], stop - first, q.dtype
    channels, features = q.shape[3], v.shape[3]
    by_key, by_value = (rows, channels, width), (rows, features, width)
    by_decay, by_strength = (rows, decays.shape[3], width), (rows, strengths.shape[3], width)
    queries, keys, grad_queries, grad_keys = (
        np.empty(by_key, dtype), np.empty(by_key, dtype), np.empty(by_key, dtype), np.empty(by_key, dtype),
    )  # fmt: skip
    values, errors, updates, grad_outputs, grad_values = (
        np.empty(by_value, dtype), np.empty(by_value, dtype), np.empty(by_value, dtype), np.empty(by_value, dtype),
        np.empty(by_value, dtype),
    )  # fmt: skip
    decay, grad_decay = np.empty(by_decay, dtype), np.empty(by_decay, dtype)
    strength, grad_strength = np.empty(by_strength, dtype), np.empty(by_strength, dtype)
    states = np.empty((rows + 1, channels, features, width), dtype)
    grad_states = np.empty((channels, features, width), dtype)
    copy_states(grad_last, first, grad_states, 0, width)
    for block in range(kept.shape[0] - 1, -1, -1):
        start = block * rows
        count = min(rows, length - start)
        load(q, start, first, queries, count)
        load(k, start, first, keys, count)
        load(v, start, first, values, count)
        load(decays, start, first, decay, count)
        load(strengths, start, first, strength, count)
        load(grad_out, start, first, grad_outputs, count)
        copy_states(kept[block], first, states[0], 0, width)
        for step in range(count):
            advance(
                states[step], states[step + 1], keys[step], values[step], decay[step], strength[step], errors[step],
                updates[step],
            )  # fmt: skip
        for step in range(count - 1, -1, -1):
            propagate_back(
                states[step], states[step + 1], queries[step], keys[step], decay[step], strength[step], errors[step],
                updates[step], grad_outputs[step], grad_states, grad_queries[step], grad_keys[step], grad_values[step],
                grad_decay[step], grad_strength[step],
            )  # fmt: skip
        store(grad_queries, start, first, grad_q, count)
        store(grad_keys, start, first, grad_k, count)
        store(grad_values, start, first, grad_v, count)
        store(grad_decay, start, first, grad_decays, count)
        store(grad_strength, start, first, grad_strengths, count)
    copy_states(grad_states, 0, grad_state, first, width)
