"""Oracle of selective state spaces in blocks, one position and one channel at a time."""

import torch

from lra_bench.models.state_space.b2s6 import B2S6
from tests.oracles.recurrent import gated_linear, reading_orders

SMALL = {"b2s6": {"blocks": 4, "states": 3}}


def blocks(mixer, x, seen):
    count, size = mixer.choice.shape
    rates = -mixer.log_decay.exp() + 1j * mixer.frequency
    write, bias = (torch.complex(each[..., 0], each[..., 1]) for each in (mixer.write, mixer.bias))
    y = mixer.skip * x
    for example, block, positions in reading_orders(mixer, x, seen, count):
        block_channels = range(block * size, (block + 1) * size)
        states = [torch.zeros_like(rates)] * size
        for position in positions:
            u = x[example, position, block * size : (block + 1) * size]
            for part, channel in enumerate(block_channels):
                step = torch.nn.functional.softplus(u @ mixer.choice[block] + mixer.step_bias[channel])
                kept = (step * rates).exp()
                input_weights = u.to(rates.dtype) @ write[block] + bias[channel]
                states[part] = kept * states[part] + (kept - 1) / rates * input_weights * u[part]
                y[example, position, channel] = (
                    y[example, position, channel] + ((u @ mixer.read[block]) * states[part].real).sum()
                )
    return gated_linear(mixer.output, y)


OUTPUTS = {B2S6: blocks}
