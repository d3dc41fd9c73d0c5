"""State spaces of single channels, step by step."""

import torch

from lra_bench.models.state_space.s4d import S4D

from .recurrent import orders


def diagonal(mixer):
    """exp(Λ Δ), (exp(Λ Δ) − 1) / Λ and C of each direction, for each channel."""
    pole = -mixer.log_decay.exp() + 1j * mixer.frequency
    factors = (pole * mixer.log_step.exp()[:, None]).exp()
    return factors, (factors - 1) / pole, torch.complex(mixer.readout[..., 0], mixer.readout[..., 1])


def channels(discrete):
    """Both directions, the second without the token itself."""

    def read(mixer, x, seen):
        factors, added, readout = discrete(mixer)
        y = x * mixer.skip
        for row, part, places in orders(mixer, x, seen, len(readout)):
            state = torch.zeros_like(factors)
            for place in places:
                before = state
                state = factors * state + added * x[row, place, :, None]
                now = before if part else state
                y[row, place] = y[row, place] + 2 * (readout[part] * now).sum(-1).real
        a, b = mixer.output(torch.nn.functional.gelu(y)).chunk(2, -1)
        return a * b.sigmoid()

    return read


OUTPUTS = {S4D: channels(diagonal)}
