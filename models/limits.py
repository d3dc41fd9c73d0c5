"""Limits of a network: the directions and lengths that its mixers support."""

from __future__ import annotations

from collections.abc import Sequence

from lra_bench.contracts import Capability, TaskSpec

from .mixer import Mixer


def runs_causally(spec: TaskSpec, capability: Capability) -> bool:
    """Return whether the mixer runs causally if ``backbone.causal`` is not set.

    If the mixer does not support the direction of the task, the result is the direction that it supports, and
    ``SequenceModel.supports`` returns the reason.
    """
    causal_task = spec.direction == "causal"
    return not capability.bidirectional or (causal_task and capability.causal == "exact")


def length_refusal(mixers: Sequence[Mixer], limit: int, length: int) -> str | None:
    """Return the reason why a mixer does not support ``length`` tokens if ``backbone.max_length`` is ``limit``."""
    option = f"backbone.max_length={limit}"
    advice = f"set backbone.max_length={length} or choose a mixer without this limit (lra-bench list models)"
    for mixer in mixers:
        name, supported = type(mixer).__name__, mixer.spec.length
        if supported == "maximum" and length > limit:
            return f"{option}: {name} takes at most {limit} tokens, {length} were requested; {advice}"
        if supported == "fixed" and length != limit:
            return f"{option}: {name} takes exactly {limit} tokens, {length} were requested; {advice}"
    return None


def restricts_from(mixers: Sequence[Mixer], with_cls: bool) -> int | None:
    """Return the smallest length in tokens at which a mixer restricts what a token can attend to.

    0 and None as in ``Mixer.restricts_from``; the result is None if all mixers return None. ``with_cls`` tells whether
    the network has a CLS row, which the result does not count.
    """
    lengths = [_in_tokens(mixer, with_cls) for mixer in mixers]
    return min((length for length in lengths if length is not None), default=None)


def _in_tokens(mixer: Mixer, with_cls: bool) -> int | None:
    """Return ``restricts_from`` of the mixer without the CLS row."""
    length = mixer.restricts_from()
    return length - 1 if length and with_cls and not mixer.separates_cls else length
