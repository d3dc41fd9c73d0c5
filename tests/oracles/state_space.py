"""Oracles of state spaces with a state per channel, step by step."""

import torch

from lra_bench.models.state_space.dss import DSS
from lra_bench.models.state_space.s4 import S4
from lra_bench.models.state_space.s4d import S4D
from tests.oracles.convolution import by_lags
from tests.oracles.recurrent import reading_orders


def diagonal(mixer):
    """Return h ↦ exp(Λ Δ) h, B (exp(Λ Δ) − 1) / Λ, and C of each direction, for each channel."""
    pole = -mixer.log_decay.exp() + 1j * mixer.frequency
    factors = (pole * mixer.log_step.exp()[:, None]).exp()
    added = (factors - 1) / pole
    if mixer.input is not None:
        added = added * torch.view_as_complex(mixer.input)
    return (lambda h: factors * h), added, torch.view_as_complex(mixer.readout)


def with_one_rank(mixer):
    """Return the same for Λ − p p*, as full matrices of all states and their conjugates; C reads the first half."""
    pole = -mixer.log_decay.exp() + 1j * mixer.frequency
    p, b = torch.view_as_complex(mixer.low_rank), torch.view_as_complex(mixer.input)
    pole, p, b = (torch.cat((each, each.conj()), -1).expand(mixer.width, -1) for each in (pole, p, b))
    matrix = torch.diag_embed(pole) - p[:, :, None] * p[:, None].conj()
    half, identity = matrix * mixer.log_step.exp()[:, None, None] / 2, torch.eye(pole.shape[-1])
    transition = torch.linalg.solve(identity - half, identity + half)
    added = torch.linalg.solve(identity - half, mixer.log_step.exp()[:, None] * b)
    readout = torch.view_as_complex(mixer.readout)
    return (lambda h: (transition @ h[..., None])[..., 0]), added, torch.cat((readout, 0 * readout), -1)


def channels(discrete):
    """Return an oracle of both directions, the second of which excludes the token itself."""

    def read(mixer, x, seen):
        step, added, readout = discrete(mixer)
        y = x * mixer.skip
        for example, part, positions in reading_orders(mixer, x, seen, len(readout)):
            state = torch.zeros_like(added).expand(mixer.width, -1)
            for position in positions:
                before = state
                state = step(state) + added * x[example, position, :, None]
                read_state = before if part else state
                y[example, position] = y[example, position] + 2 * (readout[part] * read_state).sum(-1).real
        a, b = mixer.output(torch.nn.functional.gelu(y)).chunk(2, -1)
        return a * b.sigmoid()

    return read


def normalised(mixer, n):
    """Return kernels lag by lag: a softmax over the longest length, or the integral of a mode over a step."""
    decay = mixer.decay.exp() if mixer.kernel == "exp" else mixer.decay
    pole = -decay + 1j * mixer.frequency
    first, last = mixer.log_step.exp()[:, 0, None], mixer.log_step.exp()[:, -1, None]
    rate = -decay * first + 1j * mixer.frequency * last
    if mixer.kernel == "exp":
        mode_values = (rate.exp() - 1) * (torch.arange(n)[:, None, None] * rate).exp() / pole
    else:
        powers = torch.arange(mixer.max_length)[:, None, None] * rate
        powers = (powers - powers.real.amax(0)).exp()
        mode_values = torch.zeros(n, *powers.shape[1:], dtype=powers.dtype)
        # One step of the geometric series; 1e-7 keeps the quotient finite.
        first_step = torch.where(rate.real > 0, -rate, rate).exp() - 1
        sums = powers.sum(0) * first_step * pole
        total = first_step * sums.conj() / (sums.abs() ** 2 + 1e-7)
        mode_values[: mixer.max_length] = (powers * total)[:n]
    return torch.einsum("dep,tep->det", torch.view_as_complex(mixer.readout), mode_values).real


OUTPUTS = {S4D: channels(diagonal), S4: channels(with_one_rank), DSS: by_lags(normalised)}
