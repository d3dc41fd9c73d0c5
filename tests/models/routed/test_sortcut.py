"""SortCut: the kept blocks, their attention, and equality with full attention."""

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.routed import sorted_blocks as module
from tests.support.mixer_cases import dense_output, make, rows, run


def fix_order(monkeypatch, order):
    """Patch the soft permutation to be the permutation ``order`` of blocks for every sequence."""
    exact = torch.eye(len(order), dtype=torch.float64)[torch.tensor(order)]

    def sorting(scores, allowed, iterations):
        return exact.expand_as(scores) * (1 if allowed is None else allowed)

    monkeypatch.setattr(module, "sinkhorn", sorting)


def pair(**own):
    """Return a SortCut mixer and a transformer with the same projections."""
    mixer, full = make("sortcut", **own), make("transformer")
    full.load_state_dict({key: value for key, value in mixer.state_dict().items() if key in full.state_dict()})
    return mixer, full


def attention_to(full, x, keys):
    """Return the output of full attention of all tokens to the tokens ``keys``."""
    q, k, v = full.project(x)
    scores = q @ k[:, :, keys].mT * full.head_dim**-0.5
    return full.merge(scores.softmax(-1) @ v[:, :, keys])


@pytest.mark.parametrize("n", [24, 21])
def test_keeping_all_blocks_is_full_attention(n, monkeypatch):
    fix_order(monkeypatch, [2, 0, 1])
    mixer, full = pair(block=8, budget=3)
    x = rows(2, n)
    assert (run(mixer, x) - run(full, x)).abs().max() < 1e-12
    assert (run(mixer, x, [n, 19])[1, :19] - run(full, x, [n, 19])[1, :19]).abs().max() < 1e-12


@pytest.mark.parametrize(("budget", "kept"), [(1, [16, 24]), (2, [16, 24, 0, 8])])
def test_every_token_attends_only_to_the_kept_blocks(budget, kept, monkeypatch):
    fix_order(monkeypatch, [2, 0, 1])
    mixer, full = pair(block=8, budget=budget)
    x = rows(2, 24)
    keys = [j for a, b in zip(kept[::2], kept[1::2], strict=True) for j in range(a, b)]
    assert (run(mixer, x) - attention_to(full, x, keys)).abs().max() < 1e-12


@pytest.mark.parametrize(
    ("block", "budget", "n", "length"), [(8, 2, 61, 5), (8, 3, 61, 17), (4, 9, 30, 8), (1, 4, 9, 2)]
)
def test_short_sequences_have_fewer_blocks_than_the_budget(block, budget, n, length):
    mixer, x = make("sortcut", block=block, budget=budget), rows(2, n)
    lengths = [n, length]
    expected = dense_output(mixer, x, lengths)[0]
    found = run(mixer, x, lengths)
    assert (found[0] - expected[0]).abs().max() < 1e-10
    assert (found[1, :length] - expected[1, :length]).abs().max() < 1e-10
    assert (found[1, :length] - run(mixer, x[1:, :length])[0]).abs().max() < 1e-10


def test_sorting_layers_receive_gradients():
    mixer = make("sortcut", block=8, dropout=0.1)
    run(mixer, rows(2, 61), [61, 40]).square().sum().backward()
    for name in ("hidden.weight", "hidden.bias", "rows", "row_bias"):
        gradient = mixer.get_parameter(name).grad
        assert gradient.isfinite().all() and gradient.abs().max() > 0, name
    # Columns are normalised as well, so the kept rows depend on the scores of all blocks.
    assert (mixer.rows.grad.abs().amax(-1)[:, :8] > 0).all()


def test_gradients_match_the_definition():
    mixer, lengths, gradients = make("sortcut", block=8, budget=3), [30, 13], []
    for compute in (run, lambda *case: dense_output(*case)[0]):
        x = rows(2, 30).requires_grad_()
        y = compute(mixer, x, lengths)
        loss = y[0].square().sum() + y[1, :13].square().sum()
        gradients.append(torch.autograd.grad(loss, [x, *mixer.parameters()]))
    for actual, expected in zip(*gradients, strict=True):
        assert (actual - expected).abs().max() < 1e-9


def test_there_is_no_causal_form():
    with pytest.raises(UserError, match="no exact causal form"):
        make("sortcut", causal=True)


def test_invalid_options_are_rejected():
    for own in ({"budget": 0}, {"block": 0}, {"iterations": 0}, {"temperature": 0.0}, {"kv_heads": 1}):
        with pytest.raises(UserError, match=rf"model\.mixer\.{next(iter(own))}"):
            make("sortcut", **own)
