"""Sinkhorn attention: the soft permutation, sorted blocks, and equality with full attention."""

from dataclasses import replace

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.kernels.sinkhorn import sinkhorn
from lra_bench.models.mixer import Padding
from lra_bench.models.routed import sorted_blocks as module
from tests.support.mixer_cases import dense_output, make, rows, run
from tests.support.model_cases import batch_for, model, task
from tests.support.storage import exponents

FORMS = ["sinkhorn", "sinkhorn_bilinear"]


def scores(count, seed=0):
    return torch.randn(2, 3, count, count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("name", [*FORMS, "sortcut"])
def test_continuous_inputs_in_16_bits(name):
    network = model(task(channels=3), name, "none").float()
    batch = batch_for(task(channels=3))
    batch = replace(batch, values=batch.values.float())
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        half = network(batch).logits
    with torch.no_grad():
        assert (half - network(batch).logits).abs().max() < 0.05


class TestNormalisation:
    @pytest.mark.parametrize("count", [1, 2, 9])
    def test_twenty_iterations_give_a_doubly_stochastic_matrix(self, count):
        shares = sinkhorn(scores(count), torch.ones(count, count, dtype=torch.bool), 20)
        assert (shares.sum(-1) - 1).abs().max() < 1e-4
        assert (shares.sum(-2) - 1).abs().max() < 1e-12

    def test_more_iterations_reduce_the_error(self):
        all_allowed = torch.ones(9, 9, dtype=torch.bool)
        errors = [(sinkhorn(scores(9), all_allowed, count).sum(-1) - 1).abs().max().item() for count in (1, 5, 20)]
        assert errors[0] > 10 * errors[1] > 100 * errors[2]

    def test_disallowed_entries_are_zero_and_have_no_effect(self):
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

    def test_small_temperature_gives_a_permutation(self):
        order = torch.randperm(6, generator=torch.Generator().manual_seed(0))
        expected = torch.eye(6, dtype=torch.float64)[order]
        shares = sinkhorn((expected + 0.1 * scores(6)[0, 0]) / 0.01, torch.ones(6, 6, dtype=torch.bool), 20)
        assert (shares - expected).abs().max() < 1e-6


def fix_order(monkeypatch, order):
    """Patch the soft permutation to be the permutation ``order`` of blocks for every sequence."""
    exact = torch.eye(len(order), dtype=torch.float64)[torch.tensor(order)]
    monkeypatch.setattr(module, "sinkhorn", lambda scores, allowed, iterations: exact.expand_as(scores))


@pytest.mark.parametrize("form", FORMS)
class TestAttention:
    def test_blocks_sorted_to_themselves_attend_only_to_themselves(self, form, monkeypatch):
        fix_order(monkeypatch, [0, 1, 2])
        mixer, full, x = make(form, block=8), make("transformer"), rows(2, 24)
        full.load_state_dict({k: v for k, v in mixer.state_dict().items() if k in full.state_dict()})
        y = torch.cat([run(full, part) for part in x.split(8, 1)], 1)
        assert (run(mixer, x) - y).abs().max() < 1e-12

    def test_a_block_attends_to_the_block_sorted_to_it(self, form, monkeypatch):
        fix_order(monkeypatch, [2, 0, 1])
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

    def test_noise_is_added_only_in_training(self, form):
        mixer, x = make(form), rows(2, 61)
        without_noise = run(mixer, x)
        mixer.train()
        noisy = [run(mixer, x) for _ in range(2)]
        assert not torch.equal(noisy[0], noisy[1]) and not torch.equal(noisy[0], without_noise)

    def test_invalid_options_are_rejected(self, form):
        for own in (
            *({"block": -1}, {"iterations": 0}, {"temperature": 0.0}, {"kv_heads": 1}),
            *({"scorer": "none"}, {"sort": "none"}, {"join": "none"}),
        ):
            with pytest.raises(UserError, match=rf"model\.mixer\.{next(iter(own))}"):
                make(form, **own)


@pytest.mark.parametrize(("most", "block"), [(1, 8), (256, 16), (257, 24), (1024, 32), (4096, 64)])
def test_default_block_is_the_root_of_the_maximum_length(most, block):
    assert make("sinkhorn", max_length=most).block == block


LONG_RANGE_ARENA = {"scorer": "linear", "sort": "softmax", "join": "sum", "temperature": 1.0}


class TestFormOfLongRangeArena:
    """The options of ``protocol=lra``, which follow the code of Long Range Arena."""

    @pytest.mark.agrees("sinkhorn", compared="two softmaxes and the linear scorer of Long Range Arena", within=1e-12)
    def test_equals_its_formula(self, within):
        mixer, x = make("sinkhorn", block=8, **LONG_RANGE_ARENA), rows(2, 40)
        q, k, v = (part.unflatten(2, (5, 8)) for part in mixer.project(x))
        # Each block is distributed over the positions of the first five of all blocks up to the maximum length.
        shares = (k.sum(3) @ mixer.scoring.weight.T + mixer.scoring.bias)[..., :5].softmax(-1)
        keys, values = (torch.einsum("bhksd,bhkl->bhlsd", part, shares) for part in (k, v))
        attended = [
            (q @ of.mT / mixer.head_dim**0.5).softmax(-1) @ to for of, to in ((k, v), (keys, values))
        ]  # fmt: skip
        expected = mixer.output(sum(attended).flatten(2, 3).transpose(1, 2).flatten(2))
        assert (run(mixer, x) - expected).abs().max() <= within

    @pytest.mark.one_in(3)
    @pytest.mark.parametrize("changed", [{}, {"scorer": "network"}, {"sort": "sinkhorn"}, {"join": "softmax"}])
    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize(("n", "lengths"), [(1, None), (61, None), (61, [61, 40, 1])])
    def test_equals_the_definition(self, changed, causal, n, lengths):
        mixer, x = make("sinkhorn", block=8, causal=causal, **{**LONG_RANGE_ARENA, **changed}), rows(3, n)
        y, expected = run(mixer, x, lengths), dense_output(mixer, x, lengths)[0]
        real = Padding.from_lengths(torch.tensor(lengths or [n] * 3), n)
        assert real.zero(y - expected).abs().max() < 1e-10

    @pytest.mark.parametrize("causal", [False, True])
    def test_amount_of_padding_and_later_tokens_have_no_effect(self, causal):
        mixer, x = make("sinkhorn", block=8, causal=causal, **LONG_RANGE_ARENA), rows(2, 61)
        longer = torch.cat((x, 30 * rows(2, 60, seed=1)), 1)
        assert (run(mixer, longer, [61, 61])[:, :61] - run(mixer, x)).abs().max() < 1e-10
        if causal:
            assert (run(mixer, longer)[:, :61] - run(mixer, x)).abs().max() < 1e-10

    @pytest.mark.parametrize("causal", [False, True])
    def test_memory_grows_as_declared(self, causal):
        """The block grows with the root of the maximum length, so that no tensor has more than N^1.5 elements."""

        def at(n):
            options = {"causal": causal, "dtype": torch.float32, "max_length": n, "block": None}
            x = rows(2, n, dtype=torch.float32).requires_grad_()
            return run(make("sinkhorn", **options, **LONG_RANGE_ARENA).train(), x)

        found, _ = exponents(at, [1024, 4096])
        assert max(found) <= 1.6

    def test_has_no_noise(self):
        mixer, x = make("sinkhorn", **LONG_RANGE_ARENA), rows(2, 61)
        without_noise = run(mixer, x)
        assert (run(mixer.train(), x) - without_noise).abs().max() < 1e-12

    def test_sorted_blocks_can_be_compared_or_scored_but_not_both(self):
        with pytest.raises(UserError, match=r"model\.mixer\.scorer=linear: blocks are scored by their contents"):
            make("sinkhorn_bilinear", scorer="linear")
