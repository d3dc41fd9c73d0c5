"""The loops of ``gated_scan`` on CPU, compiled: some rows and channels, which stay in the cache."""

from __future__ import annotations

from typing import Any

from lra_bench.data.compiled import arithmetic

# Gates and candidates stand side by side, (B, N, 2 C), those of a block in (T, W). The loops over channels are
# innermost and write to one array each: else the compiler does not know that it may compute several at once.


@arithmetic
def magnitudes(gates: Any, row: int, start: int, first: int, out: Any) -> None:
    """out = −|gates|, whose exponentials are never above one."""
    for step in range(out.shape[0]):
        own, negative = gates[row, start + step, first : first + out.shape[1]], out[step]
        for channel in range(out.shape[1]):
            negative[channel] = -abs(own[channel])


@arithmetic
def openings(gates: Any, row: int, start: int, first: int, values: Any, closed: Any) -> None:
    """values = σ(gates) in place of exp(−|gates|), and closed = σ(−gates)."""
    one = values.dtype.type(1)
    for step in range(values.shape[0]):
        own, value, rest = gates[row, start + step, first : first + values.shape[1]], values[step], closed[step]
        for channel in range(values.shape[1]):
            small = value[channel]
            rest[channel] = (small if own[channel] >= 0 else one) / (one + small)
        for channel in range(values.shape[1]):
            small = value[channel]
            value[channel] = (one if own[channel] >= 0 else small) / (one + small)


@arithmetic
def candidates(gates: Any, row: int, start: int, first: int, values: Any) -> None:
    """values = gates + 1/2 where these are not negative and σ(gates) elsewhere, in place of exp(−|gates|)."""
    one, half = values.dtype.type(1), values.dtype.type(0.5)
    for step in range(values.shape[0]):
        own, value = gates[row, start + step, first : first + values.shape[1]], values[step]
        for channel in range(values.shape[1]):
            given, small = own[channel], value[channel]
            value[channel] = given + half if given >= 0 else small / (one + small)


@arithmetic
def forwards(kept: Any, added: Any, wanted: Any, state: Any, out: Any, row: int, start: int, first: int) -> None:
    """out_t = kept_t out_(t−1) + added_t wanted_t, with ``state`` (W,) before, which becomes the last."""
    for step in range(kept.shape[0]):
        keep, add, want = kept[step], added[step], wanted[step]
        now = out[row, start + step, first : first + kept.shape[1]]
        for channel in range(kept.shape[1]):
            state[channel] = keep[channel] * state[channel] + add[channel] * want[channel]
        for channel in range(kept.shape[1]):
            now[channel] = state[channel]


@arithmetic
def backwards(
    kept: Any, added: Any, wanted: Any, later: Any, state: Any, out: Any, gates: Any, gradient: Any, by_gates: Any,
    row: int, start: int, first: int,
) -> None:  # fmt: skip
    """Against time: ``later`` (W,), the gradient that comes from behind the last step, becomes that by ``state``.

    ``state`` (B, C) is that before the first row of all.
    """
    one = kept.dtype.type(1)
    width, channels = kept.shape[1], out.shape[2]
    for back in range(1, kept.shape[0] + 1):
        step = kept.shape[0] - back
        at = start + step
        keep, add, want = kept[step], added[step], wanted[step]
        by_now, given = gradient[row, at, first : first + width], gates[row, at, channels + first :]
        before = out[row, at - 1, first : first + width] if at else state[row, first : first + width]
        by_gate, by_want = by_gates[row, at, first:], by_gates[row, at, channels + first :]
        for channel in range(width):
            later[channel] += by_now[channel]
        for channel in range(width):
            by_gate[channel] = later[channel] * (want[channel] - before[channel]) * add[channel] * keep[channel]
        for channel in range(width):
            value = want[channel]
            slope = one if given[channel] >= 0 else value * (one - value)
            by_want[channel] = later[channel] * add[channel] * slope
        for channel in range(width):
            later[channel] *= keep[channel]
