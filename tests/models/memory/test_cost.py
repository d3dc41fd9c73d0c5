"""Time per token and state of memories on a long stream; ``make test-slow ARGS="tests/models/memory -s"`` prints."""

import time

import numpy as np
import pytest
import torch

from lra_bench.contracts import Batch
from lra_bench.measurements.memory_lengths import state_bytes
from tests.support.model_cases import initial_model, task

WINDOW = 512
FULL, LONG = 2048, 65536
SYSTEMS = {
    "transformer_xl": {"segment": 128, "memory": 512},
    "compressive": {"segment": 128, "memory": 256, "compressed": 256},
}


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("system", SYSTEMS)
def test_time_per_token_and_state_are_constant_once_the_memory_is_full(system):
    """One window after 2k and one after 64k tokens are timed in turn, since the speed of a machine may change."""
    spec = task("language_modeling", "causal", classes=256, vocabulary_size=256, length=WINDOW)
    network = initial_model(spec, system, "transformer_xl", own=SYSTEMS[system], width=64, ff_width=128).eval()
    tokens = torch.randint(256, (1, LONG), generator=torch.Generator().manual_seed(0))
    memories = {0: None}
    with torch.inference_mode():
        for start in range(0, LONG, WINDOW):
            part = tokens[:, start : start + WINDOW]
            memories[start + WINDOW] = network(Batch(torch.tensor([WINDOW]), part, part), memories[start]).memory
        seconds = {FULL: [], LONG: []}
        for _ in range(100):
            for length, spent in seconds.items():
                began = time.process_time()
                network(Batch(torch.tensor([WINDOW]), part, part), memories[length])
                spent.append(time.process_time() - began)
    early, late = (1e6 * np.array(spent) / WINDOW for spent in seconds.values())
    ratio = np.median(late / early)
    size = state_bytes(memories[LONG])
    print(
        f"{system}: {np.median(early):.0f} µs per token after {FULL:,} tokens, {np.median(late):.0f} µs after {LONG:,}"
    )
    print(f"{system}: median ratio {ratio:.3f}, state {size:,} bytes")
    assert ratio <= 1.05
    assert {state_bytes(memory) for length, memory in memories.items() if length >= FULL} == {size}
