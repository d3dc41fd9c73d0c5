"""Training and evaluation of systems with memory on streams of documents."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from lra_bench.config.schema import CellConfig, Measure, Train
from lra_bench.measurements.memory_lengths import MemoryLengths, remembering
from lra_bench.runtime.hardware import Hardware
from lra_bench.training import loop, sampling
from lra_bench.training.checkpoint import Checkpoints
from lra_bench.training.evaluation import evaluate
from lra_bench.training.optimizer import Optimizer
from lra_bench.training.parallel import Group
from tests.support.measuring import section as section_of
from tests.support.model_cases import initial_model, model, randomise
from tests.support.toy_text import SPEC, rows_of

CPU = Hardware(torch.device("cpu"), "fp32", 1, False, None, "cpu")
RECIPE = Train(steps=6, batch_size=4, evaluate_every=3, order="stream", window=16, lr=1e-2, warmup_steps=2)
SYSTEMS = ("transformer_xl", "compressive", "memorizing")
SMALL = {
    "transformer_xl": {"segment": 8, "memory": 12},
    "compressive": {"segment": 8, "memory": 6, "compressed": 4},
    "memorizing": {"segment": 8, "memory": 40, "cache": 8, "neighbours": 4},
}


def documents(lengths=(120, 61, 17, 40)):
    generator = np.random.default_rng(0)
    return rows_of([generator.integers(0, 256, length).tolist() for length in lengths])


def network(system="transformer_xl", **own):
    return initial_model(SPEC, system, "transformer_xl", own={**SMALL.get(system, {}), **own})


def fit(folder, trained, rows, stop_after=None):
    def log(step, _):
        if step == stop_after:
            raise KeyboardInterrupt

    config = CellConfig(model={"label": "memory"}, train=RECIPE, measure=Measure(evaluation_batch_size=2))
    splits = {"train": rows, "validation": rows}
    return loop.train(trained, splits, SPEC, config, CPU, Checkpoints(folder, 0), log)


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_run_that_is_killed_inside_a_document_resumes_bit_for_bit(tmp_path, system):
    rows = documents()
    whole, again = network(system), network(system)
    expected = fit(tmp_path / "whole", whole, rows)
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "cut", network(system), rows, stop_after=3)
    found = fit(tmp_path / "cut", again, rows)
    assert found.state.curve == expected.state.curve and found.state.validations == expected.state.validations
    assert all(torch.equal(*pair) for pair in zip(whole.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize(
    ("world", "cap", "system"), [(3, None, "transformer_xl"), (1, 1, "transformer_xl"), (2, 1, "compressive")]
)
def test_ranks_and_micro_batches_with_their_rows_of_the_memory_add_up(world, cap, system):
    """Documents end at different steps, so that the rows of a batch have read different numbers of tokens."""
    batches = sampling.batches_of(documents((100, 33, 17, 50, 9, 61)), RECIPE, 0)
    machine = Hardware(torch.device("cpu"), "fp32", 1, False, cap, "cpu")
    found = []
    for groups in ([Group()], [Group(rank, world) for rank in range(world)]):
        trained = network(system).double()
        hardware = CPU if len(groups) == 1 and groups[0] == Group() and not found else machine
        optimizer = Optimizer(trained, RECIPE, hardware)
        memories, losses = [None] * len(groups), []
        for step in range(5):
            optimizer.clear()
            results = [
                loop.forward_backward(trained, batches(step), optimizer, hardware, memory, group)
                for memory, group in zip(memories, groups, strict=True)
            ]
            memories = [memory for _, memory, _ in results]
            losses.append(sum(loss for loss, _, _ in results))
        rows = torch.cat([memory["layers"][1]["states"] for memory in memories])
        gradients = [parameter.grad / len(groups) for parameter in trained.parameters() if parameter.grad is not None]
        found.append([torch.stack(losses), rows, *gradients])
    for expected, shared in zip(*found, strict=True):
        torch.testing.assert_close(shared, expected, rtol=0, atol=1e-10)


def test_documents_are_scored_as_if_read_in_one_pass():
    """Windows of 64 tokens with an unlimited memory have the losses of full attention to the whole document."""
    rows = documents((300, 61, 150, 64, 129))
    remembers = randomise(model(SPEC, "transformer_xl", "transformer_xl", own={"segment": 16, "memory": 10_000}))
    full = randomise(model(SPEC, "transformer", "transformer_xl"))
    full.load_state_dict(remembers.state_dict())
    for batch_size in (1, 2, 8):
        result = evaluate(remembers, rows, SPEC, CPU, batch_size, "test", stream=True)
        losses = []
        for document in range(len(rows.lengths)):
            batch = rows.batch([document], multiple=1)
            with torch.no_grad():
                of_tokens = nn.functional.cross_entropy(
                    full(batch).logits[0, :-1], batch.targets[0, :-1], reduction="none"
                )
            losses += [part.sum().item() for part in of_tokens.split(SPEC.train_length)]
        np.testing.assert_allclose(result.row_loss, losses, rtol=1e-9)
        assert result.n == sum(length - 1 for length in rows.lengths.tolist())
    # Models without memory are scored as without a stream.
    alone, in_order = (evaluate(full, rows, SPEC, CPU, 3, "test", stream=stream).row_loss for stream in (False, True))
    np.testing.assert_allclose(alone, in_order, rtol=1e-9)


def memory(model, rows, lengths):
    task = SimpleNamespace(spec=SPEC)
    found = {"test": rows}
    return section_of(MemoryLengths, task, model, rows=found, hardware=CPU, batch_size=4, memory_lengths=lengths)


def test_memory_lengths_are_scored_on_the_same_windows_and_restored():
    rows = documents((400, 129))
    trained = randomise(model(SPEC, "transformer_xl", "transformer_xl", own={"segment": 64, "memory": 12}))
    section = memory(trained, rows, [128, 0, 12])
    assert [module.memory_length for module in remembering(trained)] == [12, 12]
    assert [point["memory_length"] for point in section["points"]] == [0, 12, 128]
    scores = [point["score"] for point in section["points"]]
    # A segment is a window here, so that without memory the result is that of separate windows.
    assert scores[0] == pytest.approx(evaluate(trained, rows, SPEC, CPU, 3, "test").score, rel=1e-12)
    assert scores[1] == pytest.approx(evaluate(trained, rows, SPEC, CPU, 3, "test", stream=True).score, rel=1e-12)
    assert len(set(scores)) == 3 and {point["n"] for point in section["points"]} == {527}
    # Each of two layers stores memory + segment - 1 states of 16 numbers in double precision, and two counts.
    sizes = [2 * ((length + 63) * 16 * 8 + 8) + 8 for length in (0, 12, 128)]
    assert [point["state_bytes"] for point in section["points"]] == sizes
    assert section["trained_length"] == 12


def test_memory_lengths_of_other_systems_are_not_measured():
    assert memory(model(SPEC, "gru", "none"), documents(), [0, 8]) is None
    assert memory(network(), documents(), []) is None


def test_the_memory_of_the_compressive_transformer_keeps_its_proportions():
    mixer = network("compressive").mixers[0]
    for length, states, slots in ((0, 0, 0), (10, 6, 4), (100, 60, 40), (10, 6, 4)):
        mixer.memory_length = length
        assert (mixer.states, mixer.compressed) == (states, slots)
