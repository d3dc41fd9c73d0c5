"""Examples of self-pretraining: hidden positions and targets, compared with the functions of the authors."""

import numpy as np
import pytest
import torch
from scipy.stats import binom

from lra_bench.config.pretraining import phase_spec
from lra_bench.contracts import NOT_SCORED
from lra_bench.data.batches import evaluation_batches
from lra_bench.data.inputs import InputBatches, InputRows, hidden_positions
from tests.support.input_rows import PAIRS, TOKENS, VALUES, hidden_tokens, rows


def test_hidden_positions_are_a_pure_function_with_the_given_rate():
    total = 0
    for row in range(400):
        first = hidden_positions(5, 2, row, 50, 0.15)
        assert (first == hidden_positions(5, 2, row, 50, 0.15)).all()
        total += int(first.sum())
    low, high = binom.interval(1 - 1e-6, 400 * 50, 0.15)
    assert low <= total <= high
    others = [hidden_positions(*key, 50, 0.15) for key in ((6, 2, 7), (5, 3, 7), (5, 2, 8), (5, -1, 7))]
    assert all((hidden_positions(5, 2, 7, 50, 0.15) != other).any() for other in others)


@pytest.mark.parametrize(("length", "probability", "span"), [(40, 0.5, 4), (40, 0.99, 4), (23, 0.3, 5), (3, 0.5, 4)])
def test_hidden_spans_have_their_length_and_do_not_overlap(length, probability, span):
    starts = set()
    for step in range(200):
        hidden = hidden_positions(0, step, 0, length, probability, span)
        assert len(hidden) == length and hidden.sum() == int(length * probability / span) * span
        runs = "".join("1" if each else "0" for each in hidden).split("0")
        assert all(len(run) % span == 0 for run in runs)
        starts.add(int(hidden.argmax()))
    assert probability > 0.9 or not hidden.any() or len(starts) > 3


@pytest.mark.parametrize("spec", [TOKENS, VALUES])
def test_masks_and_targets_are_those_of_the_authors_and_padding_is_never_hidden(spec):
    own, plain = hidden_tokens(spec), rows(spec)
    batch, original = own.batch(np.arange(20), step=4), plain.batch(np.arange(20))
    hidden = torch.zeros(20, 12, dtype=torch.bool)
    for row, length in enumerate(plain.lengths.tolist()):
        hidden[row, :length] = torch.from_numpy(hidden_positions(0, 4, row, length, 0.3))
    assert (batch.lengths == original.lengths).all() and hidden.any()
    if spec.channels:
        assert torch.equal(batch.values[..., -1], hidden.float())
        assert torch.equal(batch.values[..., :-1], torch.where(hidden[..., None], 0.0, original.values))
        assert torch.equal(batch.targets[hidden], original.values[hidden]) and batch.targets[~hidden].isnan().all()
    else:
        assert torch.equal(batch.tokens, torch.where(hidden, spec.vocabulary_size, original.tokens))
        assert torch.equal(batch.targets, torch.where(hidden, original.tokens, NOT_SCORED))


def test_evaluated_positions_are_the_same_in_every_batch_and_those_of_training_change_with_the_step():
    own = hidden_tokens()
    (alone,) = [own.batch([7]).tokens[0]]
    again = next(batch.tokens[indices == 7][0] for indices, batch in evaluation_batches(own, 9) if 7 in indices)
    assert torch.equal(alone, again)
    batches = InputBatches(own, 20, seed=0)
    first, second = batches(0), batches(1)
    assert torch.equal(first.tokens, InputBatches(own, 20, seed=0)(0).tokens)
    order = [batch.extra["row"].argsort() for batch in (first, second)]
    assert not torch.equal(first.tokens[order[0]], second.tokens[order[1]])


def test_both_documents_of_a_pair_are_rows():
    own, pairs = InputRows(rows(PAIRS), phase_spec(PAIRS), None), rows(PAIRS)
    assert len(own) == 40
    original = pairs.batch(np.arange(20))
    assert torch.equal(own.batch(np.arange(40)).tokens, original.tokens.flatten(0, 1))
    assert torch.equal(own.batch(np.arange(40)).lengths, original.lengths.flatten())
    assert len(InputRows(rows(PAIRS), phase_spec(PAIRS), None, count=3)) == 6


@pytest.mark.parametrize("spec", [TOKENS, VALUES])
def test_the_target_of_the_causal_objective_is_the_next_input(spec):
    own, plain = InputRows(rows(spec), phase_spec(spec), None), rows(spec).batch(np.arange(20))
    batch = own.batch(np.arange(20))
    assert torch.equal(batch.inputs, plain.inputs)
    for row, length in enumerate(plain.lengths.tolist()):
        assert torch.equal(batch.targets[row, : length - 1], plain.inputs[row, 1:length])
        rest = batch.targets[row, length - 1 :]
        assert rest.isnan().all() if spec.channels else (rest == NOT_SCORED).all()
