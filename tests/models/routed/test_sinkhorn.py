"""Sinkhorn attention: the soft permutation, what it brings, and where it is full attention."""

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.kernels.sinkhorn import sinkhorn
from lra_bench.models.routed import sorted_blocks as module
from tests.support.mixer_cases import make, rows, run

FORMS = ["sinkhorn", "sinkhorn_bilinear"]


def scores(count, seed=0):
    return torch.randn(2, 3, count, count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class TestNormalisation:
    @pytest.mark.parametrize("count", [1, 2, 9])
    def test_twenty_iterations_make_it_doubly_stochastic(self, count):
        shares = sinkhorn(scores(count), torch.ones(count, count, dtype=torch.bool), 20)
        assert (shares.sum(-1) - 1).abs().max() < 1e-4
        assert (shares.sum(-2) - 1).abs().max() < 1e-12

    def test_more_iterations_come_closer(self):
        everything = torch.ones(9, 9, dtype=torch.bool)
        errors = [(sinkhorn(scores(9), everything, count).sum(-1) - 1).abs().max().item() for count in (1, 5, 20)]
        assert errors[0] > 10 * errors[1] > 100 * errors[2]

    def test_what_is_not_allowed_neither_comes_nor_counts(self):
        inner, allowed = scores(4), torch.zeros(7, 7, dtype=torch.bool)
        allowed[:4, :4] = True
        wide = scores(7, seed=1)
        wide[..., :4, :4] = inner
        wide.requires_grad_()
        shares = sinkhorn(wide, allowed, 6)
        assert (shares[..., :4, :4] - sinkhorn(inner, allowed[:4, :4], 6)).abs().max() < 1e-12
        assert shares.masked_select(~allowed).abs().max() == 0
        (gradient,) = torch.autograd.grad(shares.square().sum(), wide)
        assert gradient.isfinite().all() and gradient[..., 4:, :].abs().max() == 0

    def test_small_temperature_makes_it_hard(self):
        order = torch.randperm(6, generator=torch.Generator().manual_seed(0))
        wanted = torch.eye(6, dtype=torch.float64)[order]
        shares = sinkhorn((wanted + 0.1 * scores(6)[0, 0]) / 0.01, torch.ones(6, 6, dtype=torch.bool), 20)
        assert (shares - wanted).abs().max() < 1e-6


def sorted_by(monkeypatch, order):
    """Let every row be sorted by this order of blocks."""
    exact = torch.eye(len(order), dtype=torch.float64)[torch.tensor(order)]
    monkeypatch.setattr(module, "sinkhorn", lambda scores, allowed, iterations: exact.expand_as(scores))


@pytest.mark.parametrize("form", FORMS)
class TestAttention:
    def test_blocks_that_stay_see_themselves_alone(self, form, monkeypatch):
        sorted_by(monkeypatch, [0, 1, 2])
        mixer, full, x = make(form, block=8), make("transformer"), rows(2, 24)
        full.load_state_dict({k: v for k, v in mixer.state_dict().items() if k in full.state_dict()})
        y = torch.cat([run(full, part) for part in x.split(8, 1)], 1)
        assert (run(mixer, x) - y).abs().max() < 1e-12

    def test_a_block_sees_what_is_sorted_to_it(self, form, monkeypatch):
        sorted_by(monkeypatch, [2, 0, 1])
        mixer, full, x = make(form, block=8), make("transformer"), rows(2, 24)
        full.load_state_dict({k: v for k, v in mixer.state_dict().items() if k in full.state_dict()})
        for own, other in ((0, 2), (1, 0), (2, 1)):
            part = torch.cat((x[:, 8 * own : 8 * own + 8], x[:, 8 * other : 8 * other + 8]), 1)
            assert (run(mixer, x)[:, 8 * own : 8 * own + 8] - run(full, part)[:, :8]).abs().max() < 1e-12

    def test_one_block_is_full_attention(self, form):
        mixer, full, x = make(form, block=40), make("transformer"), rows(2, 40)
        full.load_state_dict({k: v for k, v in mixer.state_dict().items() if k in full.state_dict()})
        assert (run(mixer, x, [40, 23]) - run(full, x, [40, 23]))[0].abs().max() < 1e-12
        assert (run(mixer, x, [40, 23]) - run(full, x, [40, 23]))[1, :23].abs().max() < 1e-12

    def test_noise_comes_in_training_alone(self, form):
        mixer, x = make(form), rows(2, 61)
        still = run(mixer, x)
        mixer.train()
        noisy = [run(mixer, x) for _ in range(2)]
        assert not torch.equal(noisy[0], noisy[1]) and not torch.equal(noisy[0], still)

    def test_bad_options_are_named(self, form):
        for own in ({"block": -1}, {"iterations": 0}, {"temperature": 0.0}, {"kv_heads": 1}):
            with pytest.raises(UserError, match=rf"model\.mixer\.{next(iter(own))}"):
                make(form, **own)


@pytest.mark.parametrize(("most", "block"), [(1, 8), (256, 16), (257, 24), (1024, 32), (4096, 64)])
def test_blocks_are_by_default_the_root_of_the_greatest_length(most, block):
    assert make("sinkhorn", max_length=most).block == block
