"""Time per token and state of memories on a long stream; ``make test-slow ARGS="tests/models/memory -s"`` prints."""

import time

import numpy as np
import pytest
import torch

from lra_bench.contracts import Batch
from lra_bench.evaluation.memory_lengths import state_bytes
from tests.support.model_cases import initial_model, task

LENGTHS = [1024 * 2**power for power in range(7)]
WINDOW = 512
SYSTEMS = {
    "transformer_xl": {"segment": 128, "memory": 512},
    "compressive": {"segment": 128, "memory": 256, "compressed": 256},
}


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("system", SYSTEMS)
def test_time_per_token_and_state_are_constant_once_the_memory_is_full(system):
    spec = task("language_modeling", "causal", classes=256, vocabulary_size=256, length=WINDOW)
    network = initial_model(spec, system, "transformer_xl", own=SYSTEMS[system], width=64, ff_width=128).eval()
    tokens = torch.randint(256, (1, 2048 + LENGTHS[-1]), generator=torch.Generator().manual_seed(0))
    memory, seconds, sizes = None, [], []
    with torch.inference_mode():
        for start in range(0, tokens.shape[1], WINDOW):
            part = tokens[:, start : start + WINDOW]
            began = time.process_time()
            memory = network(Batch(torch.tensor([WINDOW]), part, part), memory).memory
            seconds.append(time.process_time() - began)
            sizes.append(state_bytes(memory))
    filled = np.cumsum(seconds[2048 // WINDOW :])
    times = [filled[length // WINDOW - 1] for length in LENGTHS]
    exponent = np.polyfit(np.log(LENGTHS), np.log(times), 1)[0]
    for length, spent in zip(LENGTHS, times, strict=True):
        print(f"{system}: {length:,} tokens, {1e6 * spent / length:.0f} µs per token, {sizes[-1]:,} bytes")
    print(f"{system}: time grows as tokens^{exponent:.3f}")
    assert exponent <= 1.05
    assert len(set(sizes)) == 1
