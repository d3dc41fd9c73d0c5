"""Synthesizers: scores computed from single tokens or no input, and their mixtures with query-key scores."""

import pytest
import torch

from lra_bench.contracts import UserError
from tests.support.mixer_cases import NODES, context, dense_output, make, rows, run
from tests.support.storage import largest_storage

FORMS = [name for name in NODES if name.startswith("synthesizer_")]
every_form = pytest.mark.parametrize("form", FORMS)
synthetic = {
    "synthesizer_dense": ("rows", "row_bias"),
    "synthesizer_random": ("scores",),
    "synthesizer_random_fixed": ("scores",),
    "synthesizer_factorised_dense": ("coarse", "coarse_bias"),
    "synthesizer_factorised_random": ("left",),
}


def as_transformer(mixer):
    """Return a transformer with the projections of ``mixer``."""
    full = make("transformer", causal=mixer.causal)
    full.load_state_dict({key: value for key, value in mixer.state_dict().items() if key in full.state_dict()})
    return full


def with_zero_scores(mixer, form):
    """Set the synthetic scores of ``mixer`` to zero and return it."""
    with torch.no_grad():
        for name in synthetic[form]:
            getattr(mixer, name).zero_()
    return mixer


@every_form
@pytest.mark.parametrize("mixture", ["plus", "plus_alpha"])
@pytest.mark.parametrize("causal", [False, True])
def test_outputs_and_gradients_of_mixtures_match_the_definition(form, mixture, causal):
    mixer, x, lengths = make(form, causal=causal, mixture=mixture), rows(2, 61), [61, 30]
    gradients = []
    for compute in (run, lambda *case: dense_output(*case)[0]):
        y = context(61, lengths).padding.zero(compute(mixer, x, lengths))
        gradients.append((y, *torch.autograd.grad(y.square().sum(), list(mixer.parameters()))))
    for actual, expected in zip(*gradients, strict=True):
        assert (actual - expected).abs().max() < 1e-9
        assert expected.abs().max() > 0


@every_form
def test_plus_zero_scores_is_a_transformer(form):
    mixer, x = with_zero_scores(make(form, mixture="plus"), form), rows(2, 40)
    assert (run(mixer, x, [40, 9])[:, :9] - run(as_transformer(mixer), x, [40, 9])[:, :9]).abs().max() < 1e-10


@every_form
def test_alpha_interpolates_between_both_scores(form):
    mixer, x = make(form, mixture="plus_alpha"), rows(2, 40)
    alone = make(form)
    alone.load_state_dict({k: v for k, v in mixer.state_dict().items() if k in alone.state_dict()})
    for value, limit in ((-60.0, as_transformer(mixer)), (60.0, alone)):
        torch.nn.init.constant_(mixer.balance, value)
        assert (run(mixer, x) - run(limit, x)).abs().max() < 1e-10


@pytest.mark.parametrize("form", ["synthesizer_dense", "synthesizer_factorised_dense"])
def test_scores_of_a_token_do_not_depend_on_other_tokens(form):
    mixer, x = make(form), rows(1, 30)
    other = torch.cat((x[:, :10], rows(1, 20, seed=1)), 1)
    _, weights = dense_output(mixer, x)
    _, changed = dense_output(mixer, other)
    assert torch.equal(weights[:, :, :10], changed[:, :, :10])
    assert not torch.equal(weights[:, :, 10:], changed[:, :, 10:])


@pytest.mark.parametrize("form", ["synthesizer_random", "synthesizer_random_fixed", "synthesizer_factorised_random"])
def test_input_independent_weights_make_a_linear_map(form):
    mixer, x, y = make(form), rows(2, 30), rows(2, 30, seed=1)
    zero = run(mixer, 0 * x)
    assert (run(mixer, x + y) - run(mixer, x) - run(mixer, y) + zero).abs().max() < 1e-10


@pytest.mark.parametrize("padded", [False, True])
def test_random_scores_are_stored_once_for_the_batch(padded):
    n, sizes = 128, []
    for batch in (1, 8):
        mixer, x = make("synthesizer_random", dropout=0.1), rows(batch, n).requires_grad_()
        sizes.append(largest_storage(lambda: run(mixer, x, [n // 2] * batch if padded else None)))  # noqa: B023
    assert sizes[0] == sizes[1] == 2 * n * n


def test_fixed_scores_depend_on_the_seed_and_are_not_parameters():
    fixed, other = make("synthesizer_random_fixed"), make("synthesizer_random_fixed", seed=1)
    assert "scores" in dict(fixed.named_buffers()) and "scores" not in dict(fixed.named_parameters())
    assert torch.equal(fixed.scores, make("synthesizer_random_fixed", weights=5).scores)
    assert not torch.equal(fixed.scores, other.scores)


@pytest.mark.parametrize("most", [1, 2, 5, 63, 64, 65, 1000])
def test_short_vectors_cover_the_maximum_length(most):
    coarse, fine = make("synthesizer_factorised_dense", max_length=most).sizes
    assert coarse * fine >= most > (coarse - 1) * fine


@every_form
def test_alone_has_no_queries_and_keys(form):
    assert not any(key.startswith(("query", "key")) for key in make(form).state_dict())


def test_invalid_options_are_rejected():
    for form, own in (
        ("synthesizer_dense", {"mixture": "minus"}),
        ("synthesizer_dense", {"kv_heads": 1}),
        ("synthesizer_factorised_random", {"rank": 0}),
    ):
        with pytest.raises(UserError, match=rf"model\.mixer\.{next(iter(own))}"):
            make(form, **own)
