"""Training of systems with retrieval: preparation, interrupted runs, and ranks."""

from dataclasses import replace

import pytest
import torch

from lra_bench.config.schema import CellConfig, Measure
from lra_bench.models.memory.knn_lm import KnnLM
from lra_bench.models.memory.spalm import Spalm
from lra_bench.runtime.hardware import Hardware
from lra_bench.training import loop, sampling
from lra_bench.training.checkpoint import Checkpoints
from lra_bench.training.evaluation import evaluate
from lra_bench.training.optimizer import Optimizer
from lra_bench.training.parallel import Group
from tests.support.model_cases import initial_model
from tests.support.toy_text import SPEC
from tests.training.test_stream_memory import CPU, RECIPE, documents

SHUFFLED = replace(RECIPE, order="shuffled")
ROWS = documents((120, 61, 17, 40))


def spalm():
    torch.manual_seed(0)
    return Spalm(
        network=initial_model(SPEC),
        another=lambda **changes: initial_model(SPEC, weights=1, **changes),
        spec=SPEC,
        keys=200,
        retriever_steps=3,
    )


def fit(folder, system, stop_after=None):
    def log(step, _):
        if step == stop_after:
            raise KeyboardInterrupt

    config = CellConfig(model={"label": "retrieval"}, train=SHUFFLED, measure=Measure(evaluation_batch_size=2))
    splits = {"train": ROWS, "validation": ROWS}
    return loop.train(system, splits, SPEC, config, CPU, Checkpoints(folder, 0), log)


def test_a_killed_run_resumes_bit_for_bit(tmp_path):
    whole, again = spalm(), spalm()
    expected = fit(tmp_path / "whole", whole)
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "cut", spalm(), stop_after=3)
    found = fit(tmp_path / "cut", again)
    assert found.state.curve == expected.state.curve and found.state.validations == expected.state.validations
    assert all(torch.equal(*pair) for pair in zip(whole.parameters(), again.parameters(), strict=True))
    assert whole.gate.weight.abs().max() > 0


@pytest.mark.parametrize(("world", "cap"), [(2, None), (1, 1)])
def test_ranks_and_micro_batches_find_the_same_neighbours(world, cap):
    batches = sampling.batches_of(ROWS, SHUFFLED, 0)
    found = []
    for groups, hardware in (
        ([Group()], CPU),
        ([Group(rank, world) for rank in range(world)], Hardware(torch.device("cpu"), "fp32", 1, False, cap, "cpu")),
    ):
        system = spalm().double()
        system.prepare(ROWS, True, lambda steps: None)
        optimizer = Optimizer(system, SHUFFLED, hardware)
        optimizer.clear()
        losses = [loop.forward_backward(system, batches(0), optimizer, hardware, None, group)[0] for group in groups]
        found.append([sum(losses), system.gate.weight.grad / len(groups)])
    for expected, shared in zip(*found, strict=True):
        torch.testing.assert_close(shared, expected, rtol=0, atol=1e-10)


def test_a_known_text_is_predicted_better_with_neighbours():
    """The datastore contains the evaluated text, so that the nearest key of each token has its target."""
    network = initial_model(SPEC)
    system = KnnLM(network=network, another=None, spec=SPEC, keys=10_000, neighbours=2)
    before = evaluate(system, ROWS, SPEC, CPU, 2, "Test")
    system.finish(ROWS, ROWS)
    assert system.chosen[0] == 0.9
    assert evaluate(system, ROWS, SPEC, CPU, 2, "Test").loss < before.loss / 2
